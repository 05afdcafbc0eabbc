"""Seeds as several programs: results are independent of the number of cores and resuming."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.dqn import DQNConfig, dqn
from agents.types import Discrete
from experiments.environments.episodes import make_episodic
from experiments.runs import checkpoint
from experiments.training.config import LoopConfig
from experiments.training.loop import make_program
from experiments.training.seeds import CompiledRun
from experiments.training.spread import Layout, layout, width_of
from jaxreplay import Replay
from jaxreplay.methods import per

SEEDS = range(7, 12)  # two programs of three seeds, the sixth is a copy


def walk():
    """Return an environment with random rewards."""

    def reset(key):
        return jnp.zeros((), jnp.int32), jax.random.normal(key, (2,))

    def step(key, count, action):
        obs = jax.random.normal(key, (2,))
        return count + 1, obs, obs[0] * action, count >= 3

    return make_episodic("walk", reset, step, Discrete(2), 9)


@pytest.fixture(scope="module")
def program():
    environment, method = walk(), per.method()
    agent = dqn(DQNConfig(hidden=(8,)), environment.action_space, method.objective)
    replay = Replay(method.sampler, capacity=64, batch_size=8, num_envs=1)
    config = LoopConfig(steps=60, warmup=20, eval_every=10, eval_episodes=2, inspect=0)
    return make_program(environment, agent, replay, config)


def over(program, count: int) -> CompiledRun:
    return CompiledRun(
        program, SEEDS, Layout(len(SEEDS), 3, tuple(jax.local_devices()[:1] * count))
    )


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def trained(program):
    """Return the state after two log points on one core, their metrics, and the run."""
    run = over(program, 1)
    state, first = run.chunk(run.init(), 10)
    state, second = run.chunk(state, 10)
    return run.to_save(state), (first, second), run


def test_results_are_independent_of_the_number_of_cores(program, trained):
    run = over(program, 8)
    state, first = run.chunk(run.init(), 10)
    state, second = run.chunk(state, 10)
    assert_same((run.to_save(state), (first, second)), trained[:2])
    run.close()


def test_programs_equal_runs_of_their_seeds_alone(program, trained):
    state, (first, _), run = trained
    alone = CompiledRun(program, SEEDS[:3])
    _, metrics = alone.chunk(alone.init(), 10)
    assert set(metrics) == set(first)
    for name, values in first.items():
        assert values.shape == (len(SEEDS),)
        np.testing.assert_array_equal(values[:3], metrics[name])
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), run.like())


def test_runs_resume_on_another_number_of_cores(program, trained, tmp_path):
    run = over(program, 2)
    state, _ = run.chunk(run.init(), 10)
    checkpoint.save(tmp_path, 30, run.to_save(state), {})
    other = over(program, 1)
    loaded = checkpoint.load(tmp_path, other.like())
    state, metrics = other.chunk(other.resume(loaded), 10)
    assert_same((other.to_save(state), metrics), (trained[0], trained[1][1]))


def test_programs_have_no_collective_operations(trained):
    (text,) = {c.as_text() for (name, _), c in trained[2]._compiled.items() if name == "chunk"}
    assert not re.search(r"all-reduce|all-gather|all-to-all|collective|reduce-scatter", text)
    assert "num_partitions=1" in text or "num_partitions" not in text


def test_number_of_programs_depends_on_seeds_only():
    widths = {1: 1, 2: 2, 3: 3, 4: 2, 5: 3, 8: 2, 10: 3, 16: 2, 64: 8, 256: 32}
    assert {seeds: width_of(seeds) for seeds in widths} == widths
    few, many = layout(10, 1), layout(10, 8)
    assert (few.width, few.programs) == (many.width, many.programs) == (3, 4)
