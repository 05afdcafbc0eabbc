"""Which agents there are, and what fits what: agents, replay methods, environments."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from agents import dqn, sac, td3
from agents.types import Agent
from experiments import environments
from experiments.config import LoopConfig, ReplaySizes
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


_VALUES = frozenset({"td_error", "q_value", "target", "td_loss"})
_CONTROL = {
    "loop": LoopConfig(steps=20_000, warmup=1_000, eval_every=1_000),
    "sizes": ReplaySizes(batch_size=256),
}

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
        "td3": AgentEntry(td3.TD3Config, td3.td3, "continuous", _VALUES, **_CONTROL),
        "sac": AgentEntry(sac.SACConfig, sac.sac, "continuous", _VALUES, **_CONTROL),
    }
)

# Returns at which an environment counts as solved, for "steps to" columns.
THRESHOLDS: Mapping[str, float] = MappingProxyType(
    {"gymnax/CartPole-v1": 475.0, "gymnax/Pendulum-v1": -200.0}
)


def fits(agent: str, environment: str) -> bool:
    """Tell whether an agent can act in an environment."""
    return AGENTS[agent].actions == environments.action_kind(environment)


def feeds(agent: str, replay: str) -> bool:
    """Tell whether an agent's updates give the feedback that a replay method reads."""
    return METHODS[replay].needs <= AGENTS[agent].feedback


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
        missing = ", ".join(
            "a scalar TD error to shape the loss of" if need == "td_loss" else need
            for need in sorted(METHODS[replay].needs - AGENTS[agent].feedback)
        )
        fitting = ", ".join(name for name in METHODS if feeds(agent, name))
        raise ValueError(
            f"replay '{replay}' needs {missing}, which agent '{agent}' does not give: "
            f"use one of {fitting}"
        )


def catalogue() -> dict[str, Any]:
    """List agents, replays and environments with what fits what, JSON-able."""
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
            }
            for name in names
        },
    }
