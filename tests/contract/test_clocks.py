"""Counters keep their behaviour at the end of 32 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, counters, n_step, testing
from jaxreplay.methods import METHODS, per, pser, refer, sequences, slices, windows
from jaxreplay.n_step import Step
from tests.methods import DISTINCT, compiled

SAMPLERS = {
    name: testing.with_goals(entry.method(entry.config().for_run(100))).sampler
    for name, entry in METHODS.items()
} | {
    "per-buffer": per.sampler(per.PERConfig(normalise="buffer", initial="td").for_run(100)),
    "pser-add": pser.sampler(pser.PSERConfig(combine="add", decay_on_add=True)),
    "refer-returns": refer.sampler(refer.ReFERConfig(returns=True, capacity_factor=1)),
    "windows": windows.sampler(windows.WindowsConfig(length=4)),
    "sequences": sequences.sampler(sequences.SequencesConfig(length=5, period=3, burn_in=1)),
    "slices": slices.sampler(slices.SlicesConfig(over="per", length=5, burn_in=2)),
}
# Capacities and environments, with and without powers of two.
SIZES = {"per": [(12, 1), (32, 4)], "refer": [(16, 1), (24, 4)]}
# The sampler of uniform replay has no clock of its own.
QUICK = {(name, 32, 4) for name in DISTINCT if name != "uniform"}
QUICK |= {("per", 12, 1), ("refer", 24, 4)}
CASES = [
    pytest.param(name, *size, marks=() if (name, *size) in QUICK else pytest.mark.slow)
    for name in SAMPLERS
    for size in SIZES.get(name, [(32, 4)])
]
COUNTS = ("updates", "done", "learned", "skipped", "forgotten", "reclaimed", "dropped")


def row_of(time, lanes):
    number = time * lanes + jnp.arange(lanes, dtype=jnp.float32)
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (lanes, *x.shape)), testing.EXAMPLE)
    # Episodes of seven steps do not end with the ring.
    first, last = (jnp.full(lanes, (time % 7) == at) for at in (0, 6))
    return row._replace(reward=number, first=first, last=last)


def at(state, steps_added, count):
    """Return the state with these values of its clock and counters."""

    rows, now = state.ring.capacity // state.ring.num_envs, int(state.ring.steps_added)
    more = (steps_added - now) // rows * rows

    def counted(path, leaf):
        name = getattr(path[-1], "name", "")
        if name in ("steps_added", "start"):  # clocks of the ring and of ReF-ER's episodes
            return leaf + more
        return jnp.full_like(leaf, count) if name in COUNTS else leaf

    return jax.tree_util.tree_map_with_path(counted, state)._replace(dropped=jnp.int32(0))


@pytest.mark.parametrize(("name", "capacity", "lanes"), CASES)
def test_replays_continue_past_32_bits_of_rows(name, capacity, lanes):
    replay = Replay(
        SAMPLERS[name], capacity=capacity, batch_size=8 if lanes == 1 else 16, num_envs=lanes
    )

    def add(state, time):
        row = row_of(time, lanes)
        return replay.add(state, row, **dict.fromkeys(replay.requires.feedback_of_new, row.reward))

    def step(state, time):
        """Update after the next row was added, as in a loop that runs ahead."""
        keys = jax.random.split(jax.random.fold_in(jax.random.key(3), time), 3)
        batch = replay.sample(state, keys[0])
        state = add(state, time)
        told = 3 * jax.random.normal(keys[1], batch.indices.shape)
        state = replay.update(state, batch, **dict.fromkeys(testing.FEEDBACK, told))
        state = replay.observe_return(state, told.mean(), keys[2])
        chance = replay.probability(state, jnp.arange(state.ring.capacity))
        stale = state.dropped
        return state._replace(dropped=jnp.zeros_like(stale)), (batch, chance, stale)

    @jax.jit
    def run(state):
        return jax.lax.scan(step, state, 50 + jnp.arange(3 * capacity // lanes))

    @jax.jit
    def filled(key):
        state = replay.init(key, testing.EXAMPLE)
        return jax.lax.scan(lambda state, time: (add(state, time), ()), state, jnp.arange(50))[0]

    state = filled(jax.random.key(0))
    _, (expected, *others) = run(at(state, 2**29, counters.LAST - 500))
    after, (batches, *found) = run(at(state, counters.LAST, counters.LAST - 2))
    testing.same(batches._replace(version=expected.version), expected, rtol=1e-6)
    testing.same(found, others, rtol=1e-6)
    assert int(batches.version.min()) > 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(after):
        grows = getattr(path[-1], "name", "") in (*COUNTS, "steps_added")
        assert not grows or int(leaf.min()) >= 0, path


def test_counters_saturate_at_their_maximum():
    replay = compiled(Replay(per.sampler(), capacity=8, batch_size=4))
    empty = replay.init(jax.random.key(0), {"x": jnp.zeros(3)})
    state = at(replay.add(empty, {"x": jnp.ones((1, 3))}), 1, counters.LAST - 1)
    state = state._replace(dropped=jnp.int32(counters.LAST - 1))
    batch = replay.sample(state, jax.random.key(0))
    for _ in range(2):
        state = replay.update(state, batch, td_error=jnp.full(4, jnp.nan))
        state = replay.add(state, {"x": jnp.full((1, 3), jnp.inf)})
    assert int(state.dropped) == int(state.sampler.updates) == counters.LAST


@pytest.mark.parametrize(("n", "lanes"), [(1, 1), (3, 4), (4, 1)])
def test_n_step_windows_continue_past_32_bits_of_pushes(n, lanes):
    flag, number = np.zeros((), bool), np.zeros((), np.float32)
    window = n_step.init(Step(number, number, number, flag, flag, number, flag), n, lanes)

    def step(time):
        numbers, flags = (np.full(lanes, x, y) for x, y in ((time, np.float32), (0, bool)))
        return Step(numbers, numbers, numbers, flags | (time % 5 == 4), flags, numbers + 1, flags)

    push, begin = jax.jit(n_step.push), 6
    for time in range(begin):
        window, _ = push(window, step(time), 0.9)
    late = counters.LAST - (counters.LAST - begin) % n - n
    other = window._replace(pushes=jnp.int32(late))
    for time in range(begin, begin + 4 * n):
        window, expected = push(window, step(time), 0.9)
        other, found = push(other, step(time), 0.9)
        testing.same(found, expected)
        assert bool(n_step.ready(other))
    assert int(other.pushes) <= counters.LAST


@pytest.mark.parametrize("period", [1, 2, 3, 7, 1000, 2**20, 2**30])
def test_rewound_clocks_keep_their_phase_in_every_period(period):
    clock = jnp.asarray([0, counters.LAST - 1, counters.LAST], jnp.int32)
    for back in (period, counters.rewind(period)):
        later = np.asarray(counters.increment(clock, back), np.int64)
        assert (later % period == (np.asarray(clock, np.int64) + 1) % period).all()
        assert (later >= [1, 1, 2**30]).all()
    total = counters.saturating_add(clock, 5)
    np.testing.assert_array_equal(total, [5, counters.LAST, counters.LAST])
