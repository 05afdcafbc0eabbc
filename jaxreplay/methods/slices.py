"""Sequences around the steps that another sampler draws, and whole episodes.

Batches have shape `[B, T, ...]`, like those of `sequences`. Any sampler of single transitions draws
one step of each sequence, so that sequences may begin at any step.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import buffer
from jaxreplay import ring as ring_
from jaxreplay.methods import options
from jaxreplay.methods.parts import episodes
from jaxreplay.methods.parts.episodes import Positions, pick
from jaxreplay.methods.parts.over import Inner, Wrapper, inner_method
from jaxreplay.methods.sequences import check_burn_in, priority
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import (
    IGNORED,
    Array,
    Draw,
    Provision,
    Requirements,
    Sample,
    State,
    Tree,
)


@dataclasses.dataclass(frozen=True)
class SlicesConfig(Config):
    """Hyperparameters of slices; the inner method `over` has its default options."""

    over: Inner = option("uniform", options.OVER)
    over_updates: int | None = option(None, options.OVER_UPDATES)
    length: int = option(80, options.LENGTH)
    burn_in: int = option(0, options.BURN_IN)
    eta: float = option(0.9, options.ETA)
    whole: bool = option(
        False, "start sequences at the first stored step of the episode; requires a burn-in of 0"
    )

    def check(self) -> None:
        """Raise ValueError if no step would be trained on, or whole episodes have a burn-in."""
        check_burn_in(self.burn_in, self.length)
        if self.whole and self.burn_in:
            raise ValueError(f"burn_in must be 0 if whole is true, got {self.burn_in}")


class Aux(NamedTuple):
    """Masks over the steps in a batch, as in `sequences.Aux`, and data of the inner sampler."""

    mask: Array  # [B, T] bool, whether the step is stored and in the episode of the drawn step
    learn: Array  # [B, T] bool, `mask` without the burn-in; average losses over these steps
    drawn: Array  # [B] int32, position of the drawn step in the sequence
    inner: Tree  # `Draw.aux` of the inner sampler


class SlicesState(NamedTuple):
    """State of the inner sampler, and the positions of steps in their episodes."""

    inner: State
    positions: Positions


@dataclasses.dataclass(frozen=True)
class Slices(Wrapper):
    """Samples sequences `[B, T]` of successive steps around the steps that a sampler draws.

    The agent learns from the drawn step and later steps. Up to `burn_in` stored steps of the same
    episode precede the drawn step. With `whole=True`, a sequence starts at the first stored step of
    the episode instead, and the agent learns from all of its steps. If the episode has more than T
    stored steps, the sequence consists of T steps that include the drawn step.

    `Aux.mask` is False after the end of the episode, and after the newest step, which is repeated
    to the length T. Multi-step returns must end where the mask ends, since the newest step need not
    be the `last` step of its episode. Every stored step can be drawn, so the agent can learn from
    at least one step of each sequence. Whole episodes are drawn as often as the inner sampler draws
    any of their steps. With uniform draws and losses averaged over `Aux.learn`, all steps then have
    the same weight.

    `batch_size` is the number of sequences. The weights of a batch, and its probabilities unless
    `whole` is True, are those that the inner sampler gives to the drawn steps. `update` passes one
    number per sequence to the inner sampler, as feedback on the drawn step: TD errors `[B, T]` are
    reduced by `sequences.priority`, and other feedback by the mean, over the steps in `Aux.learn`.
    Transitions must have the field `last`, `first`, or both.

    Args:
      inner: sampler that draws a step of each sequence.
      config: options, of which `over` and `over_updates` are ignored.

    Raises:
      ValueError: If the inner sampler draws sequences, trajectories, whole episodes or only new
        transitions, or relabels goals.

    Example:
      >>> from jaxreplay import Replay
      >>> from jaxreplay.methods import per
      >>> replay = Replay(Slices(per.sampler(), SlicesConfig(length=3)), capacity=100, batch_size=2)
      >>> example = {"reward": jnp.zeros(()), "last": jnp.zeros((), bool)}
      >>> state = replay.init(jax.random.key(0), example)
      >>> for _ in range(2):
      ...     state = replay.add(state, jax.tree.map(lambda x: x[None], example))
      >>> batch = replay.sample(state, jax.random.key(0))
      >>> batch.indices.tolist(), batch.aux.learn.tolist()
      ([[0, 1, 1], [1, 1, 1]], [[True, True, False], [True, False, False]])
    """

    needs_whole = "it draws sequences of several transitions"

    config: SlicesConfig = SlicesConfig()

    @property
    def length(self) -> int:
        return self.config.length

    @property
    def requires(self) -> Requirements:
        return self.inner.requires._replace(single_steps=True)

    @property
    def provides(self) -> frozenset[Provision]:
        return frozenset({"sequences"})

    def init(self, key: Array, ring: Ring) -> SlicesState:
        episodes.check_boundaries(ring)
        return SlicesState(self.inner.init(key, ring), episodes.init_positions(ring))

    def add(
        self, state: SlicesState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> SlicesState:
        return SlicesState(
            self.inner.add(state.inner, ring, slots, transition, **feedback),
            episodes.add_steps(state.positions, slots, transition),
        )

    def sample(self, state: SlicesState, ring: Ring, key: Array, batch_size: int) -> Draw:
        draw = self.inner.sample(state.inner, ring, key, batch_size)
        drawn = self._before(state, ring, draw.indices)
        first = (draw.indices - drawn * ring.num_envs) % ring.capacity
        slots, mask = episodes.follow(state.positions, ring, first, self.length)
        learn = mask
        if not self.config.whole:
            learn = mask & (jnp.arange(self.length) >= drawn[:, None])
        aux = Aux(mask, learn, drawn, draw.aux)
        # Several draws of one whole episode are the same sequence.
        return Draw(slots, draw.weights, aux, None if self.config.whole else draw.probability)

    def update(
        self, state: SlicesState, ring: Ring, sample: Sample, **feedback: Array
    ) -> SlicesState:
        aux: Any = sample.aux
        valid = aux.learn & (sample.indices != IGNORED)
        inner_sample = sample._replace(
            indices=episodes.still_stored(ring, sample, valid, aux.drawn),
            transition=jax.tree.map(lambda x: pick(x, aux.drawn), sample.transition),
            version=pick(sample.version, aux.drawn),
            aux=aux.inner,
        )
        count = jnp.maximum(valid.sum(axis=1), 1)
        inner_feedback = {
            name: jnp.where(valid, values, 0.0).sum(axis=1) / count
            for name, values in feedback.items()
        }
        if "td_error" in feedback:
            td_error = priority(feedback["td_error"], valid, self.config.eta)
            inner_feedback["td_error"] = td_error
        inner = self.inner.update(state.inner, ring, inner_sample, **inner_feedback)
        return state._replace(inner=inner)

    def end_episodes(self, state: SlicesState, ring: Ring) -> SlicesState:
        inner = self.inner.end_episodes(state.inner, ring)
        return SlicesState(inner, episodes.end_positions(state.positions))

    def probability(self, state: SlicesState, ring: Ring, slots: Array, batch_size: int) -> Array:
        # A sequence that contains a slot was drawn by one of these steps before or after it.
        later = jnp.arange(1 - self.length, self._most_before + 1, dtype=jnp.int32)
        age = ring_.age(ring, slots)[:, None]
        stored = (later <= age) & (age - later < ring_.size(ring) // ring.num_envs)
        drawn = (slots[:, None] + later * ring.num_envs) % ring.capacity
        chance = super().probability(state, ring, drawn.ravel(), batch_size).reshape(drawn.shape)
        step = self._before(state, ring, drawn.ravel()).reshape(drawn.shape) - later
        within = stored & (step >= 0) & (step < self.length)
        times = jnp.where(age == 0, self.length - step, 1)  # the newest step is repeated
        return jnp.where(within, chance * times, 0.0).sum(axis=1) / self.length

    @property
    def _most_before(self) -> int:
        return self.length - 1 if self.config.whole else self.config.burn_in

    def _before(self, state: SlicesState, ring: Ring, slots: Array) -> Array:
        """Return how many steps `[n]` of each sequence precede its drawn step at `slots` `[n]`."""
        if not self._most_before:
            return jnp.zeros_like(slots)
        stored = ring_.size(ring) // ring.num_envs - 1 - ring_.age(ring, slots)
        position = buffer.read(state.positions.steps, slots)
        return jnp.clip(jnp.minimum(position, stored), 0, self._most_before)


def sampler(config: SlicesConfig = SlicesConfig()) -> Slices:
    """Return the sampler of slices, over a sampler with default options."""
    return Slices(inner_method(config).sampler, config)


def method(config: SlicesConfig = SlicesConfig()) -> Method:
    """Return slices over another method, with the objective of that method.

    The agent must provide one loss per sequence, the mean over its steps in the mask
    `Sample.aux.learn` `[B, T]`.
    """
    inner = inner_method(config)
    return inner._replace(sampler=Slices(inner.sampler, config))
