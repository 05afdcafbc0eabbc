"""Timing: contenders take turns in one process, so that other load affects all of them equally.

A contender is a function from a number of cycles to seconds. It is called until its programs are
compiled and the length of its turns is known, then once per turn; reported times are medians over
the turns, and ratios are taken within turns.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from experiments.studies.store import versions

Run = Callable[[int], float]  # number of cycles -> seconds

_MAX_CYCLES = 1_000_000  # per turn


class Timed(NamedTuple):
    """Times of one contender in microseconds per cycle."""

    us: list[float]  # one per turn
    median_us: float
    ratio: float | None  # median over turns, relative to the reference in the same turn


def compare(
    runs: Mapping[str, Run],
    turns: int,
    seconds: float,
    references: Mapping[str, str],
    least: int = 1,
) -> dict[str, Timed]:
    """Time contenders in turns; `references` names the contender that each is relative to.

    The other arguments are those of `take_turns`.
    """
    times = take_turns(runs, turns, seconds, least)
    results = {}
    for name, us in times.items():
        reference = times.get(references[name])
        relative = None if reference is None else ratio(us, reference)
        results[name] = Timed(us, statistics.median(us), relative)
    return results


def cycles_for(run: Run, seconds: float) -> int:
    """Return the number of cycles with a duration of about `seconds`, by increasing it.

    The first call may compile and is not counted. The second call may compile again, for a state
    whose types have changed, so the faster of two calls counts.
    """
    run(1)
    count = 1
    while True:
        spent = min(run(count), run(count))
        if spent >= seconds / 3 or count >= _MAX_CYCLES:
            return max(1, min(_MAX_CYCLES, round(count * seconds / max(spent, 1e-9))))
        count = min(_MAX_CYCLES, count * max(2, min(10, int(seconds / 2 / max(spent, 1e-9)))))


def take_turns(
    runs: Mapping[str, Run], turns: int, seconds: float, least: int = 1
) -> dict[str, list[float]]:
    """Return microseconds per cycle of every contender, one number per turn.

    The order is reversed in every other turn, so that no contender always follows the same one.

    Args:
      runs: contenders by name.
      turns: number of turns of each contender.
      seconds: approximate duration of a turn.
      least: fewest cycles of a turn.
    """
    counts = {name: max(least, cycles_for(run, seconds)) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns):
        for name in list(runs)[:: -1 if turn % 2 else 1]:
            times[name].append(runs[name](counts[name]) / counts[name] * 1e6)
    return times


def timed(cycles: Callable[[int], None]) -> Run:
    """Return a function that runs `cycles(count)` and returns its seconds."""

    def run(count: int) -> float:
        begin = time.perf_counter()
        cycles(count)
        return time.perf_counter() - begin

    return run


def ratio(times: Sequence[float], reference: Sequence[float]) -> float:
    """Return the median over turns of `times` relative to `reference` in the same turn."""
    return statistics.median(x / y for x, y in zip(times, reference, strict=True))


def machine() -> dict[str, str | int]:
    """Return the processor, the device and the versions that the times depend on."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux
    return {
        **versions(),
        "platform": jax.default_backend(),
        "devices": jax.device_count(),
        "processor": _processor(),
        "cores": len(allowed(0)) if allowed else os.cpu_count() or 1,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
