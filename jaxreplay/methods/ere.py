"""Emphasising recent experience, ERE (Wang & Ross 2019)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay import counters, numerics, objectives, schedules
from jaxreplay import ring as ring_
from jaxreplay.methods import options
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import Array, Draw, Requirements, Sample, Tree, get_field

_PAPER = "Wang & Ross 2019"


@dataclasses.dataclass(frozen=True)
class EREConfig(Config):
    """Hyperparameters of ERE."""

    eta: float = option(
        0.996,
        "initial decay factor of the window; 1 is uniform replay",
        f"{_PAPER}, Sec. 4",
        above=0,
        at_most=1,
    )
    eta_updates: int | None = option(
        None,
        "gradient steps over which eta increases linearly to 1; none: the whole run",
        f"{_PAPER}, Sec. 4",
        at_least=1,
        whole_run=True,
    )
    smallest: int = option(
        5000, "minimum number of transitions in the window", f"{_PAPER}, Sec. 4", at_least=1
    )
    loss: LossName = option("agent", options.LOSS)


class EREState(NamedTuple):
    """Update counts and window sizes in the current and previous episode of environment 0."""

    done: Array  # [] int32, k: number of updates since the latest episode ended
    length: Array  # [] int32, K: number of updates in the latest complete episode; initially 0
    updates: Array  # [] int32, number of calls to `update`
    widths: Array  # [] float32, sum of window sizes since the latest episode ended
    mean_width: Array  # [] float32, mean window size in the latest complete episode; initially 0


def window(done: Array, length: Array, eta: Array | float, capacity: int, smallest: int) -> Array:
    """Return the window size `[]`, the number of recent transitions from which to sample a batch.

    For the k-th of K updates in an episode, the size is `c_k = max(N eta^(1000 k / K), c_min)`
    (Wang & Ross 2019, Eq. 1), with k clipped to K - 1.

    Args:
      done: k, the number of updates performed in the episode.
      length: K, or 0 before the first complete episode; 0 selects the whole buffer.
      eta: decay factor in (0, 1].
      capacity: N, the number of slots in the ring buffer, as in the authors' code.
      smallest: c_min, the minimum window size.

    Example:
      >>> int(window(500, 1000, eta=0.996, capacity=1_000_000, smallest=5000))
      134793
    """
    k = jnp.where(length > 0, jnp.minimum(done, length - 1), 0)
    width = capacity * eta ** (k * 1000.0 / jnp.maximum(length, 1))
    return jnp.maximum(width, smallest)


@dataclasses.dataclass(frozen=True)
class ERE(Sampler):
    """Samples uniformly from a window of recent transitions that shrinks during each episode.

    The authors perform all K updates of an episode after it ends (Wang & Ross 2019). Here, updates
    alternate with environment steps, and K is the number of updates in the previous episode. Eta
    increases linearly to 1 over `eta_updates`, or is constant if `eta_updates` is None.
    """

    needs_whole = "its window follows the episodes of the first environment"

    config: EREConfig = EREConfig()

    @property
    def requires(self) -> Requirements:
        return Requirements(new_steps=True, transition_fields=frozenset({"last"}))

    def init(self, key: Array, ring: Ring) -> EREState:
        zero, none = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32)
        return EREState(zero, zero, zero, none, none)

    def add(
        self, state: EREState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> EREState:
        return _end_episode(state, get_field(transition, "last")[0])

    def sample(self, state: EREState, ring: Ring, key: Array, batch_size: int) -> Draw:
        recent, ones = self._width(state, ring), jnp.ones(batch_size, jnp.float32)
        order = numerics.integers(key, (batch_size,), recent)
        return Draw(ring_.recent(ring, order), ones, probability=ones / recent)

    def update(self, state: EREState, ring: Ring, sample: Sample, **feedback: Array) -> EREState:
        widths = state.widths + self._width(state, ring)
        done, updates = counters.increment(state.done), counters.increment(state.updates)
        return state._replace(done=done, updates=updates, widths=widths)

    def end_episodes(self, state: EREState, ring: Ring) -> EREState:
        return _end_episode(state, True)

    def probability(self, state: EREState, ring: Ring, slots: Array, batch_size: int) -> Array:
        recent = self._width(state, ring)
        order = ring_.age(ring, slots) * ring.num_envs + slots % ring.num_envs
        share = 1.0 / recent.astype(jnp.float32)
        return jnp.where((slots < ring_.size(ring)) & (order < recent), share, 0.0)

    def metrics(self, state: EREState, ring: Ring) -> dict[str, Array]:
        # Report the mean window size because all log points may fall in one phase of an episode.
        so_far = state.widths / jnp.maximum(state.done, 1)
        return {"window": jnp.where(state.length > 0, state.mean_width, so_far)}

    def _width(self, state: EREState, ring: Ring) -> Array:
        eta = schedules.linear(self.config.eta, 1.0, self.config.eta_updates)
        decay = jnp.asarray(eta(state.updates))
        width = window(state.done, state.length, decay, ring.capacity, self.config.smallest)
        return jnp.maximum(jnp.minimum(width.astype(jnp.int32), ring_.size(ring)), 1)


def _end_episode(state: EREState, over: Array | bool) -> EREState:
    """If `over` `[]` is True, set K to the number of updates since the previous episode ended."""
    over = over & (state.done > 0)  # skip episodes without updates so that K stays positive
    mean = state.widths / jnp.maximum(state.done, 1)
    return state._replace(
        done=jnp.where(over, 0, state.done),
        length=jnp.where(over, state.done, state.length),
        widths=jnp.where(over, 0.0, state.widths),
        mean_width=jnp.where(over, mean, state.mean_width),
    )


sampler = ERE


def method(config: EREConfig = EREConfig()) -> Method:
    """Return ERE: the sampler, and an objective that averages losses.

    Args:
      config: options; `config.for_run(updates)` anneals eta to 1 over `updates` gradient steps.
    """
    return Method(sampler(config), objectives.plain(objectives.named(config.loss)))
