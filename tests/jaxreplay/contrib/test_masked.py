"""Reshuffled prioritised replay: counts follow priorities, by hand and with a plain model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Replay, Transition, sum_tree, testing
from jaxreplay.contrib import masked
from jaxreplay.contrib.masked import Masked, MaskedConfig
from jaxreplay.methods import her, lap, per, rank
from jaxreplay.methods.per import PERConfig
from jaxreplay.methods.proportional import Proportional
from tests.methods import compiled
from tests.refusals import refused

EXAMPLE = Transition(reward=np.float32(0))
ROW = Transition(reward=np.zeros(1, np.float32))


def leaf(feedback, slots, ring):
    return jnp.abs(feedback["td_error"])


class Play:
    """A full replay whose feedback sets priorities directly, with a plain model of counts."""

    def __init__(self, priorities, batch_size, strength=0.3, sampling="stratified"):
        sampler = Masked(Proportional(leaf, sampling=sampling), MaskedConfig(strength=strength))
        count = len(priorities)
        self.replay = compiled(Replay(sampler, capacity=count, batch_size=batch_size))
        self.state = self.replay.init(jax.random.key(0), EXAMPLE)
        for _ in range(count):
            self.state = self.replay.add(self.state, ROW)
        self.priorities, self.batch_size = np.float32(priorities), batch_size
        masked, counts = self.state.sampler.masked, np.array(self.state.sampler.counts)
        counts[:, 0] = self.priorities
        masked = masked._replace(tree=jax.jit(sum_tree.rebuild)(masked.tree, self.priorities))
        inner = self.state.sampler._replace(masked=masked, counts=counts)
        self.state = self.state._replace(sampler=inner)

    def run(self, updates, change=None):
        """Draw batches; return actual and expected counts `[updates, C]`.

        `change(slots, key)` returns new priorities of a batch; None keeps them.
        """

        def step(carry, key):
            state, priorities = carry
            masks = sum_tree.leaves(state.sampler.masked.tree)[: len(priorities)]
            batch = self.replay.sample(state, key)
            own = priorities[batch.indices]
            expected = self.batch_size * priorities / masks.sum()
            td = own if change is None else change(batch.indices, key)
            state = self.replay.update(state, batch, td_error=td)
            count = jnp.zeros(len(priorities)).at[batch.indices].add(1.0)
            priorities = priorities.at[batch.indices].set(td)
            return (state, priorities), (count, expected)

        keys = jax.random.split(jax.random.key(1), updates)
        start = self.state, jnp.asarray(self.priorities)
        (self.state, _), found = jax.jit(lambda: jax.lax.scan(step, start, keys))()
        return tuple(np.cumsum(np.asarray(x, np.float64), axis=0) for x in found)


PRIORITIES = {
    "some": [8.0, 4.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0],
    "equal": [1.0] * 40,
    "heavy": list(np.random.default_rng(0).pareto(1.5, 60) + 0.05),
}


@pytest.mark.parametrize(
    ("name", "sampling"), [("some", "iid"), ("equal", "stratified"), ("heavy", "stratified")]
)
def test_excesses_are_bounded_and_shares_equal_those_of_priorities(name, sampling):
    priorities = np.array(PRIORITIES[name])
    play = Play(priorities, 2 + len(priorities) // 10, sampling=sampling)
    actual, expected = play.run(8000)
    excess = (actual - expected)[2000:]
    assert excess.var(axis=0).mean() < 5 and np.abs(excess).max() < 40
    shares = actual[-1] / actual[-1].sum()
    np.testing.assert_allclose(shares, priorities / priorities.sum(), atol=1e-3)
    metrics = play.replay.metrics(play.state)
    assert 0.5 < float(metrics["rms_excess"]) < 3


def test_excesses_grow_without_a_mask():
    actual, expected = Play(PRIORITIES["equal"], 6, strength=0.0).run(8000)
    assert (actual - expected)[-1].var() > 100


def test_shares_follow_changing_priorities():
    """At every draw, the priority of slot i becomes i + 1 or 2 (i + 1) at random."""

    def change(slots, key):
        return (slots + 1.0) * jnp.where(jax.random.bernoulli(key, 0.5, slots.shape), 2.0, 1.0)

    actual, expected = Play(np.arange(1, 21), 4, sampling="iid").run(20_000, change)
    excess = (actual - expected)[5000:]
    assert excess.var(axis=0).mean() < 6
    np.testing.assert_allclose(actual[-1], expected[-1], atol=30)


def test_one_update_by_hand():
    """With priorities 4 2 1 1, slot 0 is drawn once and slot 1 twice, with new priority 3."""
    play = Play([4.0, 2.0, 1.0, 1.0], 3)
    drawn = np.int32([0, 1, 1])
    batch = play.replay.sample(play.state, jax.random.key(0))
    batch = batch._replace(indices=drawn, version=drawn + 1)
    after = play.replay.update(play.state, batch, td_error=np.float32([4, 3, 3]))
    inner = after.sampler
    expected = 3 * np.array([4, 2]) / 8
    excess = np.array([1, 2]) - expected
    counts = np.asarray(inner.counts)
    np.testing.assert_allclose(counts[:2, 1], excess, rtol=1e-6)
    np.testing.assert_allclose(counts[:, 0], [4, 3, 1, 1])
    np.testing.assert_allclose(float(inner.progress), 3 / 8)
    leaves = np.array([4, 3]) * np.exp(-0.3 * excess)
    found = play.replay.probability(after, np.arange(4))
    np.testing.assert_allclose(found, np.append(leaves, [1, 1]) / (leaves.sum() + 2), rtol=1e-5)
    # A new transition overwrites slot 0.
    later = play.replay.add(after, ROW)
    np.testing.assert_allclose(np.asarray(later.sampler.counts)[0], [4, 0, 3 / 8])


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.integers(0, 99), st.sampled_from([np.nan, np.inf, 1.0]))
def test_the_largest_priority_ignores_masks(seed, bad):
    """New transitions get the largest priority, which must not grow by factors of masks."""
    sampler = masked.sampler(MaskedConfig(over="lap"))
    replay = compiled(Replay(sampler, capacity=16, batch_size=4))
    state = replay.init(jax.random.key(0), EXAMPLE)
    for step in range(40):
        state = replay.add(state, ROW)
        if step >= 4:
            batch = replay.sample(state, jax.random.key(seed + step))
            state = replay.update(state, batch, td_error=np.float32([bad, 1, 1, 1]))
    assert float(state.sampler.masked.max_leaf) == 1.0
    assert np.isfinite(state.sampler.counts).all()
    assert int(state.dropped) == (0 if bad == 1.0 else 36)


def test_weights_equal_those_of_per():
    """Weights do not depend on masks."""
    config = PERConfig(alpha=1.0, beta=1.0, normalise="none", epsilon=0.0)
    sampler = masked.combine(per.method(config)).sampler
    replay = compiled(Replay(sampler, capacity=8, batch_size=4))
    state = replay.init(jax.random.key(0), EXAMPLE)
    for _ in range(8):
        state = replay.add(state, ROW)
    for seed in range(5):
        batch = replay.sample(state, jax.random.key(seed))
        state = replay.update(state, batch, td_error=np.float32(1 + np.asarray(batch.indices)))
    batch = replay.sample(state, jax.random.key(9))
    total = np.asarray(sum_tree.leaves(state.sampler.masked.tree))[:8].sum()
    priority = np.asarray(state.sampler.counts)[np.asarray(batch.indices), 0]
    np.testing.assert_allclose(batch.weights, total / (8 * priority), rtol=1e-5)


def test_unsupported_bases_are_refused():
    assert masked.method(MaskedConfig(over="lap")).sampler.inner == lap.sampler()
    assert masked.method().sampler == Masked(per.sampler(), MaskedConfig())
    with refused("rank"):
        masked.combine(rank.method())
    with refused("buffer", "batch"):
        masked.combine(per.method(PERConfig(normalise="buffer")))
    with refused("stored", "all_time"):
        masked.combine(per.method(PERConfig(maximum="stored")))
    with refused("strength", "2"):
        MaskedConfig(strength=2.0)


def test_rows_without_feedback_do_not_count():
    """Hindsight gives no feedback on relabelled rows: neither draw nor expectation counts."""
    method = masked.method()
    sampler = testing.with_goals(method._replace(sampler=her.Hindsight(method.sampler))).sampler
    replay = compiled(Replay(sampler, capacity=64, batch_size=16, num_envs=testing.E))
    state = replay.init(jax.random.key(0), testing.EXAMPLE)
    for time in range(32):
        state = replay.add(state, testing.rows(time))

    def step(state, key):
        batch = replay.sample(state, key)
        return replay.update(state, batch, td_error=jnp.ones(16)), None

    keys = jax.random.split(jax.random.key(1), 400)
    state, _ = jax.jit(lambda state: jax.lax.scan(step, state, keys))(state)
    assert float(replay.metrics(state)["rms_excess"]) < 3.0  # 10 if relabelled rows counted
