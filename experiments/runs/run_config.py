"""Configuration of a run: all options that decide its numbers."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import environments
from experiments.environments.types import EnvironmentConfig
from experiments.files import kinds
from experiments.runs import presets, registry
from experiments.training.config import LoopConfig, ReplaySizes
from experiments.training.schedule import schedule

# Prefix of the options of each section of a RunConfig on the command line.
PREFIXES = {
    "loop": "", "sizes": "", "env_options": "env.", "agent_options": "agent.",
    "replay_options": "replay.",
}  # fmt: skip
SECTIONS = tuple(PREFIXES)
_MOST_SEEDS, _LARGEST_SEED = 100_000, 2**31
_SAVED = {
    "env": kinds.text, "agent": kinds.text, "replay": kinds.text,
    "seeds": kinds.whole, "seed": kinds.whole,
    **{name: kinds.dict_of(kinds.anything) for name in SECTIONS},
    "loop": kinds.record({"steps": kinds.whole, "learn_every": kinds.whole}),
    "sizes": kinds.record({"num_envs": kinds.whole}),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Configuration of a run: all options that decide its numbers."""

    env: str
    agent: str
    replay: str
    seeds: int
    seed: int
    env_options: EnvironmentConfig  # options of the environment's family
    agent_options: Any
    replay_options: Any
    sizes: ReplaySizes
    loop: LoopConfig

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as nested JSON-able values: names and seeds, then sections."""
        names = {name: getattr(self, name) for name in ("env", "agent", "replay", "seeds", "seed")}
        return names | {name: dataclasses.asdict(getattr(self, name)) for name in SECTIONS}

    @classmethod
    def from_json(cls, saved: Any) -> "RunConfig":
        """Return the RunConfig from values of `to_json`, without importing modules.

        Missing options, which an earlier version did not have, are set to their defaults.

        Raises:
          ValueError: a name or section is missing, an option is unknown, has the wrong type or is
            out of bounds, or the module of a method, agent or environment is not imported.
        """
        check_saved(saved)
        config = saved_defaults(*(saved[name] for name in ("env", "agent", "replay")))
        parts = {name: _section(getattr(config, name), saved, name) for name in SECTIONS}
        return dataclasses.replace(config, seeds=saved["seeds"], seed=saved["seed"], **parts)


def saved_defaults(env: str, agent: str, replay: str) -> RunConfig:
    """Return the default configuration for names read from a file, without importing modules.

    Raises:
      ValueError: as `defaults`, or a module is not imported.
    """
    check_imported(env)
    return defaults(env, agent, replay)


def check_imported(env: str) -> None:
    """Raise ValueError if making an environment would import a module."""
    if (module := environments.module_to_import(env)) is not None:
        raise ValueError(
            f"the environment {env} is in module {module}, which is imported only if the command "
            f"line names it: if you trust it, add --env {env} (--envs in compare and sweep)"
        )


def check_seeds(seeds: int, seed: int) -> None:
    """Raise ValueError if a number of seeds or the first seed is out of bounds."""
    if not 1 <= seeds <= _MOST_SEEDS:
        raise ValueError(f"seeds is {seeds}: it must be in [1, {_MOST_SEEDS:,}]")
    if not 0 <= seed <= _LARGEST_SEED - seeds:
        raise ValueError(
            f"seed is {seed}: the first of {seeds} seeds must be in [0, {_LARGEST_SEED - seeds:,}]"
        )


def check_saved(saved: Any) -> None:
    """Check the parts of a saved configuration that need no agent, method or environment.

    Options of the loop and the sizes are checked in the same way as options of a command line.
    Unknown options, which another version wrote, are ignored.

    Raises:
      ValueError: a name or section is missing, or a value has the wrong type or is out of bounds.
    """
    kinds.check(saved, _SAVED)
    check_seeds(saved["seeds"], saved["seed"])
    loop, sizes = (
        _section(config, {name: _known(config, saved[name])}, name)
        for name, config in (("loop", LoopConfig()), ("sizes", ReplaySizes()))
    )
    schedule(loop, sizes.num_envs)


def _known(config: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(config)}
    return {name: value for name, value in options.items() if name in names}


def _section(config: Any, saved: dict[str, Any], name: str) -> Any:
    """Return a section with saved options in place of the defaults in `config`."""
    options = saved[name]
    for field in sorted(set(options) - set(_known(config, options))):
        if options[field] is not None:  # None is unused, so a removed option is accepted
            raise ValueError(
                f"it has {name}.{field}, which this version of jaxreplay does not know: "
                "use the version that wrote it, or start a new run"
            )
    known = _known(config, options).items()
    values = {field: tuple(own) if isinstance(own, list) else own for field, own in known}
    try:
        return dataclasses.replace(config, **values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def defaults(env: str, agent: str, replay: str, preset: str | None = None) -> RunConfig:
    """Return the configuration of a run with default options, or with the options of a preset.

    Raises:
      ValueError: the names do not fit one another.
    """
    if preset is not None:
        registry.check_preset(preset, agent, env)
    registry.check_fit(agent, replay, env)
    entry = registry.AGENTS[agent]
    config = RunConfig(
        env=env,
        agent=agent,
        replay=replay,
        seeds=5,
        seed=0,
        env_options=environments.options(env),
        agent_options=entry.config(),
        replay_options=registry.replay_options(agent, replay),
        sizes=entry.sizes,
        loop=entry.loop,
    )
    return config if preset is None else presets.apply(preset, config)


def from_folder(saved: Any, folder: Path) -> RunConfig:
    """Return `RunConfig.from_json(saved)`; errors include the folder or file."""
    try:
        return RunConfig.from_json(saved)
    except ValueError as error:  # such as a module that is not imported
        raise ValueError(f"{folder}: {error}") from error


def differing(saved: dict, now: dict) -> list[str]:
    """Return the names of the options in which two nested, JSON-able configurations differ.

    Options that only one configuration has are ignored: versions of the code add and remove
    options.
    """
    before, after = option_texts(saved), option_texts(now)
    return [name for name in before if before[name] != after.get(name, before[name])]


def option_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return options by their names on the command line, such as "agent.tau": "0.005"."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if name in PREFIXES and isinstance(value, dict):
            flat |= {PREFIXES[name] + field: shown_value(each) for field, each in value.items()}
        else:
            flat[name] = shown_value(value)
    return flat


def shown_value(value: Any) -> str:
    """Return a value in the syntax of the command line."""
    if isinstance(value, (tuple, list)):
        return " ".join(map(shown_value, value)) or "''"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
