"""The sum tree: numbers by hand, a plain model, exact sums at the edges, frequencies."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import sum_tree
from tests.refusals import refused

LEAVES = [1, 2, 3, 4, 0, 5, 0, 1]
BRANCHINGS = [2, 4, 8, 32]

# Compiled once, not operation by operation.
_find, _set = jax.jit(sum_tree.find), jax.jit(sum_tree.set)
_sample = jax.jit(sum_tree.sample, static_argnums=(2, 3))


def tree_of(leaves, branching=None, reduce="sum"):
    return _tree_of(np.asarray(leaves, np.float32), branching, reduce)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _tree_of(leaves, branching, reduce):
    return sum_tree.rebuild(sum_tree.init(leaves.size, branching, reduce), leaves)


@functools.partial(jax.jit, static_argnums=0)
def _set_in_empty(branching, indices, values):
    empty = sum_tree.init(values.size, branching)
    return empty, sum_tree.set(empty, indices, values)


def leaves_of(tree):
    return sum_tree.leaves(jax.tree.map(np.asarray, tree))


@pytest.mark.parametrize("branching", BRANCHINGS)
def test_queries_by_hand(branching):
    tree = tree_of(LEAVES, branching)
    queries = [0, 0.999, 1, 2.5, 3, 5.999, 6, 9.999, 10, 14.999, 15, 15.999]
    expected = [0, 0, 1, 1, 2, 2, 3, 3, 5, 5, 7, 7]
    # Four strata of equal width, queried at these fractions.
    strata = (np.arange(4) + np.array([0.5, 0.25, 0.75, 0.5])) * 4
    found = _find(tree, np.float32([*queries, *strata]))
    np.testing.assert_array_equal(found, [*expected, 1, 2, 5, 5])
    assert float(sum_tree.total(tree)) == 16


@pytest.mark.parametrize("branching", BRANCHINGS)
def test_queries_at_or_beyond_the_total_find_the_last_positive_leaf(branching):
    tree = tree_of([1, 2, 0, 3, 0, 0, 0, 0, 0, 0], branching)
    np.testing.assert_array_equal(_find(tree, np.float32([6.0, 6.5, 100.0])), [3, 3, 3])
    tree = tree_of([0, 0, 0, 7.0, 0], branching)
    np.testing.assert_array_equal(_find(tree, np.float32([0.0, 3.0, 7.0])), [3, 3, 3])


@pytest.mark.parametrize("capacity", [1, 2, 9, 64, 65, 5000])
@pytest.mark.parametrize("branching", BRANCHINGS)
def test_set_equals_rebuild_at_any_size(capacity, branching):
    rng = np.random.default_rng(capacity)
    values = rng.random(capacity, np.float32)
    order = rng.permutation(capacity)
    empty, tree = _set_in_empty(branching, order, values[order])
    assert not np.any(empty.nodes) and empty.root == 0
    np.testing.assert_array_equal(leaves_of(tree), values)
    rebuilt = tree_of(values, branching)  # `check_valid` compares with a rebuilt tree
    np.testing.assert_array_equal(tree.nodes, rebuilt.nodes)
    np.testing.assert_array_equal(tree.root, rebuilt.root)
    np.testing.assert_allclose(sum_tree.total(tree), np.float64(values).sum(), rtol=1e-6)
    drawn = np.asarray(_sample(tree, jax.random.key(2), 256))
    assert int(drawn.min()) >= 0 and int(drawn.max()) < capacity


CAPACITY = 37
_empty = functools.cache(functools.partial(sum_tree.init, CAPACITY))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(-3, CAPACITY + 5), min_size=6, max_size=6),
            st.lists(
                st.one_of(
                    st.floats(0, 1e6, width=32),
                    st.sampled_from([0.0, -1.0, np.nan, np.inf, -np.inf, 1e-30, 3e38]),
                ),
                min_size=6,
                max_size=6,
            ),
        ),
        max_size=8,
    ),
    st.sampled_from([2, 8]),
)
def test_any_sequence_of_writes_keeps_the_invariants(writes, branching):
    tree, model = _empty(branching), [{0.0} for _ in range(CAPACITY)]
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
    assert np.isfinite(float(sum_tree.total(tree)))
    for leaf, allowed in zip(leaves_of(tree), model):
        assert any(np.isclose(leaf, value, rtol=1e-6, atol=1e-37) for value in allowed)


@pytest.mark.parametrize("capacity", [1, 7, 1000, 100_000])
def test_the_reciprocal_of_a_total_is_never_denormal(capacity):
    write = jax.jit(lambda tree, slots, values: sum_tree.set(tree, slots, values))
    tree = write(sum_tree.init(capacity), np.arange(capacity), np.full(capacity, 3e38, np.float32))
    assert 1 / float(sum_tree.total(tree)) >= np.finfo(np.float32).tiny
    shares = jax.jit(lambda tree: sum_tree.leaves(tree) / sum_tree.total(tree))(tree)
    np.testing.assert_allclose(shares, 1 / capacity, rtol=1e-5)


@pytest.mark.parametrize(("capacity", "branching"), [(1000, 2), (100_000, 8), (100_000, 32)])
def test_a_million_updates_leave_no_drift(capacity, branching):
    batch = 250

    def write(tree, key):
        key_index, key_value, key_scale = jax.random.split(key, 3)
        indices = jax.random.randint(key_index, (batch,), 0, capacity)
        exponent = jax.random.uniform(key_scale, (batch,), minval=-4.0, maxval=5.0)
        values = jax.random.uniform(key_value, (batch,)) * 10.0**exponent
        return sum_tree.set(tree, indices, values), None

    keys = jax.random.split(jax.random.key(0), 1_000_000 // batch)
    run = jax.jit(lambda tree: jax.lax.scan(write, tree, keys)[0])
    tree = run(sum_tree.init(capacity, branching))
    sum_tree.check_valid(tree)  # equal to a rebuilt tree bit for bit
    exact = np.sum(np.float64(leaves_of(tree)))
    np.testing.assert_allclose(float(sum_tree.total(tree)), exact, rtol=1e-6)


def chi_square_p(tree, sampling, batches=400, batch=256):
    """Return the p-value of drawn counts given the leaves' shares; rare leaves are pooled."""
    leaves = np.float64(leaves_of(tree))
    sample = functools.partial(sum_tree.sample, batch_size=batch, sampling=sampling)
    keys = jax.random.split(jax.random.key(5), batches)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: sample(tree, key)))(keys)).ravel()
    counts = np.bincount(drawn, minlength=leaves.size)
    assert not counts[leaves == 0].any()
    expected = leaves / leaves.sum() * drawn.size
    rare = expected < 10
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 5:
        assert counts[-1] < 30
        counts, expected = counts[:-1], expected[:-1] * counts[:-1].sum() / expected[:-1].sum()
    assert counts.size > 20
    return scipy.stats.chisquare(counts, expected).pvalue


@pytest.mark.parametrize("sampling", sum_tree.SAMPLINGS)
@pytest.mark.parametrize("branching", [2, 8, 32])
def test_frequencies_match_leaves_over_nine_orders_of_magnitude(sampling, branching):
    rng = np.random.default_rng(0)
    leaves = 10.0 ** rng.uniform(-4, 5, 3000)
    leaves[rng.integers(0, 3000, 500)] = 0
    assert chi_square_p(tree_of(leaves, branching), sampling) > 1e-3


def test_chi_square_detects_a_wrong_tree():
    rng = np.random.default_rng(0)
    leaves = rng.uniform(1, 2, 200)
    tree = tree_of(leaves)
    wrong = tree_of(leaves[::-1])
    drawn = np.asarray(_sample(tree, jax.random.key(0), 100_000))
    share = np.float64(leaves_of(wrong))
    counts = np.bincount(drawn, minlength=200)
    assert scipy.stats.chisquare(counts, share / share.sum() * drawn.size).pvalue < 1e-6


@pytest.mark.parametrize("sampling", ["stratified", "iid"])
def test_all_small_leaves_can_be_drawn_next_to_a_giant_leaf(sampling):
    # 24 bits resolve the total in steps of 64, so plain float32 would draw every 64th leaf only.
    small = 2**19
    tree = tree_of(np.concatenate([[1e9], np.ones(small)]))
    keys = jax.random.split(jax.random.key(0), 500)
    drawn = jax.jit(jax.vmap(lambda key: sum_tree.sample(tree, key, 4096, sampling=sampling)))(keys)
    drawn = np.asarray(drawn).ravel()
    others = drawn[drawn > 0]
    assert others.size == pytest.approx(drawn.size * small / (1e9 + small), rel=0.1)
    counts = np.bincount(others % 64, minlength=64)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_systematic_draws_have_one_offset_in_every_stratum():
    tree = tree_of(np.ones(1000))
    for seed in range(5):
        drawn = np.asarray(_sample(tree, jax.random.key(seed), 100, "systematic"))
        np.testing.assert_array_equal(drawn % 10, drawn[0])
        np.testing.assert_array_equal(np.diff(drawn), 10)


@pytest.mark.parametrize("sampling", sum_tree.SAMPLINGS)
def test_a_batch_of_one_can_draw_any_leaf(sampling):
    keys = jax.random.split(jax.random.key(0), 300)
    tree = tree_of(np.ones(8))
    drawn = jax.jit(jax.vmap(lambda key: sum_tree.sample(tree, key, 1, sampling)))(keys)
    assert set(np.asarray(drawn).ravel()) == set(range(8))


@pytest.mark.parametrize("sampling", ["stratified", "systematic"])
def test_strata_bound_the_count_of_every_leaf(sampling):
    rng = np.random.default_rng(3)
    leaves = rng.exponential(size=50).astype(np.float32)
    tree, batch = tree_of(leaves), 512
    share = leaves / leaves.sum() * batch
    for seed in range(20):
        drawn = _sample(tree, jax.random.key(seed), batch, sampling)
        counts = np.bincount(drawn, minlength=50)
        assert (counts >= np.floor(share) - 1).all() and (counts <= np.ceil(share) + 1).all()


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 50.0, 3.0]])
def test_add_sums_duplicate_indices(values):
    tree = tree_of([4.0, 9.0, 0.0])
    indices = np.int32([0, 0, 1, 3])[: len(values)]  # the last is out of range

    @jax.jit
    def add(tree, indices, values):
        tree = sum_tree.add(tree, indices, values, power=2.0, limit=100.0)
        return sum_tree.repair(tree, indices)

    tree = add(tree, indices, np.float32(values))
    sum_tree.check_valid(tree)
    first = (2 + sum(values[:2])) ** 2  # square roots are added
    np.testing.assert_array_equal(leaves_of(tree), [first, 100 if values[1:] else 9, 0])


def test_trees_of_minima_return_the_minimum():
    tree = tree_of([3.0, 1.0, 2.0, 5.0, 4.0], branching=2, reduce="min")
    assert float(sum_tree.total(tree)) == 1
    tree = _set(tree, np.int32([1, 3]), np.float32([9.0, 2.5]))
    assert float(sum_tree.total(tree)) == 2
    sum_tree.check_valid(tree)
    assert np.isinf(sum_tree.total(sum_tree.init(5, 2, "min")))


def test_trees_of_maxima_return_the_maximum():
    tree = tree_of([3.0, 1.0, 2.0, 5.0, 4.0], branching=2, reduce="max")
    assert float(sum_tree.total(tree)) == 5
    tree = _set(tree, np.int32([3, 1]), np.float32([0.5, 2.5]))
    assert float(sum_tree.total(tree)) == 4
    sum_tree.check_valid(tree)
    assert float(sum_tree.total(sum_tree.init(5, 2, "max"))) == 0


def test_check_valid_detects_a_broken_node():
    tree = tree_of(LEAVES)
    with refused("root", "17.0", "16.0"):
        sum_tree.check_valid(tree.replace(root=tree.root + 1.0))
    with refused("2", "nan"):
        sum_tree.check_valid(tree.replace(nodes=tree.nodes.at[2].set(jnp.nan)))


def test_nodes_take_at_most_1_2_times_the_leaves():
    for branching in (8, 32):
        tree = sum_tree.init(2**20, branching)
        assert tree.nodes.size <= 1.2 * 2**20


@pytest.mark.parametrize(("name", "size"), [("capacity", 0), ("branching", 1)])
def test_invalid_sizes_are_refused(name, size):
    with refused(name, size):
        sum_tree.init(**{"capacity": 4, name: size})


@pytest.mark.parametrize("count", [1, 3])
def test_trees_carry_no_tangents(count):
    slots = jnp.arange(count)

    def total(scale, write):
        return sum_tree.total(write(sum_tree.init(50), scale * jnp.ones(count)))

    for write in (
        lambda tree, values: sum_tree.set(tree, slots, values),
        lambda tree, values: sum_tree.repair(sum_tree.add(tree, slots, values, limit=9.0), slots),
        lambda tree, values: sum_tree.rebuild(tree, jnp.pad(values, (0, 50 - count))),
    ):
        assert jax.value_and_grad(total)(2.0, write) == (2 * count, 0)
