"""Public functions besides a replay's methods work with strict dtype and rank promotion."""

import jax
import jax.numpy as jnp
import optax
import pytest

from jaxreplay import (
    SharedObservations,
    equivalence,
    n_step,
    returns,
    ring,
    schedules,
    sum_tree,
    testing,
)
from jaxreplay._internal import frames
from jaxreplay.loops import if_finite

T = jnp.ones((3, 2))
FLAGS = jnp.zeros((3, 2), bool)


def stored_once():
    held = ring.init(testing.EXAMPLE, 8, 2, SharedObservations())
    held, slots = ring.add(held, testing.rows(0))
    return ring.gather(held, slots), held.frames


def stacks():
    books = frames.init(jnp.zeros((2, 3)), 8, 2, 3, 0.1)
    return frames.add(books, jnp.ones((2, 2, 3)), FLAGS[0], jnp.ones(2, jnp.int32))


def pushed():
    flag = jnp.zeros(2, bool)
    step = n_step.Step(T[0], T[0], T[0], flag, flag, T[0], flag)
    window = n_step.init(jax.tree.map(lambda x: x[0], step), 3, 2)
    return n_step.push(n_step.end_episodes(window), step, 0.9)


def drawn():
    tree = sum_tree.set(sum_tree.init(9), jnp.arange(3), jnp.ones(3))
    return sum_tree.sample(tree, jax.random.key(0), 4), sum_tree.find(tree, jnp.ones(2))


def learned():
    optimiser = if_finite(optax.adam(0.1))
    return optimiser.update({"w": T}, optimiser.init({"w": T}))


FUNCTIONS = {
    "a ring": stored_once,
    "frames": stacks,
    "a window": pushed,
    "a tree": drawn,
    "an optimiser": learned,
    "a schedule": lambda: schedules.linear(0.1, 1.0, 10)(jnp.int32(3)),
    "PAL": lambda: equivalence.pal(twin="max")(T),
    "an equivalent": lambda: equivalence.per_equivalent(0.6, 0.4)(T[0]),
    "returns": lambda: returns.retrace(T, T, FLAGS, T, T, T, T),
    "advantages": lambda: returns.advantages(T, T, FLAGS, T, T, 0.9),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_work_with_strict_promotion(name):
    expected = jax.eval_shape(FUNCTIONS[name])
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert jax.eval_shape(FUNCTIONS[name]) == expected  # JAX traces it again
