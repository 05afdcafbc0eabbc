"""Sequential comparisons of arms with a baseline, which are valid at every stopping time.

Seed k of an arm is paired with seed k of its baseline. The score x of a pair is 1 if the arm is
better by the primary metric, 1/2 if both are equal, and 0 if it is worse. The mean mu of x is the
paired probability of improvement. A fixed-sample test that is repeated as seeds are added has an
inflated error rate. The statistic is therefore a test martingale, the *capital* of a gambler who
bets against the null mu = m. It starts at 1, and under the null it ever reaches 1/alpha with
probability at most alpha (Ville's inequality). Its inverse is a p-value after any number of seeds,
and the nulls with small capital form a confidence sequence. All of these depend only on the numbers
of wins, ties and losses.

References: Waudby-Smith and Ramdas 2024 (means of bounded variables by betting); Ramdas, Grünwald,
Vovk and Shafer 2023 (e-processes).
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
    from experiments.statistics.verdicts import Direction

Difference = Literal["better", "worse", "no difference", "undecided"]
Answer = Literal["agrees", "disagrees", "no difference", "undecided"]
Values = Sequence[float | None] | np.ndarray  # [seeds]

_BETS = np.arange(1, 200) / 200  # alternatives, each with the same share of the initial capital
_NULLS = 2000  # ends of intervals are multiples of 1 / _NULLS
_ROUNDING = 1e-9  # tolerance of comparisons with 1/2 -+ margin
# Number of simulated studies, seeds between two looks, and largest number of seeds.
_TRIALS, _BATCH, _MOST = 400, 16, 10_000


class Counts(NamedTuple):
    """Numbers of pairs that an arm wins, ties and loses against its baseline."""

    wins: int = 0
    ties: int = 0
    losses: int = 0

    @property
    def seeds(self) -> int:
        return self.wins + self.ties + self.losses

    @property
    def mean(self) -> float:
        """Estimated probability of improvement, 1/2 without seeds."""
        return (self.wins + self.ties / 2) / self.seeds if self.seeds else 0.5


@dataclass(frozen=True)
class Decision:
    """Sequential comparison of an arm with its baseline, JSON-able by `dataclasses.asdict`.

    The fields describe the look that decided, or the last look if none did.
    """

    verdict: Difference
    counts: Counts
    mu: float  # estimated probability of improvement
    interval: Interval  # of mu at level alpha / arms, valid for all arms together
    p_value: float  # anytime-valid, for mu = 1/2, corrected over arms (Holm)
    seeds: int
    expected: int | None = None  # seeds to decide with 80 % probability, if undecided and planned


def count_pairs(
    arm: Values, baseline: Values, higher_is_better: bool = True, effect: float = 0.0
) -> Counts:
    """Count the seeds in which an arm is better than its baseline.

    Seeds that diverged or never reached the threshold have the value None, NaN or infinity. They
    are worse than all seeds with a finite value, and equal to each other.

    Args:
      arm: one value per seed.
      baseline: values of the same seeds in the same order.
      higher_is_better: direction of the primary metric.
      effect: smallest effect that counts, in the metric's unit. A pair is a win if the arm is
        better by more than this, and a tie if it is better by exactly this.
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
    """Return the counts at every look that has all of its seeds; higher values are better."""
    complete = [seeds for seeds in at if seeds <= min(len(arm), len(baseline))]
    return [count_pairs(arm[:n], baseline[:n], effect=effect) for n in complete]


def log_capital(counts: Iterable[ArrayLike], m: ArrayLike) -> np.ndarray:
    """Return the logarithm of the capital against the null mu = m.

    A bet on mean q multiplies the capital by q/m after a win, by (1 - q)/(1 - m) after a loss, and
    by the average of both after a tie. The capital is the mean over q = 1/200, ..., 199/200. It is
    log-convex in m and at most 1 at the observed mean, so the nulls with a capital below a limit
    form an interval around the observed mean.

    Args:
      counts: wins, ties and losses, as arrays that broadcast with m.
      m: null means in (0, 1).
    """
    wins, ties, losses = (np.asarray(each, np.float64)[..., None] for each in counts)
    null = np.asarray(m, np.float64)[..., None]
    win, loss = np.log(_BETS / null), np.log((1 - _BETS) / (1 - null))
    terms = wins * win + ties * (np.logaddexp(win, loss) - math.log(2)) + losses * loss
    top = terms.max(axis=-1, keepdims=True)  # the capital after thousands of wins would overflow
    return top[..., 0] + np.log(np.exp(terms - top).mean(axis=-1))


def log_sign_capital(counts: Iterable[ArrayLike]) -> np.ndarray:
    """Return the logarithm of the capital against mu = 1/2, with bets uniform on (0, 1).

    Ties have no effect, and the capital is 2^(W + L) B(1 + W, 1 + L) for W wins and L losses. It
    differs by about 1 % from the mean over the grid of `log_capital`.
    """
    wins, _, losses = (np.asarray(each, np.float64) for each in counts)
    return (wins + losses) * math.log(2) + betaln(1 + wins, 1 + losses)


def anytime_p(counts: Sequence[Counts]) -> float:
    """Return the p-value of mu = 1/2 after some looks: 1 / (largest capital), at most 1."""
    return float(np.exp(-log_sign_capital(np.transpose(counts)).max(initial=0.0)))


def interval(counts: Counts, alpha: float = 0.05) -> Interval:
    """Return the confidence sequence of mu at one look: all m with a capital below 1/alpha.

    With probability at least 1 - alpha, the intervals of all looks contain mu. Ends are the
    outermost multiples of 1/2000 in the interval; 0.0005 and 0.9995 mean that a side is open.
    """

    def outside(step: int) -> bool:
        return bool(log_capital(counts, step / _NULLS) >= -math.log(alpha))

    # The mean itself is always inside.
    centre = min(max(round(counts.mean * _NULLS), 1), _NULLS - 1)
    below, above = range(1, centre), range(centre + 1, _NULLS)
    low = 1 + bisect.bisect_left(below, True, key=lambda step: not outside(step))
    high = centre + bisect.bisect_left(above, True, key=outside)
    return low / _NULLS, high / _NULLS


def answer(claim: "Direction", verdict: Difference, own: Interval, margin: float = 0.1) -> Answer:
    """Return the answer that a decision gives to a claim about the arm.

    "At least as good" means non-inferiority, and depends on the interval only: it agrees if the
    interval is above 1/2 - margin, and disagrees if the interval is below.
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
    claims: Mapping[str, tuple["Direction", float]] | None = None,
    plan: bool = True,
) -> dict[str, Decision]:
    """Decide every arm at the first look that has enough evidence.

    An arm is better or worse if its anytime-valid p-value, corrected over the arms by Holm's
    method, is below alpha. The decision is "no difference" if its interval at level alpha / arms is
    inside (1/2 - margin, 1/2 + margin). An arm with the claim "at least as good" is decided when
    its interval answers the claim. Later looks of a decided arm are ignored and may be missing, so
    that decisions do not change if the study is interrupted or gets more seeds.

    Args:
      arms: counts of all seeds up to each look, by arm. Looks must have the same numbers of seeds
        in all arms. All arms of the study are required, since the correction is for their number.
      alpha: probability that any arm is falsely better or worse; that of an error of any interval
        is another alpha.
      margin: largest difference from 1/2 of the probability of improvement that counts as none.
      claims: claim and margin by arm; by default, "better" and `margin`.
      plan: whether to estimate the seeds that undecided arms need (up to 0.5 s per arm).

    Returns:
      The decision for each arm.
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


@functools.lru_cache(maxsize=1024)  # reports repeat calls with the same counts
def seeds_needed(
    pilot: Counts,
    alpha: float = 0.05,
    margin: float = 0.1,
    *,
    claim: "Direction" = "better",
    seen: Counts = Counts(),
    chance: float = 0.8,
) -> int | None:
    """Return the number of further seeds that decide an arm with probability `chance`.

    Studies are simulated with a fixed seed. Wins, ties and losses have the pilot's rates after one
    of each is added (the posterior mean under a Dirichlet(1, 1, 1) prior), so that three wins out
    of three do not imply a fourth. Simulated looks are 16 seeds apart at first and 6 % apart later,
    so the result may be too large by as much.

    Args:
      pilot: observed or guessed counts, from which the rates are estimated.
      alpha: alpha of the study, divided by its number of arms.
      margin: as in `decide`.
      claim: claim about the arm.
      seen: counts so far.
      chance: probability of a decision.

    Returns:
      A multiple of 16, or None if 10,000 seeds are too few.
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


def _decides(counts: np.ndarray, alpha: float, margin: float, claim: "Direction") -> np.ndarray:
    """Return `[trials]`, whether counts `[3, trials]` decide a study of one arm."""
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
