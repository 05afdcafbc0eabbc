"""What is said to the compiler changes no result."""

import functools
import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks.hlo import large_copies
from jaxreplay import sum_tree
from jaxreplay._internal import compiled
from jaxreplay._internal.compiled import (
    computed_once,
    opaque_zero,
    room_for,
    take_few_rows,
    take_rows,
)


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
    assert int(opaque_zero((jax.random.key(1), jax.random.split(jax.random.key(2))))) == 0


def rows_of(shape):
    return jnp.asarray(np.random.default_rng(1).integers(0, 99, shape), jnp.int32)


def take_few(array, indices):
    return take_few_rows(room_for(array, indices.size), array, indices)[0]


@pytest.mark.parametrize("take", [take_rows, take_few])
@pytest.mark.parametrize("row", [(), (3,), (2, 3), (40,)])
@pytest.mark.parametrize("large", [False, True])
def test_rows_under_any_vmap(take, row, large, monkeypatch):
    if large:  # these arrays are then treated like those that no cache holds
        monkeypatch.setattr(compiled, "_CACHE", 0)
        monkeypatch.setattr(compiled, "_CUT", 0)
        assert compiled._far(jnp.ones((9, 3)), 5)
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
        taken = jax.jit(jax.vmap(jax.vmap(take, in_axes=inner), in_axes=outer))
        want = jax.vmap(jax.vmap(lambda a, i: a[i], in_axes=inner), in_axes=outer)
        np.testing.assert_array_equal(taken(array, indices), want(array, indices))


def test_no_rows_of_a_large_array(monkeypatch):
    monkeypatch.setattr(compiled, "_CACHE", 0)
    monkeypatch.setattr(compiled, "_CUT", 0)
    for take in (take_rows, take_few):
        assert take(jnp.ones((7, 3)), jnp.zeros(0, jnp.int32)).shape == (0, 3)


def test_rows_of_vmapped_arrays_are_read_by_one_plain_gather_on_cpu():
    array, indices = rows_of((3, 1009, 4)), rows_of((3, 5))
    text = jax.jit(jax.vmap(take_rows)).lower(array, indices).compile().as_text()
    assert "[3027,4]" in text  # all arrays' rows as those of one
    assert large_copies(text, 1009) == []


def test_rows_of_a_large_array_are_read_through_a_carried_room():
    array = jnp.arange(2**20, dtype=jnp.float32).reshape(-1, 4)

    def walk(array, indices):
        def step(_, carry):
            at, room = carry
            rows, room = take_few_rows(room, array, at)
            return (rows[:, 1].astype(jnp.int32) * 7 + rows[:, 0].astype(jnp.int32)) % 2**18, room

        return jax.lax.fori_loop(0, 5, step, (indices, room_for(array, indices.size)))[0]

    at = np.array([0, 5, 2**18 - 1, 77, 5])
    looped = jax.jit(walk).lower(array, jnp.asarray(at, jnp.int32)).compile()
    for _ in range(5):
        at = ((4 * at + 1) * 7 + 4 * at) % 2**18
    np.testing.assert_array_equal(looped(array, jnp.asarray([0, 5, 2**18 - 1, 77, 5])), at)
    assert large_copies(looped.as_text(), 2**18) == []


def test_few_rows_of_a_large_array_are_read_by_one_thread(monkeypatch):
    def text():
        # As users compile, not as the other tests do (see conftest.py).
        options = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
        tree, target = sum_tree.init(2**18, 8), jnp.zeros(5)
        find = jax.jit(lambda tree, target: sum_tree.find(tree, target))
        return find.lower(tree, target).compile(options).as_text()

    assert "outer_dimension_partitions" not in text()
    monkeypatch.setattr(compiled, "_CUT", 2**40)
    if os.cpu_count() > 1:
        assert "outer_dimension_partitions" in text()


def test_rows_are_fetched_ahead_only_where_that_pays():
    words = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.uint32)
    assert compiled._far(words((2**20, 43)), 256)
    assert not compiled._far(words((2**14, 43)), 256)  # the array is in the cache anyway
    assert not compiled._far(words((2**20, 43)), 0)
    assert not compiled._far(
        words((2**20, 43)), 8 * 4096
    )  # the first are gone before they are used
    assert not compiled._far(words((2**20, 100)), 256)  # long rows
    assert not compiled._far(words((2**24,)), 256)
