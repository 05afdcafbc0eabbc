"""The operations on sum trees for accelerators agree with those for CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import numerics, sum_tree

CAPACITIES = [1, 5, 8, 9, 500, 513, 5000, 40_000, 200_003]


def filled(capacity, reduce="sum"):
    numbers = np.random.default_rng(capacity)
    leaves = numbers.random(capacity) ** 3 * (numbers.random(capacity) < 0.7)
    leaves[0] = 1.0
    tree = sum_tree.init(capacity, reduce=reduce)
    return sum_tree.rebuild(tree, jnp.asarray(leaves, jnp.float32)), numbers


@pytest.mark.parametrize("reduce", sum_tree.REDUCTIONS)
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_written_nodes_are_equal(capacity, reduce):
    tree, numbers = filled(capacity, reduce)
    slots = jnp.asarray(numbers.integers(0, capacity, 32), jnp.int32)
    changed = sum_tree.put(tree, slots, jnp.asarray(numbers.random(32), jnp.float32))
    expected = jax.jit(sum_tree._repair_on_cpu)(changed, slots.astype(jnp.uint32))
    found = jax.jit(sum_tree._repair_wide)(changed, slots.astype(jnp.uint32))
    np.testing.assert_array_equal(found, expected)
    changed = changed.replace(nodes=expected)
    for valid in (True, False):
        one = (changed, jnp.uint32(capacity // 3), jnp.float32(0.7), jnp.asarray(valid))
        expected = np.stack(jax.jit(sum_tree._path_on_cpu)(*one))
        for path in (sum_tree._path_wide, sum_tree._path_apart):
            # The first value, that of the leaf, is not written if it is invalid.
            np.testing.assert_array_equal(jax.jit(path)(*one)[not valid :], expected[not valid :])


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_drawn_leaves_agree(capacity):
    tree, numbers = filled(capacity)
    shares = jnp.asarray(numbers.integers(0, 2**32, 256), jnp.uint32)
    target = numerics.fraction(shares, sum_tree.total(tree))
    expected = np.asarray(jax.jit(sum_tree._find_in_rows)(tree, *target))
    np.testing.assert_array_equal(jax.jit(sum_tree._find_in_nodes)(tree, *target), expected)
    found = np.asarray(jax.jit(sum_tree._find_in_wide_rows)(tree, *target))
    assert (sum_tree.get(tree, jnp.asarray(found)) > 0).all()
    # Sums over more nodes round differently, so a target may fall into a neighbour.
    assert (found != expected).sum() <= 5 and np.abs(found - expected).max() <= 8


def test_tpus_search_levels_of_any_size():
    leaves = jnp.zeros(70_000).at[jnp.array([3, 64_000, 69_999])].set(jnp.array([1.0, 2.0, 1.0]))
    tree = sum_tree.rebuild(sum_tree.init(70_000), leaves)
    target = jnp.array([0.0, 0.9, 1.0, 2.9, 3.0, 4.0])
    found = jax.jit(sum_tree._find_in_wide_rows)(tree, target, jnp.zeros(6))
    assert found.tolist() == [3, 3, 64_000, 64_000, 69_999, 69_999]
