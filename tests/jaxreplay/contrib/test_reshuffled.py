"""RR-C: every epoch draws every transition once, in a uniformly random order."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Replay, Transition
from jaxreplay.contrib import reshuffled
from jaxreplay.contrib.reshuffled import distinct

EXAMPLE = Transition(reward=jnp.zeros(()))
ROW = Transition(reward=jnp.zeros(1))


class Play:
    """A replay that returns the slots of its batches."""

    def __init__(self, capacity, batch_size, seed=0):
        self.replay = Replay(reshuffled.sampler(), capacity=capacity, batch_size=batch_size)
        self.state = self.replay.init(jax.random.key(0), EXAMPLE)
        self.keys = iter(jax.random.split(jax.random.key(seed), 2000))
        self.cycle, self.add_one = jax.jit(self._cycle), jax.jit(self.replay.add)

    def _cycle(self, state, key):
        batch = self.replay.sample(state, key)
        return self.replay.update(state, batch), batch.indices

    def add(self, count):
        for _ in range(count):
            self.state = self.add_one(self.state, ROW)
        return self

    def draw(self, times=1):
        drawn = []
        for _ in range(times):
            self.state, slots = self.cycle(self.state, next(self.keys))
            drawn += np.asarray(slots).tolist()
        return drawn


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.sampled_from([(10, 3), (7, 7), (12, 5), (9, 1)]), st.integers(0, 99))
def test_counts_differ_by_at_most_one(sizes, seed):
    capacity, batch_size = sizes
    play, counts = Play(capacity, batch_size, seed).add(capacity), np.zeros(capacity, int)
    for turn in range(30):
        np.add.at(counts, play.draw(), 1)
        assert counts.max() - counts.min() <= 1
        assert counts.sum() == (turn + 1) * batch_size
        assert sorted(np.asarray(play.state.sampler.order)) == list(range(capacity))


def test_new_transitions_are_drawn_in_the_running_epoch():
    # Two of slots 0 to 3 are drawn before slot 4 is written, so three are left in this epoch.
    for seed in range(8):
        play = Play(6, 1, seed).add(4)
        early, later = play.draw(2), play.add(1).draw(3)
        assert sorted(early + later) == [0, 1, 2, 3, 4]
        assert sorted(play.draw(5)) == [0, 1, 2, 3, 4]


def test_overwritten_slots_keep_their_places():
    play = Play(6, 2).add(6)
    early = play.draw(2)
    assert sorted(early + play.add(3).draw(1)) == list(range(6))


def test_stale_batches_count_as_drawn():
    play = Play(6, 3).add(6)
    batch = play.replay.sample(play.state, jax.random.key(0))
    play.add(6)
    play.state = play.replay.update(play.state, batch)
    assert int(play.state.dropped) == 3
    assert sorted([*np.asarray(batch.indices), *play.draw()]) == list(range(6))


def test_transitions_are_drawn_equally_often_before_they_are_overwritten():
    """Counts of draws per transition, with one transition added and eight drawn in each step."""
    capacity, batch_size, steps = 200, 8, 6000
    play = Play(capacity, batch_size).add(capacity)

    def step(state, key):
        state, slots = play._cycle(play.replay.add(state, ROW), key)
        return state, slots

    keys = jax.random.split(jax.random.key(1), steps)
    drawn = np.asarray(jax.jit(lambda s: jax.lax.scan(step, s, keys)[1])(play.state))
    counts, lives = np.zeros(capacity, int), []
    for time in range(steps):
        lives += [counts[time % capacity]] * (time >= capacity)
        counts[time % capacity] = 0
        np.add.at(counts, drawn[time], 1)
    assert set(lives) == {7, 8, 9}
    assert np.mean(lives) == pytest.approx(8.0, abs=0.01)
    assert np.var(lives) == pytest.approx(1 / 3, abs=0.03)  # 7.96 with replacement


@pytest.mark.parametrize("epoch", [0, 1])
def test_all_orders_are_equally_likely(epoch):
    play = Play(4, 1).add(4)

    def epochs(key):
        keys = jax.random.split(key, 8)
        return jax.lax.scan(play._cycle, play.state, keys)[1].reshape(2, 4)

    keys = jax.random.split(jax.random.key(3), 24 * 400)
    drawn = np.asarray(jax.jit(jax.vmap(epochs))(keys))[:, epoch]
    orders = dict.fromkeys(itertools.permutations(range(4)), 0)
    for order in map(tuple, drawn):
        orders[order] += 1
    assert sum((count - 400) ** 2 / 400 for count in orders.values()) < 49.7  # p = 0.001, 23 dof


@pytest.mark.parametrize(("count", "below"), [(3, 3), (3, 5), (3, 40), (2, 4)])
def test_distinct_integers_are_uniform(count, below):
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = jax.jit(jax.vmap(lambda key: distinct(key, 3, jnp.int32(count), jnp.int32(below))))
    found = np.asarray(draw(keys))[:, :count]
    assert all(len(set(row)) == count for row in found.tolist())
    counts = np.bincount(found.ravel(), minlength=below)
    expected = 4000 * count / below
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()
