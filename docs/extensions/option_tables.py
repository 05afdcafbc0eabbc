"""The directive `options`: a table of a config's options, read from their declarations.

```{options} jaxreplay.methods.per:PERConfig
```
"""

import importlib
import re
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from jaxreplay.option import Option, options_of

_SIGNS = {"<=": "≤", ">=": "≥", "<": "<", ">": ">"}
_INEQUALITY = re.compile("[<>]=?")
_PREFIXES = {
    "jaxreplay.methods": "--replay.", "jaxreplay.contrib": "--replay.", "agents": "--agent.",
    "experiments.environments": "--env.",
}  # fmt: skip
_HEAD = ("option", "default", "meaning", "allowed")


class OptionTable(SphinxDirective):
    """A table of the options of a config, without those of another config (`beyond`)."""

    required_arguments = 1
    option_spec: ClassVar = {"beyond": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Return the table, or a sentence for a config without options."""
        package = self.arguments[0].partition(":")[0].rpartition(".")[0]
        prefix = _PREFIXES.get(package, "--")
        known = options_of(_load(self.options["beyond"])) if "beyond" in self.options else ()
        entries = [entry for entry in options_of(_load(self.arguments[0])) if entry not in known]
        if not entries:
            return [nodes.paragraph("", "It has no options.")]
        return [_table([_row(entry, prefix) for entry in entries])]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("options", OptionTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def shown(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, tuple):
        return " ".join(shown(single) for single in value)
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "none"}[value]
    return str(value)


def allowed(entry: Option) -> str:
    """Return the allowed values of an option: names, or bounds of numbers, and `none`."""
    if entry.choices:
        text = ", ".join(entry.choices)
    elif entry.kind is bool:
        text = "true, false"
    else:
        text = entry.bounds.inequality(
            {int: "whole number", float: "number"}.get(entry.kind, "text")
        )
    if entry.many:
        text = f"one or more of: {text}" if entry.choices else f"one or more: {text}"
    return f"{text}; none" if entry.optional else text


def _load(name: str) -> type:
    module, _, member = name.partition(":")
    return getattr(importlib.import_module(module), member)


def _row(entry: Option, prefix: str) -> tuple[nodes.Node, ...]:
    about = f"{entry.help} ({entry.source})" if entry.source else entry.help
    return (
        nodes.literal("", f"{prefix}{entry.name.replace('_', '-')}"),
        nodes.literal("", shown(entry.default)),
        nodes.Text(about),
        nodes.Text(_INEQUALITY.sub(lambda sign: f" {_SIGNS[sign[0]]} ", allowed(entry))),
    )


def _table(rows: list[tuple[nodes.Node, ...]]) -> nodes.table:
    group = nodes.tgroup(cols=len(_HEAD))
    group += [nodes.colspec(colwidth=1) for _ in _HEAD]
    head, body = nodes.thead(), nodes.tbody()
    head += _line([nodes.Text(text) for text in _HEAD])
    body += [_line(row) for row in rows]
    group += [head, body]
    table = nodes.table(classes=["options"])
    table += group
    return table


def _line(cells: Any) -> nodes.row:
    line = nodes.row()
    for cell in cells:
        line += nodes.entry("", nodes.paragraph("", "", cell))
    return line
