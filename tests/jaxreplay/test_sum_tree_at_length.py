"""The sum tree under millions of random writes and draws: exact sums, no empty draws."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import sum_tree

BATCH, BATCHES = 256, 2_000  # writes per call of `chunk`
WRITES = 10**7  # default number of writes


@functools.partial(jax.jit, static_argnums=1)
def chunk(tree, capacity, key):
    """Write leaves over ten orders of magnitude and 0; return the tree and the count of 0 draws."""

    def step(carry, key):
        tree, empty = carry
        at, size, how, zero, draw = jax.random.split(key, 5)
        indices = jax.random.randint(at, (BATCH,), 0, capacity)
        exponent = jax.random.uniform(how, (BATCH,), minval=-5.0, maxval=5.0)
        values = jax.random.uniform(size, (BATCH,)) * 10.0**exponent
        values = jnp.where(jax.random.bernoulli(zero, 0.2, (BATCH,)), 0.0, values)
        tree = sum_tree.set(tree, indices, values)
        drawn = sum_tree.sample(tree, draw, BATCH)
        return (tree, empty + (sum_tree.get(tree, drawn) <= 0).sum(dtype=jnp.int32)), None

    carry = (tree, jnp.zeros((), jnp.int32))
    return jax.lax.scan(step, carry, jax.random.split(key, BATCHES))[0]


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [1000, 2**16 + 3])
def test_every_node_remains_the_sum_of_its_children(capacity):
    tree, writes = sum_tree.init(capacity), int(os.environ.get("JAXREPLAY_WRITES", WRITES))
    for number in range(-(-writes // (BATCH * BATCHES))):
        tree, empty = chunk(tree, capacity, jax.random.fold_in(jax.random.key(1), number))
        assert int(empty) == 0
        exact = sum_tree.rebuild(tree, sum_tree.leaves(tree))
        np.testing.assert_array_equal(tree.nodes, exact.nodes)
        np.testing.assert_array_equal(tree.root, exact.root)
