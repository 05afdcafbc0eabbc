"""What is missing or too old is said in one line, with what to do, before anything else."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from experiments.installation import requirements
from tests.refusals import assert_names

ROOT = Path(__file__).parents[3]


def project(folder, library, codebase):
    lines = [
        "[project]",
        f"dependencies = {library!r}",
        "[project.optional-dependencies]",
        f"codebase = {codebase!r}",
    ]
    (folder / "pyproject.toml").write_text("\n".join(lines))
    return folder


def test_this_python_has_what_this_project_needs():
    assert requirements.unmet() is None


@pytest.mark.parametrize(
    ("library", "codebase", "parts"),
    [
        (["jax>=99.1,<100"], [], ("jax>=99.1", metadata.version("jax"))),
        (["numpy"], ["no-such-package>=1"], ("no-such-package",)),
        (["none-a"], ["none-b"], ("none-a", "none-b")),
        (["jax>=99"], ["none-b"], ("none-b",)),
    ],
)
def test_what_is_missing_or_too_old_is_named_with_a_command(tmp_path, library, codebase, parts):
    message = requirements.unmet(root=project(tmp_path, library, codebase))
    assert "\n" not in message
    assert_names(message, "experiments", *parts)
    assert re.search(
        r"-m pip install -c .*constraints.txt -e .*\[codebase\]|make -C .* setup", message
    )


@pytest.mark.parametrize("library", [["jax<0.0.1"], ["numpy>=1", "pandas>=0.1,<0.2"], ["jax"]])
def test_newer_versions_are_let_pass(tmp_path, library):
    assert requirements.unmet(root=project(tmp_path, library, [])) is None


def test_an_old_python_is_named():
    message = requirements.unmet(python=(3, 9))
    assert_names(message, "experiments", "3.11", "3.9", f"make -C {ROOT}")
    assert "\n" not in message and requirements.unmet(python=(3, 11)) is None


def test_the_oldest_python_is_that_of_the_metadata():
    text = (ROOT / "pyproject.toml").read_text()
    oldest = ".".join(map(str, requirements.PYTHON))
    assert tomllib.loads(text)["project"]["requires-python"] == f">={oldest}"


BARE = (sys.executable, "-I", "-S")  # without site-packages


def run(code, *more):
    """Run code in a Python that sees the clone and no installed package."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    return subprocess.run([*BARE, "-c", start + code], capture_output=True, text=True, timeout=60)


def test_imported_without_packages_it_raises_one_line():
    ended = run("import experiments")
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 1 and last.startswith("ImportError: ")
    assert_names(last, "experiments", "packaging", f"make -C {ROOT}")


def test_a_command_without_packages_ends_with_one_line_and_no_traceback():
    command = [sys.executable, "-S", "-m", "experiments.train", "--help"]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=60)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
    assert_names(ended.stderr, "experiments", "packaging")
