"""Ranks of slots by value, exact up to ties, and up to date after every write.

Sorting a million values takes a thousand times as long as drawing a batch. Therefore values are
sorted into buckets with a relative width of about 10 %, and the values of a bucket are ties. The
number of values that rank before a bucket is a sum of counts. Slots are grouped in blocks, and
blocks in larger blocks: the order counts the members of every bucket in every block, and a walk
from the largest blocks down finds the slot of a rank. A write moves one slot between the counts of
two buckets. Counts are integers, so that nothing drifts: an order after any history equals an
order that is built from its values.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxreplay._internal import buffer, numerics
from jaxreplay._internal.arguments import as_int32
from jaxreplay._internal.buffer import Buffer
from jaxreplay._internal.tracing import with_default_promotion
from jaxreplay.types import Array

# Buckets are ranges of the bits of a float32, which are in the order of the numbers: eight per
# octave from 2^-15 to 2^13, 7 to 12.5 % wide, and one per sixteen octaves beyond. A bucket number
# fits into a byte: reading memory is most of the cost of the order.
_MANTISSA = 23  # bits
_FINE = 3  # bits that matter, between 2^-15 and 2^13
_LOW, _HIGH = 127 - 15, 127 + 13  # stored exponents
_COARSE = 4  # bits of an exponent that do not matter, beyond
_BELOW = _LOW >> _COARSE
_WITHIN = (_HIGH - _LOW) << _FINE
_ABOVE = -(-(255 - _HIGH) >> _COARSE)
BUCKETS = _BELOW + _WITHIN + _ABOVE
_NONE = 255  # the bucket of a slot without a value
_MOST = 2**27  # slots: see `_bucket`

# In the lowest level a word has four counts of 8 bits, at most 64 each. The counts of a row are
# those of the blocks of a larger block.
_WORDS = 16  # of 32 bits in a row, a cache line
_PACKED = 4
_BLOCK = _WORDS * _PACKED  # slots of a smallest block, and smallest blocks of a row
_TOTALS = -(-BUCKETS // _WORDS)  # rows of the buckets' totals


class BucketOrder(struct.PyTreeNode):
    """Values of `capacity` slots, and counts of the members of K buckets."""

    values: Buffer  # [S] float32, S the capacity in whole blocks; -1 without a value
    buckets: Buffer  # [S / 4] uint32, of four slots a word
    counts: Buffer  # [R * 16] uint32, members of each bucket by block and in total (`_levels`)
    capacity: int = struct.field(pytree_node=False)


class Ties(NamedTuple):
    """The ranks, counted from 0, that a value shares with its ties."""

    first: Array  # [...] int32
    last: Array  # [...] int32, the last rank plus 1


def init(capacity: int) -> BucketOrder:
    """Return an order without values.

    Raises:
      ValueError: `capacity` is below 1 or beyond 2^27.
    """
    if not 1 <= capacity <= _MOST:
        raise ValueError(f"capacity is {capacity}: it must lie in [1, {_MOST:,}]")
    size = -(-capacity // _BLOCK) * _BLOCK
    return BucketOrder(
        values=jnp.full(size, -1.0, jnp.float32),
        buckets=jnp.full(size // _PACKED, 2**32 - 1, jnp.uint32),
        counts=jnp.zeros(_levels(capacity).size, jnp.uint32),
        capacity=capacity,
    )


def set(order: BucketOrder, slots: Array, values: Array) -> BucketOrder:
    """Return the order with new values of slots.

    Slots outside of `[0, capacity)` and values that are NaN, infinite or negative are skipped. Of
    equal slots, one of their values is kept.

    Args:
      order: the order.
      slots: `[B]` int32, at most 2^24 of them.
      values: `[B]` float32, not negative.
    """
    slots = as_int32("slots", slots, order.capacity)
    values = jax.lax.stop_gradient(jnp.asarray(values))  # orders carry no tangents
    valid = (slots >= 0) & (slots < order.capacity) & jnp.isfinite(values) & (values >= 0)
    beyond = order.values.size
    near = jnp.where(valid, slots, 0)
    before = buffer.once(buffer.read_few(order.values, near))
    # A selection with a constant result makes the write depend on the read: see `buffer`.
    held, new = order.values, jnp.where(jnp.isnan(before), before, values)
    if len(slots) > 1:  # Of equal slots, the one that is found after writing their numbers counts.
        number = jnp.arange(len(slots), dtype=jnp.float32)
        number = jnp.where(jnp.isnan(before), before, number)
        held, new = buffer.write(held, jnp.where(valid, slots, beyond), number), values
        valid &= buffer.once(buffer.read_few(held, near)) == number
    slots = buffer.single_threaded(jnp.where(valid, slots, beyond), near)
    held = buffer.write(held, slots, new)
    gone = jnp.where(valid & (before >= 0), bucket_of(before), _NONE)
    come = jnp.where(valid, bucket_of(values), _NONE)
    return _move(order.replace(values=held), slots, gone, come)


def values(order: BucketOrder) -> Array:
    """Return the value of every slot, `[C]` float32, -1 without a value."""
    return order.values[: order.capacity]


def bucket_of(values: Array) -> Array:
    """Return the buckets of values that are not negative, int32; 0 is in the last bucket."""
    bits = jnp.maximum(jax.lax.bitcast_convert_type(values, jnp.int32), 0)  # -0.0 is 0, too
    octave, fine = bits >> _MANTISSA, bits >> (_MANTISSA - _FINE)
    low, high = _LOW << _FINE, _HIGH << _FINE
    beyond = (jnp.minimum(octave, _LOW) >> _COARSE) + (jnp.maximum(octave - _HIGH, 0) >> _COARSE)
    return BUCKETS - 1 - (beyond + jnp.clip(fine, low, high) - low)


def floor_of(bucket: Array) -> Array:
    """Return the smallest value of a bucket, float32; infinity for bucket -1."""
    return jax.lax.bitcast_convert_type(_floor_bits(bucket), jnp.float32)


def ties(order: BucketOrder) -> Ties:
    """Return the ranks of every bucket's members, `[K]`."""
    totals = _totals(order)[:BUCKETS]
    last = jnp.cumsum(totals, dtype=jnp.int32)
    return Ties(last - totals, last)


@with_default_promotion
def quantiles(order: BucketOrder, shares: Array) -> Array:
    """Return quantiles `[n]` float32 of the values, at `shares` `[n]`.

    They are rounded down to the smallest value of a bucket, and 0 without values.
    """
    ends = ties(order).last
    rank = jnp.floor((1.0 - shares) * ends[-1]).astype(jnp.int32)
    rank = jnp.clip(rank, 0, jnp.maximum(ends[-1] - 1, 0))
    bucket = jnp.minimum(jnp.searchsorted(ends, rank, side="right"), BUCKETS - 1)
    return floor_of(bucket.astype(jnp.int32))


def find(order: BucketOrder, ranks: Array, turn: Array) -> tuple[Array, Ties]:
    """Return the slots at ranks.

    Args:
      order: the order, with more values than the largest rank.
      ranks: `[B]` int32, counted from 0.
      turn: `[]` or `[B]` uint32, the rotation of ties among their ranks. With random bits, all ties
        are equally likely at each of their ranks. One turn returns different slots for different
        ranks; independent draws need a turn each.

    Returns:
      Slots `[B]` int32, and their `Ties` `[B]`.
    """
    ranks = ranks.astype(jnp.int32)
    bucket, place, count = _bucket(order, ranks)
    first = ranks - place
    number = place + numerics.scaled(turn, count.astype(jnp.uint32)).astype(jnp.int32)
    number = jnp.where(number < count, number, number - count)
    number = jnp.minimum(number, count - 1)  # of no values: -1, which leads to slot 0
    slot, left = _member(order, bucket, number)
    # No effect, as nothing ties there: `buffer.single_threaded` needs a second use.
    none = left < 0
    return slot, Ties(jnp.where(none, 0, first), jnp.where(none, 0, first + count))


def check_valid(order: BucketOrder) -> None:
    """Check the invariants of a concrete order.

    Raises:
      ValueError: a value is NaN, infinite or negative, a slot beyond the capacity has a value, or a
        count differs from that of the values.
    """
    held = np.asarray(order.values)
    bad = ~np.isfinite(held) | ((held < 0) & (held != -1))
    bad[order.capacity :] |= held[order.capacity :] != -1
    if bad.any():
        raise ValueError(f"the value of slot {bad.argmax()} is {held[bad.argmax()]}")
    slots = np.flatnonzero(held >= 0)
    bucket = np.asarray(bucket_of(jnp.asarray(held[slots])))
    counts = np.zeros(order.counts.size, np.uint32)
    buckets = np.full((held.size // _PACKED, _PACKED), _NONE, np.uint32)
    buckets.ravel()[slots] = bucket
    buckets = (buckets << 8 * np.arange(_PACKED, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    for places, ones in _places(order.capacity, bucket, slots):
        np.add.at(counts, places, ones.astype(np.uint32))
    for name, found, right in (
        ("buckets of word", order.buckets, buckets),
        ("count", order.counts, counts),
    ):
        if (np.asarray(found) != right).any():
            at = (np.asarray(found) != right).argmax()
            raise ValueError(f"{name} {at} is {found[at]}, the values give {right[at]}")


class _Levels(NamedTuple):
    """Levels of blocks, from the smallest blocks to a level with one row per bucket.

    For each bucket, a level has one word per row of the level below. A word of the lowest level has
    four counts, of the smallest blocks. The totals of the buckets follow, largest values first.
    """

    rows: tuple[int, ...]  # of a bucket
    starts: tuple[int, ...]  # the first word of each level, and of the totals
    size: int  # words in all


@functools.cache
def _levels(capacity: int) -> _Levels:
    rows = [-(-capacity // _BLOCK**2)]
    while rows[-1] > 1:
        rows.append(-(-rows[-1] // _WORDS))
    words = [BUCKETS * count * _WORDS for count in rows] + [_TOTALS * _WORDS]
    *starts, size = itertools.accumulate(words, initial=0)
    return _Levels(tuple(rows), tuple(starts), size)


def _places(capacity: int, bucket: Any, slots: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the words in `counts` for slots of buckets, and the increment of one slot.

    For each level and then for the totals; arrays `[...]` are of NumPy or JAX.
    """
    levels = _levels(capacity)
    block = slots // _BLOCK
    one = 1 << block % _PACKED * 8
    block = block // _PACKED
    *starts, totals = levels.starts
    for rows, start in zip(levels.rows, starts, strict=True):
        yield start + bucket * (rows * _WORDS) + block, one
        block, one = block // _WORDS, one * 0 + 1
    yield totals + bucket, one


def _move(order: BucketOrder, slots: Array, gone: Array, come: Array) -> BucketOrder:
    """Return the order with slots `[B]`, each at most once, moved between buckets or `_NONE`."""
    change = (come - gone) << slots % _PACKED * 8  # in its byte; the other bytes get 0
    buckets = buffer.add(order.buckets, slots // _PACKED, change.astype(jnp.uint32))
    places, changes = [], []
    gone, come = buffer.once((gone, come))
    for sign, bucket in ((-1, gone), (1, come)):
        for place, one in _places(order.capacity, bucket, slots):
            places.append(jnp.where(bucket < BUCKETS, place, order.counts.size))
            changes.append(sign * one)
    changes = jnp.concatenate(changes).astype(jnp.uint32)
    counts = buffer.add(order.counts, jnp.concatenate(places), changes)
    return order.replace(buckets=buckets, counts=counts)


def _totals(order: BucketOrder) -> Array:
    """Return the number of members of each bucket, int32, padded to rows of `_WORDS`."""
    return order.counts[_levels(order.capacity).starts[-1] :].astype(jnp.int32)


def _bucket(order: BucketOrder, ranks: Array) -> tuple[Array, Array, Array]:
    """Return the bucket of each rank, the number of the member, and the bucket's members, `[B]`."""
    totals = buffer.once(_totals(order))
    rows = totals.reshape(_TOTALS, _WORDS).sum(axis=1, dtype=jnp.int32)
    row, number = buffer.once(_pick(list(rows), ranks))
    row = jnp.minimum(row, _TOTALS - 1)
    child, number = _pick(_words(totals, row * _WORDS, _WORDS), number)
    child, number = buffer.single_threaded_pair(child, number, 28, ranks)  # of at most `_MOST` - 1
    bucket = buffer.once(jnp.minimum(row * _WORDS + child, BUCKETS - 1))
    return bucket, number, buffer.read(totals, bucket)


def _member(order: BucketOrder, bucket: Array, number: Array) -> tuple[Array, Array]:
    """Return the slots `[B]` of members of buckets by number `[B]`, and 0, or -1 without one."""
    levels = _levels(order.capacity)
    block = jnp.zeros_like(bucket)

    def row(level: int, block: Array) -> Array:
        return levels.starts[level] + (bucket * levels.rows[level] + block) * _WORDS

    for level in range(len(levels.rows) - 1, 0, -1):
        children = min(levels.rows[level - 1], _WORDS)
        words = _words(order.counts, row(level, block), children)
        child, number = _pick([word.astype(jnp.int32) for word in words], number)
        # 28 bits represent the number and its sign: a child has at most 2^24 slots.
        child, number = buffer.single_threaded_pair(child, number, 28, bucket)
        block = block * _WORDS + child
    child, number = _pick_packed(_words(order.counts, row(0, block), _WORDS), number)
    child, number = buffer.single_threaded_pair(child, number, 26, bucket)
    block = block * _BLOCK + child
    flags = [_flags(word, bucket) for word in _words(order.buckets, block * _WORDS, _WORDS)]
    child, number = _pick_packed(flags, number)
    child, number = buffer.single_threaded_pair(child, number, 26, bucket)
    return block * _BLOCK + child, number


def _words(array: Buffer, first: Array, count: int) -> list[Array]:
    """Return `count` words from `first` `[B]` on, as an array `[B]` for each word.

    An array of rows would be written and read again, and take three times as long.
    """
    at = buffer.once(first)
    return [buffer.read(array, at + number) for number in range(count)]


def _flags(word: Array, bucket: Array) -> Array:
    """Return 1 in the bytes of words `[B]` that equal a bucket `[B]`, else 0."""
    differs = word ^ bucket.astype(jnp.uint32) * jnp.uint32(0x01010101)
    low = jnp.uint32(0x7F7F7F7F)  # added to seven bits, it carries into the eighth unless all are 0
    return ~((differs & low) + low | differs | low) >> 7


def _floor_bits(bucket: Array) -> Array:
    level = BUCKETS - 1 - bucket
    fine = (level - _BELOW + (_LOW << _FINE)) << (_MANTISSA - _FINE)
    above = ((level - _BELOW - _WITHIN) << _COARSE) + _HIGH
    octave = jnp.where(level < _BELOW, level << _COARSE, jnp.minimum(above, 255))
    within = (level >= _BELOW) & (level < _BELOW + _WITHIN)
    return jnp.where(within, fine, octave << _MANTISSA)


def _pick(counts: Sequence[Array], number: Array) -> tuple[Array, Array]:
    """Return where the running sum of counts `[B]` passes `number` `[B]`, and the rest."""
    passed = chosen = before = jnp.zeros_like(number)
    for count in counts:
        passed = passed + count
        beyond = passed <= number
        chosen = chosen + beyond.astype(jnp.int32)
        before = jnp.where(beyond, passed, before)
    return chosen, number - before


def _pick_packed(words: Sequence[Array], number: Array) -> tuple[Array, Array]:
    """Do as `_pick`, with four counts in each word `[B]`."""
    passed = chosen = before = jnp.zeros_like(number)
    here = words[0]
    for word, following in zip(words, [*words[1:], words[-1]], strict=True):
        pairs = (word & 0x00FF00FF) + (word >> 8 & 0x00FF00FF)
        passed = passed + ((pairs & 0xFFFF) + (pairs >> 16)).astype(jnp.int32)
        beyond = passed <= number
        chosen = chosen + beyond.astype(jnp.int32)
        before = jnp.where(beyond, passed, before)
        here = jnp.where(beyond, following, here)
    counts = [(here >> 8 * lane & 0xFF).astype(jnp.int32) for lane in range(_PACKED)]
    lane, number = _pick(counts, number - before)
    return chosen * _PACKED + lane, number
