"""The sum tree under very many random writes and draws."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import sum_tree
from jaxreplay.types import Array

BATCH = 256
CHUNK = 2_000  # batches in one program


class Result(NamedTuple):
    """What was tried and what was found."""

    updates: int  # leaves written
    draws: int
    drifted: int  # nodes that differ from what their children give, over all looks
    empty: int  # draws of leaves without mass


def run(
    updates: int,
    capacity: int = 2**16 + 3,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> Result:
    """Write random leaves, over ten orders of magnitude and zero, and draw as often.

    After every chunk of writes, every node is compared bit for bit with its children.

    Args:
      updates: leaves to write in all, at least.
      capacity: leaves of the tree.
      seed: of the random numbers.
      report: told the leaves written so far, now and then.
    """

    def step(carry: tuple[sum_tree.SumTree, Array], key: Array) -> tuple:
        tree, empty = carry
        at, size, how, zero, draw = jax.random.split(key, 5)
        indices = jax.random.randint(at, (BATCH,), 0, capacity)
        exponent = jax.random.uniform(how, (BATCH,), minval=-5.0, maxval=5.0)
        values = jax.random.uniform(size, (BATCH,)) * 10.0**exponent
        values = jnp.where(jax.random.bernoulli(zero, 0.2, (BATCH,)), 0.0, values)
        tree = sum_tree.set(tree, indices, values)
        drawn = sum_tree.sample(tree, draw, BATCH)
        return (tree, empty + (sum_tree.get(tree, drawn) <= 0).sum(dtype=jnp.int32)), None

    @jax.jit
    def chunk(tree: sum_tree.SumTree, key: Array) -> tuple[sum_tree.SumTree, Array]:
        carry = (tree, jnp.zeros((), jnp.int32))
        return jax.lax.scan(step, carry, jax.random.split(key, CHUNK))[0]

    rebuild = jax.jit(lambda tree: sum_tree.rebuild(tree, sum_tree.leaves(tree)))
    tree, empty, drifted, done = sum_tree.init(capacity), 0, 0, 0
    while done < updates:
        tree, lost = chunk(tree, jax.random.fold_in(jax.random.key(seed), done // BATCH))
        done, empty = done + CHUNK * BATCH, empty + int(lost)
        fresh = rebuild(tree)
        drifted += int((np.asarray(tree.nodes) != np.asarray(fresh.nodes)).sum())
        drifted += int(tree.root != fresh.root)
        report(done)
    return Result(done, done, drifted, empty)
