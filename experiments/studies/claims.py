"""Claims about arms with the values of their seeds, as evidence for `statistics.decisions`."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.statistics import decisions, paired, primary, statistics, verdicts
from experiments.statistics.counts import FIXED, SEQUENTIAL, Counts, count_looks
from experiments.statistics.decisions import (
    FEWEST_SEEDS,
    Direction,
    Evidence,
    Verdict,
)
from experiments.statistics.paired import Pairs
from experiments.statistics.verdicts import Facts, Judgement

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
        the metric is a ratio. For "better", a win must exceed it; for "at least as good", it is
        the margin by which a win may be worse. Without it, "at least as good" has the margin of
        the study, in the probability of improvement.
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
    """A claim has fewer than two seeds."""

    verdict: Verdict = "pilot"


class Side(NamedTuple):
    """An arm of a claim on one task."""

    facts: Callable[[int | None], Facts]  # number of first seeds, or None for all -> facts
    values: pd.Series  # [seeds], higher is better


class Asked(NamedTuple):
    """A claim with its numbers."""

    claim: Claim
    sides: Sequence[tuple[Side, Side]]  # arm and baseline on every task
    unit: str = ""  # unit in words, for remarks in the reason
    apart: bool = False  # whether the arms have different seeds, as for a control
    left_out: Sequence[str] = ()  # tasks of the claim on which no agent learned

    @property
    def shift(self) -> float:
        """Difference that a win must exceed: the least effect, or minus the margin."""
        return self.claim.least if self.claim.direction == "better" else -self.claim.least

    def values(self, seeds: int | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the values of arm and baseline on every task, of the first seeds or of all.

        Raises:
          ValueError: If the arms have different seeds.
          TooFew: If there are fewer than two seeds.
        """
        found = []
        for arm, base in self.sides:
            both = [side.values.sort_index()[:seeds] for side in (arm, base)]
            sizes = {len(values) for values in both}
            if len(sizes) > 1 or (not self.apart and list(both[0].index) != list(both[1].index)):
                labels = f"{arm.facts(None).label} and {base.facts(None).label}"
                raise ValueError(f"{labels} have different seeds: run the missing ones")
            if max(sizes) < 2:
                raise TooFew(f"pilot: {max(sizes)} seeds carry no verdict")
            found.append((both[0].to_numpy(float), both[1].to_numpy(float)))
        return found

    def pairs(self, seeds: int | None = None) -> Pairs:
        """Describe the differences of arm and baseline, which several tasks do not have."""
        (arm, base), *others = self.values(seeds)
        return Pairs(len(arm)) if others else paired.compare_pairs(arm, base)

    def looks(self, at: Sequence[int] | None = None) -> list[Counts]:
        """Return the counts of wins, ties and losses at every look that has all seeds.

        With several tasks, every seed gives a pair on each of them.

        Args:
          at: numbers of seeds of the looks; None means one look at all seeds.
        """
        shared = min(len(side.values) for both in self.sides for side in both)
        values = self.values(None if at is None else shared)
        at = [shared] if at is None else at
        looks = [count_looks(*both, at, effect=self.shift) for both in values]
        return [Counts(*np.sum(counts, axis=0).tolist()) for counts in zip(*looks, strict=True)]

    def learned(self, at: Sequence[int] | None) -> "Asked":
        """Return the claim about the tasks on which an agent learned by the first look.

        If there is no such task, it is the whole claim, which the gate then stops.
        """
        first = None if at is None else at[0]
        kept, others = [], []
        for both in self.sides:
            facts = _facts(both, first)
            if verdicts.learned(*facts) or verdicts.incomparable(*facts):
                kept.append(both)
            else:
                others.append(facts[0].env)
        return self._replace(sides=kept, left_out=others) if kept else self

    def evidence(self, at: Sequence[int] | None, ungated: str | None) -> Evidence:
        """Return the claim as evidence for `decisions.decide`.

        The gate is applied at the first look, so that later seeds do not change the family of
        claims over which p-values are corrected.
        """
        looks, direction, tasks = self.looks(at), self.claim.direction, len(self.sides)
        sizes = [counts.pairs // tasks for counts in looks]
        first = next((seeds for seeds in sizes if seeds >= FEWEST_SEEDS), sizes[-1])
        gates = [verdicts.gate(*_facts(both, first), ungated) for both in self.sides]
        stopped = min(filter(None, gates), default=None)  # "not comparable" before "not tested"
        if stopped is None and ungated is None and first >= FEWEST_SEEDS:
            stopped = self._at_limit(first)
        if self.claim.least and direction == "at least as good":
            direction = "better"  # by more than minus the margin
        return Evidence(looks, direction, bool(self.claim.least), not self.apart, stopped, tasks)

    def _at_limit(self, seeds: int) -> tuple[Verdict, str] | None:
        """Return the verdict about arms whose values are all the same, or None."""
        for arm, base in self.values(seeds):
            values = np.concatenate([arm, base])
            lost = not np.isfinite(values).any()
            if not lost and not (values == values[0]).all():
                return None
        what = "no seed has a number" if lost else f"all values are {abs(values[0]):.4g}"
        return "not tested", (
            f"not tested: {what} in {seeds} seeds of both arms, a floor or ceiling of the metric"
        )


class Found(NamedTuple):
    """The verdict about a claim, with its numbers."""

    judgement: Judgement
    pairs: Pairs  # differences without the shift
    looks: tuple[Counts, ...] = ()  # counts at every look
    left_out: Sequence[str] = ()  # tasks on which no agent learned


def judge_family(
    claims: Sequence[Claim],
    ask: Callable[[Claim], Asked],
    looks_of: Callable[[Sequence[Asked]], Sequence[int] | None],
    **options: Any,
) -> list[Found | NotAsked]:
    """Judge a family of claims.

    Args:
      claims: the claims.
      ask: returns the numbers of a claim, or raises NotAsked.
      looks_of: returns the numbers of seeds of the looks of a sequential design, or None.
      **options: as in `judge`.

    Returns:
      The verdict of each claim, or the reason why it cannot be judged.
    """
    asked: dict[str, Asked] = {}
    refused: dict[str, NotAsked] = {}
    for name, claim in enumerate(claims):
        try:
            numbers = ask(claim)
            numbers.values(2)  # refuses fewer than two seeds
            asked[str(name)] = numbers
        except NotAsked as error:
            refused[str(name)] = error
    found = judge(asked, looks_of(list(asked.values())), **options)
    return [refused.get(str(name)) or found[str(name)] for name in range(len(claims))]


def judge(
    asked: Mapping[str, Asked],
    at: Sequence[int] | None,
    margin: float = decisions.MARGIN,
    ungated: str | None = None,
    plan: bool = True,
) -> dict[str, Found]:
    """Decide a family of claims; p-values are corrected over those that pass the gate.

    Args:
      asked: the claims, by name, each with the seeds of the first look at least.
      at: numbers of seeds of the looks of a sequential design; None means one test of all seeds.
      margin: margin of "no difference" and "at least as good".
      ungated: reason to judge arms that the gate stops, or None.
      plan: whether to estimate the seeds that undecided claims still need.
    """
    design = FIXED if at is None else SEQUENTIAL
    if ungated is None:
        asked = {name: own.learned(at) for name, own in asked.items()}
    evidence = {name: own.evidence(at, ungated) for name, own in asked.items()}
    found = {}
    for name, decision in decisions.decide(evidence, design, margin, plan=plan).items():
        own = asked[name]
        arm, base = _facts(own.sides[0], decision.seeds)
        if evidence[name].stopped is None:
            decision = dataclasses.replace(decision, reason=decision.reason + _remarks(own))
        judged = verdicts.judgement(
            arm, base, decision, claim=own.claim.direction, quantity=design.quantity,
            ungated=ungated,
        )  # fmt: skip
        found[name] = Found(
            judged, own.pairs(decision.seeds), tuple(evidence[name].looks), own.left_out
        )
    return found


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
        seeds are an error.

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
    values = late.groupby("seed")[column].mean()
    lost = {*statistics.diverged_seeds(frame), *values.index[values.isna()]}
    if lost and not lost_is_worst:
        raise NotAsked(f"{column} is not a number in {len(lost)} seeds that diverged")
    values[values.index.isin(list(lost))] = math.nan
    return values


def round_values(values: pd.Series) -> pd.Series:
    """Return values to seven digits, so that the rounding of float32 does not break ties."""
    return values.map(lambda value: float(f"{value:.7g}"))


def _facts(both: tuple[Side, Side], seeds: int | None) -> tuple[Facts, Facts]:
    arm, base = both
    return arm.facts(seeds), base.facts(seeds)


def _remarks(asked: Asked) -> str:
    """Return remarks on the least effect, tasks that are left out and seeds without a value."""
    words, claim = [], asked.claim
    if asked.left_out:
        words.append(f"without {', '.join(asked.left_out)}, where agents hardly learned")
    if claim.least:
        kind = "margin" if claim.direction == "at least as good" else "least effect"
        words.append(f"{kind} {claim.least:g} {asked.unit}".rstrip())
    for side in (side for both in asked.sides for side in both):
        if lost := int((~np.isfinite(side.values)).sum()):
            label = side.facts(None).label
            words.append(f"{lost} of {len(side.values)} seeds of {label} have no number")
    return f"; {', '.join(dict.fromkeys(words))}" if words else ""
