"""Time whole training loops: `python -m experiments.benchmarks.training`.

DQN on CartPole, TD3 and SAC on Pendulum with one update per step and several replay methods. Each
loop is one program for all seeds; with --distributed true, loops are also timed as runs distribute
them over cores. Compiling is measured in processor seconds. On Linux, `taskset -c 0` in front of
the command restricts it to one core.
"""

import dataclasses
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import jax

from experiments.benchmarks import command, timing, training_loops
from experiments.benchmarks.training_loops import CASES, Loop
from experiments.runs.log import say
from jaxreplay.option import option

_REPLAYS = ("uniform", "per", "lap", "pal", "rank", "ners")
_MIN_STEPS = 20  # per turn, so that the subtracted evaluation or warm-up is short in comparison


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    settings, out = command.read("training", __doc__, Settings(), argv)
    jax.config.update("jax_enable_compilation_cache", False)
    results = []
    for case, seeds in itertools.product(settings.cases, settings.seeds):
        say(f"{case}, seeds: {seeds}")
        new = measure(case, seeds, settings)
        rows = [[value for name, value in one.items() if name != "us"] for one in new]
        print(command.table([name for name in new[0] if name != "us"], rows), flush=True)
        results += new
    command.write(out, {"settings": dataclasses.asdict(settings), "results": results})
    return 0


def measure(name: str, seeds: int, settings: Settings) -> list[dict[str, Any]]:
    """Time the loops of one case in turns.

    Times are in microseconds per step of all seeds, and relative to the loop with uniform replay;
    steps/s are of all seeds together. Compiling is in processor seconds, including tracing. Copies
    are the instructions in loops that copy a whole array of the replay.
    """
    loops = _loops(name, seeds, settings)
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
            "compile_seconds": loop.compiling, **loop.size._asdict(),
            "large_copies": loop.large_copies,
        }
        for label, loop in loops.items()
    ]  # fmt: skip


def _loops(name: str, seeds: int, settings: Settings) -> dict[str, Loop]:
    """Compile the loops of one case."""
    case = CASES[name]
    loops: dict[str, Loop] = {}
    for replay in settings.replays:
        say(f"  compiling {replay}")
        loops[replay] = training_loops.ours(case, replay, seeds, settings.capacity)
        if settings.distributed:
            loop = training_loops.run_distributed(case, replay, seeds, settings.capacity)
            loops[f"{replay}, distributed"] = loop
    return loops


if __name__ == "__main__":
    sys.exit(main())
