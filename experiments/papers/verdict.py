"""What an entry's claims come to, given its table."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.analysis import paired, primary, statistics, verdicts
from experiments.analysis.paired import Pairs
from experiments.analysis.tables import number
from experiments.analysis.verdicts import Facts, Verdict
from experiments.papers.entry import Claim, Computation, Entry, Exact
from experiments.papers.experiment import Experiment, SizeName
from experiments.papers.tables import Data
from experiments.runs.arms import CONTROL
from experiments.runs.judging import facts_of
from experiments.runs.outputs import OutputConfig
from experiments.runs.results import threshold_of


class Finding(NamedTuple):
    """What a claim comes to."""

    says: str
    verdict: Verdict
    reason: str  # with the numbers
    pairs: Pairs | None = None


class _Side(NamedTuple):
    """One side of a claim on one task."""

    facts: Facts
    values: pd.Series  # [seeds]


def findings(entry: Entry, size: SizeName, data: Data) -> list[Finding]:
    """Return what each claim of an entry comes to; p-values are corrected over its claims (Holm).

    A claim about what a size does not have is not tested.
    """
    compared: dict[int, list[tuple[_Side, _Side]]] = {}
    absent: dict[int, str] = {}
    for place, claim in enumerate(entry.claims):
        try:
            if isinstance(claim, Claim):
                compared[place] = _sides(entry, claim, size, data)
            elif not (data.frame["claim"] == claim.claim).any():
                raise _Absent(f"no row is about {claim.claim}")
        except _Absent as error:
            absent[place] = str(error)
    pairs = {place: _pairs(entry, entry.claims[place], both) for place, both in compared.items()}
    tested = {
        str(place): pairs[place].p_value
        for place, both in compared.items()
        if all(verdicts.untested(side.facts) is None for each in both for side in each)
    }
    for place, p_value in paired.holm(tested).items():
        pairs[int(place)] = dataclasses.replace(pairs[int(place)], p_holm=p_value)
    found = []
    for place, claim in enumerate(entry.claims):
        if place in absent:
            found.append(Finding(claim.says, "not tested", absent[place]))
        elif isinstance(claim, Claim):
            found.append(_judged(claim, compared[place], pairs[place]))
        else:
            found.append(_exact(claim, data.frame))
    return found


class _Absent(ValueError):
    """A table of this size does not have what a claim is about."""


def _judged(claim: Claim, sides: Sequence[tuple[_Side, _Side]], pairs: Pairs) -> Finding:
    """Judge by the first task whose facts stop it, or else by the pairs of all."""
    if claim.least and len(sides) > 1:
        raise ValueError(
            f"'{claim.says}': a least effect is in the unit of one task's metric: name it (where)"
        )
    stopped = [each for each in sides if any(verdicts.untested(side.facts) for side in each)]
    arm, baseline = (side.facts for side in (stopped or sides)[0])
    found = verdicts.judge(
        arm, baseline, pairs, claim.direction,
        quantity="iqm" if len(sides) == 1 else "improvement",
        **({"margin": claim.least} if claim.direction == "at least as good" else
           {"least": claim.least}),
    )  # fmt: skip
    return Finding(claim.says, found.verdict, found.reason, pairs)


def _sides(entry: Entry, claim: Claim, size: SizeName, data: Data) -> list[tuple[_Side, _Side]]:
    """Return arm and baseline on every task that a claim is about."""
    source = entry.source
    if isinstance(source, Experiment):
        return _sides_of_runs(source, claim, size, data)
    assert isinstance(source, Computation)
    if missing := set(claim.where) - set(data.frame):
        raise ValueError(f"the table of {entry.id} has no column {', '.join(sorted(missing))}")
    frame = chosen(data.frame, claim.where)
    both = []
    for label in (claim.arm, claim.baseline):
        own = frame[frame["arm"] == label]
        if own.empty:
            raise _Absent(f"size {size} has no {label} where {dict(claim.where)}")
        values = own.set_index("seed")[source.metric].astype(float)
        if source.ratios:
            values = np.log2(values)
        code = "+".join(data.codes())
        facts = Facts(label, str(dict(claim.where)), code, {}, tuple(sorted(values.index)))
        both.append(_Side(facts, values))
    return [(both[0], both[1])]


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
            threshold = threshold_of(arms[label].config, OutputConfig())
            name = claim.primary or source.question.primary
            values = _values(frames[label], name, threshold)
            facts = facts_of(label, arms[label], frames[label], made[label], other_code=False)
            if claim.across:
                facts = dataclasses.replace(facts, settings={})
            sides.append(_Side(facts, values))
        found.append((sides[0], sides[1]))
    if not found:
        raise _Absent(f"size {size} has no task where {dict(claim.where)}")
    return found


def _values(frame: pd.DataFrame, name: str, threshold: float | None) -> pd.Series:
    """Return [seeds] of a metric, higher is better; of a column, `mean:COLUMN`, its mean."""
    if name.startswith("mean:"):
        column = name.removeprefix("mean:")
        if column not in frame:
            raise ValueError(f"no run recorded {column}")
        return frame.groupby("seed")[column].mean()
    metric = primary.parse(name, threshold)
    values = metric(frame) * (1 if metric.higher_is_better else -1)
    values[statistics.diverged(frame)] = math.nan
    return values


def _pairs(entry: Entry, claim: Claim | Exact, sides: Sequence[tuple[_Side, _Side]]) -> Pairs:
    """Compare seed by seed; of several tasks, all seeds of all together."""
    assert isinstance(claim, Claim)
    higher = not isinstance(entry.source, Computation) or entry.source.higher_is_better
    arms, bases = [], []
    for arm, base in sides:
        own, other = arm.values.sort_index(), base.values.sort_index()
        if CONTROL not in (claim.arm, claim.baseline) and list(own.index) != list(other.index):
            raise ValueError(f"{entry.id}: {claim.arm} and {claim.baseline} have other seeds")
        arms.append(own.to_numpy(float))
        bases.append(other.to_numpy(float))
    pairs = paired.compare_pairs(np.concatenate(arms), np.concatenate(bases), higher)
    return dataclasses.replace(pairs, seeds=min(map(len, arms)))


def _exact(claim: Exact, frame: pd.DataFrame) -> Finding:
    rows = frame[frame["claim"] == claim.claim]
    excess = (rows["found"] - rows["expected"]).abs() / rows["tolerance"]
    off = rows[~(excess <= 1)]
    if off.empty:
        worst = rows.loc[excess.idxmax()]
        return Finding(
            claim.says, "agrees",
            f"{len(rows)} numbers, the farthest {number(worst['found'])} beside "
            f"{number(worst['expected'])} (tolerance {worst['tolerance']:.2g})",
        )  # fmt: skip
    first = off.iloc[0]
    return Finding(
        claim.says, "disagrees",
        f"{len(off)} of {len(rows)} numbers differ: {number(first['found'])} beside "
        f"{number(first['expected'])} (tolerance {first['tolerance']:.2g})",
    )  # fmt: skip


def chosen(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows whose columns have these values."""
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return frame
