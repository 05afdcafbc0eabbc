"""Rows of any type: what is stored comes back as it was, and methods find their fields in it."""

import collections
import dataclasses
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
    """A row that is a dataclass, with a field of its own."""

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
def test_a_row_of_any_type_comes_back_as_it_was(row):
    held = ring.init(jax.tree.map(lambda x: x[0], row), 4, 2)
    held, slots = ring.add(held, row)
    back = ring.gather(held, slots)
    assert jax.tree.structure(back) == jax.tree.structure(row)
    for stored, found in zip(jax.tree.leaves(row), jax.tree.leaves(back), strict=True):
        assert stored.dtype == found.dtype
        np.testing.assert_array_equal(stored, found)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_replay_takes_a_row_of_any_type(row):
    replay = Replay(uniform.sampler(), capacity=4, batch_size=3, num_envs=2)
    example = jax.tree.map(lambda x: x[0], row)

    def cycle(key):
        state = replay.add(replay.init(key, example), row)
        return replay.sample(state, key).transition

    batch = jax.eval_shape(cycle, jax.random.key(0))
    assert jax.tree.structure(batch) == jax.tree.structure(row)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(batch)} == {3}


def in_order(example):
    """A mapping whose leaves come in the order of a Transition's (a dict's are sorted)."""
    return collections.OrderedDict(example)


@pytest.mark.parametrize("name", METHODS)
def test_methods_run_the_same_program_on_a_mapping_as_on_a_transition(name):
    method = short(name, 100)

    def program(example):
        case = testing.Case(method, example)
        state = jax.eval_shape(case.replay.init, jax.random.key(0), example)
        traced = jax.make_jaxpr(case.cycle)(state, 5)
        return str(traced.jaxpr.pretty_print(source_info=False))

    named = program(Transition(**FIELDS))
    mapped = program(in_order(FIELDS))
    assert "scatter" in mapped
    assert mapped == named


def test_laws_hold_for_rows_that_are_dicts():
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
    """Everything that looks at rows: init, add, sample, update, of shapes alone."""
    method = METHODS[name].method(METHODS[name].config(**options).for_run(100))
    case = testing.Case(method, example)

    def cycle(key):
        state = case.replay.init(key, example)
        row = jax.tree.map(lambda x: jnp.broadcast_to(x, (testing.E, *x.shape)), example)
        wanted = method.requires.feedback_of_new
        state = case.replay.add(state, row, **dict.fromkeys(wanted, jnp.zeros(testing.E)))
        batch = case.replay.sample(state, key)
        state = case.replay.update(state, batch, **case.feedback_of(jnp.zeros(testing.BATCH)))
        return case.replay.observe(state, jnp.zeros(()), key)

    return jax.eval_shape(cycle, jax.random.key(0))


@pytest.mark.parametrize(("name", "options", "field"), READS)
@pytest.mark.parametrize("as_dict", [False, True], ids=["Transition", "dict"])
def test_a_field_that_a_method_reads_is_missed_when_it_starts(name, options, field, as_dict):
    example = {k: v for k, v in FIELDS.items() if k != field}
    example = example if as_dict else Transition(**example)
    with refused(field, type(example).__name__):
        start(name, options, example)


OPTIONS = {
    "windows": {"length": 4},
    "refer": {"returns": True},
    "ners": {"features": ("reward", "time")},
}
# Sequences read either `first` or `last`, which no requirement can express.
OF_FIELDS = [name for name in METHODS if name not in ("sequences", "slices")]
READERS = [pytest.param(name, OPTIONS.get(name, {}), id=name) for name in OF_FIELDS]
BY_EPISODE = pytest.param("ners", OPTIONS["ners"] | {"time_feature": "episode"}, id="ners-episode")


@pytest.mark.parametrize(("name", "options"), [*READERS, BY_EPISODE])
def test_methods_read_no_field_that_they_do_not_declare(name, options):
    method = METHODS[name].method(METHODS[name].config(**options).for_run(100))
    read = method.requires.transition_fields
    least = {k: v for k, v in FIELDS.items() if k in read} | {"mine": np.zeros(2, np.float32)}
    start(name, options, least)


def test_a_row_of_another_type_than_the_example_is_refused():
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
    """A sampler that reads a field of its own."""

    @property
    def requires(self):
        return Requirements(transition_fields=frozenset({"mood"}))


def test_a_field_of_ones_own_is_missed_by_its_name():
    replay = Replay(Moody(), capacity=4, batch_size=2)
    jax.eval_shape(replay.init, jax.random.key(0), Step(NUMBERS, NUMBERS, NUMBERS))
    with refused("mood", "Pair"):
        replay.init(jax.random.key(0), Pair(NUMBERS, NUMBERS))


def test_scores_are_of_single_arrays():
    replay = Replay(ners.sampler(), capacity=4, batch_size=2)
    example = FIELDS | {"obs": {"image": NUMBERS, "speed": NUMBERS}}
    with refused("ners", "obs"):
        replay.init(jax.random.key(0), example)


def test_frames_need_to_know_where_episodes_begin():
    stack = np.zeros((2, 2, 4), np.uint8)
    replay = Replay(uniform.sampler(), capacity=8, batch_size=2, storage=Frames(stack=4))
    with refused("first", "dict"):
        replay.init(jax.random.key(0), {"obs": stack, "next_obs": stack})


def test_episodes_end_in_rows_that_tell_them_apart():
    held = ring.init({"a": np.float32(0)}, 4)
    with refused("last"):
        ring.end_episodes(held)
    held = ring.init({"a": np.float32(0), "last": np.bool_(False)}, 4)
    ring.check_valid(ring.end_episodes(held))  # there is no row yet to be marked
    held, _ = ring.add(held, {"a": np.ones(1, np.float32), "last": np.zeros(1, bool)})
    assert ring.gather(ring.end_episodes(held), jnp.zeros(1, jnp.int32))["last"][0]


def test_what_is_no_number_is_refused_by_name():
    with refused("key", "key<fry>"):
        ring.init({"key": jax.random.key(0)}, 4)


class Unregistered:
    """A class that JAX knows nothing of."""


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
def test_what_is_no_row_of_arrays_is_refused(row, parts):
    with refused(*parts):
        ring.init(row, 4)
