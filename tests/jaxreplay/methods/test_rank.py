"""Rank-based PER: numbers by hand, sums of masses, and orders compared with sorts in NumPy."""

import jax
import numpy as np
import pytest

from jaxreplay.methods import rank
from jaxreplay.methods.parts import bucket_order
from jaxreplay.methods.parts.rank_mass import count_up_to, mass, quantile, segments
from jaxreplay.methods.rank import RankConfig, argsort_descending, sampler
from tests.slots import Slots

_segments, _argsort = jax.jit(segments, static_argnums=1), jax.jit(argsort_descending)
_mass, _reaches = jax.jit(mass), jax.jit(quantile)


def slots_of(count, capacity=None, batch_size=None, **options):
    """Return a replay with `count` transitions."""
    capacity = capacity or count
    return Slots(sampler(RankConfig(**options)), capacity, batch_size or capacity, count=count,
                 base=sampler())  # fmt: skip


def held(errors, capacity=None, batch_size=None, **options):
    """Return slots that have been updated with their TD errors once."""
    slots = slots_of(len(errors), capacity, batch_size, **options)
    return slots.update(range(len(errors)), td_error=errors)


def mass_of(n, alpha):
    return np.cumsum(np.arange(1.0, n + 1) ** -alpha)


def share_of(n, alpha=0.7):
    """Return the probabilities of ranks, r^-alpha / sum r^-alpha."""
    return np.arange(1.0, n + 1) ** -alpha / mass_of(n, alpha)[-1]


@pytest.mark.parametrize(
    ("n", "alpha", "k", "boundaries", "masses"),
    [
        (10, 0.7, 4, [0, 1, 3, 6, 10], [0.2518202806, 0.2717229628, 0.2488879436, 0.2275688131]),
        (100, 0.7, 5, [0, 4, 12, 28, 57, 100],
         [0.2338305656, 0.1784092221, 0.1897356777, 0.2030271439, 0.1949973907]),
        (12, 0.0, 4, [0, 3, 6, 9, 12], [0.25] * 4),
        (100, 0.0, 10, list(range(0, 101, 10)), [0.1] * 10),
        (60, 0.0, 10, list(range(0, 61, 6)), [0.1] * 10),
        (12, 1.0, 4, [0, 1, 3, 6, 12], [0.3222468932, 0.2685390777, 0.1987189175, 0.2104951117]),
        (8, 0.7, 8, list(range(9)), None),
        (1000, 0.7, 32, [0, 1, 2, 4, 6, 9, 13, 18, 25, 32, 41, 52, 65, 80, 97, 116, 138, 163, 191,
                         222, 256, 294, 335, 381, 430, 484, 542, 606, 674, 747, 826, 910, 1000],
         None),
        (40, 0.7, 32, [*range(28), 30, 32, 35, 38, 40], None),
    ],
)  # fmt: skip
def test_segments_by_hand(n, alpha, k, boundaries, masses):
    start, end = _segments(np.int32(n), k, np.float32(alpha))
    assert [0, *np.asarray(end).tolist()] == boundaries
    assert np.asarray(start).tolist() == boundaries[:-1]
    exact = np.concatenate([[0.0], mass_of(n, alpha) / mass_of(n, alpha)[-1]])
    found = np.diff(exact[boundaries])
    if masses is not None:
        np.testing.assert_allclose(found, masses, rtol=1e-8)
    if n >= 10 * k:  # with enough ranks, masses are as equal as possible
        chance = np.append(np.diff(exact), 0.0)
        ends = np.array(boundaries)
        slack = np.maximum(chance[np.maximum(ends[:-1] - 1, 0)], chance[ends[1:] - 1])
        assert (np.abs(found - 1 / k) <= slack + 1e-12).all()


@pytest.mark.parametrize("size", [1, 1000, 5000])
def test_argsort_descending_equals_a_stable_sort(size):
    rng = np.random.default_rng(size)
    coarse = rng.integers(0, 50, size) / 4  # many ties
    coarse[rng.random(size) < 0.2] = -1.0
    fine = np.abs(rng.normal(size=size)) * 10.0 ** rng.integers(-6, 6, size)
    for values in (np.float32(coarse), np.float32(fine)):
        order = _argsort(values)
        assert order.dtype == np.int32
        np.testing.assert_array_equal(order, np.argsort(-values, kind="stable"))


@pytest.mark.parametrize("size", [1, 3, 128, 239])
def test_counts_equal_those_of_numpy(size):
    rng = np.random.default_rng(size)
    ends = np.sort(rng.integers(0, 2 * size, size)).astype(np.int32)
    values = np.arange(-1, 2 * size + 1, dtype=np.int32)
    found = jax.jit(count_up_to)(ends, values)
    np.testing.assert_array_equal(found, np.searchsorted(ends, values, side="right"))


def test_order_sorted_draws_by_exact_rank():
    slots = held([0.5, -2.0, 0.0, 1.0, 4.0, -1.0, 1.0, 0.25], order="sorted")
    # With as many segments as ranks, every rank is drawn once, and ties are ordered by slot.
    batch = slots.sample()
    assert batch.indices.tolist() == [4, 1, 3, 5, 6, 0, 7, 2]
    weights = (8 * share_of(8)) ** -0.5
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-5)
    # New transitions, in slots 0 and 1, get 4, the largest so far.
    assert slots.add(2).sample().indices.tolist() == [0, 1, 4, 3, 5, 6, 7, 2]


def test_segments_need_more_ranks_than_draws():
    slots = slots_of(3, 8, order="sorted")
    for stored in range(4, 9):  # equal errors, ranked by slot
        chance = np.zeros(8)
        chance[:stored] = share_of(stored, 0.7 if stored < 8 else 0.0)  # all 8 are drawn
        np.testing.assert_allclose(slots.add().probability(), chance, rtol=1e-5)
        batch = slots.sample()
        np.testing.assert_allclose(batch.probability, chance[batch.indices], rtol=1e-5)


def test_greedy_batches_repeat_the_largest_if_too_few_are_stored():
    slots = held([0.5, 2.0], 8, 4, sampling="greedy")
    batch = slots.sample()
    np.testing.assert_array_equal(batch.indices, [1, 0, 1, 1])
    np.testing.assert_allclose(slots.probability(), [0.25, 0.75] + [0] * 6)
    slots.update(batch.indices, td_error=np.ones(4))
    rank.check_valid(slots.state.sampler, slots.state.ring)


def test_errors_of_one_bucket_share_the_mass_of_their_ranks():
    # One bucket covers 1.25 to 1.3125, another 3 and 3.1; the other errors are alone in theirs.
    slots, chance = held([1.26, 3.0, 1.3, 0.1, 3.1, 1.27, 7.0], sampling="iid"), share_of(7)
    tied = np.array([chance[3:6].mean(), chance[1:3].mean(), chance[3:6].mean(), chance[6],
                     chance[1:3].mean(), chance[3:6].mean(), chance[0]])  # fmt: skip
    np.testing.assert_allclose(slots.probability(), tied, rtol=1e-5)
    batch = slots.sample()
    weights = (7 * tied[batch.indices]) ** -0.5
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-5)


def test_buckets_give_the_sorted_order_with_ties_averaged():
    errors = np.abs(np.random.default_rng(7).standard_t(3, 400))
    buckets = np.asarray(jax.jit(bucket_order.bucket_of)(np.float32(errors)))
    exact = held(errors, order="sorted").probability()
    ties = np.bincount(buckets, exact) / np.maximum(np.bincount(buckets), 1)
    np.testing.assert_allclose(held(errors).probability(), ties[buckets], rtol=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.7, 0.9999, 1.0, 1.2, 3.0])
def test_sums_of_masses_equal_sums_of_their_terms(alpha):
    rng = np.random.default_rng(0)
    exact = np.concatenate([[0.0], mass_of(2**20, alpha)])
    terms = np.arange(1.0, 2**20 + 1) ** -alpha
    first = np.concatenate([np.arange(40), rng.integers(0, 2**20 - 8, 200)]).astype(np.int32)
    single = np.asarray(_mass(first, first + 1, np.float32(alpha)))
    np.testing.assert_allclose(single, terms[first], rtol=1e-5)
    last = np.minimum(first + rng.integers(1, 10_000, 240), 2**20).astype(np.int32)
    wide = np.asarray(_mass(first, last, np.float32(alpha)))
    sums = np.array([terms[i:j].sum() for i, j in zip(first, last)])
    np.testing.assert_allclose(wide, sums, rtol=1e-5)
    share = rng.random(240).astype(np.float32)
    for size in (5, 17, 1000, 2**20):
        found = np.asarray(_reaches(share, np.int32(size), np.float32(alpha)))
        right = np.searchsorted(exact[: size + 1], share * exact[size])
        assert (np.abs(found - right) <= 1 + right * 5e-4).all()


@pytest.mark.parametrize(("alpha", "off"), [(0.7, 10), (1.0, 35), (1.2, 200), (1.5, 6000)])
def test_errors_of_ranks_stay_within_documented_bounds(alpha, off):
    exact = mass_of(10**6, float(np.float32(alpha)))
    share = np.concatenate([np.linspace(0, 1, 2**18), 1 - 2.0**-24 * np.arange(2**18)])
    share = share.astype(np.float32)
    found = np.asarray(_reaches(share, np.int32(10**6), np.float32(alpha)))
    right = np.searchsorted(exact, share.astype(np.float64) * exact[-1]) + 1
    assert off / 4 < np.abs(found - np.minimum(right, 10**6)).max() <= off


def test_alpha_reaches_alpha_end():
    slots = held(
        np.arange(1.0, 9), alpha=0.5, alpha_end=0.0, alpha_updates=4, beta=0.0, beta_end=0.0,
        sampling="iid", order="sorted",
    )  # fmt: skip
    for alpha in (0.375, 0.25, 0.125, 0.0, 0.0):
        np.testing.assert_allclose(slots.probability(), share_of(8, alpha)[::-1], rtol=1e-5)
        slots.update(range(8), td_error=np.arange(1.0, 9))
    # `for_run` fills an open horizon; without it alpha stays constant.
    open_end = RankConfig(alpha=0.5, alpha_end=0.0)
    for config, alpha in ((open_end.for_run(10), 0.25), (open_end, 0.5)):
        assert float(config.exponent(np.int32(5))) == pytest.approx(alpha)


def test_metrics_contain_the_quantiles():
    slots = held(np.arange(1.0, 101.0))
    metrics = {name: float(x) for name, x in slots.run.metrics(slots.state).items()}
    assert metrics["mean_priority"] == pytest.approx(50.5) and metrics["max_priority"] == 100
    for name, value in (("p10", 10.5), ("p50", 50.5), ("p90", 90.5)):
        assert value / 1.14 <= metrics[f"priority_{name}"] <= value * 1.01


@pytest.mark.parametrize(
    ("sampling", "order"), [("iid", "buckets"), ("segments", "sorted"), ("greedy", "sorted")]
)
def test_draws_follow_the_probabilities(sampling, order):
    errors = np.random.default_rng(1).normal(size=20)
    slots = held(errors, 24, 6, sampling=sampling, order=order)
    counts = np.bincount(slots.draws(4000).indices.ravel(), minlength=24)
    expected = 6 * 4000 * slots.probability()
    assert expected.sum() == pytest.approx(6 * 4000, rel=1e-5)
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 1e-9).all()
    if sampling == "greedy":
        assert set(np.flatnonzero(counts)) == set(np.argsort(-np.abs(errors))[:6])


def test_effective_weights_make_means_unbiased():
    values = np.random.default_rng(2).normal(size=24)
    slots = held(values[:20], 24, 6, weights="effective", beta=1.0, beta_end=1.0,
                 normalise="none", order="sorted")  # fmt: skip
    batches = slots.draws(20_000)
    estimates = (batches.weights * values[batches.indices]).mean(axis=1)
    error = estimates.std() / np.sqrt(20_000)
    assert abs(estimates.mean() - values[:20].mean()) < 4 * error


def test_effective_buffer_weights_reach_one_for_the_least_likely():
    slots = held(
        np.arange(1.0, 21.0), 24, 6, weights="effective", normalise="buffer", order="sorted"
    )
    assert slots.draws(500).weights.max() == pytest.approx(1.0, rel=1e-5)
