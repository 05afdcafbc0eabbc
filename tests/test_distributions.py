"""Wheel and source distribution contain only the library, which runs without other packages."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import documents

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIBRARY = {"jax", "flax", "optax", "chex", "numpy"}
ABSENT = ("agents", "experiments", "pandas", "gymnax", "brax", "gymnasium", "safetensors", "pytest")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """Build the source distribution, and from that the wheel; return both, wheel first."""
    if int(metadata.version("setuptools").partition(".")[0]) < 77:
        pytest.skip("needs setuptools 77, which make setup installs")
    pytest.importorskip("build", reason="needs build, which make setup installs")
    tree = tmp_path_factory.mktemp("tree") / "clone"  # the build writes into the tree
    left_out = ignore_patterns(
        ".*", "results", "runs", "build", "dist", "*.egg-info", "__pycache__"
    )
    copytree(ROOT, tree, ignore=left_out)
    out = tree.with_name("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


def own_files() -> set[str]:
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("jaxreplay/**/*.py")}
    return files | {"jaxreplay/py.typed"}


def test_wheel_contains_only_the_library(built):
    names = zipfile.ZipFile(built[0]).namelist()
    assert {name for name in names if ".dist-info/" not in name} == own_files()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_source_distribution_contains_the_library_and_its_metadata(built):
    with tarfile.open(built[1]) as archive:
        files = [member.name.partition("/")[2] for member in archive if member.isfile()]
    told = {name for name in files if "egg-info" not in name} - own_files()
    assert own_files() <= set(files)
    assert told == {
        "CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md",
        "pyproject.toml", "setup.cfg",
    }  # fmt: skip


def test_library_imports_exactly_its_dependencies():
    found = set()
    for path in ROOT.glob("jaxreplay/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.module, path
                found.add(node.module.partition(".")[0])
    optional = {"pandas"}  # of `Look.frame`, which imports it when it is called
    assert found - set(sys.stdlib_module_names) - {"jaxreplay"} == LIBRARY | optional
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == LIBRARY


def test_citation_has_the_version_and_license_of_the_project():
    said = dict(re.findall(r"(?m)^([a-z-]+): (.+)$", (ROOT / "CITATION.cff").read_text()))
    assert said["version"] == PROJECT["version"] and said["license"] == PROJECT["license"]
    assert said["cff-version"] == "1.2.0"


def test_pages_name_the_address_of_the_repository():
    """`python docs/address.py` fills them from pyproject.toml, and also takes addresses out."""
    spec = importlib.util.spec_from_file_location("address", ROOT / "docs" / "address.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    for place in pages.PLACES:
        text = (ROOT / place).read_text()
        assert pages.filled(text, place, pages.address()) == text
        url = "https://example.org/group/jaxreplay"
        filled = pages.filled(text, place, url)
        assert url in filled and pages.filled(filled, place, url) == filled
        assert pages.filled(filled, place, pages.address()) == text


@pytest.mark.slow
def test_wheel_runs_with_only_its_dependencies(built, tmp_path):
    """The environment links only to the library's direct and indirect dependencies."""
    python = environment(tmp_path)
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-deps", "--no-index", built[0]]
    subprocess.run(install, check=True, timeout=120)
    checked = subprocess.run([*pip, "check"], capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stdout + checked.stderr  # no missing dependency
    code = f"""
import importlib.util, json, jaxreplay
seen = [name for name in {ABSENT!r} if importlib.util.find_spec(name)]
{documents.shrunk(own_loop())}
print(json.dumps([jaxreplay.__file__, jaxreplay.__version__, seen]))
"""
    place, version, found = json.loads(run(python, code, tmp_path).splitlines()[-1])
    assert Path(place).is_relative_to(tmp_path) and version == PROJECT["version"]
    assert found == []


@pytest.mark.slow
def test_clones_that_are_not_installed_report_their_version(tmp_path):
    python = environment(tmp_path / "environment")
    copy = tmp_path / "clone"
    copytree(ROOT / "jaxreplay", copy / "jaxreplay")
    start = f"import sys; sys.path.insert(0, {str(copy)!r})"
    code = f"{start}; import jaxreplay; print(jaxreplay.__version__)"
    assert run(python, code, tmp_path) == "0+unknown\n"  # without pyproject.toml
    (copy / "pyproject.toml").write_text('[project]\nname = "another"\nversion = "3"\n')
    assert run(python, code, tmp_path) == "0+unknown\n"
    (copy / "pyproject.toml").write_text('[project]\nname = "jaxreplay"\nversion = "9.8.7"\n')
    assert run(python, code, tmp_path) == "9.8.7\n"


def run(python: Path, code: str, folder: Path) -> str:
    """Run code in a folder without the caller's environment, and return its output."""
    ended = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, cwd=folder, timeout=300,
        env={"JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def own_loop() -> str:
    """Return the first example of a loop of one's own, which the library alone runs."""
    return documents.python(documents.PAGES["how_to/own_loop.md"])[0].text


def environment(folder: Path) -> Path:
    """Make an environment with links to the library's dependencies, and return its Python."""
    links = folder / "links"
    for name in closure(PROJECT["dependencies"]):
        for file in metadata.distribution(name).files or ():
            if ".." not in file.parts and file.locate().is_file():
                link = links / file
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file.locate())
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "links.pth").write_text(f"{links}\n")
    return folder / "venv" / "bin" / "python"


def closure(lines: list[str]) -> set[str]:
    """Return the names of required distributions and of all their requirements."""
    seen: set[tuple[str, str]] = set()  # names and extras
    left = [Requirement(line) for line in lines]
    while left:
        wanted = left.pop()
        for extra in {"", *wanted.extras} - {e for name, e in seen if name == wanted.name}:
            seen.add((wanted.name, extra))
            needed = map(Requirement, metadata.requires(wanted.name) or ())
            left += [n for n in needed if n.marker is None or n.marker.evaluate({"extra": extra})]
    return {canonicalize_name(name) for name, _ in seen}
