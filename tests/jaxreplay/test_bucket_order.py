"""Bucket order: buckets worked by hand, ranks compared with a sort, counts after any updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay.methods.parts import bucket_order
from jaxreplay.methods.parts.bucket_order import BUCKETS
from tests.refusals import refused

_set, _find = jax.jit(bucket_order.set), jax.jit(bucket_order.find)
_values = jax.jit(bucket_order.values)


def bucket_of(values):
    return np.asarray(bucket_order.bucket_of(jnp.asarray(values, jnp.float32)))


def test_bucket_boundaries_by_hand():
    # Between 2^-15 and 2^13, an octave has eight buckets of equal width: 1 to 1.125 is the first.
    assert bucket_of(1.0) - bucket_of(1.125) == 1
    assert bucket_of(1.1249) == bucket_of(1.0)
    assert bucket_of(1.0) - bucket_of(2.0) == 8
    # At 2^13 and above, and below 2^-15, a bucket spans sixteen octaves.
    assert bucket_of(8192.0) == bucket_of(8192.0 * 65535) == bucket_of(8192.0 * 65536) + 1
    assert bucket_of(2.0**-16) == bucket_of(2.0**-31) == bucket_of(2.0**-15) + 1
    assert bucket_of(2.0**-32) == bucket_of(2.0**-31) + 1
    assert bucket_of(0.0) == bucket_of(-0.0) == BUCKETS - 1
    assert bucket_of(np.finfo(np.float32).max) == 0


def test_buckets_are_ordered_and_narrow():
    rng = np.random.default_rng(0)
    values = np.sort(np.float32(2.0) ** rng.uniform(-140, 127, 20_000).astype(np.float32))
    buckets = bucket_of(values)
    assert (np.diff(buckets) <= 0).all() and buckets.min() >= 0 and buckets.max() < BUCKETS
    floors = np.asarray(bucket_order.floor_of(jnp.asarray(buckets)))
    ceilings = np.asarray(bucket_order.floor_of(jnp.asarray(buckets - 1)))
    assert (floors <= values).all() and (values < ceilings).all()
    within = (values >= 2.0**-15) & (values < 2.0**13)
    assert (ceilings[within] / floors[within]).max() <= 1.125
    assert bucket_order.floor_of(jnp.asarray(-1)) == np.inf


def filled(values, capacity):
    """An order of `capacity` slots in which every third slot has no value."""
    slots = np.flatnonzero(np.arange(capacity) % 3 < 2).astype(np.int32)
    return _set(bucket_order.init(capacity), slots, np.float32(values[slots])), slots


@pytest.mark.parametrize("capacity", [1, 5000, 70_001])
def test_ranks_equal_those_of_a_sort(capacity):
    rng = np.random.default_rng(capacity)
    values = np.abs(rng.standard_t(2, capacity)).astype(np.float32)
    values[rng.random(capacity) < 0.1] = 0.0
    order, slots = filled(values, capacity)
    bucket_order.check_valid(order)
    buckets = bucket_of(values[slots])
    ranks = np.arange(len(slots), dtype=np.int32)
    for turn in (0, 2**31, 4_000_000_000):
        found, ties = _find(order, ranks, np.uint32(turn))
        assert sorted(np.asarray(found).tolist()) == slots.tolist()  # one slot per rank
        np.testing.assert_array_equal(bucket_of(values[np.asarray(found)]), np.sort(buckets))
        np.testing.assert_array_equal(
            ties.first, np.searchsorted(np.sort(buckets), np.sort(buckets))
        )
        last = np.searchsorted(np.sort(buckets), np.sort(buckets), side="right")
        np.testing.assert_array_equal(ties.last, last)


def test_ties_are_drawn_equally_often():
    order = _set(bucket_order.init(200), np.arange(0, 200, 2, dtype=np.int32), np.ones(100))
    turns = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    found = jax.jit(jax.vmap(lambda turn: bucket_order.find(order, jnp.asarray([7]), turn)[0]))(
        turns
    )
    counts = np.bincount(np.asarray(found).ravel(), minlength=200)
    assert (counts[1::2] == 0).all()
    assert (np.abs(counts[::2] - 200) < 5 * np.sqrt(200)).all()


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.sampled_from([1, 20]))
def test_counts_equal_those_of_the_values_after_any_updates(seed, turns, count):
    rng = np.random.default_rng(seed)
    capacity = 150
    order, held = bucket_order.init(capacity), np.full(capacity, -1.0, np.float32)
    for _ in range(turns):
        # With few slots, many are duplicates.
        slots = rng.integers(-2, rng.choice([4, capacity + 2]), count).astype(np.int32)
        values = np.abs(rng.normal(size=count)) * 10.0 ** rng.integers(-9, 6)
        values = values.astype(np.float32)
        values[rng.random(count) < 0.1] = rng.choice(np.float32([np.nan, np.inf, -1.0, 0.0]))
        order = _set(order, slots, values)
        after = np.asarray(_values(order))
        valid = (slots >= 0) & (slots < capacity) & np.isfinite(values) & (values >= 0)
        touched = np.unique(slots[valid])
        for slot in touched:  # any of the values written to it
            assert after[slot] in values[valid & (slots == slot)]
        held[touched] = after[touched]
        np.testing.assert_array_equal(after, held)
    bucket_order.check_valid(order)


def test_quantiles_equal_those_of_the_values_rounded_down():
    values = np.abs(np.random.default_rng(3).normal(size=3000)).astype(np.float32)
    order, slots = filled(values, 3000)
    shares = np.float32([0.1, 0.5, 0.9])
    found = np.asarray(bucket_order.quantiles(order, shares))
    exact = np.quantile(values[slots], shares)
    assert (found <= exact * 1.01).all() and (found >= exact / 1.14).all()
    np.testing.assert_array_equal(bucket_order.quantiles(bucket_order.init(5), shares), 0.0)


def test_invalid_orders_and_capacities_are_refused():
    order, _ = filled(np.ones(100), 100)
    for place in (3, bucket_order._levels(order.capacity).size - 1):
        with refused(place, "1", "0"):
            counts = order.counts.at[divmod(place, 128)].add(1)
            bucket_order.check_valid(order.replace(counts=counts))
    with refused("buckets", "7", "1"):
        bucket_order.check_valid(order.replace(buckets=order.buckets.at[0, 7].set(1)))
    with refused("2", "nan"):
        bucket_order.check_valid(order.replace(values=order.values.at[0, 2].set(jnp.nan)))
    for capacity in (0, 2**27 + 1):
        with refused("capacity", capacity, "134,217,728"):
            bucket_order.init(capacity)


def test_find_returns_the_same_slots_with_x64():
    order, slots = filled(np.abs(np.random.default_rng(1).normal(size=5000)), 5000)
    ranks, turn = np.arange(len(slots), dtype=np.int32), np.uint32(2**30)
    expected = np.asarray(_find(order, ranks, turn)[0])
    with jax.enable_x64(True):
        found = jax.jit(lambda ranks: bucket_order.find(order, ranks, turn))(ranks.astype(np.int64))
        np.testing.assert_array_equal(found[0], expected)
        assert found[0].dtype == jnp.int32


def test_find_in_an_empty_order_returns_slot_0():
    found, ties = _find(bucket_order.init(5000), np.arange(5, dtype=np.int32), np.uint32(7))
    np.testing.assert_array_equal(found, 0)
    np.testing.assert_array_equal(ties.first, ties.last)
