"""The sum tree against an array of leaves: numbers by hand, any writes, exact sums, frequencies."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import sum_tree
from tests.refusals import refused

# Compiled once, not operation by operation.
_find, _set = jax.jit(sum_tree.find), jax.jit(sum_tree.set)


def tree_of(leaves, branching=8, reduce="sum"):
    return _tree_of(np.asarray(leaves, np.float32), branching, reduce)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _tree_of(leaves, branching, reduce):
    return sum_tree.rebuild(sum_tree.init(leaves.size, branching, reduce), leaves)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _draws(tree, seeds, batch, samplings):
    def draw(seed):
        key = jax.random.key(seed)
        return [sum_tree.shares(key, batch, sampling) for sampling in samplings]

    shares = jnp.stack(jax.vmap(draw)(jnp.arange(seeds)))
    return sum_tree.at_shares(tree, shares.ravel()).reshape(shares.shape)


def draws(tree, seeds, batch, samplings=sum_tree.SAMPLINGS):
    """Return the leaves drawn by every way of sampling, `[S, seeds, batch]`."""
    return np.asarray(_draws(tree, seeds, batch, samplings))


@pytest.mark.parametrize("branching", [2, 8])
def test_queries_by_hand(branching):
    leaves = [1, 2, 3, 4, 0, 5, 0, 1, 0, 0]
    queries = [0, 0.999, 1, 2.5, 3, 5.999, 6, 9.999, 10, 14.999, 15, 15.999]
    expected = [0, 0, 1, 1, 2, 2, 3, 3, 5, 5, 7, 7]
    queries += [2, 5, 11, 14]  # in four strata of equal width
    expected += [1, 2, 5, 5]
    queries += [16, 16.5, 100]  # at the total and beyond it, the last positive leaf
    expected += [7, 7, 7]
    tree = tree_of(leaves, branching)
    np.testing.assert_array_equal(_find(tree, np.float32(queries)), expected)
    assert float(sum_tree.total(tree)) == 16
    alone = tree_of([0, 0, 0, 7, 0, 0, 0, 0, 0, 0], branching)
    np.testing.assert_array_equal(_find(alone, np.float32(queries)), 3)


@jax.jit
def _written(empty, order, values, targets):
    tree = sum_tree.set(empty, order, values[order])
    rebuilt = sum_tree.rebuild(empty, values)
    return tree, rebuilt, sum_tree.find(tree, targets), sum_tree.sample(tree, jax.random.key(2), 64)


@pytest.mark.parametrize(
    ("capacity", "branching"),
    [(1, 8), (9, 2), (64, 8), (65, 8), (65, 32), (5000, 2), (5000, 8)],
)
def test_a_tree_of_any_size_agrees_with_cumulative_sums(capacity, branching):
    rng = np.random.default_rng(capacity)
    values = rng.integers(0, 4, capacity).astype(np.float32)  # float32 adds integers exactly
    values[rng.integers(capacity)] = 2
    targets = rng.uniform(0, values.sum(), 100).astype(np.float32)
    empty = sum_tree.init(capacity, branching)
    assert not np.any(empty.nodes) and empty.root == 0
    tree, rebuilt, found, drawn = _written(empty, rng.permutation(capacity), values, targets)
    np.testing.assert_array_equal(sum_tree.leaves(tree), values)
    np.testing.assert_array_equal(tree.nodes, rebuilt.nodes)
    assert tree.root == rebuilt.root == values.sum()
    np.testing.assert_array_equal(found, np.searchsorted(values.cumsum(), targets, side="right"))
    assert (values[np.asarray(drawn)] > 0).all()


CAPACITY = 37
REDUCE = {"sum": np.sum, "min": np.min, "max": np.max}
_empty = functools.cache(functools.partial(sum_tree.init, CAPACITY))
indices_of_a_write = st.lists(st.integers(-3, CAPACITY + 5), min_size=6, max_size=6)
special = st.sampled_from([0.0, -1.0, np.nan, np.inf, -np.inf, 1e-30, 3e38])
values_of_a_write = st.lists(
    st.one_of(st.floats(0, 1e6, width=32), special), min_size=6, max_size=6
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(indices_of_a_write, values_of_a_write), max_size=8),
    st.sampled_from([(2, "sum"), (8, "sum"), (2, "min"), (8, "max")]),
)
def test_any_sequence_of_writes_keeps_the_invariants(writes, layout):
    tree = _empty(*layout)
    model = [{np.inf if tree.reduce == "min" else 0.0} for _ in range(CAPACITY)]
    cap = np.float32(2.0**125 / CAPACITY)
    for indices, values in writes:
        tree = _set(tree, np.int32(indices), np.float32(values))
        fresh: dict[int, set] = {}
        for index, value in zip(indices, np.asarray(values, np.float32)):
            if 0 <= index < CAPACITY and np.isfinite(value) and value >= 0:
                fresh.setdefault(index, set()).add(float(min(value, cap)))
        for index, allowed in fresh.items():
            model[index] = allowed  # duplicates may store any of their values
    sum_tree.check_valid(tree)
    leaves = np.asarray(sum_tree.leaves(tree))
    for leaf, allowed in zip(leaves, model):
        assert any(np.isclose(leaf, value, rtol=1e-6, atol=1e-37) for value in allowed)
    expected = REDUCE[tree.reduce](np.float64(leaves))
    np.testing.assert_allclose(sum_tree.total(tree), expected, rtol=1e-6)


@pytest.mark.parametrize("capacity", [1, 7, 100_000])
def test_the_reciprocal_of_a_total_is_never_denormal(capacity):
    large = np.full(capacity, 3e38, np.float32)
    tree = _set(sum_tree.init(capacity), np.arange(capacity), large)
    assert 1 / float(sum_tree.total(tree)) >= np.finfo(np.float32).tiny
    shares = jax.jit(lambda tree: sum_tree.leaves(tree) / sum_tree.total(tree))(tree)
    np.testing.assert_allclose(shares, 1 / capacity, rtol=1e-5)


BATCHES, BATCH = 1000, 250


@jax.jit
def _random_writes(tree, seed):
    """Write leaves over nine orders of magnitude and 0; count the draws of leaves of 0."""

    def write(carry, key):
        tree, empty = carry
        at, size, how, draw = jax.random.split(key, 4)
        indices = jax.random.randint(at, (BATCH,), 0, tree.capacity)
        exponent = jax.random.uniform(how, (BATCH,), minval=-4.0, maxval=5.0)
        values = jnp.maximum(jax.random.uniform(size, (BATCH,), minval=-0.2), 0) * 10.0**exponent
        tree = sum_tree.set(tree, indices, values)
        drawn = sum_tree.get(tree, sum_tree.sample(tree, draw, 16))
        return (tree, empty + (drawn <= 0).sum(dtype=jnp.int32)), None

    keys = jax.random.split(jax.random.key(seed), BATCHES)
    return jax.lax.scan(write, (tree, jnp.zeros((), jnp.int32)), keys)[0]


MANY = int(os.environ.get("JAXREPLAY_WRITES", 10**7))


@pytest.mark.parametrize(
    ("capacity", "branching", "writes"),
    [
        (1000, 2, BATCHES * BATCH),
        (100_000, 8, BATCHES * BATCH),
        pytest.param(1000, 8, MANY, marks=pytest.mark.slow),
        pytest.param(2**16 + 3, 8, MANY, marks=pytest.mark.slow),
    ],
)
def test_many_writes_leave_no_drift(capacity, branching, writes):
    tree = sum_tree.init(capacity, branching)
    for seed in range(-(-writes // (BATCHES * BATCH))):
        tree, empty = _random_writes(tree, seed)
        assert int(empty) == 0
        sum_tree.check_valid(tree)  # equal to a rebuilt tree bit for bit
    exact = np.sum(np.float64(sum_tree.leaves(tree)))
    np.testing.assert_allclose(float(sum_tree.total(tree)), exact, rtol=1e-6)


def chi_square_p(drawn, leaves):
    """Return the p-value of draws given the leaves' shares; rare leaves are pooled."""
    counts = np.bincount(drawn.ravel(), minlength=leaves.size)
    expected = leaves / leaves.sum() * drawn.size
    rare = expected < 10
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 5:
        assert counts[-1] < 30
        counts, expected = counts[:-1], expected[:-1] * counts[:-1].sum() / expected[:-1].sum()
    assert counts.size > 20
    return scipy.stats.chisquare(counts, expected).pvalue


@pytest.mark.parametrize(
    ("sampling", "branching"), [("stratified", 2), ("systematic", 8), ("iid", 32)]
)
def test_frequencies_match_leaves_over_nine_orders_of_magnitude(sampling, branching):
    rng = np.random.default_rng(0)
    leaves = 10.0 ** rng.uniform(-4, 5, 3000)
    leaves[rng.integers(0, 3000, 500)] = 0
    drawn = draws(tree_of(leaves, branching), 400, 256, (sampling,))
    assert (leaves[drawn] > 0).all()
    assert chi_square_p(drawn, leaves) > 1e-3
    assert chi_square_p(drawn, leaves**1.1) < 1e-6  # the test detects wrong leaves


def test_all_small_leaves_can_be_drawn_next_to_a_giant_leaf():
    # 24 bits resolve the total in steps of 8, so plain float32 would draw every 8th leaf only.
    small, giant = 2**16, 1e8
    tree = tree_of(np.concatenate([[giant], np.ones(small)]))
    for drawn in draws(tree, 200, 4096, ("stratified", "iid")):
        others = drawn[drawn > 0]
        assert others.size == pytest.approx(drawn.size * small / (giant + small), rel=0.15)
        assert scipy.stats.chisquare(np.bincount(others % 8, minlength=8)).pvalue > 1e-3


def test_systematic_draws_have_one_offset_in_every_stratum():
    for drawn in draws(tree_of(np.ones(1000)), 5, 100, ("systematic",))[0]:
        np.testing.assert_array_equal(drawn % 10, drawn[0])
        np.testing.assert_array_equal(np.diff(drawn), 10)


def test_a_batch_of_one_can_draw_any_leaf():
    for drawn in draws(tree_of(np.ones(8)), 300, 1):
        assert set(drawn.ravel()) == set(range(8))


def test_strata_bound_the_count_of_every_leaf():
    leaves = np.random.default_rng(3).exponential(size=50).astype(np.float32)
    share = leaves / leaves.sum() * 512
    for drawn in draws(tree_of(leaves), 20, 512, ("stratified", "systematic")).reshape(40, 512):
        counts = np.bincount(drawn, minlength=50)
        assert (counts >= np.floor(share) - 1).all() and (counts <= np.ceil(share) + 1).all()


def test_samples_equal_the_leaves_at_their_shares():
    tree = tree_of(np.arange(8))
    for sampling, expected in zip(sum_tree.SAMPLINGS, draws(tree, 1, 16)):
        drawn = jax.jit(sum_tree.sample, static_argnums=(2, 3))(
            tree, jax.random.key(0), 16, sampling
        )
        np.testing.assert_array_equal(drawn, expected[0])


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 50.0, 3.0]])
def test_add_sums_duplicate_indices(values):
    indices = np.int32([0, 0, 1, 3])[: len(values)]  # the last is out of range

    @jax.jit
    def add(tree, values):
        tree = sum_tree.add(tree, indices, values, power=2.0, limit=100.0)
        return sum_tree.repair(tree, indices)

    tree = add(tree_of([4.0, 9.0, 0.0]), np.float32(values))
    sum_tree.check_valid(tree)
    first = (2 + sum(values[:2])) ** 2  # square roots are added
    np.testing.assert_array_equal(sum_tree.leaves(tree), [first, 100 if values[1:] else 9, 0])


def test_check_valid_detects_a_broken_node():
    tree = tree_of([1, 2, 3, 4, 0, 5, 0, 1])
    with refused("root", "17.0", "16.0"):
        sum_tree.check_valid(tree.replace(root=tree.root + 1.0))
    with refused("2", "nan"):
        sum_tree.check_valid(tree.replace(nodes=tree.nodes.at[0, 2].set(jnp.nan)))


@pytest.mark.parametrize("branching", [8, 32])
def test_nodes_take_at_most_1_2_times_the_leaves(branching):
    nodes = jax.eval_shape(lambda: sum_tree.init(2**20, branching)).nodes
    assert nodes.size <= 1.2 * 2**20


@pytest.mark.parametrize(("name", "size"), [("capacity", 0), ("branching", 1)])
def test_invalid_sizes_are_refused(name, size):
    with refused(name, size):
        sum_tree.init(**{"capacity": 4, name: size})


@pytest.mark.parametrize("count", [1, 3])
def test_trees_carry_no_tangents(count):
    slots = jnp.arange(count)

    def total(scale):
        tree, values = sum_tree.init(50), scale * jnp.ones(count)
        added = sum_tree.repair(sum_tree.add(tree, slots, values, limit=9.0), slots)
        rebuilt = sum_tree.rebuild(tree, jnp.pad(values, (0, 50 - count)))
        return sum(map(sum_tree.total, (sum_tree.set(tree, slots, values), added, rebuilt)))

    assert jax.jit(jax.value_and_grad(total))(2.0) == (3 * 2 * count, 0)
