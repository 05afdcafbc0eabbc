"""Which agents there are, and what fits what: agents, replay methods, environments."""

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from agents import acer, ddpg, dqn, naf, ppo, racer, rainbow, sac, td3
from agents.types import Agent, Offers
from experiments import environments
from experiments.environments.types import SIZES
from experiments.runs import presets
from experiments.runs.presets import PRESETS
from experiments.training.config import LoopConfig, ReplaySizes
from jaxreplay.methods import METHODS
from jaxreplay.objectives import Objective
from jaxreplay.option import check_entry
from jaxreplay.sampler import Method
from jaxreplay.types import DENSITY, Provision, Requirements


class MakeAgent(Protocol):
    """Make an agent from its options."""

    def __call__(
        self, config: Any, action_space: Any, objective: Objective | None = None, /
    ) -> Agent:
        """Return the agent.

        Args:
          config: an instance of the entry's config.
          action_space: `Discrete` or `Continuous`.
          objective: of the replay method; None: unweighted, the agent's own loss.
        """
        ...


class AgentEntry(NamedTuple):
    """How to make an agent from its options, and what it fits."""

    config: type[Any]  # a frozen dataclass of `option` fields
    make: MakeAgent
    actions: Literal["discrete", "continuous"]
    offers: Offers
    loop: LoopConfig = LoopConfig()  # defaults that suit it
    sizes: ReplaySizes = ReplaySizes()


_VALUES = frozenset({"td_error", "q_value", "target"})
_RATIOS = _VALUES | {"log_ratio"}
_CRITIC = Offers(_VALUES, scalar_loss=True)
_STOCHASTIC = Offers(_RATIOS, scalar_loss=True, density=True)
_ESTIMATES = frozenset({"value", "advantage", "next_value"})
_DISCRETE = LoopConfig(n_step=5)
_CONTROL = LoopConfig(steps=20_000, warmup=1_000, eval_every=1_000)
# Agents whose density a method may ask for act by themselves from the start, with whatever method,
# so that methods differ in nothing else.
_OWN_WARMUP = dataclasses.replace(_CONTROL, random_warmup=False)
_SCALED = dataclasses.replace(
    _OWN_WARMUP,
    gamma=0.995,
    scale_observations=True,
    scale_rewards=True,
)
_ON_POLICY = dataclasses.replace(_SCALED, steps=100_000, warmup=2_048, learn_every=256)


def _sizes(batch_size: int) -> ReplaySizes:
    return ReplaySizes(batch_size=batch_size)


_AGENTS = {
    "dqn": AgentEntry(dqn.DQNConfig, dqn.dqn, "discrete", _CRITIC, _DISCRETE, _sizes(64)),
    "rainbow": AgentEntry(
        rainbow.RainbowConfig, rainbow.rainbow, "discrete", Offers(_VALUES), _DISCRETE, _sizes(64)
    ),
    "td3": AgentEntry(td3.TD3Config, td3.td3, "continuous", _CRITIC, _CONTROL, _sizes(256)),
    "sac": AgentEntry(sac.SACConfig, sac.sac, "continuous", _STOCHASTIC, _OWN_WARMUP, _sizes(256)),
    "ddpg": AgentEntry(ddpg.DDPGConfig, ddpg.ddpg, "continuous", _STOCHASTIC, _SCALED, _sizes(128)),
    "naf": AgentEntry(naf.NAFConfig, naf.naf, "continuous", _STOCHASTIC, _SCALED, _sizes(256)),
    "racer": AgentEntry(
        racer.RACERConfig,
        racer.racer,
        "continuous",
        Offers(_RATIOS | _ESTIMATES, density=True, reads=frozenset({"returns"})),
        _SCALED,
        _sizes(256),
    ),
    "acer": AgentEntry(
        acer.ACERConfig,
        acer.acer,
        "continuous",
        Offers(_RATIOS, reads=frozenset({"trajectories"})),
        _SCALED,
        _sizes(384),
    ),
    "ppo": AgentEntry(
        ppo.PPOConfig,
        ppo.ppo,
        "continuous",
        Offers(_RATIOS, on_policy=True),
        _ON_POLICY,
        ReplaySizes(num_envs=8, capacity=2_048, batch_size=2_048),
    ),
}
AGENTS: Mapping[str, AgentEntry] = MappingProxyType(_AGENTS)  # a view: `register_agent` adds to it

# An environment for each kind of actions, that help and messages name.
EXAMPLES: Mapping[str, str] = MappingProxyType(
    {"discrete": "gymnax/CartPole-v1", "continuous": "gymnax/Pendulum-v1"}
)

# Returns at which an environment counts as solved, for "steps to" columns.
THRESHOLDS: Mapping[str, float] = MappingProxyType(
    {
        "gymnax/CartPole-v1": 475.0,
        "gymnasium/CartPole-v1": 475.0,
        "gymnax/Pendulum-v1": -200.0,
        "gymnasium/LunarLander-v3": 200.0,
        "gymnasium/LunarLanderContinuous-v3": 200.0,
        "gymnasium/BipedalWalker-v3": 300.0,
        "gymnax/Catch-bsuite": 0.9,  # an episode returns 1 or -1
        "gymnax/DeepSea-bsuite": 0.98,  # at best 0.99, whatever its size
        **{f"gymnax/DeepSea-bsuite-{n}": 0.98 for n in SIZES},
        **{f"walk/{n}": 1.0 for n in SIZES},  # an episode returns 1 or 0
    }
)


def register_agent(name: str, entry: AgentEntry, *, replace: bool = False) -> None:
    """Make an agent of your own known by a name, to whatever asks `AGENTS`.

    Args:
      name: that no other agent has.
      entry: how to make it, and what it fits.
      replace: take the name from an agent that has it, as when a notebook's cell runs again.

    Raises:
      ValueError: another agent has the name, it is not a word, or a part of the entry is not of
        its kind.
    """
    if not isinstance(entry, AgentEntry):
        raise ValueError(f"the entry of agent '{name}' is {entry!r}: give an AgentEntry")
    check_entry(name, entry.config, entry.make)
    if entry.actions not in EXAMPLES:
        raise ValueError(
            f"the actions of agent '{name}' are {entry.actions!r}: give 'discrete' or 'continuous'"
        )
    for part, kind in (("offers", Offers), ("loop", LoopConfig), ("sizes", ReplaySizes)):
        if not isinstance(getattr(entry, part), kind):
            raise ValueError(f"{part} of agent '{name}' are not {kind.__name__}: give one")
    if not replace and AGENTS.get(name, entry) != entry:
        raise ValueError(f"there is another agent '{name}': use another name, or replace=True")
    _AGENTS[name] = entry


def fits(agent: str, environment: str) -> bool:
    """Tell whether an agent can act in an environment."""
    return AGENTS[agent].actions == environments.action_kind(environment)


def feeds(agent: str, replay: str) -> bool:
    """Tell whether agent and replay method give one another what they read."""
    of_agent, of_method = _lacking(agent, replay)
    return not of_agent and not of_method


def replay_options(agent: str, replay: str) -> Any:
    """Return a replay method's default options for an agent.

    They follow the kind of its actions, and what the agent reads is switched on.
    """
    config = METHODS[replay].defaults(AGENTS[agent].actions)
    options = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **dict.fromkeys(AGENTS[agent].offers.reads & options, True))


def check_fit(agent: str, replay: str, environment: str) -> None:
    """Refuse combinations that cannot work.

    Raises:
      ValueError: one line that names the mismatch and what would fit.
    """
    check_known("agent", agent)
    check_known("replay", replay)
    if not fits(agent, environment):
        fitting = ", ".join(name for name in AGENTS if fits(name, environment))
        raise ValueError(
            f"agent '{agent}' needs {AGENTS[agent].actions} actions and {environment} has "
            f"{environments.action_kind(environment)} ones: use one of {fitting}, or give --env, "
            f"such as {EXAMPLES[AGENTS[agent].actions]} (--envs in a sweep)"
        )
    of_agent, of_method = _lacking(agent, replay)
    if of_method:
        raise ValueError(
            f"agent '{agent}' needs {', '.join(of_method)}, which replay '{replay}' does "
            f"not give: {_methods_for(agent)}"
        )
    if of_agent:
        raise ValueError(
            f"replay '{replay}' needs {', '.join(of_agent)}, which agent '{agent}' does not give: "
            f"{_methods_for(agent)}"
        )


def check_preset(preset: str, agent: str, environment: str) -> None:
    """Refuse a preset for another agent or for another kind of actions.

    Raises:
      ValueError: one line that names the mismatch and what would fit.
    """
    presets.check_agent(preset, agent)
    if not fits(agent, environment):
        own = PRESETS[preset].env
        raise ValueError(
            f"preset '{preset}' is for {AGENTS[agent].actions} actions and {environment} has "
            f"{environments.action_kind(environment)} ones: use another environment"
            f"{f', such as --env {own}' if own else ''}, or leave out --preset"
        )


def check_made(agent: str, replay: str, method: Method) -> None:
    """Refuse a method whose options make it need what the agent lacks, or lack what it reads.

    Raises:
      ValueError: one line that names the mismatch.
    """
    of_agent, of_method = _lacking_between(agent, method)
    if of_method:
        raise ValueError(
            f"agent '{agent}' needs {', '.join(of_method)}, which replay '{replay}' does not give "
            "with these options: leave out the one that switches it off"
        )
    if of_agent:
        raise ValueError(
            f"replay '{replay}' needs {', '.join(of_agent)} with these options, which agent "
            f"'{agent}' does not give: use its defaults, or another agent"
        )


def _default(agent: str, replay: str) -> Method:
    return METHODS[replay].method(replay_options(agent, replay))


def _lacking(agent: str, replay: str) -> tuple[list[str], list[str]]:
    """Return in words what the agent lacks for the method, and the method for the agent."""
    return _lacking_between(agent, _default(agent, replay))


def _lacking_between(agent: str, method: Method) -> tuple[list[str], list[str]]:
    offers = AGENTS[agent].offers
    return (
        lacking_in_agent(method.requires, offers),
        lacking_in_method(method.requires, method.sampler.provides, offers),
    )


def _methods_for(agent: str) -> str:
    fitting = ", ".join(name for name in METHODS if feeds(agent, name))
    return f"use one of {fitting}" if fitting else "no replay method fits this agent"


def check_known(kind: Literal["agent", "replay"], name: str) -> None:
    """Refuse a name that nothing is registered by; import nothing.

    Raises:
      ValueError: one line that says how to name a module of one's own.
    """
    if name not in (AGENTS if kind == "agent" else METHODS):
        plural = f" (--replays {name} in a comparison)" if kind == "replay" else ""
        raise ValueError(
            f"there is no {kind} '{name}': a module of your own is imported only if this command "
            f"names it too, as in --{kind} {name}{plural}"
        )


def catalogue() -> dict[str, Any]:
    """List agents, replays, environments and presets with what fits what, JSON-able."""
    names = environments.names()
    return {
        "agents": {
            name: {
                "actions": entry.actions,
                "feedback": sorted(entry.offers.feedback),
                "replays": [replay for replay in METHODS if feeds(name, replay)],
                "environments": [env for env in names if fits(name, env)],
            }
            for name, entry in AGENTS.items()
        },
        "replays": {
            name: {
                "needs": asked_of_agent(entry.method(entry.config()).requires),
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
            name: {
                "agents": list(preset.agents),
                "replays": list(preset.replays),
                "environment": preset.env or "",
                "about": preset.about,
                "differs": list(preset.differs),
            }
            for name, preset in PRESETS.items()
        },
    }


def asked_of_agent(requires: Requirements) -> list[str]:
    """Return the names of what a method needs of an agent: feedback, then properties."""
    properties = ("density", "scalar_loss", "all_new")
    asked = [name for name in properties if getattr(requires, name)]
    return sorted(requires.feedback | requires.feedback_of_new) + asked


def lacking_in_agent(requires: Requirements, offers: Offers) -> list[str]:
    """Return in words what a method needs and an agent does not give; empty if it fits."""
    lacking = sorted((requires.feedback | requires.feedback_of_new) - offers.feedback)
    if requires.density and not offers.density:
        lacking = [name for name in lacking if name != "log_ratio"] + [DENSITY]
    if requires.scalar_loss and not offers.scalar_loss:
        lacking.append("a scalar TD error to shape the loss of")
    if requires.all_new and not offers.on_policy:
        lacking.append("an agent that learns on-policy")
    return lacking


def lacking_in_method(
    requires: Requirements, provides: Iterable[Provision], offers: Offers
) -> list[str]:
    """Return in words what an agent reads and a method does not provide; empty if it fits."""
    lacking: list[str] = sorted(offers.reads - set(provides))
    if offers.on_policy and not requires.all_new:
        lacking.append("batches of new steps only")
    return lacking
