"""Slices compared with lists of stored steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Replay, sum_tree, testing
from jaxreplay.methods import per, uniform
from jaxreplay.methods.slices import Slices, SlicesConfig
from tests.refusals import refused

E, B, CAPACITY = 2, 5, 24
EXAMPLE = {"reward": np.float32(0), "first": np.bool_(0), "last": np.bool_(0)}
PER = per.sampler(per.PERConfig(alpha=1.0, epsilon=0.0))


@functools.cache
def made(inner=PER, capacity=CAPACITY, **options):
    sampler = Slices(inner, SlicesConfig(**options))
    replay = Replay(sampler, capacity=capacity, batch_size=B, num_envs=E)
    verbs = (replay.init, replay.add, replay.sample, replay.update, replay.probability)
    return replay, *(jax.jit(verb) for verb in verbs)


def row_of(number, firsts, lasts):
    return {
        "reward": np.float32(10 * number + np.arange(E)),
        "first": np.array(firsts),
        "last": np.array(lasts),
    }


def played(count, seed=0, mean=6, **options):
    """Return a replay, its state and the episodes of each environment's steps.

    Episodes have random lengths. Some have no end, and the newest are unfinished.
    """
    replay, init, add, *_ = made(**options)
    state, lanes = init(jax.random.key(0), EXAMPLE), [[] for _ in range(E)]
    rng, begins = np.random.default_rng(seed), [True] * E
    for number in range(count):
        over = [rng.random() < 1 / mean for _ in range(E)]
        state = add(state, row_of(number, begins, [x and rng.random() < 0.7 for x in over]))
        for lane, begin in zip(lanes, begins, strict=True):
            lane.append(lane[-1] + begin if lane else 0)
        begins = over
    return replay, state, lanes


def sequence_of(lane, row, rows, length, burn_in=0, whole=False):
    """Return the rows, mask and learn [T] of the sequence in which step `row` is drawn.

    Args:
      lane: episode of each step of an environment.
      row: number of the drawn step.
      rows: number of stored steps.
      length, burn_in, whole: options of slices.
    """
    first, limit = row, length - 1 if whole else burn_in
    while (
        row - first < limit
        and first - 1 >= max(0, len(lane) - rows)
        and lane[first - 1] == lane[row]
    ):
        first -= 1
    found = [min(first + step, len(lane) - 1) for step in range(length)]
    mask = [first + step < len(lane) and lane[found[step]] == lane[row] for step in range(length)]
    learn = [ok and (whole or first + step >= row) for step, ok in enumerate(mask)]
    return found, mask, learn


OPTIONS = [
    {"length": 4}, {"length": 5, "burn_in": 2}, {"length": 4, "burn_in": 3}, {"length": 1},
    {"length": 5, "whole": True}, {"length": 20, "whole": True},
]  # fmt: skip


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(OPTIONS), st.integers(3, 40), st.integers(0, 2**31), st.sampled_from([2, 6, 40])
)
def test_sequences_equal_those_of_the_definition(options, count, seed, mean):
    _, state, lanes = played(count, seed, mean, **options)
    batch = made(**options)[3](state, jax.random.key(seed))
    assert batch.indices.shape == batch.aux.mask.shape == (B, options["length"])
    told = np.asarray(batch.transition["reward"]).astype(int)
    for number in range(B):
        drawn = told[number, batch.aux.drawn[number]]
        row, lane = drawn // 10, drawn % 10
        expected = sequence_of(lanes[lane], row, CAPACITY // E, **options)
        np.testing.assert_array_equal(told[number], 10 * np.array(expected[0]) + lane)
        np.testing.assert_array_equal(batch.aux.mask[number], expected[1])
        np.testing.assert_array_equal(batch.aux.learn[number], expected[2])
        assert batch.aux.learn[number, batch.aux.drawn[number]]


@pytest.mark.parametrize("count", [3, 9, 12, 31])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_probabilities_are_the_expected_fractions_of_a_batch(options, count):
    _, state, lanes = played(count, seed=3, **options)
    _, _, _, sample, update, probability = made(**options)
    for key in range(3):  # makes priorities unequal
        batch = sample(state, jax.random.key(key))
        td = 3 * np.random.default_rng(key).normal(size=(B, options["length"]))
        state = update(state, batch, td_error=np.float32(td))
    rows, leaves = CAPACITY // E, leaves_of(state).astype(float)
    expected = np.zeros(CAPACITY)
    for lane in range(E):
        for row in range(max(0, count - rows), count):
            share = leaves[row % rows * E + lane] / leaves.sum() / options["length"]
            for step in sequence_of(lanes[lane], row, rows, **options)[0]:
                expected[step % rows * E + lane] += share
    found = probability(state, np.arange(CAPACITY))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(expected.sum(), 1.0, rtol=1e-6)


def test_draws_equal_those_of_the_inner_sampler():
    replay, state, _ = played(30, length=4, burn_in=2)
    draw, own = (
        jax.jit(sampler.sample, static_argnums=3)(inner, state.ring, jax.random.key(2), B)
        for sampler, inner in ((replay.sampler, state.sampler), (PER, state.sampler.inner))
    )
    at = np.arange(B), np.asarray(draw.aux.drawn)
    testing.same(np.asarray(draw.indices)[at], own.indices)
    testing.same((draw.weights, draw.probability), (own.weights, own.probability))
    assert replay.requires == PER.requires._replace(single_steps=True)
    assert not replay.sampler.is_uniform


def drawn_slots(batch):
    return np.asarray(batch.indices)[np.arange(B), np.asarray(batch.aux.drawn)]


def leaves_of(state):
    return sum_tree.leaves(jax.device_get(state.sampler.inner.tree))


@pytest.mark.parametrize("options", [OPTIONS[1], OPTIONS[5]], ids=str)
def test_updates_give_drawn_steps_the_priority_of_their_sequence(options):
    _, _, _, sample, update, _ = made(**options, eta=0.7)
    _, state, _ = played(31, seed=5, **options, eta=0.7)
    batch = sample(state, jax.random.key(1))
    td = np.random.default_rng(0).normal(size=(B, options["length"])).astype(np.float32)
    learn, drawn = np.asarray(batch.aux.learn), drawn_slots(batch)
    size = np.abs(td) * learn
    size = 0.7 * size.max(axis=1) + 0.3 * size.sum(axis=1) / learn.sum(axis=1)
    found, before = leaves_of(update(state, batch, td_error=td)), leaves_of(state)
    for slot, leaf in enumerate(found):
        told = size[drawn == slot].tolist() or [before[slot]]  # or one of two draws
        assert np.isclose(leaf, told, rtol=1e-5).any()


def test_other_feedback_is_averaged_over_a_sequence():
    class Recorder(uniform.Uniform):
        def init(self, key, ring):
            return {name: jnp.zeros(B) for name in ("q_value", "td_error", "number")}

        def update(self, state, ring, sample, **feedback):
            return feedback | {"number": sample.transition["reward"]}

    _, state, _ = played(20, inner=Recorder(), length=4, burn_in=1)
    _, _, _, sample, update, _ = made(inner=Recorder(), length=4, burn_in=1)
    batch = sample(state, jax.random.key(0))
    values = np.arange(4.0 * B, dtype=np.float32).reshape(B, 4) - 10
    state = update(state, batch, q_value=values, td_error=values)
    learn = np.asarray(batch.aux.learn)
    mean = (values * learn).sum(axis=1) / learn.sum(axis=1)
    np.testing.assert_allclose(state.sampler.inner["q_value"], mean, rtol=1e-6)
    assert (state.sampler.inner["td_error"] >= np.abs(mean) - 1e-5).all()
    at = np.arange(B), np.asarray(batch.aux.drawn)
    told = np.asarray(batch.transition["reward"])[at]
    np.testing.assert_array_equal(state.sampler.inner["number"], told)


@pytest.mark.parametrize("whole", [False, True])
def test_sequences_whose_drawn_step_is_overwritten_get_no_priority(whole):
    options = {"length": 4, "whole": whole}
    _, _, add, sample, update, _ = made(**options)
    _, state, _ = played(40, seed=5, mean=40, **options)
    batch = sample(state, jax.random.key(0))
    for number in range(40, 46):  # half of the ring
        state = add(state, row_of(number, [False] * E, [False] * E))
    before = leaves_of(state)
    after = update(state, batch, td_error=np.full((B, 4), 100, np.float32))
    told = np.asarray(batch.transition["reward"])[np.arange(B), np.asarray(batch.aux.drawn)]
    kept = drawn_slots(batch)[told >= 10 * (46 - CAPACITY // E)]
    assert 0 < len(kept) < B
    assert set(np.flatnonzero(leaves_of(after) != before)) == set(kept)


def test_td_errors_that_are_not_finite_are_left_out():
    _, _, _, sample, update, _ = made(length=4)
    _, state, _ = played(30, mean=1000, length=4)
    batch = next(
        batch
        for batch in (sample(state, jax.random.key(key)) for key in range(50))
        if batch.aux.learn.all() and len(set(drawn_slots(batch))) == B
    )
    td = np.full((B, 4), 2.0, np.float32)
    td[0, 0] = np.nan  # the drawn step only, so the priority changes
    td[1] = np.inf  # all steps, so the priority does not change
    after = update(state, batch, td_error=td)
    assert int(after.dropped) == 5
    changed = leaves_of(after) != leaves_of(state)
    np.testing.assert_array_equal(changed[drawn_slots(batch)], [True, False, True, True, True])


@pytest.mark.parametrize("edge", ["first", "last", "end_episodes"])
def test_one_of_first_last_and_end_episodes_is_enough(edge):
    field = "last" if edge == "end_episodes" else edge
    replay, _, both_add, both_sample, *_ = made(length=4, whole=True)
    init = jax.jit(replay.init)
    whole = init(jax.random.key(0), EXAMPLE)
    state = init(jax.random.key(0), {"reward": np.float32(0), field: np.bool_(0)})
    add, end = jax.jit(replay.add), jax.jit(replay.end_episodes)
    for number in range(17):  # episodes of five steps
        ends = number % 5 == 4
        row = row_of(number, [number % 5 == 0] * E, [ends] * E)
        whole = both_add(whole, row)
        mark = row[field] & (edge != "end_episodes")
        state = add(state, {"reward": row["reward"], field: mark})
        state = end(state) if ends and edge == "end_episodes" else state
    found = jax.jit(replay.sample)(state, jax.random.key(1))
    expected = both_sample(whole, jax.random.key(1))
    testing.same((found.aux, found.indices), (expected.aux, expected.indices))
    assert not found.aux.mask.all() and found.aux.mask.any(axis=0).all()


def test_loops_over_whole_slices_copy_no_array_of_the_size_of_the_ring():
    config = SlicesConfig(length=6, whole=True)
    replay = Replay(Slices(PER, config), capacity=200_003, batch_size=64)
    row = jax.tree.map(lambda x: jnp.asarray(x)[None], EXAMPLE)

    def step(state, key):
        batch = replay.sample(state, key)
        state = replay.update(state, batch, td_error=batch.transition["reward"])
        return replay.add(state, row)

    keys = jax.random.split(jax.random.key(0), 3)
    init = functools.partial(replay.init, example=EXAMPLE)
    testing.assert_in_place(jax.vmap(step), jax.eval_shape(jax.vmap(init), keys), keys)


def test_invalid_options_rows_and_feedback_are_refused():
    with refused("burn_in", "4"):
        SlicesConfig(length=4, burn_in=4)
    with refused("burn_in", "2", "whole"):
        SlicesConfig(length=4, burn_in=2, whole=True)
    with refused("length", "0"):
        SlicesConfig(length=0)
    with refused("eta", "1.5"):
        SlicesConfig(eta=1.5)
    replay, _, _, sample, *_ = made(length=4)
    with refused("last", "first", "dict"):
        replay.init(jax.random.key(0), {"reward": np.float32(0)})
    _, state, _ = played(12, length=4)
    batch = sample(state, jax.random.key(0))
    with refused("td_error", "[5]", "[5, 4]"):
        replay.update(state, batch, td_error=jnp.zeros(B))
