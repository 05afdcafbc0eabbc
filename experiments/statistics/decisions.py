"""Verdicts from paired seeds: `decide` is the only function that turns counts into verdicts.

References: Holm 1979; Benjamini and Hochberg 1995; for the tests, see `counts`.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from experiments.statistics.counts import (
    SEQUENTIAL,
    Counts,
    Design,
    Interval,
    Test,
    log_capital,
    log_untied_capital,
)

Verdict = Literal[
    "agrees", "disagrees", "no difference", "undecided", "not tested", "not comparable", "pilot",
    "no claim",
]  # fmt: skip
Direction = Literal["better", "at least as good", "worse"]

# Probability of any false "agrees" or "disagrees" in a family of claims.
ALPHA = 0.05
# Distance of a probability of improvement from 1/2 that counts as no difference, or as being at
# least as good.
MARGIN = 0.1
# Number of seeds below which there is no verdict.
FEWEST_SEEDS = 10

_ROUNDING = 1e-9  # tolerance of comparisons with 1/2 -+ margin
# Number of simulated studies, seeds between two looks, and largest number of seeds.
_TRIALS, _BATCH, _MOST = 400, 16, 10_000


class Evidence(NamedTuple):
    """A claim about an arm with the counts that decide it.

    Attributes:
      looks: counts of all seeds up to each look; a single look in a fixed design.
      direction: the claim.
      exceeds: whether a win must exceed a least effect. Then half of the pairs won means that the
        effect is the least effect, and "no difference" is not an answer.
      corrected: whether the claim belongs to the family over which p-values are corrected; not for
        a control.
      stopped: verdict that does not depend on the counts and its reason, or None. Such claims are
        not part of the family.
      tasks: number of pairs of a seed, one on each task.
    """

    looks: Sequence[Counts]
    direction: Direction = "better"
    exceeds: bool = False
    corrected: bool = True
    stopped: tuple[Verdict, str] | None = None
    tasks: int = 1


@dataclass(frozen=True)
class Decision:
    """Verdict about a claim with its numbers, JSON-able by `dataclasses.asdict`.

    The fields describe the look that decided, or the last look if none did.
    """

    verdict: Verdict
    reason: str  # one line with numbers
    counts: Counts
    seeds: int
    estimate: float  # share of untied pairs won, or mu in a sequential design
    interval: Interval  # of the estimate at the level; valid for all claims of the family together
    level: float  # 1 - alpha / (claims of the family)
    p_value: float  # corrected over the family (Holm)
    raw: float  # p-value before the correction
    expected: int | None = None  # seeds to decide with 80 % probability, if undecided and planned


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values by label, corrected for their number m (Holm 1979).

    The smallest p-value is multiplied by m, the next by m - 1 and so on; results are then made
    monotone and clipped to 1. A threshold of 0.05 limits the probability of any false rejection.
    """
    corrected, so_far = {}, 0.0
    for rank, label in enumerate(sorted(p_values, key=p_values.__getitem__)):
        so_far = max(so_far, (len(p_values) - rank) * p_values[label])
        corrected[label] = min(so_far, 1.0)
    return {label: corrected[label] for label in p_values}


def benjamini_hochberg(p_values: Sequence[float], rate: float = ALPHA) -> list[bool]:
    """Return which of some p-values are significant at a false discovery rate (1995)."""
    ranked = np.sort(p_values)
    below = ranked <= rate * np.arange(1, len(ranked) + 1) / max(len(ranked), 1)
    limit = ranked[below].max(initial=-1.0)
    return [bool(p <= limit) for p in p_values]


def decide(
    claims: Mapping[str, Evidence],
    design: Design = SEQUENTIAL,
    margin: float = MARGIN,
    *,
    alpha: float = ALPHA,
    plan: bool = True,
) -> dict[str, Decision]:
    """Decide every claim at the first look that has enough evidence.

    A claim "agrees" or "disagrees" if its p-value, corrected over the family by Holm's method, is
    below alpha; the sign is that of the evidence of the p-value. The null of "better" and "worse"
    is that wins and losses are equally likely, and the null of "at least as good" that the arm
    wins a share 1/2 - margin of the pairs that do not tie. The verdict "no difference" needs an
    interval inside (1/2 - margin, 1/2 + margin); where more than half of the pairs tie, it also
    needs such an interval of the untied pairs. No verdict is given before there are ten seeds.

    Later looks of a decided claim are ignored and may be missing, so that decisions do not change
    if the study is interrupted or gets more seeds.

    Args:
      claims: the family of claims, by name. Looks must have the same numbers of seeds in all of
        them.
      design: `FIXED` or `SEQUENTIAL`.
      margin: see above, in (0, 1/2).
      alpha: probability that any claim falsely agrees or disagrees; that of an error of any
        interval is another alpha.
      plan: whether to estimate the seeds that undecided claims need (up to 0.5 s per claim).

    Returns:
      The decision about each claim.

    Raises:
      ValueError: a claim has no look, or several in a fixed design.
    """
    if lacking := [name for name, own in claims.items() if not own.looks]:
        raise ValueError(f"claim '{lacking[0]}' has no look: give the counts of one at least")
    family = [name for name, own in claims.items() if own.corrected and own.stopped is None]
    share = {name: alpha / max(len(family), 1) if name in family else alpha for name in claims}
    found: dict[str, Decision] = {}
    used: dict[str, Sequence[Counts]] = {}
    for look in range(1, max((len(own.looks) for own in claims.values()), default=0) + 1):
        open_ = [name for name in claims if name not in found or not _ends(found[name])]
        used |= {name: claims[name].looks[:look] for name in open_}
        tests = {name: design.test(used[name], _null(own, margin)) for name, own in claims.items()}
        corrected = {name: test.p_value for name, test in tests.items()}
        corrected |= holm({name: tests[name].p_value for name in family})
        for name in open_:
            found[name] = _decide_at_look(
                claims[name], used[name][-1], tests[name], corrected[name], design, margin, alpha,
                share[name], len(family) if name in family else 0,
            )  # fmt: skip
    for name, decision in found.items() if plan and design is SEQUENTIAL else ():
        if claims[name].corrected and not _ends(decision):
            found[name] = _with_plan(decision, claims[name], share[name], margin)
    return found


def _ends(decision: Decision) -> bool:
    """Return whether a decision is final."""
    return decision.verdict not in ("undecided", "pilot")


def _null(claim: Evidence, margin: float) -> float:
    return 0.5 - margin if claim.direction == "at least as good" and not claim.exceeds else 0.5


def _decide_at_look(
    claim: Evidence, counts: Counts, test: Test, p: float, design: Design, margin: float,
    alpha: float, share: float, family: int,
) -> Decision:  # fmt: skip
    interval, seeds = design.interval(counts, share), counts.pairs // claim.tasks
    verdict: Verdict = "undecided"
    if claim.stopped is not None:
        verdict = claim.stopped[0]
    elif seeds < FEWEST_SEEDS:
        verdict = "pilot"
    elif p < alpha and test.side:
        verdict = "agrees" if (test.side < 0) == (claim.direction == "worse") else "disagrees"
    elif claim.direction != "at least as good" and not claim.exceeds:
        intervals = [interval]
        if 2 * counts.ties > counts.pairs:
            intervals.append(design.interval(counts.untied, share))
        if all(_is_inside(own, margin) for own in intervals):
            verdict = "no difference"
    estimate = design.estimate(counts)
    low, high = interval
    if claim.stopped is not None:
        reason = claim.stopped[1]
    else:
        where = "" if claim.tasks == 1 else f" on {claim.tasks} tasks"
        reason = (
            f"{counts.shown} of {seeds} seeds{where}; "
            f"{design.quantity} {estimate:.3g} [{low:.3g}, {high:.3g}] at "
            f"{100 * (1 - share):.3g} %; {design.name} = {shown_p(p)}"
            + (f" (Holm over {family})" if family > 1 else "")
            + (f" from {test.counts.shown}" if p < alpha and test.counts != counts else "")
            + (f"; no verdict below {FEWEST_SEEDS} seeds" if verdict == "pilot" else "")
        )
    return Decision(
        verdict, reason, counts, seeds, estimate, interval, 1 - share, p, test.p_value
    )  # fmt: skip


def _is_inside(interval: Interval, margin: float) -> bool:
    low, high = interval
    return low > 0.5 - margin + _ROUNDING and high < 0.5 + margin - _ROUNDING


def _with_plan(decision: Decision, claim: Evidence, share: float, margin: float) -> Decision:
    counts = decision.counts
    more = seeds_needed(
        counts, share, margin, _null(claim, margin), claim.direction != "at least as good"
        and not claim.exceeds, seen=counts,
    )  # fmt: skip
    if more is None:
        return decision
    more = math.ceil(more / claim.tasks)
    reason = f"{decision.reason}; about {more:,} more seeds to decide"
    return replace(decision, reason=reason, expected=decision.seeds + more)


def shown_p(p: float) -> str:
    """Return a p-value with two digits, or with more if rounding would move it to alpha."""
    texts = (f"{p:.{digits}g}" for digits in range(2, 17))
    return next((text for text in texts if (float(text) < ALPHA) == (p < ALPHA)), str(p))


@functools.lru_cache(maxsize=1024)  # reports repeat calls with the same counts
def seeds_needed(
    pilot: Counts,
    alpha: float = ALPHA,
    margin: float = MARGIN,
    null: float = 0.5,
    equivalence: bool = True,
    *,
    seen: Counts = Counts(),
    chance: float = 0.8,
) -> int | None:
    """Return the number of further pairs that decide a sequential claim with probability `chance`.

    Studies are simulated with a fixed seed. The rates of wins, ties and losses of each are drawn
    from their posterior under a Dirichlet(1, 1, 1) prior, so that three wins out of three do not
    imply a fourth. Simulated looks are 16 seeds apart at first and 6 % apart later, so the result
    may be too large by as much.

    Args:
      pilot: observed or guessed counts, from which the rates are estimated.
      alpha: alpha of the study, divided by its number of claims.
      margin: as in `decide`.
      null: null of the claim.
      equivalence: whether "no difference" is an answer.
      seen: counts so far.
      chance: probability of a decision.

    Returns:
      A multiple of 16, or None if 10,000 seeds are too few.
    """
    rng = np.random.default_rng(0)
    rates = rng.dirichlet(np.array(pilot) + 1.0, _TRIALS)[:, None]
    spaced = np.geomspace(_BATCH, _MOST, 120)
    at = np.unique(np.ceil(spaced / _BATCH - _ROUNDING).astype(int)) * _BATCH
    drawn = rng.multinomial(np.diff(at, prepend=0), rates, (_TRIALS, len(at)))
    undecided = np.array(seen) + drawn.cumsum(axis=1)  # [trials, looks, 3]
    for look, further in enumerate(at):
        decided = _decides(undecided[:, look].T, alpha, margin, null, equivalence)
        undecided = undecided[~decided]
        if len(undecided) <= (1 - chance) * _TRIALS + _ROUNDING:
            return int(further)
    return None


def _decides(
    counts: np.ndarray, alpha: float, margin: float, null: float, equivalence: bool
) -> np.ndarray:
    """Return `[trials]`, whether counts `[3, trials]` decide a study of one claim."""
    limit = -math.log(alpha)
    decided = log_untied_capital(counts, null) >= limit
    if not equivalence:
        return decided
    wins, ties, losses = counts
    # Where more than half of the pairs tie, the untied pairs give the wider interval.
    kept = np.where(2 * ties > counts.sum(axis=0), 0, ties)
    ends = [log_capital((wins, kept, losses), 0.5 + side * margin) for side in (-1, 1)]
    return decided | ((ends[0] >= limit) & (ends[1] >= limit))
