"""Long runs, watched from outside: what of them grows that should not."""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_LOOP = shlex.split(
    "--agent dqn --replay per --seeds 2 --steps 1000000000 --capacity 100000 --eval-every 20000 "
    "--eval-episodes 2 --agent.hidden 64 64 --checkpoint-every 5"
)
LOOPS = {
    "compiled": [*_LOOP, "--env", "gymnax/CartPole-v1"],
    "host": [*_LOOP, "--env", "gymnasium/CartPole-v1", "--eval-every", "2000"],
}
SETTLED = 0.2  # share of the time after which a run has everything that it needs


class Sample(NamedTuple):
    """A process at one moment."""

    minutes: float
    rss: int  # bytes
    handles: int  # open files
    tensorboard: int  # bytes
    rows: int  # of metrics.csv


class Result(NamedTuple):
    """How a run changed between the moment it had settled and its end."""

    minutes: float
    log_points: int
    rss_then: int
    rss_at_last: int
    handles_then: int
    handles_at_last: int
    tensorboard_bytes_per_log_point: float


def run(
    minutes: float, folder: Path, report: Callable[[str, Sample], None] = lambda *_: None
) -> dict[str, Result]:
    """Train on both loops at once, and look at the processes every ten seconds.

    Args:
      minutes: how long.
      folder: an empty one, for the runs.
      report: told of every look.

    Raises:
      RuntimeError: a run ended by itself.
    """
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "experiments.train", *options, "--out", str(folder / name)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for name, options in LOOPS.items()
    }  # fmt: skip
    seen: dict[str, list[Sample]] = {name: [] for name in LOOPS}
    start = time.monotonic()
    try:
        while time.monotonic() - start < 60 * minutes:
            time.sleep(10)
            for name, process in processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"the {name} loop ended with exit code {process.returncode}")
                sample = _look(process.pid, folder / name, (time.monotonic() - start) / 60)
                seen[name].append(sample)
                report(name, sample)
    finally:
        for process in processes.values():
            process.terminate()
            process.wait()
    return {name: _summary(samples) for name, samples in seen.items()}


def _look(pid: int, out: Path, minutes: float) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()
    rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    events = sum(path.stat().st_size for path in (out / "tensorboard").glob("*"))
    metrics = out / "metrics.csv"
    rows = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    handles = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Sample(round(minutes, 2), rss * 1024, handles, events, rows)


def _summary(samples: list[Sample]) -> Result:
    last = samples[-1]
    then = next(x for x in samples if x.minutes >= SETTLED * last.minutes)
    points = (last.rows - then.rows) / 2  # of two seeds
    events = (last.tensorboard - then.tensorboard) / max(points, 1)
    return Result(
        minutes=last.minutes,
        log_points=last.rows // 2,
        rss_then=then.rss,
        rss_at_last=last.rss,
        handles_then=then.handles,
        handles_at_last=last.handles,
        tensorboard_bytes_per_log_point=round(events, 1),
    )
