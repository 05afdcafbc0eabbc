"""Registry of agents, and the combinations of agent, replay method and environment that fit."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from agents import (
    acer,
    ddpg,
    discrete_sac,
    dqn,
    ensemble_qr,
    iql,
    naf,
    ppo,
    pqn,
    r2d2,
    racer,
    rainbow,
    sac,
    td3,
    td7,
)
from agents.types import Agent, Offers
from experiments import environments
from experiments.environments.types import SIZES
from experiments.runs import presets
from experiments.runs.presets import PRESETS, Names
from experiments.training.config import LoopConfig, ReplaySizes
from jaxreplay.methods import METHODS
from jaxreplay.option import check_entry
from jaxreplay.sampler import Method
from jaxreplay.types import Provision, Requirements


class AgentEntry(NamedTuple):
    """Constructor, properties and defaults of an agent.

    `make(config, action_space, objective)` returns the agent. `objective` is the objective of a
    replay method; without an objective, the agent has its own loss, without importance weights.
    """

    config: type[Any]  # a frozen dataclass of `option` fields
    make: Callable[..., Agent]
    actions: Literal["discrete", "continuous"]
    offers: Offers
    loop: LoopConfig = LoopConfig()  # defaults of the loop for this agent
    sizes: ReplaySizes = ReplaySizes()


_DISCRETE = LoopConfig(n_step=5)
_CONTROL = LoopConfig(steps=20_000, warmup=1_000, eval_every=1_000)
# Some methods need the density of actions, also in the warm-up. Agents with a density choose their
# own actions in the warm-up with all methods, so that comparisons are fair.
_OWN_WARMUP = dataclasses.replace(_CONTROL, random_warmup=False)
_SCALED = dataclasses.replace(_OWN_WARMUP, gamma=0.995, scale_observations=True, scale_rewards=True)
_ON_POLICY = dataclasses.replace(_SCALED, steps=100_000, warmup=2_048, learn_every=256)


def _sized(batch_size: int) -> ReplaySizes:
    return ReplaySizes(batch_size=batch_size)


_PPO_SIZES = ReplaySizes(num_envs=8, capacity=2_048, batch_size=2_048)
_PQN = LoopConfig(steps=1_000_000, warmup=4_096, learn_every=32, eval_every=50_000)
_PQN_SIZES = ReplaySizes(num_envs=128, capacity=4_096, batch_size=4_096)
_DQN, _CONTINUOUS = _sized(64), _sized(256)
_AGENTS = {
    name: AgentEntry(*parts)
    for name, parts in {
        "dqn": (dqn.DQNConfig, dqn.dqn, "discrete", dqn.OFFERS, _DISCRETE, _DQN),
        "rainbow": (
            rainbow.RainbowConfig, rainbow.rainbow, "discrete", rainbow.OFFERS, _DISCRETE, _DQN
        ),
        "ensemble_qr": (
            ensemble_qr.EnsembleQRConfig, ensemble_qr.ensemble_qr, "discrete", ensemble_qr.OFFERS,
            _DISCRETE, _DQN,
        ),
        "r2d2": (
            r2d2.R2D2Config, r2d2.r2d2, "discrete", r2d2.OFFERS, LoopConfig(),
            ReplaySizes(num_envs=4, batch_size=32),
        ),
        "discrete_sac": (
            discrete_sac.DiscreteSACConfig, discrete_sac.discrete_sac, "discrete",
            discrete_sac.OFFERS, LoopConfig(), _DQN,
        ),
        "pqn": (pqn.PQNConfig, pqn.pqn, "discrete", pqn.OFFERS, _PQN, _PQN_SIZES),
        "td3": (td3.TD3Config, td3.td3, "continuous", td3.OFFERS, _CONTROL, _CONTINUOUS),
        "td7": (td7.TD7Config, td7.td7, "continuous", td7.OFFERS, _CONTROL, _CONTINUOUS),
        "sac": (sac.SACConfig, sac.sac, "continuous", sac.OFFERS, _OWN_WARMUP, _CONTINUOUS),
        "iql": (iql.IQLConfig, iql.iql, "continuous", iql.OFFERS, _CONTROL, _CONTINUOUS),
        "ddpg": (ddpg.DDPGConfig, ddpg.ddpg, "continuous", ddpg.OFFERS, _SCALED, _sized(128)),
        "naf": (naf.NAFConfig, naf.naf, "continuous", naf.OFFERS, _SCALED, _CONTINUOUS),
        "racer": (racer.RACERConfig, racer.racer, "continuous", racer.OFFERS, _SCALED, _CONTINUOUS),
        "acer": (acer.ACERConfig, acer.acer, "continuous", acer.OFFERS, _SCALED, _sized(384)),
        "ppo": (ppo.PPOConfig, ppo.ppo, "continuous", ppo.OFFERS, _ON_POLICY, _PPO_SIZES),
    }.items()
}  # fmt: skip
AGENTS: Mapping[str, AgentEntry] = MappingProxyType(_AGENTS)  # a view: `register_agent` adds to it

# An example environment for each kind of actions, for help and messages.
EXAMPLES: Mapping[str, str] = {"discrete": "gymnax/CartPole-v1", "continuous": "gymnax/Pendulum-v1"}
GOAL_EXAMPLES: Mapping[str, str] = {
    "discrete": "goals/BitFlip-15",
    "continuous": "goals/PointReach",
}

# Returns at which environments count as solved, for metric steps_to_threshold.
THRESHOLDS: Mapping[str, float] = {
    "gymnax/CartPole-v1": 475.0,
    "gymnasium/CartPole-v1": 475.0,
    "gymnax/Pendulum-v1": -200.0,
    "gymnasium/LunarLander-v3": 200.0,
    "gymnasium/LunarLanderContinuous-v3": 200.0,
    "gymnasium/BipedalWalker-v3": 300.0,
    "gymnax/Catch-bsuite": 0.9,  # returns are 1 or -1
    "gymnax/DeepSea-bsuite": 0.98,  # the optimum is 0.99 for all sizes
    **{f"gymnax/DeepSea-bsuite-{n}": 0.98 for n in SIZES},
    **{f"memory/{kind}-{n}": 0.9 for kind in ("Chain", "TMaze") for n in SIZES},  # optimum 1
    **{f"walk/{n}": 1.0 for n in SIZES},  # returns are 1 or 0
}


# Returns of good agents in other environments. An agent that gets less than a tenth of the way from
# its first evaluation to this return, or to the threshold, has hardly learned.
GOOD_RETURNS: Mapping[str, float] = {
    # TD3 after a million steps (Fujimoto et al. 2018, table 1).
    "gymnasium/HalfCheetah-v5": 9_637.0,
    "gymnasium/Hopper-v5": 3_564.0,
    "gymnasium/Walker2d-v5": 4_683.0,
    "gymnasium/Ant-v5": 4_372.0,
    "gymnasium/InvertedPendulum-v5": 1_000.0,
    "gymnasium/InvertedDoublePendulum-v5": 9_337.0,
    # Order of magnitude of DQN after five million frames (compare Young and Tian 2019).
    "gymnax/Asterix-MinAtar": 10.0,
    "gymnax/Breakout-MinAtar": 10.0,
    "gymnax/Freeway-MinAtar": 50.0,
    "gymnax/SpaceInvaders-MinAtar": 50.0,
    "sparse_pendulum/Pendulum-v0": 168.0,  # upright from the start, 200 steps less the swing-up
    **{f"goals/BitFlip-{n}": 0.0 for n in SIZES},  # the optimum is minus the bits that differ
}


def register_agent(name: str, entry: AgentEntry, *, replace: bool = False) -> None:
    """Add an agent to `AGENTS`.

    Args:
      name: name of the agent, a word.
      entry: constructor, properties and defaults of the agent.
      replace: whether to replace an agent of this name, for example in a notebook.

    Raises:
      ValueError: the name is taken or not a word, or a field of the entry has the wrong type.
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
            raise ValueError(f"{part} of agent '{name}' must be of type {kind.__name__}")
    if not replace and AGENTS.get(name, entry) != entry:
        raise ValueError(f"there is another agent '{name}': use another name, or replace=True")
    _AGENTS[name] = entry


def fits(agent: str, environment: str) -> bool:
    """Return whether an agent can act in an environment."""
    return AGENTS[agent].actions == environments.action_kind(environment)


def suits(replay: str, environment: str) -> bool:
    """Return whether an environment has goals, or the replay method does not need them."""
    entry = METHODS[replay]
    needed = entry.method(entry.config()).requires.goals
    return not needed or environments.has_goals(environment)


def feeds(agent: str, replay: str) -> bool:
    """Return whether the agent meets the method's requirements and the method meets the agent's."""
    return not any(_lacking(agent, _default(agent, replay)))


def replay_options(agent: str, replay: str) -> Any:
    """Return a replay method's default options for an agent.

    The defaults depend on the kind of the agent's actions, and enable the fields that the agent
    reads.
    """
    config = METHODS[replay].defaults(AGENTS[agent].actions)
    options = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **dict.fromkeys(AGENTS[agent].offers.reads & options, True))


def check_fit(agent: str, replay: str, environment: str) -> None:
    """Raise ValueError, listing alternatives, if names are unknown or do not fit one another."""
    check_known("agent", agent)
    check_known("replay", replay)
    if not fits(agent, environment):
        fitting = ", ".join(name for name in AGENTS if fits(name, environment))
        raise ValueError(
            f"agent '{agent}' needs {AGENTS[agent].actions} actions and {environment} has "
            f"{environments.action_kind(environment)} actions: use one of {fitting}, or give "
            f"--env, such as {EXAMPLES[AGENTS[agent].actions]} (--envs in compare and sweep)"
        )
    _check_lacking(agent, replay, _default(agent, replay))
    if not suits(replay, environment):
        raise ValueError(
            f"replay '{replay}' needs a task with goals, and {environment} has none: use another "
            f"replay, or give --env, such as {GOAL_EXAMPLES[AGENTS[agent].actions]} (--envs in "
            "compare and sweep)"
        )


def check_made(agent: str, replay: str, method: Method) -> None:
    """Raise ValueError if an agent does not fit a `method` that was made with a run's options."""
    _check_lacking(agent, replay, method, " with these options", "use the method's defaults, or ")


def check_preset(preset: str, agent: str, environment: str) -> None:
    """Raise ValueError if a preset is for another agent or another kind of actions."""
    presets.check_agent(preset, agent)
    if not fits(agent, environment):
        own = PRESETS[preset].env
        raise ValueError(
            f"preset '{preset}' is for {AGENTS[agent].actions} actions and {environment} has "
            f"{environments.action_kind(environment)} actions: use another environment"
            f"{f', such as --env {own}' if own else ''}, or leave out --preset"
        )


def check_known(kind: Literal["agent", "replay"], name: str) -> None:
    """Raise ValueError if a name is not registered, without importing a module."""
    if name not in (AGENTS if kind == "agent" else METHODS):
        plural = f" (--replays {name} in a comparison)" if kind == "replay" else ""
        raise ValueError(
            f"there is no {kind} '{name}': a module of your own is imported only if this command "
            f"names it too, as in --{kind} {name}{plural}"
        )


def fitting_names(
    preset: str | None, envs: Sequence[str] | None, agent: str | None, replays: Sequence[str] | None
) -> Names:
    """Return names of all parts of a run, for help texts, that fit the given names.

    Defaults of the preset or command are kept if they fit. If nothing fits, only the environment is
    adapted to the agent, and the check of the run reports the part that does not fit.
    """
    usual = presets.names(preset)
    others = AGENTS if preset is None else PRESETS[preset].agents
    agents = [agent] if agent else dict.fromkeys([usual.agent, *others])
    methods = [replays] if replays else [usual.replays, *([name] for name in METHODS)]
    examples = (*EXAMPLES.values(), *GOAL_EXAMPLES.values())
    places = [envs] if envs else [[usual.env], *([name] for name in examples)]
    for own, found, where in itertools.product(agents, methods, places):
        acts = all(fits(own, env) and suits(replay, env) for env in where for replay in found)
        if acts and all(feeds(own, replay) for replay in found):
            return Names(where[0], own, found[0], tuple(found))
    fitting = [where[0] for where in places if agent and all(fits(agent, env) for env in where)]
    return usual._replace(env=[*fitting, usual.env][0])


def _default(agent: str, replay: str) -> Method:
    return METHODS[replay].method(replay_options(agent, replay))


def _lacking(agent: str, method: Method) -> tuple[list[str], list[str]]:
    """Return the requirements of the method that the agent does not meet, and vice versa."""
    offers, requires = AGENTS[agent].offers, method.requires
    of_agent = offers.lack(requires)
    if method.sampler.length is not None and "sequences" not in offers.reads:
        of_agent.append("an agent that learns from sequences")
    return of_agent, lacking_in_method(requires, method.sampler.provides, offers)


def _check_lacking(
    agent: str, replay: str, method: Method, when: str = "", instead: str = ""
) -> None:
    of_agent, of_method = _lacking(agent, method)
    names = [f"agent '{agent}'", f"replay '{replay}'"]
    for lacking, (one, other) in ((of_method, names), (of_agent, names[::-1])):
        if lacking:
            fitting = ", ".join(name for name in METHODS if feeds(agent, name))
            advice = f"use one of {fitting}" if fitting else "no replay method fits this agent"
            raise ValueError(
                f"{one} needs {', '.join(lacking)}, which {other} does not give{when}: "
                f"{instead}{advice}"
            )


def catalogue() -> dict[str, Any]:
    """Return agents, replays, environments, presets and their combinations as JSON-able values."""
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
    """Return the names of the feedback, then of the properties, that a method requires."""
    properties = ("density", "scalar_loss", "chooses", "learned_weights", "all_new")
    asked = [name for name in properties if getattr(requires, name)]
    return sorted(requires.feedback | requires.feedback_of_new) + asked


def lacking_in_method(
    requires: Requirements, provides: Iterable[Provision], offers: Offers
) -> list[str]:
    """Return, in words, what the agent needs from a replay method and this method lacks."""
    lacking: list[str] = sorted(offers.reads - set(provides))
    if offers.on_policy and not requires.all_new:
        lacking.append("batches of new steps only")
    return lacking
