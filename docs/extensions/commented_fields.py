"""Descriptions of fields in the API pages, from the comments in the source.

The library documents the fields of its tuples and states by comments (`updates: Array  # [] int32,
step counter`), and hyperparameters by `option`. Both become the section "Fields" of the class.
"""

import ast
import dataclasses
import functools
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

from jaxreplay.option import options_of


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to autodoc, before all other extensions."""
    app.connect("autodoc-process-docstring", _add_fields, priority=200)
    app.connect("autodoc-skip-member", _skip_field)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _add_fields(
    app: Sphinx, what: str, name: str, subject: Any, options: Any, lines: list[str]
) -> None:
    if what != "class" or not inspect.isclass(subject):
        return
    described = list(_options(subject)) or list(_commented(subject))
    if described:
        lines += ["", "Fields:"]
        lines += [f"  {field}: {text}" for field, text in described]
        lines.append("")


def _skip_field(
    app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Omit fields, which the section of their class describes."""
    is_field = type(member).__name__ in ("_tuplegetter", "member_descriptor")
    return True if is_field or name in ("replace", "check", "__post_init__") else None


def _options(subject: type) -> Iterator[tuple[str, str]]:
    if "__dataclass_fields__" not in vars(subject):
        return
    for entry in options_of(subject):
        source = f" ({entry.source})" if entry.source else ""
        yield entry.name, f"{entry.help}{source}"


def _commented(subject: type) -> Iterator[tuple[str, str]]:
    """Yield each annotated field of a class with the comment that follows it, or its type.

    Fields of dataclasses without a comment are left out, because autodoc lists them.
    """
    classes, comments = _read(subject.__module__)
    definition = classes.get(subject.__qualname__)
    if definition is None:
        return
    fields = [node for node in definition.body if isinstance(node, ast.AnnAssign)]
    for number, field in enumerate(fields):
        below = [node.lineno for node in fields[number + 1 :]]
        last = min([field.end_lineno + 4, *below])
        texts = []
        for line in range(field.lineno, last):
            if line > field.end_lineno and line not in comments:
                break
            texts += [comments[line]] if line in comments else []
        if texts or not dataclasses.is_dataclass(subject):
            yield ast.unparse(field.target), " ".join(texts) or ast.unparse(field.annotation)


@functools.cache  # Python's own look-up of a class reads its whole module, each time
def _read(module: str) -> tuple[dict[str, ast.ClassDef], dict[int, str]]:
    """Return the classes of a module by qualified name, and its comments by line."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):
        return {}, {}
    return dict(_classes(ast.parse(source).body)), _comments(source)


def _classes(body: list[ast.stmt], outer: str = "") -> Iterator[tuple[str, ast.ClassDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield outer + node.name, node
            yield from _classes(node.body, f"{outer}{node.name}.")


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: token.string.lstrip("#: ")
        for token in tokens
        if token.type == tokenize.COMMENT and "fmt:" not in token.string
    }
