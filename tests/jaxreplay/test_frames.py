"""Stacks of frames stored once, compared with a store of whole stacks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Frames, Replay, n_step, ring, testing
from jaxreplay._internal import frames
from jaxreplay.methods import uniform
from jaxreplay.n_step import Step
from tests.refusals import refused

SHAPE, K, GAMMA = (2, 3), 4, 0.9
BLANK = np.zeros((*SHAPE, K), np.uint8)
EXAMPLE = testing.EXAMPLE._replace(obs=BLANK, next_obs=BLANK)
ROW = jax.tree.map(lambda x: x[None], EXAMPLE)

FURTHEST = 2**30 + 2**29  # after this place, counts of places wrap


@jax.jit
def _lost(held):
    live = jnp.arange(held.capacity) < ring.size(held)
    return frames.lost(held.frames, ring.contents(held).obs, live)


class Game:
    """One environment: random frames, stacked as an agent sees them."""

    def __init__(self, rng, length):
        self.rng, self.length, self.stack = rng, length, None

    def frame(self):
        return self.rng.integers(1, 256, SHAPE, np.uint8)

    def reset(self):
        self.stack, self.steps = BLANK.copy(), 0
        self.see()

    def see(self):
        self.stack = np.concatenate([self.stack[..., 1:], self.frame()[..., None]], axis=-1)

    def step(self):
        """Return obs, next obs, first, terminated and truncated; reset if the episode is over."""
        if self.stack is None:
            self.reset()
        obs, first = self.stack, self.steps == 0
        self.see()
        self.steps += 1
        over = self.rng.random() < 1 / self.length
        terminated = over and self.rng.random() < 0.5
        next_obs = self.stack
        if over:
            self.reset()
        return obs, next_obs, first, terminated, over and not terminated


@functools.cache
def made(capacity, num_envs, n, stack=K, spare=1.0):
    storage = Frames(stack=stack, spare=spare, ahead=None if spare else n)
    replay = Replay(
        uniform.sampler(), capacity=capacity, batch_size=4, num_envs=num_envs, storage=storage
    )
    number, flag = np.zeros((), np.float32), np.zeros((), bool)
    obs = BLANK[..., :stack]
    step = Step(obs, EXAMPLE.action, number, flag, flag, obs, flag)
    init = functools.partial(n_step.init, step, n, num_envs)
    functions = (init, n_step.push, replay.add, ring.gather)
    return replay, *(jax.jit(function) for function in functions)


def play(seed, length, capacity, num_envs, n, rows, newest=-2):
    """Fill a store and a naive one; return the replay's state and the naive store.

    `newest` is the place from which frames are counted.
    """
    rng = np.random.default_rng(seed)
    replay, init, push, add, _ = made(capacity, num_envs, n)
    state, window = jax.jit(replay.init)(jax.random.key(0), EXAMPLE), init()
    books = state.ring.frames.replace(newest=jnp.full(num_envs, newest, jnp.int32))
    state = state._replace(ring=state.ring.replace(frames=books))
    games = [Game(rng, length) for _ in range(num_envs)]
    naive = {}
    for number in range(rows):
        columns = [np.stack(column) for column in zip(*[game.step() for game in games])]
        obs, next_obs, first, terminated, truncated = columns
        zeros = np.zeros(num_envs, np.float32)
        action = np.zeros(num_envs, np.int32)
        step = Step(obs, action, zeros, terminated, truncated, next_obs, first)
        window, t = push(window, step, GAMMA)
        if number < n - 1:
            continue
        slots = (number - n + 1) % (capacity // num_envs) * num_envs + np.arange(num_envs)
        for lane, slot in enumerate(slots):
            naive[int(slot)] = np.asarray(t.obs)[lane], np.asarray(t.next_obs)[lane]
        state = add(state, t)
    return state, naive


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**31),
    st.sampled_from([2, 5, 30]),  # mean length of an episode
    st.sampled_from([(12, 1, 1), (12, 1, 3), (24, 2, 5), (12, 2, 20)]),
    st.sampled_from([3, 9, 40]),
    st.sampled_from([-2, FURTHEST - 1, FURTHEST - 20]),
)
def test_stacks_equal_those_of_a_naive_store(seed, length, sizes, rows, newest):
    rows += sizes[2]
    state, naive = play(seed, length, *sizes, rows, newest=newest)
    live = np.asarray(sorted(naive), np.int32)
    filled = np.resize(live, sizes[0])  # one shape, so that it compiles once
    read = jax.tree.map(np.asarray, made(*sizes)[-1](state.ring, filled))
    for row, slot in enumerate(live.tolist()):
        np.testing.assert_array_equal(read.obs[row], naive[slot][0])
        np.testing.assert_array_equal(read.next_obs[row], naive[slot][1])
    assert int(_lost(state.ring)) == 0


def test_samples_contain_the_stacks():
    replay = made(12, 1, 1)[0]
    state, naive = play(0, 5, 12, 1, 1, 30)
    batch = jax.jit(replay.sample)(state, jax.random.key(0))
    batch = jax.tree.map(np.asarray, batch)
    for row, slot in enumerate(batch.indices.tolist()):
        np.testing.assert_array_equal(batch.transition.obs[row], naive[slot][0])
        np.testing.assert_array_equal(batch.transition.next_obs[row], naive[slot][1])


def test_frames_lost_to_short_episodes_are_counted():
    storage = Frames(stack=K, spare=0.0)
    replay = Replay(uniform.sampler(), capacity=600, batch_size=4, storage=storage)
    add, metrics, yes = jax.jit(replay.add), jax.jit(replay.metrics), np.ones(1, bool)
    state = jax.jit(replay.init)(jax.random.key(0), EXAMPLE)
    places = state.ring.frames.places
    for number in range(600):  # every step is an episode of two frames
        state = add(state, ROW._replace(first=yes, last=yes))
        # Each step uses 2 places and overwrites the frames of the oldest steps.
        lost = max(0, 2 * (number + 1) - places)
        assert float(metrics(state)["frames_lost"]) == (lost + 1) // 2


@pytest.mark.parametrize(("stack", "n"), [(1, 1), (1, 5), (2, 5), (4, 3)])
def test_frames_lost_equals_the_number_of_wrong_transitions(stack, n):
    replay, init, push, add, gather = made(8, 1, n, stack, 0.0)
    blank = BLANK[..., :stack]
    example = EXAMPLE._replace(obs=blank, next_obs=blank)
    state, window, naive = replay.init(jax.random.key(0), example), init(), {}
    game, flag, number = Game(np.random.default_rng(0), 4), np.zeros(1, bool), np.zeros(1)
    counts = set()
    for time in range(80):
        obs, next_obs, first, *ended = (np.asarray(x)[None] for x in game.step())
        obs, next_obs = (x[..., -stack:] for x in (obs, next_obs))
        step = Step(obs, number.astype(np.int32), number, *ended, next_obs, first | flag)
        window, t = push(window, step, GAMMA)
        if time < n - 1:
            continue
        state = add(state, t)
        naive[(time - n + 1) % 8] = np.concatenate([t.obs, t.next_obs], -1)
        read = gather(state.ring, np.arange(8))
        held = np.concatenate([read.obs, read.next_obs], -1)
        wrong = sum((held[slot] != right[0]).any() for slot, right in naive.items())
        assert int(_lost(state.ring)) == wrong
        counts.add(wrong)
    assert len(counts) > 2


def test_stacks_that_do_not_begin_with_zeros_are_counted():
    replay, _, _, add, _ = made(12, 1, 1)
    state, metrics = jax.jit(replay.init)(jax.random.key(0), EXAMPLE), jax.jit(replay.metrics)
    newest = np.zeros_like(ROW.obs)
    newest[..., -1] = 7
    for obs, first, odd in ((newest, 1, 0), (newest + 1, 0, 0), (newest + 1, 1, 1)):
        state = add(state, ROW._replace(obs=obs, first=np.array([first == 1])))
        assert float(metrics(state)["frames_malformed"]) == odd


def test_a_million_atari_frames_fit_in_7_6_gb():
    example = EXAMPLE._replace(
        obs=np.zeros((84, 84, 4), np.uint8), next_obs=np.zeros((84, 84, 4), np.uint8)
    )
    for num_envs in (1, 8):
        sizes = {"capacity": 1_000_000, "batch_size": 32, "num_envs": num_envs}
        replay = Replay(uniform.sampler(), **sizes, storage=Frames(stack=4))
        shapes = jax.eval_shape(replay.init, jax.random.key(0), example)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes.ring))
        assert size <= 1.05 * 7.2e9


def test_stacks_of_another_size_are_refused():
    replay = Replay(uniform.sampler(), capacity=8, batch_size=4, storage=Frames(stack=3))
    with refused("stack", "3", "2, 3, 4"):
        replay.init(jax.random.key(0), EXAMPLE)
