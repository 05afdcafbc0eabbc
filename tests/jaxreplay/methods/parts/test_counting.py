"""Counts compared with NumPy's search."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay.methods.parts.rank_mass import count_up_to


@pytest.mark.parametrize("size", [1, 2, 3, 8, 127, 128, 239])
def test_counts_equal_those_of_numpy(size):
    rng = np.random.default_rng(size)
    ends = np.sort(rng.integers(0, 2 * size, size)).astype(np.int32)
    values = np.arange(-1, 2 * size + 1, dtype=np.int32)
    found = count_up_to(jnp.asarray(ends), jnp.asarray(values))
    np.testing.assert_array_equal(found, np.searchsorted(ends, values, side="right"))
