"""Rows in host memory give the same draws and batches as rows on the device."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, Transitions, ring, saving, testing
from jaxreplay.loops import host_rows
from jaxreplay.methods import (
    ere,
    ero,
    lap,
    ners,
    per,
    pser,
    rank,
    refer,
    sequences,
    slices,
    uniform,
    windows,
)
from jaxreplay.testing import BATCH, CAPACITY, E
from jaxreplay.types import Transition
from tests.refusals import refused

METHODS = {
    "uniform": uniform.method(),
    "per": per.method(),
    "rank": rank.method(),
    "lap": lap.method(),
    "pser": pser.method(),
    "ere": ere.method(),
    "ero": ero.method(),
    "ners": ners.method(ners.NERSConfig(features=("action", "reward", "td_error"))),
    "refer": refer.method(refer.ReFERConfig(returns=True, refresh_every=2, capacity_factor=1)),
    "windows": windows.method(windows.WindowsConfig(length=4)),
    "sequences": sequences.method(sequences.SequencesConfig(length=4, period=2, burn_in=1)),
    "slices": slices.method(slices.SlicesConfig(over="per", length=4, burn_in=1)),
}
ON_HOST = Transitions(on_host=True)
SLOW = ("rank", "lap", "ere", "windows")  # the others store or read the same arrays
EXAMPLE = Transition(
    obs={"image": np.zeros((3, 2, 1), np.uint8), "speed": np.zeros(3, np.float32)},
    action=np.zeros(2, np.float32),
    reward=np.zeros((), np.float32),
    discount=np.zeros((), np.float32),
    next_obs={"image": np.zeros((3, 2, 1), np.uint8), "speed": np.zeros(3, np.float32)},
    first=np.zeros((), bool),
    last=np.zeros((), bool),
    extras=np.zeros(2, np.float16),
)


def row_of(rng, time):
    """Return a row of noise from episodes of four steps; some values are NaN."""
    noise = jax.tree.map(lambda x: rng.integers(0, 200, (E, *np.shape(x))).astype(x.dtype), EXAMPLE)
    speed = noise.obs["speed"]
    if time % 7 == 3:
        speed[0, 1] = np.nan
    first, last = (np.full(E, time % 4 == at) for at in (0, 3))
    return noise._replace(first=first, last=last, obs={**noise.obs, "speed": speed})


def verbs(method, on_host):
    """Return a replay and its compiled functions."""
    sizes = {"capacity": CAPACITY, "batch_size": BATCH, "num_envs": E}
    replay = Replay(method.sampler, **sizes, storage=Transitions(on_host=on_host))
    wanted = method.requires.feedback_of_new
    names = testing.FEEDBACK | method.requires.feedback

    def add(state, row):
        return replay.add(state, row, **dict.fromkeys(wanted, row.reward))

    def update(state, batch, words, key):
        if on_host:
            batch = host_rows.join(state.ring, batch, words)
        told = jax.random.normal(key, batch.indices.shape)
        state = replay.update(state, batch, **dict.fromkeys(names, told))
        return replay.observe(state, told.mean(), key), batch

    return replay, jax.jit(add), jax.jit(replay.sample), jax.jit(update)


def play(method, on_host, steps=40):
    """Add, sample and update; return the batches and the final sampler state."""
    replay, add, sample, update = verbs(method, on_host)
    rng, state = np.random.default_rng(0), replay.init(jax.random.key(0), EXAMPLE)
    rows = host_rows.empty(state.ring) if on_host else None
    batches, words = [], None
    for time in range(steps):
        state = add(state, row_of(rng, time))
        if on_host:
            host_rows.write(rows, state.ring.leaving)
        if not replay.can_sample(state):
            continue
        batch = sample(state, jax.random.key(time))
        if on_host:
            assert batch.transition.obs == {"image": None, "speed": None}
            words = host_rows.read(rows, batch.indices)
        state, batch = update(state, batch, words, jax.random.key(100 + time))
        batches.append(jax.tree.map(np.asarray, batch))
    return batches, jax.tree.map(np.asarray, (state.sampler, state.dropped))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in METHODS],
)
def test_batches_equal_those_of_a_replay_on_the_device_bit_for_bit(name):
    theirs, ours = (play(METHODS[name], on_host) for on_host in (False, True))
    assert len(ours[0]) > 20
    jax.tree.map(np.testing.assert_array_equal, theirs, ours)
    assert jax.tree.structure(theirs) == jax.tree.structure(ours)
    images = np.concatenate([batch.transition.obs["image"].ravel() for batch in ours[0]])
    assert len(np.unique(images)) > 100 and ours[1][1] > 0


def test_vmapped_seeds_share_one_array_of_rows():
    replay, _, _, _ = verbs(METHODS["per"], True)
    states = jax.vmap(lambda key: replay.init(key, EXAMPLE))(jax.random.split(jax.random.key(0), 2))
    one = jax.tree.map(lambda x: x[0], states)
    rows = host_rows.empty(one.ring, 2)
    alone = [host_rows.empty(one.ring) for _ in range(2)]
    rngs = [np.random.default_rng(seed) for seed in range(2)]
    add = jax.jit(jax.vmap(lambda state, row: replay.add(state, row).ring.leaving))
    row = jax.tree.map(lambda *x: np.stack(x), *(row_of(rng, 0) for rng in rngs))
    leaving = jax.tree.map(np.asarray, add(states, row))
    host_rows.write(rows, leaving._replace(slots=leaving.slots[0]))
    for seed, own in enumerate(alone):
        host_rows.write(own, jax.tree.map(lambda x, at=seed: x[at], leaving))
    np.testing.assert_array_equal(rows, np.stack(alone))
    slots = np.array([[1, 0, 1], [0, 0, 1]])
    for seed, read in enumerate(host_rows.read(rows, slots)):
        np.testing.assert_array_equal(read, host_rows.read(alone[seed], slots[seed]))
    assert rows[0, 0].any() and not rows[:, E:].any()


def test_the_device_stores_only_scalars_and_fields_that_the_sampler_reads():
    def kept(method):
        replay = verbs(method, True)[0]
        held = jax.eval_shape(replay.init, jax.random.key(0), EXAMPLE).ring
        return {field.name for field in held.layout.fields}, held

    numbers = {"reward", "discount", "first", "last"}
    names, held = kept(METHODS["per"])
    assert names == numbers and held.words.shape == (CAPACITY, 3)
    assert host_rows.empty(held).shape == (CAPACITY, 12)
    assert kept(METHODS["ners"])[0] == numbers | {"action"}


class Word(NamedTuple):
    letters: np.ndarray
    first: np.ndarray


def test_rows_of_any_type_are_saved_next_to_the_replay(tmp_path):
    letters, first = np.zeros(5, np.int8), np.zeros((), bool)
    for example in (Word(letters, first), {"letters": letters, "first": first}):
        replay = Replay(uniform.sampler(), capacity=4, batch_size=2, storage=ON_HOST)
        state = replay.init(jax.random.key(0), example)
        rows = host_rows.empty(state.ring)
        row = jax.tree.map(lambda x: jnp.ones((1, *x.shape), x.dtype), example)
        for _ in range(3):
            state = replay.add(state, row)
            host_rows.write(rows, state.ring.leaving)
        replay_file = saving.save(replay, state, tmp_path / "replay")
        state = saving.load(replay, replay_file, example)
        batch = replay.sample(state, jax.random.key(1))
        batch = host_rows.join(state.ring, batch, host_rows.read(rows, batch.indices))
        assert type(batch.transition) is type(example)
        assert all(leaf.all() for leaf in jax.tree.leaves(batch.transition))


@pytest.mark.parametrize(
    ("example", "parts"),
    [(np.zeros(3), ("on_host", "first")), ({"first": np.zeros(())}, ("on_host",))],
)
def test_rows_that_the_host_cannot_store_are_refused(example, parts):
    replay = Replay(uniform.sampler(), capacity=8, batch_size=4, storage=ON_HOST)
    with refused(*parts):
        replay.init(jax.random.key(0), example)


def test_the_field_that_does_not_fit_is_named():
    replay, add, _, _ = verbs(METHODS["uniform"], True)
    state = replay.init(jax.random.key(0), EXAMPLE)
    row = row_of(np.random.default_rng(0), 0)
    with refused("action"):
        add(state, row._replace(action=None))
    with refused("action", "[2, 3]", "[2, 2]"):
        add(state, row._replace(action=np.zeros((E, 3), np.float32)))


def test_rings_on_the_device_have_no_host_rows():
    held = ring.init(EXAMPLE, CAPACITY, E)
    with refused("on_host=True"):
        host_rows.empty(held)


def test_rows_of_another_ring_are_refused():
    sizes = {"batch_size": 4, "num_envs": E, "storage": ON_HOST}
    replay = Replay(uniform.sampler(), capacity=CAPACITY, **sizes)
    state = replay.init(jax.random.key(0), EXAMPLE)
    state = replay.add(state, row_of(np.random.default_rng(0), 0))
    leaving, rows = state.ring.leaving, host_rows.empty(state.ring)
    written = rows.copy()
    host_rows.write(written, leaving)
    host_rows.read(written, [0, CAPACITY - 1])
    for other, parts in (
        (rows[:, 1:], ("24, 11", "2, 12")),
        (np.stack([rows] * 2), ("2, 24, 12", "2, 12")),
        (rows.astype(np.float32), ("uint32", "float32")),
        (rows.tolist(), ("uint32", "list")),
    ):
        with refused("rows", *parts, "host_rows.empty(state.ring)"):
            host_rows.write(other, leaving)
    with refused("slots", E - 1, 0):
        host_rows.write(rows[:1], leaving)
    with refused("NoneType", "on_host=True"):
        host_rows.write(rows, None)  # `leaving` is None in a ring on the device
    for slots, parts in (
        ([0, CAPACITY], ("slots", CAPACITY, CAPACITY - 1)),
        ([-1], ("slots", "-1", CAPACITY - 1)),
        ([0.0], ("slots", "float64")),
    ):
        with refused(*parts):
            host_rows.read(rows, slots)
    with refused("rows", "2", "slots", "3"):
        host_rows.read(np.stack([rows] * 2), [0, 1, 2])
    words = np.zeros(leaving.words.shape)
    for other in (leaving._replace(words=words), leaving._replace(slots=np.zeros(1, np.int32))):
        with refused("rows", "24, 12", "2, 12"):
            host_rows.write(rows, other)
    with refused(2**32, CAPACITY - 1):
        host_rows.write(rows, leaving._replace(slots=np.full(E, 2**32)))


def test_batches_are_joined_only_with_their_own_words():
    sizes = {"capacity": CAPACITY, "batch_size": 4, "num_envs": E}
    replay = Replay(uniform.sampler(), **sizes, storage=ON_HOST)
    state = replay.init(jax.random.key(0), EXAMPLE)
    state = replay.add(state, row_of(np.random.default_rng(0), 0))
    batch = replay.sample(state, jax.random.key(0))
    words = host_rows.read(host_rows.empty(state.ring), batch.indices)
    host_rows.join(state.ring, batch, words)
    for other, shown in (
        (words.astype(np.float32), "float32"),
        (words.astype(np.int32), "int32"),
        (words[:2], "2, 12"),
        (words[None], "1, 4, 12"),
        (words.tolist(), "list"),
    ):
        with refused("words", shown):
            host_rows.join(state.ring, batch, other)
    with refused("ReplayState", "state.ring"):
        host_rows.join(state, batch, words)
