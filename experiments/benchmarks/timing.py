"""How benchmarks measure: contenders take turns within one process.

Other load on the machine then affects all of them alike, so their ratios can be trusted.
"""

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import jax

from experiments.runs.results import versions

Run = Callable[[int], float]  # number of cycles -> seconds

_MOST = 1_000_000  # cycles in a turn


def cycles_for(run: Run, seconds: float) -> int:
    """Return how many cycles take about `seconds`, found by trying more and more of them.

    The first call, which may compile, does not count, nor the slower of two: the second may
    compile again, for a state that has come back with other types.
    """
    run(1)
    count = 1
    while True:
        spent = min(run(count), run(count))
        if spent >= seconds / 3 or count >= _MOST:
            return max(1, min(_MOST, round(count * seconds / max(spent, 1e-9))))
        count = min(_MOST, count * max(2, min(10, int(seconds / 2 / max(spent, 1e-9)))))


def take_turns(
    runs: Mapping[str, Run],
    turns: int,
    seconds: float,
    fixed: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, list[float]]:
    """Return microseconds per cycle of every contender, `turns` numbers each.

    Every other turn goes backwards, so that no contender always follows the same one.

    Args:
      runs: contenders by name.
      turns: number of turns of each contender.
      seconds: approximate length of each turn.
      fixed: cycles in a turn of contenders that take no other number.
    """
    counts = {
        name: fixed[name] if name in fixed else cycles_for(run, seconds)
        for name, run in runs.items()
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns):
        for name in list(runs)[:: -1 if turn % 2 else 1]:
            times[name].append(runs[name](counts[name]) / counts[name] * 1e6)
    return times


def ratio(times: Sequence[float], reference: Sequence[float]) -> float:
    """Return the median over turns of `times`, relative to `reference` in the same turn."""
    return statistics.median(x / y for x, y in zip(times, reference, strict=True))


def machine() -> dict[str, str | int]:
    """Return what the numbers depend on: processor, device and versions."""
    return {
        **versions(),
        "platform": jax.default_backend(),
        "devices": jax.device_count(),
        "processor": _processor(),
        "cores": cores(),
    }


def cores() -> int:
    """Return how many cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
