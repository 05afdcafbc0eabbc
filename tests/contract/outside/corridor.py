"""A custom environment: a corridor with a reward at its end."""

import jax.numpy as jnp

from agents.types import Discrete
from experiments.environments.episodes import make_episodic


def reset(key):
    return jnp.zeros((), jnp.int32), jnp.zeros(1)  # state, observation


def step(key, place, action):
    place = jnp.maximum(place + jnp.where(action == 1, 1, -1), 0)
    done = place == 5
    return place, place[None] / 5.0, jnp.where(done, 1.0, 0.0), done


def make(name, config):
    if name != "corridor":
        raise ValueError(f"there is no task {name}: use corridor")
    return make_episodic(name, reset, step, Discrete(2), config.max_steps or 20, config)
