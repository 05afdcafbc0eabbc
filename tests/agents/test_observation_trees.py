"""Training from observations of several arrays."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.dqn import DQNConfig, dqn
from agents.r2d2 import R2D2Config, r2d2
from agents.sac import SACConfig, sac
from agents.td3 import TD3Config, td3
from agents.types import Continuous, Discrete
from experiments.environments.episodes import make_episodic
from experiments.training.config import LoopConfig
from experiments.training.loop import make_train
from jaxreplay import Replay
from jaxreplay.methods import per, sequences

MADE = {
    "dqn": (dqn, DQNConfig, Discrete(2)), "r2d2": (r2d2, R2D2Config, Discrete(2)),
    "td3": (td3, TD3Config, Continuous(1)), "sac": (sac, SACConfig, Continuous(1)),
}  # fmt: skip


class Seen(NamedTuple):
    """A custom observation: a vector, an image and a number."""

    speed: Any
    image: Any
    time: Any


def task(space):
    """Return a task with 4 steps per episode, and reward 1 if the action matches the image."""

    def see(bright, time):
        image = jnp.full((3, 3, 1), 255 * bright, jnp.uint8)
        return Seen(jnp.zeros(2), image, time.astype(jnp.float32))

    def reset(key):
        state = jax.random.bernoulli(key).astype(jnp.int32), jnp.zeros((), jnp.int32)
        return state, see(*state)

    def step(key, state, action):
        bright, time = state
        if isinstance(space, Continuous):
            action = action[0] > 0
        state = jax.random.bernoulli(key).astype(jnp.int32), time + 1
        return state, see(*state), jnp.where(action == bright, 1.0, 0.0), state[1] == 4

    return make_episodic("bright", reset, step, space, max_steps=9)


@pytest.mark.slow  # quick tests of trees: test_laws, and training in test_dict_observations
@pytest.mark.parametrize("name", MADE)
def test_vmapped_seeds_learn_in_a_compiled_environment(name):
    make, config, space = MADE[name]
    recurrent = name == "r2d2"
    method = per.method()
    if recurrent:
        method = sequences.method(sequences.SequencesConfig(length=4, period=2))
    agent = make(config(hidden=(8,)), space, method.objective)
    loop = LoopConfig(
        steps=48, warmup=32, eval_every=16, eval_episodes=2, inspect=0,
        n_step=1 if recurrent else 2, scale_observations=not recurrent,
    )  # fmt: skip
    run = make_train(task(space), agent, Replay(method.sampler, capacity=64, batch_size=8), loop)
    state, metrics = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 2))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.agent) if x.dtype == jnp.float32)
    assert (metrics["fault"] == 0).all() and (metrics["eval_length"] == 4).all()
    paths = [
        (jax.tree_util.keystr(path), np.asarray(leaf))
        for path, leaf in jax.tree.leaves_with_path(state.agent)
    ]
    torsos = [leaf for path, leaf in paths if "Torso_0" in path and "kernel" in path]
    assert torsos and all((torso[0] != torso[1]).any() for torso in torsos)
