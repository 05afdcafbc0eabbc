"""Schedules, with what they are made of known or not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreplay import schedules
from jaxreplay.methods import per, rank

STEPS = jnp.arange(0, 900, 7)


@pytest.mark.parametrize(("start", "end", "steps"), [(0.4, 1.0, 500), (1.0, 0.05, 777), (0, 1, 1)])
def test_it_is_optax_bit_for_bit(start, end, steps):
    ours, theirs = (
        jax.jit(jax.vmap(make(start, end, steps)))(STEPS)
        for make in (schedules.linear, optax.linear_schedule)
    )
    np.testing.assert_array_equal(ours, theirs)
    assert np.isclose(ours[0], start) and np.isclose(ours[-1], end)


@pytest.mark.parametrize("steps", [None, 0])
def test_without_steps_it_stays(steps):
    values = jax.vmap(schedules.linear(0.4, 1.0, steps))(STEPS)
    np.testing.assert_array_equal(values, np.float32(0.4))


@pytest.mark.parametrize("steps", [-5, "5", 2.5, True])
def test_other_numbers_of_steps_are_refused(steps):
    with pytest.raises(ValueError, match="steps: give a whole number from 0 on, or None"):
        schedules.linear(0.4, 1.0, steps)
    for module in (per, rank):
        config = {"alpha_end": 0.1} if module is rank else {}
        with pytest.raises(ValueError, match="give a whole number"):
            module.method(getattr(module, f"{'Rank' if config else 'PER'}Config")(**config), steps)


def test_everything_may_be_an_input_of_the_program():
    def value(start, end, steps, step):
        return schedules.linear(start, end, steps)(step)

    known = jax.vmap(schedules.linear(0.9, 0.1, 300))(STEPS)
    traced = jax.jit(jax.vmap(value, (None, None, None, 0)))(0.9, 0.1, 300, STEPS)
    np.testing.assert_allclose(known, traced, rtol=1e-6, atol=1e-7)
