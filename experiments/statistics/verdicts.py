"""Verdicts of comparisons: whether an arm was tested at all, and the answer to a claim.

A prioritised sampler that drew almost uniformly, or a learned one that hardly learned, is no
evidence about its method; neither are arms of different environments, or a handful of seeds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from experiments.statistics.paired import Interval, Pairs

# Above this share of the buffer in effective use, 1 / (N sum P^2), draws are as good as uniform.
UNIFORM_BUFFER = 0.95
# A learned sampler that was updated less often than this is still about where it began.
FEWEST_UPDATES = 500
# Below this number of seeds a nominal 95 % bootstrap interval covers too little (80 to 90 % with
# five), and a test has no power.
FEWEST_SEEDS = 10
# Chance of any false claim among the arms of a comparison, for p-values after Holm.
ALPHA = 0.05
# The label of the baseline's second arm, under other seeds.
CONTROL = "control"

Verdict = Literal[
    "agrees", "disagrees", "no difference", "undecided", "not tested", "not comparable", "pilot",
    "no claim",
]  # fmt: skip
Claim = Literal["better", "at least as good", "worse"]
Quantity = Literal["iqm", "improvement"]
NAMES: Mapping[Quantity, str] = {
    "iqm": "IQM of the differences",
    "improvement": "probability of improvement",
}


@dataclass(frozen=True)
class Facts:
    """Facts about an arm that the gate needs."""

    label: str
    env: str
    code: str  # version of the code, and settings of JAX, that made it
    settings: Mapping[str, Any]  # all that arms must share: agent, loop, protocol, replay ratio
    seeds: tuple[int, ...]
    prioritises: bool = False  # its draws are meant to depart from uniform (not: uniform, pal)
    learned: bool = False  # its sampler has a network of its own
    effective_buffer: float | None = None  # mean after warm-up over log points and seeds
    sampler_updates: float | None = None  # of its network, mean over seeds
    train_seconds: float | None = None  # compute, of all seeds together


@dataclass(frozen=True)
class Judgement:
    """A verdict with the numbers that it rests on; `dataclasses.asdict` of it is JSON-able."""

    arm: str
    baseline: str
    claim: Claim  # about the arm, next to the baseline
    verdict: Verdict
    reason: str  # one line with numbers
    seeds: int
    quantity: Quantity | None = None  # what the interval is of, if the verdict is from numbers
    interval: Interval | None = None
    boundary: float | None = None  # between the two sides of the claim
    p_value: float | None = None  # after Holm where there are several arms
    effective_buffer: float | None = None
    sampler_updates: float | None = None
    train_seconds: float | None = None
    ungated: str | None = None  # why the gate was off, if it was


def why_untested(arm: Facts) -> str | None:
    """Return the reason why an arm does not test its method, or None (the gate).

    PAL and other methods that draw uniformly pass: their losses differ, not their draws.
    """
    if arm.prioritises:
        if (share := _known(arm.effective_buffer)) is None:
            return "not tested: its effective buffer was not recorded"
        if share > UNIFORM_BUFFER:
            return f"{_LIKE_UNIFORM}: effective buffer {share:.3g} is above {UNIFORM_BUFFER:g}"
    if arm.learned:
        if (updates := _known(arm.sampler_updates)) is None:
            return "not tested: the updates of its network were not recorded"
        if updates < FEWEST_UPDATES:
            times = f"updated {updates:.0f} times, fewer than {FEWEST_UPDATES}"
            return f"{_LIKE_UNIFORM}: its network was {times}"
    return None


def incomparable(arm: Facts, baseline: Facts) -> str | None:
    """Return why two arms can't be compared seed by seed, or None if they can."""
    for name, own, other in (
        ("environments", arm.env, baseline.env),
        ("versions of the code", arm.code, baseline.code),
        ("numbers of seeds", len(arm.seeds), len(baseline.seeds)),
    ):
        if own != other:
            return f"not comparable: different {name}, {own} and {other}"
    missing = object()
    for name in sorted({*arm.settings, *baseline.settings}):
        own, other = (each.settings.get(name, missing) for each in (arm, baseline))
        if own != other:
            shown = " and ".join("none" if each is missing else str(each) for each in (own, other))
            return f"not comparable: different {name}, {shown}"
    return None


def judge(
    arm: Facts,
    baseline: Facts,
    pairs: Pairs,
    claim: Claim = "better",
    quantity: Quantity = "iqm",
    ungated: str | None = None,
) -> Judgement:
    """Return the verdict of a comparison about a claim.

    In this order: arms that differ in more than their method are "not comparable"; an arm (or
    baseline) that the gate stops is "not tested"; fewer than ten seeds are a "pilot"; then the
    interval decides (`decide`).

    Args:
      arm: facts of the arm that the claim is about.
      baseline: facts of the arm that it is compared with.
      pairs: the two compared by the primary metric, named before the runs (`paired`).
      claim: what is claimed of the arm next to the baseline.
      quantity: what the interval is of: the IQM of the paired differences (ten seeds cover .93 of
        the nominal .95), or the paired probability of improvement, which it also is where there are
        no differences (a seed never solved or diverged).
      ungated: the reason to judge although the gate stops an arm, which is then kept.

    Raises:
      ValueError: the gate is off without a reason.
    """
    if ungated is not None and not ungated.strip():
        raise ValueError("the gate is off without a reason: say why in words")
    if stopped := without_numbers(arm, baseline, pairs.seeds, ungated):
        return judgement(arm, baseline, pairs.seeds, *stopped, claim=claim, ungated=ungated)
    if quantity != "improvement" and pairs.differences is None:
        quantity = "improvement"
    interval = getattr(pairs, f"{quantity}_interval")
    boundary = 0.5 if quantity == "improvement" else 0.0
    p_value = pairs.p_value if pairs.p_holm is None else pairs.p_holm
    verdict, reason = decide(claim, interval, boundary, p_value, pairs.mean)
    return judgement(
        arm, baseline, pairs.seeds, verdict, f"{NAMES[quantity]} {reason}", claim=claim,
        quantity=quantity, interval=interval, boundary=boundary, p_value=p_value, ungated=ungated,
    )  # fmt: skip


def judgement(
    arm: Facts, baseline: Facts, seeds: int, verdict: Verdict, reason: str, **numbers: Any
) -> Judgement:
    """Return a verdict with the facts about its arm; `numbers` are further fields."""
    known = ("effective_buffer", "sampler_updates", "train_seconds")
    own = {name: _known(getattr(arm, name)) for name in known}
    return Judgement(
        arm=arm.label, baseline=baseline.label, verdict=verdict, reason=reason, seeds=seeds,
        **{"claim": "better", **own, **numbers},
    )  # fmt: skip


def decide(
    claim: Claim,
    interval: Interval,
    boundary: float,
    p_value: float | None = None,
    mean: float | None = None,
) -> tuple[Verdict, str]:
    """Return the verdict of an interval about a claim, and the numbers in words.

    "Better" claims that the quantity lies above the boundary, "worse" that it lies below, "at least
    as good" that it lies at or above it. The claim agrees if the interval lies wholly on its side,
    disagrees if wholly on the other, and is undecided if the interval holds both. Whatever asserts
    a difference also needs a p-value below `ALPHA`, for among many arms one interval in twenty errs
    by chance, and one that is of a mean on the same side: a few seeds may turn the mean against all
    others. "At least as good" asserts no difference when it agrees.

    Args:
      claim: what is claimed.
      interval: lower and upper end; higher is better for the arm.
      boundary: 0 for differences, 0.5 for a probability of improvement.
      p_value: of no mean difference, corrected over arms; None to go by the interval alone.
      mean: the mean difference that the p-value is of; None where it is of signs.
    """
    low, high = interval
    shown = f"[{low:.4g}, {high:.4g}]"
    above = low >= boundary if claim == "at least as good" else low > boundary
    below = high < boundary
    if not (above or below):
        return "undecided", f"{shown} holds both sides of {boundary:.4g}"
    differs = below or claim != "at least as good"
    if differs and p_value is not None and p_value >= ALPHA:
        return "undecided", f"{shown}, but the corrected p = {p_value:.2g} is not below {ALPHA:g}"
    if differs and p_value is not None and mean is not None and (mean < 0) != below:
        return "undecided", f"{shown}, but the mean difference, {mean:.4g}, is on the other side"
    side = "below" if below else "at or above" if claim == "at least as good" else "above"
    agrees = below if claim == "worse" else above
    return "agrees" if agrees else "disagrees", f"{shown} lies {side} {boundary:.4g}"


def mean_after(frame: pd.DataFrame, column: str, warm_up: int) -> float | None:
    """Return a metric's mean over log points after the warm-up, then over seeds, or None.

    For `Facts.effective_buffer`: before and shortly after learning starts every sampler is uniform.

    Args:
      frame: metrics with columns seed, step and this one, where the run has it.
      column: such as `replayed/effective_buffer`; log points without a value are left out.
      warm_up: agent steps; log points later than this count.
    """
    if column not in frame:
        return None
    late = frame[(frame["step"] > warm_up) & frame[column].notna()]
    return _known(late.groupby("seed")[column].mean().mean())


_LIKE_UNIFORM = "not tested (behaved like uniform)"


def without_numbers(
    arm: Facts, baseline: Facts, seeds: int, ungated: str | None
) -> tuple[Verdict, str] | None:
    """Return the verdict and the reason that hold whatever the numbers are, or None."""
    if reason := incomparable(arm, baseline):
        return "not comparable", reason
    for each in (arm, baseline):
        if ungated is None and (reason := why_untested(each)):
            return "not tested", reason if each is arm else f"baseline {each.label} {reason}"
    if seeds < FEWEST_SEEDS:
        return "pilot", f"pilot: {seeds} seeds, fewer than {FEWEST_SEEDS}, carry no verdict"
    return None


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
