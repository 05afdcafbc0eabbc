"""Plain text in docstrings, with code in single backticks or indented below a colon.

reStructuredText interprets stars, bars and trailing underscores; in our docstrings they are plain
characters, except for a star that begins an item of a list.
"""

import re
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(`[^`]*`)")
_INDENTED = re.compile(r":(?=\n\n {4})")
_MARKUP = re.compile(r"(?<=\n) *\* |(?<!\\)([*|]|(?<=\w)_(?!\w))")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to autodoc, before napoleon parses the sections."""
    app.connect("autodoc-process-docstring", _escape, priority=300)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _escape(
    app: Sphinx, what: str, name: str, subject: Any, options: Any, lines: list[str]
) -> None:
    text = _INDENTED.sub("::", "\n".join(lines))
    pieces = _CODE.split(text)
    pieces[::2] = [_MARKUP.sub(_escaped, piece) for piece in pieces[::2]]
    lines[:] = "".join(pieces).split("\n")


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[1]}" if found[1] else found[0]
