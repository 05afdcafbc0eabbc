"""Rank-based PER: numbers by hand, sums of masses, orders, probabilities and errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, ring
from jaxreplay.methods import rank
from jaxreplay.methods.parts import bucket_order
from jaxreplay.methods.parts.rank_mass import mass, quantile, segments
from jaxreplay.methods.rank import RankConfig, argsort_descending, sampler
from jaxreplay.testing import EXAMPLE
from tests.methods import compiled
from tests.refusals import refused

ROW = jax.tree.map(lambda x: x[None], EXAMPLE)


@functools.cache
def made(config, capacity, batch):
    """Return a replay with compiled functions."""
    return compiled(Replay(sampler(config), capacity=capacity, batch_size=batch))


_version, _segments = jax.jit(ring.version), jax.jit(segments, static_argnums=1)
_mass, _reaches = jax.jit(mass), jax.jit(quantile)


def held(config, errors):
    """A replay in which every slot has been updated with its TD error in one batch."""
    count = len(errors)
    replay = made(config, count, count)
    state = replay.init(jax.random.key(0), EXAMPLE)
    for _ in range(count):
        state = replay.add(state, ROW)
    return told(config, state, np.arange(count), errors, count)


def told(config, state, slots, errors, batch):
    replay = made(config, state.ring.capacity, batch)
    drawn = replay.sample(state, jax.random.key(0))
    slots = np.int32(slots)
    drawn = drawn._replace(indices=slots, version=_version(state.ring, slots))
    return replay.update(state, drawn, td_error=np.float32(errors))


def mass_of(n, alpha):
    return np.cumsum(np.arange(1.0, n + 1) ** -alpha)


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


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 5000])
def test_argsort_descending_equals_a_stable_sort(size):
    rng = np.random.default_rng(size)
    coarse = rng.integers(0, 50, size).astype(np.float32) / 4  # many ties
    coarse[rng.random(size) < 0.2] = -1.0
    order = jax.jit(argsort_descending)(coarse)
    np.testing.assert_array_equal(order, np.argsort(-coarse, kind="stable"))
    fine = np.abs(rng.normal(size=size)).astype(np.float32) * np.float32(10.0) ** rng.integers(
        -6, 6, size
    )
    order = jax.jit(argsort_descending)(np.float32(fine))
    assert order.dtype == jnp.int32
    np.testing.assert_array_equal(order, np.argsort(-fine.astype(np.float32), kind="stable"))


def test_order_sorted_draws_by_exact_rank():
    errors = np.array([0.5, -2.0, 0.0, 1.0, 4.0, -1.0, 1.0, 0.25])
    config = RankConfig(order="sorted")
    state = held(config, errors)
    batch = made(config, 8, 8).sample(state, jax.random.key(0))
    # With as many segments as ranks, every rank is drawn once, and ties are ordered by slot.
    assert np.asarray(batch.indices).tolist() == [4, 1, 3, 5, 6, 0, 7, 2]
    chance = np.arange(1.0, 9) ** -0.7 / mass_of(8, 0.7)[-1]
    weights = (8 * chance) ** -0.5
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-5)


@pytest.mark.parametrize("stored", range(4, 9))
def test_segments_need_more_ranks_than_draws(stored):
    replay = made(RankConfig(order="sorted"), 8, 8)
    state = replay.init(jax.random.key(0), EXAMPLE)
    for _ in range(stored):
        state = replay.add(state, ROW)  # equal errors, ranked by slot
    ranks = np.arange(1.0, stored + 1) ** (-0.7 if stored < 8 else 0.0)  # all 8 are drawn
    chance = np.append(ranks / ranks.sum(), np.zeros(8 - stored))
    np.testing.assert_allclose(replay.probability(state, np.arange(8)), chance, rtol=1e-5)
    batch = replay.sample(state, jax.random.key(0))
    np.testing.assert_allclose(batch.probability, chance[batch.indices], rtol=1e-5)


def test_greedy_batches_repeat_the_largest_if_too_few_are_stored():
    replay = made(RankConfig(sampling="greedy"), 8, 4)
    state = replay.init(jax.random.key(0), EXAMPLE)
    for _ in range(2):
        state = replay.add(state, ROW)
    batch = replay.sample(state, jax.random.key(0))  # both have the largest error so far
    state = replay.update(state, batch, td_error=np.where(batch.indices == 1, 2.0, 0.5))
    batch = replay.sample(state, jax.random.key(0))
    np.testing.assert_array_equal(batch.indices, [1, 0, 1, 1])
    np.testing.assert_allclose(replay.probability(state, np.arange(8)), [0.25, 0.75] + [0] * 6)
    rank.check_valid(replay.update(state, batch, td_error=np.ones(4)).sampler, state.ring)


def test_draws_depend_only_on_the_order_of_errors():
    errors = np.abs(np.random.default_rng(0).normal(size=16))
    config = RankConfig(order="sorted")
    sample = made(config, 16, 16).sample
    for key in range(3):
        draws = [
            sample(held(config, some), jax.random.key(key)).indices
            for some in (errors, np.exp(errors), errors**3 / 100)
        ]
        np.testing.assert_array_equal(draws[0], draws[1])
        np.testing.assert_array_equal(draws[0], draws[2])


def test_new_transitions_rank_first():
    state = held(RankConfig(order="sorted"), [3.0, 1.0, 5.0, 2.0, 4.0, 6.0])
    replay = made(RankConfig(order="sorted"), 6, 6)
    drawn = lambda state: np.asarray(replay.sample(state, jax.random.key(0)).indices).tolist()
    assert drawn(state) == [5, 2, 4, 0, 3, 1]
    state = replay.add(replay.add(state, ROW), ROW)  # slots 0 and 1 get 6, the largest so far
    assert drawn(state) == [0, 1, 5, 2, 4, 3]


def test_errors_of_one_bucket_share_the_mass_of_their_ranks():
    # One bucket covers 1.25 to 1.3125, another 3 and 3.1; the other errors are alone in theirs.
    errors = [1.26, 3.0, 1.3, 0.1, 3.1, 1.27, 7.0]
    config = RankConfig(sampling="iid")
    chance = np.arange(1.0, 8) ** -0.7 / mass_of(7, 0.7)[-1]
    tied = np.array([chance[3:6].mean(), chance[1:3].mean(), chance[3:6].mean(), chance[6],
                     chance[1:3].mean(), chance[3:6].mean(), chance[0]])  # fmt: skip
    state, replay = held(config, errors), made(config, 7, 7)
    np.testing.assert_allclose(replay.probability(state, np.arange(7)), tied, rtol=1e-5)
    batch = replay.sample(state, jax.random.key(0))
    weights = (7 * tied[np.asarray(batch.indices)]) ** -0.5
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-5)


def test_buckets_give_the_sorted_order_with_ties_averaged():
    errors = np.abs(np.random.default_rng(7).standard_t(3, 400))
    found = {}
    for order in ("sorted", "buckets"):
        config = RankConfig(order=order)
        state = held(config, errors)
        found[order] = np.float64(made(config, 400, 400).probability(state, np.arange(400)))
        config = RankConfig(order=order, sampling="iid")
        found[order + " iid"] = np.float64(
            made(config, 400, 400).probability(state, np.arange(400))
        )
    buckets = np.asarray(jax.jit(bucket_order.bucket_of)(np.float32(errors)))
    for kind in ("", " iid"):
        ties = np.bincount(buckets, found["sorted" + kind]) / np.maximum(np.bincount(buckets), 1)
        np.testing.assert_allclose(found["buckets" + kind], ties[buckets], rtol=1e-4)


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
    errors = np.arange(1.0, 9)
    config = RankConfig(
        alpha=0.5, alpha_end=0.0, alpha_updates=4, beta=0.0, beta_end=0.0, sampling="iid",
        order="sorted",
    )  # fmt: skip
    state, replay = held(config, errors), made(config, 8, 8)
    for alpha in (0.375, 0.25, 0.125, 0.0, 0.0):
        chance = np.arange(8.0, 0, -1) ** -alpha / mass_of(8, alpha)[-1]
        np.testing.assert_allclose(replay.probability(state, np.arange(8)), chance, rtol=1e-5)
        state = told(config, state, np.arange(8), errors, 8)
    # `for_run` fills an open horizon; without it alpha stays constant.
    open_end = RankConfig(alpha=0.5, alpha_end=0.0)
    for config, alpha in ((open_end.for_run(10), 0.25), (open_end, 0.5)):
        assert float(config.exponent(jnp.asarray(5))) == pytest.approx(alpha)


def test_the_order_is_never_stale():
    # TD errors halve with each replay, so replayed transitions rank lower at once.
    most = {}
    for order in ("sorted", "buckets"):
        replay = made(RankConfig(order=order), 512, 16)
        state = held_evenly(order)

        def step(state, key, replay=replay):
            batch = replay.sample(state, key)
            errors = jnp.maximum(state.sampler.order.values[batch.indices] / 2, 1e-3)
            return replay.update(state, batch, td_error=errors), batch.indices

        keys = jax.random.split(jax.random.key(0), 100)
        state, drawn = jax.jit(lambda s, k, step=step: jax.lax.scan(step, s, k))(state, keys)
        rank.check_valid(state.sampler, state.ring)
        most[order] = np.bincount(np.asarray(drawn).ravel()).max()
    assert most["buckets"] < 2 * most["sorted"]


def held_evenly(order):
    replay = made(RankConfig(order=order), 512, 16)
    rows = lambda state, _: (replay.add(state, ROW), None)
    fill = jax.jit(lambda state: jax.lax.scan(rows, state, None, length=512)[0])
    state = fill(replay.init(jax.random.key(0), EXAMPLE))
    errors = np.random.default_rng(0).random(512).astype(np.float32)
    values = jax.jit(bucket_order.set)(state.sampler.order, np.arange(512), errors)
    return state._replace(sampler=state.sampler._replace(order=values))


def test_metrics_contain_the_quantiles():
    errors = np.arange(1.0, 101.0)
    metrics = made(RankConfig(), 100, 100).metrics(held(RankConfig(), errors))
    assert float(metrics["mean_priority"]) == pytest.approx(50.5)
    assert float(metrics["max_priority"]) == 100.0
    for name, value in (("p10", 10.5), ("p50", 50.5), ("p90", 90.5)):
        assert value / 1.14 <= float(metrics[f"priority_{name}"]) <= value * 1.01


@pytest.mark.parametrize("order", ["buckets", "sorted"])
@pytest.mark.parametrize("sampling", ["segments", "iid", "greedy"])
def test_draws_follow_the_probabilities(sampling, order):
    errors = np.random.default_rng(1).normal(size=20)
    config = RankConfig(sampling=sampling, order=order)
    state = held_small(config, errors)
    replay = made(config, 24, 6)
    draws = 4000
    keys = jax.random.split(jax.random.key(5), draws)
    indices = jax.jit(jax.vmap(lambda key: replay.sample(state, key).indices))(keys)
    counts = np.bincount(np.asarray(indices).ravel(), minlength=24)
    expected = 6 * draws * np.float64(replay.probability(state, np.arange(24)))
    assert expected.sum() == pytest.approx(6 * draws, rel=1e-5)
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 1e-9).all()
    if sampling == "greedy":
        assert set(np.flatnonzero(counts)) == set(np.argsort(-np.abs(errors))[:6])


def held_small(config, errors):
    """Like `held`, with updates in batches of 6 and more slots than transitions."""
    replay = made(config, 24, 6)
    state = replay.init(jax.random.key(0), EXAMPLE)
    for _ in errors:
        state = replay.add(state, ROW)
    for start in (0, 6, 12, 14, 14, 14):
        slots = np.arange(start, start + 6)
        state = told(config, state, slots, errors[slots], 6)
    return state


def test_effective_weights_make_means_unbiased():
    config = RankConfig(
        weights="effective", beta=1.0, beta_end=1.0, normalise="none", order="sorted"
    )
    values = np.random.default_rng(2).normal(size=24)
    state = held_small(config, values[:20])
    replay = made(config, 24, 6)

    def estimate(key):
        batch = replay.sample(state, key)
        return (batch.weights * jnp.asarray(values, jnp.float32)[batch.indices]).mean()

    estimates = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(0), 20_000))
    estimates = np.asarray(estimates)
    standard_error = float(estimates.std()) / np.sqrt(20_000)
    assert abs(float(estimates.mean()) - values[:20].mean()) < 4 * standard_error


def test_buffer_weights_reach_one_for_the_least_likely():
    for weights in ("rank", "effective"):
        config = RankConfig(weights=weights, normalise="buffer", order="sorted", beta=1.0)
        state = held_small(config, np.arange(1.0, 21.0))
        replay = made(config, 24, 6)
        keys = jax.random.split(jax.random.key(0), 500)
        drawn = jax.jit(jax.vmap(lambda key: replay.sample(state, key).weights))(keys)
        assert float(drawn.max()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"alpha": -0.1}, ("alpha", "-0.1")),
        ({"beta": 1.5}, ("beta", "1.5")),
        ({"beta_updates": 0}, ("beta_updates", "0")),
        ({"order": "heap"}, ("order", "heap")),
        ({"alpha_end": -1.0}, ("alpha_end", "-1.0")),
        ({"alpha_updates": 0}, ("alpha_updates", "0")),
        ({"sampling": "heap"}, ("sampling", "heap")),
        ({"weights": "exact"}, ("weights", "exact")),
        ({"normalise": "max"}, ("normalise", "max")),
        ({"loss": "l3"}, ("loss", "l3")),
    ],
)
def test_options_out_of_range_are_refused(options, parts):
    with refused(*parts):
        RankConfig(**options)


def test_batches_larger_than_the_capacity_are_refused():
    with refused("batch_size", "9", "capacity", "8"):
        Replay(sampler(), capacity=8, batch_size=9)


def test_ranks_of_the_refer_paper_by_hand():
    config = RankConfig(alpha=0.5, sampling="iid", order="sorted")
    state = held(config, [0.5, 2, 1, 4])
    replay = made(config, 4, 4)
    expected = [0.1795682214, 0.253947814, 0.2073475219, 0.3591364427]
    np.testing.assert_allclose(replay.probability(state, np.arange(4)), expected, rtol=1e-6)
