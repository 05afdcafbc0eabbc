"""Reads and writes of rows: NumPy's results, in place, in the required order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import buffer
from jaxreplay.buffer import fence, once
from jaxreplay.testing import large_copies
from tests.refusals import refused


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, bool])
def test_once_returns_its_input(shape, dtype):
    values = jnp.asarray(np.random.default_rng(0).integers(0, 2, shape)).astype(dtype)
    computed = jax.jit(once)(values)
    assert computed.dtype == values.dtype
    np.testing.assert_array_equal(computed, values)


def test_once_computes_arrays_of_one_shape_in_one_operation():
    def both(x):
        return once({"sum": x + jnp.pi, "over": x > 1})

    x = jnp.arange(3.0)
    computed = jax.jit(both)(x)
    jax.tree.map(np.testing.assert_array_equal, computed, {"sum": x + jnp.pi, "over": x > 1})
    assert str(jax.make_jaxpr(both)(x)).count("reduce[") == 1
    seeds = jax.jit(jax.vmap(lambda x: once((x, jnp.float32(2)))))(x)
    jax.tree.map(np.testing.assert_array_equal, seeds, (x, jnp.full(3, 2.0)))
    assert once(()) == ()
    with refused("3", "2"):
        once((x, x[:2]))


def test_fence_is_zero_for_any_values():
    odd = [jnp.asarray([np.nan, 1.0]), jnp.asarray(-np.inf), jnp.arange(3), jnp.zeros((0, 2))]
    assert int(jax.jit(fence)(odd)) == 0
    assert int(fence(())) == 0
    assert int(fence(jnp.asarray([True]))) == 0
    assert int(fence((jax.random.key(1), jax.random.split(jax.random.key(2))))) == 0


@pytest.mark.parametrize("shape", [(7,), (7, 3)])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_writes_equal_those_of_a_loop_over_rows(shape, count, seed):
    rng = np.random.default_rng(seed)
    slots = rng.integers(-3, 10, count)
    before = rng.integers(0, 9, shape).astype(np.float32)
    values = rng.integers(0, 9, (count, *shape[1:])).astype(np.float32)
    added, raised = before.copy(), before.copy()
    for slot, value in zip(slots, values):
        if 0 <= slot < shape[0]:
            added[slot] += value
            raised[slot] = np.maximum(raised[slot], value)
    array, at = jnp.asarray(before), jnp.asarray(slots)
    np.testing.assert_array_equal(buffer.add(array, at, values), added)
    np.testing.assert_array_equal(buffer.write(array, at, values, "max"), raised)
    written = np.asarray(buffer.write(array, at, values))
    for slot in range(shape[0]):
        choices = [value for s, value in zip(slots, values) if s == slot] or [before[slot]]
        assert any((written[slot] == choice).all() for choice in choices)


def test_modify_returns_the_previous_values():
    array, slots = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([2, 3, 0])
    after, before = jax.jit(buffer.modify)(array, slots, jnp.asarray([7.0, 8.0, 9.0]))
    np.testing.assert_array_equal(after, [9, 2, 7])
    np.testing.assert_array_equal(before, [3, 0, 1])
    outside = jnp.asarray([-1, 3, 1])  # skipped by the write, and 0 among the old rows
    after, before = jax.jit(buffer.modify)(array, outside, jnp.asarray([7.0, 8.0, 9.0]))
    np.testing.assert_array_equal(after, [1, 9, 3])
    np.testing.assert_array_equal(before, [0, 0, 2])
    with refused("modify", "int32"):
        buffer.modify(jnp.arange(3), slots, slots)


@pytest.mark.parametrize("count", [1, 5])
def test_modify_in_a_loop_copies_nothing(count):
    def step(carry, slots):
        array, total = carry
        array, before = buffer.modify(array, slots, jnp.full(count, 2.0))
        return (array, total + before.sum()), None

    slots = jnp.zeros((10, count), jnp.int32)
    run = jax.jit(lambda carry: jax.lax.scan(step, carry, slots)[0], donate_argnums=0)
    text = run.lower((jnp.zeros(200_003), jnp.zeros(()))).compile().as_text()
    assert large_copies(text, 200_003) == []


def test_after_and_settle_return_their_input():
    tree = {"a": jnp.asarray([1.5, np.nan]), "b": jnp.asarray([True, False]), "c": jnp.arange(3)}
    after = jax.jit(lambda tree: buffer.after(tree, tree))(tree)
    jax.tree.map(np.testing.assert_array_equal, after, tree)
    jax.tree.map(np.testing.assert_array_equal, buffer.settle(tree), tree)
