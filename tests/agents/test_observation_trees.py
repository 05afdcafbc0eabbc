"""Agents whose observations are several arrays."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.acer import ACERConfig, acer
from agents.ddpg import DDPGConfig, ddpg
from agents.discrete_sac import DiscreteSACConfig, discrete_sac
from agents.dqn import DQNConfig, dqn
from agents.iql import IQLConfig, iql
from agents.naf import NAFConfig, naf
from agents.ppo import PPOConfig, ppo
from agents.r2d2 import R2D2Config, r2d2
from agents.racer import RACERConfig, racer
from agents.rainbow import RainbowConfig, rainbow
from agents.sac import SACConfig, sac
from agents.td3 import TD3Config, td3
from agents.td7 import TD7Config, td7
from agents.types import Agent, Continuous, Discrete
from experiments.environments.episodes import make_episodic
from experiments.training.config import LoopConfig
from experiments.training.loop import make_train
from jaxreplay import Replay
from jaxreplay.methods import per, sequences
from jaxreplay.types import Transition

ROWS, HIDDEN = 4, (8,)
MADE = {
    Discrete(3): {
        "dqn": (dqn, DQNConfig), "rainbow": (rainbow, RainbowConfig), "r2d2": (r2d2, R2D2Config),
        "discrete_sac": (discrete_sac, DiscreteSACConfig),
    },
    Continuous(2): {
        "td3": (td3, TD3Config), "td7": (td7, TD7Config), "sac": (sac, SACConfig),
        "iql": (iql, IQLConfig), "ddpg": (ddpg, DDPGConfig), "naf": (naf, NAFConfig),
        "racer": (racer, RACERConfig), "acer": (acer, ACERConfig), "ppo": (ppo, PPOConfig),
    },
}  # fmt: skip
CASES = [(name, space) for space, agents in MADE.items() for name in agents]


class Seen(NamedTuple):
    """A custom observation: a vector, an image and a number."""

    speed: Any
    image: Any
    time: Any


def made(name, space) -> Agent:
    make, config = MADE[space][name]
    return make(config(hidden=HIDDEN), space)


def joined(count):
    return np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)


def parted(obs):
    return {"a": obs[..., :2], "b": obs[..., 2]}


@pytest.mark.parametrize(("name", "space"), CASES)
def test_vectors_of_a_tree_are_concatenated(name, space):
    """Agents for the tree and for one vector have the same initial states and actions."""
    agent, key = made(name, space), jax.random.key(0)
    action = jnp.zeros((), jnp.int32) if isinstance(space, Discrete) else jnp.zeros(2)
    one = jax.eval_shape(agent.init, key, joined(1)[0], action)
    several = jax.eval_shape(agent.init, key, parted(joined(1)[0]), action)
    assert one == several
    assert jax.eval_shape(agent.greedy, one, joined(ROWS)) == jax.eval_shape(
        agent.greedy, several, parted(joined(ROWS))
    )


@pytest.mark.parametrize(("name", "space"), CASES)
def test_agents_accept_images_with_numbers(name, space):
    """Every network has a torso for the image, and every function accepts the tree."""
    agent, key = made(name, space), jax.random.key(0)
    floats = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    obs = Seen(floats(2), jax.ShapeDtypeStruct((4, 4, 1), jnp.uint8), floats())
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((ROWS, *x.shape), x.dtype), obs)
    discrete = isinstance(space, Discrete)
    like = jax.ShapeDtypeStruct((), jnp.int32) if discrete else floats(2)
    state = jax.eval_shape(agent.init, key, obs, like)
    paths = {jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)}
    assert any("Torso_0" in path for path in paths) and not any("Torso_1" in x for x in paths)
    action, extras = jax.eval_shape(agent.act, state, batch, key)
    assert action.shape == (ROWS, *like.shape) and action.dtype == like.dtype
    assert jax.eval_shape(agent.greedy, state, batch) == action
    flag = jax.ShapeDtypeStruct((ROWS,), bool)
    t = Transition(batch, action, floats(ROWS), floats(ROWS), batch, flag, flag, extras)
    for values in jax.eval_shape(agent.feedback, state, t, key).values():
        assert values.shape == (ROWS,)


@pytest.mark.parametrize(
    "options",
    [
        {"critics": 3, "network": "residual", "policy_delay": 2, "reset_every": 4},
        {"batch_renorm": True, "target_network": False},
    ],
)
def test_sac_options_accept_images_with_numbers(options, make_sample):
    agent = sac(SACConfig(hidden=HIDDEN, **options), Continuous(2))
    obs = {"image": np.zeros((ROWS, 4, 4, 1), np.uint8), "speed": joined(ROWS)}
    one, numbers = jax.tree.map(lambda x: x[0], obs), np.zeros(ROWS)
    sample = make_sample(numbers, np.zeros((ROWS, 2), np.float32), numbers, numbers, numbers)
    transition = sample.transition._replace(obs=obs, next_obs=obs)
    state = jax.eval_shape(agent.init, jax.random.key(0), one, jnp.zeros(2))
    sample = sample._replace(transition=transition)
    assert jax.eval_shape(agent.update, state, sample, jax.random.key(0))[0] == state


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


def trained(name):
    space = Continuous(1) if name in ("td3", "sac") else Discrete(2)
    recurrent = name == "r2d2"
    method = (
        sequences.method(sequences.SequencesConfig(length=4, period=2))
        if recurrent
        else per.method()
    )
    make, config = (MADE[Continuous(2)] | MADE[Discrete(3)])[name]
    agent = make(config(hidden=HIDDEN), space, method.objective)
    replay = Replay(method.sampler, capacity=64, batch_size=8)
    loop = LoopConfig(
        steps=48, warmup=32, eval_every=16, eval_episodes=2, inspect=0,
        n_step=1 if recurrent else 2, scale_observations=not recurrent,
    )  # fmt: skip
    run = make_train(task(space), agent, replay, loop)
    return jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 2))


@pytest.mark.parametrize(
    "name",
    ["dqn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("td3", "sac", "r2d2"))],
)
def test_vmapped_seeds_learn_in_a_compiled_environment(name):
    state, metrics = trained(name)
    params = [x for x in jax.tree.leaves(state.agent) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert all(np.isfinite(x).all() for x in params)
    assert (metrics["fault"] == 0).all() and (metrics["eval_length"] == 4).all()
    torsos = [
        np.asarray(leaf)
        for path, leaf in jax.tree.leaves_with_path(state.agent)
        if "Torso_0" in jax.tree_util.keystr(path) and "kernel" in jax.tree_util.keystr(path)
    ]
    assert torsos and all((torso[0] != torso[1]).any() for torso in torsos)
