"""Mixtures of two replays, compared with the two replays alone."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import IGNORED, Replay, SharedObservations, Transition, datasets, load, save, testing
from jaxreplay.contrib import la3p
from jaxreplay.methods import her, per, rank, sequences, uniform
from jaxreplay.mixing import Mixed, mix
from jaxreplay.testing import EXAMPLE, E, assert_in_place, rows
from tests.methods import compiled
from tests.refusals import refused

LARGE, SMALL = 24, 8


def mixture(first=uniform.sampler(), second=per.sampler(), share=0.25, **options):
    return mix(
        Replay(first, capacity=LARGE, batch_size=8, num_envs=E),
        Replay(second, capacity=SMALL, batch_size=8, num_envs=E),
        share,
        **options,
    )


def filled(replay, steps=15, start=0, **options):
    state = jax.jit(replay.init)(jax.random.key(0), EXAMPLE, **options)
    add = jax.jit(replay.add)
    for time in range(start, start + steps):
        state = add(state, rows(time))
    return state


def test_a_batch_contains_the_batches_of_both_replays():
    both = mixture()
    assert (both.batch_size, both.first.batch_size, both.second.batch_size) == (8, 6, 2)
    assert (both.capacity, both.slots, both.num_envs) == (LARGE + SMALL, LARGE + SMALL, E)
    assert both.requires.feedback == {"td_error"}
    state = filled(both)
    testing.same(state.first, filled(both.first))
    testing.same(state.second, filled(both.second))
    batch = jax.jit(both.sample)(state, jax.random.key(1))
    keys = jax.random.split(jax.random.key(1))
    one, other = (
        jax.jit(replay.sample)(own, key)
        for replay, own, key in zip((both.first, both.second), state, keys, strict=True)
    )
    for name in ("transition", "weights", "version"):
        ours = getattr(batch, name)
        pair = jax.tree.map(
            lambda *x: np.concatenate(x), getattr(one, name), getattr(other, name)
        )  # fmt: skip
        testing.same(ours, pair)
    testing.same(batch.indices, np.concatenate([one.indices, other.indices + LARGE]))
    testing.same(tuple(batch.aux), (one.aux, other.aux))
    for drawn, part in zip((one, other), both.split(batch), strict=True):
        given = drawn.probability is not None and batch.probability is not None
        expected = drawn if given else drawn._replace(probability=None)
        testing.same(part, expected, rtol=1e-6)
    recent = batch.transition.reward[6:]
    assert (recent >= 15 * E - SMALL).all()


def test_probabilities_sum_to_one_and_are_those_of_a_batch():
    both = mixture(per.sampler(), rank.sampler(), share=0.5)
    state, fast = filled(both), compiled(both)
    for time in range(3):
        batch = fast.sample(state, jax.random.key(time))
        state = fast.update(state, batch, td_error=np.arange(8, dtype=np.float32) + time)
    chances = np.float64(fast.probability(state, np.arange(both.slots)))
    assert abs(chances.sum() - 1) < 1e-5
    testing.same(fast.probability(state, np.array([-1, both.slots])), np.zeros(2))
    batch = fast.sample(state, jax.random.key(9))
    testing.same(batch.probability, chances[np.asarray(batch.indices)], rtol=1e-4)


def test_feedback_goes_to_the_replay_of_each_transition():
    """That on one transition of each replay is ignored."""
    both = mixture(per.sampler(), per.sampler(), share=0.5)
    state, fast = filled(both), compiled(both)
    batch = fast.sample(state, jax.random.key(1))
    batch = batch._replace(indices=batch.indices.at[jnp.array([0, 7])].set(IGNORED))
    td_error = np.arange(8, dtype=np.float32) + 1
    after = fast.update(state, batch, td_error=td_error)
    keys = jax.random.split(jax.random.key(1))
    for number, (replay, own, new) in enumerate(zip((both.first, both.second), state, after)):
        replay = compiled(replay)
        part = replay.sample(own, keys[number])
        part = part._replace(indices=part.indices.at[(0, 3)[number]].set(IGNORED))
        expected = replay.update(own, part, td_error=td_error[4 * number :][:4])
        testing.same(new, expected)
    assert set(fast.metrics(after)) >= {"first/max_priority", "second/max_priority"}


def test_feedback_on_overwritten_transitions_is_dropped():
    both = mixture(per.sampler(), per.sampler(), share=0.5)
    state, fast = filled(both), compiled(both)
    batch = fast.sample(state, jax.random.key(1))
    for time in range(SMALL // E):  # overwrites all rows of the small replay
        state = fast.add(state, rows(100 + time))
    after = fast.update(state, batch, td_error=np.ones(8, np.float32))
    assert int(after.second.dropped) == 4 and int(after.first.dropped) < 4


def test_read_only_replays_receive_feedback_but_no_rows():
    both = mixture(share=0.5, read_only=True)
    second = filled(both.second, steps=4, start=50)
    before = jax.tree.map(np.array, second)
    state = filled(both, second=second)
    testing.same(state.second, before)
    fast = compiled(both)
    batch = fast.sample(state, jax.random.key(0))
    reward = np.asarray(batch.transition.reward)
    assert (reward[:4] < 15 * E).all() and (reward[4:] >= 50 * E).all()
    after = fast.update(fast.end_episodes(state), batch, td_error=np.full(8, 3, np.float32))
    testing.same(after.second.ring, before.ring)
    assert (after.second.sampler.tree.nodes != before.sampler.tree.nodes).any()


def test_recorded_episodes_and_saved_replays_can_be_mixed(tmp_path):
    episode = types.SimpleNamespace(
        observations=np.full((5, 3), 7.0, np.float32), actions=np.zeros(4, np.int32),
        rewards=np.full(4, 7.0), terminations=np.arange(4) == 3, truncations=np.zeros(4, bool),
    )  # fmt: skip
    online = Replay(uniform.sampler(), capacity=LARGE, batch_size=8, num_envs=E)
    demos = Replay(per.sampler(), capacity=SMALL, batch_size=8)
    recorded = datasets.fill(demos, [episode, episode], key=jax.random.key(0), gamma=0.9).state
    save(demos, recorded, tmp_path / "demos.safetensors")
    for second in (recorded, load(demos, tmp_path / "demos.safetensors", EXAMPLE)):
        both = mix(online, demos, 0.5, read_only=True)
        state = filled(both, second=second)
        batch = jax.jit(both.sample)(state, jax.random.key(1))
        assert (batch.transition.reward[4:] == 7).all()
        assert (batch.transition.reward[:4] == batch.transition.obs[:4, 0]).all()


def test_states_of_different_fill_levels_can_be_vmapped_and_scanned():
    both = mixture(her.Hindsight(goals=testing.GOALS), per.sampler(), share=0.5)

    def cycle(state, time):
        state = both.add(state, rows(time))
        batch = both.sample(state, jax.random.key(time))
        state = both.update(state, batch, td_error=batch.transition.reward + time)
        return both.observe_return(state, 1.0, jax.random.key(0)), batch

    states = filled(both, 5), filled(both, 20)
    scan = jax.jit(lambda state: jax.lax.scan(cycle, state, jnp.arange(4)))
    together = jax.jit(jax.vmap(scan))(jax.tree.map(lambda *x: jnp.stack(x), *states))
    for number, state in enumerate(states):
        found = jax.tree.map(lambda x, number=number: x[number], together)
        testing.same(found, scan(state), rtol=1e-5)
    assert bool(both.can_sample(states[0]))
    assert not bool(both.can_sample(filled(both, 1)))


def test_dtypes_stay_where_doubles_are_enabled():
    both = mixture()

    def steps(key):
        before = both.init(key, EXAMPLE)
        state = both.add(before, rows(0))
        batch = both.sample(state, key)
        state = both.update(state, batch, td_error=jnp.linspace(0.0, 1.0, 8))
        return before, state, batch, both.probability(state, batch.indices)

    def dtypes():
        return jax.tree.map(lambda x: x.dtype, jax.eval_shape(steps, jax.random.key(0)))

    expected = dtypes()
    with jax.enable_x64(True):
        assert dtypes() == expected
    assert expected[0] == expected[1]


@pytest.mark.parametrize("read_only", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_loops_copy_neither_ring(read_only):
    capacity = 200_003
    both = mix(
        Replay(uniform.sampler(), capacity=capacity, batch_size=64, storage=SharedObservations()),
        Replay(per.sampler(), capacity=capacity - 2, batch_size=64),
        read_only=read_only,
    )
    row = jax.tree.map(lambda x: jnp.asarray(x)[None], EXAMPLE)

    def step(state, key):
        batch = both.sample(state, key)
        state = both.update(state, batch, td_error=batch.transition.reward)
        return both.add(state, row)

    second = jax.eval_shape(both.second.init, jax.random.key(0), EXAMPLE)
    state = jax.eval_shape(both.init, jax.random.key(0), EXAMPLE, second)
    assert_in_place(step, state, jax.random.key(1))


def test_invalid_mixtures_are_refused():
    one = Replay(uniform.sampler(), capacity=8, batch_size=4)
    for share in (0.0, 1.0, -0.5):
        with refused("share", share):
            mix(one, one, share)
    with refused("share", "0.01", "4"):
        mix(one, one, 0.01)
    with refused("batch_size", "8", "12"):
        mix(one, one, 0.4, batch_size=20)
    with refused("second", "Uniform"):
        mix(one, uniform.sampler())  # pyright: ignore[reportArgumentType]
    two = Replay(uniform.sampler(), capacity=8, batch_size=4, num_envs=2)
    with refused("num_envs", "1", "2", "read_only"):
        mix(one, two)
    pairs = Replay(
        sequences.sampler(sequences.SequencesConfig(length=2, period=1)), capacity=8, batch_size=4
    )
    with refused("length", "2"):
        mix(one, pairs)
    both = mix(one, one, read_only=True)
    with refused("read", "second"):
        both.init(jax.random.key(0), EXAMPLE)
    other = one.init(jax.random.key(0), EXAMPLE._replace(obs=np.zeros(4, np.float32)))
    with refused("obs", "[3]", "[4]"):
        both.init(jax.random.key(0), EXAMPLE, other)
    other = one.init(jax.random.key(0), Transition(obs=np.zeros(3, np.float32)))
    with refused("fields"):
        both.init(jax.random.key(0), EXAMPLE, other)
    with refused("second", "LA3P"):
        mixture(second=la3p.sampler())


def test_batches_of_another_mixture_are_refused():
    both = mixture()
    state = filled(both)
    batch = both.first.sample(state.first, jax.random.key(0))
    for call in (both.update, both.after_reading):
        with refused("sample", "8", "6"):
            call(state, batch)
    assert isinstance(both, Mixed)
