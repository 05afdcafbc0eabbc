"""The operations on sum trees for accelerators agree with those for CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import numerics, sum_tree

CAPACITIES = [1, 8, 9, 513, 5000, 200_003]


def filled(capacity, reduce="sum"):
    numbers = np.random.default_rng(capacity)
    leaves = numbers.random(capacity) ** 3 * (numbers.random(capacity) < 0.7)
    leaves[0] = 1.0
    tree = sum_tree.init(capacity, reduce=reduce)
    return sum_tree.rebuild(tree, jnp.asarray(leaves, jnp.float32)), numbers


@jax.jit
def repaired(tree, slots):
    return [repair(tree, slots) for repair in (sum_tree._repair_on_cpu, sum_tree._repair_wide)]


@jax.jit
def paths(*one):
    on_cpu = jnp.stack(sum_tree._path_on_cpu(*one))
    return on_cpu, *(jnp.stack(f(*one)) for f in (sum_tree._path_wide, sum_tree._path_apart))


@jax.jit
def found_leaves(tree, target):
    finders = (sum_tree._find_in_rows, sum_tree._find_in_nodes, sum_tree._find_in_wide_rows)
    return [find(tree, *target) for find in finders]


@pytest.mark.parametrize(
    ("capacity", "reduce"),
    [*((capacity, "sum") for capacity in CAPACITIES), (9, "min"), (5000, "min"), (513, "max")],
)
def test_written_nodes_are_equal(capacity, reduce):
    tree, numbers = filled(capacity, reduce)
    slots = jnp.asarray(numbers.integers(0, capacity, 32), jnp.int32)
    changed = sum_tree.put(tree, slots, jnp.asarray(numbers.random(32), jnp.float32))
    expected, found = repaired(changed, slots.astype(jnp.uint32))
    np.testing.assert_array_equal(found, expected)
    changed = changed.replace(nodes=expected)
    for valid in (True, False):
        one = (changed, jnp.uint32(capacity // 3), jnp.float32(0.7), jnp.asarray(valid))
        expected, *others = paths(*one)
        for found in others:
            # The first value, that of the leaf, is not written if it is invalid.
            np.testing.assert_array_equal(found[not valid :], expected[not valid :])


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_drawn_leaves_agree(capacity):
    tree, numbers = filled(capacity)
    shares = jnp.asarray(numbers.integers(0, 2**32, 256), jnp.uint32)
    target = numerics.fraction(shares, sum_tree.total(tree))
    expected, in_nodes, found = map(np.asarray, found_leaves(tree, target))
    np.testing.assert_array_equal(in_nodes, expected)
    assert (sum_tree.get(tree, jnp.asarray(found)) > 0).all()
    # Sums over more nodes round differently, so a target may fall into a neighbour.
    assert (found != expected).sum() <= 5 and np.abs(found - expected).max() <= 8


def test_tpus_search_levels_of_any_size():
    leaves = jnp.zeros(70_000).at[jnp.array([3, 64_000, 69_999])].set(jnp.array([1.0, 2.0, 1.0]))
    tree = sum_tree.rebuild(sum_tree.init(70_000), leaves)
    target = jnp.array([0.0, 0.9, 1.0, 2.9, 3.0, 4.0])
    found = jax.jit(sum_tree._find_in_wide_rows)(tree, target, jnp.zeros(6))
    assert found.tolist() == [3, 3, 64_000, 64_000, 69_999, 69_999]
