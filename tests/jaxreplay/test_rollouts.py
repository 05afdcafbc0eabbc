"""Rollouts, which equal repeated adds, and ends of running episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxreplay
from jaxreplay import Replay, SharedObservations, Transitions, n_step, ring, testing
from jaxreplay.methods import ere, per, pser, refer, sequences, uniform, windows
from jaxreplay.testing import EXAMPLE, E
from jaxreplay.types import has_field
from tests.methods import compiled, short
from tests.refusals import refused

T = 30  # more rows than the ring stores


# With `end_episodes` of their own, and one without; wrappers call that of their inner sampler.
ENDING = ("uniform", "ere", "pser", "ners", "refer", "sequences", "reaper", "reverse", "sil")


@pytest.mark.parametrize("name", ENDING)
def test_samplers_end_episodes(name):
    case = testing.Case(short(name))
    replay, empty = case.replay, case.init(jax.random.key(0))

    @jax.jit
    def ended(states):
        after = jax.vmap(replay.end_episodes)(states)
        rows = lambda held: ring.gather(held, jnp.arange(12))
        return after, *(jax.vmap(rows)(x.ring) for x in (states, after))

    before = case.fill(6)  # in the middle of an episode of four steps
    after, *rows = ended(jax.tree.map(lambda *x: jnp.stack(x), before, empty))
    middle, nothing = (jax.tree.map(lambda x: x[lane], after) for lane in range(2))
    types = [
        [(x.dtype, x.shape, x.weak_type) for x in jax.tree.leaves(s)] for s in (before, middle)
    ]
    assert types[0] == types[1]
    rows[0] = rows[0]._replace(last=rows[0].last.at[0, -E:].set(True))
    testing.same(rows[1], rows[0])
    jaxreplay.ring.check_valid(nothing.ring)  # an empty replay has no row to mark
    jaxreplay.ring.check_valid(middle.ring)


@pytest.mark.parametrize("storage", [Transitions(), SharedObservations()])
def test_rollouts_accept_feedback_and_shared_observations(storage):
    sampler = per.sampler(per.PERConfig(initial="td"))
    replay = Replay(sampler, capacity=24, batch_size=4, num_envs=E, storage=storage)
    rollout = jax.vmap(testing.rows)(jnp.arange(T))
    state = replay.init(jax.random.key(0), EXAMPLE)

    def add(state, row):
        return replay.add(state, row, td_error=row.reward), None

    expected = jax.jit(lambda state: jax.lax.scan(add, state, rollout)[0])(state)
    for call in (replay.add_rollout, jax.jit(replay.add_rollout)):
        testing.same(call(state, rollout, td_error=rollout.reward), expected)


HELD = {"x": np.zeros(2, np.uint8), "n": np.int32(0)}
GOOD = {"x": jnp.zeros((3, 2, 2), jnp.uint8), "n": jnp.zeros((3, 2), jnp.int32)}
OTHERS = [
    ({"n": GOOD["n"][:2]}, {}, ("x", "[3, 2, 2]", "[2, 2, 2]")),
    ({"n": 0, "x": 0}, {}, ("rollout", "[]", "[T, E]")),
    (jax.tree.map(lambda x: x[:0], GOOD), {}, ("rollout", "[0, 2]")),
    (jax.tree.map(lambda x: x[0], GOOD), {}, ("n", "[2]", "[2, 2]")),
    ({"x": GOOD["x"].astype(float)}, {}, ("x", "float32", "uint8")),
    ({"y": GOOD["n"]}, {}, ("y",)),
    ({}, {"td_error": jnp.zeros(2)}, ("td_error", "[2]", "[3, 2]")),
    ({}, {"td": jnp.zeros((3, 2))}, ("td",)),
]


def held():
    replay = Replay(uniform.sampler(), capacity=8, batch_size=2, num_envs=2)
    return replay, replay.init(jax.random.key(0), HELD)


@pytest.mark.parametrize(
    ("fields", "feedback", "parts"), OTHERS, ids=[" ".join(x) for *_, x in OTHERS]
)
def test_rollouts_that_do_not_fit_are_refused_by_name(fields, feedback, parts):
    replay, state = held()
    with refused(*parts):
        replay.add_rollout(state, GOOD | fields, **feedback)


def test_values_of_numpy_arrays_are_checked_before_a_cast():
    replay, state = held()
    rollout = {"x": np.full((3, 2, 2), 255, np.uint16), "n": np.full((3, 2), 2**31 - 1)}
    expected = state
    for row in range(3):
        expected = replay.add(expected, {name: x[row] for name, x in rollout.items()})
    testing.same(replay.add_rollout(state, rollout), expected)
    rollout["x"][1, 0, 0] = 256
    with refused("x", "256", "uint8"):
        replay.add_rollout(state, rollout)


# --- Ends of episodes ---------------------------------------------------------------------


def episode_of(marks, number, count, ended):
    """Return a rollout of one episode; `ended` decides whether the last step is marked."""
    time = np.arange(count)
    rows = {"episode": number + 0 * time, "first": time == 0, "last": ended & (time == count - 1)}
    return {
        name: np.stack([rows[name]] * E, axis=1).astype(bool if name in marks else np.int32)
        for name in ("episode", *marks)
    }


@pytest.mark.parametrize("marks", [["last"], ["first"], ["first", "last"]])
def test_sequences_do_not_cross_the_end_of_an_unfinished_episode(marks, tmp_path):
    config = sequences.SequencesConfig(length=6, period=2, prioritised=False)
    replay = Replay(sequences.sampler(config), capacity=64, batch_size=64, num_envs=E)
    example = {"episode": jnp.int32(0)} | {name: jnp.zeros((), bool) for name in marks}
    add, sample = jax.jit(replay.add_rollout), jax.jit(replay.sample)
    finished = add(replay.init(jax.random.key(0), example), episode_of(marks, 1, 7, True))
    for done in (3, 8):  # steps in the unfinished episode
        state = add(finished, episode_of(marks, 2, done, False))
        path = jaxreplay.save(replay, state, tmp_path / "replay")
        state = replay.end_episodes(jaxreplay.load(replay, path, example))
        state = add(state, episode_of(marks, 3, 9, False))
        batch = sample(state, jax.random.key(1))
        numbers, mask = np.asarray(batch.transition["episode"]), np.asarray(batch.aux.mask)
        assert set(numbers[:, 0]) == {1, 2, 3}
        assert (mask == (numbers == numbers[:, :1])).all() and not mask.all()


@pytest.mark.parametrize("sampler", [windows.sampler(), pser.sampler()], ids=["windows", "pser"])
def test_rows_without_last_stay_unchanged(sampler):
    replay = Replay(sampler, capacity=64, batch_size=32, num_envs=E)
    example = EXAMPLE._replace(last=None)
    verbs = compiled(replay)
    row = jax.tree.map(lambda x: jnp.stack([x] * E), example)
    state = verbs.add(verbs.init(jax.random.key(0), example), row)
    after = verbs.end_episodes(state)
    testing.same(after.ring, state.ring)
    assert not has_field(ring.gather(after.ring, jnp.arange(2)), "last")
    if hasattr(after.sampler, "positions"):
        assert (after.sampler.positions.latest == -1).all()


def started(method, updates=0):
    """Return a case and its state after `updates` updates and the end of the running episode."""
    case = testing.Case(method)
    state = case.fill(6)
    for time in range(updates):
        batch = case.sample(state, jax.random.key(time))
        state = case.update(state, batch, case.feedback_of(jnp.ones(case.shape)))
    return case, jax.jit(case.replay.end_episodes)(state)


def test_pser_does_not_decay_into_an_ended_episode():
    case, state = started(pser.method(pser.PSERConfig(decay_on_add=True)))
    state = case.add(state, case.rows(0)._replace(first=jnp.zeros(E, bool)))
    np.testing.assert_array_equal(state.sampler.positions.steps[:14:E], [0, 1, 2, 3, 0, 1, 0])


def test_ere_counts_the_updates_of_an_ended_episode():
    case, state = started(ere.method(), updates=3)
    assert (int(state.sampler.done), int(state.sampler.length)) == (0, 3)
    state = case.replay.end_episodes(state)
    assert int(state.sampler.length) == 3  # an episode without updates does not change the length


def test_refer_remembers_ended_episodes_and_completes_their_returns():
    case, state = started(refer.method(refer.ReFERConfig(returns=True, refresh_every=1)))
    newest = jnp.arange(10, 12)
    assert (state.sampler.status[state.sampler.episode[newest]] == 1).all()  # finished
    assert state.sampler.estimates.last[newest].all()
    state = case.add(state, case.rows(8))
    chance = np.asarray(jax.jit(case.replay.probability)(state, jnp.arange(14)))
    assert (chance[:12] > 0).all() and (chance[12:] == 0).all()


@pytest.mark.parametrize("n", [2, 3])
def test_n_step_windows_emit_the_steps_of_an_ended_episode(n):
    """The result is that of a truncation at the latest step, unless it terminated."""
    number, time = jnp.zeros(()), jnp.arange(8)
    example = n_step.Step(number, number > 1, number, number > 1, number > 1, number, number > 1)
    start, after_end = n_step.init(example, n, E), time == 5

    @jax.jit
    def emitted(terminated, ends):
        """Return transitions; the episode ends by itself, or by `end_episodes` before step 5."""

        def push(window, inputs):
            time, end, step = inputs
            other = n_step.end_episodes(window)
            window = jax.tree.map(lambda x, y: jnp.where(end, x, y), other, window)
            return n_step.push(window, step, 0.5)

        over = time == 4
        steps = n_step.Step(
            1.0 * time, time < 0, 1.0 * time, over & terminated, over & ~terminated & ~ends,
            1.0 * time + 1, (time == 0) | after_end,
        )  # fmt: skip
        steps = jax.tree.map(lambda x: jnp.stack([x] * E, axis=1), steps)
        return jax.lax.scan(push, start, (time, after_end & ends, steps))[1]

    for terminated in (False, True):
        pair = (emitted(terminated, ends) for ends in (False, True))
        testing.same(*(jax.tree.map(lambda x: x[n - 1 :], out) for out in pair))
