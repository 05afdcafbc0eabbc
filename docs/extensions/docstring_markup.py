"""Docstrings here are plain text with code in single backticks, or indented below a colon.

Stars, bars and trailing underscores mean something in reStructuredText, but not in our docstrings.
"""

import re
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(`[^`]*`)")
_INDENTED = re.compile(r":(?=\n\n {4})")
_MARKUP = re.compile(r"(?<!\\)([*|]|(?<=\w)_(?!\w))")


def setup(app: Sphinx) -> dict[str, Any]:
    """Listen to autodoc, before napoleon reads the sections."""
    app.connect("autodoc-process-docstring", _escape, priority=300)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _escape(
    app: Sphinx, what: str, name: str, subject: Any, options: Any, lines: list[str]
) -> None:
    text = _INDENTED.sub("::", "\n".join(lines))
    pieces = _CODE.split(text)
    pieces[::2] = [_MARKUP.sub(r"\\\1", piece) for piece in pieces[::2]]
    lines[:] = "".join(pieces).split("\n")
