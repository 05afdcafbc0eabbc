"""RR-M: masks worked out by hand, counts, and epochs with equal priorities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, Transition, sum_tree, testing
from jaxreplay.methods import masked, per, rank
from jaxreplay.methods.masked import Masked, MaskedConfig
from jaxreplay.methods.proportional import ImportanceWeights, Proportional
from tests.refusals import refused

EXAMPLE = Transition(reward=jnp.zeros(()))


def leaf(feedback, slots, ring):
    return feedback["td_error"]


class Given:
    """A buffer with given priorities, which feedback does not change."""

    def __init__(self, priorities, batch_size, **options):
        self.priorities = jnp.asarray(priorities, jnp.float32)
        base = Proportional(leaf, initial="td")
        capacity = len(priorities)
        self.replay = Replay(Masked(base, **options), capacity=capacity, batch_size=batch_size)
        self.state = self.replay.init(jax.random.key(0), EXAMPLE)
        for value in self.priorities:
            self.add(value)

    def add(self, value):
        row = Transition(reward=jnp.zeros(1))
        self.state = self.replay.add(self.state, row, td_error=jnp.reshape(value, 1))

    def update(self, slots):
        """Update with a batch of these slots, whichever the sampler would draw."""
        slots = jnp.asarray(slots)
        batch = self.replay.sample(self.state, jax.random.key(0), len(slots))
        batch = batch._replace(indices=slots, version=slots + 1)
        self.state = self.replay.update(self.state, batch, td_error=self.priorities[slots])

    def chances(self):
        return np.asarray(self.replay.probability(self.state, jnp.arange(len(self.priorities))))

    def draw(self, updates, seed=1):
        """Return the slots `[updates, B]` of as many updates."""

        def cycle(state, key):
            batch = self.replay.sample(state, key)
            td = self.priorities[batch.indices]
            return self.replay.update(state, batch, td_error=td), batch.indices

        keys = jax.random.split(jax.random.key(seed), updates)
        self.state, slots = jax.jit(lambda s: jax.lax.scan(cycle, s, keys))(self.state)
        return np.asarray(slots)


def counts_of(slots, capacity):
    """Return the number of draws `[updates, capacity]` of each slot until each update."""
    batches = [np.bincount(batch, minlength=capacity) for batch in slots]
    return np.cumsum(batches, axis=0)


def test_masks():
    given = Given([4, 2, 1, 1], 1)
    np.testing.assert_allclose(given.chances(), [0.5, 0.25, 0.125, 0.125])
    # Actual and expected counts after each draw, and the chances of those that are not ahead.
    for slot, chances in (
        (0, [0, 1 / 2, 1 / 4, 1 / 4]),  # [1 0 0 0] and [.5 .25 .125 .125]
        (1, [2 / 3, 0, 1 / 6, 1 / 6]),  # [1 1 0 0] and [1 .5 .25 .25]: 0 has caught up
        (0, [0, 0, 1 / 2, 1 / 2]),  # [2 1 0 0] and [1.5 .75 .375 .375]
        (2, [4 / 7, 2 / 7, 0, 1 / 7]),  # [2 1 1 0] and [2 1 .5 .5]
    ):
        given.update([slot])
        np.testing.assert_allclose(given.chances(), chances, atol=1e-6)


@pytest.mark.parametrize("capacity, batch_size", [(10, 2), (10, 4), (9, 9), (12, 5)])
def test_equal_priorities_draw_every_transition_once_in_an_epoch(capacity, batch_size):
    for sampling, most in (("systematic", 1), ("stratified", 3)):
        slots = Given([3.0] * capacity, batch_size, sampling=sampling).draw(120)
        counts = counts_of(slots, capacity)
        assert (counts.max(axis=1) - counts.min(axis=1)).max() <= most


@pytest.mark.parametrize("release_every", [1, 3])
@pytest.mark.parametrize("sampling", ["systematic", "stratified"])
def test_counts_stay_near_their_expectations(sampling, release_every):
    priorities = np.array([8, 4, 2, 2, 1, 1, 1, 1])
    given = Given(priorities, 2, sampling=sampling, release_every=release_every)
    slots = given.draw(4000)
    counts, share = counts_of(slots, 8), priorities / 20
    error = counts - 2 * share * np.arange(1, 4001)[:, None]
    np.testing.assert_allclose(counts[-1] / 8000, share, atol=1e-3)
    assert np.var(error[2000:]) < 0.35  # hundreds without a mask
    assert np.abs(error).max() < 3.5


def test_shares_while_transitions_are_overwritten():
    """The residual counts of overwritten transitions hardly distort the shares."""
    capacity, batch_size, kinds = 80, 32, np.array([1.0, 2.0, 6.0])
    given = Given(np.random.default_rng(0).choice(kinds, capacity), batch_size)
    replay = given.replay

    def step(carry, key):
        state, priorities = carry
        new = jax.random.choice(key, jnp.float32(kinds))
        slot = state.ring.steps_added % capacity
        state = replay.add(state, Transition(reward=jnp.zeros(1)), td_error=new[None])
        priorities = priorities.at[slot].set(new)
        batch = replay.sample(state, key)
        drawn = priorities[batch.indices]
        state = replay.update(state, batch, td_error=drawn)
        masses = (kinds[:, None] * (priorities == kinds[:, None])).sum(1)
        counts = (drawn == kinds[:, None]).sum(1)
        return (state, priorities), (counts, batch_size * masses / priorities.sum())

    keys = jax.random.split(jax.random.key(2), 4000)
    run = jax.jit(lambda carry: jax.lax.scan(step, carry, keys)[1])
    actual, expected = run((given.state, given.priorities))
    np.testing.assert_allclose(actual.sum(axis=0) / expected.sum(axis=0), 1.0, atol=0.015)


def test_overwriting_resets_counts():
    given = Given([1, 1, 1], 1)
    given.update([0])
    assert given.chances()[0] == 0
    given.add(1.0)
    np.testing.assert_allclose(given.chances(), [1 / 3] * 3)
    assert int(given.state.sampler.available) == 3


def test_a_priority_that_changes_keeps_the_excess():
    given = Given([1, 1, 1, 1], 2)
    given.priorities = jnp.array([4.0, 1.0, 1.0, 1.0])
    given.update([0, 1])  # expected counts .5, actual counts 1 1 0 0
    np.testing.assert_allclose(given.chances(), [0, 0, 0.5, 0.5], atol=1e-6)
    given.update([2, 3])  # .5 + 8 / 7 and 3 times .5 + 2 / 7: all have caught up but 1, 2 and 3
    np.testing.assert_allclose(given.chances()[0], 1 / 2, atol=1e-6)  # alone, half of a batch


def test_weights_are_those_of_the_base():
    base = Proportional(leaf, ImportanceWeights(lambda updates: jnp.float32(0.5)), initial="td")
    given = Given([4, 2, 1, 1], 2)
    replay = Replay(Masked(base), capacity=4, batch_size=2)
    given.update([0])
    batch = replay.sample(given.state, jax.random.key(3))
    chance = np.asarray(given.priorities)[np.asarray(batch.indices)] / 8
    weights = (4 * chance) ** -0.5
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-5)


def test_trees_stay_valid():
    case = testing.Case(masked.method(MaskedConfig(release_every=2)))
    state = case.fill()
    for time in range(8, 30):
        state, _ = case.step(state, time)
        trees = [np.asarray(sum_tree.leaves(t)) for t in (state.sampler.open, state.sampler.masked)]
        assert not (trees[0] * trees[1]).any()
        assert int(state.sampler.available) == (trees[0] > 0).sum()
    for tree in (state.sampler.open, state.sampler.masked):
        sum_tree.check_valid(tree)


def test_combinations():
    combined = masked.combine(per.method(), release_every=1)
    assert combined.objective == per.method().objective
    assert combined.sampler.requires == per.sampler().requires
    with refused("base", "Rank"):
        masked.combine(rank.method())
    with refused("base", "normalise", "buffer"):
        masked.combine(per.method(per.PERConfig(normalise="buffer")))
    with refused("base", "maximum", "stored"):
        masked.combine(per.method(per.PERConfig(maximum="stored")))
