"""Self-imitation, SIL (Oh et al. 2018), for agents with critics: lower-bound Q-learning.

A part of each batch comes from finished episodes, in proportion to the advantage of their returns
over the critic. For these transitions, the return replaces the target, and critics learn only where
the return is above their values.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import buffer, objectives, schedules, sum_tree
from jaxreplay.batches import Parts, join
from jaxreplay.methods import options, proportional
from jaxreplay.methods.parts import episode_returns
from jaxreplay.methods.parts.episode_returns import EpisodeReturns
from jaxreplay.methods.parts.over import Inner, Wrapper, inner_method
from jaxreplay.methods.proportional import ImportanceWeights, ProportionalState
from jaxreplay.numerics import to_power
from jaxreplay.objectives import Loss, Objective
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.sum_tree import Sampling
from jaxreplay.types import (
    IGNORED,
    Array,
    Draw,
    Provision,
    Requirements,
    Sample,
    State,
    Tree,
    Trust,
    get_field,
    replace_fields,
    union,
)

_PAPER = "Oh et al. 2018"
_CODE = f"code of {_PAPER}"
_FLOOR = 1e-6  # smallest advantage in priorities, as in the code
DISCRETE: Mapping[str, Any] = MappingProxyType({"loss": "huber"})  # defaults for discrete actions


@dataclasses.dataclass(frozen=True)
class SILConfig(Config):
    """Hyperparameters of self-imitation; the inner method `over` has its default options."""

    over: Inner = option("uniform", options.OVER)
    over_updates: int | None = option(None, options.OVER_UPDATES)
    share: float = option(0.5, "share of the imitated transitions in each batch", above=0, below=1)
    coefficient: float = option(
        1.0, "factor of the imitation loss; the paper gives none for Q-learning", at_least=0
    )
    alpha: float = option(0.6, options.ALPHA, _PAPER)
    beta: float = option(0.1, options.CONSTANT_BETA, f"{_PAPER}: 0.1 or 0.4")
    clip: float | None = option(
        1.0, "upper bound on R - Q in priorities and gradients; none: unbounded", _CODE, above=0
    )
    sampling: Sampling = option("stratified", options.SAMPLING)
    normalise: options.Normalisation = option("buffer", options.NORMALISE)
    truncated: bool = option(
        False,
        "imitate truncated episodes as well, with returns that stop at the truncation; these "
        "returns are lower bounds only if rewards are not negative",
        f"{_CODE}: true",
    )
    loss: Literal["mse", "huber", "l1"] = option(
        "mse", "loss on TD errors outside of imitation, unless the inner method sets a loss"
    )

    def parts(self, batch_size: int) -> Parts:
        """Return the `Parts` of a batch: draws of the inner sampler, and imitated transitions.

        Example:
          >>> SILConfig(share=0.25).parts(64).sizes, SILConfig(share=0.9).parts(2).sizes
          ((48, 16), (1, 1))
        """
        count = min(max(batch_size - round(self.share * batch_size), 1), batch_size - 1)
        return Parts((count, batch_size - count))


class SILState(NamedTuple):
    """State of the inner sampler, priorities of the steps with a known return, and returns."""

    inner: State
    priorities: ProportionalState  # leaf 0 as long as the return of a step is not known
    returns: EpisodeReturns
    useful: Array  # [] float32, share of the latest imitated transitions with R > Q


class Aux(NamedTuple):
    """The imitated transitions, the last M of a batch, and the inner sampler's arrays."""

    returns: Array  # [M] float32
    imitated: Array  # [M] bool, False as long as no return is known
    inner: Tree  # `Draw.aux` of the inner sampler


@dataclasses.dataclass(frozen=True)
class SelfImitation(Wrapper):
    """Samples the first rows of a batch from an inner sampler, and the last rows for imitation.

    Imitated transitions are drawn from finished episodes in proportion to
    `min(max(R - Q, 1e-6), clip)^alpha`, where R is the discounted return from the transition to the
    end of its episode. In the batch, their reward is R and their discount is 0. The target of the
    agent is therefore R, and the TD error R - Q. As long as no return is known, `Aux.imitated` is
    False, and the rows are ordinary transitions, drawn uniformly.

    When an episode ends, returns become known backwards from its end, two per new step of its
    environment. Truncated episodes are imitated only if `truncated` is True.

    Weights of the imitated transitions are `(N P)^-beta`, by default divided by their maximum over
    the buffer, `(P / min P)^-beta`. Feedback on imitated transitions changes only the priorities
    for imitation, and feedback on the other transitions only the state of the inner sampler.

    Args:
      inner: sampler that draws the first rows.
      config: options, of which `over`, `over_updates`, `coefficient` and `loss` are ignored.

    Raises:
      ValueError: If the inner sampler draws sequences, trajectories, whole episodes or only new
        transitions, or relabels goals.
    """

    config: SILConfig = SILConfig()

    @property
    def requires(self) -> Requirements:
        of_imitation = Requirements(
            feedback=frozenset({"td_error"}),
            single_steps=True,
            transition_fields=frozenset({"reward", "discount", "last"}),
        )
        return union(super().requires, of_imitation)

    @property
    def provides(self) -> frozenset[Provision]:
        return frozenset({"roles"})  # of transitions, by their position in the batch

    @property
    def is_uniform(self) -> bool:
        return False

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        if batch_size < 2:
            raise ValueError(
                "batch_size must be at least 2, so that a batch can include an imitated "
                f"transition, got {batch_size}"
            )
        super().check_sizes(capacity, num_envs, self.config.parts(batch_size).sizes[0])

    def init(self, key: Array, ring: Ring) -> SILState:
        return SILState(
            inner=self.inner.init(key, ring),
            priorities=proportional.init(ring.capacity, normalise=self.config.normalise),
            returns=episode_returns.init(ring),
            useful=jnp.zeros((), jnp.float32),
        )

    def add(
        self, state: SILState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> SILState:
        reward, discount, last = (get_field(transition, x) for x in ("reward", "discount", "last"))
        returns, swept, known = episode_returns.add(
            state.returns, ring, slots, reward, discount, last.astype(bool), self.config.truncated
        )
        leaves = jnp.where(known, proportional.largest(state.priorities), 0.0)
        leaves = jnp.concatenate([jnp.zeros(slots.shape, jnp.float32), leaves])
        places = jnp.concatenate([slots, swept])
        return state._replace(
            inner=self.inner.add(state.inner, ring, slots, transition, **feedback),
            priorities=proportional.insert(state.priorities, places, leaves),
            returns=returns,
        )

    def sample(self, state: SILState, ring: Ring, key: Array, batch_size: int) -> Draw:
        config = self.config
        count, imitated = config.parts(batch_size).sizes
        inner = self.inner.sample(state.inner, ring, key, count)
        # The inner sampler receives the key itself, so that it draws as it would alone.
        key = jax.random.fold_in(key, _IMITATION)
        slots, chance = proportional.draw(state.priorities, ring, key, imitated, config.sampling)
        returns = buffer.read(state.returns.values, slots)
        known = jnp.broadcast_to(sum_tree.total(state.priorities.tree) > 0, slots.shape)
        aux = Aux(jnp.where(known, returns, 0.0), known, inner.aux)
        beta = schedules.linear(config.beta, config.beta, None)
        weight = ImportanceWeights(beta, config.normalise)
        weights = proportional.weights(weight, state.priorities, ring, chance)
        slots, weights = join((inner.indices, inner.weights), (slots, weights))
        if inner.probability is None:
            return Draw(slots, weights, aux)
        rest = self.inner.probability(state.inner, ring, slots[count:], count)
        chance = jnp.concatenate([inner.probability, rest])
        return Draw(slots, weights, aux, self._mixed(state, ring, slots, chance, batch_size))

    def relabel(self, state: SILState, ring: Ring, draw: Draw, transition: Tree) -> Tree:
        aux: Any = draw.aux
        parts = self.config.parts(len(draw.indices))
        first, imitated = parts.split(transition)
        (indices, weights), _ = parts.split((draw.indices, draw.weights))
        inner_draw = Draw(indices, weights, aux.inner)
        first = self.inner.relabel(state.inner, ring, inner_draw, first)
        reward, discount = get_field(imitated, "reward"), get_field(imitated, "discount")
        imitated = replace_fields(
            imitated,
            reward=jnp.where(aux.imitated, aux.returns.astype(reward.dtype), reward),
            discount=jnp.where(aux.imitated, jnp.zeros_like(discount), discount),
        )
        return join(first, imitated)

    def update(self, state: SILState, ring: Ring, sample: Sample, **feedback: Array) -> SILState:
        aux: Any = sample.aux
        parts = self.config.parts(len(sample.indices))
        inner_sample, imitated = parts.split_sample(sample, [aux.inner, None])
        inner_feedback, imitation_feedback = parts.split(feedback)
        advantage = imitation_feedback["td_error"]
        slots = jnp.where(aux.imitated, imitated.indices, IGNORED)
        valid = slots != IGNORED
        useful = (valid & (advantage > 0)).sum(dtype=jnp.int32).astype(jnp.float32)
        return state._replace(
            inner=self.inner.update(state.inner, ring, inner_sample, **inner_feedback),
            priorities=proportional.write(state.priorities, slots, self.leaf(advantage)),
            useful=useful / jnp.maximum(valid.sum(dtype=jnp.int32), 1),
        )

    def leaf(self, advantage: Array) -> Array:
        """Return priorities `[B]` of transitions with advantages R - Q, `[B]`."""
        advantage = jnp.maximum(advantage, _FLOOR)
        if self.config.clip is not None:
            advantage = jnp.minimum(advantage, self.config.clip)
        # A leaf of 0 means that the return is not known.
        return jnp.maximum(to_power(advantage, self.config.alpha), jnp.finfo(jnp.float32).tiny)

    def end_episodes(self, state: SILState, ring: Ring) -> SILState:
        return state._replace(
            inner=self.inner.end_episodes(state.inner, ring),
            returns=episode_returns.end_episodes(state.returns, ring, self.config.truncated),
        )

    def probability(self, state: SILState, ring: Ring, slots: Array, batch_size: int) -> Array:
        count, _ = self.config.parts(batch_size).sizes
        chance = self.inner.probability(state.inner, ring, slots, count)
        return self._mixed(state, ring, slots, chance, batch_size)

    def metrics(self, state: SILState, ring: Ring) -> dict[str, Array]:
        return {**super().metrics(state, ring), "useful_imitations": state.useful}

    def _mixed(
        self, state: SILState, ring: Ring, slots: Array, chance: Array, batch_size: int
    ) -> Array:
        """Return the probabilities `[n]` of `slots`, given the inner sampler's `chance` `[n]`."""
        imitated = proportional.probability(state.priorities, ring, slots)
        return self.config.parts(batch_size).probability(chance, imitated)


_IMITATION = 0x53494C00  # `fold_in` with a small number would repeat a key of `jax.random.split`


def sampler(config: SILConfig = SILConfig()) -> SelfImitation:
    """Return the sampler of self-imitation, over a sampler with default options."""
    return SelfImitation(inner_method(config).sampler, config)


def method(config: SILConfig = SILConfig()) -> Method:
    """Return self-imitation over another method (see `combine`).

    Args:
      config: options; `config.for_run(updates)` sets the length of the inner method's schedules.
    """
    return combine(inner_method(config), config)


def combine(inner: Method, config: SILConfig = SILConfig()) -> Method:
    """Return a method that also imitates finished episodes whose returns exceed the critic.

    The critic loss is the loss of the inner method on its rows, plus `coefficient` times the
    weighted mean loss of the imitated rows. The loss of an imitated row is the Huber loss of
    `max(R - Q, 0)` with kappa `clip`, or half its square if `clip` is None. Both terms are summed
    over critics. The actor learns from the inner method's rows.

    Args:
      inner: method that draws the first rows, with any options.
      config: options, of which `over` and `over_updates` are ignored.

    Raises:
      ValueError: If `inner` is not a method, draws anything but single transitions, chooses from
        candidates, or learns weights.

    Example:
      >>> from jaxreplay.methods import per
      >>> combine(per.method(), SILConfig(share=0.25)).sampler.inner == per.sampler()
      True
    """
    if not isinstance(inner, Method):
        raise ValueError(f"inner must be a method, such as per.method(), got {inner!r}")
    if inner.objective.choose is not None:
        raise ValueError(
            "inner must not choose from candidates, because self-imitation finds imitated "
            "transitions by their position in the batch: use another method, such as per.method()"
        )
    if inner.objective.learned_weights is not None:
        raise ValueError(
            "inner must not learn weights, because the weights would also learn from imitated "
            "returns: use another method, such as per.method()"
        )
    return Method(SelfImitation(inner.sampler, config), _objective(inner.objective, config))


def _objective(inner: Objective, config: SILConfig) -> Objective:
    losses = {"mse": objectives.mse, "huber": objectives.huber(), "l1": objectives.l1}
    inner_error: Loss = losses[config.loss] if inner.error is None else inner.error
    imitation_error = objectives.mse if config.clip is None else objectives.huber(config.clip)

    def error(td: Array) -> Array:  # [N, B], the target minus Q
        inner_td, advantage = config.parts(td.shape[-1]).split(td, axis=-1)
        imitation = imitation_error(jnp.maximum(advantage, 0.0))
        return jnp.concatenate([inner_error(inner_td), imitation], axis=-1)

    def of_inner(
        loss: Array, sample: Sample, trust: Trust | None
    ) -> tuple[Array, Sample, Trust | None]:
        aux: Any = sample.aux
        parts = config.parts(len(loss))
        inner_sample, _ = parts.split_sample(sample, [aux.inner, None])
        (loss, trust), _ = parts.split((loss, trust))
        return loss, inner_sample, trust

    def critic(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        aux: Any = sample.aux
        _, (weights, losses) = config.parts(len(loss)).split((sample.weights, loss))
        imitation = jnp.where(aux.imitated, weights * losses, 0.0).mean()
        return inner.critic(*of_inner(loss, sample, trust)) + config.coefficient * imitation

    def actor(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        return inner.actor(*of_inner(loss, sample, trust))

    return inner._replace(error=error, critic=critic, actor=actor, roles=True)
