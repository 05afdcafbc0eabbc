"""Quantities of replay, by numbers worked out by hand."""

import numpy as np
import pytest

from jaxreplay._internal import measures
from jaxreplay._internal.measures import Gradients

GEOMETRIC = np.array([8, 4, 2, 1]) / 15  # by age, with q = 1/2
G = np.array([[3.0, 0], [0, 1], [0, -1], [1, 0]])


def gradients(chance, weights):
    scaled = np.atleast_2d(chance * weights)
    return Gradients(np.square(G).sum(axis=1), G.mean(axis=0), scaled @ G)


def effect(chance, weights, batch_size=2):
    chance, weights = np.atleast_2d(chance), np.atleast_2d(weights)
    return measures.effects(gradients(chance, weights), chance, weights, batch_size)[0]


def test_use_of_the_buffer():
    assert measures.entropy(GEOMETRIC) == pytest.approx(0.82011, abs=1e-5)
    assert measures.effective_buffer(GEOMETRIC) == pytest.approx(0.66176, abs=1e-5)
    assert measures.entropy(np.ones(1)) == 1
    assert measures.entropy(np.array([1.0, 0])) == 0


def test_staleness():
    stored, now = np.array([1, 1, 0.5, 0.1]), np.array([0.2, 0.6, 0.5, 0.1])
    chances = [values**0.6 / (values**0.6).sum() for values in (stored, now)]
    assert measures.total_variation(*chances) == pytest.approx(0.156, abs=1e-3)
    assert measures.rank_correlation(stored, now) == pytest.approx(0.632, abs=1e-3)
    drawn = np.array([True, False, True, True])
    assert measures.rank_correlation(stored[~drawn], now[~drawn]) != 1  # a single one
    drawn = np.array([False, True, True, True])
    assert measures.rank_correlation(stored[drawn], now[drawn]) == pytest.approx(1)
    assert np.isnan(measures.rank_correlation(np.ones(4), now))


def test_effects_of_gradients():
    even = np.full(4, 0.25)
    uniform = effect(even, np.ones(4))
    assert uniform == pytest.approx((1, 0, 1, 1))
    best = measures.oracle(gradients(even, np.ones(4)), 2)
    assert (best.cosine, best.bias, best.variance) == pytest.approx((1, 0, 0.625))
    chance = np.array([0.4, 0.3, 0.2, 0.1])
    skewed = effect(chance, np.ones(4))
    assert skewed == pytest.approx((0.9971, 0.077, 1.25, 0.735), abs=1e-3)
    corrected = effect(chance, 1 / (4 * chance))
    assert (corrected.bias, corrected.variance) == pytest.approx((0, 0.776), abs=1e-3)
    opposed = effect(np.array([0, 0, 1.0, 0]), np.ones(4))
    assert opposed.cosine == 0 and np.isnan(opposed.bias)


def test_the_oracle_has_the_smallest_variance_without_bias():
    rng = np.random.default_rng(0)
    best = measures.oracle(gradients(np.full(4, 0.25), np.ones(4)), 2)
    for chance in rng.dirichlet(np.ones(4), size=50):
        assert effect(chance, 1 / (4 * chance)).variance >= best.variance - 1e-12


def test_gradients_by_the_output_are_orthogonal():
    slopes, even = np.array([2.0, -1.0]), np.full((1, 2), 0.5)
    found = measures.effects(measures.by_output(slopes, even), even, np.ones((1, 2)), 1)[0]
    assert (found.cosine, found.variance) == pytest.approx((1, 2.5 - 1.25))


def test_time_to_the_first_draw():
    waits, seen = np.array([3, 1, 10, 2] + 6 * [20]), np.array(4 * [True] + 6 * [False])
    assert measures.median_wait(waits, seen) == np.inf
    assert measures.median_wait(np.arange(1, 5), np.ones(4, bool)) == 2
    # Censored waits leave the risk set: 1 of 4, then 1 of 2.
    assert measures.median_wait(np.array([1, 2, 3, 4]), np.array([True, False, True, False])) == 3


def test_forecasts_of_uniform_replay():
    assert measures.forecast_undrawn(2, full=False) == pytest.approx(1 / 3)
    assert measures.forecast_undrawn(8, full=False) == pytest.approx(0.11, abs=2e-3)
    assert measures.forecast_wait(2, 20_000, full=False) == pytest.approx(8284, abs=1)
    # In a full ring, a transition of age a is undrawn with probability exp(-V a / C).
    share = np.exp(-3 * (np.arange(1000) + 0.5) / 1000).mean()
    assert measures.forecast_undrawn(3, full=True) == pytest.approx(share, rel=1e-5)
    assert measures.forecast_wait(3, 1000, full=True) == pytest.approx(1000 * np.log(2) / 3)
    assert measures.forecast_undrawn(0, full=True) == 1
    assert measures.forecast_wait(0, 10, full=False) == np.inf
