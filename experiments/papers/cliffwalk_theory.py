"""Theorem 1 of Brittain et al. 2019: expected updates on the Blind Cliffwalk.

The learning rate is 1, and Q is 0 at first. Initial priorities are the initial TD errors: 1 for the
rewarded transition and 0 for all others, except that with PSER the k-th transition before the
rewarded one in its sequence has rho^k. While all priorities are 0, draws are uniform over the
2^(n+1) - 2 transitions. States are learned from the last to the first, and updates are counted
until the value of the first state is learned.

The new priority of a transition can be its error *after* the update ("post", as in the paper's
proof) or *before* the update ("pre", as in Alg. 1 of Schaul et al. 2016).
"""

import numpy as np

PROCESSES = ("per-post", "per-pre", "pser-idealised", "pser-post", "pser-pre")


def expected_per(n: int, priority: str = "post") -> float:
    """Return PER's expected number of updates until Q is correct on a walk of n states.

    Brittain et al. 2019, Eq. 15. With priorities from before the update ("pre"), n - 1 are added.
    """
    expected = 1.0 + (2 ** (n + 1) - 2) * (1.0 - 2.0 ** (1 - n))
    return expected + (n - 1 if priority == "pre" else 0)


def expected_pser(n: int, rho: float) -> float:
    """Return the paper's expected updates of PSER (Brittain et al. 2019, Eq. 16).

    The expression is exact for an idealised process, in which a draw sets its priority to 0 if it
    changes Q, and leaves it unchanged otherwise. "post" and "pre" differ from that process: "post"
    grows like 2^n, and "pre" was within n - 1 updates of the expression in every simulation.
    """
    return float(sum((1.0 - rho**m) / (1.0 - rho) for m in range(1, n + 1)))


def simulate(n: int, process: str, rho: float, rng: np.random.Generator, runs: int) -> np.ndarray:
    """Simulate a process; return the updates `[runs]` int until all states are learned.

    Args:
      n: number of states, at least 2.
      process: one of PROCESSES.
      rho: decay of PSER, in (0, 1); processes of PER ignore it.
      rng: source of randomness.
      runs: number of independent runs.
    """
    if process.startswith("per"):
        # The rewarded transition is drawn first. "pre" draws every learned state a second time,
        # except for the last one learned.
        again = n - 1 if process == "per-pre" else 0
        return 1 + again + _uniform_phases(n, np.full(runs, n - 1), rng)
    return {"pser-idealised": _idealised, "pser-post": _post, "pser-pre": _pre}[process](
        n, rho, rng, runs
    )


def _uniform_phases(n: int, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the updates `[runs]` that uniform replay needs for the first `left` `[runs]` states.

    The memory has 2^(n-1-s) copies of the right action in state s, and other draws change nothing,
    so the number of draws until one of the copies is geometric.
    """
    states = np.arange(n - 1)
    chance = 2.0 ** (n - 1 - states) / (2 ** (n + 1) - 2)
    waits = rng.geometric(chance, size=(len(left), n - 1))
    return np.where(states < left[:, None], waits, 0).sum(axis=1)


def _idealised(n: int, rho: float, rng: np.random.Generator, runs: int) -> np.ndarray:
    mass = np.array([sum(rho**j for j in range(m)) for m in range(1, n + 1)])
    return rng.geometric(1.0 / mass, size=(runs, n)).sum(axis=1)


def _post(n: int, rho: float, rng: np.random.Generator, runs: int) -> np.ndarray:
    # The error after an update, and thus the priority, is 0. The successful sequence is thus drawn
    # without replacement, which is sorting by log priority plus Gumbel noise.
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
        # The sum is positive: learning a state raises the priority of the previous state.
        threshold = rng.random(runs) * priority.sum(axis=1)
        drawn = np.minimum((priority.cumsum(axis=1) <= threshold[:, None]).sum(axis=1), n - 1)
        error = np.where(drawn == needed, discount ** (n - 1.0 - drawn), 0.0)
        steps_back = drawn[:, None] - states
        decayed = np.where(steps_back > 0, error[:, None] * rho ** np.maximum(steps_back, 0.0), 0.0)
        priority = np.where(steps_back == 0, error[:, None], np.maximum(priority, decayed))
        updates += going
        needed -= going & (drawn == needed)
        priority[needed < 0] = 1.0  # finished runs need any positive number
    return updates
