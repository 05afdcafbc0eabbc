"""Commands that messages name work as they are printed, from any folder."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from experiments.environments import registry
from experiments.installation import commands

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SOURCES = [
    path for room in ("experiments", "agents", "jaxreplay") for path in ROOT.glob(f"{room}/**/*.py")
]


def test_an_extra_is_installed_from_this_clone_into_this_python_at_the_tested_versions():
    python, *words = shlex.split(commands.install("mujoco"))
    assert Path(python).samefile(sys.executable)
    assert words[:4] == ["-m", "pip", "install", "-c"] and words[5] == "-e"
    assert Path(words[4]).samefile(ROOT / "constraints.txt")
    folder, extra = re.fullmatch(r"(.*)\[(.*)\]", words[6]).groups()
    assert Path(folder).samefile(ROOT) and Path(folder).is_absolute() and extra == "mujoco"


def test_a_folder_with_spaces_stays_one_word(monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "ROOT", tmp_path / "my clone")
    assert shlex.split(commands.install("wandb"))[-1] == f"{tmp_path}/my clone[wandb]"
    assert shlex.split(commands.set_up().replace(",", ""))[2] == f"{tmp_path}/my clone"


def test_make_is_told_of_an_accelerator_in_the_environment_that_it_has_set_up(tmp_path):
    elsewhere = commands.install_accelerator("cuda12", prefix=str(tmp_path))
    assert elsewhere == commands.install("cuda12")
    inside = commands.install_accelerator("cuda12", prefix=str(ROOT / ".venv"))
    assert shlex.split(inside) == ["make", "-C", str(ROOT), "setup", "ACCELERATOR=cuda12"]


def test_another_package_is_one_word_too():
    assert shlex.split(commands.install_package("imageio[ffmpeg]"))[-1] == "imageio[ffmpeg]"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_message_writes_its_own_command(path):
    if path.name not in ("commands.py", "packages.py"):  # of the codebase, and of the library
        assert "pip install" not in path.read_text()


def test_extras_that_messages_name_exist():
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


def test_accelerators_take_jax_in_the_range_of_the_library():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    library = next(r for r in map(Requirement, project["dependencies"]) if r.name == "jax")
    for extra in ("cuda12", "cuda13", "tpu"):
        (wanted,) = map(Requirement, EXTRAS[extra])
        assert (wanted.name, wanted.extras) == ("jax", {extra})
        assert wanted.specifier == library.specifier
