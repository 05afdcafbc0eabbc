"""Combined experience replay, CER (Zhang & Sutton 2017): every batch includes the newest steps."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay import ring as ring_
from jaxreplay.methods.parts.over import OverOptions, check_inner
from jaxreplay.option import Bounds, check_kind, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import Array, Draw, Requirements, Sample, State, Tree

_PAPER = "Zhang & Sutton 2017"


@dataclasses.dataclass(frozen=True)
class CERConfig(OverOptions):
    """Hyperparameters of CER over a method with its default options (see `combine`)."""

    newest: int | None = option(
        None,
        "number of newest transitions in each batch, a multiple of the number of environments to "
        "treat these equally; none: one for each environment",
        f"{_PAPER}: 1",
        at_least=1,
    )
    unbiased: bool = option(
        False,
        "importance weights 1 / (N P(i)), with which the batch mean estimates the buffer's, and "
        "which replace those of the inner method",
    )


@dataclasses.dataclass(frozen=True)
class CombinedExperience(Sampler):
    """Samples the k newest transitions, and the other B - k rows of a batch from an inner sampler.

    The newest transitions are the last rows of the batch, oldest first, with weights of 1. Within a
    step, transitions are ordered by environment, and the first environment counts as the newest. A
    batch contains at most B of them. The inner sampler may draw them as well, and receives the
    feedback on all rows, or on its own rows if it describes them by auxiliary arrays.

    Args:
      inner: sampler of single transitions, such as `rank.sampler()`.
      newest: k; None means one for each environment.
      unbiased: whether weights are `1 / (N P(i))` instead of the inner sampler's.

    Raises:
      ValueError: If the inner sampler draws sequences, windows or only new transitions, or learns
        from returns.
    """

    inner: Sampler
    newest: int | None = None
    unbiased: bool = False

    def __post_init__(self) -> None:
        inner = self.inner
        check_inner(inner)
        if self.newest is not None:
            check_kind("newest", self.newest, int)
            Bounds(at_least=1).check("newest", self.newest)
        if inner.requires.episode_returns:
            raise ValueError(
                f"inner must not learn from returns, got {type(inner).__name__}: use another "
                "sampler of single transitions, such as per.sampler()"
            )

    @property
    def requires(self) -> Requirements:
        return self.inner.requires._replace(new_steps=True)

    @property
    def capacity_factor(self) -> int:
        return self.inner.capacity_factor

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        if drawn := batch_size - self._count(num_envs, batch_size):
            self.inner.check_sizes(capacity, num_envs, drawn)

    def init(self, key: Array, ring: Ring) -> State:
        return self.inner.init(key, ring)

    def add(
        self, state: State, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> State:
        return self.inner.add(state, ring, slots, transition, **feedback)

    def sample(self, state: State, ring: Ring, key: Array, batch_size: int) -> Draw:
        count = self._count(ring.num_envs, batch_size)
        drawn = batch_size - count
        order = jnp.arange(count, dtype=jnp.int32)[::-1] % jnp.maximum(ring_.size(ring), 1)
        newest = ring_.recent(ring, order)
        ones = jnp.ones(count, jnp.float32)
        if not drawn:
            chance = self.probability(state, ring, newest, batch_size)
            return Draw(newest, self._weights(ring, ones, chance), probability=chance)
        draw = self.inner.sample(state, ring, key, drawn)
        slots = jnp.concatenate([draw.indices, newest])
        weights = jnp.concatenate([draw.weights, ones])
        if draw.probability is None and not self.unbiased:
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
            batch_size = len(sample.indices)
            drawn = slice(batch_size - self._count(ring.num_envs, batch_size))
            rest = jax.tree.map(lambda x: x[drawn], sample._replace(aux=None))
            sample = rest._replace(aux=sample.aux)
            feedback = {name: values[drawn] for name, values in feedback.items()}
        return self.inner.update(state, ring, sample, **feedback)

    def end_episodes(self, state: State, ring: Ring) -> State:
        return self.inner.end_episodes(state, ring)

    def probability(self, state: State, ring: Ring, slots: Array, batch_size: int) -> Array:
        drawn = batch_size - self._count(ring.num_envs, batch_size)
        chance = jnp.zeros(slots.shape, jnp.float32)
        if drawn:
            chance = self.inner.probability(state, ring, slots, drawn)
        return self._mixed(ring, slots, chance, batch_size)

    def metrics(self, state: State, ring: Ring) -> dict[str, Array]:
        metrics = self.inner.metrics(state, ring)
        if self.unbiased:  # replaces the inner sampler's weights, and its beta
            metrics.pop("beta", None)
        return metrics

    def _count(self, num_envs: int, batch_size: int) -> int:
        return min(num_envs if self.newest is None else self.newest, batch_size)

    def _mixed(self, ring: Ring, slots: Array, chance: Array, batch_size: int) -> Array:
        """Return the probabilities of `slots` `[n]`, given the inner ones, `chance` `[n]`."""
        count, size = self._count(ring.num_envs, batch_size), jnp.maximum(ring_.size(ring), 1)
        order = ring_.age(ring, slots) * ring.num_envs + slots % ring.num_envs
        # A buffer with fewer than k transitions repeats them.
        times = count // size + (order < count % size)
        share = chance * jnp.float32((batch_size - count) / batch_size)
        newest = times.astype(jnp.float32) * jnp.float32(1.0 / batch_size)
        return share + jnp.where(slots < ring_.size(ring), newest, 0.0)

    def _weights(self, ring: Ring, weights: Array, chance: Array) -> Array:
        if not self.unbiased:
            return weights
        return 1.0 / (jnp.maximum(ring_.size(ring), 1).astype(jnp.float32) * chance)


def sampler(config: CERConfig = CERConfig()) -> CombinedExperience:
    """Return the CER sampler, over an inner sampler with default options."""
    return CombinedExperience(config.inner.sampler, config.newest, config.unbiased)


def method(config: CERConfig = CERConfig()) -> Method:
    """Return CER: the sampler, and the objective of the inner method."""
    return combine(config.inner, config.newest, config.unbiased)


def combine(inner: Method, newest: int | None = None, unbiased: bool = False) -> Method:
    """Return a method whose batches include the newest transitions.

    Args:
      inner: method that draws the rest of each batch, with any options.
      newest: number of newest transitions in each batch; None means one for each environment.
      unbiased: whether importance weights are `1 / (N P(i))` instead of the inner method's. The
        objective is then `objectives.weighted` with the inner method's loss.

    Raises:
      ValueError: If `inner` is not a method, draws sequences, windows or only new transitions, or
        learns from returns.

    Example:
      >>> from jaxreplay.methods import rank
      >>> combine(rank.method(rank.RankConfig(alpha=0.6))).sampler.requires.feedback
      frozenset({'td_error'})
    """
    if not isinstance(inner, Method):
        raise ValueError(f"inner must be a method, such as per.method(), got {inner!r}")
    combined = inner._replace(sampler=CombinedExperience(inner.sampler, newest, unbiased))
    weighted = objectives.weighted(inner.objective.error)
    if unbiased and inner.objective.critic is not weighted.critic:
        return combined._replace(objective=weighted)
    return combined
