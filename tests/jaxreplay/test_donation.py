"""`donatable` copies arrays that occur more than once in a tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import donatable


def test_duplicate_arrays_are_copied():
    shared, other = jnp.arange(3.0), jnp.zeros(2)
    tree = {"params": shared, "targets": shared, "other": [other, other]}
    with pytest.raises(jax.errors.JaxRuntimeError, match="same buffer twice"):
        jax.jit(lambda t: jax.tree.map(jnp.negative, t), donate_argnums=0)(tree)
    shared, other = jnp.arange(3.0), jnp.zeros(2)
    tree = {"params": shared, "targets": shared, "other": [other, other]}
    mended = donatable(tree)
    assert mended["params"] is shared and mended["other"][0] is other
    negative = jax.jit(lambda t: jax.tree.map(jnp.negative, t), donate_argnums=0)(mended)
    np.testing.assert_array_equal(negative["targets"], -np.arange(3.0))


def test_distinct_arrays_are_not_copied():
    tree = (jnp.zeros(2), jnp.zeros(2))
    assert all(x is y for x, y in zip(tree, donatable(tree), strict=True))
