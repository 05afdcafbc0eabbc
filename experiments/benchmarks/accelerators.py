"""Loops on a GPU and a TPU: `python -m experiments.benchmarks.accelerators`.

One iteration of each loop is compiled for an H100 and a TPU v5e, which the machine need not have.
The table shows launches, conditionals on data, copies of large arrays, and XLA's estimate of cycles
on the TPU. The extras compile-gpu and compile-tpu install the compilers. On a machine with an
accelerator, the loops are also timed there: cycles of a replay next to flashbax, training with
several numbers of seeds and of brax's environments, and the memory in use next to its estimate.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks import command, replay, timing, training
from experiments.benchmarks.training import Case
from experiments.environments.extras import lacking_extra
from experiments.runs.assembly import assemble, memory
from experiments.runs.log import say
from experiments.runs.run_config import RunConfig
from experiments.training.loop import make_program
from experiments.training.seeds import over_seeds
from jaxreplay.option import option
from jaxreplay.testing import Cost, compiled_cost

CYCLES = ("uniform", "flashbax-uniform", "per", "flashbax")
AGENTS = {
    "dqn": Case("dqn", "gymnax/CartPole-v1", 128, (120, 84)),
    "sac": Case("sac", "gymnax/Pendulum-v1", 256, (256, 256)),
}
BRAX = Case("sac", "brax/ant", 256, (256, 256))
LOOPS = tuple(f"{agent}/{method}" for agent in AGENTS for method in ("uniform", "per"))
_STEPS = 20  # per turn at least, as a turn ends with an evaluation, whose time is subtracted


@dataclasses.dataclass(frozen=True)
class Settings(command.TimedSettings):
    """Loops to compile, and to time on an accelerator."""

    cases: tuple[str, ...] = option(
        (*CYCLES, *LOOPS), "cycles of a replay, and training loops",
        choices=(*CYCLES, *LOOPS),
    )  # fmt: skip
    platforms: tuple[str, ...] = option(
        ("gpu", "tpu"), "platforms to compile for", choices=("gpu", "tpu")
    )
    capacity: int = option(2**20, "slots of a cycle's replay", at_least=1)
    loop_capacity: int = option(100_000, "slots of a training loop's replay, per seed", at_least=1)
    batch_size: int = option(256, "transitions per batch of a cycle", at_least=1)
    seeds: tuple[int, ...] = option((1, 8, 64, 512), "numbers of seeds to time", at_least=1)
    num_envs: tuple[int, ...] = option((256, 4_096), "environments of brax to time", at_least=1)

    def check(self) -> None:
        """Raise ValueError if a capacity is smaller than a batch."""
        batches = {
            "capacity": (self.capacity, self.batch_size),
            "loop_capacity": (self.loop_capacity, max(case.batch_size for case in AGENTS.values())),
        }
        for name, (capacity, batch_size) in batches.items():
            if capacity < batch_size:
                raise ValueError(f"{name} is {capacity}: it must hold a batch of {batch_size}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    settings, out = command.read("accelerators", __doc__, Settings(), argv)
    jax.config.update("jax_enable_compilation_cache", False)
    if lacks := lacking_extra("flashbax", {"flashbax": "bench"}):
        say(lacks)
        cases = tuple(case for case in settings.cases if case not in replay.FLASHBAX)
        settings = dataclasses.replace(settings, cases=cases)
    rows = compiled(settings)
    if jax.default_backend() == "cpu":
        say("timed on no device: this machine has no accelerator")
    else:
        rows += timed(settings)
    command.write(out, dataclasses.asdict(settings), rows)
    return 0


def compiled(settings: Settings) -> list[command.Row]:
    """Compile all cases for all platforms whose compilers are installed, and show the costs."""
    rows: list[command.Row] = []
    for platform in settings.platforms:
        say(f"compiling for {platform}")
        try:
            costs = [(case, *_cost(case, platform, settings)) for case in settings.cases]
        except ImportError as error:
            say(str(error))
            continue
        table = [
            {
                "case": case, "platform": platform, "launches": cost.launches,
                "conditionals": cost.conditionals, "large_copies": cost.copies,
                "cycles": cost.cycles, "MB": cost.bytes / 1e6, "compile_s": seconds,
            }
            for case, cost, seconds in costs
        ]  # fmt: skip
        command.show_table(table)
        rows += table
    return rows


def _cost(case: str, platform: str, settings: Settings) -> tuple[Cost, float]:
    """Return the cost of a case's iteration, and the seconds of tracing and compiling it."""
    begin = time.perf_counter()
    if case in CYCLES:
        cost = cycle_cost(case, platform, settings.capacity, settings.batch_size)
    else:
        cost = loop_cost(case_config(case, 1, settings.loop_capacity), platform)
    return cost, time.perf_counter() - begin


def cycle_cost(name: str, platform: str | None, capacity: int, batch_size: int) -> Cost:
    """Return the cost of a loop of add, sample and update, compiled for a platform."""

    made = replay.make_replay(name, capacity, batch_size, platform)

    def init() -> Any:
        inputs = replay.make_inputs(batch_size)
        example = jax.tree.map(lambda x: x[0, 0], inputs.rows)
        return (made.init(jax.random.key(0), example), jnp.zeros(())), replay.at(inputs, 0)

    def step(carry: Any, inputs: Any) -> Any:
        return replay.cycle(made, replay.ORDERS[0], carry, inputs)

    return compiled_cost(step, *jax.eval_shape(init), platform=platform)


def loop_cost(config: RunConfig, platform: str | None) -> Cost:
    """Return the cost of our training loop with the seeds of a run, compiled for a platform."""

    def program() -> Any:
        parts = assemble(config)
        made = make_program(
            parts.environment, parts.agent, parts.replay, config.loop, platform=platform
        )
        return over_seeds(made)

    def chunk(state: Any, blocks: Any) -> Any:
        return {"state and metrics": program().chunk(state, blocks)}

    blocks = jnp.zeros((), jnp.int32)
    return compiled_cost(
        chunk, program().like(config.seeds), blocks, platform=platform, size=config.sizes.capacity
    )


def case_config(case: str, seeds: int, capacity: int) -> RunConfig:
    """Return the configuration of a training loop; `case` is one of LOOPS."""
    agent, method = case.split("/")
    return training.run_config(AGENTS[agent], method, seeds, capacity)


def timed(settings: Settings) -> list[command.Row]:
    """Time all cases on the default device and show microseconds per iteration and memory."""
    cycles, loops = (
        [case for case in settings.cases if (case in CYCLES) == is_cycle]
        for is_cycle in (True, False)
    )
    rows = [time_cycle(case, settings) for case in cycles]
    for case, seeds in itertools.product(loops, settings.seeds):
        rows.append(time_loop(case, case_config(case, seeds, settings.loop_capacity), settings))
    for count, method in itertools.product(settings.num_envs, ("uniform", "per")):
        rows.append(time_loop(f"brax/{method}", brax_config(method, count), settings))
    command.show_table(rows)
    return rows


def time_cycle(case: str, settings: Settings) -> command.Row:
    """Return a row with the microseconds of one add, sample and update."""

    def make() -> timing.Run:
        made = replay.make_replay(case, settings.capacity, settings.batch_size)
        return replay.Cycles(made, replay.ORDERS[0]).run

    return _timed({"case": f"cycle/{case}", "seeds": 1, "num_envs": 1}, make, None, settings)


def time_loop(case: str, config: RunConfig, settings: Settings) -> command.Row:
    """Return a row: microseconds of a step of all seeds, memory in use, and its estimate."""
    promised = config.seeds * memory(assemble(config), config, jax.default_backend())
    row = {"case": case, "seeds": config.seeds, "num_envs": config.sizes.num_envs}
    return _timed(row, lambda: training.own_loop(config), promised, settings)


def _timed(
    row: command.Row, make: Callable[[], timing.Run], promised: int | None, settings: Settings
) -> command.Row:
    """Add times and memory to a row; leave them out if the loop does not fit on the device."""
    say("timing {case}, seeds {seeds}, environments {num_envs}".format(**row))
    before, us, used = _bytes_in_use(), None, None
    try:
        run = make()
        used = _bytes_in_use()
        (us,) = timing.take_turns({"": run}, settings.turns, settings.seconds, _STEPS).values()
    except jax.errors.JaxRuntimeError as error:
        say(f"  {str(error).splitlines()[0]}")
    return {
        **row,
        "median_us": None if us is None else sorted(us)[len(us) // 2],
        "used_MB": None if used is None or before is None else (used - before) / 1e6,
        "promised_MB": None if promised is None else promised / 1e6,
        "us": us,
    }


def brax_config(method: str, num_envs: int) -> RunConfig:
    """Return SAC on brax with several environments and 2^20 slots."""
    config = training.run_config(BRAX, method, 1, 2**20)
    return dataclasses.replace(config, sizes=dataclasses.replace(config.sizes, num_envs=num_envs))


def _bytes_in_use() -> int | None:
    """Return the bytes of all arrays on the default device; None if the device has no count."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_in_use")


if __name__ == "__main__":
    sys.exit(main())
