"""What there is, and what fits what, in columns that a terminal and a pipe show alike."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 100  # columns


def listed(catalogue: Mapping[str, Any]) -> str:
    """Return the catalogue of `registry.catalogue` as text."""
    parts = [
        _fits(catalogue["agents"], list(catalogue["replays"])),
        _needs(catalogue["replays"]),
        *_environments(catalogue["environments"]),
        *_presets(catalogue["presets"]),
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def _fits(agents: Mapping[str, Any], replays: Sequence[str]) -> list[str]:
    """Return a row for each agent, with a mark below each method that fits."""
    shown = {name: name.rpartition(".")[2] for name in replays}  # of a module, its own name
    rows = [["agent", "actions", *shown.values()]]
    for name, entry in agents.items():
        marks = ["x" if replay in entry["replays"] else "-" for replay in replays]
        rows.append([name, entry["actions"], *marks])
    return ["agents (--agent), and the replay methods (--replay) that fit:", *_table(rows)]


def _needs(replays: Mapping[str, Any]) -> list[str]:
    rows = [[name, ", ".join(entry["needs"])] for name, entry in replays.items() if entry["needs"]]
    return ["what replay methods need of the agent:", *_table(rows)]


def _environments(environments: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a block for each family, and kind of actions in it."""

    alike: dict[tuple[str, ...], list[str]] = {}
    for name, entry in environments.items():
        family = name.partition("/")[0]
        missing = (entry["missing"] or "").replace(name, family)
        kind = (family, entry["loop"], entry["actions"], missing)
        alike.setdefault(kind, []).append(name)
    for (family, loop, actions, missing), names in alike.items():
        where = "on the host" if loop == "host" else "compiled"
        head = f"environments (--env) of {family}, {where}, with {actions} actions:"
        yield [*textwrap.wrap(head, WIDTH), *_lack(missing), *_columns(names)]


def _lack(missing: str) -> list[str]:
    """Return what is missing, and the command that installs it unbroken, to be copied."""
    if not missing:
        return []
    what, _, command = missing.partition(": ")
    return [*textwrap.wrap(f"{what}; this installs it:", WIDTH), command]


def _presets(presets: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield what each preset brings, and where it differs from its paper."""
    yield ["presets (--preset), and where they differ from their papers:"]
    for name, entry in presets.items():
        fitting = f"--agent {'|'.join(entry['agents'])}  --replay {'|'.join(entry['replays'])}"
        env = f"  --env {entry['environment']}" if entry["environment"] else ""
        yield [
            *textwrap.wrap(f"{name}: {entry['about']}", WIDTH, subsequent_indent="  "),
            *textwrap.wrap(fitting + env, WIDTH, initial_indent="  ", subsequent_indent="    "),
            *(
                line
                for sentence in entry["differs"]
                for line in textwrap.wrap(
                    f"- {sentence}", WIDTH, initial_indent="  ", subsequent_indent="    "
                )
            ),
        ]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _columns(names: Sequence[str]) -> list[str]:
    """Return names in columns of one width, to be read downwards."""
    width = max(map(len, names)) + 2
    count = -(-len(names) // max((WIDTH - 2) // width, 1))  # lines
    return [
        "  " + "".join(name.ljust(width) for name in names[line::count]).rstrip()
        for line in range(count)
    ]
