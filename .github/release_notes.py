"""Print what CHANGELOG.md says of a version: `python .github/release_notes.py v0.1.0`."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def notes(tag: str, root: Path = ROOT) -> str:
    """Return the section of a version.

    Args:
      tag: v and the version.
      root: the folder of CHANGELOG.md and pyproject.toml.

    Raises:
      ValueError: it is not the version of pyproject.toml, or the changelog has no such section, or
        calls it unreleased.
    """
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        raise ValueError(f"the tag is {tag}, but pyproject.toml has version {version}")
    sections = re.split(r"(?m)^## ", (root / "CHANGELOG.md").read_text())[1:]
    for section in sections:
        heading, _, text = section.partition("\n")
        if heading.split()[0] == version:
            if "unreleased" in heading.lower():
                raise ValueError(f"CHANGELOG.md calls {version} unreleased: give it a date")
            return text.strip() + "\n"
    raise ValueError(f"CHANGELOG.md has no section '## {version} (date)'")


if __name__ == "__main__":
    try:
        print(notes(*sys.argv[1:]), end="")
    except (TypeError, ValueError) as error:
        sys.exit(f"error: {error}")
