"""The gate of a comparison: whether an arm tests its method, and whether arms can be compared.

Results are not evidence about a method if its prioritised sampler drew almost uniformly, if its
learned sampler had hardly any updates, if no agent learned, or if the arms have different
environments.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.statistics.decisions import Decision, Direction, Verdict
from experiments.statistics.statistics import curves

# Effective share of the buffer, 1 / (N sum P^2), above which draws are practically uniform.
UNIFORM_BUFFER = 0.95
# Number of updates below which a learned sampler is still close to its initialization.
FEWEST_UPDATES = 500
# Share of the way from the first evaluation to a good return below which an agent hardly learned.
LEAST_PROGRESS = 0.1
# Label of the control: the baseline with other seeds.
CONTROL = "control"


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
    progress: float | None = None  # of the agent, see `progress_of`; None if unknown
    train_seconds: float | None = None  # compute time of all seeds together


@dataclass(frozen=True, kw_only=True)
class Judgement(Decision):
    """A decision with the facts about its arm, JSON-able by `dataclasses.asdict`."""

    arm: str
    baseline: str
    claim: Direction  # claim about the arm relative to the baseline
    quantity: str  # name of the estimate and its interval
    effective_buffer: float | None = None
    sampler_updates: float | None = None
    train_seconds: float | None = None
    ungated: str | None = None  # reason for disabling the gate, if it was disabled


def judgement(arm: Facts, baseline: Facts, decision: Decision, **more: Any) -> Judgement:
    """Return a decision with the facts about its arm; `more` are the other fields."""
    known = ("effective_buffer", "sampler_updates", "train_seconds")
    facts = {name: _known(getattr(arm, name)) for name in known}
    return Judgement(arm=arm.label, baseline=baseline.label, **vars(decision), **facts, **more)


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
        own, other = (facts.settings.get(name, missing) for facts in (arm, baseline))
        if own != other:
            shown = " and ".join("none" if x is missing else str(x) for x in (own, other))
            return f"not comparable: different {name}, {shown}"
    return None


def gate(arm: Facts, baseline: Facts, ungated: str | None = None) -> tuple[Verdict, str] | None:
    """Return a verdict that does not depend on wins and losses, with its reason, or None.

    Args:
      arm: facts about the arm of a claim.
      baseline: facts about its baseline.
      ungated: reason for judging arms that do not test their methods; None if there is none.
    """
    if reason := incomparable(arm, baseline):
        return "not comparable", reason
    if ungated is not None:
        return None
    for facts in (arm, baseline):
        if reason := why_untested(facts):
            return "not tested", reason if facts is arm else f"baseline {baseline.label} {reason}"
    if not learned(arm, baseline):
        most = max(facts.progress or 0.0 for facts in (arm, baseline))
        return "not tested", (
            f"not tested: agents hardly learned on {arm.env}, at most {most:.2g} of the way from "
            "the first evaluation to a good return"
        )
    return None


def learned(arm: Facts, baseline: Facts) -> bool:
    """Return whether the agent of either arm learned, or no good return is known for the task."""
    known = [facts.progress for facts in (arm, baseline) if facts.progress is not None]
    return not known or max(known) >= LEAST_PROGRESS


def progress_of(frame: pd.DataFrame, good: float | None) -> float | None:
    """Return how far an agent got from its first evaluation to a good return.

    It is the largest share of that way which the median return over seeds covers, on average over
    any tenth of training, so that noise is not progress; and 1 if half of the seeds reach the good
    return.

    Args:
      frame: metrics with columns seed, step and eval_return.
      good: return of a good agent on the task, or None if it is unknown; then the result is None.
    """
    if good is None:
        return None
    reached = frame.groupby("seed")["eval_return"].max() >= good
    if reached.mean() >= 0.5:
        return 1.0
    medians = curves(frame).median(axis=1)
    if medians.empty:  # all seeds diverged
        return 0.0
    first, best = float(medians.iloc[0]), medians.rolling(max(1, len(medians) // 10)).mean().max()
    return (float(best) - first) / (good - first) if first < good else 0.0


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


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
