"""What is said to the compiler changes no result."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks.hlo import large_copies
from jaxreplay.compiled import computed_once, opaque_zero, take_rows


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, bool])
def test_computed_once_returns_what_it_is_given(shape, dtype):
    values = jnp.asarray(np.random.default_rng(0).integers(0, 2, shape)).astype(dtype)
    once = jax.jit(computed_once)(values)
    assert once.dtype == values.dtype
    np.testing.assert_array_equal(once, values)


def test_opaque_zero_is_zero_whatever_the_numbers():
    odd = [jnp.asarray([np.nan, 1.0]), jnp.asarray(-np.inf), jnp.arange(3), jnp.zeros((0, 2))]
    assert int(jax.jit(opaque_zero)(odd)) == 0
    assert int(opaque_zero(())) == 0
    assert int(opaque_zero(jnp.asarray([True]))) == 0


def rows_of(shape):
    return jnp.asarray(np.random.default_rng(1).integers(0, 99, shape), jnp.int32)


@pytest.mark.parametrize("row", [(), (3,), (2, 3)])
def test_rows_under_any_vmap(row):
    seeds, others, length, batch = 3, 2, 11, 5
    rng = np.random.default_rng(2)
    for axes in itertools.product((None, 0), repeat=4):
        inner, outer = (axes[0], axes[1]), (axes[2], axes[3])
        if (None, None) in (inner, outer):
            continue
        sizes = [(others, o) for o in outer], [(seeds, i) for i in inner]
        leads = [
            tuple(size for size, axis in (sizes[0][n], sizes[1][n]) if axis == 0) for n in (0, 1)
        ]
        array = rows_of((*leads[0], length, *row))
        indices = jnp.asarray(rng.integers(0, length, (*leads[1], batch)), jnp.int32)
        take = jax.jit(jax.vmap(jax.vmap(take_rows, in_axes=inner), in_axes=outer))
        want = jax.vmap(jax.vmap(lambda a, i: a[i], in_axes=inner), in_axes=outer)
        np.testing.assert_array_equal(take(array, indices), want(array, indices))


def test_rows_of_vmapped_arrays_are_read_by_one_plain_gather_on_cpu():
    array, indices = rows_of((3, 1009, 4)), rows_of((3, 5))
    text = jax.jit(jax.vmap(take_rows)).lower(array, indices).compile().as_text()
    assert "[3027,4]" in text  # all arrays' rows as those of one
    assert large_copies(text, 1009) == []
