"""Seeds as several programs: the same numbers on however many cores, alone and resumed."""

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

SEEDS = range(7, 12)  # as two programs of three, the last one of them a copy


def walk():
    """An environment whose rewards are random."""

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
    """One core: the state after two log points, with the metrics of both, and the run."""
    run = over(program, 1)
    state, first = run.chunk(run.init(), 10)
    state, second = run.chunk(state, 10)
    return run.to_save(state), (first, second), run


def test_every_number_of_cores_gives_the_same_numbers(program, trained):
    run = over(program, 8)
    state, first = run.chunk(run.init(), 10)
    state, second = run.chunk(state, 10)
    assert_same((run.to_save(state), (first, second)), trained[:2])
    run.close()


def test_a_program_is_that_of_its_seeds_alone(program, trained):
    state, (first, _), run = trained
    alone = CompiledRun(program, SEEDS[:3])
    _, metrics = alone.chunk(alone.init(), 10)
    assert set(metrics) == set(first)
    for name, values in first.items():
        assert values.shape == (len(SEEDS),)
        np.testing.assert_array_equal(values[:3], metrics[name])
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), run.like())


def test_it_goes_on_from_a_checkpoint_on_another_number_of_cores(program, trained, tmp_path):
    run = over(program, 2)
    state, _ = run.chunk(run.init(), 10)
    checkpoint.save(tmp_path, 30, run.to_save(state), {})
    other = over(program, 1)
    loaded = checkpoint.load(tmp_path, other.like())
    state, metrics = other.chunk(other.resume(loaded), 10)
    assert_same((other.to_save(state), metrics), (trained[0], trained[1][1]))


def test_programs_never_wait_for_one_another(trained):
    (text,) = {c.as_text() for (name, _), c in trained[2]._compiled.items() if name == "chunk"}
    assert not re.search(r"all-reduce|all-gather|all-to-all|collective|reduce-scatter", text)
    assert "num_partitions=1" in text or "num_partitions" not in text


def test_how_many_programs_there_are_hangs_on_the_seeds_alone():
    widths = {s: width_of(s) for s in (1, 2, 3, 4, 5, 8, 10, 16, 64, 256)}
    assert widths == {1: 1, 2: 2, 3: 3, 4: 2, 5: 3, 8: 2, 10: 3, 16: 2, 64: 8, 256: 32}
    few, many = layout(10, 1), layout(10, 8)
    assert (few.width, few.programs) == (many.width, many.programs) == (3, 4)
    numbers = [sorted(map(int, re.findall(r"\d+", one.describe()))) for one in (few, many)]
    assert numbers == [[1, 3, 4, 10], [3, 4, 4, 10]]  # cores, width, programs, seeds
