"""Geometric replay and its controls: numbers by hand, and a NumPy reference of exact sums."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay.contrib import geometric
from jaxreplay.contrib.geometric import Geometric, GeometricConfig
from tests.refusals import refused
from tests.slots import Slots

BASE = geometric.sampler()
SHAPES = ("geometric", "window", "newest_or_uniform", "comb", "linear")


def truncated(q, count):
    chance = q ** np.arange(count, dtype=np.float64)
    return chance / chance.sum()


def bisect(chance_of, low, high, mean):
    """Return the distribution with this mean age, which rises from `low` to `high`."""
    for _ in range(200):
        middle = (low + high) / 2
        chance = chance_of(middle)
        if chance @ np.arange(len(chance)) < mean:
            low = middle
        else:
            high = middle
    return chance_of(high)


def reference(shape, q, count, newest=1, every=2):
    """Return the probability of every age, by bisection on exact sums."""
    geo, ages = truncated(q, count), np.arange(count)
    mean = geo @ ages
    uniform = np.full(count, 1 / count)

    def comb(rate):
        teeth = np.where(ages % every == 0, rate ** (ages / every), 0.0)
        return teeth / teeth.sum()

    def window(width):
        whole = math.floor(width)
        parts = [(ages < w) / np.clip(w, 1, count) for w in (whole, whole + 1)]
        return parts[0] * (1 - width + whole) + parts[1] * (width - whole)

    def linear(width):
        chance = np.maximum(width - ages, 0)
        return chance / chance.sum()

    def near(share):
        return share * uniform + (1 - share) * (ages < newest) / min(newest, count)

    of = {
        "geometric": lambda: geo,
        "comb": lambda: bisect(comb, 1e-9, 1.0, mean),
        "window": lambda: bisect(window, 1.0, count, mean),
        "linear": lambda: bisect(linear, 1e-9, 1e9, mean),
        "newest_or_uniform": lambda: bisect(near, 0.0, 1.0, mean),
    }
    return of[shape]()


def by_age(slots):
    """Return the probability of every age, with one environment."""
    steps = min(slots.time, slots.capacity)
    age = (slots.time - 1 - np.arange(slots.capacity)) % slots.capacity
    chance = np.zeros(slots.capacity)
    chance[age] = slots.probability()
    assert not chance[steps:].any()
    return chance[:steps]


def entropy(chance):
    positive = chance[chance > 0]
    return -(positive * np.log(positive)).sum() / np.log(len(chance))


def test_four_steps_by_hand():
    slots = Slots(geometric.sampler(GeometricConfig(fade=0.5)), 6, 3, count=4)
    chance = by_age(slots)
    np.testing.assert_allclose(chance, [0.53333, 0.26667, 0.13333, 0.06667], atol=1e-5)
    assert entropy(chance) == pytest.approx(0.82011, abs=1e-5)
    assert 1 / (4 * (chance**2).sum()) == pytest.approx(0.66176, abs=1e-5)
    log2 = jnp.float32(math.log(2))
    assert float(geometric.mean_age(log2, jnp.int32(4))) == pytest.approx(0.73333, abs=1e-5)
    bits = jnp.broadcast_to(
        jnp.asarray(np.array([0, 0.533, 0.534, 0.801, 0.94]) * 2**32, jnp.uint32), (3, 5)
    )
    assert Geometric(log2, jnp.int32(4)).draw(bits).tolist() == [0, 0, 1, 2, 3]


def test_two_environments_after_a_wraparound_by_hand():
    slots = Slots(geometric.sampler(GeometricConfig(fade=0.5**0.5)), 8, num_envs=2, count=5)
    expected = np.repeat([0.26667, 0.03333, 0.06667, 0.13333], 2)
    np.testing.assert_allclose(slots.probability(), expected, atol=1e-5)


def test_window_of_a_share_by_hand():
    slots = Slots(geometric.sampler(GeometricConfig(shape="window", share=0.25)), 10, 1)
    assert by_age(slots.add()).tolist() == [1.0]
    np.testing.assert_allclose(by_age(slots.add(9)), [1 / 3] * 3 + [0] * 7, rtol=1e-6)
    tenth = Slots(geometric.sampler(GeometricConfig(shape="window", share=0.1)), 10, 1, count=10)
    assert by_age(tenth)[0] == 1.0  # although 0.1 is more than a tenth in float32


@pytest.mark.parametrize("fade", [0.999999, 0.8, 0.2])
@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities_equal_those_of_exact_sums(shape, fade):
    config = GeometricConfig(shape=shape, fade=fade, newest=2, every=3)
    slots = Slots(geometric.sampler(config), 12, 3, base=BASE)
    for count in range(1, 15):
        found = by_age(slots.add())
        expected = reference(shape, fade, min(count, 12), newest=2, every=3)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=3e-6)
        assert found.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_draws_follow_the_probabilities(shape):
    for x in (0.0, 6.0):
        config = GeometricConfig(shape=shape, x=x, every=3)
        slots = Slots(geometric.sampler(config), 24, 20, num_envs=2, count=17, base=BASE)
        batch = slots.draws(3000)
        found = np.bincount(batch.indices.ravel(), minlength=24) / batch.indices.size
        chance = slots.probability()
        np.testing.assert_allclose(found, chance, atol=4 * np.sqrt(chance.max() / 60_000))
        np.testing.assert_allclose(batch.probability, chance[batch.indices], rtol=1e-6)
        assert (batch.weights == 1).all()


def test_x_is_the_log_of_the_ratio_of_oldest_and_newest_however_many_are_stored():
    slots = Slots(geometric.sampler(GeometricConfig(x=4.0)), 50, 3)
    for count in (20, 30):
        chance = by_age(slots.add(count))
        steps = len(chance)
        assert np.log(chance[0] / chance[-1]) == pytest.approx(4 * (steps - 1) / steps, rel=1e-4)


def test_weighted_draws_are_uniform_with_the_probabilities_of_the_geometric_as_weights():
    config = GeometricConfig(shape="weighted", x=3.0)
    slots = Slots(geometric.sampler(config), 20, 20, num_envs=2, count=12)
    plain = Slots(geometric.sampler(GeometricConfig(x=3.0)), 20, 20, num_envs=2, count=12)
    np.testing.assert_allclose(slots.probability(), 1 / 20)
    batch = slots.sample()
    np.testing.assert_allclose(batch.weights, 20 * plain.probability()[batch.indices], rtol=1e-5)
    assert geometric.sampler(config).is_uniform
    assert geometric.method(config).objective.critic != geometric.method().objective.critic


@pytest.mark.parametrize("rate", [1e-13, 3e-8, 1e-7, 1e-5, 1e-3, 0.5])
def test_mean_ages_and_masses_of_large_buffers(rate):
    count = 10_000_000
    q, x = np.exp(-np.float64(np.float32(rate))), rate * count
    expected = (count - 1) / 2 if x < 1e-4 else q / (1 - q) - count * q**count / (1 - q**count)
    found = float(geometric.mean_age(jnp.float32(rate), jnp.int32(count)))
    assert found == pytest.approx(expected, rel=1e-4)
    ages = np.array([0, 1, count // 2, count - 1])
    expected = q**ages * (1 / count if x < 1e-4 else (1 - q) / (1 - q**count))
    found = Geometric(jnp.float32(rate), jnp.int32(count)).mass(jnp.asarray(ages))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("x", [0.0, 2.0])
def test_every_age_of_large_buffers_can_be_drawn(x):
    """A float32 represents only even numbers from 2^24 on."""
    count = 2**25 + 100
    large = Geometric(jnp.float32(x / count), jnp.int32(count), most=count)
    bits = jax.random.bits(jax.random.key(0), (3, 200_000))
    ages = np.asarray(large.draw(bits))
    assert ages.min() >= 0 and ages.max() < count
    assert ages.max() > 0.99 * count
    np.testing.assert_allclose(np.bincount(ages % 4) / 200_000, 0.25, atol=0.005)
    mean = float(geometric.mean_age(large.rate, large.steps))
    assert ages.mean() == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize("count", [17 * 4096, 17 * 4096 + 3])
def test_blocks_do_not_change_the_distribution(count):
    whole = Geometric(jnp.float32(3 / count), jnp.int32(count))
    bits = jax.random.bits(jax.random.key(1), (3, 200_000))
    edges = np.linspace(0, count, 21).astype(int)
    exact = np.asarray(whole.mass(jnp.arange(count)), np.float64)
    expected = np.add.reduceat(exact, edges[:-1])
    for distribution in (whole, whole._replace(most=count)):
        found = np.histogram(np.asarray(distribution.draw(bits)), edges)[0] / 200_000
        np.testing.assert_allclose(found, expected, atol=4 * np.sqrt(expected.max() / 200_000))


def test_options_that_exclude_each_other_are_refused():
    with refused("fade", "x"):
        GeometricConfig(fade=0.9, x=1.0)
    with refused("share", "window", "geometric"):
        GeometricConfig(share=0.5)
    for option, value in (("fade", 1.0), ("x", -1.0), ("newest", 0), ("every", 0)):
        with refused(option, value):
            GeometricConfig(**{option: value})
