"""Methods with a tree of priorities: metrics, and leaves beyond float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, linear
from jaxreplay.methods import per, proportional, pser, sequences
from jaxreplay.testing import EXAMPLE, rows
from tests.refusals import refused
from tests.slots import Slots

SQUARED = {
    "per-buffer": per.sampler(per.PERConfig(alpha=2.0, normalise="buffer")),
    "pser": pser.sampler(pser.PSERConfig(alpha=2.0)),
}


@pytest.mark.parametrize("name", SQUARED)
def test_leaves_beyond_float32_are_not_written_and_are_counted(name):
    slots = Slots(SQUARED[name], 8, 4).add(8, first=True)
    slots.update(range(4), td_error=[1e30, -1e30, 0.5, 2.0])
    assert (slots.metric("skipped_leaves"), int(slots.state.dropped)) == (2, 0)
    chance = slots.probability()
    assert np.isfinite(slots.metric("max_priority")) and np.isfinite(chance).all()
    np.testing.assert_allclose(chance[:2], chance[4], rtol=1e-6)  # the leaf of a new transition
    assert chance[3] > chance[2]
    assert slots.update(range(4), td_error=range(1, 5)).metric("skipped_leaves") == 2


LARGE = {
    "per-buffer": per.method(per.PERConfig(alpha=1.0, normalise="buffer")),
    "pser-add": pser.method(pser.PSERConfig(alpha=1.0, combine="add", decay_on_add=True)),
    "sequences": sequences.method(sequences.SequencesConfig(alpha=1.0, length=2, period=1)),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_priority_close_to_the_largest_float32_keeps_probabilities_valid(name):
    """New transitions get this priority, so without capped leaves the total would overflow."""
    replay = Replay(LARGE[name].sampler, capacity=1000, batch_size=32)

    def added(state, count):
        row = lambda time: jax.tree.map(lambda x: x[:1], rows(time))
        return jax.lax.fori_loop(0, count, lambda time, s: replay.add(s, row(time)), state)

    @jax.jit
    def run(key):
        state = added(replay.init(key, EXAMPLE), 600)
        batch = replay.sample(state, key)
        td_error = jnp.ones(batch.indices.shape).at[0].set(1e38)
        state = added(replay.update(state, batch, td_error=td_error), 400)
        return replay.probability(state, jnp.arange(1000)), replay.sample(state, key)

    chance, batch = run(jax.random.key(0))
    assert float(chance.sum()) == pytest.approx(1, rel=1e-4)
    assert np.isfinite(batch.weights).all() and (np.asarray(batch.weights) > 0).all()
    assert (np.asarray(batch.probability) > 1e-3).all()


def test_buffer_weights_require_the_smallest_probability():
    weight = proportional.ImportanceWeights(linear(0.4, 1.0, 10), "buffer")
    inputs = jnp.ones(4) / 4, jnp.int32(4), jnp.int32(0)
    np.testing.assert_allclose(weight(*inputs, jnp.float32(0.25)), 1)
    with refused("normalise", "buffer", "batch"):
        weight(*inputs)


@jax.jit
def _quantiles(priorities, size):
    return proportional.quantiles(lambda slots: priorities[slots], size)


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 10_000])
def test_quantiles_cover_stored_priorities(size):
    priorities = np.random.default_rng(0).exponential(size=20_000).astype(np.float32)
    shares = [float(x) for x in _quantiles(priorities, np.int32(max(size, 1))).values()]
    wanted = np.quantile(priorities[: max(size, 1)], [0.1, 0.5, 0.9])
    np.testing.assert_allclose(shares, wanted, rtol=1e-5 if size <= 4096 else 0.06)


def test_count_invalid_and_max_by_hand():
    values = jnp.float32([3.0, jnp.inf, 1.0, jnp.nan, 9.0, jnp.inf])
    live = jnp.array([True, True, True, True, False, False])
    assert [float(x) for x in proportional.count_invalid_and_max(live, values)] == [2, 3]
    assert [float(x) for x in proportional.count_invalid_and_max(~live, values)] == [1, 9]
    nothing = proportional.count_invalid_and_max(live[:0], values[:0])
    assert [float(x) for x in nothing] == [0, 0]
    lost, largest = jax.vmap(proportional.count_invalid_and_max, (None, 0))(
        live, jnp.stack([values] * 2)
    )
    assert (lost.tolist(), largest.tolist()) == ([2, 2], [3, 3])
    signs = jnp.float32([-1.0, -0.0, 0.0, -jnp.inf, 2.0, -3.0])
    assert [float(x) for x in proportional.count_invalid_and_max(live, signs)] == [2, 0]
    assert (
        proportional.count_invalid_and_max(live, values.astype(jnp.bfloat16))[1].dtype
        == jnp.float32
    )
