"""Runs that are killed at random moments and resumed, compared byte for byte with whole ones."""

import itertools
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_SMALL = shlex.split(
    "--agent dqn --env gymnax/CartPole-v1 --seeds 2 --steps 900 --warmup 100 --eval-every 50 "
    "--eval-episodes 2 --env.max-steps 50 --agent.hidden 16 --checkpoint-every 1 --inspect 0"
)
COMMANDS = {
    "train": ["experiments.train", *_SMALL, "--replay", "per"],
    "compare": [
        "experiments.compare",
        *_SMALL,
        "--replays",
        "uniform",
        "lap",
        "--steps",
        "500",
        "--report",
        "false",
    ],
}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)  # mostly the worst
# Beside them, tables and figures have to be there, which hold times.
COMPARED = ("metrics.csv", "config.json", "step_*.safetensors")


class Round(NamedTuple):
    """One run that was killed, resumed, and so on until it ended."""

    command: str
    kills: tuple[str, ...]  # "SIGKILL after 7.1 s", ...
    differing: tuple[str, ...]  # files that are not those of a run that nobody killed
    message: str  # of a resumption that failed; "" if none did


def run(
    rounds: int, folder: Path, seed: int = 0, report: Callable[[int, Round], None] = lambda *_: None
) -> list[Round]:
    """Kill and resume runs.

    Args:
      rounds: how many runs.
      folder: an empty one, for the runs.
      seed: of the moments.
      report: told of every round.

    Raises:
      RuntimeError: the whole runs, which all others are compared with, can't be made.
    """
    rng, whole, length = random.Random(seed), {}, {}
    for name, command in (*COMMANDS.items(), *COMMANDS.items()):  # the second time is timed
        whole[name] = folder / f"whole_{name}_{len(length)}"
        start = time.monotonic()
        ended = _start([*command, "--out", str(whole[name])], folder / "cache").wait()
        length[name] = time.monotonic() - start
        if ended != 0:
            raise RuntimeError(f"{' '.join(command)} ended with exit code {ended}")
    done = []
    tries = itertools.count()
    while len(done) < rounds:
        name = rng.choice(list(COMMANDS))
        one = _round(name, folder / f"{name}_{next(tries)}", whole[name], length[name], rng)
        if one.kills:  # else it had ended before
            done.append(one)
            report(len(done) - 1, one)
    return done


def _round(name: str, out: Path, whole: Path, length: float, rng: random.Random) -> Round:
    kills, cache = list[str](), whole.parent / "cache"
    command = [*COMMANDS[name], "--out", str(out)]
    for _ in range(rng.randint(1, 3)):
        process = _start(command, cache)
        seconds = rng.uniform(0.1, 0.9) * length
        number = rng.choice(SIGNALS)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
            kills.append(f"{number.name} after {seconds:.2f} s")
            if number != signal.SIGKILL and process.wait() == 0:
                break  # it was at its end
            process.wait()
        else:
            break
        if _began(name, out):
            command = [COMMANDS[name][0], "--resume", str(out)]
    process = _start(command, cache, output=True)
    said = process.communicate()[0]
    if process.returncode != 0 and "already holds" not in said:
        return Round(name, tuple(kills), (), said.strip().splitlines()[-1])
    return Round(name, tuple(kills), tuple(_differing(out, whole)), "")


def _began(name: str, out: Path) -> bool:
    """Tell whether there is anything to resume."""
    if name == "train":
        return (out / "config.json").exists()
    return (out / "manifest.json").exists()


def _differing(out: Path, whole: Path) -> list[str]:
    """Return the files of results that are not the same in both folders."""
    found = [
        str(path.relative_to(whole))
        for pattern in ("summary.json", "*.png", "*.md")
        for path in whole.rglob(pattern)
        if not (out / path.relative_to(whole)).is_file()
    ]
    for pattern in COMPARED:
        paths = {
            path.relative_to(folder) for folder in (out, whole) for path in folder.rglob(pattern)
        }
        last = sorted(path for path in paths if not path.name.startswith("step_"))
        steps = sorted(path for path in paths if path.name.startswith("step_"))
        for path in [*last, *steps]:
            one, other = out / path, whole / path
            if not (one.exists() and other.exists() and one.read_bytes() == other.read_bytes()):
                found.append(str(path))
    return found


def _start(command: list[str], cache: Path, output: bool = False) -> subprocess.Popen:
    # What has been compiled is not compiled again, so that more of the time is spent at work.
    fast = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        env=os.environ | fast,
        stdout=subprocess.PIPE if output else subprocess.DEVNULL,
        stderr=subprocess.STDOUT if output else subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
