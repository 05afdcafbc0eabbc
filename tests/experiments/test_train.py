"""The train command: files, signals and resuming, failing environments, and refusals.

`test_kills.py` kills its processes.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pandas as pd
import pytest

from experiments import environments, sweep, train
from experiments.runs import interrupt
from experiments.studies import checkpoints, store
from experiments.training import drivers
from experiments.training.drivers import CompiledDriver
from tests.experiments import tiny
from tests.refusals import assert_names, refusal

TINY = [
    *tiny.TINY, "--env", "walk/4", "--replay", "per", "--steps", "300", "--checkpoint-every", "0",
]  # fmt: skip
QUIET = ["--figures", "false", "--tensorboard", "false"]
STEPS = [150, 200, 250, 300]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Return the folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert train.main([*TINY, "--out", str(out)]) == 0
    return out


def test_runs_write_tables_figures_events_and_one_checkpoint(finished):
    config = json.loads((finished / "study.json").read_text())["points"]["walk/4 per"]["config"]
    assert config["replay"] == "per" and config["replay_options"]["alpha"] == 0.6
    assert config["agent_options"]["hidden"] == [8]
    metrics = pd.read_csv(finished / "metrics.csv")
    assert list(metrics.columns[:2]) == ["seed", "step"]
    assert metrics["step"].tolist() == [step for step in STEPS for _ in range(2)]
    assert metrics["seed"].tolist() == [0, 1] * len(STEPS)
    assert metrics["agent/loss"].notna().all()
    results = store.read(finished)
    table = results.table.sort_values(["step", "seed"])
    pd.testing.assert_frame_equal(
        table[metrics.columns].reset_index(drop=True), metrics, check_dtype=False, rtol=1e-6
    )
    (cost,) = results.facts["costs"]
    assert 0 < cost["compiling"] < cost["seconds"] and not results.facts["failed"]
    for name in ("learning_curve.png", "replayed.png", "own_metrics.png"):
        assert (finished / name).read_bytes().startswith(b"\x89PNG")
    assert checkpoints.of_seed(finished, 1)[1:] == ([0, 1], 300)
    names = {path.name for path in finished.iterdir() if path.suffix != ".png"}
    assert names == {"study.json", "study.csv.gz", "metrics.csv", "checkpoints",
                     "tensorboard"}  # fmt: skip
    assert len(list((finished / "checkpoints").iterdir())) == 1
    assert list((finished / "tensorboard").iterdir())


# Signals and resuming


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def pressing(monkeypatch, number=None):
    """Send a signal, if any, in the second chunk of a run; return a list of the chunks."""
    before, calls = CompiledDriver.chunk, []

    def chunk(driver, state, blocks):
        calls.append(blocks)
        if number is not None and len(calls) == 2:
            os.kill(os.getpid(), number)
            wait_until(driver.stop)
        return before(driver, state, blocks)

    monkeypatch.setattr(CompiledDriver, "chunk", chunk)
    return calls


def same_results(out, whole):
    assert (out / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert (out / "study.csv.gz").read_bytes() == (whole / "study.csv.gz").read_bytes()


CODES = {signal.SIGINT: 130, signal.SIGUSR1: 143}  # SIGTERM stops the run of `stopped`


@pytest.mark.parametrize("number", CODES)
def test_signals_save_a_checkpoint_and_set_the_exit_code(
    tmp_path, number, monkeypatch, capsys, ctrl_c
):
    out = tmp_path / "run"
    pressing(monkeypatch, number)
    assert train.main([*TINY, *QUIET, "--out", str(out)]) == CODES[number]
    said = capsys.readouterr().err.splitlines()[-1]
    assert_names(said, "200", "300", f"--resume {out}")
    assert not (out / ".jaxreplay.lock").exists()
    assert pd.read_csv(out / "metrics.csv")["step"].max() == 200
    assert checkpoints.of_seed(out, 0)[2] == 200


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, finished) -> Path:
    """Return the folder of a run that was stopped at the second log point."""
    out = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        pressing(patch, signal.SIGTERM)
        assert train.main([*TINY, *QUIET, "--out", str(out)]) == 143
    return out


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_runs_resume_to_the_same_bytes(stopped, finished, tmp_path, monkeypatch):
    """Also if the log ends within a line."""
    out = Path(shutil.copytree(stopped, tmp_path / "left"))
    (path,) = (out / "checkpoints").iterdir()
    with (out / "metrics.csv").open("ab") as file:
        file.write(b"0,250,1.0\n1,25")
    chunks = pressing(monkeypatch)
    assert train.main(["--resume", str(out)]) == 0
    assert len(chunks) == 2
    same_results(out, finished)
    assert [path.name for path in (out / "checkpoints").iterdir()] == [path.name]
    assert not list(out.glob("*.png")), "figures were not asked for"


def test_damaged_checkpoints_stop_a_run_and_stay(stopped, finished, tmp_path, capsys):
    out = Path(shutil.copytree(stopped, tmp_path / "left"))
    (path,) = (out / "checkpoints").iterdir()
    flipped(path)
    left = {file: (out / file).read_bytes() for file in (path, "metrics.csv")}
    assert train.main(["--resume", str(out)]) == 1
    assert_names(capsys.readouterr().err.splitlines()[-1], path, "restore", "remove")
    assert {file: (out / file).read_bytes() for file in left} == left
    path.unlink()
    assert train.main(["--resume", str(out)]) == 0
    same_results(out, finished)


def test_log_points_lost_to_a_full_disk_are_written_again(finished, tmp_path):
    out = Path(shutil.copytree(finished, tmp_path / "ended"))
    lines = (out / "metrics.csv").read_bytes().splitlines(keepends=True)
    (out / "metrics.csv").write_bytes(b"".join(lines[:3] + lines[5:]))
    assert train.main(["--resume", str(out)]) == 0
    same_results(out, finished)


def test_a_second_ctrl_c_ends_the_command_and_keeps_the_previous_checkpoint(
    finished, tmp_path, monkeypatch, capsys, ctrl_c
):
    before, calls, ended = CompiledDriver.chunk, [], threading.Event()

    def chunk(driver, state, blocks):
        calls.append(blocks)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(driver.stop)
            time.sleep(interrupt._REPEATED + 0.1)
            os.kill(os.getpid(), signal.SIGINT)
            assert ended.wait(30)
            raise OSError  # this thread would have ended with its process
        return before(driver, state, blocks)

    out = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        patched.setattr(CompiledDriver, "chunk", chunk)
        assert train.main([*TINY, *QUIET, "--out", str(out)]) == 130
        ended.set()
    assert_names(capsys.readouterr().err.splitlines()[-1], f"--resume {out}")
    assert not (out / ".jaxreplay.lock").exists()
    assert checkpoints.of_seed(out, 0)[2] <= 200
    assert train.main(["--resume", str(out)]) == 0
    same_results(out, finished)


def test_finished_runs_are_neither_traced_nor_changed(finished, tmp_path, monkeypatch, capsys):
    out = Path(shutil.copytree(finished, tmp_path / "ended"))
    shutil.rmtree(out / "checkpoints")

    def never(*args):
        raise AssertionError("traced")

    monkeypatch.setattr(drivers, "over_seeds", never)
    assert train.main(["--resume", str(out)]) == 0
    same_results(out, finished)
    refusal(capsys, train.main, *TINY, "--out", out)  # nor are they traced before a refusal


def test_runs_of_other_code_resume_only_on_request(stopped, tmp_path, monkeypatch, capsys):
    out, own = Path(shutil.copytree(stopped, tmp_path / "run")), store.code_version()
    monkeypatch.setattr(store.code, "version", lambda *patterns: "another")
    assert_names(refusal(capsys, train.main, "--resume", out), out, own, "--other-code true")
    assert train.main(["--resume", str(out), "--other-code", "true"]) == 0
    assert len(store.read(out).facts["points"]["walk/4 per"]["code"]) == 2


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--out", "{run}"], ("--overwrite", "--resume {run}", "--out")),
        (["--resume", "{run}", "--replay.alpha", "0.4"], ("{run}", "replay.alpha", "--out")),
        (["--resume", "{run}", "--agent", "rainbow"], ("--agent", "dqn", "--out")),
        (["--resume", "{run}", "--overwrite"], ("--resume", "--overwrite")),
        (["--resume", "{run}/checkpoints"], ("{run}/checkpoints",)),
    ],
)
def test_runs_are_not_overwritten_or_resumed_with_other_options(finished, options, parts, capsys):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    error = refusal(capsys, train.main, *(option.format(run=finished) for option in options))
    assert_names(error, *(part.format(run=finished) for part in parts))
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_overwrite_replaces_a_run(finished, tmp_path):
    out = Path(shutil.copytree(finished, tmp_path / "twice"))
    assert train.main([*TINY, *QUIET, "--seed", "5", "--overwrite", "--out", str(out)]) == 0
    assert set(pd.read_csv(out / "metrics.csv")["seed"]) == {5, 6}
    assert checkpoints.of_seed(out, 5)[1] == [5, 6]
    assert len(list((out / "checkpoints").iterdir())) == 1  # old checkpoints are removed
    assert not (out / "tensorboard").exists() and not list(out.glob("*.png"))


# Environments that fail and agents that diverge


def test_seeds_whose_environment_fails_end_and_others_go_on(tmp_path, monkeypatch, capsys):
    healthy, out = environments.make, tmp_path / "broken"

    def make(name, config):
        sound = healthy(name, config)

        def step(key, state, action):
            state, obs, out = sound.step(key, state, action)
            bad = jax.random.key_data(key)[0] % 512 == 0
            return state, obs, out._replace(reward=jnp.where(bad, jnp.nan, out.reward))

        return sound._replace(step=step)

    options = [*TINY, *QUIET, "--seeds", "8", "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(environments, "make", make)
        assert train.main(options) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    results = store.read(out)
    failed = {int(name.split()[-1]) for name in results.facts["failed"]}
    assert 0 < len(failed) < 8
    assert_names(said, f"seed {min(failed)}", "walk/4", f"--resume {out}")
    assert {seed for _, seed in results.ended()} == set(range(8)) - failed
    assert train.main(["--resume", str(out)]) == 0
    assert len(store.read(out).ended()) == 8 and not store.read(out).facts["failed"]


def test_diverging_runs_warn_and_may_be_stopped(tmp_path, capsys):
    options = (
        "--agent racer --replay refer --env gymnax/Pendulum-v1 --env.max-steps 8 --steps 400 "
        "--agent.learning-rate 10 --agent.hidden 8 --replay.reject false --replay.penalise false "
        "--replay.forget oldest --warmup 40 --eval-every 90 --eval-episodes 1 --seeds 2 "
        "--inspect 0 --capacity 64 --batch-size 8"
    )
    out = tmp_path / "diverging"
    ends = [*QUIET, "--stop-on-divergence", "true", "--out", str(out)]
    assert train.main([*options.split(), *ends]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert_names(said, "refer", "seed 1", "--stop-on-divergence")
    assert not store.read(out).ended() and checkpoints.of_seed(out, 1)
    assert train.main(["--resume", str(out)]) == 0
    assert_names(capsys.readouterr().err, "refer", "0, 1")
    table = store.read(out).table
    assert table.groupby("seed")["diverged"].max().tolist() == [1, 1]


# Refusals


REFUSALS = [
    (["--replay", "perr"], ("perr", "per")),
    (["--env", "gymnax/CartPol-v1"], ("gymnax/CartPole-v1",)),
    (["--agent", "rainbow", "--replay.loss", "l1"], ("rainbow", "TD errors")),
    (["--steps", "500"], ("steps", "500", "1000")),
    (["--steps", "1500", "--learn-every", "501"], ("learn_every", "501", "1,501", "1,500")),
    (["--frame-stack", "2"], ("--frame-stack 2", "gymnax/CartPole-v1", "(4,)")),
    (["--num-envs", "3", "--capacity", "100"], ("capacity", "100", "num_envs", "3", "99")),
    (["--env", "gymnasium/CartPole-v2"], ("gymnasium/CartPole-v1",)),
    (["--env", "atari/Pong", "--scale-observations", "true"], ("--frame-stack 0",)),
    (["--env", "atari/Pong", "--env.vectorisation", "async"], ("gymnasium/",)),
    # options without effect
    (["--observe-every", "100"], ("--observe-every", "ners")),
    (["--replay", "ners", "--replay.reward", "training", "--observe-every", "100"],
     ("--observe-every",)),
    (["--json"], ("--list",)),
    (["--rescale-every", "10"], ("--rescale-every", "--scale-observations")),
    (["--frame-spare", "0.1"], ("--frame-spare", "--frame-stack")),
    (["--agent", "td3", "--env", "gymnax/Pendulum-v1", "--eval-epsilon", "0.1"],
     ("--eval-epsilon",)),
]  # fmt: skip


@pytest.mark.parametrize(("options", "parts"), REFUSALS, ids=lambda x: " ".join(x)[:40])
def test_bad_input_is_refused_in_one_line(options, parts, tmp_path, capsys):
    out = tmp_path / "never"
    assert_names(refusal(capsys, train.main, *options, "--out", out), *parts)
    assert not out.exists()


MINUTES = 6.0  # set JAXREPLAY_MINUTES for longer
SETTLED = 0.3  # share of the time after which memory is fully allocated
LOOP = shlex.split(
    "--agent dqn --replay per --seeds 2 --steps 1000000000 --capacity 20000 --eval-every 2000 "
    "--eval-episodes 2 --agent.hidden 64 64"
)


def usage(pid):
    """Return resident bytes and open files of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmRSS"))
    return 1024 * kilobytes, len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "gymnasium/CartPole-v1"])
def test_memory_and_open_files_do_not_grow(env, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.train", *LOOP, "--env", env, "--out", str(out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    seconds, seen = 60 * float(os.environ.get("JAXREPLAY_MINUTES", MINUTES)), []
    start = time.monotonic()
    try:
        while time.monotonic() - start < seconds:
            time.sleep(min(2.0, seconds / 50))
            assert process.poll() is None
            seen.append(usage(process.pid))
    finally:
        process.terminate()
        process.wait()
    settled = seen[int(SETTLED * len(seen)) :]
    third = len(settled) // 3
    for now, before in zip(map(max, zip(*settled[-third:])), map(max, zip(*settled[:third]))):
        assert now <= 1.1 * before
    assert (out / "metrics.csv").read_bytes().count(b"\n") > 10


def test_other_commands_do_not_continue_a_run(finished, capsys):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    error = refusal(capsys, sweep.main, "--resume", finished)
    assert_names(error, "experiments.train --resume", finished)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before
