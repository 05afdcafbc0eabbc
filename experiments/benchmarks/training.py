"""Time whole training loops: `python -m experiments.benchmarks.training`.

DQN on CartPole, TD3 and SAC on Pendulum with one update per step and several replay methods. Each
loop is one program for all seeds; with --distributed true, loops are also timed as runs distribute
them over cores. On Linux, `taskset -c 0` in front of the command restricts it to one core.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks import command, timing
from experiments.benchmarks.timing import Run
from experiments.runs.assembly import assemble, build
from experiments.runs.log import say, show
from experiments.runs.run_config import RunConfig, defaults
from experiments.training.config import LoopConfig, ReplaySizes
from experiments.training.loop import make_program
from experiments.training.seeds import over_seeds
from experiments.training.state import a_key
from jaxreplay.option import option
from jaxreplay.testing import large_copies

_REPLAYS = ("uniform", "per", "lap", "pal", "rank", "ners")
_MIN_STEPS = 20  # per turn, so that the subtracted evaluation or warm-up is short in comparison


class Case(NamedTuple):
    """An agent and a task."""

    agent: str
    env: str
    batch_size: int
    hidden: tuple[int, ...]
    options: Mapping[str, Any] = MappingProxyType({})  # agent's, to match other projects


# DQN of purejaxrl and rejax has neither double Q-learning nor gradient clipping.
_PLAIN = MappingProxyType({"double": False, "max_grad_norm": 0.0})
CASES: Mapping[str, Case] = MappingProxyType(
    {
        "dqn": Case("dqn", "gymnax/CartPole-v1", 128, (64, 64), _PLAIN),
        "td3": Case("td3", "gymnax/Pendulum-v1", 256, (256, 256)),
        "sac": Case("sac", "gymnax/Pendulum-v1", 256, (256, 256)),
    }
)


@dataclasses.dataclass(frozen=True)
class Settings(command.TimedSettings):
    """Loops to time."""

    cases: tuple[str, ...] = option(tuple(CASES), "agents, each on its task", choices=tuple(CASES))
    replays: tuple[str, ...] = option(("uniform", "per"), "replay methods", choices=_REPLAYS)
    seeds: tuple[int, ...] = option((1, 8), "numbers of seeds, each in one program", at_least=1)
    distributed: bool = option(False, "also time loops distributed over cores, as in runs")
    capacity: int = option(100_000, "slots per seed", at_least=1)
    seconds: float = option(1.0, f"approximate seconds of a turn (>= {_MIN_STEPS} steps)", above=0)

    def check(self) -> None:
        """Reject a capacity below the batch size."""
        largest = max(CASES[name].batch_size for name in self.cases)
        if self.capacity < largest:
            raise ValueError(f"capacity is {self.capacity}: it must hold a batch of {largest}")


class Loop(NamedTuple):
    """A training loop to time."""

    run: Run  # steps in every seed -> seconds
    large_copies: int | None = None  # instructions in its loops that copy an array of the replay


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    settings, out = command.read("training", __doc__, Settings(), argv)
    jax.config.update("jax_enable_compilation_cache", False)
    results = []
    for case, seeds in itertools.product(settings.cases, settings.seeds):
        say(f"{case}, seeds: {seeds}")
        new = measure(case, seeds, settings)
        rows = [[value for name, value in one.items() if name != "us"] for one in new]
        show(command.table([name for name in new[0] if name != "us"], rows))
        results += new
    command.write(out, {"settings": dataclasses.asdict(settings), "results": results})
    return 0


def measure(name: str, seeds: int, settings: Settings) -> list[dict[str, Any]]:
    """Time the loops of one case in turns.

    Times are in microseconds per step of all seeds, and relative to the loop with uniform replay;
    steps/s are of all seeds together.
    """
    loops: dict[str, Loop] = {}
    for replay in settings.replays:
        say(f"  compiling {replay}")
        config = run_config(CASES[name], replay, seeds, settings.capacity)
        loops[replay] = one_program(config)
        if settings.distributed:
            training = build(config)
            loops[f"{replay}, distributed"] = Loop(_run_of(training.init(), training.chunk))
    say("  taking turns")
    times = timing.compare(
        {label: loop.run for label, loop in loops.items()},
        settings.turns, settings.seconds, dict.fromkeys(loops, "uniform"), _MIN_STEPS,
    )  # fmt: skip
    return [
        {
            "case": name, "seeds": seeds, "loop": label, "us": times[label].us,
            "steps_per_second": seeds * 1e6 / times[label].median_us,
            "median_us": times[label].median_us, "to_ours": times[label].ratio,
            "large_copies": loop.large_copies,
        }
        for label, loop in loops.items()
    ]  # fmt: skip


def run_config(case: Case, replay: str, seeds: int, capacity: int) -> RunConfig:
    """Return a run with one environment per seed, one update per step and no inspection."""
    config = defaults(case.env, case.agent, replay)
    loop = LoopConfig(
        steps=1_000_000, warmup=1_000, eval_every=1_000_000, eval_episodes=1, inspect=0
    )
    options = dataclasses.replace(config.agent_options, hidden=case.hidden, **case.options)
    sizes = ReplaySizes(num_envs=1, capacity=capacity, batch_size=case.batch_size)
    return dataclasses.replace(config, seeds=seeds, agent_options=options, sizes=sizes, loop=loop)


def one_program(config: RunConfig) -> Loop:
    """Return a training loop with all seeds in one program."""
    warm_up, training = (
        function.lower(*inputs).compile() for function, inputs in functions_of(config).values()
    )
    state = warm_up(jax.vmap(jax.random.key)(jnp.arange(config.seeds)))
    run = _run_of(state, lambda state, blocks: training(state, jnp.int32(blocks)))
    return Loop(run, len(large_copies(training.as_text() or "", config.sizes.capacity)))


def functions_of(config: RunConfig) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the two jitted functions of a run, traced once, with the shapes of their inputs.

    They are "warm-up" with keys `[S]`, and "training" with the state, which is donated, and a
    number of blocks.
    """
    parts = assemble(config)
    run = over_seeds(make_program(parts.environment, parts.agent, parts.replay, config.loop))
    keys = jax.ShapeDtypeStruct((config.seeds,), a_key().dtype)
    blocks = jax.ShapeDtypeStruct((), jnp.int32)
    state = run.like(config.seeds)
    return {"warm-up": (run.init, (keys,)), "training": (run.chunk, (state, blocks))}


def _run_of(state: Any, chunk: Callable[[Any, int], tuple[Any, Any]]) -> Run:
    """Return a function that times steps without the evaluation that ends a chunk."""

    def timed(blocks: int) -> float:
        nonlocal state
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(chunk(state, blocks))
        return time.perf_counter() - begin

    def run(count: int) -> float:
        total = timed(count)
        # A chunk of zero blocks is the same evaluation alone.
        return max(total - timed(0), 1e-9)

    return run


if __name__ == "__main__":
    sys.exit(main())
