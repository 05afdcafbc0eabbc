"""Sequential comparisons of arms with a baseline: valid after every look, whenever they stop.

Seed k of an arm is paired with seed k of its baseline. The pair scores x = 1 if the arm is better
by the primary metric, 1/2 if both are equal, 0 if it is worse; the mean mu of x is the paired
probability of improvement. Adding seeds until a fixed-sample test rejects inflates its error. Here
the statistic is a test martingale, the *capital* of a gambler who bets against a null mu = m: it
starts at 1 and reaches 1/alpha under the null with probability alpha at most, however long the
study (Ville's inequality). Its inverse is a p-value after any number of seeds, and the nulls of
small capital form a confidence sequence. Only the counts of wins, ties and losses matter.

Waudby-Smith and Ramdas 2024 (means of bounded variables by betting); Ramdas, Grünwald, Vovk and
Shafer 2023 (e-processes).
"""

import bisect
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln

from experiments.statistics.paired import Interval, holm

if TYPE_CHECKING:
    from experiments.statistics.verdicts import Claim

Difference = Literal["better", "worse", "no difference", "undecided"]
Answer = Literal["agrees", "disagrees", "no difference", "undecided"]
Values = Sequence[float | None] | np.ndarray  # [seeds]

_BETS = np.arange(1, 200) / 200  # alternatives, each with the same share of the first capital
_NULLS = 2000  # ends of intervals are multiples of 1/2000
_ROUNDING = 1e-9  # of comparisons with 1/2 -+ margin
# Simulated studies: their number, the seeds between two looks, and the most that are worth while.
_TRIALS, _BATCH, _MOST = 400, 16, 10_000


class Counts(NamedTuple):
    """The pairs of an arm and its baseline, counted."""

    wins: int = 0
    ties: int = 0
    losses: int = 0

    @property
    def seeds(self) -> int:
        return self.wins + self.ties + self.losses

    @property
    def mean(self) -> float:
        """The estimated probability of improvement, 1/2 without seeds."""
        return (self.wins + self.ties / 2) / self.seeds if self.seeds else 0.5


@dataclass(frozen=True)
class Decision:
    """An arm compared with its baseline; `dataclasses.asdict` of it is JSON-able.

    All fields are those of the look that decided, or of the last look if none did.
    """

    verdict: Difference
    counts: Counts
    mu: float  # estimated probability of improvement
    interval: Interval  # of mu, at alpha / arms, so that those of all arms hold together
    p_value: float  # anytime-valid, of mu = 1/2, after Holm over the arms
    seeds: int
    expected: int | None = None  # seeds to decide with 80 % probability, if undecided and planned


def looks(first: int, batch: int, most: int) -> list[int]:
    """Return the numbers of seeds at which to look: first, first + batch, ..., and most at last."""
    if not (1 <= first <= most and batch >= 1):
        given = f"first = {first}, batch = {batch}, most = {most}"
        raise ValueError(f"{given} schedule no looks: give 1 <= first <= most and batch >= 1")
    return [*range(first, most, batch), most]


def count_pairs(
    arm: Values, baseline: Values, higher_is_better: bool = True, effect: float = 0.0
) -> Counts:
    """Count the seeds in which an arm is better than its baseline.

    A seed without a finite number (None, NaN or infinite: it diverged, or never reached the
    threshold) is worse than any number, and equal to another such seed.

    Args:
      arm: one number per seed.
      baseline: of the same seeds in the same order (`paired.align`).
      higher_is_better: the direction of the primary metric.
      effect: in the metric's unit; a pair is a win if the arm is better by more than this, a tie if
        by exactly this.
    """
    sign = 1 if higher_is_better else -1
    signed = (sign * np.array(values, np.float64) for values in (arm, baseline))  # None is NaN
    x, y = (np.where(np.isfinite(each), each, -math.inf) for each in signed)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"arms of shape {x.shape} and {y.shape} make no pairs: give [seeds] each")
    with np.errstate(invalid="ignore"):
        gains = np.where(x == y, 0.0, x - y)
    wins, losses = int((gains > effect).sum()), int((gains < effect).sum())
    return Counts(wins, len(gains) - wins - losses, losses)


def count_looks(
    arm: Values,
    baseline: Values,
    at: Sequence[int],
    effect: float = 0.0,
) -> list[Counts]:
    """Return the counts of the first seeds at every look that has all of them; higher is better."""
    complete = [seeds for seeds in at if seeds <= min(len(arm), len(baseline))]
    return [count_pairs(arm[:n], baseline[:n], effect=effect) for n in complete]


def log_capital(counts: Iterable[ArrayLike], m: ArrayLike) -> np.ndarray:
    """Return the logarithm of the capital against the null mu = m.

    A bet on the mean q multiplies the capital by q/m after a win, (1 - q)/(1 - m) after a loss, and
    by the average of both after a tie. The capital is the mean over q = 1/200, ..., 199/200. It is
    log-convex in m and at most 1 at the observed mean, so that the nulls below a limit are an
    interval around it.

    Args:
      counts: wins, ties and losses; arrays broadcast with m.
      m: null means in (0, 1).
    """
    wins, ties, losses = (np.asarray(each, np.float64)[..., None] for each in counts)
    null = np.asarray(m, np.float64)[..., None]
    win, loss = np.log(_BETS / null), np.log((1 - _BETS) / (1 - null))
    terms = wins * win + ties * (np.logaddexp(win, loss) - math.log(2)) + losses * loss
    top = terms.max(axis=-1, keepdims=True)  # the capital of thousands of wins exceeds a float
    return top[..., 0] + np.log(np.exp(terms - top).mean(axis=-1))


def log_sign_capital(counts: Iterable[ArrayLike]) -> np.ndarray:
    """Return the logarithm of the capital against mu = 1/2, with bets uniform on (0, 1).

    Ties cancel: 2^(W + L) B(1 + W, 1 + L). It differs from the mean over the grid by 1 % or so.
    """
    wins, _, losses = (np.asarray(each, np.float64) for each in counts)
    return (wins + losses) * math.log(2) + betaln(1 + wins, 1 + losses)


def anytime_p(counts: Sequence[Counts]) -> float:
    """Return the p-value of mu = 1/2 after these looks: 1 / the largest capital, at most 1."""
    return float(np.exp(-log_sign_capital(np.transpose(counts)).max(initial=0.0)))


def interval(counts: Counts, alpha: float = 0.05) -> Interval:
    """Return the confidence sequence of mu at one look: all m with a capital below 1/alpha.

    The intervals of all looks hold at once with probability 1 - alpha. Ends are the outermost
    multiples of 1/2000 inside, so that one of 0.0005 or 0.9995 means that the side is open.
    """

    def outside(step: int) -> bool:
        return bool(log_capital(counts, step / _NULLS) >= -math.log(alpha))

    # The mean itself is always inside.
    centre = min(max(round(counts.mean * _NULLS), 1), _NULLS - 1)
    below, above = range(1, centre), range(centre + 1, _NULLS)
    low = 1 + bisect.bisect_left(below, True, key=lambda step: not outside(step))
    high = centre + bisect.bisect_left(above, True, key=outside)
    return low / _NULLS, high / _NULLS


def answer(claim: "Claim", verdict: Difference, own: Interval, margin: float = 0.1) -> Answer:
    """Return the meaning of a decision for a claim about the arm.

    "At least as good" is non-inferiority: it agrees if the interval lies above 1/2 - margin,
    disagrees if it lies below, whatever the verdict.
    """
    if claim == "at least as good":
        low, high = own
        if low > 0.5 - margin + _ROUNDING:
            return "agrees"
        return "disagrees" if high < 0.5 - margin - _ROUNDING else "undecided"
    if verdict in ("better", "worse"):
        return "agrees" if verdict == claim else "disagrees"
    return verdict


def decide(
    arms: Mapping[str, Sequence[Counts]],
    alpha: float = 0.05,
    margin: float = 0.1,
    *,
    claims: Mapping[str, tuple["Claim", float]] | None = None,
    plan: bool = True,
) -> dict[str, Decision]:
    """Go through the looks in order, and decide every arm at the first look that can.

    An arm is better or worse if its anytime-valid p-value, corrected over the arms by Holm's
    method, is below alpha. There is "no difference" if its interval at alpha / arms lies inside
    (1/2 - margin, 1/2 + margin). An arm claimed to be at least as good is decided when its interval
    answers the claim. Later looks of a decided arm are ignored and may be missing, so that
    interrupting a study, or training more seeds since, changes no decision.

    Args:
      arms: for each arm, the counts of all seeds up to each look, at the same numbers of seeds.
        Give all arms of the study: their number is chosen before it starts.
      alpha: probability that any arm is falsely better or worse; the intervals have a second one.
      margin: of the probability of improvement.
      claims: about arms, each with its margin; "better" and `margin` where there is none.
      plan: whether to estimate the seeds that undecided arms need (up to half a second each).
    """
    claims = {label: (claims or {}).get(label, ("better", margin)) for label in arms}
    level, found, used, undecided = alpha / max(len(arms), 1), {}, {}, set(arms)
    for look in range(1, max(map(len, arms.values()), default=0) + 1):
        used |= {label: arms[label][:look] for label in undecided}
        corrected = holm({label: anytime_p(counts) for label, counts in used.items()})
        for label in undecided:
            claim, margin = claims[label]
            own = _at_look(used[label][-1], corrected[label], alpha, level, margin)
            found[label] = own
            if answer(claim, own.verdict, own.interval, margin) != "undecided":
                undecided = undecided - {label}
    for label in undecided if plan else ():
        (claim, margin), own = claims[label], found[label].counts
        more = seeds_needed(own, level, margin, claim=claim, seen=own)
        found[label] = replace(found[label], expected=more and own.seeds + more)
    return {label: found[label] for label in arms}


@functools.lru_cache(maxsize=1024)  # reports ask again for the same counts
def seeds_needed(
    pilot: Counts,
    alpha: float = 0.05,
    margin: float = 0.1,
    *,
    claim: "Claim" = "better",
    seen: Counts = Counts(),
    chance: float = 0.8,
) -> int | None:
    """Return the number of further seeds that decide an arm with probability `chance`.

    Studies are simulated with a fixed seed, at the pilot's rates after adding a win, a tie and a
    loss (the mean under a Dirichlet(1, 1, 1) prior): three wins of three do not promise a fourth.
    Looks are a batch apart at first, later 6 %, by which the number may be too large.

    Args:
      pilot: counts that the rates come from, or a guess of them.
      alpha: of the study, divided by its number of arms.
      margin: as in `decide`.
      claim: about the arm.
      seen: counts that the study continues from.
      chance: of a decision.

    Returns:
      A multiple of 16; None if 10,000 are too few.
    """
    rates = (np.array(pilot) + 1) / (pilot.seeds + 3)
    spaced = np.geomspace(_BATCH, _MOST, 120)
    at = np.unique(np.ceil(spaced / _BATCH - _ROUNDING).astype(int)) * _BATCH
    drawn = np.random.default_rng(0).multinomial(np.diff(at, prepend=0), rates, (_TRIALS, len(at)))
    undecided = np.array(seen) + drawn.cumsum(axis=1)  # [trials, looks, 3]
    for look, further in enumerate(at):
        undecided = undecided[~_decides(undecided[:, look].T, alpha, margin, claim)]
        if len(undecided) <= (1 - chance) * _TRIALS + _ROUNDING:
            return int(further)
    return None


def _decides(counts: np.ndarray, alpha: float, margin: float, claim: "Claim") -> np.ndarray:
    """Return whether counts [3, trials] decide a study of one arm."""
    limit = -math.log(alpha)
    below = log_capital(counts, 0.5 - margin) >= limit
    if claim == "at least as good":
        return below
    above = log_capital(counts, 0.5 + margin) >= limit
    return (log_sign_capital(counts) >= limit) | (below & above)


def _at_look(counts: Counts, p: float, alpha: float, level: float, margin: float) -> Decision:
    low, high = own = interval(counts, level)
    verdict: Difference = "undecided"
    if p < alpha and counts.wins != counts.losses:
        verdict = "better" if counts.wins > counts.losses else "worse"
    elif low > 0.5 - margin + _ROUNDING and high < 0.5 + margin - _ROUNDING:
        verdict = "no difference"
    return Decision(verdict, counts, counts.mean, own, p, counts.seeds)
