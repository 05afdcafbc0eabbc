"""Rows of large arrays have the same values on every path and under any vmap."""

import functools
import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import buffer, ring, sum_tree
from jaxreplay._internal.tuned import gather
from jaxreplay._internal.tuned.gather import take_rows
from jaxreplay.testing import large_copies
from tests.xla import AS_USERS


def rows_of(shape):
    return np.random.default_rng(1).integers(0, 99, shape, np.int32)


@pytest.mark.parametrize("take", [take_rows, buffer.read_few])
@pytest.mark.parametrize("row", [(), (3,), (2, 3), (40,)])
@pytest.mark.parametrize("large", [False, True])
def test_rows_equal_those_of_numpy_under_any_vmap(take, row, large, monkeypatch):
    if large:  # use the path of arrays larger than any cache
        monkeypatch.setattr(gather, "_CACHE", 0)
        monkeypatch.setattr(gather, "_CUT", 0)
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
        taken = jax.jit(jax.vmap(jax.vmap(take, in_axes=inner), in_axes=outer))(array, indices)
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
    monkeypatch.setattr(gather, "_CUT", 0)
    for take in (take_rows, buffer.read_few):
        assert take(jnp.ones((7, 3)), jnp.zeros(0, jnp.int32)).shape == (0, 3)


def test_rows_of_vmapped_arrays_are_read_by_one_gather_on_cpu():
    array, indices = rows_of((3, 1009, 4)), rows_of((3, 5))
    text = jax.jit(jax.vmap(take_rows)).lower(array, indices).compile().as_text()
    assert "[3027,4]" in text  # one array with the rows of all
    assert large_copies(text, 1009) == []


def a_walk():
    return sum_tree.find, (sum_tree.init(2**18, 8), jnp.zeros(5))


def a_batch():
    example = {"obs": jnp.zeros(30), "action": jnp.int32(0), "last": jnp.zeros((), bool)}
    return ring.gather, (ring.init(example, 2**16), jnp.zeros(32, jnp.int32))


@pytest.mark.parametrize("reading", [a_walk, a_batch])
def test_few_rows_of_a_large_array_are_read_by_one_thread(reading, monkeypatch):
    def text():
        options = {"xla_backend_optimization_level": 3, **AS_USERS}
        function, inputs = reading()
        return jax.jit(function).lower(*inputs).compile(options).as_text()

    assert "outer_dimension_partitions" not in text()
    monkeypatch.setattr(gather, "_CUT", 2**40)
    jax.clear_caches()  # forget earlier traces
    allowed = getattr(os, "sched_getaffinity", None)  # Linux: the cores of this process
    if (len(allowed(0)) if allowed else os.cpu_count()) > 1:
        assert "outer_dimension_partitions" in text()


def test_rows_are_prefetched_only_where_that_is_faster():
    words = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.uint32)
    assert gather._far(words((2**20, 43)))
    assert not gather._far(words((2**14, 43)))  # fits in the cache
    assert not gather._far(words((2**20, 100)))  # long rows
    assert not gather._far(words((2**24,)))
