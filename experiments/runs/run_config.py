"""What decides a run's numbers: names, options and seeds."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from experiments import environments
from experiments.analysis import files
from experiments.environments.types import EnvironmentConfig
from experiments.runs import presets, registry
from experiments.runs.renamed import up_to_date
from experiments.training.config import LoopConfig, ReplaySizes


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's numbers."""

    env: str
    agent: str
    replay: str
    seeds: int
    seed: int
    env_options: EnvironmentConfig  # of the environment's family
    agent_options: Any
    replay_options: Any
    sizes: ReplaySizes
    loop: LoopConfig

    def to_json(self) -> dict[str, Any]:
        """Return nested plain values, the sections named as on the command line."""
        return {
            "env": self.env,
            "agent": self.agent,
            "replay": self.replay,
            "seeds": self.seeds,
            "seed": self.seed,
            **{section: dataclasses.asdict(getattr(self, section)) for section in SECTIONS},
        }

    @classmethod
    def from_json(cls, saved: Any) -> "RunConfig":
        """Return the RunConfig that `to_json` wrote.

        Modules that it names are not imported: whoever wants them has named them already.

        Raises:
          ValueError: one line: a field is missing, unknown, or not of its kind or within its
            bounds; or a module would have to be imported.
        """
        if not isinstance(saved, dict):
            raise ValueError("config.json holds no configuration: restore it, or start a new run")
        saved = up_to_date(saved)
        names = {name: _field(saved, name, str) for name in ("env", "agent", "replay")}
        config = saved_defaults(**names)
        parts = {name: _section(getattr(config, name), saved, name) for name in SECTIONS}
        seeds, seed = _field(saved, "seeds", int), _field(saved, "seed", int)
        return dataclasses.replace(config, seeds=seeds, seed=seed, **parts)


def saved_defaults(env: str, agent: str, replay: str) -> RunConfig:
    """Return the run that names from a file stand for; import nothing.

    Raises:
      ValueError: one line: as `defaults`, or a module would have to be imported.
    """
    check_imported(env)
    return defaults(env, agent, replay)


def check_imported(env: str) -> None:
    """Refuse an environment of a module that nothing has imported.

    Raises:
      ValueError: one line that says how to name it.
    """
    module = environments.module_of(env)
    if module is not None and module not in sys.modules:
        raise ValueError(
            f"the environment {env} is in module {module}, which is imported only where you name "
            f"it: if you trust it, add --env {env} (--envs in a sweep)"
        )


def _field(saved: dict[str, Any], name: str, kind: type) -> Any:
    """Return a field of a saved configuration."""
    if name not in saved:
        raise ValueError(f"config.json lacks {name}: restore it, or start a new run")
    if not isinstance(saved[name], kind) or isinstance(saved[name], bool):
        raise ValueError(f"config.json has {name}={saved[name]!r}, no {kind.__name__}: restore it")
    return saved[name]


def _section(config: Any, saved: dict[str, Any], name: str) -> Any:
    """Return the options of a section as they were saved."""
    options = _field(saved, name, dict)
    fields = {field.name for field in dataclasses.fields(config)}
    for field in sorted(fields - set(options)):
        raise ValueError(
            f"config.json lacks {name}.{field}: it was edited, or made by another version of "
            "jaxreplay: restore it, or start a new run"
        )
    for field in sorted(set(options) - fields):
        if options[field] is not None:  # else it was not in use, and may be gone
            raise ValueError(
                f"config.json has {name}.{field}, which this version of jaxreplay does not know: "
                "use the version that made it, or start a new run"
            )
    values = {field: options[field] for field in fields}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return dataclasses.replace(config, **values)
    except ValueError as error:
        raise ValueError(f"config.json, {name}: {error}") from error


# How the options of each section of a RunConfig begin on the command line.
PREFIXES = {
    "loop": "", "sizes": "", "env_options": "env.", "agent_options": "agent.",
    "replay_options": "replay.",
}  # fmt: skip
SECTIONS = tuple(PREFIXES)


def defaults(env: str, agent: str, replay: str, preset: str | None = None) -> RunConfig:
    """Return the run that these names stand for.

    Raises:
      ValueError: one line: they do not fit one another.
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


def read(folder: Path, what: str = "run") -> RunConfig:
    """Read the configuration of the run in `folder`.

    Args:
      folder: of the run.
      what: what the message calls a run that is missing.

    Raises:
      ValueError: one line: there is none, or its file is damaged or of another version.
    """
    path = folder / "config.json"
    if not path.exists():
        inside = sorted(found.parent.name for found in folder.glob("*/config.json"))
        hint = f", such as {folder / inside[0]}" if inside else ""
        raise ValueError(f"{folder} holds no {what}: give the folder of a run{hint}")
    try:
        saved = files.read_json(path)
    except files.Unreadable as error:
        raise ValueError(f"{path} is damaged ({error}): restore it, or start a new run") from error
    return from_folder(saved, folder)


def from_folder(saved: Any, folder: Path) -> RunConfig:
    """Return a saved configuration, naming the folder that it is from where it can't be used.

    Raises:
      ValueError: as `RunConfig.from_json`.
    """
    try:
        return RunConfig.from_json(saved)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
