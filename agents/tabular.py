"""Q-learning with a table or linear values, as on the Blind Cliffwalk of Schaul et al. 2016."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents import common
from agents.critics import VALUES, critic_info, value_feedback
from agents.networks import Obs
from agents.types import Agent, Discrete, Info, Offers
from jaxreplay import objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition

OFFERS = Offers(VALUES, scalar_loss=True)
_PAPER = "Schaul et al. 2016, App. B.1"


@dataclasses.dataclass(frozen=True)
class TabularConfig(Config):
    """Q-learning hyperparameters for states 0 .. num_states - 1."""

    num_states: int = option(2, "number of states", at_least=1)
    linear: bool = option(False, "linear values with one-hot and constant features", _PAPER)
    learning_rate: float = option(0.25, "learning rate", _PAPER, above=0, at_most=10)
    initial_std: float = option(0.1, "std of the initial weights", _PAPER, at_least=0)
    epsilon: float = option(0.1, "probability of a random action", at_least=0, at_most=1)


class TabularState(NamedTuple):
    """Tabular agent state."""

    weights: Array  # [num_states (+ 1 if linear), actions] float32


def q_table(config: TabularConfig, state: TabularState) -> Array:
    """Return the Q-values `[num_states, actions]` of all states and actions."""
    return _values(config, state.weights, jnp.arange(config.num_states))


class _Tabular:
    """Implementation of the tabular agent."""

    def __init__(self, config: TabularConfig, space: Discrete, objective: Objective | None) -> None:
        common.check_arguments("The tabular agent", space, Discrete, objective, OFFERS)
        self.config, self.objective = config, common.with_default_loss(objective, objectives.mse)
        self.num_actions = space.n

    def init(self, key: Array, _obs: Obs, _action: Array) -> TabularState:
        shape = (self.config.num_states + self.config.linear, self.num_actions)
        weights = self.config.initial_std * jax.random.normal(key, shape)
        return TabularState(weights)

    def greedy(self, state: TabularState, obs: Obs) -> Array:
        return jnp.argmax(_values(self.config, state.weights, obs), axis=-1).astype(jnp.int32)

    def act(self, state: TabularState, obs: Obs, key: Array, _: Any = None) -> tuple[Array, None]:
        best, epsilon = self.greedy(state, obs), self.config.epsilon
        return common.epsilon_greedy(best, key, epsilon, self.num_actions), None

    def q_values(self, weights: Array, t: Transition) -> Array:
        return common.batched_index(_values(self.config, weights, t.obs), t.action)[None]  # [1, B]

    def targets(self, state: TabularState, t: Transition) -> Array:
        next_q = _values(self.config, state.weights, t.next_obs)
        return t.reward + t.discount * next_q.max(axis=1)

    def update(self, state: TabularState, sample: Sample, _key: Array) -> tuple[TabularState, Info]:
        t = sample.transition
        target = self.targets(state, t)

        def loss(weights: Array) -> tuple[Array, Array]:
            q = self.q_values(weights, t)
            td_error = target - q
            return self.objective.critic(self.objective.losses(td_error), sample, None), q

        (value, q), grads = jax.value_and_grad(loss, has_aux=True)(state.weights)
        value, grads = common.averaged((value, grads))
        weights = state.weights - self.config.learning_rate * grads
        return TabularState(weights), critic_info(value, q, target, grads)

    def feedback(self, state: TabularState, t: Transition, _key: Array) -> dict[str, Array]:
        return value_feedback(self.q_values(state.weights, t), self.targets(state, t))


def _values(config: TabularConfig, weights: Array, states: Obs) -> Array:
    """Return the Q-values `[B, actions]` for `states` `[B]`."""
    rows = weights[states]
    return rows + weights[-1] if config.linear else rows


def tabular(
    config: TabularConfig, action_space: Discrete, objective: Objective | None = None
) -> Agent:
    """Create a Q-learning agent for observations that are int32 state indices.

    The agent has no target network. With a table and the default loss, a batch of one transition
    changes its Q-value by `learning_rate` times the TD error.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects half the importance-weighted squared error.

    Raises:
      ValueError: If `action_space` is not `Discrete`, or if `objective` requires an action density.
    """
    agent = _Tabular(config, action_space, objective)
    return Agent(agent.init, agent.act, agent.greedy, agent.update, agent.feedback)
