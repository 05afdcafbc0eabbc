"""Verdicts about claims, from the values of paired seeds.

`judge` turns claims into verdicts. It pairs the values of every claim, counts wins, ties and losses
at every look, applies the gate, tests with p-values corrected over the family (`decide`), and gives
the reason in words. For the tests, see `counts`; for runs that are no evidence, see `gate`.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.statistics import paired
from experiments.statistics.claims import Claim, NotAsked, Outcome, known
from experiments.statistics.counts import (
    ALPHA,
    FEWEST_SEEDS,
    MARGIN,
    QUANTITIES,
    TESTS,
    Counts,
    Interval,
    estimate_of,
    holm,
    interval_of,
    p_value_of,
    shown_p,
)
from experiments.statistics.evidence import Evidence, Pairs, collect
from experiments.statistics.planning import seeds_needed

_ROUNDING = 1e-9  # tolerance of comparisons with 1/2 -+ margin


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict about a claim.

    Numbers describe the look that decided, or the last look if none did. A claim that cannot
    be tested has no looks, and its numbers have no meaning.
    """

    claim: Claim
    verdict: Outcome
    reason: str  # one line with numbers
    label: str  # claim in words, or name of the arm
    method: str  # label without the settings of the group
    group: str = ""  # settings shared with the baseline, such as the replay ratio
    looks: Sequence[Counts] = ()  # counts at every look up to the one that decided
    counts: Counts = Counts()
    seeds: int = 0
    estimate: float = 0.5  # share of untied pairs won, or mu in a sequential design
    interval: Interval = (0.0, 1.0)  # of the estimate at `level`: all of a family hold jointly
    level: float = 1.0  # 1 - alpha / (claims of the family)
    p_value: float = 1.0  # corrected over the family (Holm)
    raw: float = 1.0  # p-value before the correction
    # Number of seeds that decide the claim with 80 % probability, if it is undecided and `plan` was
    # true; in a fixed design, the number in a new sequential study.
    expected: int | None = None
    quantity: str = ""  # name of the estimate and its interval
    effective_buffer: float | None = None  # of the arm, as are the following two
    sampler_updates: float | None = None
    train_seconds: float | None = None
    ungated: str | None = None  # reason for disabling the gate, if it was disabled
    differences: tuple[float, ...] | None = None  # see `paired.differences_of`
    runs: tuple[str, ...] = ()  # ids of the runs that the verdict depends on
    absent: bool = False  # whether an arm or a task was not run

    @property
    def needs_seeds(self) -> bool:
        """Whether further seeds can decide the claim."""
        return bool(self.looks) and self.verdict in _OPEN

    @functools.cached_property
    def pairs(self) -> dict[str, Any]:
        """Differences from the baseline with their mean and IQM, see `paired.describe`."""
        return paired.describe(self.seeds, self.differences)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of the verdict as plain values."""
        names = (
            "verdict", "reason", "counts", "seeds", "estimate", "interval", "level", "p_value",
            "raw", "expected",
        )  # fmt: skip
        facts = (
            "quantity", "effective_buffer", "sampler_updates", "train_seconds", "ungated", "pairs",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in names},
            "arm": self.claim.arm, "baseline": self.claim.baseline,
            **{name: getattr(self, name) for name in facts},
        }  # fmt: skip


def judge(
    claims: Sequence[Claim],
    pairs_of: Callable[[Claim], Pairs],
    looks: Sequence[int] | None = None,
    margin: float = MARGIN,
    ungated: str | None = None,
    plan: bool = True,
) -> list[Verdict]:
    """Judge a family of claims; p-values are corrected over those that pass the gate.

    Args:
      claims: the claims.
      pairs_of: returns the runs of a claim, or raises NotAsked.
      looks: numbers of seeds at the looks of a sequential design; a look at all seeds of each
        claim is added. None means one test of all seeds.
      margin: margin of "no difference" and "at least as good".
      ungated: reason to disable the gate, which then stops only arms that cannot be compared; None
        keeps the gate.
      plan: whether to estimate the seeds that undecided claims still need.

    Returns:
      The verdict about each claim, in their order.

    Raises:
      ValueError: arm and baseline of a claim have different seeds.
    """
    evidence: dict[int, Evidence] = {}
    verdicts: dict[int, Verdict] = {}
    for place, claim in enumerate(claims):
        try:
            evidence[place] = collect(claim, pairs_of(claim), looks, ungated)
        except NotAsked as error:
            verdicts[place] = Verdict(
                claim=claim, verdict=error.outcome, reason=str(error), label=claim.says,
                method=claim.says, absent=error.absent,
            )  # fmt: skip
    decided = decide(evidence, looks is not None, margin, plan)
    verdicts |= {place: replace(verdict, ungated=ungated) for place, verdict in decided.items()}
    return [verdicts[place] for place in range(len(claims))]


def decide(
    claims: Mapping[Any, Evidence],
    sequential: bool = True,
    margin: float = MARGIN,
    plan: bool = True,
) -> dict[Any, Verdict]:
    """Decide every claim of a family at the first look that has enough evidence.

    A claim "agrees" or "disagrees", and a comparison is "better" or "worse", if its p-value,
    corrected over the family by Holm's method, is below `ALPHA`. The counts that gave the p-value
    determine which of the two. The null of "at least as good" is that the arm wins a share
    1/2 - margin of the pairs that do not tie. The null of other directions is that wins and losses
    are equally likely. The verdict "no difference" needs an interval inside
    (1/2 - margin, 1/2 + margin). If more than half of the pairs tie, the interval of the untied
    pairs must also lie inside. No verdict is given before there are ten seeds.

    Later looks of a decided claim are ignored and may be missing, so that decisions do not change
    if the study is interrupted or gets more seeds.

    Args:
      claims: the family of claims, by name. All claims must have looks at the same numbers of
        seeds.
      sequential: whether the test is valid at every look; otherwise there must be a single look.
      margin: margin of "no difference" and "at least as good", in (0, 1/2).
      plan: whether to estimate the seeds that undecided claims need (up to 0.5 s per claim).

    Returns:
      The verdict about each claim. The probability that any verdict for or against an arm is
      false is at most `ALPHA`; the probability that any interval misses is at most another `ALPHA`.

    Raises:
      ValueError: a claim has no look, or several in a fixed design.
    """
    if lacking := [name for name, evidence in claims.items() if not evidence.looks]:
        raise ValueError(f"claim '{lacking[0]}' has no look: give its counts at one look at least")
    family = [
        name for name, evidence in claims.items() if evidence.corrected and evidence.stopped is None
    ]
    alphas = {name: ALPHA / max(len(family), 1) if name in family else ALPHA for name in claims}
    nulls = {name: evidence.claim.null(margin) for name, evidence in claims.items()}
    looks: dict[Any, Sequence[Counts]] = {}
    tests: dict[Any, tuple[float, Counts]] = {}  # p-value, and counts that gave the evidence
    corrected: dict[Any, float] = {}
    outcomes: dict[Any, Outcome] = {}
    for look in range(1, max((len(evidence.looks) for evidence in claims.values()), default=0) + 1):
        undecided = [name for name in claims if outcomes.get(name, "undecided") in _OPEN]
        looks |= {name: claims[name].looks[:look] for name in undecided}
        tests |= {name: p_value_of(looks[name], nulls[name], sequential) for name in undecided}
        p_values = {name: p_value for name, (p_value, _) in tests.items()}
        p_values |= holm({name: p_values[name] for name in family})
        for name in undecided:
            counts, source = looks[name][-1], tests[name][1]
            wins_more = source.wins > nulls[name] * source.untied.pairs
            even = _is_even(counts, alphas[name], margin, sequential)
            outcomes[name] = _outcome(claims[name], counts, p_values[name], wins_more, even)
            corrected[name] = p_values[name]
    verdicts = {}
    for name, evidence in claims.items():
        (raw, source), counts = tests[name], looks[name][-1]
        verdict = _with_numbers(evidence, looks[name], outcomes[name], alphas[name], sequential)
        verdict = replace(verdict, p_value=corrected[name], raw=raw)
        if plan and evidence.corrected and verdict.needs_seeds:
            seen = counts if sequential else Counts()  # a fixed design has to be run anew
            needed = _expected(evidence, counts, seen, alphas[name], margin)
            verdict = replace(verdict, expected=needed)
        size = len(family) if name in family else 0
        verdicts[name] = replace(
            verdict, reason=_reason(evidence, verdict, source, size, sequential)
        )
    return verdicts


_OPEN = ("undecided", "pilot")  # outcomes that further seeds can change


def _outcome(
    evidence: Evidence, counts: Counts, p_value: float, wins_more: bool, even: bool
) -> Outcome:
    """Return the outcome of a claim at a look.

    Args:
      evidence: the claim with its evidence.
      counts: counts of the look.
      p_value: p-value, corrected over the family.
      wins_more: whether the arm wins more of the untied pairs than under the null, in the counts
        that gave the p-value.
      even: whether the interval is within the margin.
    """
    if evidence.stopped is not None:
        return evidence.stopped[0]
    if counts.pairs // evidence.tasks < FEWEST_SEEDS:
        return "pilot"
    if p_value < ALPHA:
        if evidence.claim.direction == "either":
            return "better" if wins_more else "worse"
        return "agrees" if wins_more != (evidence.claim.direction == "worse") else "disagrees"
    return "no difference" if even and evidence.claim.may_find_no_difference else "undecided"


def _is_even(counts: Counts, alpha: float, margin: float, sequential: bool) -> bool:
    """Return whether the interval lies strictly between 1/2 - margin and 1/2 + margin.

    If more than half of the pairs tie, the interval without ties must also lie there.
    """
    mostly_tied = 2 * counts.ties > counts.pairs
    for kind in (counts, counts.untied) if mostly_tied else (counts,):
        low, high = interval_of(kind, alpha, sequential)
        if low <= 0.5 - margin + _ROUNDING or high >= 0.5 + margin - _ROUNDING:
            return False
    return True


def _with_numbers(
    evidence: Evidence, looks: Sequence[Counts], outcome: Outcome, alpha: float, sequential: bool
) -> Verdict:
    """Return a verdict with the numbers of its last look, but without p-values and reason."""
    claim, counts = evidence.claim, looks[-1]
    seeds = counts.pairs // evidence.tasks
    verdict = Verdict(
        claim=claim, verdict=outcome, reason="", label=claim.says, method=claim.says,
        looks=tuple(looks), counts=counts, seeds=seeds, level=1 - alpha,
        estimate=estimate_of(counts, sequential), interval=interval_of(counts, alpha, sequential),
        quantity=QUANTITIES[sequential],
    )  # fmt: skip
    if not evidence.pairs:
        return verdict
    arm, baseline = (runs.first(seeds) for runs in evidence.pairs[0])
    return replace(
        verdict, effective_buffer=arm.effective_buffer, sampler_updates=arm.sampler_updates,
        train_seconds=known(arm.train_seconds),
        runs=tuple(id for pair in evidence.pairs for runs in pair for id in runs.ids),
        differences=None  # which tasks do not have in common
        if evidence.tasks > 1 else paired.differences_of(arm.values, baseline.values),
    )  # fmt: skip


def _expected(
    evidence: Evidence, counts: Counts, seen: Counts, alpha: float, margin: float
) -> int | None:
    """Return how many seeds decide a claim with a probability of 80 %, or None if too many.

    The number includes the seeds in `seen`. Rates of wins and losses are estimated from `counts`.
    """
    null, may_be_even = evidence.claim.null(margin), evidence.claim.may_find_no_difference
    more = seeds_needed(counts, alpha, margin, null, may_be_even, seen=seen)
    return None if more is None else seen.pairs // evidence.tasks + math.ceil(more / evidence.tasks)


def _reason(
    evidence: Evidence, verdict: Verdict, source: Counts, family: int, sequential: bool
) -> str:
    """Return the numbers of a verdict in words.

    Args:
      evidence: the claim with its evidence.
      verdict: the verdict.
      source: counts of the look that gave the p-value.
      family: number of claims over which p-values are corrected.
      sequential: whether the test is valid at every look.
    """
    if evidence.stopped is not None:
        return evidence.stopped[1]
    low, high = verdict.interval
    parts = [
        f"{verdict.counts.shown} of {verdict.seeds} seeds"
        + (f" on {evidence.tasks} tasks" if evidence.tasks > 1 else ""),
        f"{verdict.quantity} {verdict.estimate:.3g} [{low:.3g}, {high:.3g}] at "
        f"{100 * verdict.level:.3g} %",
        f"{TESTS[sequential]} = {shown_p(verdict.p_value)}"
        + (f" (Holm over {family})" if family > 1 else "")
        + (f" from {source.shown}" if verdict.p_value < ALPHA and source != verdict.counts else ""),
    ]
    if verdict.verdict == "pilot":
        parts.append(f"no verdict below {FEWEST_SEEDS} seeds")
    if verdict.expected is not None and sequential:
        parts.append(f"about {verdict.expected - verdict.seeds:,} more seeds to decide")
    elif verdict.expected is not None:
        parts.append(f"a sequential study would take about {verdict.expected:,} seeds")
    if remarks := _remarks(evidence):
        parts.append(", ".join(dict.fromkeys(remarks)))
    return "; ".join(parts)


def _remarks(evidence: Evidence) -> list[str]:
    """Return remarks on tasks that are left out, the least effect and seeds without a value."""
    remarks = []
    if evidence.left_out:
        remarks.append(f"without {', '.join(evidence.left_out)}, where agents hardly learned")
    if evidence.claim.least and evidence.pairs:
        kind = "margin" if evidence.claim.direction == "at least as good" else "least effect"
        remarks.append(f"{kind} {evidence.claim.least:g} {evidence.pairs[0][0].unit}".rstrip())
    for runs in (runs for pair in evidence.pairs for runs in pair):
        if lost := int((~np.isfinite(runs.values)).sum()):
            remarks.append(f"{lost} of {len(runs.values)} seeds of {runs.label} have no number")
    return remarks
