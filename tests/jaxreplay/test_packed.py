"""Packed trees are restored bit for bit, from few arrays."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay.loops import packed, unrolled
from tests.refusals import refused

pack, unpack = jax.jit(packed.pack), jax.jit(packed.unpack)


class Pair(NamedTuple):
    a: Any
    b: Any


def bits(leaf):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()


def assert_same(tree, other):
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for leaf, back in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        assert leaf.dtype == back.dtype
        assert bits(leaf) == bits(back)


LEAVES = {
    "odd": jnp.array([jnp.nan, -0.0, jnp.inf, 1e-45]),
    "flags": jnp.array([True, False, True]),
    "halves": jnp.array([1.5, -2.0, 0.25], jnp.float16),
    "brain": jnp.array([3.0], jnp.bfloat16),
    "bytes": jnp.arange(5, dtype=jnp.uint8),
    "negative": jnp.int32(-7),
}


def test_small_leaves_of_any_dtype_become_one_array():
    few = pack(LEAVES)
    (words,) = jax.tree.leaves(few)
    assert words.dtype == jnp.uint32
    assert words.shape == (4 + 1 + 2 + 2,)  # leaves of 32, 16 and 8 bits
    assert_same(LEAVES, unpack(few))


def test_keys_are_packed_and_keep_their_implementation():
    keys = {
        "plain": jax.random.key(1),
        "many": jax.random.split(jax.random.key(2), 3),
        "unrolled": unrolled(jax.random.key(3)),
        "other": jax.random.key(4, impl="rbg"),
    }
    few = pack(keys)
    assert len(jax.tree.leaves(few)) == 1
    assert_same(keys, unpack(few))


def test_large_complex_and_empty_leaves_are_not_packed():
    tree = {
        "large": jnp.ones(2**13),
        "less": jnp.ones(2**13 - 1),
        "complex": jnp.complex64(1j),
        "none": jnp.zeros((0, 3)),
    }
    few = pack(tree)
    assert [x.shape for x in few.arrays] == [(2**13 - 1,), (), (2**13,), (0, 3)]
    assert_same(tree, unpack(few))
    assert_same(tree["complex"], unpack(pack(tree["complex"])))


def test_numpy_trees_are_packed_as_in_a_compiled_function():
    host = jax.tree.map(np.asarray, LEAVES) | {"wide": np.arange(3.0), "long": np.arange(2)}
    host |= {"turned": np.arange(6, dtype=np.float32).reshape(2, 3).T, "number": 0.5, "yes": True}
    few = packed.pack(host)
    assert isinstance(few.arrays[0], np.ndarray)
    there = pack(jax.tree.map(jnp.asarray, host))
    assert few.plan.layout == there.plan.layout
    np.testing.assert_array_equal(few.arrays[0], there.arrays[0])
    assert_same(jax.tree.map(jnp.asarray, host), unpack(few))
    large = packed.pack(np.ones(2**14, np.float32))
    assert large.arrays[0].shape == (2**14,)
    assert_same(jnp.ones(2**14), unpack(large))


UNFIT = [
    (np.array([0, 2**40 + 7]), ("a.b", "1099511627783", "int32")),
    (-(2**40), ("a.b", "-1099511627776", "int32")),
    (np.full(2, 2**63, np.uint64), ("a.b", "9223372036854775808", "uint32")),
    (np.full(2**14, 2**40), ("a.b", "1099511627776", "int32")),  # too large to be packed
    ("x", ("a.b", "<U1")),
    (object(), ("a.b", "object")),
    (np.datetime64("2020-01-01"), ("a.b", "datetime64[D]")),
    (np.ones(3, ">f4"), ("a.b", ">f4", "astype")),
]


@pytest.mark.parametrize(("leaf", "parts"), UNFIT, ids=lambda x: str(x)[:20])
def test_leaves_that_jax_cannot_store_are_named(leaf, parts):
    tree = {"a": Pair(np.zeros(3), leaf), "c": np.zeros(2)}
    with refused(*parts):
        packed.pack(tree)


@pytest.mark.parametrize("beside", [np.zeros(2), jnp.zeros(2)], ids=["numpy", "jax"])
@pytest.mark.parametrize(
    ("leaf", "shown"),
    [
        (1e300, "1e+300"),
        (np.array([1.0, -1e300]), "-1e+300"),
        (np.array([1e300 + 1j]), "1e+300+1j"),
        (2**40, "1099511627776"),
    ],
)
def test_numbers_that_a_cast_would_change_are_refused(leaf, shown, beside):
    with refused("angle", shown):
        packed.pack({"angle": leaf, "b": beside})
    kept = packed.unpack(packed.pack({"a": np.array([1e30, np.inf, np.nan, 1e-300]), "b": beside}))
    np.testing.assert_array_equal(kept["a"], np.float32([1e30, np.inf, np.nan, 0]))


def test_int64_values_are_packed_if_they_fit_or_with_x64():
    ends = np.array([-(2**31), 2**31 - 1, 0])
    assert packed.as_numpy(packed.pack(ends)).tolist() == ends.tolist()
    with jax.enable_x64(True):
        assert packed.as_numpy(packed.pack(np.array([2**40]))).tolist() == [2**40]


def test_as_numpy_returns_views():
    tree = LEAVES | {"large": jnp.ones(2**13), "key": jax.random.key(5)}
    few = pack(tree)
    views = packed.as_numpy(few)
    words = views.pop("key")
    np.testing.assert_array_equal(words, jax.random.key_data(tree.pop("key")))
    assert_same(tree, views)
    if jax.default_backend() == "cpu":
        assert np.shares_memory(views["odd"], np.asarray(few.arrays[0]))
    assert not views["odd"].flags.writeable
    alone = packed.as_numpy(pack({"large": jnp.ones(2**13)}))
    np.testing.assert_array_equal(alone["large"], np.ones(2**13))


def test_pack_and_unpack_work_outside_jit():
    assert_same(LEAVES, packed.unpack(packed.pack(LEAVES)))


def test_rows_of_one_structure_compile_once():
    traces = []

    @jax.jit
    def step(row):
        traces.append(row)
        return packed.pack(packed.unpack(row))

    rows = [packed.pack({"obs": np.full(3, n, np.float32), "last": n > 1}) for n in range(3)]
    for row in rows:
        again = step(step(row))
        np.testing.assert_array_equal(again.arrays[0], row.arrays[0])
    assert len(traces) <= 2  # the first call gets its words from the host
    assert rows[0].plan is rows[1].plan is again.plan or rows[0].plan == again.plan
