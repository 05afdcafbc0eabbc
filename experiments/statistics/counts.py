"""Wins, ties and losses of paired seeds, two tests on them, and corrections of p-values.

Seed k of an arm is paired with seed k of its baseline, and wins, ties or loses by the primary
metric. There are two designs:

* A *fixed* design tests once, after a number of seeds that was chosen before the runs, by the exact
  sign test of the pairs that do not tie, with Clopper-Pearson intervals of the share of these pairs
  that the arm wins.
* A *sequential* design looks at the seeds again and again until a claim is decided. An ordinary
  test would err more often with every look. The statistic is therefore a test martingale, the
  *capital* of a gambler who bets against a null. The capital starts at 1. Under the null, the
  probability that it ever reaches 1/alpha is at most alpha (Ville's inequality), so its inverse is
  a p-value after any number of seeds. The nulls with small capital form a confidence sequence of
  the *paired probability of improvement* mu: the mean of 1 for a win, 1/2 for a tie and 0 for a
  loss.

P-values of several claims are corrected by Holm's method.

References: Waudby-Smith and Ramdas 2024 (means of bounded variables by betting); Ramdas, Grünwald,
Vovk and Shafer 2023 (e-processes); Clopper and Pearson 1934; Holm 1979; Benjamini and Hochberg
1995.
"""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

Interval = tuple[float, float]
Values = Sequence[float | None] | np.ndarray  # [seeds]

# Probability of any false decision for or against an arm in a family of claims.
ALPHA = 0.05
# Distance of a probability of improvement from 1/2 that counts as no difference, or as being at
# least as good.
MARGIN = 0.1
# Number of seeds below which there is no verdict.
FEWEST_SEEDS = 10

_BETS = np.arange(1, 200) / 200  # alternatives, each with the same share of the initial capital
_NULLS = 2000  # ends of confidence sequences are multiples of 1 / _NULLS


class Counts(NamedTuple):
    """Numbers of pairs that an arm wins, ties and loses against its baseline."""

    wins: int = 0
    ties: int = 0
    losses: int = 0

    @property
    def pairs(self) -> int:
        return self.wins + self.ties + self.losses

    @property
    def mean(self) -> float:
        """Estimated paired probability of improvement, 1/2 without seeds."""
        return (self.wins + self.ties / 2) / self.pairs if self.pairs else 0.5

    @property
    def shown(self) -> str:
        """Wins, losses and ties as text, such as 7/2/1."""
        return f"{self.wins}/{self.losses}/{self.ties}"

    @property
    def untied(self) -> "Counts":
        """The pairs that do not tie."""
        return Counts(self.wins, 0, self.losses)


def count_pairs(
    arm: Values, baseline: Values, higher_is_better: bool = True, effect: float = 0.0
) -> Counts:
    """Count the seeds in which an arm is better than its baseline.

    Seeds that diverged or never reached the threshold have the value None, NaN or infinity. They
    are worse than all seeds with a finite value. Two such seeds tie, whatever the effect.

    Args:
      arm: one value per seed.
      baseline: values of the same seeds in the same order.
      higher_is_better: direction of the primary metric.
      effect: a pair is a win if the arm is better by more than this, in the metric's unit, a tie if
        it is better by exactly this, and otherwise a loss; negative for "at least as good".
    """
    sign = 1 if higher_is_better else -1
    signed = (sign * np.array(values, np.float64) for values in (arm, baseline))  # None is NaN
    x, y = (np.where(np.isfinite(values), values, -math.inf) for values in signed)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(
            f"arms of shapes {x.shape} and {y.shape} cannot be paired: use two arrays "
            "`[seeds]` of equal length"
        )
    with np.errstate(invalid="ignore"):
        gains = np.where(np.isfinite(x) | np.isfinite(y), x - y, effect)
    wins, losses = int((gains > effect).sum()), int((gains < effect).sum())
    return Counts(wins, len(gains) - wins - losses, losses)


def count_looks(
    arm: Values, baseline: Values, at: Sequence[int], effect: float = 0.0
) -> list[Counts]:
    """Return the counts after each number of seeds in `at` that both arms have (a look).

    Higher values are better.
    """
    complete = [seeds for seeds in at if seeds <= min(len(arm), len(baseline))]
    return [count_pairs(arm[:n], baseline[:n], effect=effect) for n in complete]


def log_capital(counts: Iterable[ArrayLike], m: ArrayLike) -> np.ndarray:
    """Return the logarithm of the capital (a test martingale) against the null mu = m.

    A bet on mean q multiplies the capital by q/m after a win, by (1 - q)/(1 - m) after a loss, and
    by the average of both after a tie. The capital is the mean over q = 1/200, ..., 199/200. It is
    log-convex in m and at most 1 at the observed mean, so the nulls with a capital below a limit
    form an interval around the observed mean.

    Args:
      counts: wins, ties and losses, as arrays that broadcast with m.
      m: null means in (0, 1).
    """
    wins, ties, losses = (np.asarray(number, np.float64)[..., None] for number in counts)
    null = np.asarray(m, np.float64)[..., None]
    win, loss = np.log(_BETS / null), np.log((1 - _BETS) / (1 - null))
    terms = wins * win + ties * (np.logaddexp(win, loss) - math.log(2)) + losses * loss
    top = terms.max(axis=-1, keepdims=True)  # the capital after thousands of wins would overflow
    return top[..., 0] + np.log(np.exp(terms - top).mean(axis=-1))


def log_sign_capital(counts: Iterable[ArrayLike]) -> np.ndarray:
    """Return the log capital (see `log_capital`) against mu = 1/2, with bets uniform on (0, 1).

    Ties have no effect, and the capital is 2^(W + L) B(1 + W, 1 + L) for W wins and L losses. It
    differs by about 1 % from the mean over the grid of `log_capital`.
    """
    from scipy import special  # takes a third of a second, which `--help` does not need

    wins, _, losses = (np.asarray(number, np.float64) for number in counts)
    return (wins + losses) * math.log(2) + special.betaln(1 + wins, 1 + losses)


def anytime_test(looks: Sequence[Counts], m: float = 0.5) -> tuple[float, Counts]:
    """Test mu = m after some looks: the p-value is 1 / (largest capital), at most 1.

    Ties are left out for every m: many of them move mu towards 1/2, whether the arms are equal or
    the metric is too coarse to tell them apart.

    Returns:
      The p-value, and the counts of the look with the largest capital.
    """
    logs = log_untied_capital(np.transpose(looks), m)
    return float(np.exp(-max(logs.max(), 0.0))), looks[int(logs.argmax())]


def log_untied_capital(counts: np.ndarray, m: float) -> np.ndarray:
    """Return the log capital `[...]` that the untied pairs in counts `[3, ...]` give against m."""
    wins, ties, losses = counts
    return log_sign_capital(counts) if m == 0.5 else log_capital((wins, 0 * ties, losses), m)


def confidence_sequence(counts: Counts, alpha: float = 0.05) -> Interval:
    """Return the confidence sequence of mu at one look: all m with a capital below 1/alpha.

    With probability at least 1 - alpha, the intervals of all looks contain mu, the paired
    probability of improvement. Ends are the outermost multiples of 1/2000 in the interval; 0.0005
    and 0.9995 mean that a side is open.
    """

    def outside(step: int) -> bool:
        return bool(log_capital(counts, step / _NULLS) >= -math.log(alpha))

    # The mean itself is always inside.
    centre = min(max(round(counts.mean * _NULLS), 1), _NULLS - 1)
    below, above = range(1, centre), range(centre + 1, _NULLS)
    low = 1 + bisect.bisect_left(below, True, key=lambda step: not outside(step))
    high = centre + bisect.bisect_left(above, True, key=outside)
    return low / _NULLS, high / _NULLS


def sign_test(counts: Counts, m: float = 0.5) -> float:
    """Return the exact two-sided p-value of the null that an arm wins a share m of untied pairs.

    It is twice the smaller tail of the binomial distribution, at most 1. It is valid for a single
    look with a number of seeds that was fixed before the runs.
    """
    from scipy import special  # takes a third of a second, which `--help` does not need

    wins, _, losses = counts
    tails = special.bdtr(wins, wins + losses, m), special.bdtr(losses, wins + losses, 1 - m)
    return float(min(1.0, 2 * min(tails)))


def clopper_pearson(counts: Counts, alpha: float = 0.05) -> Interval:
    """Return the exact interval at level 1 - alpha of the share of untied pairs that an arm wins.

    The interval excludes m exactly if `sign_test` of m gives a p-value of at most alpha.
    """
    from scipy import special  # takes a third of a second, which `--help` does not need

    wins, _, losses = counts
    low = float(special.betaincinv(wins, losses + 1, alpha / 2)) if wins else 0.0
    high = float(special.betaincinv(wins + 1, losses, 1 - alpha / 2)) if losses else 1.0
    return low, high


def share_won(counts: Counts) -> float:
    """Return the share of untied pairs that an arm wins, 1/2 without any."""
    return counts.untied.mean


def p_value_of(looks: Sequence[Counts], m: float, sequential: bool) -> tuple[float, Counts]:
    """Test the null m by `anytime_test` if the design is sequential, otherwise by `sign_test`.

    Returns:
      The p-value, and the counts of the look that gave the evidence.

    Raises:
      ValueError: a fixed design has several looks.
    """
    if sequential:
        return anytime_test(looks, m)
    if len(looks) != 1:
        raise ValueError(f"{len(looks)} looks need a sequential design: a fixed one has one look")
    return sign_test(looks[0], m), looks[0]


def interval_of(counts: Counts, alpha: float, sequential: bool) -> Interval:
    """Return the interval at level 1 - alpha of the quantity that `estimate_of` estimates."""
    return confidence_sequence(counts, alpha) if sequential else clopper_pearson(counts, alpha)


# Names of estimates and of p-values, by whether the design is sequential.
QUANTITIES = {True: "paired probability of improvement", False: "share of untied pairs won"}
TESTS = {True: "anytime p", False: "sign test p"}


def estimate_of(counts: Counts, sequential: bool) -> float:
    """Return the estimate: paired probability of improvement, or share of untied pairs won.

    A sequential design estimates the paired probability, and a fixed design the share.
    """
    return counts.mean if sequential else share_won(counts)


def holm(p_values: Mapping[Any, float]) -> dict[Any, float]:
    """Return p-values by name, corrected for their number m (Holm 1979).

    The smallest p-value is multiplied by m, the next by m - 1 and so on; results are then made
    monotone and clipped to 1. A threshold of 0.05 limits the probability of any false rejection.
    """
    corrected, so_far = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        so_far = max(so_far, (len(p_values) - rank) * p_values[name])
        corrected[name] = min(so_far, 1.0)
    return {name: corrected[name] for name in p_values}


def benjamini_hochberg(p_values: Sequence[float], rate: float = ALPHA) -> list[bool]:
    """Return whether each p-value is significant at a false discovery rate (1995)."""
    ranked = np.sort(p_values)
    below = ranked <= rate * np.arange(1, len(ranked) + 1) / max(len(ranked), 1)
    limit = ranked[below].max(initial=-1.0)
    return [bool(p <= limit) for p in p_values]


def shown_p(p: float) -> str:
    """Return a p-value with two digits, or with more if rounding would move it to alpha."""
    texts = (f"{p:.{digits}g}" for digits in range(2, 17))
    return next((text for text in texts if (float(text) < ALPHA) == (p < ALPHA)), str(p))
