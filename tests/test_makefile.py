"""The Makefile sets up .venv only when necessary, as `make -n` shows."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.refusals import assert_names

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(folder, *words, code=0, dry=True):
    """Return the output of make, which runs no commands if `dry`."""
    of_the_caller = ("ACCELERATOR", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PYTHON")
    env = {key: value for key, value in os.environ.items() if key not in of_the_caller}
    command = ["make", *["-n"] * dry, *words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=60)
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture
def ready(tmp_path):
    """Return a folder with a .venv that is marked as set up with JAX for CUDA 12."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "accelerator").write_text("cuda12\n")
    (tmp_path / ".venv" / "installed").touch()
    (tmp_path / ".venv" / "ready").touch()
    return tmp_path


def test_accelerator_is_remembered(ready):
    assert "pip" not in make(ready, "setup")
    assert "pip" not in make(ready, "lint", "ACCELERATOR=cuda12")


def test_first_command_installs_only_its_requirements(ready):
    (ready / ".venv" / "installed").unlink()
    (ready / ".venv" / "ready").unlink()
    assert re.findall(r"'\.\[(.*)\]'", make(ready, "run")) == ["codebase,cuda12"]
    small, all_of_it = re.findall(r"'\.\[(.*)\]'", make(ready, "test"))
    assert small == "codebase,cuda12" and {"test", "gymnax", "brax"} < set(all_of_it.split(","))


def test_another_accelerator_replaces_the_previous_one(ready):
    said = make(ready, "run", "ACCELERATOR=cuda13")
    (removed,) = re.findall("uninstall --yes (.*)", said)
    assert {"jax-cuda12-plugin", "jax-cuda12-pjrt", "libtpu"} == set(removed.split())
    assert ",cuda13]'" in said and "echo cuda13 >.venv/accelerator" in said
    assert said.index("uninstall") < said.index(",cuda13]'") < said.index("experiments.compare")


def test_cpu_is_an_accelerator_without_an_extra(ready):
    said = make(ready, "setup", "ACCELERATOR=cpu")
    assert "jax-cuda12-plugin" in said and ",search]'" in said
    (ready / ".venv" / "accelerator").unlink()
    assert "echo cpu >.venv/accelerator" in make(ready, "setup")


def test_changed_requirements_repeat_the_setup(ready):
    newer = (ready / ".venv" / "installed").stat().st_mtime + 10
    os.utime(ready / "constraints.txt", (newer, newer))
    said = make(ready, "setup")
    assert ",cuda12]'" in said and "jax-cuda12-plugin" not in said


@pytest.mark.parametrize("name", ["gpu", "cuda12 tpu", ""])
def test_unknown_accelerators_are_refused(ready, name):
    said = make(ready, "setup", f"ACCELERATOR={name}", code=2)
    assert_names(said, "ACCELERATOR", name, "cpu", "cuda12", "cuda13", "tpu")


def test_missing_python_is_reported_in_one_line(ready):
    said = make(ready, "setup", "ACCELERATOR=cpu", "PYTHON=")
    line = next(line for line in said.splitlines() if "error: " in line)
    assert_names(line, "3.11", "make PYTHON=")


def test_old_python_is_refused_before_the_setup(tmp_path):
    """`make` actually runs, and stops before it creates a folder."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\nexit 1\n")  # fails the check of the version
    old.chmod(0o755)
    said = make(tmp_path, "setup", f"PYTHON={old}", code=2, dry=False)
    assert str(old) in said and "3.11" in said and "PYTHON=" in said
    assert not (tmp_path / ".venv").exists()
