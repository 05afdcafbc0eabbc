"""Commands as processes: imports, Ctrl-C, closed output pipes, and settings of JAX."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import pytest

from tests.experiments import tiny
from tests.refusals import assert_names

TINY = [*tiny.TINY, "--env", "walk/4", "--figures", "false"]
UNCHANGED = """
import gc, os, signal, sys
before = gc.get_threshold(), sys.excepthook, signal.getsignal(signal.SIGINT), dict(os.environ)
import experiments.train
after = gc.get_threshold(), sys.excepthook, signal.getsignal(signal.SIGINT), dict(os.environ)
assert before[:3] == after[:3] and "MPLBACKEND" not in after[3]
"""
LOADED = """
import importlib, json, sys
for command, *words in json.loads(sys.argv[1]):
    try:
        importlib.import_module(f"experiments.{command}").main(words)
    except SystemExit:
        pass
print(*sys.modules)
"""
BOTH = """
import sys
from experiments.cli import process
out, label = sys.argv[1:]
for command, *words in (
    ("train", "--resume", out, "--report", "true"),
    ("plot", f"{label}={out}", "--out", f"{out}2"),
):
    sys.argv[1:] = words
    try:
        process.run(f"experiments.{command}")
    except SystemExit as ended:
        assert not ended.code
"""


def run_command(*command, **settings):
    """Run `python -m experiments.COMMAND`; return the exit code, output and errors."""
    words = [sys.executable, "-m", f"experiments.{command[0]}", *command[1:]]
    done = subprocess.run(
        words, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


def loaded(commands):
    """Return the modules that commands with their options load."""
    words = [sys.executable, "-c", LOADED, json.dumps(commands)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_a_command_leaves_the_process_unchanged(ctrl_c):
    own = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    subprocess.run([sys.executable, "-c", UNCHANGED], check=True, env=own, timeout=120)


PLANNED = ("train", *TINY, "--dry-run")


@pytest.mark.parametrize(
    ("commands", "also"),
    [
        (
            [("train", "--help"), ("sweep", "--help")],
            {"pandas", "matplotlib", "experiments.studies.runner"},
        ),
        ([PLANNED], {"gymnax", "gymnasium"}),  # environments of other families
    ],
)
def test_commands_import_only_what_they_need(commands, also):
    assert not loaded(commands) & (
        {"brax", "experiments.report", "experiments.papers", "experiments.benchmarks"} | also
    )


def test_commands_end_silently_on_a_closed_pipe():
    command = f"set -o pipefail; {sys.executable} -m experiments.train --list --json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1) and done.stderr == ""


def test_runs_continue_when_their_output_pipe_closes(tmp_path):
    train = f"{sys.executable} -m experiments.train {' '.join(TINY)} --out {tmp_path}/run 2>&1"
    done = subprocess.run(
        ["bash", "-c", f"{train} | head -n 1"], capture_output=True, text=True, timeout=300
    )
    assert len(done.stdout.splitlines()) == 1 and not done.stderr
    assert (tmp_path / "run" / "study.csv.gz").is_file()


@pytest.mark.parametrize(("seconds", "command"), [(0.1, "train"), (0.5, "watch")])
def test_ctrl_c_during_imports_ends_a_command_without_a_traceback(seconds, command, ctrl_c):
    started = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", f"experiments.{command}", "--help"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in started.stderr:
        if line.endswith(" experiments.cli.process\n"):
            break  # imports of the command follow
    time.sleep(seconds)
    started.send_signal(signal.SIGINT)
    rest = [line for line in started.stderr if not line.startswith("import time:")]
    assert started.wait(timeout=120) == -signal.SIGINT and not rest


@pytest.mark.parametrize(
    ("variable", "value"), [("JAX_PLATFORMS", "cuda"), ("JAX_ENABLE_X64", "maybe")]
)
def test_settings_with_which_jax_cannot_start_are_named(variable, value, tmp_path):
    if value == "cuda" and any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this machine has a GPU")
    settings = {"JAX_PLATFORMS": "", variable: value}
    code, _, errors = run_command("train", "--out", str(tmp_path / "x"), **settings)
    assert code == 2 and errors.count("\n") == 1 and errors.startswith("error: ")
    assert_names(errors, f"{variable}={value}")
    assert not (tmp_path / "x").exists()


def test_names_that_the_locale_cannot_encode_are_written_and_read(made, tmp_path):
    locale = {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    settings = {**os.environ, **locale, "PYTHONCOERCECLOCALE": "0", "MPLBACKEND": "nonsense"}
    shutil.copytree(made / "run", tmp_path / "\u00fc")
    words = [sys.executable, "-c", BOTH, os.fsencode(tmp_path) + b"/\xc3\xbc", b"\xc3\xbc"]
    done = subprocess.run(words, env=settings, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "\u00fc2").glob("*.png"))
    assert "\u00fc".encode() in (tmp_path / "\u00fc" / "report.html").read_bytes()
