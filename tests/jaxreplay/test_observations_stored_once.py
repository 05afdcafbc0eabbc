"""Observations stored once, compared with a replay that stores obs and next_obs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Replay, SharedObservations, Transition, Transitions, n_step, ring
from jaxreplay.methods import ners, uniform
from jaxreplay.n_step import Step
from tests.refusals import refused

OBS = {"speed": np.zeros(3, np.float32), "image": np.zeros((2, 3), np.uint8), "on": np.bool_(0)}
FLAG, NUMBER = np.bool_(0), np.float32(0)
EXAMPLE = Transition(OBS, np.int32(0), NUMBER, NUMBER, OBS, FLAG, FLAG)
SIZES = [(12, 1, 1), (12, 1, 3), (24, 2, 2)]  # capacity, environments, n


@functools.cache
def made(capacity, num_envs, n, spare=1.0, ahead=None):
    make = functools.partial(
        Replay, uniform.sampler(), capacity=capacity, batch_size=4, num_envs=num_envs
    )
    replays = make(), make(storage=SharedObservations(spare=spare, ahead=ahead))
    step = Step(OBS, np.int32(0), NUMBER, FLAG, FLAG, OBS, FLAG)

    @jax.jit
    def play(steps):
        states = [replay.init(jax.random.key(0), EXAMPLE) for replay in replays]
        window = n_step.init(step, n, num_envs)

        def one(carry, step):
            window, states = carry
            window, t = n_step.push(window, step, 0.9)
            return (window, [r.add(s, t) for r, s in zip(replays, states, strict=True)]), None

        warm = jax.tree.map(lambda x: x[: n - 1], steps)
        for number in range(n - 1):
            window, _ = n_step.push(window, jax.tree.map(lambda x: x[number], warm), 0.9)
        (_, states), _ = jax.lax.scan(
            one, (window, states), jax.tree.map(lambda x: x[n - 1 :], steps)
        )
        slots = jnp.arange(capacity) % ring.size(states[0].ring)
        return states, [ring.gather(state.ring, slots) for state in states]

    return replays, play


def episodes(seed, length, rows, num_envs):
    """Return steps `[rows, E, ...]` of random episodes in which next_obs is the following obs."""
    rng = np.random.default_rng(seed)

    def observed(*shape):
        return {
            "speed": rng.normal(size=(*shape, 3)).astype(np.float32),
            "image": rng.integers(0, 256, (*shape, 2, 3), np.uint8),
            "on": rng.random(shape) < 0.5,
        }

    obs, beyond = observed(rows + 1, num_envs), observed(rows, num_envs)
    over = rng.random((rows, num_envs)) < 1 / length
    terminated = over & (rng.random((rows, num_envs)) < 0.5)

    def following(new, last):
        shape = over.shape + (1,) * (last.ndim - 2)
        return np.where(over.reshape(shape), last, new[1:])

    return Step(
        obs=jax.tree.map(lambda x: x[:-1], obs),
        action=rng.integers(0, 5, (rows, num_envs)).astype(np.int32),
        reward=rng.normal(size=(rows, num_envs)).astype(np.float32),
        terminated=terminated,
        truncated=over & ~terminated,
        next_obs=jax.tree.map(following, obs, beyond),
        first=np.concatenate([np.ones((1, num_envs), bool), over[:-1]]),
    )


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.sampled_from(SIZES), st.integers(0, 2**31), st.sampled_from([2, 5, 30]))
def test_transitions_equal_those_of_a_replay_that_stores_both(sizes, seed, length):
    (_, replay), play = made(*sizes)
    states, (both, once) = play(episodes(seed, length, 40, sizes[1]))
    jax.tree.map(np.testing.assert_array_equal, both, once)
    assert [x.dtype for x in jax.tree.leaves(both)] == [x.dtype for x in jax.tree.leaves(once)]
    assert float(replay.metrics(states[1])["frames_lost"]) == 0


PAIR = {"obs": np.zeros(100, np.float32), "next_obs": np.zeros(100, np.float32), "first": FLAG}
PAIRS = {
    "dict": PAIR,
    "n-step": PAIR | {"n_steps": np.int32(0)},
    "transition": Transition(**PAIR),
}


@pytest.mark.parametrize(
    ("kind", "num_envs", "ahead", "share"),
    [
        ("dict", 1, None, 0.57),
        ("dict", 128, None, 0.57),
        ("dict", 4096, None, 0.61),  # 32 rows each
        ("n-step", 128, 5, 0.57),
        ("transition", 1, None, 0.57),
        ("transition", 128, None, 0.69),  # 1024 rows each, room for n up to 255
        ("transition", 128, 3, 0.57),
        ("transition", 4096, 1, 0.61),
        ("transition", 4096, None, 1.1),  # room for n up to 32
    ],
)
def test_storage_takes_about_half_the_memory(kind, num_envs, ahead, share):
    def size(storage):
        replay = Replay(
            uniform.sampler(), capacity=2**17, batch_size=4, num_envs=num_envs, storage=storage
        )
        shapes = jax.eval_shape(replay.init, jax.random.key(0), PAIRS[kind])
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))

    assert size(SharedObservations(ahead=ahead)) < share * size(Transitions())


def test_rows_may_be_dicts():
    replay = Replay(uniform.sampler(), capacity=4, batch_size=2, storage=SharedObservations())
    row = {"obs": np.float32([[1, 2]]), "next_obs": np.float32([[3, 4]]), "first": np.array([True])}
    example = jax.tree.map(lambda x: x[0], row)
    state = jax.jit(replay.add)(replay.init(jax.random.key(0), example), row)
    back = ring.gather(state.ring, jnp.zeros(1, jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, back, row)


def test_samplers_can_read_the_observations():
    config = ners.NERSConfig(features=("obs", "next_obs"), hidden=(4,), score_hidden=(4,))
    replay = Replay(ners.sampler(config), capacity=8, batch_size=2, storage=SharedObservations())
    example = EXAMPLE._replace(obs=OBS["speed"], next_obs=OBS["speed"])
    row = jax.tree.map(lambda x: np.stack([x]), example)

    def cycle(key):
        state = replay.add(replay.init(key, example), row)
        batch = replay.sample(state, key)
        return replay.update(state, batch, td_error=jnp.ones(2), target=jnp.ones(2))

    jax.eval_shape(cycle, jax.random.key(0))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"obs": OBS["speed"]}, ("obs", "next_obs")),
        ({"next_obs": OBS | {"on": NUMBER}}, ("obs", "next_obs")),
        ({"first": None}, ("first", "Transition")),
    ],
)
def test_observations_that_cannot_be_shared_are_refused(change, parts):
    replay = Replay(uniform.sampler(), capacity=4, batch_size=2, storage=SharedObservations())
    with refused(*parts):
        replay.init(jax.random.key(0), EXAMPLE._replace(**change))


@pytest.mark.parametrize(("n", "ahead", "lost"), [(1, 1, 0), (4, 4, 0), (4, 2, 1)])
def test_n_steps_beyond_ahead_lose_transitions(n, ahead, lost):
    (_, replay), play = made(12, 2, n, spare=0.0, ahead=ahead)
    states, (both, once) = play(episodes(0, np.inf, 40, 2))
    assert float(replay.metrics(states[1])["frames_lost"]) == lost * 2  # once per environment
    if not lost:
        jax.tree.map(np.testing.assert_array_equal, both, once)


def test_rows_that_do_not_fit_are_refused():
    replay = Replay(uniform.sampler(), capacity=4, batch_size=2, storage=SharedObservations())
    state = jax.eval_shape(replay.init, jax.random.key(0), EXAMPLE)
    row = jax.tree.map(lambda x: np.stack([x]), EXAMPLE)
    for change, parts in (
        ({"next_obs": None}, ("next_obs",)),
        ({"obs": row.obs | {"on": np.zeros(2, bool)}}, ("obs", "on", "[2]", "[1]")),
        ({"obs": row.obs | {"on": np.ones(1)}}, ("obs", "on", "float64", "bool")),
    ):
        with refused(*parts):
            jax.eval_shape(lambda s, c=change: replay.add(s, row._replace(**c)), state)
