"""Sequences of consecutive steps, compared with lists of stored steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Replay, ring, sum_tree
from jaxreplay.methods import sequences
from jaxreplay.methods.sequences import SequencesConfig
from tests.refusals import refused

E, B = 2, 5
EXAMPLE = {"reward": np.float32(0), "first": np.bool_(0), "last": np.bool_(0)}
SMALL = SequencesConfig(length=4, period=2, burn_in=1)


@functools.cache
def made(config, capacity):
    replay = Replay(sequences.sampler(config), capacity=capacity, batch_size=B, num_envs=E)
    verbs = (replay.init, replay.add, replay.sample, replay.update)
    return replay, *(jax.jit(verb) for verb in verbs)


class Model:
    """Lists of the steps of each lane, and the sequences that can be drawn by definition."""

    def __init__(self, config, capacity):
        self.config, self.rows = config, capacity // E
        self.lanes = [[] for _ in range(E)]  # of (episode, position)
        self.ended = [True] * E

    def add(self, firsts, lasts):
        for lane, first, ended in zip(self.lanes, firsts, self.ended):
            episode, position = lane[-1] if lane else (-1, -1)
            begins = first or ended
            lane.append((episode + 1, 0) if begins else (episode, position + 1))
        self.ended = list(lasts)

    def sequences(self):
        """Return the (row, lane) of the first step of every sequence that can be drawn."""
        config, found = self.config, []
        for lane, steps in enumerate(self.lanes):
            oldest = max(0, len(steps) - self.rows)
            for row in range(oldest, len(steps) - config.length + 1):
                episode, position = steps[row]
                outlasts = steps[row + config.burn_in][0] == episode
                if position % config.period == 0 and outlasts:
                    found.append((row, lane))
        return found

    def mask(self, row, lane):
        steps = self.lanes[lane][row : row + self.config.length]
        return [episode == steps[0][0] for episode, _ in steps]


def row_of(number, firsts, lasts):
    return {
        "reward": np.float32(10 * number + np.arange(E)),
        "first": np.array(firsts),
        "last": np.array(lasts),
    }


def played(config, capacity, rows, seed, length=6):
    """Fill a replay and a model with episodes of random lengths, some of them without an end."""
    replay, init, add, *_ = made(config, capacity)
    state, model = init(jax.random.key(0), EXAMPLE), Model(config, capacity)
    rng, begins = np.random.default_rng(seed), [True] * E
    for number in range(rows):
        over = [rng.random() < 1 / length for _ in range(E)]
        told = [x and rng.random() < 0.7 for x in over]
        state = add(state, row_of(number, begins, told))
        model.add(begins, told)
        begins = over
    return replay, state, model


def live(state):
    """Return {slot: leaf} of the sequences that can be drawn."""
    leaves = np.asarray(sum_tree.leaves(state.sampler.priorities.tree))
    return {int(slot): leaves[slot] for slot in np.flatnonzero(leaves)}


def slot_of(row, lane, capacity):
    return row % (capacity // E) * E + lane


SIZES = [
    (SMALL, 24),
    (SequencesConfig(length=5, period=1, burn_in=3), 10),  # the smallest possible number of rows
    (SequencesConfig(length=1, period=1), 6),
]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.sampled_from(SIZES), st.integers(0, 50), st.integers(0, 2**31), st.sampled_from([2, 6, 40])
)
def test_sequences_equal_those_of_the_definition(sizes, rows, seed, length):
    config, capacity = sizes
    replay, state, model = played(config, capacity, rows, seed, length)
    wanted = {slot_of(*start, capacity): start for start in model.sequences()}
    assert set(live(state)) == set(wanted)
    sequences.check_valid(state.sampler, state.ring, config)
    assert bool(replay.can_sample(state)) == bool(wanted)
    if not wanted:
        return
    batch = made(config, capacity)[3](state, jax.random.key(seed))
    assert batch.indices.shape == batch.aux.mask.shape == (B, config.length)
    assert batch.weights.shape == (B,)
    for number in range(B):
        row, lane = wanted[int(batch.indices[number, 0])]
        told = 10 * np.arange(row, row + config.length) + lane
        np.testing.assert_array_equal(batch.transition["reward"][number], told)
        mask = np.array(model.mask(row, lane))
        np.testing.assert_array_equal(batch.aux.mask[number], mask)
        learn = mask & (np.arange(config.length) >= config.burn_in)
        np.testing.assert_array_equal(batch.aux.learn[number], learn)
        assert learn.any()


def test_priorities_mix_the_largest_and_the_mean_error():
    td = np.float32([[1, -3, 2, 9], [4, 0, 0, 9], [7, 7, 7, 7]])
    learn = np.array([[0, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]], bool)
    found = sequences.priority(td, learn, 0.9)
    np.testing.assert_allclose(found, [0.9 * 3 + 0.1 * 2.5, 0.9 * 4 + 0.1 * 4 / 3, 0], rtol=1e-6)


def test_updates_change_only_priorities_of_drawn_sequences():
    capacity, config = 24, SMALL
    _, _, _, sample, update = made(config, capacity)
    _, state, model = played(config, capacity, 30, seed=3)
    before = live(state)
    batch = sample(state, jax.random.key(1))
    td = np.random.default_rng(0).normal(size=(B, 4)).astype(np.float32)
    after = live(update(state, batch, td_error=td))
    learn = np.asarray(batch.aux.learn)
    size = np.abs(td) * learn
    size = 0.9 * size.max(axis=1) + 0.1 * size.sum(axis=1) / learn.sum(axis=1)
    drawn = np.asarray(batch.indices)[:, 0].tolist()
    for slot, leaf in after.items():
        told = [(x + 1e-6) ** 0.9 for x, first in zip(size, drawn) if first == slot]
        assert any(np.isclose(leaf, x, rtol=1e-5) for x in told or [before[slot]])
    assert set(after) == set(before)
    largest = max(1.0, *((size + 1e-6) ** 0.9))
    np.testing.assert_allclose(update(state, batch, td_error=td).sampler.priorities.max_leaf,
                               largest, rtol=1e-6)  # fmt: skip


def test_sequences_overwritten_since_their_draw_get_no_priority():
    capacity, config = 24, SMALL
    _, _, add, sample, update = made(config, capacity)
    _, state, model = played(config, capacity, 40, seed=5, length=40)
    batch = sample(state, jax.random.key(0))
    for number in range(40, 46):  # half of the ring
        state = add(state, row_of(number, [False] * E, [False] * E))
    before = live(state)
    after = update(state, batch, td_error=jnp.full((B, 4), 100.0))
    stale = np.asarray(ring.version(state.ring, batch.indices) != batch.version)
    assert 0 < stale[:, 0].sum() < B
    assert int(after.dropped - state.dropped) == stale.sum()
    kept = {int(slot) for slot, old in zip(batch.indices[:, 0], stale[:, 0]) if not old}
    changed = {slot for slot, leaf in live(after).items() if leaf != before[slot]}
    assert changed == kept
    assert set(live(after)) == set(before)


def test_td_errors_that_are_not_finite_are_left_out():
    capacity = 24
    _, _, _, sample, update = made(SMALL, capacity)
    _, state, _ = played(SMALL, capacity, 30, seed=3, length=40)
    batch = sample(state, jax.random.key(1))
    assert len(set(np.asarray(batch.indices)[:, 0].tolist())) == B
    td = np.full((B, 4), 2.0, np.float32)
    td[0, 2] = np.nan  # one learning step of three, so the priority changes
    td[1, 1:] = np.inf  # all learning steps, so the priority does not change
    td[2, 0] = np.nan  # a burn-in step, whose error has no effect
    after = update(state, batch, td_error=td)
    sequences.check_valid(after.sampler, after.ring, SMALL)
    assert int(after.dropped) == 5
    changed = {slot for slot, leaf in live(after).items() if leaf != live(state)[slot]}
    assert [int(slot) in changed for slot in batch.indices[:3, 0]] == [True, False, True]


def test_draws_follow_the_priorities():
    capacity, config = 24, SMALL
    replay, _, _, sample, update = made(config, capacity)
    _, state, _ = played(config, capacity, 31, seed=8, length=40)
    for key in range(3):
        batch = sample(state, jax.random.key(key))
        td = jax.random.normal(jax.random.key(50 + key), (B, 4)) * 2
        state = update(state, batch, td_error=td)
    leaves = live(state)
    draw = jax.jit(jax.vmap(lambda key: replay.sample(state, key, 1).indices[0, 0]))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(1), 20_000)))
    total = sum(leaves.values())
    expected = np.array([20_000 * leaf / total for leaf in leaves.values()])
    counts = np.array([(drawn == slot).sum() for slot in leaves])
    assert counts.sum() == 20_000
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = len(leaves) - 1
    assert freedom > 3 and chi_square < freedom + 5 * np.sqrt(2 * freedom)
    batch = sample(state, jax.random.key(7))
    odds = np.array([leaves[int(slot)] / total for slot in batch.indices[:, 0]])
    np.testing.assert_allclose(batch.probability, odds, rtol=1e-5)
    np.testing.assert_allclose(batch.weights, (odds / odds.min()) ** -0.6, rtol=1e-4)


def test_unprioritised_sequences_are_equally_likely():
    config = SequencesConfig(length=3, period=2, prioritised=False)  # 10 rows: no multiple
    sampler = sequences.sampler(config)
    assert sampler.is_uniform and sampler.requires.feedback == frozenset()
    replay, *_, sample, update = made(config, 20)
    _, state, _ = played(config, 20, 30, seed=1)
    assert set(live(state).values()) == {1.0}
    batch = sample(state, jax.random.key(0))
    np.testing.assert_array_equal(batch.weights, 1)
    assert live(update(state, batch)) == live(state)


@pytest.mark.parametrize("edge", ["first", "last"])
def test_one_of_first_and_last_is_enough(edge):
    replay = Replay(sequences.sampler(SMALL), capacity=24, batch_size=B, num_envs=E)
    state = replay.init(jax.random.key(0), {edge: np.bool_(0)})
    both = made(SMALL, 24)
    whole = both[1](jax.random.key(0), EXAMPLE)
    add = jax.jit(replay.add)
    for number in range(15):  # episodes of five steps
        row = row_of(number, [number % 5 == 0] * E, [number % 5 == 4] * E)
        state = add(state, {edge: row[edge]})
        whole = both[2](whole, row)
    steps = state.sampler.positions.steps, whole.sampler.positions.steps
    np.testing.assert_array_equal(*steps)
    assert live(state) == live(whole)


def test_invalid_options_rows_and_feedback_are_refused():
    with refused("burn_in", "80"):
        SequencesConfig(burn_in=80)
    with refused("period", "50", "40"):
        SequencesConfig(length=80, burn_in=40, period=50)
    replay = Replay(sequences.sampler(SMALL), capacity=8, batch_size=B, num_envs=E)
    with refused("capacity", "4", "5"):
        jax.eval_shape(replay.init, jax.random.key(0), EXAMPLE)
    replay, init, add, *_ = made(SMALL, 24)
    with refused("last", "first", "dict"):
        jax.eval_shape(replay.init, jax.random.key(0), {"reward": np.float32(0)})
    state = add(init(jax.random.key(0), EXAMPLE), row_of(0, [True] * E, [False] * E))
    with refused("can_sample"):
        replay.sample(state, jax.random.key(0))
    _, state, _ = played(SMALL, 24, 12, seed=0)
    batch = made(SMALL, 24)[3](state, jax.random.key(0))
    with refused("td_error", "[5]", "[5, 4]"):
        replay.update(state, batch, td_error=jnp.zeros(B))


def test_metrics_count_sequences():
    replay, state, model = played(SMALL, 24, 30, seed=3)
    found = jax.jit(replay.metrics)(state)
    assert int(found["sequences"]) == len(model.sequences()) > 0
    np.testing.assert_allclose(found["mean_priority"], 1.0)
