"""The train command: files, resuming after kill -9, and refusals."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments import environments, train
from experiments.runs import run as run_module
from experiments.training import seeds
from tests.refusals import assert_names, refusal

# Small enough to train in a second: 16 hidden units, 2 seeds, 8 log points.
TINY = [
    "--agent", "dqn", "--replay", "per", "--env", "gymnax/CartPole-v1", "--seeds", "2",
    "--steps", "900", "--warmup", "100", "--eval-every", "100", "--eval-episodes", "2",
    "--env.max-steps", "50", "--agent.hidden", "16", "--checkpoint-every", "2",
    "--figures", "false",
]  # fmt: skip
QUICK = [*TINY, "--inspect", "0"]  # a smaller program


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Return the folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert train.main([*TINY, "--figures", "true", "--out", str(out)]) == 0
    return out


def test_runs_write_config_metrics_summary_figure_and_checkpoints(finished):
    config = json.loads((finished / "config.json").read_text())
    assert config["replay"] == "per"
    assert config["replay_options"]["alpha"] == 0.6
    assert config["agent_options"]["hidden"] == [16]
    metrics = pd.read_csv(finished / "metrics.csv")
    assert list(metrics.columns[:2]) == ["seed", "step"]
    assert sorted(set(metrics["step"])) == list(range(200, 1000, 100))
    assert all(sorted(group["seed"]) == [0, 1] for _, group in metrics.groupby("step"))
    assert metrics["eval_return"].between(1, 50).all()
    assert metrics["agent/loss"].notna().all()
    timing = pd.read_csv(finished / "timing.csv")
    first, *others = timing.to_dict("records")
    assert 0 < first["compiling"] < first["start_up"] + first["seconds"]
    assert all(row["start_up"] == 0 for row in others)  # it was not resumed
    summary = json.loads((finished / "summary.json").read_text())
    last = metrics[metrics["step"] == 900]["eval_return"].to_numpy()
    np.testing.assert_allclose(summary["final_return"], last)
    for name in ("learning_curve.png", "replayed.png", "own_metrics.png"):
        assert (finished / name).read_bytes().startswith(b"\x89PNG")
    assert len(list((finished / "checkpoints").glob("*.safetensors"))) == 2
    assert list((finished / "tensorboard").iterdir())


def interrupted(out, number, *options):
    """Send a signal to a run with a checkpoint; return exit code and last line of the errors."""
    command = [sys.executable, "-m", "experiments.train", *options, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(out.glob("checkpoints/*.safetensors")):
        time.sleep(0.002)
    process.send_signal(number)
    said = process.communicate()[1].splitlines()
    assert not (out / "summary.json").exists(), "the run ended before the signal"
    return process.returncode, said[-1] if said else ""


def test_killed_runs_resume_to_the_same_bits(finished, tmp_path):
    out = tmp_path / "killed"
    interrupted(out, signal.SIGKILL, *TINY)
    assert train.main(["--resume", str(out)]) == 0
    assert (out / "summary.json").exists() and not list(out.glob("*.png")), "no figures asked for"
    (last,) = (path.relative_to(finished) for path in finished.glob("checkpoints/*900*"))
    for name in ("metrics.csv", "config.json", last):
        assert (out / name).read_bytes() == (finished / name).read_bytes(), name


def test_signals_of_schedulers_save_a_checkpoint_and_set_the_exit_code(tmp_path):
    out = tmp_path / "stopped"
    code, said = interrupted(out, signal.SIGUSR1, *QUICK, "--steps", "90000")
    assert code == 143
    assert_names(said, f"--resume {out}")
    assert not (out / ".jaxreplay.lock").exists()


def test_damaged_checkpoints_fall_back_to_the_previous_one(finished, tmp_path, capsys):
    out = Path(shutil.copytree(finished, tmp_path / "damaged"))
    (out / "summary.json").unlink()
    older, newest = sorted((out / "checkpoints").glob("*.safetensors"))
    newest.unlink()  # finished runs do not read arrays
    damaged = newest.with_name("step_000000000850.safetensors")
    content = bytearray(older.read_bytes())
    content[len(content) // 2] ^= 4
    damaged.write_bytes(content)
    assert train.main(["--resume", str(out)]) == 0
    assert_names(capsys.readouterr().err, out / "checkpoints", "step_000000000850.damaged")
    assert (out / "metrics.csv").read_bytes() == (finished / "metrics.csv").read_bytes()
    timing = pd.read_csv(out / "timing.csv")
    assert timing["step"].tolist() == list(range(200, 1000, 100))
    assert list(out.glob("checkpoints/*.damaged"))


@pytest.mark.parametrize("name", ["metrics.csv", "timing.csv"])
def test_changed_tables_are_refused(finished, tmp_path, name, capsys):
    out = Path(shutil.copytree(finished, tmp_path / "cut"))
    lines = (out / name).read_text().splitlines(keepends=True)
    (out / name).write_text("".join(lines[:-2]))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert_names(refusal(capsys, train.main, "--resume", out), out / name, "--out")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_finished_runs_without_checkpoints_are_not_restarted(finished, tmp_path, capsys):
    out = Path(shutil.copytree(finished, tmp_path / "ended"))
    shutil.rmtree(out / "checkpoints")
    assert_names(refusal(capsys, train.main, "--resume", out), out)
    assert (out / "metrics.csv").read_bytes() == (finished / "metrics.csv").read_bytes()


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


def test_second_ctrl_c_while_saving_keeps_the_previous_checkpoint(
    finished, tmp_path, monkeypatch, capsys, ctrl_c
):
    healthy, saves = run_module._rows, []

    def rows(*args):
        os.kill(os.getpid(), signal.SIGINT)  # the first one waits for the log point
        return healthy(*args)

    def save(*args):
        saves.append(args)
        os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        patched.setattr(run_module, "_rows", rows)
        patched.setattr(run_module.checkpoint, "save", save)
        assert train.main([*TINY, "--checkpoint-every", "4", "--out", str(out)]) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert_names(said, f"--resume {out}")
    assert len(saves) == 1
    assert train.main(["--resume", str(out)]) == 0  # restarts without a checkpoint
    assert_names(capsys.readouterr().err, out, "metrics.csv")  # rewritten
    assert (out / "metrics.csv").read_bytes() == (finished / "metrics.csv").read_bytes()


def test_failing_environments_end_the_run_and_keep_its_checkpoint(tmp_path, monkeypatch, capsys):
    healthy = environments.make

    def make(name, config):
        sound = healthy(name, config)

        def step(key, state, action):
            state, obs, out = sound.step(key, state, action)
            count = state.steps - (action == 0)  # fails in training, not at the early end
            return state, obs, out._replace(final_obs=jnp.where(count == 45, jnp.nan, obs))

        return sound._replace(step=step)

    monkeypatch.setattr(environments, "make", make)
    out = tmp_path / "broken"
    options = [*QUICK, "--env", "gymnax/Pendulum-v1", "--agent", "td3", "--seed", "4"]
    options += ["--batch-size", "16"]
    assert train.main([*options, "--checkpoint-every", "1", "--out", str(out)]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ")
    assert_names(said, "seed 4", "45", "gymnax/Pendulum-v1")
    assert not (out / "summary.json").exists() and not list(out.glob("checkpoints/*.safetensors"))


def test_diverging_runs_warn_and_may_be_stopped(tmp_path, capsys):
    options = (
        "--agent racer --replay refer --env gymnax/Pendulum-v1 --env.max-steps 8 --steps 400 "
        "--agent.learning-rate 10 --agent.hidden 8 --replay.reject false --replay.penalise false "
        "--replay.forget oldest --warmup 40 --eval-every 90 --eval-episodes 1 --seeds 2 "
        "--inspect 0 --capacity 64 --batch-size 8 --tensorboard false --checkpoint-every 1"
    )
    out = tmp_path / "diverging"
    ends = ["--stop-on-divergence", "true", "--out", str(out)]
    assert train.main([*options.split(), *ends]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert_names(said, "refer", "seed 1", "--stop-on-divergence")
    assert not (out / "summary.json").exists() and list(out.glob("checkpoints/*.safetensors"))
    assert train.main(["--resume", str(out), "--stop-on-divergence", "false"]) == 0
    assert " 2/2 |" in capsys.readouterr().out
    assert json.loads((out / "summary.json").read_text())["diverged"] == [0, 1]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--out", "{run}"], ("--overwrite", "--resume {run}", "--out")),
        (["--resume", "{run}", "--replay.alpha", "0.4"], ("replay.alpha", "0.6", "0.4")),
        (["--resume", "{run}", "--agent", "rainbow"], ("--agent", "dqn", "rainbow", "--out")),
        (["--resume", "{run}", "--overwrite"], ("--resume", "--overwrite")),
        (["--resume", "{run}/checkpoints"], ("{run}/checkpoints",)),
    ],
)
def test_runs_are_not_overwritten_or_resumed_with_other_options(finished, options, parts, capsys):
    before = (finished / "metrics.csv").read_bytes()
    error = refusal(capsys, train.main, *(option.format(run=finished) for option in options))
    assert_names(error, *(part.format(run=finished) for part in parts))
    assert (finished / "metrics.csv").read_bytes() == before


def test_overwrite_replaces_a_run(finished, tmp_path):
    out = Path(shutil.copytree(finished, tmp_path / "twice"))
    other = ["--steps", "300", "--seed", "5", "--overwrite"]
    assert train.main([*QUICK, *other, "--out", str(out)]) == 0
    assert set(pd.read_csv(out / "metrics.csv")["seed"]) == {5, 6}
    assert len(list((out / "checkpoints").iterdir())) == 1  # old checkpoints are removed


def test_finished_runs_are_not_traced_again(finished, monkeypatch, capsys):
    before = (finished / "metrics.csv").read_bytes()

    def never(program):
        raise AssertionError("traced")

    monkeypatch.setattr(seeds, "over_seeds", never)
    assert train.main(["--resume", str(finished)]) == 0
    assert (finished / "metrics.csv").read_bytes() == before
    refusal(capsys, train.main, *TINY, "--out", finished)  # nor is it before a refusal


MINUTES = 6.0  # set JAXREPLAY_MINUTES for longer
SETTLED = 0.3  # share of the time after which memory is fully allocated
LOOP = shlex.split(
    "--agent dqn --replay per --seeds 2 --steps 1000000000 --capacity 20000 --eval-every 2000 "
    "--eval-episodes 2 --agent.hidden 64 64 --checkpoint-every 5"
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
