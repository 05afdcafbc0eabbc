"""Q-learning with a table, or linear in one-hot states: the agent of the Blind Cliffwalk."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents import common
from agents.types import Agent, Discrete, Info
from jaxreplay import objectives, requirements
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Objective, Sample, Transition

_PAPER = "Schaul et al. 2016, App. B.1"


@dataclasses.dataclass(frozen=True)
class TabularConfig(Config):
    """Hyperparameters of Q-learning over states 0 .. num_states - 1."""

    num_states: int = option(2, "states, numbered from 0", at_least=1)
    linear: bool = option(
        False, "one-hot state and a constant feature, which all states share", _PAPER
    )
    learning_rate: float = option(0.25, "step size", _PAPER, above=0)
    initial_std: float = option(0.1, "std of the initial weights", _PAPER, at_least=0)
    epsilon: float = option(0.1, "probability of a random action", at_least=0, at_most=1)


class TabularState(NamedTuple):
    """What Q-learning carries from update to update."""

    weights: Array  # [num_states (+ 1 if linear), actions] float32
    updates: Array  # [] int32


def q_table(config: TabularConfig, state: TabularState) -> Array:
    """Return Q of all states and actions, `[num_states, actions]`."""
    return _values(config, state.weights, jnp.arange(config.num_states))


def tabular(
    config: TabularConfig, action_space: Discrete, objective: Objective | None = None
) -> Agent:
    """Make a Q-learning agent whose observations are state numbers, int32 scalars.

    Targets come from the same weights: there is no target network. The default loss is half the
    squared error, so one transition moves Q by `learning_rate` times its TD error.

    Raises:
      ValueError: the action space is not discrete.
    """
    common.require(
        isinstance(action_space, Discrete),
        f"a Q table needs discrete actions, not {action_space}: choose another agent",
    )
    objective = common.complete(objective, objectives.mse)
    requirements.refuse_density(objective, "the tabular agent's policy has no density")

    def init(key: Array, obs: Array, action: Array) -> TabularState:
        del obs, action
        shape = (config.num_states + config.linear, action_space.n)
        weights = config.initial_std * jax.random.normal(key, shape)
        return TabularState(weights, jnp.zeros((), jnp.int32))

    def greedy(state: TabularState, obs: Array) -> Array:
        return jnp.argmax(_values(config, state.weights, obs), axis=-1).astype(jnp.int32)

    def act(
        state: TabularState, obs: Array, key: Array, previous: Any = None
    ) -> tuple[Array, tuple[()]]:
        del previous
        explore_key, action_key = jax.random.split(key)
        explore = jax.random.bernoulli(explore_key, config.epsilon, obs.shape)
        random = jax.random.randint(action_key, obs.shape, 0, action_space.n, jnp.int32)
        return jnp.where(explore, random, greedy(state, obs)), ()

    def q_values(weights: Array, t: Transition) -> Array:
        q = _values(config, weights, t.obs)
        return jnp.take_along_axis(q, t.action[:, None], axis=1).T  # [1, B]

    def targets(state: TabularState, t: Transition) -> Array:
        return t.reward + t.discount * _values(config, state.weights, t.next_obs).max(axis=1)

    def update(state: TabularState, sample: Sample, key: Array) -> tuple[TabularState, Info]:
        del key
        t = sample.transition
        grads, info = common.critic_gradient(
            lambda weights: q_values(weights, t), state.weights, targets(state, t), sample,
            objective,
        )  # fmt: skip
        weights = state.weights - config.learning_rate * grads
        return TabularState(weights, state.updates + 1), info

    def feedback(state: TabularState, t: Transition, key: Array) -> dict[str, Array]:
        del key
        return common.value_feedback(q_values(state.weights, t), targets(state, t))

    return Agent(init, act, greedy, update, feedback)


def _values(config: TabularConfig, weights: Array, states: Array) -> Array:
    """Return Q of `states` `[B]`, `[B, actions]`."""
    own = weights[states]
    return own + weights[-1] if config.linear else own
