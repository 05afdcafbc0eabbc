"""Geometric replay: probabilities fall geometrically with age; other shapes have the same mean age.

The idea is from arXiv:2605.10236, whose code and parametrisation were not available.
"""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import devices, numerics, objectives
from jaxreplay import ring as ring_
from jaxreplay.methods import options
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import Array, Draw

_FADE = 0.9999
_FLAT = 1e-4  # below this product of rate and steps, draws are uniform
_BLOCK = 2**12  # steps in a block; ages in more steps than 16 blocks are drawn in two parts
_HALVINGS = 32  # of the interval that contains the rate of a comb


@dataclasses.dataclass(frozen=True)
class GeometricConfig(Config):
    """Hyperparameters of geometric replay and of the distributions to compare it with."""

    shape: Literal["geometric", "window", "newest_or_uniform", "comb", "linear", "weighted"] = (
        option(
            "geometric",
            "probabilities by age, all with the mean age of 'geometric': falling geometrically "
            "(geometric); uniform over a window of recent steps (window); a mixture of the newest "
            "steps and of all steps (newest_or_uniform); geometric over every j-th age (comb); "
            "falling linearly (linear); or uniform draws with the probabilities of 'geometric' as "
            "weights (weighted)",
        )
    )
    fade: float | None = option(
        None,
        f"factor by which every later transition multiplies a probability; none: {_FADE}, unless x "
        "or share is given",
        above=0,
        below=1,
    )
    x: float | None = option(
        None,
        "log of the ratio of the newest transition's probability to the oldest's, for any number "
        "of stored transitions; replaces fade",
        at_least=0,
    )
    share: float | None = option(
        None,
        "share of the stored steps that shape 'window' draws from; none: the window with the mean "
        "age of 'geometric'",
        above=0,
        at_most=1,
    )
    newest: int = option(
        1, "number of steps that shape 'newest_or_uniform' counts as newest", at_least=1
    )
    every: int = option(2, "j: shape 'comb' draws only ages that are multiples of j", at_least=1)
    loss: LossName = option("agent", options.LOSS)

    def check(self) -> None:
        """Raise ValueError if options exclude each other."""
        given = [name for name in ("fade", "x", "share") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: give only one of them")
        if self.share is not None and self.shape != "window":
            raise ValueError(f"share requires shape 'window', got '{self.shape}': use fade or x")


class Geometric(NamedTuple):
    """Distribution of ages 0, j, 2j, ... below j `steps`, with P(age) ~ e^(-rate age / j)."""

    rate: Array  # [] float32
    steps: Array  # [] int32
    every: int = 1  # j
    most: int = 1  # largest possible `steps`

    def draw(self, bits: Array) -> Array:
        """Return independent ages `[B]` int32 for random bits `[3, B]` uint32."""
        shares = (bits >> 8) * jnp.float32(2.0**-24)
        ages = _quantile(shares[0], self.rate, self.steps)
        if self.most > 16 * _BLOCK:  # the bits of one share distinguish too few ages
            start = ages // _BLOCK * _BLOCK
            left = jnp.minimum(self.steps - start, _BLOCK)
            ages = start + _quantile(shares[1], self.rate, left)
        return ages * self.every

    def mass(self, ages: Array) -> Array:
        """Return the probabilities `[n]` float32 of ages `[n]` int32."""
        x = self.rate * self.steps
        steepness = jnp.where(x < _FLAT, 0.0, self.rate)
        largest = jnp.where(
            x < _FLAT, 1.0 / self.steps, jnp.expm1(-steepness) / jnp.expm1(-jnp.maximum(x, _FLAT))
        )
        number = ages // self.every
        chance = largest * jnp.exp(-steepness * number.astype(jnp.float32))
        return jnp.where((ages % self.every == 0) & (number < self.steps), chance, 0.0)


class Part(NamedTuple):
    """Distribution of ages below a width w: uniform, or with P(age) ~ w - age."""

    width: Array  # [] int32
    falls: Array  # [] bool, whether probabilities fall with age

    def mass(self, ages: Array) -> Array:
        """Return the probabilities `[n]` float32 of ages `[n]` int32."""
        width = self.width.astype(jnp.float32)
        chance = jnp.where(self.falls, 2 * (width - ages) / (width * (width + 1)), 1 / width)
        return jnp.where(ages < self.width, chance, 0.0)


class Mixture(NamedTuple):
    """Distribution of ages: the first part with probability `share`, otherwise the second part."""

    share: Array  # [] float32
    first: Part
    second: Part

    def draw(self, bits: Array) -> Array:
        """Return independent ages `[B]` int32 for random bits `[3, B]` uint32."""
        is_first = (bits[0] >> 8) * jnp.float32(2.0**-24) < self.share
        width = jnp.where(is_first, self.first.width, self.second.width).astype(jnp.uint32)
        falls = jnp.where(is_first, self.first.falls, self.second.falls)
        # The smaller of integers below w and w + 1 has probabilities in proportion to w - age.
        even = numerics.multiply_high(bits[1], width)
        other = numerics.multiply_high(bits[2], width + 1)
        return jnp.where(falls, jnp.minimum(even, other), even).astype(jnp.int32)

    def mass(self, ages: Array) -> Array:
        """Return the probabilities `[n]` float32 of ages `[n]` int32."""
        return self.share * self.first.mass(ages) + (1 - self.share) * self.second.mass(ages)


def mean_age(rate: Array, count: Array) -> Array:
    """Return the mean `[]` float32 of ages k below `count` with probabilities ~ e^(-rate k).

    Example:
      >>> round(float(mean_age(jnp.log(2.0), jnp.int32(4))), 5)
      0.73333
    """
    x = rate * count
    small = jnp.where(x < _FLAT, 0.0, jnp.minimum(x, 1.0))
    # The difference of two large terms loses digits if x is small.
    series = (count - 1) / 2 - count * _bernoulli(small) + _bernoulli(small / count)
    safe = jnp.where(x < 1, 1.0, rate)
    large = 1 / jnp.expm1(safe) - count / jnp.expm1(jnp.where(x < 1, 1.0, x))
    return jnp.where(x < 1, series, large)


def ages(config: GeometricConfig, ring: Ring) -> Geometric | Mixture:
    """Return the distribution of the ages, in steps, of drawn transitions."""
    most = ring_.num_steps(ring)
    count = jnp.clip(ring.steps_added, 1, most)
    if config.x is not None:
        rate = jnp.asarray(config.x, jnp.float32) / count
    else:
        fade = _FADE if config.fade is None else config.fade
        per_step = ring.num_envs * devices.count(ring.axis_name)
        rate = jnp.float32(-math.log(fade) * per_step)
    if config.shape in ("geometric", "weighted"):
        return Geometric(rate, count, most=most)
    mean = mean_age(rate, count)
    if config.shape == "comb":
        teeth = (count - 1) // config.every + 1
        return Geometric(_rate(mean / config.every, teeth), teeth, config.every, most)
    return {"window": _window, "linear": _linear, "newest_or_uniform": _newest_or_uniform}[
        config.shape
    ](config, mean, count)


@dataclasses.dataclass(frozen=True)
class GeometricReplay(Sampler):
    """Samples steps by age, and their environments uniformly.

    Weights are 1 unless `shape="weighted"`. With `shape="geometric"` and n stored steps of E
    environments, the step of age k has the probability `q^k (1 - q) / (1 - q^n)`, where
    `q = fade^E`. The E transitions of a step are equally likely. Draws are independent and with
    replacement.
    """

    config: GeometricConfig = GeometricConfig()
    needs_whole = None

    @property
    def is_uniform(self) -> bool:
        return self.config.shape == "weighted"

    def init(self, key: Array, ring: Ring) -> None:
        return None

    def sample(self, state: None, ring: Ring, key: Array, batch_size: int) -> Draw:
        bits = numerics.bits(key, (4, batch_size))
        ones = jnp.ones(batch_size, jnp.float32)
        if self.config.shape == "weighted":
            size = jnp.maximum(ring_.size(ring), 1)
            slots = numerics.multiply_high(bits[0], size.astype(jnp.uint32)).astype(jnp.int32)
            weights = size * self._by_age(ring, slots)
            return Draw(slots, weights, probability=devices.share(ones / size, ring.axis_name))
        age = ages(self.config, ring).draw(bits[:3])
        env = numerics.multiply_high(bits[3], jnp.uint32(ring.num_envs)).astype(jnp.int32)
        slots = ring_.recent(ring, age * ring.num_envs + env)
        return Draw(slots, ones, probability=self.probability(state, ring, slots, batch_size))

    def probability(self, state: None, ring: Ring, slots: Array, batch_size: int) -> Array:
        if self.config.shape == "weighted":
            return ring_.even_probability(ring, slots)
        return devices.share(self._by_age(ring, slots), ring.axis_name)

    def _by_age(self, ring: Ring, slots: Array) -> Array:
        """Return the probabilities `[n]` of slots `[n]` on this device."""
        chance = ages(self.config, ring).mass(ring_.age(ring, slots)) / ring.num_envs
        return jnp.where(slots < ring_.size(ring), chance, 0.0)


sampler = GeometricReplay


def method(config: GeometricConfig = GeometricConfig()) -> Method:
    """Return geometric replay: the sampler, and an objective that averages losses.

    With `shape="weighted"`, losses are weighted before they are averaged.
    """
    error = objectives.named(config.loss)
    weighted = config.shape == "weighted"
    return Method(
        sampler(config), objectives.weighted(error) if weighted else objectives.plain(error)
    )


def _quantile(share: Array, rate: Array, count: Array) -> Array:
    """Return quantiles `[B]` int32, below `count`, at cumulative probabilities `share` `[B]`."""
    x = rate * count
    age = -jnp.log1p(share * jnp.expm1(-x)) / jnp.where(x < _FLAT, 1.0, rate)
    age = jnp.where(x < _FLAT, share * count, age)
    return jnp.minimum(age.astype(jnp.int32), count - 1)


def _bernoulli(y: Array) -> Array:
    """Return 1 / (e^y - 1) - 1 / y + 1 / 2 for y in [0, 1], with a relative error of 3e-7."""
    square = y * y
    terms = (1 / 12, -1 / 720, 1 / 30_240, -1 / 1_209_600)
    total: Any = 0.0
    for term in reversed(terms):
        total = total * square + term
    return y * total


def _rate(mean: Array, count: Array) -> Array:
    """Return the rate `[]` for which `mean_age` is `mean`, or nearly 0 if there is no such rate."""

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = jnp.sqrt(low * high)
        older = mean_age(middle, count) > mean
        return jnp.where(older, middle, low), jnp.where(older, high, middle)

    ends = jnp.float32(_FLAT) / count, jnp.full_like(mean, 20.0)
    return jax.lax.fori_loop(0, _HALVINGS, halve, ends)[0]


def _window(config: GeometricConfig, mean: Array, count: Array) -> Mixture:
    no = jnp.zeros((), bool)
    if config.share is not None:
        width = jnp.ceil(config.share * count * jnp.float32(1 - 1e-6))  # not up after rounding
        part = Part(jnp.clip(width.astype(jnp.int32), 1, count), no)
        return Mixture(jnp.ones((), jnp.float32), part, part)
    width = jnp.floor(2 * mean + 1)
    share = 1 - (2 * mean + 1 - width)
    width = width.astype(jnp.int32)
    first, second = (Part(jnp.minimum(w, count), no) for w in (width, width + 1))
    return Mixture(share, first, second)


def _newest_or_uniform(config: GeometricConfig, mean: Array, count: Array) -> Mixture:
    newest, no = jnp.minimum(config.newest, count), jnp.zeros((), bool)
    span = (count - newest) / 2  # between the mean ages of both
    share = ((count - 1) / 2 - mean) / jnp.maximum(span, 0.5)
    return Mixture(jnp.clip(share, 0.0, 1.0), Part(newest, no), Part(count, no))


def _linear(config: GeometricConfig, mean: Array, count: Array) -> Mixture:
    """Return probabilities in proportion to max(W - age, 0) for a real W.

    The result is a mixture of two linear parts whose widths differ by 1. If W exceeds the number of
    ages, it is a mixture of a linear and a uniform part, both over all ages.
    """
    reaches = mean > (count - 1) / 3  # the oldest age
    width = jnp.floor(3 * mean + 1)
    narrow = 1 - (3 * mean + 1 - width)
    wide = ((count - 1) / 2 - mean) / jnp.maximum((count - 1) / 6, 1 / 6)
    width = jnp.minimum(width.astype(jnp.int32), count)
    return Mixture(
        jnp.where(reaches, wide, narrow),
        Part(jnp.where(reaches, count, width), jnp.ones((), bool)),
        Part(jnp.where(reaches, count, jnp.minimum(width + 1, count)), ~reaches),
    )
