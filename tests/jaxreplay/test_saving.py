"""Saved replays are restored bit for bit, and refused if they do not fit."""

import dataclasses
import functools
import json
import os
import zlib
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import jaxreplay
from jaxreplay import Frames, Replay, SharedObservations, Transitions, ring, sum_tree, testing
from jaxreplay.methods import METHODS, per, proportional, rank, sequences, uniform
from jaxreplay.mixing import mix
from jaxreplay.saving import Damaged, array_file
from tests.methods import short
from tests.refusals import refused

EXAMPLE = {
    "half": np.zeros(3, jnp.bfloat16),
    "flag": np.bool_(0),
    "image": np.zeros((2, 2), np.uint8),
    "reward": np.float32(0),
}
SIZES = {"capacity": 8, "batch_size": 4, "num_envs": 2}


@functools.cache
def filled(sampler=None, rows=5, **sizes):
    replay = Replay(sampler or per.sampler(), **SIZES | sizes)
    state, add = replay.init(jax.random.key(0), EXAMPLE), jax.jit(replay.add)
    rng = np.random.default_rng(0)
    for number in range(rows):
        row = {
            "half": rng.normal(size=(2, 3)).astype(jnp.bfloat16),
            "flag": np.array([number % 2 == 0, True]),
            "image": rng.integers(0, 256, (2, 2, 2), np.uint8),
            "reward": np.float32([number, -0.0]),
        }
        state = add(state, row)
    batch = jax.jit(replay.sample)(state, jax.random.key(1))
    told = {name: rng.normal(size=4).astype(np.float32) for name in replay.requires.feedback}
    return replay, jax.jit(replay.update)(state, batch, **told)


def bits(tree):
    data = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return [(x.dtype, x.shape, np.asarray(data(x)).tobytes()) for x in jax.tree.leaves(tree)]


class Keyed(NamedTuple):
    """Types that a user's sampler may store."""

    key: jax.Array
    half: jax.Array
    flags: jax.Array
    nothing: jax.Array


@dataclasses.dataclass(frozen=True)
class KeepsKeys(uniform.Uniform):
    """Uniform, with a user-defined state."""

    def init(self, key, ring):
        odd = jnp.array([np.nan, -0.0, np.inf], jnp.bfloat16)
        return Keyed(jax.random.split(key, 2), odd, jnp.array([True, False]), jnp.zeros((0, 3)))


@pytest.mark.parametrize("sampler", [per.sampler(), KeepsKeys()], ids=type)
def test_load_restores_a_saved_state(sampler, tmp_path):
    # Sizes may be NumPy integers.
    replay, state = filled(sampler, **{name: np.int64(size) for name, size in SIZES.items()})
    assert all(type(getattr(replay, name)) is int for name in SIZES)
    path = jaxreplay.save(replay, state, tmp_path / "replay.safetensors")
    assert os.listdir(tmp_path) == ["replay.safetensors"]
    back = jaxreplay.load(Replay(sampler, **SIZES), path, EXAMPLE)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert bits(back) == bits(state)
    assert [x.dtype for x in jax.tree.leaves(back)] == [x.dtype for x in jax.tree.leaves(state)]
    sample = jax.jit(replay.sample)
    draws = [sample(x, jax.random.key(7)) for x in (state, back)]
    assert bits(draws[0]) == bits(draws[1])
    plain = [
        x
        for x in jax.tree.leaves(back)
        if x.size and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    ]
    buffers = [x.unsafe_buffer_pointer() for x in plain]
    assert len(set(buffers)) == len(buffers)  # no shared buffers, so the state can be donated


def test_trees_are_rebuilt_from_their_leaves(tmp_path):
    sampler = per.sampler(per.PERConfig(normalise="buffer"))  # also stores a tree of minima
    replay, state = filled.__wrapped__(sampler, rows=40, capacity=64)
    path = jaxreplay.save(replay, state, tmp_path / "r")
    loaded = jaxreplay.load(replay, path, EXAMPLE)
    leaves = sum_tree.leaves(loaded.sampler.tree)
    np.testing.assert_array_equal(leaves, sum_tree.leaves(state.sampler.tree))
    fresh = sum_tree.rebuild(sum_tree.init(64), leaves)
    assert bits(loaded.sampler.tree) == bits(fresh)
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    proportional.check_valid(loaded.sampler, loaded.ring)


@pytest.mark.parametrize("name", METHODS)
def test_states_of_every_method_can_be_saved(name, tmp_path):
    case = testing.Case(short(name, 100))
    shapes = jax.eval_shape(case.replay.init, jax.random.key(0), case.example)
    number = iter(range(10**6))
    state = jax.tree.map(lambda x: np.full(x.shape, next(number) % 2, x.dtype), shapes)
    state = array_file.unflatten(shapes, [leaf for _, leaf in array_file.flatten(state)])
    path = jaxreplay.save(case.replay, state, tmp_path / "r")
    assert bits(jaxreplay.load(case.replay, path, case.example)) == bits(state)


@pytest.mark.parametrize(
    ("sampler", "sizes", "fields", "parts"),
    [
        (per.sampler(), {"capacity": 16}, {}, ("capacity", "8", "16", "capacity=8")),
        (per.sampler(), {"num_envs": 4}, {}, ("num_envs", "2", "4", "num_envs=2")),
        (per.sampler(), {}, {"reward": np.float16(0)}, ("reward", "float32[]", "float16[]")),
        (
            per.sampler(), {}, {"half": np.zeros(4, jnp.bfloat16)},
            ("half", "bfloat16[3]", "bfloat16[4]"),
        ),
        (per.sampler(), {}, {"more": np.float32(0)}, ("more", "float32[]")),
        (uniform.sampler(), {}, {}, (".sampler.tree.leaves", "float32[8]")),
        (rank.sampler(), {}, {}, (".sampler.order.values", "float32[8,128]")),
    ],
)  # fmt: skip
def test_another_layout_or_sampler_is_refused_by_name(sampler, sizes, fields, parts, tmp_path):
    replay, state = filled(rows=2)
    path = jaxreplay.save(replay, state, tmp_path / "r")
    with refused(*parts):
        jaxreplay.load(Replay(sampler, **SIZES | sizes), path, EXAMPLE | fields)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint64])
def test_rows_saved_with_another_x64_setting_name_the_setting(wide, dtype, tmp_path):
    replay, example = Replay(uniform.sampler(), **SIZES), {"x": dtype(0)}
    with jax.enable_x64(wide):
        path = jaxreplay.save(replay, replay.init(jax.random.key(0), example), tmp_path / "r")
    with jax.enable_x64(not wide), refused("x", np.dtype(dtype).name, "jax_enable_x64", wide):
        jaxreplay.load(replay, path, example)


def write_header(path, text):
    """Write a file with this text as the header of a saved replay."""
    written = {"jaxreplay.replay": f"{zlib.crc32(text.encode()):08x} {text}"}
    save_file({"x": np.ones(3, np.float32)}, path, metadata=written)


def header(**changes):
    """Return the header of a saved replay with changed entries."""
    entries = {"format": 1, "version": "0.1", "capacity": 8, "num_envs": 2, "row": []}
    return json.dumps(entries | {"leaves": {}, "crc32": {}} | changes)


WRONG_ENTRIES = {
    "format": ("\x1b[31m", None, [1], "1"),
    "capacity": ("8", None, 8.0, True),
    "num_envs": ([], {}, "\x1b[31m"),
    "row": ({}, None, [["x"]], [3], [[1, 2]], ["ab"]),
    "leaves": (None, [], "x"),
    "crc32": (None, [], 3),
}
HEADERS = [
    *((header(**{name: x}), (name,), Damaged) for name, own in WRONG_ENTRIES.items() for x in own),
    *(
        (text, (), Damaged)
        for text in (
            "[" * 100_000, '{"a":' * 5_000 + "1" + "}" * 5_000, "1" * 6_000, "[]", "3", "{",
        )
    ),
    (header(format=9, version="3.0"), ("9", "3.0"), ValueError),
    # Messages escape control characters.
    (header(format=9, version="\x1b[31m"), ("9", r"\x1b[31m"), ValueError),
    (header(row=[["\x1b[31mred", "\ud800"]]), ("flag", "bool[]"), ValueError),
]  # fmt: skip


@pytest.mark.parametrize(("text", "parts", "error"), HEADERS, ids=[x[0][:60] for x in HEADERS])
def test_wrong_headers_are_refused(text, parts, error, tmp_path):
    write_header(tmp_path / "r", text)
    with refused(tmp_path / "r", *parts, error=error) as raised:
        jaxreplay.load(Replay(per.sampler(), **SIZES), tmp_path / "r", EXAMPLE)
    assert str(raised.value).isprintable() and isinstance(raised.value, error)
    assert error is Damaged or not isinstance(raised.value, Damaged)


def test_missing_foreign_and_damaged_files_are_refused(tmp_path):
    replay, state = filled(rows=2)
    path, whole = tmp_path / "r", jaxreplay.save(replay, state, tmp_path / "r").read_bytes()
    for name, parts, error in (
        ("none", ("jaxreplay.save",), ValueError),
        ("other", ("jaxreplay.save",), ValueError),
        ("text", (), Damaged),
        ("changed", (), Damaged),
        ("cut", (), Damaged),
    ):
        path = tmp_path / name
        if name == "other":
            save_file({"x": np.ones(3, np.float32)}, path)
        elif name != "none":
            changed = whole[:-1] + bytes([whole[-1] ^ 1])
            texts = {"text": b"not arrays", "changed": changed, "cut": whole[: len(whole) // 2]}
            path.write_bytes(texts[name])
        with refused(path, *parts, error=error):
            jaxreplay.load(replay, path, EXAMPLE)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_special_files_are_neither_read_nor_replaced(kind, overwrite, tmp_path):
    path = tmp_path / "r"
    os.mkfifo(path) if kind == "fifo" else path.symlink_to("/dev/zero")
    replay, state = filled(rows=2)
    with pytest.raises(ValueError, match=str(path)):
        jaxreplay.save(replay, state, path, overwrite=overwrite)
    with pytest.raises(ValueError, match=str(path)):
        jaxreplay.load(replay, path, EXAMPLE)
    assert not path.is_file() and os.listdir(tmp_path) == ["r"]


def test_save_replaces_only_replays_without_overwrite(tmp_path):
    replay, state = filled(rows=2)
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with refused(path, "overwrite=True"):
        jaxreplay.save(replay, state, path)
    assert path.read_text() == "mine" and os.listdir(tmp_path) == ["notes.txt"]
    jaxreplay.save(replay, state, path, overwrite=True)
    jaxreplay.save(replay, state, path)  # now the file is a replay
    with refused(tmp_path):
        jaxreplay.save(replay, state, tmp_path, overwrite=True)
    with refused(tmp_path / "none"):
        jaxreplay.save(replay, state, tmp_path / "none" / "r")


def test_a_failed_write_keeps_the_previous_file(tmp_path, monkeypatch):
    replay, state = filled(rows=2)
    path = jaxreplay.save(replay, state, tmp_path / "r")
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        jaxreplay.save(replay, state, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["r"]


def test_a_missing_safetensors_is_named(tmp_path, monkeypatch):
    replay, state = filled(rows=1)
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        jaxreplay.save(replay, state, tmp_path / "r")
    assert os.listdir(tmp_path) == []


def test_save_refuses_the_state_of_another_replay(tmp_path):
    replay, state = filled()
    path = jaxreplay.save(replay, state, tmp_path / "replay.safetensors")
    good = path.read_bytes()
    two = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    for other, kept, parts in (
        (Replay(per.sampler(), **SIZES | {"capacity": 16}), state, ("capacity", "16")),
        (Replay(uniform.sampler(), **SIZES), state, ("capacity", "8")),
        (replay, two, ("jax.tree.map",)),
    ):
        with refused(*parts):
            jaxreplay.save(other, kept, path)
    # A ring of frames does not store the shape of a row, so only sizes can be compared.
    small, large, wide = (
        Replay(uniform.sampler(), batch_size=4, storage=Frames(stack=2), **sizes)
        for sizes in ({"capacity": 32}, {"capacity": 64}, {"capacity": 32, "num_envs": 2})
    )
    stack = np.zeros((2, 2), np.float32)
    stacked = small.init(jax.random.key(0), testing.EXAMPLE._replace(obs=stack, next_obs=stack))
    for other, sizes in ((large, ("64", "1")), (wide, ("32", "2"))):
        with refused("capacity", *sizes):
            jaxreplay.save(other, stacked, path)
    with refused("save", "jit"):
        jax.jit(lambda state: jaxreplay.save(replay, state, path))(state)
    mixed = mix(replay, replay)
    with refused("Mixed", "save(replay.first, state.first, path)"):
        jaxreplay.save(mixed, mixed.init(jax.random.key(0), EXAMPLE), path)
    assert path.read_bytes() == good


MARKED = {"lane": np.int32(0), "time": np.int32(0), "first": np.bool_(0), "last": np.bool_(0)}


@functools.cache
def marked(names, rows):
    """A replay of two lanes whose rows store lane and time, in episodes of five steps."""
    replay = Replay(uniform.sampler(), capacity=24, batch_size=4, num_envs=2)
    example = {name: MARKED[name] for name in names}
    lane, time = np.indices((2, rows), np.int32).swapaxes(1, 2)
    rollout = {"lane": lane, "time": time, "first": time % 5 == 0, "last": time % 5 == 4}
    state = replay.init(jax.random.key(0), example)
    return replay, replay.add_rollout(state, {name: rollout[name] for name in names}), example


FLAGGED = ("lane", "time", "last")


@pytest.mark.parametrize(
    ("names", "rows", "num_envs", "capacity"),
    [
        (tuple(MARKED), 1, 8, 48),
        # 18 rows wrap around the ring.
        (tuple(MARKED), 18, 3, 24), (tuple(MARKED), 18, 8, 48), (FLAGGED, 18, 1, 6),
        (FLAGGED, 18, 3, 24), (("lane", "time"), 18, 4, 24),
    ],
)  # fmt: skip
def test_load_rows_moves_rows_to_other_environments(names, rows, num_envs, capacity, tmp_path):
    replay, state, example = marked(names, rows)
    path = jaxreplay.save(replay, state, tmp_path / "r")
    other = Replay(per.sampler(), capacity=capacity, batch_size=2, num_envs=num_envs)
    found = jaxreplay.load_rows(other, path, example, jax.random.key(0))
    count = int(found.ring.steps_added)
    each = min(rows, 12, capacity // 2)
    assert count == 2 * each // num_envs
    here = jax.tree.map(np.asarray, ring.contents(found.ring))
    here = {name: x.reshape(-1, num_envs)[:count] for name, x in here.items()}
    told = list(zip(here["lane"].T.ravel(), here["time"].T.ravel(), strict=True))
    expected = [(lane, time) for lane in range(2) for time in range(rows - each, rows)]
    assert told == expected[len(expected) - count * num_envs :]
    for lane in range(num_envs if "last" in names else 0):
        own = {name: x[:, lane] for name, x in here.items()}
        follows = (np.diff(own["lane"]) == 0) & (np.diff(own["time"]) == 1)
        assert (own["last"][:-1] | follows).all() and (count == 0 or own["last"][-1])
        if "first" in names:
            np.testing.assert_array_equal(own["first"][1:], own["last"][:-1])
    leaves = sum_tree.leaves(jax.device_get(found.sampler.tree))
    assert (leaves[: count * num_envs] == 1).all() and not leaves[count * num_envs :].any()


def test_sequences_of_loaded_rows_do_not_cross_environments(tmp_path):
    names = ("lane", "time", "last")
    replay, state, example = marked(names, 7)
    path = jaxreplay.save(replay, state, tmp_path / "r")
    config = sequences.SequencesConfig(length=4, period=1, prioritised=False)
    other = Replay(sequences.sampler(config), capacity=24, batch_size=24)
    state = jaxreplay.load_rows(other, path, example, jax.random.key(0))
    batch = jax.jit(other.sample)(state, jax.random.key(1))
    lane, mask = np.asarray(batch.transition["lane"]), np.asarray(batch.aux.mask)
    assert mask.any() and (lane == lane[:, :1])[mask].all() and (lane != lane[:, :1]).any()


def test_load_rows_numbers_actions_from_0_and_refuses_others(tmp_path):
    replay = Replay(uniform.sampler(), capacity=8, batch_size=2)
    example = {"action": jnp.zeros((), jnp.int8)}
    state = replay.init(jax.random.key(0), example)
    state = replay.add_rollout(state, {"action": jnp.int8([[1], [2], [2], [1], [2]])})
    path = jaxreplay.save(replay, state, tmp_path / "file")
    load = functools.partial(jaxreplay.load_rows, replay, path, example, jax.random.key(0))
    for valid, expected in ((None, [1, 2, 2, 1, 2]), (range(3), [1, 2, 2, 1, 2]),
                            (range(1, 3), [0, 1, 1, 0, 1])):  # fmt: skip
        found = ring.contents(load(actions=valid).ring)["action"][:5]
        np.testing.assert_array_equal(found, np.int8(expected))
    with refused(path, "[0, 1]", "3", "5", "1", "2"):
        load(actions=range(2))


def test_load_rows_refuses_rows_that_cannot_be_restored(tmp_path):
    row = {"obs": np.zeros(3), "next_obs": np.zeros(3), "first": np.bool_(0)}
    sizes = {"capacity": 32, "batch_size": 4}
    plain, once = (
        Replay(uniform.sampler(), **sizes, storage=storage)
        for storage in (Transitions(), SharedObservations())
    )
    told = Replay(per.sampler(per.PERConfig(initial="td")), **sizes)
    key = jax.random.key(0)
    paths = [
        jaxreplay.save(replay, replay.init(key, row), tmp_path / name)
        for replay, name in ((plain, "plain"), (once, "once"))
    ]
    for replay, path, parts in (
        (plain, paths[1], (paths[1], "num_envs")),
        (once, paths[0], ("storage",)),
        (told, paths[0], ("td_error",)),
        (plain, tmp_path / "none", (tmp_path / "none", "jaxreplay.save")),
    ):
        with refused(*parts):
            jaxreplay.load_rows(replay, path, row, key)
    with refused("obs", "float32[3]", "float32[2]"):
        jaxreplay.load_rows(plain, paths[0], row | {"obs": np.zeros(2)}, key)


# Saved before arrays were renamed and Replay became a class; the list is the next draw.
OLD = {
    "per": (per.sampler(), Transitions(), [2, 5]),
    "frames": (per.sampler(), Frames(stack=2), [2, 5]),
}


@pytest.mark.parametrize("name", OLD)
def test_replays_saved_by_version_0_1_are_loaded(name):
    sampler, storage, drawn = OLD[name]
    replay = Replay(sampler, capacity=8, batch_size=2, num_envs=2, storage=storage)
    example, path = testing.EXAMPLE, Path(__file__).parent / "saved" / f"{name}.safetensors"
    if name == "frames":
        example = example._replace(obs=jnp.zeros((2, 2)), next_obs=jnp.zeros((2, 2)))
    state = jaxreplay.load(replay, path, example)
    batch = jax.jit(replay.sample)(state, jax.random.key(2))
    assert batch.indices.tolist() == drawn
    assert batch.transition.reward.tolist() == drawn  # rewards number the transitions
    if name == "per":
        fresh = jaxreplay.load_rows(replay, path, example, jax.random.key(0))
        rewards = ring.contents(fresh.ring).reward
        np.testing.assert_array_equal(rewards, ring.contents(state.ring).reward)
