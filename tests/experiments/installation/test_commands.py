"""Install commands for missing packages, which work from any folder."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from experiments.environments import registry
from experiments.installation import commands
from tests.refusals import assert_names

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SOURCES = [
    path for room in ("experiments", "agents", "jaxreplay") for path in ROOT.glob(f"{room}/**/*.py")
]


def test_extras_are_installed_from_this_clone_at_tested_versions():
    python, *words = shlex.split(commands.install("mujoco"))
    assert Path(python).samefile(sys.executable)
    assert words[:4] == ["-m", "pip", "install", "-c"] and words[5] == "-e"
    assert Path(words[4]).samefile(ROOT / "constraints.txt")
    folder, extra = re.fullmatch(r"(.*)\[(.*)\]", words[6]).groups()
    assert Path(folder).samefile(ROOT) and Path(folder).is_absolute() and extra == "mujoco"


def test_folders_with_spaces_are_quoted(monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "ROOT", tmp_path / "my clone")
    assert shlex.split(commands.install("wandb"))[-1] == f"{tmp_path}/my clone[wandb]"
    assert shlex.split(commands.set_up().replace(",", ""))[2] == f"{tmp_path}/my clone"


def test_extras_named_in_messages_exist():
    named = {
        extra
        for path in SOURCES
        for extra in re.findall(
            r"""\b(?:install\(|missing\([^)]*: )["'](\w+)["']""", path.read_text()
        )
    }
    for family in registry.FAMILIES.values():
        named |= {extra for name in family.actions for extra in family.needs(name).values()}
    assert named >= {"bench", "report", "papers", "atari", "gymnax", "brax"} and named <= set(
        EXTRAS
    )


def test_accelerator_extras_accept_the_jax_versions_of_the_library():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    library = next(r for r in map(Requirement, project["dependencies"]) if r.name == "jax")
    for extra in ("cuda12", "cuda13", "tpu"):
        (wanted,) = map(Requirement, EXTRAS[extra])
        assert (wanted.name, wanted.extras) == ("jax", {extra})
        assert wanted.specifier == library.specifier


@pytest.mark.parametrize(
    ("library", "codebase", "parts"),
    [
        (["jax>=99.1,<100"], [], ("jax>=99.1", metadata.version("jax"))),
        (["numpy"], ["no-such-package>=1"], ("no-such-package",)),
        (["none-a"], ["none-b", "jax>=99"], ("none-a", "none-b", "jax>=99")),
        (["jax<0.0.1"], ["numpy>=1", "pandas>=0.1,<0.2"], None),  # upper bounds are not enforced
    ],
)
def test_missing_and_old_packages_are_named_with_a_command(tmp_path, library, codebase, parts):
    lines = ("[project]", f"dependencies = {library}", "[project.optional-dependencies]",
             f"codebase = {codebase}")  # fmt: skip
    (tmp_path / "pyproject.toml").write_text("\n".join(lines))
    message = commands.unmet(root=tmp_path)
    if parts is None:
        assert message is None
        return
    assert "\n" not in message
    assert_names(message, "experiments", *parts)
    assert re.search(
        r"-m pip install -c .*constraints.txt -e .*\[codebase\]|make -C .* setup", message
    )


def test_older_python_versions_are_rejected():
    assert commands.unmet() is None and commands.unmet(python=(3, 11)) is None
    message = commands.unmet(python=(3, 9))
    assert_names(message, "experiments", "3.11", "3.9", f"make -C {ROOT}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={'.'.join(map(str, commands.PYTHON))}"


@pytest.mark.parametrize(
    ("words", "code", "begins"),
    [
        (["-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import experiments"],
         1, "ImportError: "),
        (["-S", "-m", "experiments.train", "--help"], 2, "error: "),
    ],
)  # fmt: skip
def test_missing_packages_end_a_command_with_an_install_command(words, code, begins):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env=env, timeout=60
    )
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == code and last.startswith(begins) and not ended.stdout
    assert code == 1 or ended.stderr.count("\n") == 1
    assert_names(last, "experiments", "packaging", f"make -C {ROOT}")
