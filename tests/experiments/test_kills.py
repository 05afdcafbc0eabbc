"""Commands that are killed at random moments and resumed, compared with uninterrupted ones.

Set JAXREPLAY_KILLS for more rounds of each command.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from experiments import compare, sweep, train
from experiments.studies import store
from tests.experiments.tiny import TINY

SMALL = [
    *TINY, "--steps", "8000", "--eval-every", "300", "--figures", "false",
    "--checkpoint-every", "0",
]  # fmt: skip
STUDY = [*SMALL, "--replays", "uniform", "per", "--control", "false", "--report", "false"]
SWEEP = [*SMALL, "--replays", "per", "--control", "false", "--report", "false"]
COMMANDS = {
    "train": (train, [*SMALL, "--replay", "per", "--env", "walk/4"]),
    "host": (train, [*SMALL, "--env", "gymnasium/CartPole-v1", "--steps", "3000"]),
    "compare": (compare, [*STUDY, "--env", "walk/4"]),
    "sweep": (sweep, [*SWEEP, "--envs", "walk/4", "--grid", "replay.alpha=0.4,0.6"]),
}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ROUNDS = int(os.environ.get("JAXREPLAY_KILLS", "2"))
CHANGES = 3  # most checkpoints that are written before a kill
LONG = 120.0  # seconds


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function that returns the folder of an uninterrupted command."""
    root, made = tmp_path_factory.mktemp("whole"), {}

    def run(name):
        if name == "host":
            pytest.importorskip("gymnasium")
        if name not in made:
            made[name], (command, words) = root / name, COMMANDS[name]
            assert command.main([*words, "--out", str(made[name])]) == 0
        return made[name]

    return run


def start(name, *words):
    """Start a command in its own session."""
    command, _ = COMMANDS[name]
    return subprocess.Popen(
        [sys.executable, "-m", command.__name__, *words], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def seen(out: Path) -> list[tuple[str, int]]:
    """Return the names and times of the checkpoints in a folder."""
    found = []
    for path in (out / "checkpoints").glob("*.safetensors"):
        try:
            found.append((path.name, path.stat().st_mtime_ns))
        except FileNotFoundError:  # its batch has ended
            continue
    return sorted(found)


def killed(process, out, number, changes, delay) -> bool:
    """Send a signal after `changes` changes of the checkpoints; return whether it came in time."""
    before, deadline = seen(out), time.monotonic() + LONG
    while process.poll() is None and changes:
        assert time.monotonic() < deadline
        if (now := seen(out)) != before:
            before, changes = now, changes - 1
        time.sleep(0.002)
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, number)
        process.communicate()
        return True
    return False


def resume(name, out):
    """Return the words that start a command, or continue it once its folder has begun."""
    begun = (out / "study.json").exists()
    return ["--resume", str(out)] if begun else [*COMMANDS[name][1], "--out", str(out)]


def killed_and_resumed(name, out, kills) -> int:
    """Kill a command, then finish it here; return the number of kills that came in time."""
    count = 0
    for kill in kills:
        process = start(name, *resume(name, out))
        if not killed(process, out, *kill):
            text = process.communicate()[0]
            assert process.returncode == 0, text
            break
        count += 1
    assert COMMANDS[name][0].main(resume(name, out)) == 0, kills
    return count


def assert_same(name, out, whole, kills):
    names = {path.relative_to(whole) for path in whole.rglob("*") if path.is_file()}
    events = {path for path in names if path.parent.name == "tensorboard"}
    left = {path.relative_to(out) for path in out.rglob("*") if path.is_file()}
    assert names - events == {path for path in left if path.parent.name != "tensorboard"}, kills
    if name == "host":  # its environments begin new episodes when they resume
        tables = [pd.read_csv(folder / "metrics.csv") for folder in (whole, out)]
        assert tables[0][["seed", "step"]].equals(tables[1][["seed", "step"]])
        assert tables[1]["agent/loss"].notna().all()
        return
    for table in {"metrics.csv", "study.csv.gz"} & {path.name for path in names}:
        assert (out / table).read_bytes() == (whole / table).read_bytes(), (table, kills)
    for path in (path for path in names if path.suffix == ".safetensors"):
        before, after = load_file(whole / path), load_file(out / path)
        assert before.keys() == after.keys()
        for leaf, values in before.items():  # the header has times
            np.testing.assert_array_equal(after[leaf], values, err_msg=leaf)
    runs = [sorted(store.read(folder).ended()) for folder in (whole, out)]
    assert runs[0] == runs[1]


KILL = (signal.SIGKILL, 1, 0.0)


@pytest.mark.parametrize("name", ["train", "sweep"])
def test_killed_commands_resume_to_the_same_bytes(name, whole, tmp_path):
    out = tmp_path / "killed"
    assert killed_and_resumed(name, out, [KILL]) == 1, "it ended before the kill"
    assert_same(name, out, whole(name), [KILL])


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_resume_from_random_kills(name, whole, tmp_path, ctrl_c):
    rng, count = random.Random(f"{name} 3"), 0
    for number in range(ROUNDS):
        kills = [
            (rng.choice(SIGNALS), rng.randint(0, CHANGES), rng.uniform(0, 0.3))
            for _ in range(rng.randint(1, 3))
        ]
        kills = [
            (how, changes, delay if changes else rng.uniform(0, 8)) for how, changes, delay in kills
        ]  # without a checkpoint: while it imports, traces and compiles
        out = tmp_path / str(number)
        count += killed_and_resumed(name, out, kills)
        assert_same(name, out, whole(name), kills)
    assert count, "every command ended before its kills"
