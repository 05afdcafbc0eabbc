"""What an entry's claims come to, given its table."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.analysis import paired, primary, statistics, verdicts
from experiments.analysis.bootstrap import DRAWN, stratified_interval
from experiments.analysis.paired import Pairs
from experiments.analysis.tables import number
from experiments.analysis.verdicts import Facts, Verdict
from experiments.papers.entry import Claim, Computation, Entry, Exact
from experiments.papers.experiment import Experiment, SizeName
from experiments.papers.tables import Data
from experiments.runs.arms import CONTROL
from experiments.runs.judging import facts_of
from experiments.runs.results import threshold_of
from experiments.runs.run_config import OutputConfig, RunConfig

MEAN = "mean:"  # before a column of the metrics, in the name of a claim's primary metric


class Finding(NamedTuple):
    """What a claim comes to."""

    says: str
    verdict: Verdict
    reason: str  # with the numbers
    pairs: Pairs | None = None
    absent: bool = False  # it is about what the size does not have


class _Side(NamedTuple):
    """One side of a claim on one task."""

    facts: Facts
    values: pd.Series  # [seeds], higher is better
    untested: str | None = None  # why it says nothing about its method, besides the gate


class _Asked(NamedTuple):
    """A claim with its numbers."""

    sides: list[tuple[_Side, _Side]]  # arm and baseline on every task
    pairs: Pairs  # as they are
    beyond: Pairs  # less the least effect, or plus the margin
    shift: float  # the least effect, or less the margin


class NotAsked(ValueError):
    """A claim can't be judged, or a number can't be had, and this is why."""

    verdict: Verdict = "not tested"


class _Absent(NotAsked):
    """A size does not have what the claim is about."""


class _TooFew(NotAsked):
    verdict: Verdict = "pilot"


def findings(entry: Entry, size: SizeName, data: Data) -> list[Finding]:
    """Return what each claim of an entry comes to; p-values are corrected over its claims (Holm).

    A claim about what a size does not have is not tested.
    """
    asked: dict[int, _Asked] = {}
    refused: dict[int, NotAsked] = {}
    for place, claim in enumerate(entry.claims):
        try:
            if isinstance(claim, Claim):
                asked[place] = _ask(entry, claim, size, data)
            elif not (data.frame["claim"] == claim.claim).any():
                raise NotAsked(f"no row is about {claim.claim}")
        except NotAsked as error:
            refused[place] = error
    tested = {
        str(place): each.beyond.p_value
        for place, each in asked.items()
        if all(_stopped(*both) is None for both in each.sides)
    }
    corrected = paired.holm(tested)
    found = []
    for place, claim in enumerate(entry.claims):
        if place in refused:
            why = refused[place]
            absent = isinstance(why, _Absent)
            found.append(Finding(claim.says, why.verdict, str(why), absent=absent))
        elif isinstance(claim, Claim):
            found.append(_judged(entry, claim, asked[place], corrected.get(str(place))))
        else:
            found.append(_exact(claim, data.frame))
    return found


def _ask(entry: Entry, claim: Claim, size: SizeName, data: Data) -> _Asked:
    """Collect a claim's numbers."""
    source = entry.source
    if isinstance(source, Experiment):
        sides = _sides_of_runs(source, claim, size, data)
    else:
        assert isinstance(source, Computation)
        sides = [_sides_of_table(entry.id, source, claim, size, data)]
    if claim.least and len(sides) > 1:
        raise ValueError(
            f"'{claim.says}': a least effect is in the unit of one task's metric: name it (where)"
        )
    # "Better by at least so much" and "worse by so much at most" are both a shifted "better".
    shift = claim.least if claim.direction == "better" else -claim.least
    own = _pairs(sides, 0.0)
    return _Asked(sides, own, _pairs(sides, shift) if shift else own, shift)


def _stopped(arm: _Side, baseline: _Side) -> str | None:
    """Return why a task's pair says nothing about a claim, if it does not."""
    return verdicts.incomparable(arm.facts, baseline.facts) or _untested(arm) or _untested(baseline)


def _untested(side: _Side) -> str | None:
    return side.untested or verdicts.untested(side.facts)


def _judged(entry: Entry, claim: Claim, asked: _Asked, p_holm: float | None) -> Finding:
    """Judge by the first task whose pair says nothing, or else by the pairs of all."""
    stopped = [both for both in asked.sides if _stopped(*both) is not None]
    arm, baseline = (stopped or asked.sides)[0]
    pairs = dataclasses.replace(asked.pairs, p_holm=p_holm)
    if why := arm.untested or baseline.untested:
        return Finding(claim.says, "not tested", why, pairs)
    direction = claim.direction
    if claim.least and direction == "at least as good":
        direction = "better"  # than the baseline less the margin
    found = verdicts.judge(
        arm.facts,
        baseline.facts,
        dataclasses.replace(asked.beyond, p_holm=p_holm),
        direction,
        quantity="iqm" if len(asked.sides) == 1 else "improvement",
    )
    reason = found.reason
    if found.quantity == "iqm" and asked.shift:  # shown as it is, beside the least or the margin
        assert asked.pairs.iqm_interval is not None
        _, shown = verdicts.decide(
            direction, asked.pairs.iqm_interval, asked.shift, p_holm, asked.beyond.mean
        )
        reason = f"{verdicts.NAMES['iqm']} {shown}"
    if found.interval is not None:
        reason += _about(entry, claim, asked, found.quantity)
    return Finding(claim.says, found.verdict, reason, pairs)


def _about(entry: Entry, claim: Claim, asked: _Asked, quantity: verdicts.Quantity | None) -> str:
    """Return what an interval's numbers are: their unit, what was taken off, who has none."""
    source, words = entry.source, []
    if quantity == "iqm":
        if isinstance(source, Experiment):
            name = claim.primary or source.question.primary
            if not name.startswith(MEAN):
                words.append(f"in {primary.parse(name, threshold=0.0).unit}")
        elif isinstance(source, Computation) and source.ratios:
            words.append(f"in doublings of {source.unit}")
        elif isinstance(source, Computation) and source.unit:
            words.append(f"in {source.unit}")
    elif claim.least and claim.direction == "at least as good":
        words.append(f"with a margin of {claim.least:g}")
    elif claim.least:
        words.append(f"less the {claim.least:g} that is claimed")
    for side in (side for both in asked.sides for side in both):
        if lost := int((~np.isfinite(side.values)).sum()):
            words.append(f"{lost} of {len(side.values)} seeds of {side.facts.label} have no number")
    return f", {', '.join(dict.fromkeys(words))}" if words else ""


def _sides_of_table(
    name: str, source: Computation, claim: Claim, size: SizeName, data: Data
) -> tuple[_Side, _Side]:
    """Return arm and baseline of a computed table."""
    if missing := set(claim.where) - set(data.frame):
        raise ValueError(f"the table of {name} has no column {', '.join(sorted(missing))}")
    frame = chosen(data.frame, claim.where)
    both = []
    for label in (claim.arm, claim.baseline):
        own = frame[frame["arm"] == label]
        if own.empty:
            raise _Absent(f"size {size} has no {label}{_where(claim)}")
        values = own.set_index("seed")[source.metric].astype(float)
        if values.index.has_duplicates:
            raise ValueError(f"'{claim.says}': {name} has several numbers of a seed: name more")
        values = np.log2(values) if source.ratios else values
        code = "+".join(data.codes())
        facts = Facts(label, str(dict(claim.where)), code, {}, tuple(sorted(values.index)))
        both.append(_Side(facts, values if source.higher_is_better else -values))
    return both[0], both[1]


def _where(claim: Claim) -> str:
    """Return which rows a claim is about, in words; "" if it is about all."""
    words = ", ".join(f"{name} {value}" for name, value in claim.where.items())
    return f" where {words}" if words else ""


def _sides_of_runs(
    source: Experiment, claim: Claim, size: SizeName, data: Data
) -> list[tuple[_Side, _Side]]:
    found = []
    for env, arms in source.runs(size).items():
        if claim.where.get("env", env) != env:
            continue
        frames, made = data.frames(env), data.summaries(env)
        sides = []
        for label in (claim.arm, claim.baseline):
            if label not in frames:
                raise _Absent(f"size {size} has no arm {label} on {env}")
            frame, config = frames[label], arms[label].config
            name = claim.primary or source.question.primary
            summary = made[label]
            code, seconds = summary["versions"].get("code", ""), summary["train_seconds"]
            facts = facts_of(label, config, frame, code, seconds)
            if claim.across:
                facts = dataclasses.replace(facts, settings={})
            if name == "mean:replayed/effective_buffer":  # it is the gate's own subject
                facts = dataclasses.replace(facts, prioritises=False, learned=False)
            untested = source.sizes[size].untested.get(label)
            sides.append(_Side(facts, values_of(frame, name, config), untested))
        found.append((sides[0], sides[1]))
    if not found:
        raise _Absent(f"size {size} has no task{_where(claim)}")
    return found


def values_of(frame: pd.DataFrame, name: str, config: RunConfig) -> pd.Series:
    """Return [seeds] of a metric, higher is better; of a column, `mean:COLUMN`, its mean.

    A mean is over the log points after the warm-up; of seeds that diverged it says nothing.

    Raises:
      NotAsked: the runs do not have it.
    """
    if not name.startswith(MEAN):
        metric = primary.parse(name, threshold_of(config, OutputConfig()))
        if (points := frame["step"].nunique()) < metric.evaluations:
            raise NotAsked(f"{name} needs {metric.evaluations} evaluations, and there are {points}")
        values = metric(frame) * (1 if metric.higher_is_better else -1)
        values[statistics.diverged(frame)] = math.nan
        return values
    column = name.removeprefix(MEAN)
    if column not in frame:
        raise NotAsked(f"no run recorded {column}")
    late = frame[frame["step"] > config.loop.warmup]
    lost = set(statistics.diverged(frame)) | set(late.loc[late[column].isna(), "seed"])
    if lost:
        raise NotAsked(f"{column} is not a number in {len(lost)} seeds that diverged")
    return late.groupby("seed")[column].mean()


def _pairs(sides: Sequence[tuple[_Side, _Side]], shift: float) -> Pairs:
    """Compare seed by seed, the arm less a shift; several tasks by which side is better alone.

    Tasks have units of their own: across them only signs are compared, and resampled within each.
    """
    arms, bases = [], []
    for arm, base in sides:
        own, other = arm.values.sort_index(), base.values.sort_index()
        labels = (arm.facts.label, base.facts.label)
        apart = any(label.partition("_every")[0] == CONTROL for label in labels)
        if len(own) != len(other) or (not apart and list(own.index) != list(other.index)):
            raise ValueError(f"{' and '.join(labels)} have other seeds")
        if len(own) < 2:
            raise _TooFew(f"pilot: {len(own)} seed carries no verdict")
        arms.append(own.to_numpy(float) - shift)
        bases.append(other.to_numpy(float))
    if len(sides) == 1:
        return paired.compare_pairs(arms[0], bases[0])
    ordered = [np.where(np.isnan(values), -math.inf, values) for values in (*arms, *bases)]
    arms, bases = ordered[: len(sides)], ordered[len(sides) :]
    signs = np.stack([(x > y).astype(float) - (x < y) for x, y in zip(arms, bases, strict=True)], 1)
    pairs = paired.compare_pairs(signs.ravel(), np.zeros(signs.size))
    mean = functools.partial(np.mean, axis=(-2, -1))
    low, high = stratified_interval([(signs + 1) / 2], mean, resamples=DRAWN)
    return dataclasses.replace(
        pairs, seeds=len(signs), improvement_interval=(float(low), float(high))
    )


def _exact(claim: Exact, frame: pd.DataFrame) -> Finding:
    rows = frame[frame["claim"] == claim.claim]
    excess = (rows["found"] - rows["expected"]).abs() / rows["tolerance"]
    worst = rows.loc[excess.fillna(math.inf).idxmax()]
    off = int((~(excess <= 1)).sum())
    numbers = (
        f"{number(worst['found'])} beside {number(worst['expected'])}, "
        f"{abs(worst['found'] - worst['expected']):.2g} apart (tolerance {worst['tolerance']:.2g})"
    )
    if off:
        reason = f"{off} of {len(rows)} numbers differ, most of all {numbers}"
        return Finding(claim.says, "disagrees", reason)
    many = f"{len(rows)} numbers, the farthest " if len(rows) > 1 else ""
    return Finding(claim.says, "agrees", f"{many}{numbers}")


def chosen(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows whose columns have these values."""
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return frame
