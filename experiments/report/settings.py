"""Sections on configurations, versions, commands and failures."""

from collections.abc import Mapping
from typing import Any

from experiments.report import commands
from experiments.report.blocks import Code, Lines, Section, Table
from experiments.report.source import Arm, Source
from experiments.runs.run_config import PREFIXES
from experiments.studies.results import Results

_NONE = "-"
_MOST_NAMED = 20  # largest number of runs to list


def of_runs(source: Source) -> Section:
    """Return the section with configurations, versions, and commands that repeat the runs."""
    arms = source.arms.values()
    blocks: list[Any] = [Table(_made(arms), "Device and versions")]
    configs = {arm.label: flat(arm.config) for arm in arms}
    shared, apart = split(configs)
    if apart:
        rows = [[name, *values.values()] for name, values in apart.items()]
        blocks.append(Table([["option", *configs], *rows], "Differences of the arms"))
    caption = "Common to all arms" if len(arms) > 1 else "Configuration"
    blocks.append(Table([["option", "value"], *shared.items()], caption, folded=True))
    blocks.append(Code(list(dict.fromkeys(commands.of_run(arm.config) for arm in arms))))
    intro = "The last lines repeat it, with the version of the code named here."
    if not all(arm.code for arm in arms):
        intro = "The last lines repeat it, if options and defaults have not changed."
    return Section("settings", "Configuration", intro, blocks)


def failures(results: Results) -> Section | None:
    """Return the section with failed and diverged runs, or None if there are none."""
    lines = [f"Failed: {name}: {why}" for name, why in results.store.facts["failed"].items()]
    lost = results.runs[results.runs["diverged"] > 0]
    lines += [f"Diverged: {row.point}, seed {row.seed}" for row in lost.itertuples()]
    if len(lines) > _MOST_NAMED:
        lines = [*lines[:_MOST_NAMED], f"and {len(lines) - _MOST_NAMED} more"]
    if not lines:
        return None
    intro = (
        "Diverged runs are among the scores and rank below all others; failed runs are not among "
        "them."
    )
    if results.trials is not None:
        intro = "A trial with a run that failed or diverged has no score."
    return Section("failures", "Failures", intro, [Lines(lines)])


def of_study(results: Results) -> Section:
    """Return the section with the common configuration, versions, and the study's command."""
    facts = results.store.facts
    versions = [facts["versions"].get(key, "-") for key in ("device", "python", "jax")]
    header = ["device", "Python", "jax", "code"]
    configs = {name: point["config"] for name, point in facts["points"].items()}
    shared, _ = split({name: flat(own) for name, own in configs.items()})
    blocks = [
        Table([header, [*map(str, versions), results.code]], "Device and versions"),
        Table([["option", "value"], *shared.items()], "Common to all runs", folded=True),
        Code(commands.of_study(facts["study"])),
    ]
    intro = "The last lines repeat it, with the version of the code named here."
    return Section("settings", "Configuration", intro, blocks)


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration as a flat mapping from command-line names to values."""
    found = {}
    for name, value in config.items():
        if name in PREFIXES and isinstance(value, dict):
            for key, each in value.items():
                found[commands.option(name, key)] = commands.format_value(each)
        else:
            found[f"--{name}"] = commands.format_value(value)
    return found


def split(
    configs: Mapping[str, Mapping[str, str]],
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the options common to all arms, and the other options by name and arm."""
    names = dict.fromkeys(name for config in configs.values() for name in config)
    shared, apart = {}, {}
    for name in names:
        values = {label: config.get(name, _NONE) for label, config in configs.items()}
        if len(set(values.values())) == 1:
            shared[name] = next(iter(values.values()))
        else:
            apart[name] = values
    return shared, apart


def _made(arms: Any) -> list[list[str]]:
    """Return a table of devices and versions, where arms that share them share a row."""
    header = ["arms", "device", "Python", "jax", "code"]
    rows: dict[tuple[str, ...], list[str]] = {}
    for arm in arms:
        rows.setdefault(_versions(arm), []).append(arm.label)
    if len(rows) == 1:
        return [header, ["all", *next(iter(rows))]]
    return [header, *([", ".join(labels), *versions] for versions, labels in rows.items())]


def _versions(arm: Arm) -> tuple[str, ...]:
    saved = (arm.summary or {}).get("versions", {})
    known = [str(saved.get(key, _NONE)) for key in ("device", "python", "jax")]
    return (*known, arm.code or _NONE)
