"""Small agents that learn with a method's objective, and a batch for them."""

import jax
import jax.numpy as jnp

from experiments.runs import registry
from jaxreplay.objectives import Objective
from jaxreplay.types import Sample, Transition


def made(name: str, objective: Objective, count: int) -> tuple:
    """Return an agent, its initial state, and a batch of `count` transitions."""
    entry = registry.AGENTS[name]
    space = registry.environments.make(registry.EXAMPLES[entry.actions]).action_space
    agent = entry.make(entry.config(hidden=(8,)), space, objective)
    obs = jax.random.normal(jax.random.key(1), (count, 3))
    discrete = entry.actions == "discrete"
    action = jnp.zeros(count, jnp.int32) if discrete else jnp.full((count, space.size), 0.3)
    row = Transition(obs, action, jnp.arange(1.0 * count), jnp.full(count, 0.9), obs[::-1])
    state = agent.init(jax.random.key(0), obs[0], action[0])
    extras = jax.jit(agent.act)(state, obs, jax.random.key(3))[1]
    ones = jnp.ones(count)
    sample = Sample(jnp.arange(count), row._replace(extras=extras), ones, ones.astype(jnp.int32))
    return agent, state, sample


def is_discrete(name: str) -> bool:
    """Return whether the agent has discrete actions; others split the key of an update."""
    return registry.AGENTS[name].actions == "discrete"


def fed_by(method: str) -> list[str]:
    """Return the agents that offer what a method requires."""
    return [name for name in registry.AGENTS if registry.feeds(name, method)]
