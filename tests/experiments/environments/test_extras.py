"""Missing packages are named with a command that installs them in this clone."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from experiments.environments import extras
from experiments.environments.extras import lacking_extra

ROOT = Path(__file__).parents[3]


def test_missing_packages_are_named_with_an_install_command(monkeypatch, tmp_path):
    assert lacking_extra("x", {"jax": "codebase"}) is None
    needs = {"jax": "codebase", "no_such_module": "mujoco", "another": "atari"}
    what, _, command = (lacking_extra("gymnasium/Ant-v5", needs) or "").partition(": ")
    assert what == "gymnasium/Ant-v5 needs no_such_module"
    python, *words = shlex.split(command)
    assert Path(python).samefile(sys.executable) and words[:4] == ["-m", "pip", "install", "-c"]
    assert Path(words[4]).samefile(ROOT / "constraints.txt")
    assert words[5:] == ["-e", f"{ROOT}[mujoco]"]
    monkeypatch.setattr(extras, "_ROOT", tmp_path / "my clone")
    assert shlex.split(lacking_extra("x", needs) or "")[-1] == f"{tmp_path}/my clone[mujoco]"


def test_commands_without_any_packages_end_with_one_line():
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "experiments.train", "--help"],
        capture_output=True, text=True, cwd=ROOT, env=env, timeout=60,
    )  # fmt: skip
    assert ended.returncode != 0 and not ended.stdout
    assert ended.stderr.count("\n") == 1 and "make setup" in ended.stderr
