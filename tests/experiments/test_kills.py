"""Runs killed at random moments and resumed, compared with uninterrupted runs."""

import os
import random
import shlex
import signal
import subprocess
import sys
import time

import pytest

SMALL = shlex.split(
    "--agent dqn --env gymnax/CartPole-v1 --seeds 2 --warmup 100 --eval-every 50 "
    "--eval-episodes 2 --env.max-steps 50 --agent.hidden 16 --inspect 0"
)
COMMANDS = {
    "train": [
        "experiments.train", *SMALL, "--replay", "per", "--steps", "900", "--checkpoint-every", "1"
    ],
    "compare": [
        "experiments.compare", *SMALL, "--replays", "uniform", "lap", "--steps", "500",
        "--report", "false", "--leave-state", "0",
    ],
}  # fmt: skip
BEGUN = {"train": "config.json", "compare": "study.json"}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
COMPARED = ("metrics.csv", "config.json", "step_*.safetensors", "study.csv.gz")
PRESENT = ("summary.json", "*.png", "*.md")  # contain times
ROUNDS = 3  # for each command; set JAXREPLAY_KILLS for more


def start(command, folder, **pipes):
    """Start a command in its own session, with a compilation cache shared by all commands."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    pipes = pipes or {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(
        [sys.executable, "-m", *command], env=os.environ | cache, text=True,
        start_new_session=True, **pipes,
    )  # fmt: skip


@pytest.fixture(scope="module", params=COMMANDS)
def whole(request, tmp_path_factory):
    """Return name, folder of results, and duration of a command with a warm compilation cache."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    for place in ("compiling", "whole"):
        began = time.monotonic()
        command = [*COMMANDS[name], "--out", str(folder / place)]
        assert start(command, folder).wait() == 0
    return name, folder, time.monotonic() - began


def differing(out, whole):
    """Return the files of results that differ between two folders."""
    names = {path.relative_to(whole) for pattern in PRESENT for path in whole.rglob(pattern)}
    found = [str(name) for name in names if not (out / name).is_file()]
    for pattern in COMPARED:
        for name in {p.relative_to(f) for f in (out, whole) for p in f.rglob(pattern)}:
            one, other = out / name, whole / name
            if not (one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()):
                found.append(str(name))
    return sorted(found)


def killed_and_resumed(name, out, seconds, rng):
    """Kill a command one to three times, then finish it; return signals and any error message."""
    kills, command = [], [*COMMANDS[name], "--out", str(out)]
    for _ in range(rng.randint(1, 3)):
        process, number = start(command, out.parent), rng.choice(SIGNALS)
        try:
            process.wait(rng.uniform(0.1, 0.9) * seconds)
            break  # finished before the kill
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
            process.wait()
            kills.append(number.name)
        if (out / BEGUN[name]).exists():
            command = [COMMANDS[name][0], "--resume", str(out)]
    process = start(command, out.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = process.communicate()[0]
    return kills, "" if process.returncode == 0 or "already holds" in text else text


@pytest.mark.slow
def test_killed_and_resumed_runs_equal_uninterrupted_runs(whole):
    name, folder, seconds = whole
    rng, killed = random.Random(3), 0
    rounds = int(os.environ.get("JAXREPLAY_KILLS", ROUNDS))
    for number in range(rounds):
        out = folder / f"killed_{number}"
        kills, message = killed_and_resumed(name, out, seconds, rng)
        assert not message, (kills, message)
        assert differing(out, folder / "whole") == [], kills
        killed += len(kills)
    assert killed >= rounds / 2
