"""Agents whose critic losses have weights that the objective learns, as in DisCor."""

from typing import Any, NamedTuple

import jax

from agents import common
from agents.networks import Critic, Obs, Params, QNetwork, apply, batch_of_one
from agents.types import Agent, Continuous, Discrete, Info
from jaxreplay import devices
from jaxreplay.objectives import Objective
from jaxreplay.types import Array, Sample, Transition


class WeightedState(NamedTuple):
    """State of an agent and of the weights of its losses."""

    agent: Any  # state of the wrapped agent
    weights: Any  # state of `Objective.learned_weights`


def learn_weights(
    agent: Agent, objective: Objective | None, action_space: Discrete | Continuous
) -> Agent:
    """Wrap an agent so that the objective's learned weights multiply its critic's losses.

    The weights of a batch replace `Sample.weights`. They are computed from the state before the
    update, for the agent's greedy next actions. The network that computes weights then learns from
    the feedback `td_error` of the update.

    Args:
      agent: agent whose feedback includes `td_error`.
      objective: the agent's objective, or None.
      action_space: action space of the agent.

    Returns:
      An agent whose state is a `WeightedState`, or `agent` if the objective learns no weights.
    """
    if objective is None or objective.learned_weights is None:
        return agent
    learned = objective.learned_weights
    if isinstance(action_space, Discrete):
        network = QNetwork(action_space.n, hidden=learned.hidden)
    else:
        network = Critic(learned.hidden)

    def value(params: Params, obs: Obs, action: Array) -> Array:
        if isinstance(action_space, Discrete):
            return common.batched_index(apply(network, params, obs), action)
        return apply(network, params, obs, action)

    def init(key: Array, obs: Obs, action: Array) -> WeightedState:
        inputs = (
            (batch_of_one(obs),)
            if isinstance(action_space, Discrete)
            else (batch_of_one(obs), action[None])
        )
        params = network.init(jax.random.fold_in(key, _OWN), *inputs)
        return WeightedState(agent.init(key, obs, action), learned.init(params))

    def act(state: WeightedState, obs: Obs, key: Array, previous: Any = None):
        return agent.act(state.agent, obs, key, previous)

    def greedy(state: WeightedState, obs: Obs) -> Array:
        return agent.greedy(state.agent, obs)

    def update(state: WeightedState, sample: Sample, key: Array) -> tuple[WeightedState, Info]:
        if devices.current() is not None:
            raise ValueError(
                "this replay method computes weights jointly over a batch, which cannot be sharded "
                "over devices: use one device, or another method"
            )
        next_action = agent.greedy(state.agent, sample.transition.next_obs)
        weights = learned.weights(state.weights, value, sample, next_action)
        inner, info = agent.update(state.agent, sample._replace(weights=weights), key)
        td = info.feedback["td_error"]
        learned_state = learned.learn(state.weights, value, sample, next_action, td)
        metrics = info.metrics | learned.metrics(learned_state)
        return WeightedState(inner, learned_state), Info(info.feedback, metrics)

    def feedback(state: WeightedState, t: Transition, key: Array) -> dict[str, Array]:
        return agent.feedback(state.agent, t, key)

    def gradient(state: WeightedState, t: Transition, weights: Array, key: Array) -> Any:
        assert agent.gradient is not None
        return agent.gradient(state.agent, t, weights, key)

    return agent._replace(
        init=init, act=act, greedy=greedy, update=update, feedback=feedback,
        gradient=agent.gradient and gradient,
    )  # fmt: skip


_OWN = 0x4C574E54  # distinguishes the key of the network from those of the agent
