"""RR-C: every epoch draws every transition once, in a uniformly random order."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import buffer
from jaxreplay.contrib import reshuffled
from jaxreplay.contrib.reshuffled import distinct
from tests.slots import Slots


class Epochs(Slots):
    """Slots that are drawn and updated in one step."""

    def __init__(self, capacity, batch_size, seed=0, count=0):
        super().__init__(reshuffled.sampler(), capacity, batch_size, count=count)
        self.keys = iter(jax.random.split(jax.random.key(seed), 100))

    def cycle(self, state, key):
        batch = self.run.replay.sample(state, key)
        return self.run.replay.update(state, batch), batch.indices

    def draw(self, times=1):
        drawn = []
        for _ in range(times):
            batch = self.run.sample(self.state, next(self.keys))
            self.state = self.run.update(self.state, batch)
            drawn += np.asarray(batch.indices).tolist()
        return drawn


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.sampled_from([(10, 3), (7, 7), (12, 5), (9, 1)]), st.integers(0, 99))
def test_counts_differ_by_at_most_one(sizes, seed):
    capacity, batch_size = sizes
    epochs, counts = Epochs(capacity, batch_size, seed, capacity), np.zeros(capacity, int)
    for turn in range(30):
        np.add.at(counts, epochs.draw(), 1)
        assert counts.max() - counts.min() <= 1
        assert counts.sum() == (turn + 1) * batch_size
        order = buffer.of_slots(epochs.state.sampler.order, capacity)
        assert sorted(np.asarray(order)) == list(range(capacity))


def test_new_transitions_are_drawn_in_the_running_epoch():
    # Two of slots 0 to 3 are drawn before slot 4 is written, so three are left in this epoch.
    for seed in range(8):
        epochs = Epochs(6, 1, seed, 4)
        early, later = epochs.draw(2), epochs.add().draw(3)
        assert sorted(early + later) == [0, 1, 2, 3, 4]
        assert sorted(epochs.draw(5)) == [0, 1, 2, 3, 4]


def test_overwritten_slots_keep_their_places():
    epochs = Epochs(6, 2, count=6)
    early = epochs.draw(2)
    assert sorted(early + epochs.add(3).draw(1)) == list(range(6))


def test_stale_batches_count_as_drawn():
    epochs = Epochs(6, 3, count=6)
    batch = epochs.sample()
    epochs.add(6)
    epochs.state = epochs.run.update(epochs.state, batch)
    assert int(epochs.state.dropped) == 3
    assert sorted([*batch.indices, *epochs.draw()]) == list(range(6))


def test_transitions_are_drawn_equally_often_before_they_are_overwritten():
    """Counts of draws per transition, with one transition added and eight drawn in each step."""
    capacity, steps = 200, 6000
    epochs = Epochs(capacity, 8, count=capacity)
    row = jax.tree.map(lambda x: x[None], epochs.example)
    step = lambda state, key: epochs.cycle(epochs.run.replay.add(state, row), key)
    keys = jax.random.split(jax.random.key(1), steps)
    drawn = np.asarray(jax.jit(lambda s: jax.lax.scan(step, s, keys)[1])(epochs.state))
    counts, lives = np.zeros(capacity, int), []
    for time in range(steps):
        lives += [counts[time % capacity]] * (time >= capacity)
        counts[time % capacity] = 0
        np.add.at(counts, drawn[time], 1)
    assert set(lives) == {7, 8, 9}
    assert np.mean(lives) == pytest.approx(8.0, abs=0.01)
    assert np.var(lives) == pytest.approx(1 / 3, abs=0.03)  # 7.96 with replacement


def test_all_orders_are_equally_likely():
    epochs = Epochs(4, 1, count=4)

    def two_epochs(key):
        return jax.lax.scan(epochs.cycle, epochs.state, jax.random.split(key, 8))[1]

    drawn = jax.jit(jax.vmap(two_epochs))(jax.random.split(jax.random.key(3), 24 * 400))
    for epoch in np.asarray(drawn).reshape(-1, 2, 4).transpose(1, 0, 2):
        orders = dict.fromkeys(itertools.permutations(range(4)), 0)
        for order in map(tuple, epoch):
            orders[order] += 1
        # p = 0.001, 23 degrees of freedom
        assert sum((count - 400) ** 2 / 400 for count in orders.values()) < 49.7


@pytest.mark.parametrize(("count", "below"), [(3, 3), (3, 5), (3, 40), (2, 4)])
def test_distinct_integers_are_uniform(count, below):
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = lambda key, count, below: distinct(key, 3, count, below)
    draw = jax.jit(jax.vmap(draw, (0, None, None)))
    found = np.asarray(draw(keys, jnp.int32(count), jnp.int32(below)))[:, :count]
    assert all(len(set(row)) == count for row in found.tolist())
    counts = np.bincount(found.ravel(), minlength=below)
    expected = 4000 * count / below
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()
