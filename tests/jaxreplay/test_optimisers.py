"""Optimisers that skip gradients which are not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreplay.loops import if_finite

ADAM = if_finite(optax.adam(0.1))


def steps_of(gradients, dtype=np.float32):
    """Return the steps, and whether each gradient was finite."""
    params = {"a": jnp.zeros(2, dtype), "b": jnp.zeros((), dtype)}
    state, steps, finite = ADAM.init(params), [], []
    for gradient in gradients:
        given = {"a": jnp.asarray([1.0, gradient], dtype), "b": jnp.ones((), dtype)}
        step, state = jax.jit(ADAM.update)(given, state, params)
        steps.append(np.concatenate([step["a"], step["b"][None]]))
        finite.append(bool(state.finite))
    return np.stack(steps), finite


@pytest.mark.parametrize(
    ("bad", "dtype"),
    [
        (np.nan, np.float32),
        (-np.inf, np.float32),
        (2e19, np.float32),  # its square overflows
        (np.inf, jnp.bfloat16),
        (300.0, np.float16),  # Adam's second moment overflows
    ],
)
def test_gradients_that_are_not_finite_change_neither_parameters_nor_state(bad, dtype):
    steps, finite = steps_of([2.0, bad, bad, 3.0], dtype)
    assert finite == [True, False, False, True]
    assert not steps[1:3].any()
    np.testing.assert_array_equal(steps[[0, 3]], steps_of([2.0, 3.0], dtype)[0])


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float32])
def test_finiteness_does_not_depend_on_a_sum_of_squares(dtype):
    """The sum of 20,000 squares of 3 overflows float16."""
    gradient = jnp.full(20_000, 3, dtype)
    sgd = if_finite(optax.sgd(1.0))
    step, state = jax.jit(sgd.update)(gradient, sgd.init(gradient))
    assert bool(state.finite) and step.dtype == dtype
    np.testing.assert_array_equal(step, -gradient)


def test_empty_gradients_are_finite():
    step, state = ADAM.update({}, ADAM.init({}))
    assert step == {} and bool(state.finite)
