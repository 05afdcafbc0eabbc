"""Command lines that repeat the runs of a page."""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from experiments.cli.shared import learns_from_evaluations
from experiments.runs import run_config
from experiments.studies.options import Question, SearchOptions, StudyOptions

_SHARED = ("loop", "sizes", "env_options", "agent_options")
_WIDTH = 80  # characters per line
Config = Mapping[str, Any]


def of_run(config: Config) -> str:
    """Return the command line that repeats a run, without options that have default values."""
    return wrap(_train(config))


def option(section: str, name: str) -> str:
    """Return the name of an option on the command line."""
    return f"--{run_config.PREFIXES[section]}{name}".replace("_", "-")


def format_value(value: Any) -> str:
    """Return a value in the syntax of the command line."""
    return " ".join(_words(value))


def _words(value: Any) -> list[str]:
    if isinstance(value, (list, tuple)):
        return [word for each in value for word in _words(each)]
    if value is None or isinstance(value, bool):
        return [{True: "true", False: "false", None: "none"}[value]]
    return [str(value)]


def _train(config: Config) -> list[str]:
    words = ["python", "-m", "experiments.train"]
    for name in ("agent", "replay", "env", "seeds", "seed"):
        if (name, config[name]) != ("seed", 0):
            words += [f"--{name}", str(config[name])]
    usual = _defaults(config)
    for section in (*_SHARED, "replay_options"):
        for name, value in _unusual(config, usual, section).items():
            if name != "observe_every" or _learns_from_evaluations(config):
                words += [option(section, name), *_words(value)]
    return words


def _learns_from_evaluations(config: Config) -> bool:
    """Return whether a run uses `observe_every`; arms of a comparison share it with others."""
    try:
        run = run_config.saved_defaults(config["env"], config["agent"], config["replay"])
        options = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in config.get("replay_options", {}).items()
            if hasattr(run.replay_options, name)
        }
        own = dataclasses.replace(run.replay_options, **options)
        return learns_from_evaluations(dataclasses.replace(run, replay_options=own))
    except (ValueError, ImportError):  # the agent or the method is not installed
        return True


def of_study(saved: Mapping[str, Any]) -> list[str]:
    """Return the command lines that repeat a saved study, without options with default values."""
    envs, arms = list(saved["bases"]), next(iter(saved["bases"].values()))
    configs = list(arms.values())
    first = configs[0]
    names = ("agent", *_SHARED)
    if any(own[name] != first[name] for own in configs for name in names):
        # Arms from a preset or from Python can have different options.
        return ["# the arms, without their comparison", *map(of_run, configs)]
    usual = _defaults(first)
    named = [k if k == own["replay"] else f"{k}={own['replay']}" for k, own in arms.items()]
    searched = saved["search"]["search"] is not None
    axes = dict(saved["axes"])
    compared = saved["question"]["control"] and not searched and set(axes) <= {"learn_every"}
    command = "compare" if compared else "sweep"
    words = ["python", "-m", f"experiments.{command}", "--agent", first["agent"]]
    words += ["--envs", *envs, "--replays", *named]
    words += ["--seeds", str(first["seeds"]), "--seed", str(first["seed"])]
    for section in _SHARED:
        for name, value in _unusual(first, usual, section).items():
            words += [option(section, name), *_words(value)]
    for label, config in arms.items():
        for name, value in _unusual(config, _defaults(config), "replay_options").items():
            words += [f"--{label}.{name}".replace("_", "-"), *_words(value)]
    if compared and axes:
        words += ["--learn-every", *axes["learn_every"]]
    elif axes:
        found = [f"{name}={','.join(values)}" for name, values in axes.items()]
        words += ["--space" if searched else "--grid", *found]
    for part, made in (
        ("question", Question(control=compared)), ("options", StudyOptions()),
        ("search", SearchOptions()),
    ):  # fmt: skip
        defaults = dataclasses.asdict(made)
        for name, value in saved[part].items():
            if _words(value) != _words(defaults.get(name)):
                words += [f"--{name}".replace("_", "-"), *_words(value)]
    claims = ["# without the claims, which a file in Python defines"] * bool(saved.get("claims"))
    return [*claims, wrap(words)]


def wrap(words: list[str]) -> str:
    """Wrap a command into lines that break before options."""
    lines = [""]
    quoted = [shlex.quote(word) for word in words]
    starts = [k for k, word in enumerate(words) if word.startswith("--")]
    for start, end in zip([0, *starts], [*starts, len(words)], strict=True):
        part = " ".join(quoted[start:end])
        if lines[-1] and len(lines[-1]) + len(part) > _WIDTH:
            lines.append(f"    {part}")
        else:
            lines[-1] = f"{lines[-1]} {part}".lstrip() if len(lines) == 1 else f"{lines[-1]} {part}"
    return " \\\n".join(lines)


def _defaults(config: Config) -> Config:
    """Return the defaults for the names in a configuration, or {} if a name is unknown."""
    try:
        return run_config.saved_defaults(config["env"], config["agent"], config["replay"]).to_json()
    except (ValueError, ImportError):  # a module of the user, or a missing package
        return {}


def _unusual(config: Config, usual: Config, section: str) -> dict[str, Any]:
    """Return the options of a section that still exist and differ from their defaults.

    If the defaults are unknown, the result has all options that are not None.
    """
    known = usual.get(section)
    return {
        name: value
        for name, value in config.get(section, {}).items()
        if (value is not None if known is None else name in known)
        and (known is None or _words(value) != _words(known[name]))
    }
