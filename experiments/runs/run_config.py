"""What decides a run's numbers: names, options and seeds."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from experiments import environments
from experiments.environments.config import EnvironmentConfig
from experiments.runs import presets, registry
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
    def from_json(cls, saved: dict[str, Any]) -> "RunConfig":
        """Return the RunConfig that `to_json` wrote.

        Raises:
          ValueError: the file was written by a version with other options.
        """
        config = defaults(saved["env"], saved["agent"], saved["replay"])
        try:
            parts = {
                section: dataclasses.replace(
                    getattr(config, section),
                    **_known(getattr(config, section), saved[section]),
                )
                for section in SECTIONS
            }
        except (TypeError, KeyError) as error:
            raise ValueError(
                f"config.json does not fit this version of jaxreplay ({error}): start a new run"
            ) from error
        return dataclasses.replace(config, seeds=saved["seeds"], seed=saved["seed"], **parts)


def _known(config: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """Return saved options, without those that were not set and no longer exist."""
    fields = {field.name for field in dataclasses.fields(config)}
    return {
        k: tuple(v) if isinstance(v, list) else v
        for k, v in saved.items()
        if k in fields or v is not None
    }


SECTIONS = ("loop", "sizes", "env_options", "agent_options", "replay_options")


def defaults(env: str, agent: str, replay: str, preset: str | None = None) -> RunConfig:
    """Return the run that these names stand for.

    Raises:
      ValueError: they do not fit one another.
    """
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
        return RunConfig.from_json(json.loads(path.read_text()))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error})") from error
