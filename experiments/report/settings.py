"""Sections on configurations, versions, commands and failures."""

import shlex
from collections.abc import Mapping
from typing import Any

from experiments.cli.shared import learns_from_evaluations
from experiments.report.blocks import Code, Lines, Section, Table
from experiments.report.source import Arm, Source
from experiments.runs import outside, run_config
from experiments.runs.run_config import PREFIXES, SECTIONS, shown_value
from experiments.studies.results import Results

_NONE = "-"
_MOST_NAMED = 20  # largest number of runs to list
_WIDTH = 80  # characters of a line of a command
Config = Mapping[str, Any]


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
    blocks.append(Code(list(dict.fromkeys(command_of(arm.config) for arm in arms))))
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
    shared, _ = split({name: flat(config) for name, config in configs.items()})
    names = [(kind, own[kind]) for own in configs.values() for kind in ("env", "agent", "replay")]
    outsiders = [each for each in dict.fromkeys(names) if outside.is_outside(*each)]
    words = [word for kind, name in outsiders for word in (f"--{kind}", name)]
    words += ["--out", "runs/again"]
    blocks = [
        Table([header, [*map(str, versions), results.code]], "Device and versions"),
        Table([["option", "value"], *shared.items()], "Common to all runs", folded=True),
        Code([shlex.join(["python", "-m", "experiments.study", "study.json", *words])]),
    ]
    intro = (
        "In the folder of the study, the last line repeats it, with the version of the code named "
        "here."
    )
    return Section("settings", "Configuration", intro, blocks)


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration as a flat mapping from command-line names to values."""
    texts = run_config.option_texts(config)
    return {f"--{name}".replace("_", "-"): text for name, text in texts.items()}


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


def command_of(config: Config) -> str:
    """Return the command line that repeats a run, without options that have default values."""
    usual = _defaults(config)
    names = ("agent", "replay", "env", "seeds", "seed")
    options = {f"--{name}": config[name] for name in names if (name, config[name]) != ("seed", 0)}
    for section in SECTIONS:
        for name, value in _unusual(config, usual, section).items():
            options[f"--{PREFIXES[section]}{name}".replace("_", "-")] = value
    lines = ["python -m experiments.train"]
    for name, value in options.items():
        words = map(shown_value, value if isinstance(value, (list, tuple)) else [value])
        part = shlex.join([name, *words])
        if len(lines[-1]) + len(part) > _WIDTH:
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}"
    return " \\\n".join(lines)


def _defaults(config: Config) -> Config:
    """Return the defaults for the names in a configuration, or {} if a name is unknown."""
    try:
        usual = run_config.saved_defaults(config["env"], config["agent"], config["replay"])
    except (ValueError, ImportError):  # a module of the user, or a missing package
        return {}
    saved = usual.to_json()
    if not learns_from_evaluations(usual):  # comparisons used to share the option among all arms
        del saved["loop"]["observe_every"]
    return saved


def _unusual(config: Config, usual: Config, section: str) -> dict[str, Any]:
    """Return the options of a section that still exist and differ from their defaults.

    If the defaults are unknown, the result has all options that are not None.
    """
    saved = config.get(section, {})
    if not usual:
        return {name: value for name, value in saved.items() if value is not None}
    known = usual[section]
    return {
        name: value
        for name, value in saved.items()
        if name in known and shown_value(value) != shown_value(known[name])
    }
