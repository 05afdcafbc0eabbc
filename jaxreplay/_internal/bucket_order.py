"""Which slots have which ranks: an order of values that is always fresh; near equals are ties.

To sort a million values takes a thousand times as long as to draw a batch of them. So values are
put into buckets that are about a tenth wide, and those of one bucket are ties. How many values rank
before a bucket is then a sum of counts. To find its members, slots are grouped in blocks, and these
in larger blocks: for each bucket, the order counts its members in every block, and a walk from the
largest blocks down leads to the slot. A slot that changes its value takes one from the
counts of its old bucket and gives one to those of its new one. Counts are integers, so that nothing
drifts: an order after any history equals one that is built afresh from its values.
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
from jaxreplay._internal.tracing import as_by_default
from jaxreplay.types import Array

# Buckets by the bits of a float32, which are ordered as the numbers are: eight in each octave from
# 2^-15 to 2^13, that is, 7 to 12.5 % wide, and one for sixteen octaves beyond. They fit in a byte:
# the fewer bytes are read, the fewer waits for memory, which is what the order costs.
_MANTISSA = 23  # bits
_FINE = 3  # bits of them that count, within
_LOW, _HIGH = 127 - 15, 127 + 13  # exponents as they are stored
_COARSE = 4  # bits of an exponent that do not count, beyond
_BELOW = _LOW >> _COARSE
_WITHIN = (_HIGH - _LOW) << _FINE
_ABOVE = -(-(255 - _HIGH) >> _COARSE)
BUCKETS = _BELOW + _WITHIN + _ABOVE
_NONE = 255  # the bucket of a slot without a value
_MOST = 2**27  # slots: see `_bucket`

# In the lowest level a word has four counts of 8 bits: they are 64 at most. Together, those of a
# row are the blocks of a larger block.
_WORDS = 16  # of 32 bits in a row, which is a line of the cache
_PACKED = 4
_BLOCK = _WORDS * _PACKED  # slots of a smallest block, and smallest blocks of a row
_TOTALS = -(-BUCKETS // _WORDS)  # rows of the buckets' totals


class BucketOrder(struct.PyTreeNode):
    """Values of `capacity` slots, and how many of each of the K buckets lie where."""

    values: Buffer  # [S] float32, S the capacity in whole blocks; -1 where there is none
    buckets: Buffer  # [S / 4] uint32, of four slots a word
    counts: Buffer  # [R * 16] uint32, members of each bucket by blocks and in all, see `_levels`
    capacity: int = struct.field(pytree_node=False)


class Ties(NamedTuple):
    """Which ranks, counted from 0, a value shares with its ties."""

    first: Array  # [...] int32
    last: Array  # [...] int32, behind the last of them


def init(capacity: int) -> BucketOrder:
    """Make an order without values.

    Raises:
      ValueError: `capacity` is below 1 or beyond 2^27.
    """
    if not 1 <= capacity <= _MOST:
        raise ValueError(f"capacity is {capacity}: an order has 1 to {_MOST:,} slots")
    size = -(-capacity // _BLOCK) * _BLOCK
    return BucketOrder(
        values=jnp.full(size, -1.0, jnp.float32),
        buckets=jnp.full(size // _PACKED, 2**32 - 1, jnp.uint32),
        counts=jnp.zeros(_levels(capacity).size, jnp.uint32),
        capacity=capacity,
    )


def set(order: BucketOrder, slots: Array, values: Array) -> BucketOrder:
    """Give slots their values, whether or not they had others.

    A row is skipped if its slot is outside `[0, capacity)` or its value is NaN, infinite or
    negative. Where a slot occurs twice, one of its values is kept.

    Args:
      order: the order.
      slots: `[B]` int32, at most 2^24 of them.
      values: `[B]` float32, not negative.
    """
    slots = as_int32("slots", slots, order.capacity)
    values = jax.lax.stop_gradient(jnp.asarray(values))  # to differentiation an order is a constant
    valid = (slots >= 0) & (slots < order.capacity) & jnp.isfinite(values) & (values >= 0)
    beyond = order.values.size
    near = jnp.where(valid, slots, 0)
    before = buffer.once(buffer.read_few(order.values, near))
    # A choice that is always the same lets the write wait for the read: see `buffer`.
    held, new = order.values, jnp.where(jnp.isnan(before), before, values)
    if len(slots) > 1:  # Of equal slots one row counts: the one whose number is then found there.
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
    """Return the value of every slot, `[C]` float32, -1 where there is none."""
    return order.values[: order.capacity]


def bucket_of(values: Array) -> Array:
    """Return the bucket of values that are not negative, int32; that of 0 is the last."""
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


@as_by_default
def quantiles(order: BucketOrder, shares: Array) -> Array:
    """Return the values `[n]` float32 that are above these shares `[n]` of all, rounded down.

    That is, to the smallest value of a bucket; 0 if there are no values.
    """
    ends = ties(order).last
    rank = jnp.floor((1.0 - shares) * ends[-1]).astype(jnp.int32)
    rank = jnp.clip(rank, 0, jnp.maximum(ends[-1] - 1, 0))
    bucket = jnp.minimum(jnp.searchsorted(ends, rank, side="right"), BUCKETS - 1)
    return floor_of(bucket.astype(jnp.int32))


def find(order: BucketOrder, ranks: Array, turn: Array) -> tuple[Array, Ties]:
    """Find the slots at ranks, counted from 0.

    Args:
      order: the order, of more values than any of the ranks.
      ranks: `[B]` int32.
      turn: `[]` or `[B]` uint32, by which ties are turned, that is, who comes first among them; if
        these are random bits, all ties are equally likely to have any of their ranks. One turn for
        all gives different ranks different slots; draws that are to be independent need one each.

    Returns:
      slots `[B]` int32 and with whom they tie, `[B]`.
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
    """Check a concrete order's invariants.

    Raises:
      ValueError: a value is NaN, infinite or negative, there is one beyond the capacity, or a count
        differs from what the values give.
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
    """Levels of blocks, from the smallest blocks to those of which one row holds all.

    For each bucket, a level has a word for every row of the level below; in the lowest one, a word
    has four counts, of the smallest blocks. Behind them come the buckets' totals, that of the
    largest values first.
    """

    rows: tuple[int, ...]  # of a bucket
    starts: tuple[int, ...]  # the word with which each level begins, and that of the totals
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
    """Yield where in `counts` slots of buckets are counted, and what counts as one there.

    For each level, and last for the totals; of arrays `[...]` of NumPy or JAX.
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
    """Move slots `[B]`, each at most once, from one bucket to another, or from or to `_NONE`."""
    change = (come - gone) << slots % _PACKED * 8  # in its byte: what is added to the others is 0
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
    """Return the members of each bucket, int32, and zeros behind: as many rows of `_WORDS`."""
    return order.counts[_levels(order.capacity).starts[-1] :].astype(jnp.int32)


def _bucket(order: BucketOrder, ranks: Array) -> tuple[Array, Array, Array]:
    """Return the bucket of each rank, which of its members that is, and how many it has: `[B]`."""
    totals = buffer.once(_totals(order))
    rows = totals.reshape(_TOTALS, _WORDS).sum(axis=1, dtype=jnp.int32)
    row, number = buffer.once(_pick(list(rows), ranks))
    row = jnp.minimum(row, _TOTALS - 1)
    child, number = _pick(_words(totals, row * _WORDS, _WORDS), number)
    child, number = buffer.single_threaded_pair(child, number, 28, ranks)  # of at most `_MOST` - 1
    bucket = buffer.once(jnp.minimum(row * _WORDS + child, BUCKETS - 1))
    return bucket, number, buffer.read(totals, bucket)


def _member(order: BucketOrder, bucket: Array, number: Array) -> tuple[Array, Array]:
    """Return the slot `[B]` of each bucket's member of a number `[B]`, counted from 0.

    And 0, or -1 where there is none.
    """
    levels = _levels(order.capacity)
    block = jnp.zeros_like(bucket)

    def row(level: int, block: Array) -> Array:
        return levels.starts[level] + (bucket * levels.rows[level] + block) * _WORDS

    for level in range(len(levels.rows) - 1, 0, -1):
        children = min(levels.rows[level - 1], _WORDS)
        words = _words(order.counts, row(level, block), children)
        child, number = _pick([word.astype(jnp.int32) for word in words], number)
        # 28 bits hold the number and its sign: a child has 2^24 slots at most.
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
    """Read so many words each from the `first` `[B]` on, as an array `[B]` for each word.

    Not as an array of rows: that would be written and read again, and takes three times as long.
    """
    at = buffer.once(first)
    return [buffer.read(array, at + number) for number in range(count)]


def _flags(word: Array, bucket: Array) -> Array:
    """Return 1 in the bytes of words `[B]` that are a bucket `[B]`, else 0."""
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
    """Return where the running sum of counts `[B]` passes `number` `[B]`, and what is left."""
    passed = chosen = before = jnp.zeros_like(number)
    for count in counts:
        passed = passed + count
        beyond = passed <= number
        chosen = chosen + beyond.astype(jnp.int32)
        before = jnp.where(beyond, passed, before)
    return chosen, number - before


def _pick_packed(words: Sequence[Array], number: Array) -> tuple[Array, Array]:
    """Do as `_pick` does, with four counts packed in each word `[B]`."""
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
