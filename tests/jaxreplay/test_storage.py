"""Observations and frames that are stored once, compared with a replay of whole transitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Frames, Replay, SharedObservations, Transition, Transitions, n_step, ring
from jaxreplay.methods import ners, uniform
from jaxreplay.n_step import Step
from tests.refusals import refused

FLAG, NUMBER, FRAME = np.bool_(0), np.float32(0), np.zeros((2, 3), np.uint8)
OBS = {"speed": np.zeros(3, np.float32), "image": FRAME, "on": FLAG}
FURTHEST = 2**30 + 2**29  # after this place, counts of places wrap
ROWS = 45


def step_of(obs):
    return Step(obs, np.int32(0), NUMBER, FLAG, FLAG, obs, FLAG)


def example_of(obs):
    return Transition(obs, np.int32(0), NUMBER, NUMBER, obs, FLAG, FLAG)


def stacked(stack):
    """Return the example of a stack of frames."""
    return np.zeros((*FRAME.shape, stack), np.uint8)


def replay_of(storage, **sizes):
    sizes = {"capacity": 4, "batch_size": 2} | sizes
    return Replay(uniform.sampler(), **sizes, storage=storage)


@functools.cache
def compared(storage, capacity, num_envs, n):
    """Return two replays and a program that adds steps `[T, E, ...]` to both.

    The first replay stores whole transitions, the second uses `storage`.

    The program returns both replays' states and, for every row, the metric `frames_lost` and the
    number of transitions whose observations differ.
    """
    sizes = {"capacity": capacity, "batch_size": 4, "num_envs": num_envs}
    replays = replay_of(Transitions(), **sizes), replay_of(storage, **sizes)
    obs = stacked(storage.stack) if isinstance(storage, Frames) else OBS

    def wrong(states):
        stored = [ring.gather(state.ring, jnp.arange(capacity)) for state in states]
        observations = [(t.obs, t.next_obs) for t in stored]
        differs = jax.tree.map(
            lambda x, y: (x != y).reshape(capacity, -1).any(axis=1), *observations
        )
        live = jnp.arange(capacity) < ring.size(states[0].ring)
        return (live & functools.reduce(jnp.logical_or, jax.tree.leaves(differs))).sum()

    def add(states, t):
        states = [replay.add(state, t) for replay, state in zip(replays, states, strict=True)]
        return states, (replays[1].metrics(states[1])["frames_lost"], wrong(states))

    @jax.jit
    def play(steps, newest=-2):
        states = [replay.init(jax.random.key(0), example_of(obs)) for replay in replays]
        frames = states[1].ring.frames
        frames = frames.replace(newest=jnp.full_like(frames.newest, newest))
        states[1] = states[1]._replace(ring=states[1].ring.replace(frames=frames))
        window = n_step.init(step_of(obs), n, num_envs)
        push = lambda window, step: n_step.push(window, step, 0.9)
        _, transitions = jax.lax.scan(push, window, steps)
        valid = jax.tree.map(lambda x: x[n - 1 :], transitions)
        return jax.lax.scan(add, states, valid)

    return replays, play


def episodes(seed, length, num_envs, stack=None):
    """Return ROWS steps of episodes with this mean length, of dicts or of stacks of frames."""
    rng = np.random.default_rng(seed)
    lanes = ROWS, num_envs
    image = rng.integers(1, 256, (ROWS + 1, num_envs, *FRAME.shape), np.uint8)
    over = rng.random(lanes) < 1 / length
    terminated = over & (rng.random(lanes) < 0.5)
    first = np.concatenate([np.ones((1, num_envs), bool), over[:-1]])
    if stack:
        pairs = stacks(image, rng.integers(1, 256, image[1:].shape, np.uint8), over, stack)
    else:
        speed = rng.normal(size=(ROWS + 1, num_envs, 3)).astype(np.float32)
        obs = {"speed": speed, "image": image, "on": rng.random((ROWS + 1, num_envs)) < 0.5}
        beyond = jax.tree.map(lambda x: np.roll(x[1:], 7, axis=0), obs)  # unlike the following obs
        last = lambda x: over.reshape(*over.shape, *[1] * (x.ndim - 2))
        pairs = (
            jax.tree.map(lambda x: x[:-1], obs),
            jax.tree.map(lambda x, y: np.where(last(x), y, x[1:]), obs, beyond),
        )
    action = rng.integers(0, 5, lanes).astype(np.int32)
    reward = rng.normal(size=lanes).astype(np.float32)
    return Step(pairs[0], action, reward, terminated, over & ~terminated, pairs[1], first)


def stacks(frames, finals, over, size):
    """Return obs and next_obs as an agent sees them; frames before an episode are zero."""
    push = lambda stack, frame: np.concatenate([stack[..., 1:], frame[..., None]], axis=-1)
    wide = lambda flags: flags[:, None, None]
    stack = blank = np.zeros((*frames.shape[1:], size), np.uint8)
    begins, pairs = np.ones(over.shape[1], bool), []
    for time, ends in enumerate(over):
        obs = np.where(wide(begins)[..., None], push(blank, frames[time]), stack)
        stack = push(obs, np.where(wide(ends), finals[time], frames[time + 1]))
        pairs.append((obs, stack))
        begins = ends
    return [np.stack(column) for column in zip(*pairs, strict=True)]


LAYOUTS = [  # storage, capacity, environments, n
    (SharedObservations(spare=1.0), 12, 1, 1),
    (SharedObservations(spare=1.0), 24, 2, 2),
    (Frames(stack=4, spare=1.0), 12, 1, 1),
    (Frames(stack=4, spare=1.0), 24, 2, 5),
    (Frames(stack=4, spare=1.0), 12, 2, 20),
]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(LAYOUTS),
    st.integers(0, 2**31),
    st.sampled_from([2, 5, 30]),
    st.sampled_from([-2, FURTHEST - 1, FURTHEST - 20]),
)
def test_transitions_equal_those_of_a_replay_that_stores_both(layout, seed, length, newest):
    storage, _, num_envs, _ = layout
    steps = episodes(seed, length, num_envs, getattr(storage, "stack", None))
    _, counts = compared(*layout)[1](steps, newest)
    assert not np.any(counts)  # after every row, no transition is lost or wrong


@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[2]], ids=["shared", "frames"])
def test_samples_and_dtypes_equal_those_of_a_replay_that_stores_both(layout):
    replays, play = compared(*layout)
    states, _ = play(episodes(0, 5, layout[2], getattr(layout[0], "stack", None)))
    whole, once = (
        jax.jit(replay.sample)(state, jax.random.key(0))
        for replay, state in zip(replays, states, strict=True)
    )
    jax.tree.map(np.testing.assert_array_equal, once, whole)
    assert [x.dtype for x in jax.tree.leaves(once)] == [x.dtype for x in jax.tree.leaves(whole)]


@pytest.mark.parametrize(("stack", "n"), [(1, 5), (4, 3)])
def test_frames_lost_equals_the_number_of_wrong_transitions(stack, n):
    play = compared(Frames(stack=stack, spare=0.0, ahead=n), 8, 1, n)[1]
    found = set()
    for seed in range(2):
        _, (lost, wrong) = play(episodes(seed, 4, 1, stack))
        np.testing.assert_array_equal(lost, wrong)
        found |= set(np.asarray(lost).tolist())
    assert len(found) > 2


def test_frames_lost_to_short_episodes_are_counted():
    """Each step is an episode of two frames, and overwrites the frames of the oldest steps."""
    (_, state), (lost, _) = compared(Frames(stack=4, spare=0.0, ahead=3), ROWS, 1, 1)[1](
        episodes(0, 1, 1, 4)
    )
    extra = 2 * np.arange(1, ROWS + 1) - state.ring.frames.places
    np.testing.assert_array_equal(lost, (np.maximum(extra, 0) + 1) // 2)
    assert lost[-1] > 10


@pytest.mark.parametrize(("n", "ahead", "lost"), [(4, 4, 0), (4, 2, 1)])
def test_n_steps_beyond_ahead_lose_transitions(n, ahead, lost):
    play = compared(SharedObservations(spare=0.0, ahead=ahead), 12, 2, n)[1]
    _, counts = play(episodes(0, np.inf, 2))
    assert counts[0][-1] == lost * 2  # once per environment
    assert lost or not counts[1].any()


def test_stacks_that_do_not_begin_with_zeros_are_counted():
    replay, obs = replay_of(Frames(stack=4)), stacked(4)
    row = jax.tree.map(lambda x: x[None], example_of(obs))
    state = jax.jit(replay.init)(jax.random.key(0), example_of(obs))
    add, metrics = jax.jit(replay.add), jax.jit(replay.metrics)
    newest = np.zeros_like(row.obs)
    newest[..., -1] = 7
    for obs, first, odd in ((newest, True, 0), (newest + 1, False, 0), (newest + 1, True, 1)):
        state = add(state, row._replace(obs=obs, first=np.array([first])))
        assert float(metrics(state)["frames_malformed"]) == odd


def size_of(storage, example, **sizes):
    """Return the bytes of a state."""
    shapes = jax.eval_shape(replay_of(storage, **sizes).init, jax.random.key(0), example)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))


@pytest.mark.parametrize("num_envs", [1, 8])
def test_a_million_atari_frames_fit_in_7_6_gb(num_envs):
    example = example_of(np.zeros((84, 84, 4), np.uint8))
    assert size_of(Frames(stack=4), example, capacity=10**6, num_envs=num_envs) <= 1.05 * 7.2e9


PAIR = {"obs": np.zeros(100, np.float32), "next_obs": np.zeros(100, np.float32), "first": FLAG}
N_STEP, TRANSITION = PAIR | {"n_steps": np.int32(0)}, Transition(**PAIR)


@pytest.mark.parametrize(
    ("example", "num_envs", "ahead", "share"),
    [
        (PAIR, 1, None, 0.57),
        (PAIR, 128, None, 0.57),
        (PAIR, 4096, None, 0.61),  # 32 rows each
        (N_STEP, 128, 5, 0.57),
        (TRANSITION, 1, None, 0.57),
        (TRANSITION, 128, None, 0.69),  # 1024 rows each, room for n up to 255
        (TRANSITION, 128, 3, 0.57),
        (TRANSITION, 4096, 1, 0.61),
        (TRANSITION, 4096, None, 1.1),  # room for n up to 32
    ],
)
def test_shared_observations_take_about_half_the_memory(example, num_envs, ahead, share):
    sizes = {"capacity": 2**17, "num_envs": num_envs}
    once = size_of(SharedObservations(ahead=ahead), example, **sizes)
    assert once < share * size_of(Transitions(), example, **sizes)


def test_rows_may_be_dicts():
    replay = replay_of(SharedObservations())
    row = {"obs": np.float32([[1, 2]]), "next_obs": np.float32([[3, 4]]), "first": np.array([True])}
    example = jax.tree.map(lambda x: x[0], row)
    state = jax.jit(replay.add)(replay.init(jax.random.key(0), example), row)
    back = jax.jit(ring.gather)(state.ring, jnp.zeros(1, jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, back, row)


def test_samplers_can_read_the_observations():
    config = ners.NERSConfig(features=("obs", "next_obs"), hidden=(4,), score_hidden=(4,))
    replay = Replay(ners.sampler(config), capacity=8, batch_size=2, storage=SharedObservations())
    example = example_of(OBS["speed"])
    row = jax.tree.map(lambda x: np.stack([x]), example)

    def cycle(key):
        state = replay.add(replay.init(key, example), row)
        batch = replay.sample(state, key)
        return replay.update(state, batch, td_error=jnp.ones(2), target=jnp.ones(2))

    jax.eval_shape(cycle, jax.random.key(0))


@pytest.mark.parametrize(
    ("storage", "change", "parts"),
    [
        (SharedObservations(), {"obs": OBS["speed"]}, ("obs", "next_obs")),
        (SharedObservations(), {"next_obs": OBS | {"on": NUMBER}}, ("obs", "next_obs")),
        (SharedObservations(), {"first": None}, ("first", "Transition")),
        (
            Frames(stack=3),
            {"obs": stacked(4), "next_obs": stacked(4)},
            ("stack", "3", "2, 3, 4"),
        ),
    ],
)
def test_observations_that_cannot_be_stored_once_are_refused(storage, change, parts):
    with refused(*parts):
        replay_of(storage).init(jax.random.key(0), example_of(OBS)._replace(**change))


@pytest.mark.parametrize(
    ("name", "change", "parts"),
    [
        ("next_obs", None, ("next_obs",)),
        ("obs", {"on": np.zeros(2, bool)}, ("obs", "on", "[2]", "[1]")),
        ("obs", {"on": np.ones(1)}, ("obs", "on", "float64", "bool")),
    ],
)
def test_rows_that_do_not_fit_are_refused(name, change, parts):
    replay = replay_of(SharedObservations())
    state = jax.eval_shape(replay.init, jax.random.key(0), example_of(OBS))
    row = jax.tree.map(lambda x: np.stack([x]), example_of(OBS))
    row = row._replace(**{name: change and row.obs | change})
    with refused(*parts):
        jax.eval_shape(lambda state: replay.add(state, row), state)
