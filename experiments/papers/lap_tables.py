"""Computed tables of LAP and PAL: theorems and observations as numbers, and run times.

Both sides of a theorem are computed with the losses of the library, for random TD errors.
Expectations are sums over the whole memory, so only the TD errors are random.
"""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.optimize

from experiments.benchmarks import timing, training
from experiments.papers.entry import Computation, Request, Row
from jaxreplay import equivalence, objectives
from jaxreplay.types import Array

_SOURCES = ("experiments/papers/lap_tables.py",)
_CLOSE = 2e-5  # relative tolerance of float32 sums over a memory


def lap_and_pal(request: Request) -> pd.DataFrame:
    """Return both sides of the equations in Fujimoto et al. 2020 (theorems and observations).

    TD errors `[N]` follow Student's t-distribution with three degrees of freedom, which has heavy
    tails. Options are `seeds`, the number of seeds, and `stored`, N.

    Returns:
      Rows with columns claim, seed, what (name of the number), found, expected and tolerance.
    """
    rows: list[Row] = []
    for seed in range(request.options["seeds"]):
        td = jnp.asarray(
            np.random.default_rng(seed).standard_t(3, request.options["stored"]), jnp.float32
        )
        for claim, numbers in (
            ("thm1", _any_scheme), ("thm2", _least_variance), ("thm3", _what_per_minimises),
            ("obs1", _huber_and_lap), ("obs2", _squared_error), ("obs3", _absolute_error),
            ("obs4", _lap_is_pal),
        ):  # fmt: skip
            for what, found, expected in numbers(td):
                size = max(abs(found), abs(expected), 1e-6)
                rows.append(
                    {"claim": claim, "seed": seed, "what": what, "found": found,
                     "expected": expected, "tolerance": size * _TOLERANCE.get(claim, _CLOSE)}
                )  # fmt: skip
    return pd.DataFrame(rows)


_TOLERANCE = {"obs2": 2e-2, "obs3": 2e-2}  # relative, of numerical minima
Numbers = Iterator[tuple[str, float, float]]  # name of the number, found, expected


def _slope(loss: Callable[[Array], Array], td: Array) -> Array:
    """Return the gradient `[N]` of the loss of each TD error."""
    return jax.grad(lambda errors: loss(errors).sum())(td)


def _expected(slope: Array, priority: Array) -> float:
    """Return the expected gradient if TD errors are drawn in proportion to priorities `[N]`."""
    return float((np.asarray(priority, float) * np.asarray(slope, float)).sum() / np.asarray(
        priority, float).sum())  # fmt: skip


def _even(slope: Array) -> float:
    return float(np.asarray(slope, float).mean())


def _any_scheme(td: Array) -> Numbers:
    """Theorem 1, Corollary 1: any loss and scheme have the mean gradient of some uniform loss."""
    for name, loss in (
        ("MSE", objectives.mse),
        ("L1", objectives.l1),
        ("Huber", objectives.huber()),
    ):
        for exponent in (0.4, 1.0):
            scheme = equivalence.lap_priority(exponent, 0.1)
            plain = equivalence.uniform_equivalent(loss, scheme)
            found = _even(_slope(plain, td))
            yield f"{name}, exponent {exponent}", found, _expected(_slope(loss, td), scheme(td))


def _variance(share: np.ndarray, slope: np.ndarray) -> float:
    """Return the variance of gradients `[N]` that are drawn with probabilities `share` `[N]`."""
    return float((share * slope**2).sum() - (share * slope).sum() ** 2)


def _shares(priority: np.ndarray) -> np.ndarray:
    return priority / priority.sum()


def _least_variance(td: Array) -> Numbers:
    """Theorem 2: of losses and schemes with equal mean gradients, L1 has the lowest variance."""
    slope = np.asarray(_slope(objectives.mse, td), float)
    scaled, priority = equivalence.prioritised_equivalent(objectives.mse)
    own = np.asarray(_slope(scaled, td), float)
    variance = _variance(_shares(np.asarray(priority(td), float)), own)
    yield "of L1", variance, float(np.abs(slope).mean() ** 2 - slope.mean() ** 2)
    # Other pairs draw in proportion to |gradient|^(1 - c) and divide the gradient by that.
    shares = [_shares(np.abs(slope) ** (1.0 - c)) for c in np.linspace(0.0, 1.0, 11)]
    others = [_variance(share, slope / len(slope) / share) for share in shares]
    yield "the least of eleven pairs", min(others), others[0]
    yield "the greatest is uniform MSE's", max(others), float(slope.var())


def _what_per_minimises(td: Array) -> Numbers:
    """Theorem 3: PER with |error|^tau / tau has the mean gradient of a uniform loss c |error|^p."""
    size = np.abs(np.asarray(td, float))
    for alpha, beta, tau in ((0.6, 0.4, 2.0), (0.6, 0.4, 1.0), (0.4, 0.0, 1.0), (0.6, 1.0, 2.0)):
        priority = size**alpha
        weight = (1.0 / priority) ** beta
        weight /= weight.max()
        slope = np.asarray(_slope(equivalence.power(tau, 1.0 / tau), td), float)
        found = _even(_slope(equivalence.per_equivalent(alpha, beta, tau), td))
        expected = float((priority * weight * slope).sum() / priority.sum())
        yield f"alpha {alpha}, beta {beta}, tau {tau:g}", found, expected


def _huber_and_lap(td: Array) -> Numbers:
    """Observation 1: the gradient of LAP varies less than that of PAL under uniform sampling."""
    for alpha, kappa in ((0.4, 1.0), (0.6, 0.01)):
        share = _shares(np.asarray(equivalence.lap_priority(alpha, kappa)(td), float))
        of_lap = _variance(share, np.asarray(_slope(objectives.huber(kappa), td), float))
        of_pal = float(np.asarray(_slope(equivalence.pal(alpha, kappa), td), float).var())
        yield f"alpha {alpha}, kappa {kappa}: the smaller is LAP's", min(of_lap, of_pal), of_lap


def _minimum(power: float, targets: np.ndarray) -> float:
    """Return the value that minimises the mean of |target - value|^power."""
    found = scipy.optimize.minimize_scalar(
        lambda value: float((np.abs(targets - value) ** power).mean()),
        bounds=tuple(np.percentile(targets, [1, 99])), method="bounded",
    )  # fmt: skip
    return float(found.x)


def _squared_error(td: Array) -> Numbers:
    """Observation 2: the mean of the targets minimises the squared error."""
    targets = np.asarray(td, float) + 3.0
    yield "its minimum", _minimum(2.0, targets), float(targets.mean())


def _absolute_error(td: Array) -> Numbers:
    """Observation 3: the median of the targets minimises the absolute error."""
    targets = np.asarray(td, float) + 3.0
    yield "its minimum", _minimum(1.0, targets), float(np.median(targets))


def _lap_is_pal(td: Array) -> Numbers:
    """Observation 4: the expected gradients of LAP and of PAL under uniform sampling are equal."""
    for alpha, kappa in ((0.4, 1.0), (0.6, 0.01), (0.5, 2.0)):
        priority = equivalence.lap_priority(alpha, kappa)(td)
        found = _expected(_slope(objectives.huber(kappa), td), priority)
        expected = _even(_slope(equivalence.pal(alpha, kappa), td))
        yield f"alpha {alpha}, kappa {kappa}", found, expected


def run_times(request: Request) -> pd.DataFrame:
    """Return the duration of a training step with each method relative to uniform replay.

    Fujimoto et al. 2020, App. B. The training loops of a task take turns in one process, and the
    time of a method is divided by the time of uniform replay in the same turn.

    Returns:
      Rows with columns task, arm, seed (number of the turn), value (ratio of times) and us
      (microseconds per step).
    """
    rows = []
    for task in request.options["tasks"]:
        name = f"{task} on {timing.machine()}"  # parts of different machines do not mix
        rows += request.part(name, partial(_times, request, task))
    return pd.DataFrame(rows)


def _times(request: Request, task: str) -> list[Row]:
    options, runs = request.options, {}
    for replay in options["replays"]:
        request.say(f"warming up {task} with {replay}")
        case = training.CASES[task]
        config = training.run_config(case, replay, 1, options["capacity"])
        runs[replay] = training.own_loop(config)
    request.say("taking turns")
    times = timing.take_turns(runs, options["turns"], options["seconds"])
    return [
        {"task": task, "arm": replay, "seed": turn, "value": us / plain, "us": us}
        for replay, own in times.items()
        for turn, (us, plain) in enumerate(zip(own, times["uniform"], strict=True))
    ]


THEORY = Computation(
    "lap_theory", lap_and_pal, {"seeds": 10, "stored": 20_000}, {"seeds": 1, "stored": 500},
    _SOURCES, minutes=0.5,
)  # fmt: skip
RUN_TIME = Computation(
    "run_time",
    run_times,
    {
        "tasks": ("td3", "sac"), "replays": ("uniform", "per", "lap", "pal"), "turns": 21,
        "seconds": 0.5, "capacity": 100_000,
    },
    {
        "tasks": ("td3",), "replays": ("uniform", "per"), "turns": 2, "seconds": 0.05,
        "capacity": 1_000,
    },
    (*_SOURCES, "experiments/benchmarks/t*.py"), "run time of uniform replay", False, minutes=4,
)  # fmt: skip
