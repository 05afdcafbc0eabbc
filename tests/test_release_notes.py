"""Release notes come from the changelog, and inconsistent tags and files are refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusals import assert_names

SCRIPT = Path(__file__).parents[1] / ".github" / "release_notes.py"
CHANGELOG = """# Changelog

## 0.2.0 (2031-05-17)

### Added

- New.

## 0.1.0 (2030-01-02)

- Old.
"""


@pytest.fixture
def project(tmp_path):
    """Return a function that writes the files of a project and runs the script for a tag."""
    script = tmp_path / ".github" / SCRIPT.name
    script.parent.mkdir()
    script.write_text(SCRIPT.read_text())

    def run(version, tag, changelog=CHANGELOG):
        (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
        (tmp_path / "CHANGELOG.md").write_text(changelog)
        return subprocess.run([sys.executable, script, tag], capture_output=True, text=True)

    return run


def test_notes_are_the_section_of_the_version(project):
    assert project("0.2.0", "v0.2.0").stdout == "### Added\n\n- New.\n"
    assert project("0.1.0", "v0.1.0").stdout == "- Old.\n"


@pytest.mark.parametrize(
    ("version", "tag", "changelog", "parts"),
    [
        ("0.2.0", "v0.1.0", CHANGELOG, ("v0.1.0", "pyproject.toml", "0.2.0")),
        ("0.3.0", "v0.3.0", CHANGELOG, ("CHANGELOG.md", "0.3.0")),
        ("0.2", "v0.2", CHANGELOG, ("CHANGELOG.md", "0.2")),
        ("1.0", "v1.0", "## 1.0 (unreleased)\n- x\n", ("CHANGELOG.md", "1.0", "unreleased")),
    ],
)
def test_inconsistent_versions_are_refused_in_one_line(project, version, tag, changelog, parts):
    ended = project(version, tag, changelog)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert_names(ended.stderr, *parts)
