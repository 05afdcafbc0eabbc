"""Options that this command has not, and would have with other names: what is said of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.runs.registry import AGENTS
from jaxreplay.methods import METHODS
from jaxreplay.option import options_of


def of_agents() -> dict[str, str]:
    """Return what is said of every agent's options, by option."""
    owners = _owners({name: entry.config for name, entry in AGENTS.items()})
    return {f"--agent.{option}": _belongs("agent", option, own) for option, own in owners.items()}


def of_replays() -> dict[str, str]:
    """Return what is said of every replay method's options, by option."""
    owners = _owners({name: entry.config for name, entry in METHODS.items()})
    return {f"--replay.{option}": _belongs("replay", option, own) for option, own in owners.items()}


def of_arms(labels: Mapping[str, str]) -> dict[str, str]:
    """Return what is said of methods' options where these begin with labels.

    Args:
      labels: the method behind each.
    """
    owners = _owners({name: entry.config for name, entry in METHODS.items()})
    said, arms = {}, ", ".join(labels)
    for option, own in owners.items():
        has = [f"--{label}.{option}" for label, method in labels.items() if method in own]
        here = "options of methods begin with their labels here, as in --LABEL.NAME: "
        instead = f"name one in --replays that has it, of {', '.join(own)}"
        said[f"--replay.{option}"] = here + (f"use {' or '.join(has)}" if has else instead)
        for name in own:
            other = [f"--{label}.{option}" for label, method in labels.items() if method == name]
            mend = f"use {' or '.join(other)}" if other else "name it in --replays"
            said[f"--{name}.{option}"] = f"{name} is none of {arms}: {mend}"
        for label in labels:  # whatever it is called: one that has the option is never asked for
            if f"--{label}.{option}" not in has:
                said[f"--{label}.{option}"] = f"{label} has no {option}, as {', '.join(own)} have"
    return said


def of_methods_without() -> dict[str, str]:
    """Return what is said of options that exist, where they begin with methods that lack them."""
    owners = _owners({name: entry.config for name, entry in METHODS.items()})
    told = {}
    for option, own in owners.items():
        for name in set(METHODS) - set(own):
            has = f"{name} has no {option}, as {', '.join(own)} have"
            told[f"--{name}.{option}"] = f"unknown option '--{name}.{option}': {has}"
    return told


def _belongs(kind: str, option: str, owners: Iterable[str]) -> str:
    first, *_ = owners
    names = ", ".join(owners)
    return f"--{kind}.{option} belongs to {names}: give --{kind}, such as --{kind} {first}"


def _owners(configs: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of those that have each option; modules of the user's own, too."""
    owners: dict[str, list[str]] = {}
    for name, config in configs.items():
        for entry in options_of(config):
            owners.setdefault(entry.name.replace("_", "-"), []).append(name)
    return owners
