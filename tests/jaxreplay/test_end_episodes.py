"""`end_episodes` ends running episodes, for example when a loop resumes from a saved replay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxreplay
from jaxreplay import Replay, n_step, testing
from jaxreplay import ring as ring_
from jaxreplay.methods import METHODS, ere, pser, refer, sequences, windows
from jaxreplay.testing import EXAMPLE, E
from jaxreplay.types import has_field
from tests.methods import quick, short


def run_of(replay, example, state, episode, count, ended):
    """Add `count` steps of one episode; `ended` decides whether the last step is marked."""
    add = jax.jit(replay.add)
    for time in range(count):
        told = {
            "episode": jnp.full(E, episode),
            "first": jnp.full(E, time == 0),
            "last": jnp.full(E, ended and time == count - 1),
        }
        state = add(state, {name: told[name] for name in example})
    return state


SEQUENCES = sequences.SequencesConfig(length=6, period=2, prioritised=False)


@pytest.mark.parametrize("marks", [["last"], ["first"], ["first", "last"]])
@pytest.mark.parametrize("done", [3, 8])  # steps in the unfinished episode
def test_sequences_do_not_cross_the_end_of_an_unfinished_episode(marks, done, tmp_path):
    replay = Replay(sequences.sampler(SEQUENCES), capacity=64, batch_size=64, num_envs=E)
    example = {"episode": jnp.int32(0)} | {name: jnp.zeros((), bool) for name in marks}
    state = replay.init(jax.random.key(0), example)
    state = run_of(replay, example, state, 1, 7, ended=True)
    state = run_of(replay, example, state, 2, done, ended=False)
    path = jaxreplay.save(replay, state, tmp_path / "replay")
    state = replay.end_episodes(jaxreplay.load(replay, path, example))
    state = run_of(replay, example, state, 3, 9, ended=False)
    batch = jax.jit(replay.sample)(state, jax.random.key(1))
    episodes, mask = np.asarray(batch.transition["episode"]), np.asarray(batch.aux.mask)
    assert set(episodes[:, 0]) == {1, 2, 3}
    assert (mask == (episodes == episodes[:, :1])).all() and not mask.all()


@pytest.mark.parametrize("name", quick(METHODS))
def test_every_method_ends_episodes(name):
    case = testing.Case(short(name))
    end = jax.jit(case.replay.end_episodes)
    empty = case.init(jax.random.key(0))
    jaxreplay.ring.check_valid(end(empty).ring)  # an empty replay has no row to mark
    case.step(end(case.fill(5)), 5)
    before = case.fill(6)  # in the middle of an episode of four steps
    after = end(before)
    types = [[(x.dtype, x.shape, x.weak_type) for x in jax.tree.leaves(s)] for s in (before, after)]
    assert types[0] == types[1]
    slots = jnp.arange(12)
    rows = [ring_.gather(state.ring, slots) for state in (before, after)]
    expected = rows[0]._replace(last=rows[0].last.at[-E:].set(True))
    testing.same(rows[1], expected)
    twice = jax.tree.map(lambda x: jnp.stack([x, x]), before)
    testing.same(jax.vmap(end)(twice), jax.tree.map(lambda x: np.stack([x, x]), after))


def test_rows_without_episode_fields_stay_unchanged():
    replay = Replay(windows.sampler(), capacity=64, batch_size=32, num_envs=E)
    state = replay.init(jax.random.key(0), {"x": jnp.zeros(())})
    state = replay.add(state, {"x": jnp.ones(E)})
    testing.same(replay.end_episodes(state), state)


def started(method, updates=0):
    """Return a case and its state after `updates` updates and the end of the running episode."""
    case = testing.Case(method)
    state = case.fill(6)
    for time in range(updates):
        batch = case.sample(state, jax.random.key(time))
        state = case.update(state, batch, case.feedback_of(jnp.ones(case.shape)))
    return case, case.replay.end_episodes(state)


def test_pser_does_not_decay_into_an_ended_episode():
    case, state = started(pser.method(pser.PSERConfig(decay_on_add=True)))
    row = case.rows(0)._replace(first=jnp.zeros(E, bool))
    state = case.add(state, row)
    np.testing.assert_array_equal(state.sampler.positions.steps[:14:E], [0, 1, 2, 3, 0, 1, 0])


def test_ere_counts_the_updates_of_an_ended_episode():
    _, state = started(ere.method(), updates=3)
    assert (int(state.sampler.done), int(state.sampler.length)) == (0, 3)
    state = jax.jit(testing.Case(ere.method()).replay.end_episodes)(state)
    assert int(state.sampler.length) == 3  # an episode without updates does not change the length


def test_refer_remembers_ended_episodes_and_completes_their_returns():
    config = refer.ReFERConfig(returns=True, refresh_every=1)
    case, state = started(refer.method(config))
    newest = jnp.arange(10, 12)
    assert (state.sampler.status[state.sampler.episode[newest]] == 1).all()  # finished
    assert state.sampler.estimates.last[newest].all()
    state = case.add(state, case.rows(8))
    told = np.asarray(case.replay.probability(state, jnp.arange(14)))
    assert (told[:12] > 0).all() and (told[12:] == 0).all()


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("terminated", [False, True])
def test_n_step_windows_emit_the_steps_of_an_ended_episode(n, terminated):
    """The result is that of a truncation at the latest step, unless it terminated."""

    def step(number, first=False, truncated=False):
        flag = lambda x: jnp.full(E, x)
        number, ends = jnp.full(E, float(number)), terminated and number == 4
        return n_step.Step(
            number, flag(0), number, flag(ends), flag(truncated), number + 1, flag(first)
        )

    def emitted(ends_by_itself):
        example = jax.tree.map(lambda x: x[0], step(0))
        window, out = n_step.init(example, n, E), []
        for number in range(8):
            if number == 5 and not ends_by_itself:
                window = n_step.end_episodes(window)
            truncated = ends_by_itself and not terminated and number == 4
            window, row = n_step.push(window, step(number, number in (0, 5), truncated), 0.5)
            out.append(row)
        return out[n - 1 :]

    testing.same(emitted(False), emitted(True))


def test_rings_without_last_are_not_marked():
    replay = Replay(pser.sampler(), capacity=8, batch_size=2, num_envs=E)
    state = replay.init(jax.random.key(0), EXAMPLE._replace(last=None))
    row = jax.tree.map(lambda x: jnp.stack([x] * E), EXAMPLE._replace(last=None))
    state = replay.end_episodes(replay.add(state, row))
    assert not has_field(ring_.gather(state.ring, jnp.arange(2)), "last")
    assert (state.sampler.positions.latest == -1).all()
