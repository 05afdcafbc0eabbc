"""Contents of README and docs/: Python blocks, commands and code spans."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = {path.relative_to(ROOT / "docs").as_posix(): path for path in ROOT.glob("docs/**/*.md")}
_BLOCK = re.compile(
    r"(?:<!-- (slow|compilers) -->\n)?^```(\S*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE
)

# Replacements that reduce the steps and slots of the pages.
_SHRUNK = {
    "50_000": "2_000", "20_000": "700", "10_000": "200", "2**20": "2**10",
    "warmup=1_000": "warmup=150",
    "--steps 20_000": "--steps 400 --warmup 100 --eval-every 200 --eval-episodes 1",
}  # fmt: skip


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str  # "" for commands and their output
    text: str
    mark: str  # "slow": too long for quick tests; "compilers": needs those of a GPU and a TPU


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    found = _BLOCK.findall(path.read_text())
    return [Block(language, text, mark) for mark, language, text in found]


def python(path: Path) -> list[Block]:
    """Return the Python blocks of a page."""
    return [block for block in blocks(path) if block.language == "python"]


def shrunk(code: str) -> str:
    """Return the code with fewer steps and slots."""
    for large, small in sorted(_SHRUNK.items(), key=lambda pair: -len(pair[0])):
        code = code.replace(large, small)
    return code


def run(code: str, names: dict) -> None:
    """Run a block in a namespace, with fewer steps and slots."""
    exec(compile(shrunk(code), "<page>", "exec"), names)


def commands(path: Path) -> list[list[str]]:
    """Return the words of every command in a page's blocks without a language."""
    text = "\n".join(block.text for block in blocks(path) if block.language == "")
    lines = text.replace("\\\n", " ").splitlines()
    starts = ("python ", "make ", "pip ", ".venv/bin/python ")
    return [shlex.split(line, comments=True) for line in lines if line.startswith(starts)]


def code_spans(path: Path) -> list[str]:
    """Return the inline code of a page."""
    return re.findall(r"`([^`\n]+)`", _BLOCK.sub("", path.read_text()))
