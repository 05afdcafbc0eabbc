"""Lists of agents, replay methods, environments and presets, for `--list`."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.runs import registry
from experiments.runs.log import show

WIDTH = 100  # columns


def print_list(as_json: bool) -> None:
    """Print agents, replay methods, environments and presets, and which of them fit together."""
    catalogue = registry.catalogue()
    show(json.dumps(catalogue, indent=2) if as_json else format_catalogue(catalogue))


def format_catalogue(catalogue: Mapping[str, Any]) -> str:
    """Return the result of `registry.catalogue` as text."""
    agents, replays = catalogue["agents"], catalogue["replays"]
    actions = [[name, entry["actions"]] for name, entry in agents.items()]
    head = ["replay", *(name.rpartition(".")[2] for name in agents)]
    fits = [
        [
            name.rpartition(".")[2],
            *("x" if agent in entry["agents"] else "-" for agent in agents),
        ]
        for name, entry in replays.items()
    ]
    needs = [[name, ", ".join(entry["needs"])] for name, entry in replays.items() if entry["needs"]]
    parts = [
        ["agents (--agent):", *_table([["agent", "actions"], *actions])],
        ["replay methods (--replay), and the agents that they fit:", *_table([head, *fits], " ")],
        ["requirements of replay methods on the agent:", *_table(needs)],
        *_environments(catalogue["environments"]),
        ["presets (--preset), and their differences from the papers:"],
        *map(_preset, catalogue["presets"], catalogue["presets"].values()),
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def _environments(environments: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the lines of a block for each family of environments and kind of actions."""
    blocks: dict[tuple[str, ...], list[str]] = {}
    for name, entry in environments.items():
        family = name.partition("/")[0]
        missing = (entry["missing"] or "").replace(name, family)
        blocks.setdefault((family, entry["loop"], entry["actions"], missing), []).append(name)
    for (family, loop, actions, missing), names in blocks.items():
        where = "on the host" if loop == "host" else "compiled"
        reason, _, install = missing.partition(": ")
        note = [f"{reason}; this command installs it:", install] if missing else []
        head = f"environments (--env) of {family}, {where}, with {actions} actions:"
        yield [head, *note, *_columns(names)]


def _preset(name: str, entry: Mapping[str, Any]) -> list[str]:
    """Return lines with the description of a preset, and with its differences from the paper."""
    fitting = f"--agent {'|'.join(entry['agents'])}  --replay {'|'.join(entry['replays'])}"
    env = f"  --env {entry['environment']}" if entry["environment"] else ""
    lines = textwrap.wrap(f"{name}: {entry['about']}", WIDTH, subsequent_indent="  ")
    for text in (fitting + env, *(f"- {difference}" for difference in entry["differs"])):
        lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _table(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (gap.join(map(str.ljust, row, widths)) for row in rows)
    return [f"  {line}".rstrip() for line in lines]


def _columns(names: Sequence[str]) -> list[str]:
    """Return names in columns of one width, ordered downwards."""
    width = max(map(len, names)) + 2
    count = -(-len(names) // ((WIDTH - 2) // width))
    lines = ("".join(name.ljust(width) for name in names[line::count]) for line in range(count))
    return [f"  {line}".rstrip() for line in lines]
