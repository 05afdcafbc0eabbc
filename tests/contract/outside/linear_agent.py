"""A custom agent: Q-learning with linear values."""

import dataclasses

import jax
import jax.numpy as jnp

from agents.types import Agent, Info, Offers
from jaxreplay import objectives
from jaxreplay.option import Config, option

ACTIONS, OFFERS = "discrete", Offers(frozenset({"td_error", "q_value"}), scalar_loss=True)


@dataclasses.dataclass(frozen=True)
class LinearConfig(Config):
    """Hyperparameters of linear Q-learning."""

    learning_rate: float = option(0.01, "step size", above=0)
    epsilon: float = option(0.1, "probability of a random action", at_least=0, at_most=1)


def agent(config, action_space, objective=None):
    objective = objective or objectives.weighted()
    error = objective.error or objectives.mse

    def init(key, obs, action):
        return jnp.zeros((obs.size, action_space.n))

    def greedy(table, obs):
        return jnp.argmax(obs @ table, axis=-1).astype(jnp.int32)

    def act(table, obs, key, previous=None):
        key_explore, key_action = jax.random.split(key)
        shape = obs.shape[:1]
        random = jax.random.randint(key_action, shape, 0, action_space.n)
        explore = jax.random.uniform(key_explore, shape) < config.epsilon
        return jnp.where(explore, random, greedy(table, obs)), None  # actions, and extras

    def feedback(table, t, key):
        target = t.reward + t.discount * (t.next_obs @ table).max(axis=-1)
        value = jnp.take_along_axis(t.obs @ table, t.action[:, None], axis=1)[:, 0]
        return {"td_error": jax.lax.stop_gradient(target) - value, "q_value": value}

    def update(table, sample, key):
        def loss(table):
            values = feedback(table, sample.transition, key)
            return objective.critic(error(values["td_error"]), sample, None), values

        (value, values), gradient = jax.value_and_grad(loss, has_aux=True)(table)
        return table - config.learning_rate * gradient, Info(values, {"loss": value})

    return Agent(init, act, greedy, update, feedback)
