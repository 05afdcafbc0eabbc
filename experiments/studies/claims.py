"""Verdicts about claims from paired seeds, in fixed or sequential designs.

A fixed design tests a claim once, with all seeds (`statistics.verdicts`). A sequential design looks
at the seeds after every batch and decides a claim at the first look with enough evidence
(`statistics.decisions`).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.statistics import decisions, paired, primary, statistics, verdicts
from experiments.statistics.bootstrap import DRAWN, stratified_interval
from experiments.statistics.decisions import Counts, Decision
from experiments.statistics.paired import Pairs
from experiments.statistics.verdicts import FEWEST_SEEDS, Direction, Facts, Judgement, Verdict

MEAN = "mean:"  # prefix of a metric's column, in the name of a claim's primary metric


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim about an arm and a baseline, chosen before anything runs.

    Attributes:
      says: the claim in words.
      arm: label of the arm.
      baseline: label of the arm that it is compared with.
      direction: better, at least as good, or worse, in the direction of the metric.
      least: smallest effect that counts, in the unit of the metric, or as a logarithm to base 2 if
        the metric is a ratio. For "better", the effect must exceed it; for "at least as good", it
        is the margin.
      where: values of columns that select the runs, such as `{"env": "walk/10"}`. A claim about
        several tasks is about all of them together.
      primary: metric that decides the claim, or None for the primary metric of the study. Besides
        the primary metrics, `mean:COLUMN` is the mean of a column after the warm-up.
      across: whether the arms may differ in agent, loop and sizes.
    """

    says: str
    arm: str
    baseline: str
    direction: Direction = "better"
    least: float = 0.0
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    primary: str | None = None
    across: bool = False


class NotAsked(ValueError):
    """A claim cannot be judged; the message gives the reason."""

    verdict: Verdict = "not tested"


class Absent(NotAsked):
    """A claim is about an arm or a task that was not run."""


class TooFew(NotAsked):
    """A claim has a single seed."""

    verdict: Verdict = "pilot"


class Side(NamedTuple):
    """An arm of a claim on one task."""

    facts: Callable[[int | None], Facts]  # number of first seeds, or None for all -> facts
    values: pd.Series  # [seeds], higher is better


class Asked(NamedTuple):
    """A claim with its numbers."""

    claim: Claim
    sides: Sequence[tuple[Side, Side]]  # arm and baseline on every task
    unit: str | None = None  # unit in words, for remarks in the reason; None for no remarks
    apart: bool = False  # whether the arms have different seeds, as for a control
    corrects: bool = True  # whether the p-value belongs to the corrected family

    @property
    def shift(self) -> float:
        """Least effect of "better", or minus the margin of "at least as good"."""
        return self.claim.least if self.claim.direction == "better" else -self.claim.least

    @property
    def direction(self) -> Direction:
        """Direction after the shift, where "at least as good" with a margin becomes "better"."""
        margin = self.claim.least and self.claim.direction == "at least as good"
        return "better" if margin else self.claim.direction

    def facts(self, seeds: int | None = None) -> tuple[Facts, Facts]:
        """Return the facts of the first pair that does not count as tested, or the first pair."""
        pairs = [(arm.facts(seeds), base.facts(seeds)) for arm, base in self.sides]
        return next((both for both in pairs if not _are_tested(*both)), pairs[0])

    def pairs(self, shift: float = 0.0, seeds: int | None = None) -> Pairs:
        """Compare arm and baseline seed by seed, after subtracting a shift from the arm.

        Since units differ between tasks, pairs of claims about several tasks are +1, 0 or -1.

        Raises:
          ValueError: If the arms have different seeds.
          TooFew: If there is a single seed.
        """
        arms, bases = [], []
        for arm, base in self.sides:
            own, other = (each.values.sort_index()[:seeds] for each in (arm, base))
            if len(own) != len(other) or (not self.apart and list(own.index) != list(other.index)):
                labels = f"{arm.facts(None).label} and {base.facts(None).label}"
                raise ValueError(f"{labels} have different seeds: run the missing ones")
            if len(own) < 2:
                raise TooFew(f"pilot: {len(own)} seed carries no verdict")
            arms.append(own.to_numpy(float) - shift)
            bases.append(other.to_numpy(float))
        if len(arms) == 1:
            return paired.compare_pairs(arms[0], bases[0])
        signs = _signs(arms, bases)
        pairs = paired.compare_pairs(signs.ravel(), np.zeros(signs.size))
        mean = functools.partial(np.mean, axis=(-2, -1))
        low, high = stratified_interval([(signs + 1) / 2], mean, resamples=DRAWN)
        return dataclasses.replace(
            pairs, seeds=len(signs), improvement_interval=(float(low), float(high))
        )

    def looks(self, at: Sequence[int]) -> list[Counts]:
        """Return the counts of wins, ties and losses at every look that has all seeds.

        With several tasks, a seed is a win if the arm is better on more tasks than it is worse on.
        """
        arms = [arm.values.sort_index().to_numpy(float) for arm, _ in self.sides]
        bases = [base.values.sort_index().to_numpy(float) for _, base in self.sides]
        if len(arms) == 1:
            return decisions.count_looks(arms[0], bases[0], at, effect=self.shift)
        seeds = min(map(len, [*arms, *bases]))
        signs = _signs([own[:seeds] for own in arms], [own[:seeds] for own in bases])
        balance = np.sign(signs.sum(axis=1))
        return decisions.count_looks(balance, np.zeros(seeds), at)


class Found(NamedTuple):
    """The verdict about a claim, with its numbers."""

    judgement: Judgement
    pairs: Pairs  # without the shift
    looks: tuple[Counts, ...] = ()  # counts at every look of a sequential design
    decision: Decision | None = None


def judge_family(
    claims: Sequence[Claim],
    ask: Callable[[Claim], Asked],
    design: Callable[[Mapping[str, Asked]], Mapping[str, Found]],
) -> list[Found | NotAsked]:
    """Judge a family of claims.

    Args:
      claims: the claims.
      ask: returns the numbers of a claim, or raises NotAsked.
      design: returns the verdicts of claims by name (`judge_fixed` or `sequential`).

    Returns:
      The verdict of each claim, or the reason why it cannot be judged.
    """
    asked: dict[str, Asked] = {}
    refused: dict[str, NotAsked] = {}
    for name, claim in enumerate(claims):
        try:
            own = ask(claim)
            own.pairs(seeds=2)  # refuses a single seed
            asked[str(name)] = own
        except NotAsked as error:
            refused[str(name)] = error
    found = design(asked)
    return [refused.get(str(name)) or found[str(name)] for name in range(len(claims))]


def judge_fixed(asked: Mapping[str, Asked], ungated: str | None = None) -> dict[str, Found]:
    """Test every claim once, with all seeds; p-values are corrected over the claims (Holm).

    Args:
      asked: the claims, by name.
      ungated: reason to judge arms that the gate stops, or None.
    """
    own = {name: each.pairs() for name, each in asked.items()}
    beyond = {
        name: each.pairs(each.shift) if each.shift else own[name] for name, each in asked.items()
    }
    tested = [
        name
        for name, each in asked.items()
        if each.corrects and (ungated is not None or _are_tested(*each.facts()))
    ]
    corrected = paired.holm({name: beyond[name].p_value for name in tested})
    found = {}
    for name, each in asked.items():
        p_holm = corrected.get(name)
        pairs = dataclasses.replace(own[name], p_holm=p_holm)
        shifted = dataclasses.replace(beyond[name], p_holm=p_holm)
        found[name] = Found(_fixed(each, pairs, shifted, ungated), pairs)
    return found


def _fixed(asked: Asked, own: Pairs, beyond: Pairs, ungated: str | None) -> Judgement:
    direction = asked.direction
    quantity = "iqm" if len(asked.sides) == 1 else "improvement"
    found = verdicts.judge(*asked.facts(), beyond, direction, quantity, ungated=ungated)
    reason = found.reason
    if found.quantity == "iqm" and asked.shift:  # report the difference without the shift
        assert own.iqm_interval is not None
        _, shown = verdicts.decide(
            direction, own.iqm_interval, asked.shift, own.p_holm, beyond.mean
        )
        reason = f"{verdicts.NAMES['iqm']} {shown}"
    if found.interval is not None:
        reason += _remarks(asked, found.quantity == "iqm")
    return dataclasses.replace(found, reason=reason)


def sequential(
    asked: Mapping[str, Asked],
    at: Sequence[int],
    margin: float,
    ungated: str | None = None,
    plan: bool = True,
) -> dict[str, Found]:
    """Decide every claim at the first look with enough evidence, with corrected p-values.

    Args:
      asked: the claims, by name, each with the seeds of the first look at least.
      at: numbers of seeds of the looks.
      margin: margin of "no difference" and "at least as good".
      ungated: reason to judge arms that the gate stops, or None.
      plan: whether to estimate the seeds that undecided claims still need.
    """
    looks = {name: each.looks(at) for name, each in asked.items()}
    directions = {name: (each.direction, margin) for name, each in asked.items()}
    family = {name: looks[name] for name, each in asked.items() if each.corrects}
    decided = decisions.decide(
        family, verdicts.ALPHA, margin, claims={n: directions[n] for n in family}, plan=plan
    )
    for name in looks.keys() - family.keys():
        own = {name: looks[name]}
        decided |= decisions.decide(own, verdicts.ALPHA, margin, plan=False)
    return {
        name: _sequential(each, decided[name], tuple(looks[name]), margin, ungated)
        for name, each in asked.items()
    }


def _sequential(
    asked: Asked, decision: Decision, looks: tuple[Counts, ...], margin: float, ungated: str | None
) -> Found:
    seeds, direction = decision.seeds, asked.direction
    pairs = asked.pairs(seeds=seeds)
    if asked.corrects:
        pairs = dataclasses.replace(pairs, p_holm=decision.p_value)
    facts, other = asked.facts(seeds)
    stopped = verdicts.without_numbers(facts, other, seeds, ungated)
    if stopped is not None:
        found = verdicts.judgement(facts, other, seeds, *stopped, claim=direction, ungated=ungated)
        return Found(found, pairs, looks, decision)
    low, high = decision.interval
    verdict = decisions.answer(direction, decision.verdict, decision.interval, margin)
    if verdict == "no difference" and asked.shift:  # pairs exceed the least effect as often as not
        verdict = "undecided"
    counts = decision.counts
    reason = (
        f"{counts.wins} wins, {counts.losses} losses, {counts.ties} ties after {seeds} "
        f"seeds; probability of improvement {decision.mu:.3g} [{low:.3g}, {high:.3g}], anytime "
        f"p = {decision.p_value:.2g} ({'Holm' if asked.corrects else 'raw'})"
    )
    if verdict == "undecided" and decision.expected is not None:
        reason += f"; about {decision.expected - seeds:,} more seeds to decide"
    boundary = 0.5 - margin if direction == "at least as good" else 0.5
    found = verdicts.judgement(
        facts, other, seeds, verdict, reason + _remarks(asked, False), claim=direction,
        quantity="improvement", interval=decision.interval, boundary=boundary,
        p_value=decision.p_value, ungated=ungated,
    )  # fmt: skip
    return Found(found, pairs, looks, decision)


def values_of(
    frame: pd.DataFrame,
    name: str,
    threshold: float | None,
    warmup: int,
    lost_is_worst: bool = False,
) -> pd.Series:
    """Return `[seeds]` of a metric, where higher is better; NaN for seeds that diverged.

    Args:
      frame: metrics, with columns seed, step and eval_return.
      name: name of a primary metric, or `mean:COLUMN` for the mean of a column over the log points
        after the warm-up.
      threshold: return that counts as solved, if there is one.
      warmup: agent steps of the warm-up.
      lost_is_worst: whether the mean of a column is NaN for seeds that diverged; otherwise, such
        seeds are an error, which sequential designs must avoid.

    Raises:
      NotAsked: If the runs do not have the metric.
    """
    if not name.startswith(MEAN):
        metric = primary.parse(name, threshold)
        if (points := frame["step"].nunique()) < metric.evaluations:
            raise NotAsked(f"{name} needs {metric.evaluations} evaluations, and there are {points}")
        values = metric(frame) * (1 if metric.higher_is_better else -1)
        values[statistics.diverged_seeds(frame)] = math.nan
        return values.sort_index()
    column = name.removeprefix(MEAN)
    if column not in frame:
        raise NotAsked(f"no run recorded {column}")
    late = frame[frame["step"] > warmup]
    lost = set(statistics.diverged_seeds(frame)) | set(late.loc[late[column].isna(), "seed"])
    if lost and not lost_is_worst:
        raise NotAsked(f"{column} is not a number in {len(lost)} seeds that diverged")
    values = late.groupby("seed")[column].mean()
    values[values.index.isin(list(lost))] = math.nan
    return values


def round_values(values: pd.Series) -> pd.Series:
    """Return values to seven digits, so that the rounding of float32 does not break ties."""
    return values.map(lambda value: float(f"{value:.7g}"))


def _are_tested(arm: Facts, base: Facts) -> bool:
    """Return whether an arm and its baseline count as tested, with any number of seeds."""
    return verdicts.without_numbers(arm, base, FEWEST_SEEDS, ungated=None) is None


def _signs(arms: Sequence[np.ndarray], bases: Sequence[np.ndarray]) -> np.ndarray:
    """Return `[seeds, tasks]`: +1 if the arm is better, -1 if it is worse, else 0."""
    found = []
    for own, other in zip(arms, bases, strict=True):
        x, y = (np.where(np.isnan(values), -math.inf, values) for values in (own, other))
        found.append((x > y).astype(float) - (x < y))
    return np.stack(found, 1)


def _remarks(asked: Asked, in_units: bool) -> str:
    """Return remarks on the unit, the least effect and seeds without a value."""
    if asked.unit is None:
        return ""
    words, claim = [], asked.claim
    if in_units:
        words += [asked.unit] * bool(asked.unit)
    elif claim.least and claim.direction == "at least as good":
        words.append(f"with a margin of {claim.least:g}")
    elif claim.least:
        words.append(f"less the {claim.least:g} that is claimed")
    for side in (side for both in asked.sides for side in both):
        if lost := int((~np.isfinite(side.values)).sum()):
            label = side.facts(None).label
            words.append(f"{lost} of {len(side.values)} seeds of {label} have no number")
    return f", {', '.join(dict.fromkeys(words))}" if words else ""
