"""Evidence about claims: pairs of runs, their counts at every look, and the outcome of the gate."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.statistics.claims import Claim, NotAsked, Outcome, Runs
from experiments.statistics.counts import FEWEST_SEEDS, Counts, count_looks
from experiments.statistics.gate import at_limit, gate, incomparable, learned

Pairs = Sequence[tuple[Runs, Runs]]  # runs of arm and baseline, on every task of a claim


@dataclass(frozen=True)
class Evidence:
    """A claim with the counts that decide it.

    Attributes:
      claim: the claim.
      looks: counts of all seeds up to each look; a single look in a fixed design.
      stopped: outcome of the gate with its reason, or None if the claim passes. A claim that does
        not pass is not part of the family.
      corrected: whether the claim belongs to the family over which p-values are corrected; not for
        a control.
      pairs: runs of arm and baseline on the tasks that count; () if only the counts are known.
      left_out: tasks of the claim on which no agent learned.
    """

    claim: Claim
    looks: Sequence[Counts]
    stopped: tuple[Outcome, str] | None = None
    corrected: bool = True
    pairs: Pairs = ()
    left_out: Sequence[str] = ()

    @property
    def tasks(self) -> int:
        """Number of tasks that count, on each of which every seed gives a pair; at least 1."""
        return max(len(self.pairs), 1)


def collect(
    claim: Claim, pairs: Pairs, looks: Sequence[int] | None = None, ungated: str | None = None
) -> Evidence:
    """Return the evidence about a claim: counts at every look, and the outcome of the gate.

    With several tasks, every seed gives a pair on each of them. Tasks on which no agent learned by
    the first look are left out, unless there are no others.

    Args:
      claim: the claim.
      pairs: runs of arm and baseline on every task.
      looks: numbers of seeds at the looks of a sequential design; a look at all seeds is added.
        None means one test of all seeds.
      ungated: reason to disable the gate, which then stops only arms that cannot be compared; None
        keeps the gate.

    Raises:
      NotAsked: there are fewer than two seeds, or fewer than at the first look.
      ValueError: the arm and its baseline have different seeds.
    """
    remains = [ungated is not None or _has_learned(pair, looks) for pair in pairs]
    if not any(remains):  # the gate stops a claim of which no task remains
        remains = [True] * len(pairs)
    left_out = [arm.env for (arm, _), stays in zip(pairs, remains, strict=True) if not stays]
    pairs = [pair for pair, stays in zip(pairs, remains, strict=True) if stays]
    shared = min(len(runs.values) for pair in pairs for runs in pair)
    if looks is not None:  # an arm of other, undecided claims has more seeds
        counted = [(arm.first(shared), baseline.first(shared)) for arm, baseline in pairs]
    else:
        counted = pairs
    _check_seeds(counted, 2 if looks is None else looks[0])

    sizes = [*(seeds for seeds in looks or () if seeds < shared), shared]
    by_task = [
        count_looks(arm.values.to_numpy(), baseline.values.to_numpy(), sizes, claim.effect)
        for arm, baseline in counted
    ]
    summed = [Counts(*np.sum(counts, axis=0).tolist()) for counts in zip(*by_task, strict=True)]
    # Later seeds must not change the family of claims over which p-values are corrected.
    first = next((seeds for seeds in sizes if seeds >= FEWEST_SEEDS), shared)
    stopped = _stop([(arm.first(first), base.first(first)) for arm, base in counted], ungated)
    corrected = not any(runs.is_control for pair in pairs for runs in pair)
    return Evidence(claim, summed, stopped, corrected, pairs, left_out)


def _has_learned(pair: tuple[Runs, Runs], looks: Sequence[int] | None) -> bool:
    """Return whether a task counts: agents learned by the first look, or arms are incomparable."""
    if looks is not None:
        pair = pair[0].first(looks[0]), pair[1].first(looks[0])
    return learned(*pair) or incomparable(*pair) is not None


def _check_seeds(pairs: Pairs, fewest: int) -> None:
    for arm, baseline in pairs:
        seeds = [list(runs.values.index) for runs in (arm, baseline)]
        apart = arm.is_control or baseline.is_control
        if len(seeds[0]) != len(seeds[1]) or (seeds[0] != seeds[1] and not apart):
            raise ValueError(
                f"{arm.label} and {baseline.label} have different seeds: run the missing ones"
            )
        if len(seeds[0]) < 2:
            raise NotAsked(f"pilot: {len(seeds[0])} seeds carry no verdict", "pilot")
        if len(seeds[0]) < fewest:
            reason = f"pilot: {len(seeds[0])} seeds, fewer than the {fewest} of a look"
            raise NotAsked(reason, "pilot")


def _stop(pairs: Pairs, ungated: str | None) -> tuple[Outcome, str] | None:
    """Return the outcome of the gate on the tasks of a claim with its reason, or None."""
    if gates := [stop for pair in pairs if (stop := gate(*pair, ungated)) is not None]:
        return min(gates)  # "not comparable" before "not tested"
    if ungated is None and len(pairs[0][0].values) >= FEWEST_SEEDS:
        return at_limit(pairs)
    return None
