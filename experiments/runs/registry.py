"""Which agents there are, and what fits what: agents, replay methods, environments."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from agents import acer, ddpg, dqn, naf, ppo, racer, rainbow, sac, td3
from agents.types import Agent
from experiments import environments
from experiments.runs.presets import PRESETS
from experiments.training.config import LoopConfig, ReplaySizes
from jaxreplay.methods import METHODS


class AgentEntry(NamedTuple):
    """How to make an agent from its options, and what it fits."""

    config: type[Any]  # a frozen dataclass of `option` fields
    make: Callable[..., Agent]  # (config, action_space, objective) -> Agent
    actions: str  # "discrete" or "continuous"
    feedback: frozenset[str]  # what its updates tell the replay; and "td_loss" if it learns from a
    # scalar TD error whose loss a method may replace (distributional agents do not)
    loop: LoopConfig  # defaults that suit it
    sizes: ReplaySizes
    needs: frozenset[str] = frozenset()  # what the replay method must give


_VALUES = frozenset({"td_error", "q_value", "target", "td_loss"})
_CONTROL = {
    "loop": LoopConfig(steps=20_000, warmup=1_000, eval_every=1_000),
    "sizes": ReplaySizes(batch_size=256),
}

_DENSITY = frozenset({"log_ratio"})
_SCALED = dataclasses.replace(
    _CONTROL["loop"],
    gamma=0.995,
    random_warmup=False,  # so that methods differ in nothing else, with behaviours or without
    scale_observations=True,
    scale_rewards=True,
)

AGENTS: Mapping[str, AgentEntry] = MappingProxyType(
    {
        "dqn": AgentEntry(
            dqn.DQNConfig,
            dqn.dqn,
            "discrete",
            _VALUES,
            LoopConfig(n_step=5),
            ReplaySizes(batch_size=64),
        ),
        "rainbow": AgentEntry(
            rainbow.RainbowConfig,
            rainbow.rainbow,
            "discrete",
            _VALUES - {"td_loss"},
            LoopConfig(n_step=5),
            ReplaySizes(batch_size=64),
        ),
        "td3": AgentEntry(td3.TD3Config, td3.td3, "continuous", _VALUES, **_CONTROL),
        "sac": AgentEntry(sac.SACConfig, sac.sac, "continuous", _VALUES | _DENSITY, **_CONTROL),
        "ddpg": AgentEntry(
            ddpg.DDPGConfig,
            ddpg.ddpg,
            "continuous",
            _VALUES | _DENSITY,
            _SCALED,
            ReplaySizes(batch_size=128),
        ),
        "naf": AgentEntry(
            naf.NAFConfig,
            naf.naf,
            "continuous",
            _VALUES | _DENSITY,
            _SCALED,
            ReplaySizes(batch_size=256),
        ),
        "racer": AgentEntry(
            racer.RACERConfig,
            racer.racer,
            "continuous",
            _DENSITY | {"td_error", "q_value", "target"},
            _SCALED,
            ReplaySizes(batch_size=256),
            needs=frozenset({"returns"}),
        ),
        "acer": AgentEntry(
            acer.ACERConfig,
            acer.acer,
            "continuous",
            _DENSITY | {"td_error", "q_value", "target"},
            _SCALED,
            ReplaySizes(batch_size=384),
            needs=frozenset({"trajectories"}),
        ),
        "ppo": AgentEntry(
            ppo.PPOConfig,
            ppo.ppo,
            "continuous",
            frozenset({"td_error", "q_value", "target", "log_ratio", "on_policy"}),
            dataclasses.replace(_SCALED, steps=100_000, warmup=2_048, learn_every=256),
            ReplaySizes(num_envs=8, capacity=2_048, batch_size=2_048),
            needs=frozenset({"on_policy"}),
        ),
    }
)

_WORDS = {
    "td_loss": "a scalar TD error to shape the loss of",
    "log_ratio": "a policy with a density (log_ratio)",
    "on_policy": "an agent that learns on-policy",
}

# Returns at which an environment counts as solved, for "steps to" columns.
THRESHOLDS: Mapping[str, float] = MappingProxyType(
    {
        "gymnax/CartPole-v1": 475.0,
        "gymnasium/CartPole-v1": 475.0,
        "gymnax/Pendulum-v1": -200.0,
        "gymnasium/LunarLander-v3": 200.0,
        "gymnasium/LunarLanderContinuous-v3": 200.0,
        "gymnasium/BipedalWalker-v3": 300.0,
    }
)


def fits(agent: str, environment: str) -> bool:
    """Tell whether an agent can act in an environment."""
    return AGENTS[agent].actions == environments.action_kind(environment)


def feeds(agent: str, replay: str) -> bool:
    """Tell whether agent and replay method give one another what they read."""
    return (
        METHODS[replay].needs <= AGENTS[agent].feedback
        and AGENTS[agent].needs <= METHODS[replay].gives
    )


def replay_options(agent: str, replay: str) -> Any:
    """Return a replay method's default options, with what the agent needs switched on."""
    config = METHODS[replay].config
    options = {field.name for field in dataclasses.fields(config)}
    return config(**dict.fromkeys(AGENTS[agent].needs & options, True))


def check_fit(agent: str, replay: str, environment: str) -> None:
    """Refuse combinations that cannot work.

    Raises:
      ValueError: one line that names the mismatch and what would fit.
    """
    if not fits(agent, environment):
        fitting = ", ".join(name for name in AGENTS if fits(name, environment))
        raise ValueError(
            f"agent '{agent}' needs {AGENTS[agent].actions} actions and {environment} has "
            f"{environments.action_kind(environment)} ones: use one of {fitting}"
        )
    if not feeds(agent, replay):
        fitting = ", ".join(name for name in METHODS if feeds(agent, name))
        lacking = AGENTS[agent].needs - METHODS[replay].gives
        if lacking:
            raise ValueError(
                f"agent '{agent}' needs {', '.join(sorted(lacking))}, which replay '{replay}' does "
                f"not give: use one of {fitting}"
            )
        missing = ", ".join(
            _WORDS.get(need, need)
            for need in sorted(METHODS[replay].needs - AGENTS[agent].feedback)
        )
        raise ValueError(
            f"replay '{replay}' needs {missing}, which agent '{agent}' does not give: "
            f"use one of {fitting}"
        )


def check_options(agent: str, options: Any) -> None:
    """Refuse replay options that switch off what the agent needs.

    Raises:
      ValueError: one line that names the option.
    """
    for need in AGENTS[agent].needs:
        if not getattr(options, need, True):
            raise ValueError(f"agent '{agent}' needs {need}: leave out --replay.{need} false")


def catalogue() -> dict[str, Any]:
    """List agents, replays, environments and presets with what fits what, JSON-able."""
    names = environments.names()
    return {
        "agents": {
            name: {
                "actions": entry.actions,
                "feedback": sorted(entry.feedback),
                "replays": [replay for replay in METHODS if feeds(name, replay)],
                "environments": [env for env in names if fits(name, env)],
            }
            for name, entry in AGENTS.items()
        },
        "replays": {
            name: {
                "needs": sorted(entry.needs),
                "agents": [agent for agent in AGENTS if feeds(agent, name)],
            }
            for name, entry in METHODS.items()
        },
        "environments": {
            name: {
                "actions": environments.action_kind(name),
                "agents": [agent for agent in AGENTS if fits(agent, name)],
                "loop": "host" if environments.is_host(name) else "compiled",
                "missing": environments.missing(name),
            }
            for name in names
        },
        "presets": {
            name: {"agents": list(preset.agents), "about": preset.about}
            for name, preset in PRESETS.items()
        },
    }
