"""Schedules with constant and with traced arguments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreplay import linear, schedules
from jaxreplay.methods.ere import EREConfig
from jaxreplay.methods.per import PERConfig
from tests.refusals import refused

STEPS = jnp.arange(0, 900, 7)


@pytest.mark.parametrize(("start", "end", "steps"), [(0.4, 1.0, 500), (1.0, 0.05, 777), (0, 1, 1)])
def test_linear_equals_optax_bit_for_bit(start, end, steps):
    ours, theirs = (
        jax.jit(jax.vmap(make(start, end, steps)))(STEPS)
        for make in (schedules.linear, optax.linear_schedule)
    )
    np.testing.assert_array_equal(ours, theirs)
    assert np.isclose(ours[0], start) and np.isclose(ours[-1], end)


@pytest.mark.parametrize("steps", [None, 0, np.int64(0), np.array(0), jnp.array(0)])
def test_without_steps_the_schedule_is_constant(steps):
    values = jax.vmap(schedules.linear(0.4, 1.0, steps))(STEPS)
    np.testing.assert_array_equal(values, np.float32(0.4))


@pytest.mark.parametrize("steps", [np.int32(5), np.array(5), np.array(5, np.uint8), jnp.array(5)])
def test_steps_may_be_an_integer_array(steps):
    values = jax.vmap(schedules.linear(0.0, 1.0, steps))(jnp.arange(8))
    expected = jax.vmap(schedules.linear(0.0, 1.0, 5))(jnp.arange(8))
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_allclose(values, [0, 0.2, 0.4, 0.6, 0.8, 1, 1, 1], rtol=1e-6)


@pytest.mark.parametrize(
    "steps",
    [-5, "5", 2.5, True]
    + [np.float32(2.0), np.array(2.0), np.array([5]), np.array(True), np.array(-5), np.bool_(True)]
    + [jnp.float32(2.5), jnp.array([5, 6]), jnp.array(True), jnp.array(-5)],
    ids=repr,
)
def test_invalid_steps_are_refused(steps):
    with refused("steps", repr(steps), "None"):
        schedules.linear(0.4, 1.0, steps)
    for config, name in ((PERConfig(), "beta_updates"), (EREConfig(), "eta_updates")):
        with refused(name, steps if isinstance(steps, str) else repr(steps)):
            config.for_run(steps)


def test_schedules_of_the_same_arguments_are_equal_and_hash_alike():
    schedule = linear(0.4, 1.0, 500)
    for steps in (500, np.int64(500), np.array(500), jnp.array(500)):
        assert linear(0.4, 1.0, steps) == schedule
        assert hash(linear(0.4, 1.0, steps)) == hash(schedule)
    assert linear(0.4, 1.0, None) == linear(0.4, 1.0, 0)
    others = linear(0.5, 1.0, 500), linear(0.4, 0.9, 500), linear(0.4, 1.0, 501)
    assert len({schedule, *others}) == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.steps = 3


@pytest.mark.parametrize("steps", [jnp.float32(2.5), jnp.array([5, 6]), jnp.array(True)], ids=repr)
def test_traced_steps_that_are_not_an_integer_are_refused(steps):
    with refused("steps", "None"):
        jax.jit(lambda steps: schedules.linear(0.4, 1.0, steps)(jnp.array(3)))(steps)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint32, jnp.int8])
def test_traced_steps_of_0_give_the_start(dtype):
    value = jax.jit(lambda steps, step: schedules.linear(0.4, 1.0, steps)(step))
    values = jax.vmap(value, (None, 0))(jnp.array(0, dtype), STEPS)
    np.testing.assert_array_equal(values, np.float32(0.4))
    with jax.debug_nans(True):
        assert float(value(jnp.array(0, dtype), jnp.array(0))) == pytest.approx(0.4)
    assert float(value(jnp.array(1, dtype), jnp.array(1))) == 1


def test_all_arguments_may_be_traced():
    def value(start, end, steps, step):
        return schedules.linear(start, end, steps)(step)

    known = jax.vmap(schedules.linear(0.9, 0.1, 300))(STEPS)
    traced = jax.jit(jax.vmap(value, (None, None, None, 0)))(0.9, 0.1, 300, STEPS)
    np.testing.assert_allclose(known, traced, rtol=1e-6, atol=1e-7)
