"""Plans of sequential studies: the number of seeds that decide a claim."""

import functools
import math

import numpy as np

from experiments.statistics.counts import ALPHA, MARGIN, Counts, log_capital, log_untied_capital

_ROUNDING = 1e-9
# Number of simulated studies, seeds between two looks, and largest number of seeds.
_TRIALS, _BATCH, _MOST = 400, 16, 10_000


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

    Studies are simulated with a fixed seed. For each simulated study, the rates of wins, ties and
    losses are drawn from their posterior under a Dirichlet(1, 1, 1) prior, so that three wins out
    of three do not imply a fourth. Simulated looks are 16 seeds apart at first and 6 % apart later,
    so the result may be too large by up to this distance.

    Args:
      pilot: observed or guessed counts, from which the rates are estimated.
      alpha: alpha of the study, divided by its number of claims.
      margin: margin of "no difference", as in `decide`.
      null: share of untied pairs that the arm wins under the null of the claim.
      equivalence: whether "no difference" also decides the claim.
      seen: counts so far, to which further pairs are added.
      chance: probability of a decision.

    Returns:
      A multiple of 16, or None if 10,000 seeds are too few.
    """
    rng = np.random.default_rng(0)
    rates = rng.dirichlet(np.array(pilot) + 1.0, _TRIALS)
    spaced = np.geomspace(_BATCH, _MOST, 120)
    at = np.unique(np.ceil(spaced / _BATCH - _ROUNDING).astype(int)) * _BATCH
    undecided = np.tile(seen, (_TRIALS, 1))  # [trials, 3]
    for further, pairs in zip(at, np.diff(at, prepend=0), strict=True):
        # NumPy 2.5 draws other multinomial numbers than 2.4, but the same uniform ones.
        drawn = rng.random((len(rates), pairs, 1)) < rates.cumsum(axis=1)[:, None, :2]
        wins, not_lost = drawn.sum(axis=1).T
        undecided += np.stack([wins, not_lost - wins, pairs - not_lost], axis=1)
        left = ~_decides(undecided.T, alpha, margin, null, equivalence)
        undecided, rates = undecided[left], rates[left]
        if len(undecided) <= (1 - chance) * _TRIALS + _ROUNDING:
            return int(further)
    return None


def _decides(
    counts: np.ndarray, alpha: float, margin: float, null: float, equivalence: bool
) -> np.ndarray:
    """Return bool `[trials]`: whether counts `[3, trials]` decide a study of one claim."""
    limit = -math.log(alpha)
    decided = log_untied_capital(counts, null) >= limit
    if not equivalence:
        return decided
    wins, ties, losses = counts
    # Where more than half of the pairs tie, the untied pairs give the wider interval.
    kept = np.where(2 * ties > counts.sum(axis=0), 0, ties)
    ends = [log_capital((wins, kept, losses), 0.5 + side * margin) for side in (-1, 1)]
    return decided | ((ends[0] >= limit) & (ends[1] >= limit))
