"""Rows of large arrays have the same values on every path and under any vmap."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay._internal.tuned import gather
from jaxreplay._internal.tuned.gather import take_rows


def rows_of(shape):
    return np.random.default_rng(1).integers(0, 99, shape, np.int32)


@pytest.mark.parametrize("row", [(), (2, 3), (40,)])
@pytest.mark.parametrize("large", [False, True])
def test_rows_equal_those_of_numpy_under_any_vmap(row, large, monkeypatch):
    if large:  # use the path of arrays larger than any cache
        monkeypatch.setattr(gather, "_CACHE", 0)
        monkeypatch.setattr(gather, "_NEAR", 2 * gather._LINE)  # and read one or two rows at a time
        assert gather._far(jnp.ones((9, 3)))
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
        indices = rng.integers(0, length, (*leads[1], batch), np.int32)
        taken = jax.jit(jax.vmap(jax.vmap(take_rows, in_axes=inner), in_axes=outer))(array, indices)
        arrays, places = (  # [others, seeds, ...] each
            np.broadcast_to(
                np.expand_dims(x, tuple(i for i in (0, 1) if (outer[n], inner[n])[i] is None)),
                (others, seeds, *x.shape[len(leads[n]) :]),
            )
            for n, x in enumerate((array, indices))
        )
        want = [[arrays[o, s][places[o, s]] for s in range(seeds)] for o in range(others)]
        assert taken.shape == (others, seeds, batch, *row)
        np.testing.assert_array_equal(taken, want)


def test_no_rows_can_be_read_from_a_large_array(monkeypatch):
    monkeypatch.setattr(gather, "_CACHE", 0)
    assert take_rows(jnp.ones((7, 3)), jnp.zeros(0, jnp.int32)).shape == (0, 3)


def test_rows_are_prefetched_only_where_that_is_faster():
    words = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.uint32)
    assert gather._far(words((2**20, 43)))
    assert not gather._far(words((2**14, 43)))  # fits in the cache
    assert not gather._far(words((2**20, 100)))  # long rows
    assert not gather._far(words((2**24,)))
