"""NERS and ERO take a REINFORCE step on the change of the return with each observed return."""

import jax
import numpy as np
import pytest

from jaxreplay import testing
from jaxreplay.methods import ero, ners
from tests.slots import Slots

CAPACITY, BATCH = 12, 4
SMALL = {
    "ners": ners.sampler(
        ners.NERSConfig(hidden=(8, 4), score_hidden=(4,), train_size=8, learning_rate=1e-2)
    ),
    "ero": ero.sampler(ero.EROConfig(hidden=(8,), learning_rate=1e-2, batch_size=16)),
}


class Learned(Slots):
    """A full replay whose sampler learns from returns, each after a replayed batch."""

    def __init__(self, name):
        super().__init__(SMALL[name], CAPACITY, BATCH, testing.E, testing.EXAMPLE)
        for time in range(CAPACITY // testing.E):
            self.state = self.run.add(self.state, testing.rows(time))

    def told(self, episode_return):
        """Return whether nothing is learned from this return."""
        batch = self.run.sample(self.state, jax.random.key(0))
        td = jax.random.normal(jax.random.key(100), (BATCH,))
        self.state = self.run.update(self.state, batch, td_error=td, target=2 * td)
        before, value = self.learned(), np.float32(episode_return)
        self.state = self.run.observe_return(self.state, value, jax.random.key(0))
        pairs = zip(jax.tree.leaves(before), jax.tree.leaves(self.learned()), strict=True)
        return all(np.array_equal(x, y) for x, y in pairs)

    def learned(self):
        """Return the variables that a step changes: parameters, optimiser, number of steps."""
        inner = self.state.sampler
        return jax.device_get((inner.params, inner.opt_state.inner, inner.learned))


@pytest.mark.parametrize("name", SMALL)
def test_returns_change_what_is_learned_if_their_change_is_finite(name):
    slots = Learned(name)
    assert not slots.state.sampler.has_observed
    assert slots.told(5.0)  # the first return is only a baseline
    assert slots.state.sampler.has_observed and slots.metric("replay_reward") == 0
    assert not slots.told(7.0)
    assert slots.metric("replay_reward") == 2 and int(slots.state.sampler.learned) == 1
    state = slots.state.sampler
    if name == "ners":
        state = state._replace(collected=())  # tickets of empty entries are infinite
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(state)))


@pytest.mark.parametrize("name", SMALL)
def test_a_gradient_that_overflows_changes_nothing(name):
    slots = Learned(name)
    slots.told(0.0)
    for episode_return, reward in ((1e30, 1e30), (0.0, -1e30)):  # falls back by the same amount
        assert slots.told(episode_return)
        assert slots.metric("replay_reward") == pytest.approx(reward)
        assert not slots.state.sampler.opt_state.finite
    # A later change of ordinary size is learned from.
    assert not slots.told(1.0) and int(slots.state.sampler.learned) == 1


@pytest.mark.parametrize("name", SMALL)
def test_a_change_of_returns_beyond_float32_changes_nothing(name):
    slots = Learned(name)
    slots.told(-3e38)
    before = slots.state.sampler
    assert slots.told(3e38) and slots.metric("replay_reward") == 0
    after = slots.state.sampler
    if name == "ero":  # nor is a new subset chosen
        np.testing.assert_array_equal(after.chosen.nodes, before.chosen.nodes)
    assert bool(after.has_observed) and after.episode_return == np.float32(3e38)
