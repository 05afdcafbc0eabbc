"""Rows of any type are stored and read unchanged, and methods find their fields in them."""

import collections
import dataclasses
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxreplay import Frames, Replay, Requirements, Transition, ring, testing
from jaxreplay.methods import METHODS, ners, pser, uniform
from jaxreplay.types import get_field, has_field, replace_fields
from tests.methods import short
from tests.refusals import refused

FIELDS = {k: v for k, v in testing.EXAMPLE._asdict().items() if k not in ("extras", "n_steps")}


class Pair(NamedTuple):
    """A row without episodes."""

    obs: Any
    action: Any


@struct.dataclass
class Step:
    """A row that is a dataclass, with a field `mood` of the user's own."""

    obs: Any
    reward: Any
    mood: Any


NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)
ROWS = {
    "dict": {"obs": NUMBERS, "reward": np.float32([1, 2]), "done": np.array([True, False])},
    "nested": {"obs": {"image": NUMBERS.astype(np.uint8), "speed": NUMBERS}, "tag": (NUMBERS,)},
    "NamedTuple": Pair(NUMBERS, np.int32([3, 4])),
    "dataclass": Step(NUMBERS, np.float32([1, 2]), np.int8([5, 6])),
    "array": NUMBERS,
    "tuple": (NUMBERS, np.int32([3, 4])),
    "Transition": Transition(obs=NUMBERS, action=np.int32([3, 4]), reward=np.float32([1, 2])),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_rings_return_rows_of_any_type_unchanged(row):
    held = ring.init(jax.tree.map(lambda x: x[0], row), 4, 2)
    held, slots = ring.add(held, row)
    back = ring.gather(held, slots)
    assert jax.tree.structure(back) == jax.tree.structure(row)
    for stored, found in zip(jax.tree.leaves(row), jax.tree.leaves(back), strict=True):
        assert stored.dtype == found.dtype
        np.testing.assert_array_equal(stored, found)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_replays_sample_rows_of_any_type(row):
    replay = Replay(uniform.sampler(), capacity=4, batch_size=3, num_envs=2)
    example = jax.tree.map(lambda x: x[0], row)

    def cycle(key):
        state = replay.add(replay.init(key, example), row)
        return replay.sample(state, key).transition

    batch = jax.eval_shape(cycle, jax.random.key(0))
    assert jax.tree.structure(batch) == jax.tree.structure(row)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(batch)} == {3}


def in_order(example):
    """A mapping whose leaves have the order of those of a Transition (dict leaves are sorted)."""
    return collections.OrderedDict(example)


@pytest.mark.parametrize(
    "name", ["pser", "ere", "ero", "ners", "refer", "her", "sequences", "reaper", "reverse", "sil"]
)
def test_methods_compile_equal_programs_for_mappings_and_transitions(name):
    method = short(name, 100)

    def program(example):
        case = testing.Case(method, example)
        state = jax.eval_shape(case.replay.init, jax.random.key(0), example)
        traced = jax.make_jaxpr(case.cycle)(state, 5)
        return re.sub("0x[0-9a-f]+", "", str(traced.jaxpr.pretty_print(source_info=False)))

    named = program(Transition(**FIELDS))
    mapped = program(in_order(FIELDS))
    assert "scatter" in mapped
    assert mapped == named


def test_methods_keep_shapes_and_types_with_rows_that_are_dicts():
    case = testing.Case(pser.method(), dict(FIELDS))
    testing.batches_have_the_promised_shapes(case)
    testing.states_keep_their_types(case)


READS = [
    pytest.param(name, option, field, id=f"{name}-{field}")
    for name, option, read in [
        ("pser", {}, ["first"]),
        ("ere", {}, ["last"]),
        ("ero", {}, ["reward"]),
        ("ners", {}, ["obs", "action", "reward", "next_obs"]),
        ("ners", {"features": ("td_error",), "time_feature": "episode"}, ["first"]),
        ("refer", {}, ["first", "last"]),
        ("her", {}, ["obs", "next_obs", "reward", "discount", "first"]),
        ("refer", {"returns": True}, ["first", "last", "reward", "discount"]),
    ]
    for field in read
]


def start(name, options, example):
    """Trace all functions that read rows: init, add, sample, update and observe."""
    method = METHODS[name].method(METHODS[name].config(**options).for_run(100))
    case = testing.Case(method, example)

    def cycle(key):
        state = case.replay.init(key, example)
        row = jax.tree.map(lambda x: jnp.broadcast_to(x, (testing.E, *x.shape)), example)
        wanted = method.requires.feedback_of_new
        state = case.replay.add(state, row, **dict.fromkeys(wanted, jnp.zeros(testing.E)))
        batch = case.replay.sample(state, key)
        state = case.replay.update(state, batch, **case.feedback_of(jnp.zeros(testing.BATCH)))
        return case.replay.observe_return(state, jnp.zeros(()), key)

    return jax.eval_shape(cycle, jax.random.key(0))


@pytest.mark.parametrize(("name", "options", "field"), READS)
@pytest.mark.parametrize("as_dict", [False, True], ids=["Transition", "dict"])
def test_init_refuses_rows_without_a_required_field(name, options, field, as_dict):
    example = {k: v for k, v in FIELDS.items() if k != field}
    example = example if as_dict else Transition(**example)
    with refused(field, type(example).__name__):
        start(name, options, example)


OPTIONS = {
    "windows": {"length": 4},
    "refer": {"returns": True},
    "ners": {"features": ("reward", "time")},
}
# Sequences read `first` or `last`; requirements cannot express an alternative.
OF_FIELDS = [name for name in METHODS if name not in ("sequences", "slices")]
READERS = [pytest.param(name, OPTIONS.get(name, {}), id=name) for name in OF_FIELDS]
BY_EPISODE = pytest.param("ners", OPTIONS["ners"] | {"time_feature": "episode"}, id="ners-episode")


@pytest.mark.parametrize(("name", "options"), [*READERS, BY_EPISODE])
def test_methods_read_only_declared_fields(name, options):
    method = METHODS[name].method(METHODS[name].config(**options).for_run(100))
    read = method.requires.transition_fields
    least = {k: v for k, v in FIELDS.items() if k in read} | {"mine": np.zeros(2, np.float32)}
    start(name, options, least)


def test_rows_of_another_type_than_the_example_are_refused():
    held = ring.init({"speed": np.float32(0), "angle": np.int32(0)}, 4)
    one = np.ones(1, np.float32)
    with refused("speed"):
        ring.add(held, {"angle": one.astype(np.int32)})
    swapped = collections.OrderedDict(speed=one, angle=one.astype(np.int32))
    with refused("OrderedDict"):
        ring.add(held, swapped)
    with refused("angle"):
        ring.add(held, one)


def test_fields_are_found_and_replaced_by_name():
    row = Step(1, 2, 3)
    assert get_field(row, "mood") == 3 and get_field(row, "first") is None
    assert replace_fields(row, mood=4) == Step(1, 2, 4)
    assert replace_fields({"a": 1, "b": 2}, b=3) == {"a": 1, "b": 3}
    assert replace_fields(Pair(1, 2), obs=3) == Pair(3, 2)
    assert dataclasses.is_dataclass(row)
    assert not has_field(np.zeros(3), "last") and not has_field(Transition(), "obs")
    with refused("ndarray"):
        replace_fields(np.zeros(3), last=1)


class Moody(uniform.Uniform):
    """A sampler that requires a field of the user's own."""

    @property
    def requires(self):
        return Requirements(transition_fields=frozenset({"mood"}))


def test_a_missing_user_defined_field_is_named():
    replay = Replay(Moody(), capacity=4, batch_size=2)
    jax.eval_shape(replay.init, jax.random.key(0), Step(NUMBERS, NUMBERS, NUMBERS))
    with refused("mood", "Pair"):
        replay.init(jax.random.key(0), Pair(NUMBERS, NUMBERS))


def test_ners_refuses_features_that_are_trees():
    replay = Replay(ners.sampler(), capacity=4, batch_size=2)
    example = FIELDS | {"obs": {"image": NUMBERS, "speed": NUMBERS}}
    with refused("ners", "obs"):
        replay.init(jax.random.key(0), example)


def test_frames_require_the_field_first():
    stack = np.zeros((2, 2, 4), np.uint8)
    replay = Replay(uniform.sampler(), capacity=8, batch_size=2, storage=Frames(stack=4))
    with refused("first", "dict"):
        replay.init(jax.random.key(0), {"obs": stack, "next_obs": stack})


def test_end_episodes_requires_the_field_last():
    held = ring.init({"a": np.float32(0)}, 4)
    with refused("last"):
        ring.end_episodes(held)
    held = ring.init({"a": np.float32(0), "last": np.bool_(False)}, 4)
    ring.check_valid(ring.end_episodes(held))  # an empty ring has no row to mark
    held, _ = ring.add(held, {"a": np.ones(1, np.float32), "last": np.zeros(1, bool)})
    assert ring.gather(ring.end_episodes(held), jnp.zeros(1, jnp.int32))["last"][0]


def test_prng_keys_in_rows_are_refused():
    with refused("key", "key<fry>"):
        ring.init({"key": jax.random.key(0)}, 4)


class Unregistered:
    """A class that is not registered as a pytree."""


REGISTER = "jax.tree_util.register_dataclass"


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({"obs": np.zeros(2), "who": Unregistered()}, ("who", "Unregistered", REGISTER)),
        ({"obs": "up"}, ("obs", "str")),
        (Unregistered(), ("Unregistered", REGISTER)),
        ({}, ()),
        (Transition(), ()),
    ],
)
def test_rows_that_are_not_trees_of_arrays_are_refused(row, parts):
    with refused(*parts):
        ring.init(row, 4)
