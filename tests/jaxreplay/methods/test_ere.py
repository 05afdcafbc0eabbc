"""ERE: windows by hand, episodes, draws and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, Transition
from jaxreplay.methods.ere import EREConfig, sampler, window
from tests.refusals import refused

EXAMPLE = Transition(
    obs=jnp.zeros(1),
    action=jnp.zeros((), jnp.int32),
    reward=jnp.zeros(()),
    discount=jnp.zeros(()),
    next_obs=jnp.zeros(1),
    first=jnp.zeros((), bool),
    last=jnp.zeros((), bool),
)
CAPACITY, LANES, BATCH = 1000, 2, 4


@pytest.mark.parametrize(
    ("capacity", "eta", "length", "expected"),
    [
        (10**6, 0.996, 1000, {0: 1e6, 1: 996_000, 500: 134_793.5812, 999: 18_242.2787}),
        (10**6, 0.994, 200, {0: 1e6, 1: 970_357.8465, 100: 49_339.2108, 199: 5000}),
        (10**5, 0.996, 10, {0: 1e5, 1: 66_978.2571, 5: 13_479.3581, 9: 5000}),
    ],
)
def test_windows_by_hand(capacity, eta, length, expected):
    for done, wanted in expected.items():
        found = window(jnp.int32(done), jnp.int32(length), eta, capacity, 5000)
        assert float(found) == pytest.approx(wanted, rel=2e-5)
    # After as many updates as in the previous episode, the window stays constant.
    late, end = (window(jnp.int32(k), jnp.int32(10), 0.9, 100, 1) for k in (50, 9))
    assert float(late) == float(end)


def episode(replay, state, steps, updates):
    """Two environments; the episode of the first ends with the last step."""
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (LANES, *x.shape)), EXAMPLE)
    for step in range(steps):
        last = jnp.array([step == steps - 1, step == 0])
        state = replay.add(state, row._replace(last=last))
        if step < updates:
            batch = replay.sample(state, jax.random.key(step))
            state = replay.update(state, batch)
    return state


def replay_of(config):
    return Replay(sampler(config), capacity=CAPACITY, batch_size=BATCH, num_envs=LANES)


def width(replay, state):
    return int((replay.probability(state, jnp.arange(replay.capacity)) > 0).sum())


def test_the_window_shrinks_with_the_updates_of_an_episode():
    config = EREConfig(eta=0.996, smallest=6)
    replay = replay_of(config)
    state = replay.init(jax.random.key(0), EXAMPLE)
    state = episode(replay, state, 40, 10)
    # The update after an episode's end counts for the next episode.
    assert (int(state.sampler.length), int(state.sampler.done)) == (10, 0)
    assert width(replay, state) == 80  # all stored transitions
    state = episode(replay, state, 8, 7)
    assert (int(state.sampler.length), int(state.sampler.done)) == (7, 0)
    state = state._replace(sampler=state.sampler._replace(done=jnp.int32(6)))
    assert width(replay, state) == int(CAPACITY * 0.996 ** (6 * 1000 / 7))
    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = jax.jit(jax.vmap(lambda key: replay.sample(state, key).indices))(keys)
    counts = np.bincount(np.asarray(drawn).ravel(), minlength=CAPACITY)
    assert set(np.flatnonzero(counts)) == set(range(96 - 32, 96))
    expected = 2000 * BATCH * np.asarray(replay.probability(state, jnp.arange(CAPACITY)))
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


def test_the_metric_is_the_mean_window_of_a_whole_episode():
    replay = replay_of(EREConfig(eta=0.996, smallest=6))
    state = replay.init(jax.random.key(0), EXAMPLE)
    for _ in range(4):
        state = episode(replay, state, 8, 0)
    state = episode(replay, state, 8, 4)
    first = float(replay.metrics(state)["window"])
    assert first == np.mean([66, 68, 70, 72])
    state = episode(replay, state, 8, 7)
    shrinking = np.maximum(CAPACITY * 0.996 ** (np.minimum(np.arange(7), 3) * 1000 / 4), 6)
    sizes = np.minimum(shrinking.astype(int), 80 + 2 * np.arange(1, 8))
    assert float(replay.metrics(state)["window"]) == pytest.approx(sizes.mean())


def test_episodes_without_updates_do_not_change_the_length():
    replay = replay_of(EREConfig(smallest=6))
    state = episode(replay, replay.init(jax.random.key(0), EXAMPLE), 40, 10)
    state = episode(replay, state, 5, 0)
    assert (int(state.sampler.length), int(state.sampler.done)) == (10, 0)


def test_smallest_and_the_stored_size_bound_the_window():
    replay = replay_of(EREConfig(eta=0.9, smallest=20))
    state = episode(replay, replay.init(jax.random.key(0), EXAMPLE), 30, 30)
    state = state._replace(sampler=state.sampler._replace(done=jnp.int32(29)))
    assert width(replay, state) == 20
    replay = replay_of(EREConfig(eta=0.9, smallest=5000))
    state = episode(replay, replay.init(jax.random.key(0), EXAMPLE), 30, 30)
    assert width(replay, state) == 60


def test_eta_rises_to_one_over_the_run():
    replay = replay_of(EREConfig(eta=0.99, smallest=1).for_run(60))
    state = episode(replay, replay.init(jax.random.key(0), EXAMPLE), 30, 30)
    state = state._replace(sampler=state.sampler._replace(done=jnp.int32(29)))
    halfway = CAPACITY * 0.995 ** (29 * 1000 / 30)
    assert width(replay, state) == max(int(halfway), 1)
    state = state._replace(sampler=state.sampler._replace(updates=jnp.int32(60)))
    assert width(replay, state) == 60  # uniform


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"eta": 0.0}, ("eta", "0.0")),
        ({"eta": 1.1}, ("eta", "1.1")),
        ({"smallest": 0}, ("smallest", "0")),
        ({"eta_updates": 0}, ("eta_updates", "0")),
    ],
)
def test_options_out_of_range_are_refused(options, parts):
    with refused(*parts):
        EREConfig(**options)
