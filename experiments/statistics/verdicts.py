"""Verdicts of comparisons: whether an arm tests its method, and the answer to a claim.

Results are not evidence about a method if its prioritised sampler drew almost uniformly, if its
learned sampler had hardly any updates, if the arms have different environments, or if there are
only a few seeds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from experiments.statistics.paired import Interval, Pairs

# Effective share of the buffer, 1 / (N sum P^2), above which draws are practically uniform.
UNIFORM_BUFFER = 0.95
# Number of updates below which a learned sampler is still close to its initialization.
FEWEST_UPDATES = 500
# Number of seeds below which nominal 95 % bootstrap intervals have too little coverage (80 to 90 %
# with five seeds), and tests have no power.
FEWEST_SEEDS = 10
# Probability of any false claim among the arms of a comparison, for Holm-corrected p-values.
ALPHA = 0.05
# Label of the control: the baseline with other seeds.
CONTROL = "control"

Verdict = Literal[
    "agrees", "disagrees", "no difference", "undecided", "not tested", "not comparable", "pilot",
    "no claim",
]  # fmt: skip
Direction = Literal["better", "at least as good", "worse"]
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
    code: str  # version of the code and settings of JAX
    settings: Mapping[str, Any]  # options that arms must share: agent, loop, protocol, replay ratio
    seeds: tuple[int, ...]
    prioritises: bool = False  # whether draws should differ from uniform; not for uniform, pal
    learned: bool = False  # whether the sampler has its own network
    effective_buffer: float | None = None  # mean over log points after warm-up, and seeds
    sampler_updates: float | None = None  # updates of the sampler's network, mean over seeds
    train_seconds: float | None = None  # compute time of all seeds together


@dataclass(frozen=True)
class Judgement:
    """A verdict with its numbers, JSON-able by `dataclasses.asdict`."""

    arm: str
    baseline: str
    claim: Direction  # claim about the arm relative to the baseline
    verdict: Verdict
    reason: str  # one line with numbers
    seeds: int
    quantity: Quantity | None = None  # quantity of the interval, if numbers decided
    interval: Interval | None = None
    boundary: float | None = None  # value that separates agreement from disagreement
    p_value: float | None = None  # Holm-corrected if there are several arms
    effective_buffer: float | None = None
    sampler_updates: float | None = None
    train_seconds: float | None = None
    ungated: str | None = None  # reason for disabling the gate, if it was disabled


def why_untested(arm: Facts) -> str | None:
    """Return the reason why an arm does not test its method, or None (the gate).

    Methods such as PAL, which draw uniformly and change the loss instead, pass the gate.
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
    """Return the reason why two arms cannot be compared seed by seed, or None."""
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
    claim: Direction = "better",
    quantity: Quantity = "iqm",
    ungated: str | None = None,
) -> Judgement:
    """Return the verdict of a comparison about a claim.

    The first rule that applies decides: arms that differ in more than their method are "not
    comparable"; an arm or baseline that fails the gate is "not tested"; fewer than ten seeds are a
    "pilot"; otherwise, the interval decides (`decide`).

    Args:
      arm: facts about the arm of the claim.
      baseline: facts about the baseline.
      pairs: comparison by the primary metric, which was chosen before the runs (`paired`).
      claim: claim about the arm relative to the baseline.
      quantity: quantity of the interval: the IQM of the paired differences (with ten seeds, its
        coverage is .93 for a nominal .95), or the paired probability of improvement. The latter is
        also used if there are no differences (a seed never solved the task, or diverged).
      ungated: reason for disabling the gate, which becomes part of the judgement; or None.
    """
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
    """Return a judgement with the facts about its arm; `numbers` are additional fields."""
    known = ("effective_buffer", "sampler_updates", "train_seconds")
    own = {name: _known(getattr(arm, name)) for name in known}
    return Judgement(
        arm=arm.label, baseline=baseline.label, verdict=verdict, reason=reason, seeds=seeds,
        **{"claim": "better", **own, **numbers},
    )  # fmt: skip


def decide(
    claim: Direction,
    interval: Interval,
    boundary: float,
    p_value: float | None = None,
    mean: float | None = None,
) -> tuple[Verdict, str]:
    """Return the verdict about a claim, and its reason with numbers.

    "Better" claims that the quantity is above the boundary, "worse" that it is below, and "at least
    as good" that it is not below. The verdict is "agrees" if the whole interval is on the claimed
    side, "disagrees" if it is on the other side, and "undecided" if it contains the boundary.
    Verdicts that assert a difference also need a p-value below `ALPHA`, because among many arms one
    interval in twenty is wrong by chance, and the mean of that p-value on the same side of 0, since
    outliers can give mean and interval opposite signs. "At least as good" does not assert a
    difference when it agrees.

    Args:
      claim: the claim.
      interval: lower and upper end of a quantity for which higher is better.
      boundary: 0 for differences, 0.5 for a probability of improvement.
      p_value: p-value of the null of no mean difference, corrected over arms; None to ignore it.
      mean: mean difference that the p-value tests; None if it tests signs.
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

    `Facts.effective_buffer` is such a mean, because every sampler is uniform before learning starts
    and shortly afterwards.

    Args:
      frame: metrics with columns seed, step and, if the run has it, `column`.
      column: name of the metric, such as `replayed/effective_buffer`; log points without a value
        are left out.
      warm_up: agent steps of the warm-up; only later log points count.
    """
    if column not in frame:
        return None
    late = frame[(frame["step"] > warm_up) & frame[column].notna()]
    return _known(late.groupby("seed")[column].mean().mean())


_LIKE_UNIFORM = "not tested (behaved like uniform)"


def without_numbers(
    arm: Facts, baseline: Facts, seeds: int, ungated: str | None
) -> tuple[Verdict, str] | None:
    """Return a verdict that does not depend on the metric, with its reason, or None."""
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
