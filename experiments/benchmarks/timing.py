"""Timing: contenders take turns in one process, so that other load affects all of them equally.

A contender is a function from a number of cycles to seconds. It is called until its programs are
compiled and the length of its turns is known, then once per turn; reported times are medians over
the turns, and ratios are taken within turns.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

Run = Callable[[int], float]  # number of cycles -> seconds

_MAX_CYCLES = 1_000_000  # per turn


def compare(runs: Mapping[str, Run], turns: int, seconds: float, least: int = 1) -> dict[str, Any]:
    """Time contenders in turns; the arguments are those of `take_turns`.

    Returns:
      For each contender its `us` per cycle, one number per turn, their median `median_us`, and
      `ratio`, the median over turns of its time relative to the first contender's.
    """
    times = take_turns(runs, turns, seconds, least)
    reference = next(iter(times.values()))
    return {
        name: {
            "us": us,
            "median_us": statistics.median(us),
            "ratio": statistics.median(x / y for x, y in zip(us, reference, strict=True)),
        }
        for name, us in times.items()
    }


def take_turns(
    runs: Mapping[str, Run], turns: int, seconds: float, least: int = 1
) -> dict[str, list[float]]:
    """Return microseconds per cycle of every contender, one number per turn.

    The order is reversed in every other turn, so that no contender always follows the same one.

    Args:
      runs: contenders by name.
      turns: number of turns of each contender.
      seconds: approximate duration of a turn.
      least: smallest number of cycles in a turn.
    """
    counts = {name: max(least, cycles_for(run, seconds)) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns):
        for name in list(runs)[:: -1 if turn % 2 else 1]:
            times[name].append(runs[name](counts[name]) / counts[name] * 1e6)
    return times


def cycles_for(run: Run, seconds: float) -> int:
    """Increase the number of cycles until they take about `seconds`; return the number.

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


def seconds_of(function: Callable[..., Any], *inputs: Any) -> tuple[float, Any]:
    """Return the seconds until all outputs of a call are computed, and the outputs."""
    begin = time.perf_counter()
    outputs = jax.block_until_ready(function(*inputs))
    return time.perf_counter() - begin, outputs


def machine() -> dict[str, str | int]:
    """Return the processor, the device and the versions that the times depend on."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux
    return {
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "jax": jax.__version__,
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
