"""Theorem 1 of Brittain et al. 2019: expected updates on the Blind Cliffwalk.

The learning rate is 1 and Q starts at 0. Priorities start at the initial TD errors: 1 for the one
rewarded transition and 0 for all others, but with PSER rho^k for the k-th step before the rewarded
one in its sequence. While all priorities are 0, draws are uniform over the 2^(n+1) - 2 transitions.
States are learned from the last one back; updates count until the first state has its value.

"The new priority" can mean two things: that of the error *after* the update ("post", as in the
paper's proof) or *before* it ("pre", as in Alg. 1 of Schaul et al. 2016).
"""

import numpy as np

PROCESSES = ("per-post", "per-pre", "pser-idealised", "pser-post", "pser-pre")


def expected_per(n: int, priority: str = "post") -> float:
    """Return PER's expected updates (Brittain et al. 2019, Eq. 15); "pre" needs n - 1 more."""
    expected = 1.0 + (2 ** (n + 1) - 2) * (1.0 - 2.0 ** (1 - n))
    return expected + (n - 1 if priority == "pre" else 0)


def expected_pser(n: int, rho: float) -> float:
    """Return the paper's expression for PSER (Brittain et al. 2019, Eq. 16).

    It is exact for an idealised process, in which a draw that teaches nothing leaves its priority
    unchanged and a useful draw sets it to 0. Neither "post" nor "pre" is that process: "post" grows
    like 2^n; "pre" stayed within n - 1 updates of the expression in every simulation.
    """
    return float(sum((1.0 - rho**m) / (1.0 - rho) for m in range(1, n + 1)))


def simulate(n: int, process: str, rho: float, rng: np.random.Generator, runs: int) -> np.ndarray:
    """Simulate a process; return the updates `[runs]` int until all n >= 2 states are learned.

    Args:
      n: states.
      process: one of PROCESSES.
      rho: PSER's decay, in (0, 1); ignored by PER's processes.
      rng: source of randomness.
      runs: number of independent runs.
    """
    if process.startswith("per"):
        # The rewarded transition comes first; "pre" replays every learned state once more, except
        # the one that ends the run.
        again = n - 1 if process == "per-pre" else 0
        return 1 + again + _uniform_phases(n, np.full(runs, n - 1), rng)
    return {"pser-idealised": _idealised, "pser-post": _post, "pser-pre": _pre}[process](
        n, rho, rng, runs
    )


def _uniform_phases(n: int, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the updates `[runs]` that uniform replay needs for the first `left` `[runs]` states.

    The right action in state s has 2^(n-1-s) copies, and other draws change nothing, so the wait
    for one of the copies is geometric.
    """
    states = np.arange(n - 1)
    chance = 2.0 ** (n - 1 - states) / (2 ** (n + 1) - 2)
    waits = rng.geometric(chance, size=(len(left), n - 1))
    return np.where(states < left[:, None], waits, 0).sum(axis=1)


def _idealised(n: int, rho: float, rng: np.random.Generator, runs: int) -> np.ndarray:
    mass = np.array([sum(rho**j for j in range(m)) for m in range(1, n + 1)])
    return rng.geometric(1.0 / mass, size=(runs, n)).sum(axis=1)


def _post(n: int, rho: float, rng: np.random.Generator, runs: int) -> np.ndarray:
    # Every draw leaves an error, and so a priority, of 0. The successful sequence is thus drawn
    # without replacement: sorted by log priorities with Gumbel noise.
    log_priority = np.log(rho) * np.arange(n - 1, -1, -1)
    order = np.argsort(-(log_priority + rng.gumbel(size=(runs, n))), axis=1)
    needed = np.full(runs, n - 1)
    updates = np.zeros(runs, int)
    for drawn in order.T:
        updates += needed >= 0
        needed -= drawn == needed
    return updates + _uniform_phases(n, needed + 1, rng)


def _pre(n: int, rho: float, rng: np.random.Generator, runs: int) -> np.ndarray:
    discount = 1.0 - 1.0 / n
    states = np.arange(n)
    priority = np.tile(rho ** (n - 1.0 - states), (runs, 1))
    needed = np.full(runs, n - 1)
    updates = np.zeros(runs, int)
    while (going := needed >= 0).any():
        # Some priority is always positive: learning a state raises that of the one before it.
        threshold = rng.random(runs) * priority.sum(axis=1)
        drawn = np.minimum((priority.cumsum(axis=1) <= threshold[:, None]).sum(axis=1), n - 1)
        error = np.where(drawn == needed, discount ** (n - 1.0 - drawn), 0.0)
        steps_back = drawn[:, None] - states
        decayed = np.where(steps_back > 0, error[:, None] * rho ** np.maximum(steps_back, 0.0), 0.0)
        priority = np.where(steps_back == 0, error[:, None], np.maximum(priority, decayed))
        updates += going
        needed -= going & (drawn == needed)
        priority[needed < 0] = 1.0  # finished: any positive number
    return updates
