"""Training loops of other projects, imported from unmodified checkouts.

An adapter per project sets its hyperparameters and replaces functions that newer packages have
removed. Each loop is a function of a seed's key that trains for a fixed number of steps.
"""

import importlib
import importlib.util
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks.programs import Compiled, compile_for
from experiments.benchmarks.training_loops import Loop
from experiments.installation.commands import install, install_package
from experiments.runs.log import say
from experiments.runs.run_config import RunConfig
from jaxreplay.testing import large_copies

# One file of each project by which its checkout is recognised.
FILES = {"purejaxrl": "purejaxrl/dqn.py", "rejax": "src/rejax/__init__.py"}
_REQUIRED = {
    "purejaxrl": ("flashbax", install("bench")),
    "rejax": ("distrax", install_package("distrax")),
}
Train = Callable[[Any], Any]  # a seed's key -> the result of training


class Variant(NamedTuple):
    """A loop as published, or with a part of it replaced.

    Both functions take the number of steps and the number of those before learning.
    """

    make: Callable[[int, int], Train]
    with_evaluation: Callable[[int, int], Train] | None = None  # to time its compilation; or `make`


def check(name: str, folder: Path) -> None:
    """Check that a folder is a checkout of a project, and that its required package is installed.

    Raises:
      ValueError: either is missing.
    """
    if not (folder / FILES[name]).is_file():
        raise ValueError(f"{name} is {folder}, which has no {FILES[name]}: give a checkout")
    package, hint = _REQUIRED[name]
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"{name} requires {package}: {hint}")


def version(folder: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    cloned = (folder / ".git").exists() and done.returncode == 0
    return f"commit {done.stdout.strip()}" if cloned else "unknown commit"


def compiled(name: str, folder: Path, config: RunConfig, steps: int) -> dict[str, Loop]:
    """Compile a project's loops with the hyperparameters of a run.

    Args:
      name: of the project, a key of FILES.
      folder: checkout of the project.
      config: hyperparameters and number of seeds, all in one program.
      steps: learning steps per call.

    Returns:
      Loops by name; none if the project lacks the agent.
    """
    module = importlib.import_module(f"{__name__}.{name}")
    steps += steps % 2  # TD3's actor learns in every other step
    loops = {}
    for label, variant in module.variants(folder, config).items():
        say(f"  compiling {label}")
        loops[label] = whole(variant, config, steps)
    return loops


def whole(variant: Variant, config: RunConfig, steps: int) -> Loop:
    """Compile a loop as projects document it: vmapped over seeds, then jitted.

    The time of a run that ends before learning begins is subtracted from that of each run.
    """
    keys = jax.random.split(jax.random.PRNGKey(0), config.seeds)
    capacity, before = config.sizes.capacity or 0, config.sizes.batch_size

    def made(make: Callable[[int, int], Train], length: int) -> Compiled:
        jax.clear_caches()
        return compile_for(jax.jit(jax.vmap(make(length, before))), keys)

    short, long = (made(variant.make, length) for length in (before, before + steps))
    full = long
    if variant.with_evaluation is not None:
        full = made(variant.with_evaluation, before + steps)

    def timed(one: Compiled) -> float:
        start = time.perf_counter()
        jax.block_until_ready(one.run(keys))
        return time.perf_counter() - start

    def run(count: int) -> float:
        times = max(1, round(count / steps))
        spent = sum(timed(long) - timed(short) for _ in range(times))
        return max(spent, 1e-9) * count / (times * steps)

    copies = len(large_copies(long.text, capacity))
    return Loop(run, full.tracing + full.compiling, long.size, copies, steps)


class SingleDone:
    """A gymnax environment whose steps return one `done` flag, as before gymnax 1.0."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_env":  # looked up by copies before `_env` is set
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, key: Any, params: Any = None) -> tuple[Any, Any]:
        return self._env.reset(key, params)

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> tuple:
        obs, state, reward, *ends, info = self._env.step(key, state, action, params)
        return obs, state, reward, jnp.any(jnp.stack(ends), axis=0), info
