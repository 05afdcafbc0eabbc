"""Whole training loops of other projects, run from checkouts of theirs and left as they are.

Each is a function of a seed's key that trains for a fixed number of steps. Nothing of their code is
here: an adapter sets their hyperparameters, and stands in for what newer packages have changed.
"""

import importlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks.compiled import Compiled, compile_for
from experiments.benchmarks.timing import Run

NAMES = ("purejaxrl", "rejax")
FILES = {"purejaxrl": "purejaxrl/dqn.py", "rejax": "rejax/__init__.py"}  # that checkouts have
Train = Callable[[Any], Any]  # a seed's key -> whatever training leaves


class Setting(NamedTuple):
    """Hyperparameters that all loops share."""

    agent: str  # "dqn", "td3" or "sac"
    env: str  # its name in gymnax
    batch_size: int
    hidden: tuple[int, ...]
    capacity: int
    learning_rate: float
    tau: float  # target rate, at every update


class Variant(NamedTuple):
    """A loop of a peer: as published, or with a part of it replaced."""

    make: Callable[[int, int], Train]  # steps, and those of them before learning -> a function
    told: Callable[[int, int], Train] | None = None  # what compiling is timed of; None: the same
    several: bool = False  # it differs from another only where there are several seeds


class Missing(Exception):
    """A peer that is not there, or does not work here; in one line."""


class Whole(NamedTuple):
    """A loop of a peer, ready to be timed."""

    run: Run  # whole multiples of the learning steps that it was compiled for
    seconds: float  # of the processor, that compiling took, tracing included
    text: str  # optimised HLO


def variants(name: str, folder: Path | None, setting: Setting) -> tuple[Mapping[str, Variant], str]:
    """Return a peer's loops for an agent by name, none if it has none; and its version.

    Args:
      name: of the peer, one of NAMES.
      folder: a checkout of it; None: as installed, if it can be.
      setting: hyperparameters.

    Raises:
      Missing: it is not there, or does not work here.
    """
    module = importlib.import_module(f"{__name__}.{name}")
    try:
        return module.variants(folder, setting), module.version(folder)
    except (ImportError, AttributeError, OSError) as error:
        line = " ".join(str(error).split())[:200]
        raise Missing(f"it does not work here: {line}") from None


def whole(variant: Variant, seeds: int, steps: int, setting: Setting) -> Whole:
    """Compile a peer's loop for many seeds, as its documentation does: vmapped, then jitted.

    Its time is that of a run that learns, minus that of one which ends where learning begins.

    Args:
      variant: the loop.
      seeds: in one program.
      steps: learning steps of a run.
      setting: hyperparameters.
    """
    keys = jax.random.split(jax.random.PRNGKey(0), seeds)
    before = setting.batch_size

    def made(make: Callable[[int, int], Train], length: int) -> Compiled:
        jax.clear_caches()
        return compile_for(jax.jit(jax.vmap(make(length, before))), keys)

    short, long = (made(variant.make, length) for length in (before, before + steps))
    told = long if variant.told is None else made(variant.told, before + steps)

    def timed(one: Compiled) -> float:
        start = time.perf_counter()
        jax.block_until_ready(one.run(keys))
        return time.perf_counter() - start

    def run(count: int) -> float:
        times = max(1, round(count / steps))
        spent = sum(timed(long) - timed(short) for _ in range(times))
        return max(spent, 1e-9) * count / (times * steps)

    return Whole(run, told.tracing + told.compiling, long.text)


class SingleDone:
    """An environment of gymnax whose steps return one `done`, as they did before gymnax 1.0."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_env":  # as copies ask before there is any
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, key: Any, params: Any = None) -> tuple[Any, Any]:
        return self._env.reset(key, params)

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> tuple:
        obs, state, reward, *ends, info = self._env.step(key, state, action, params)
        return obs, state, reward, jnp.any(jnp.stack(ends), axis=0), info
