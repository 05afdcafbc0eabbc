"""Ranks of slots by value, exact up to ties and updated by every write.

Sorting a million values takes a thousand times as long as sampling a batch. Therefore values are
sorted into buckets with a relative width of about 10 %, and values in the same bucket are ties. The
number of values that rank before a bucket is the sum of the sizes of all buckets with larger
values. Slots are grouped into blocks, and blocks into larger blocks. The bucket order counts the
slots of every bucket in every block, and a descent from the largest to the smallest blocks locates
the slot of a rank. A write moves one slot between the counts of two buckets. Integer counts do not
drift: a bucket order after any writes equals one built from its current values.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxreplay import buffer, numerics
from jaxreplay._internal import wide_rows
from jaxreplay.buffer import Buffer
from jaxreplay.types import Array

# Buckets are ranges of float32 bit patterns, which sort like the numbers: eight buckets per octave
# from 2^-15 to 2^13, 7 to 12.5 % wide, and one per sixteen octaves outside that range. A bucket
# number fits into a byte to limit memory reads, which dominate the cost of the bucket order.
_MANTISSA = 23  # mantissa bits of a float32
_FINE = 3  # mantissa bits that select a bucket between 2^-15 and 2^13
_LOW, _HIGH = 127 - 15, 127 + 13  # biased exponents of 2^-15 and 2^13
_COARSE = 4  # low exponent bits that are ignored below 2^-15 and from 2^13
_BELOW = _LOW >> _COARSE
_WITHIN = (_HIGH - _LOW) << _FINE
_ABOVE = -(-(255 - _HIGH) >> _COARSE)
BUCKETS = _BELOW + _WITHIN + _ABOVE
_NONE = 255  # the bucket of a slot without a value
_MOST = 2**27  # maximum number of slots (see `_bucket`)

# A word that counts slots of the smallest blocks contains four 8-bit counts of at most 64. The
# counts in a row of words belong to the blocks of one larger block.
_WORDS = 16  # 32-bit words per row, which is one cache line
_PACKED = 4
_BLOCK = _WORDS * _PACKED  # slots per smallest block, and smallest blocks per row
_TOTALS = -(-BUCKETS // _WORDS)  # rows of bucket totals


class BucketOrder(struct.PyTreeNode):
    """Values of `capacity` slots, the bucket of each slot, and counts of slots per bucket.

    All arrays are in rows of 128 (`buffer.in_rows`). S is the capacity rounded up to whole blocks.
    """

    values: Buffer  # S float32, -1 if unset
    buckets: Buffer  # S / 4 uint32, the buckets of four slots per word
    counts: Buffer  # uint32, slots per bucket in each block and in total (see `_Levels`)
    capacity: int = struct.field(pytree_node=False)


class Ties(NamedTuple):
    """The range of zero-based ranks that tied values share."""

    first: Array  # [...] int32
    last: Array  # [...] int32, the last rank plus 1


def init(capacity: int) -> BucketOrder:
    """Return an empty bucket order.

    Raises:
      ValueError: If `capacity` is not in [1, 2^27].
    """
    if not 1 <= capacity <= _MOST:
        raise ValueError(f"capacity must be in [1, {_MOST:,}], got {capacity}")
    size = -(-capacity // _BLOCK) * _BLOCK
    return BucketOrder(
        values=buffer.in_rows(jnp.full(size, -1.0, jnp.float32)),
        buckets=buffer.in_rows(jnp.full(size // _PACKED, 2**32 - 1, jnp.uint32)),
        counts=buffer.in_rows(jnp.zeros(_levels(capacity).size, jnp.uint32)),
        capacity=capacity,
    )


def set(order: BucketOrder, slots: Array, values: Array) -> BucketOrder:
    """Return the bucket order with `values` `[B]` at `slots` `[B]` int32, with B at most 2^24.

    Slots outside of `[0, capacity)` and values that are NaN, infinite or negative are skipped. For
    duplicate slots, an arbitrary one of the values is stored.
    """
    values = jax.lax.stop_gradient(jnp.asarray(values))  # no gradient flows through the values
    valid = (slots >= 0) & (slots < order.capacity) & jnp.isfinite(values) & (values >= 0)
    beyond = order.values.size
    near = jnp.where(valid, slots, 0)
    before = buffer.once(buffer.read_elements(order.values, near))
    # A selection that is always `values` makes the write depend on the read (see `buffer`).
    held, new = order.values, jnp.where(jnp.isnan(before), before, values)
    if len(slots) > 1:  # Write the position in the batch; of duplicates, the one that remains wins.
        number = jnp.arange(len(slots), dtype=jnp.float32)
        number = jnp.where(jnp.isnan(before), before, number)
        held, new = buffer.write_elements(held, jnp.where(valid, slots, beyond), number), values
        valid &= buffer.once(buffer.read_elements(held, near)) == number
    slots = jnp.where(valid, slots, beyond)
    held = buffer.write_elements(held, slots, new)
    gone = jnp.where(valid & (before >= 0), bucket_of(before), _NONE)
    come = jnp.where(valid, bucket_of(values), _NONE)
    return _move(order.replace(values=held), slots, gone, come)


def values(order: BucketOrder) -> Array:
    """Return the value of every slot, `[C]` float32, or -1 for slots without a value."""
    return buffer.of_slots(order.values, order.capacity)


def bucket_of(values: Array) -> Array:
    """Return the int32 bucket numbers of non-negative values; the value 0 is in the last bucket."""
    bits = jnp.maximum(jax.lax.bitcast_convert_type(values, jnp.int32), 0)  # -0.0 is treated as 0
    octave, fine = bits >> _MANTISSA, bits >> (_MANTISSA - _FINE)
    low, high = _LOW << _FINE, _HIGH << _FINE
    beyond = (jnp.minimum(octave, _LOW) >> _COARSE) + (jnp.maximum(octave - _HIGH, 0) >> _COARSE)
    return BUCKETS - 1 - (beyond + jnp.clip(fine, low, high) - low)


def floor_of(bucket: Array) -> Array:
    """Return the smallest float32 in a bucket, or infinity for bucket number -1."""
    level = BUCKETS - 1 - bucket
    fine = (level - _BELOW + (_LOW << _FINE)) << (_MANTISSA - _FINE)
    above = ((level - _BELOW - _WITHIN) << _COARSE) + _HIGH
    octave = jnp.where(level < _BELOW, level << _COARSE, jnp.minimum(above, 255))
    within = (level >= _BELOW) & (level < _BELOW + _WITHIN)
    bits = jnp.where(within, fine, octave << _MANTISSA)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def ties(order: BucketOrder) -> Ties:
    """Return the range of ranks of each bucket's slots, `[BUCKETS]`."""
    totals = _totals(order)[:BUCKETS]
    last = jnp.cumsum(totals, dtype=jnp.int32)
    return Ties(last - totals, last)


def quantiles(order: BucketOrder, shares: Array) -> Array:
    """Return float32 quantiles `[n]` of the values at the fractions `shares` `[n]` in [0, 1].

    Quantiles are rounded down to the smallest value of a bucket, and are 0 without values.
    """
    ends = ties(order).last
    rank = jnp.floor((1.0 - shares) * ends[-1]).astype(jnp.int32)
    rank = jnp.clip(rank, 0, jnp.maximum(ends[-1] - 1, 0))
    bucket = jnp.minimum(jnp.searchsorted(ends, rank, side="right"), BUCKETS - 1)
    return floor_of(bucket.astype(jnp.int32))


def find(order: BucketOrder, ranks: Array, turn: Array) -> tuple[Array, Ties]:
    """Return the slots `[B]` int32 at zero-based ranks `[B]` int32, and their `Ties` `[B]`.

    The largest value has rank 0; all ranks must be below the number of values. `turn` `[]` or `[B]`
    uint32 rotates ties within their range of ranks, in units of 2^-32 of the range. With random
    bits, all ties are equally likely at each rank of the range. A single turn `[]` for all ranks
    yields distinct slots for distinct ranks. Independent samples require one turn per rank.
    """
    ranks = ranks.astype(jnp.int32)
    bucket, place, count = _bucket(order, ranks)
    first = ranks - place
    number = place + numerics.multiply_high(turn, count.astype(jnp.uint32)).astype(jnp.int32)
    number = jnp.where(number < count, number, number - count)
    number = jnp.minimum(number, count - 1)  # -1 if there are no values, which yields slot 0
    slot, left = _member(order, bucket, number)
    none = left < 0
    return slot, Ties(jnp.where(none, 0, first), jnp.where(none, 0, first + count))


def check_valid(order: BucketOrder) -> None:
    """Check the invariants of a bucket order that is not traced.

    Raises:
      ValueError: If a value is NaN, infinite or negative, a slot beyond the capacity has a value,
        or the buckets or counts do not match the values.
    """
    size = -(-order.capacity // _BLOCK) * _BLOCK
    held = np.ravel(order.values)[:size]
    bad = ~np.isfinite(held) | ((held < 0) & (held != -1))
    bad[order.capacity :] |= held[order.capacity :] != -1
    if bad.any():
        raise ValueError(f"slot {bad.argmax()} has the invalid value {held[bad.argmax()]}")
    slots = np.flatnonzero(held >= 0)
    bucket = np.asarray(bucket_of(jnp.asarray(held[slots])))
    counts = np.zeros(_levels(order.capacity).size, np.uint32)
    buckets = np.full((held.size // _PACKED, _PACKED), _NONE, np.uint32)
    buckets.ravel()[slots] = bucket
    buckets = (buckets << 8 * np.arange(_PACKED, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    for places, ones in _places(order.capacity, bucket, slots):
        np.add.at(counts, places, ones.astype(np.uint32))
    for name, right in {"buckets": buckets, "counts": counts}.items():
        stored = np.ravel(getattr(order, name))[: right.size]
        if (stored != right).any():
            at = (stored != right).argmax()
            raise ValueError(f"{name}[{at}] is {stored[at]}, expected {right[at]} from the values")


class _Levels(NamedTuple):
    """The arrangement of `BucketOrder.counts`: levels of blocks, from the smallest to the largest.

    For each bucket, a level has one word per row of the level below, and the highest level has one
    row. A word of the lowest level contains the counts of four of the smallest blocks. After all
    levels, one word per bucket contains the bucket's number of slots, for the largest values first.
    """

    rows: tuple[int, ...]  # rows per bucket in each level
    starts: tuple[int, ...]  # the first word of each level and of the totals
    size: int  # total number of words


@functools.cache
def _levels(capacity: int) -> _Levels:
    rows = [-(-capacity // _BLOCK**2)]
    while rows[-1] > 1:
        rows.append(-(-rows[-1] // _WORDS))
    words = [BUCKETS * count * _WORDS for count in rows] + [_TOTALS * _WORDS]
    *starts, size = itertools.accumulate(words, initial=0)
    return _Levels(tuple(rows), tuple(starts), size)


def _places(capacity: int, bucket: Any, slots: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the indices in `counts` of the words that count a slot, with the slot's increments.

    There is one pair per level and one for the bucket totals, as NumPy or JAX arrays `[...]`.
    """
    levels = _levels(capacity)
    block = slots // _BLOCK
    increment = 1 << block % _PACKED * 8
    block = block // _PACKED
    *starts, totals = levels.starts
    for rows, start in zip(levels.rows, starts, strict=True):
        yield start + bucket * (rows * _WORDS) + block, increment
        block, increment = block // _WORDS, increment * 0 + 1
    yield totals + bucket, increment


def _move(order: BucketOrder, slots: Array, gone: Array, come: Array) -> BucketOrder:
    """Move distinct slots `[B]` from buckets `gone` to buckets `come`; `_NONE` is no bucket."""
    change = (come - gone) << slots % _PACKED * 8  # in the slot's byte; 0 in the other bytes
    change = change.astype(jnp.uint32)
    buckets = buffer.write_elements(order.buckets, slots // _PACKED, change, "add")
    places, changes = [], []
    gone, come = buffer.once((gone, come))
    for sign, bucket in ((-1, gone), (1, come)):
        for place, increment in _places(order.capacity, bucket, slots):
            places.append(jnp.where(bucket < BUCKETS, place, order.counts.size))
            changes.append(sign * increment)
    changes = jnp.concatenate(changes).astype(jnp.uint32)
    counts = buffer.write_elements(order.counts, jnp.concatenate(places), changes, "add")
    return order.replace(buckets=buckets, counts=counts)


def _totals(order: BucketOrder) -> Array:
    """Return the int32 number of slots in each bucket, padded to whole rows of `_WORDS`."""
    levels = _levels(order.capacity)
    return wide_rows.part(order.counts, levels.starts[-1], _TOTALS * _WORDS).astype(jnp.int32)


def _bucket(order: BucketOrder, ranks: Array) -> tuple[Array, Array, Array]:
    """Return each rank's bucket, the rank's position in it, and the bucket's size, `[B]` each."""
    totals = buffer.once(_totals(order))
    rows = totals.reshape(_TOTALS, _WORDS).sum(axis=1, dtype=jnp.int32)
    row, number = buffer.once(_pick(list(rows), ranks))
    row = jnp.minimum(row, _TOTALS - 1)
    child, number = _pick(_words(totals[None], row * _WORDS, _WORDS), number)
    child, number = buffer.once((child, number))
    bucket = buffer.once(jnp.minimum(row * _WORDS + child, BUCKETS - 1))
    return bucket, number, buffer.read(totals, bucket)


def _member(order: BucketOrder, bucket: Array, number: Array) -> tuple[Array, Array]:
    """Return the slots `[B]` at positions `number` `[B]` of the buckets `bucket` `[B]`.

    Also return `[B]` int32: 0, or -1 if `number` is -1 because no slot has a value.
    """
    levels = _levels(order.capacity)
    block = jnp.zeros_like(bucket)

    def row(level: int, block: Array) -> Array:
        return levels.starts[level] + (bucket * levels.rows[level] + block) * _WORDS

    for level in range(len(levels.rows) - 1, 0, -1):
        children = min(levels.rows[level - 1], _WORDS)
        words = _words(order.counts, row(level, block), children)
        child, number = _pick([word.astype(jnp.int32) for word in words], number)
        child, number = buffer.once((child, number))
        block = block * _WORDS + child
    child, number = _pick_packed(_words(order.counts, row(0, block), _WORDS), number)
    child, number = buffer.once((child, number))
    block = block * _BLOCK + child
    flags = [_flags(word, bucket) for word in _words(order.buckets, block * _WORDS, _WORDS)]
    child, number = _pick_packed(flags, number)
    child, number = buffer.once((child, number))
    return block * _BLOCK + child, number


def _words(array: Buffer, first: Array, count: int) -> list[Array]:
    """Return `count` words of `array` starting at `first` `[B]`, as one array `[B]` per word.

    XLA would write and read again a single array of all words, which takes three times as long.
    """
    at = buffer.once(first)
    return [buffer.read_elements(array, at + number) for number in range(count)]


def _flags(word: Array, bucket: Array) -> Array:
    """Convert bytes of words `[B]` to 1 where they equal a bucket `[B]`, and to 0 elsewhere."""
    differs = word ^ bucket.astype(jnp.uint32) * jnp.uint32(0x01010101)
    low = jnp.uint32(0x7F7F7F7F)  # when added to seven bits, sets the eighth unless they are 0
    return ~((differs & low) + low | differs | low) >> 7


def _pick(counts: Sequence[Array], number: Array) -> tuple[Array, Array]:
    """Return the index of the first count whose cumulative sum exceeds `number` `[B]`.

    Also return `number` minus the sum of the earlier counts, `[B]`.
    """
    passed = chosen = before = jnp.zeros_like(number)
    for count in counts:
        passed = passed + count
        beyond = passed <= number
        chosen = chosen + beyond.astype(jnp.int32)
        before = jnp.where(beyond, passed, before)
    return chosen, number - before


def _pick_packed(words: Sequence[Array], number: Array) -> tuple[Array, Array]:
    """Apply `_pick` to words `[B]` that contain four 8-bit counts each."""
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
