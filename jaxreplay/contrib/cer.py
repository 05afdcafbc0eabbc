"""Combined experience replay, CER (Zhang & Sutton 2017): every batch includes the newest steps."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay import ring as ring_
from jaxreplay.batches import Parts, join
from jaxreplay.methods import options
from jaxreplay.methods.parts.over import Inner, Transparent, check_inner, inner_method
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import Array, Draw, Requirements, Sample, State

_PAPER = "Zhang & Sutton 2017"


@dataclasses.dataclass(frozen=True)
class CERConfig(Config):
    """Hyperparameters of CER; the inner method `over` has its default options (see `combine`)."""

    over: Inner = option("uniform", options.OVER)
    over_updates: int | None = option(None, options.OVER_UPDATES)
    newest: int | None = option(
        None,
        "number of newest transitions in each batch; only multiples of the number of environments "
        "treat all environments equally; none: one for each environment",
        f"{_PAPER}: 1",
        at_least=1,
    )
    unbiased: bool = option(
        False,
        "use weights 1 / (N P(i)), with which the mean over a batch estimates the mean over the "
        "buffer, instead of the inner method's weights",
    )


@dataclasses.dataclass(frozen=True)
class CombinedExperience(Transparent):
    """Draws B - k transitions from an inner sampler, and adds the k newest transitions.

    The newest transitions are the last rows of the batch, oldest first, with weights of 1. Within a
    step, transitions are ordered by environment, and the first environment counts as the newest. If
    k exceeds B, the batch contains only the B newest transitions. The inner sampler may draw the
    newest transitions as well. It receives the feedback on all rows or, if its draws have auxiliary
    arrays, only on the rows that it drew.

    Args:
      inner: sampler of single transitions, such as `rank.sampler()`.
      config: options, of which `over` and `over_updates` are ignored.

    Raises:
      ValueError: If the inner sampler draws sequences, windows or only new transitions, or learns
        from episode returns.
    """

    needs_whole = "the newest transitions are those of all environments"

    config: CERConfig = CERConfig()

    def __post_init__(self) -> None:
        inner = self.inner
        check_inner(inner)
        if inner.requires.episode_returns:
            raise ValueError(
                f"inner must not learn from episode returns, got {type(inner).__name__}: use "
                "another sampler of single transitions, such as per.sampler()"
            )

    @property
    def requires(self) -> Requirements:
        return self.inner.requires._replace(new_steps=True)

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        drawn, _ = self.parts(num_envs, batch_size).sizes
        if drawn:
            self.inner.check_sizes(capacity, num_envs, drawn)

    def sample(self, state: State, ring: Ring, key: Array, batch_size: int) -> Draw:
        drawn, count = self.parts(ring.num_envs, batch_size).sizes
        order = jnp.arange(count, dtype=jnp.int32)[::-1] % jnp.maximum(ring_.size(ring), 1)
        newest = ring_.recent(ring, order)
        ones = jnp.ones(count, jnp.float32)
        if not drawn:
            chance = self.probability(state, ring, newest, batch_size)
            return Draw(newest, self._weights(ring, ones, chance), probability=chance)
        draw = self.inner.sample(state, ring, key, drawn)
        slots, weights = join((draw.indices, draw.weights), (newest, ones))
        if draw.probability is None and not self.config.unbiased:
            return Draw(slots, weights, draw.aux)
        if draw.probability is None:
            chance = self.inner.probability(state, ring, slots, drawn)
        else:
            chance = self.inner.probability(state, ring, newest, drawn)
            chance = jnp.concatenate([draw.probability, chance])
        chance = self._mixed(ring, slots, chance, batch_size)
        return Draw(slots, self._weights(ring, weights, chance), draw.aux, chance)

    def update(self, state: State, ring: Ring, sample: Sample, **feedback: Array) -> State:
        if jax.tree.leaves(sample.aux):  # describes the rows that the inner sampler drew
            parts = self.parts(ring.num_envs, len(sample.indices))
            sample, _ = parts.split_sample(sample, [sample.aux, None])
            feedback, _ = parts.split(feedback)
        return self.inner.update(state, ring, sample, **feedback)

    def probability(self, state: State, ring: Ring, slots: Array, batch_size: int) -> Array:
        drawn, _ = self.parts(ring.num_envs, batch_size).sizes
        chance = jnp.zeros(slots.shape, jnp.float32)
        if drawn:
            chance = self.inner.probability(state, ring, slots, drawn)
        return self._mixed(ring, slots, chance, batch_size)

    def metrics(self, state: State, ring: Ring) -> dict[str, Array]:
        metrics = self.inner.metrics(state, ring)
        if self.config.unbiased:  # replaces the inner sampler's weights, and its beta
            metrics.pop("beta", None)
        return metrics

    def parts(self, num_envs: int, batch_size: int) -> Parts:
        """Return the `Parts` of a batch: draws of the inner sampler, and newest transitions."""
        newest = num_envs if self.config.newest is None else self.config.newest
        count = min(newest, batch_size)
        return Parts((batch_size - count, count))

    def _mixed(self, ring: Ring, slots: Array, chance: Array, batch_size: int) -> Array:
        """Return the probabilities `[n]` of `slots`, given the inner sampler's `chance` `[n]`."""
        parts, size = self.parts(ring.num_envs, batch_size), jnp.maximum(ring_.size(ring), 1)
        _, count = parts.sizes
        order = ring_.age(ring, slots) * ring.num_envs + slots % ring.num_envs
        # A buffer with fewer than k transitions repeats them.
        times = count // size + (order < count % size)
        newest = jnp.where(slots < ring_.size(ring), times.astype(jnp.float32), 0.0) / count
        return parts.probability(chance, newest)

    def _weights(self, ring: Ring, weights: Array, chance: Array) -> Array:
        if not self.config.unbiased:
            return weights
        return 1.0 / (jnp.maximum(ring_.size(ring), 1).astype(jnp.float32) * chance)


def sampler(config: CERConfig = CERConfig()) -> CombinedExperience:
    """Return the CER sampler, over an inner sampler with default options."""
    return CombinedExperience(inner_method(config).sampler, config)


def method(config: CERConfig = CERConfig()) -> Method:
    """Return CER: the sampler, and the objective of the inner method."""
    return combine(inner_method(config), config)


def combine(inner: Method, config: CERConfig = CERConfig()) -> Method:
    """Return a method whose batches include the newest transitions.

    With the option `unbiased`, the objective is `objectives.weighted` with the inner method's loss.

    Args:
      inner: method that draws the rest of each batch, with any options.
      config: options, of which `over` and `over_updates` are ignored.

    Raises:
      ValueError: If `inner` is not a method, draws sequences, windows or only new transitions, or
        learns from episode returns.

    Example:
      >>> from jaxreplay.methods import rank
      >>> combine(rank.method(rank.RankConfig(alpha=0.6))).sampler.requires.feedback
      frozenset({'td_error'})
    """
    if not isinstance(inner, Method):
        raise ValueError(f"inner must be a method, such as per.method(), got {inner!r}")
    combined = inner._replace(sampler=CombinedExperience(inner.sampler, config))
    weighted = objectives.weighted(inner.objective.error)
    if config.unbiased and inner.objective.critic is not weighted.critic:
        return combined._replace(objective=weighted)
    return combined
