"""Compiled runs as several programs: the same numbers on any number of cores, and after resuming.

The counterpart for environments on the host is `test_host_loop`.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.dqn import DQNConfig, dqn
from agents.types import Discrete
from experiments.environments.episodes import make_episodic
from experiments.studies.checkpoints import Checkpoint, Progress
from experiments.studies.devices import choose, width_of
from experiments.training import drivers
from experiments.training.config import LoopConfig
from experiments.training.drivers import CompiledDriver, Layout, Programs
from experiments.training.loop import make_program
from experiments.training.seeds import keys_of
from jaxreplay import Replay
from jaxreplay.methods import per

SEEDS = range(7, 12)  # two programs of three seeds; the sixth is a copy
WIDTH = 3


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


@pytest.fixture(scope="module")
def programs():
    return Programs(8)


def over(program, programs, cores: int, seeds=SEEDS) -> CompiledDriver:
    """Return the prepared driver of some seeds on a number of cores."""
    layout = Layout(len(seeds), WIDTH, choose(cores))
    driver = CompiledDriver(program, keys_of(seeds), layout, programs)
    driver.prepare()
    return driver


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def trained(program, programs):
    """Return the saved state after two log points on one core, their metrics, and the driver."""
    driver = over(program, programs, 1)
    state, first = driver.chunk(driver.init(), 10)
    state, second = driver.chunk(state, 10)
    return driver.to_save(state), (first, second), driver


@pytest.mark.parametrize("cores", [2, 3])
def test_numbers_are_independent_of_the_number_of_cores(program, programs, trained, cores):
    driver = over(program, programs, cores)
    state, first = driver.chunk(driver.init(), 10)
    state, second = driver.chunk(state, 10)
    assert_same((driver.to_save(state), (first, second)), trained[:2])
    driver.close()


def test_programs_equal_runs_of_their_seeds_alone(program, programs, trained):
    state, (first, _), driver = trained
    alone = over(program, programs, 1, SEEDS[:WIDTH])
    _, metrics = alone.chunk(alone.init(), 10)
    assert set(metrics) == set(first)
    for name, values in first.items():
        assert values.shape == (len(SEEDS),)
        np.testing.assert_array_equal(values[:WIDTH], metrics[name])
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), driver.like())


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (1, 1)])
def test_checkpoints_resume_on_another_number_of_cores(
    program, programs, trained, tmp_path, before, after
):
    driver, checkpoint = over(program, programs, before), Checkpoint(tmp_path, [("walk", 7)])
    state, metrics = driver.chunk(driver.init(), 10)
    checkpoint.write(Progress([metrics]), 30, driver.to_save(state))
    resumed = over(program, programs, after)
    progress, saved = checkpoint.read(resumed)
    assert_same(list(progress.points), [trained[1][0]])
    state, metrics = resumed.chunk(resumed.resume(saved), 10)
    assert_same((resumed.to_save(state), metrics), (trained[0], trained[1][1]))


def test_drivers_share_a_program_that_is_traced_and_compiled_once(
    program, programs, trained, monkeypatch
):
    def never(*args):
        raise AssertionError("traced or compiled again")

    monkeypatch.setattr(drivers, "over_seeds", never)
    monkeypatch.setattr(drivers, "_compile", never)
    for cores in (1, 2):
        driver = over(program, programs, cores)
        assert driver.compiling == 0 and driver.bytes > 0


def test_programs_that_fail_to_compile_fail_every_driver(program, monkeypatch):
    def fail(*args):
        raise RuntimeError("no memory")

    monkeypatch.setattr(drivers, "_compile", fail)
    programs = Programs(1)
    for _ in range(2):  # the second one finds the failed program
        with pytest.raises(RuntimeError, match="no memory"):
            programs.compiled(program, None, np.zeros(3), choose(1)[0])


def test_programs_have_no_collective_operations(trained):
    text = trained[2]._chunks[0].as_text()
    assert not re.search(r"all-reduce|all-gather|all-to-all|collective|reduce-scatter", text)
    assert "num_partitions=1" in text or "num_partitions" not in text


def test_number_of_programs_depends_on_seeds_only():
    widths = {1: 1, 2: 2, 3: 3, 4: 2, 5: 3, 8: 2, 10: 3, 16: 2, 64: 8, 256: 32}
    assert {seeds: width_of(seeds) for seeds in widths} == widths
    for cores in (1, 8):
        layout = Layout(10, width_of(10), choose(cores))
        assert layout.programs == 4
        members = [layout.members(place).tolist() for place in range(4)]
        assert members == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 9, 9]]
