"""Signatures of protocols in the API pages: how to call them, without a constructor."""

import inspect
from typing import Any

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to autodoc."""
    app.connect("autodoc-process-signature", _drop_constructor)
    app.connect("autodoc-skip-member", _skip_undocumented)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _drop_constructor(
    app: Sphinx, what: str, name: str, subject: Any, options: Any, *signature: Any
) -> tuple[str, None] | None:
    is_protocol = inspect.isclass(subject) and getattr(subject, "_is_protocol", False)
    return ("", None) if is_protocol else None


def _skip_undocumented(
    app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Omit `__call__` methods without a docstring, and Flax's `setup`, which inherits one."""
    is_call = name == "__call__" and not inspect.getdoc(member)
    is_setup = name == "setup" and not getattr(member, "__doc__", None)
    return True if is_call or is_setup else None
