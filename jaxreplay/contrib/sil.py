"""Self-imitation, SIL (Oh et al. 2018), for agents with critics: lower-bound Q-learning.

A part of each batch comes from finished episodes, in proportion to the advantage of their returns
over the critic. In these transitions, the return replaces the target, and critics only learn from
it where it is above their values.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import buffer, objectives, schedules, sum_tree
from jaxreplay.methods import proportional
from jaxreplay.methods.parts import episode_returns
from jaxreplay.methods.parts.episode_returns import EpisodeReturns
from jaxreplay.methods.parts.over import OverOptions, Wrapper
from jaxreplay.methods.proportional import ImportanceWeights, ProportionalState
from jaxreplay.numerics import to_power
from jaxreplay.objectives import Loss, Objective
from jaxreplay.option import Bounds, check_kind, option
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
class SILConfig(OverOptions):
    """Hyperparameters of self-imitation over a method with its default options."""

    share: float = option(0.5, "share of the imitated transitions in each batch", above=0, below=1)
    coefficient: float = option(
        1.0, "factor of the imitation loss; the paper gives none for Q-learning", at_least=0
    )
    alpha: float = option(0.6, "prioritisation exponent; 0 is uniform", _PAPER, at_least=0)
    beta: float = option(
        0.1, "importance-sampling exponent", f"{_PAPER}: 0.1 or 0.4", at_least=0, at_most=1
    )
    clip: float | None = option(
        1.0, "upper bound on R - Q in priorities and gradients; none: unbounded", _CODE, above=0
    )
    truncated: bool = option(
        False,
        "imitate truncated episodes as well, with returns that stop at the truncation; these are "
        "lower bounds only if rewards are not negative",
        f"{_CODE}: true",
    )
    loss: Literal["mse", "huber", "l1"] = option(
        "mse", "loss on the TD errors of the other transitions, unless the other method has one"
    )


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
    """Samples the first rows of a batch like another sampler, and the last ones for imitation.

    Imitated transitions are drawn from finished episodes in proportion to
    `min(max(R - Q, 1e-6), clip)^alpha`, where R is the discounted return from the transition to the
    end of its episode. In the batch, their reward is R and their discount is 0. The target of the
    agent is therefore R, and the TD error R - Q. As long as no return is known, `Aux.imitated` is
    False, and the rows are ordinary transitions, drawn uniformly.

    When an episode ends, returns become known backwards from its end, two per new step of its
    environment. Episodes that are truncated are only imitated if `truncated` is True.

    Weights of the imitated transitions are `(P / min P)^-beta`. Feedback on them changes only the
    priorities of the imitation, and other feedback only the inner sampler's.

    Args:
      inner: sampler that draws the first rows.
      share: share of the imitated transitions in each batch, in (0, 1), rounded to whole rows. Each
        part has at least one row.
      alpha: prioritisation exponent, not negative.
      beta: importance-sampling exponent, in [0, 1].
      clip: upper bound on R - Q in priorities, positive, or None.
      truncated: whether truncated episodes are imitated.

    Raises:
      ValueError: If an option is invalid, or the inner sampler draws sequences, trajectories,
        whole episodes or only new transitions, or relabels goals.
    """

    share: float = 0.5
    alpha: float = 0.6
    beta: float = 0.1
    clip: float | None = 1.0
    truncated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        Bounds(above=0, below=1).check("share", self.share)
        Bounds(at_least=0).check("alpha", self.alpha)
        Bounds(at_least=0, at_most=1).check("beta", self.beta)
        if self.clip is not None:
            Bounds(above=0).check("clip", self.clip)
        check_kind("truncated", self.truncated, bool)

    @property
    def requires(self) -> Requirements:
        own = Requirements(
            feedback=frozenset({"td_error"}),
            single_steps=True,
            transition_fields=frozenset({"reward", "discount", "last"}),
        )
        return union(super().requires, own)

    @property
    def provides(self) -> frozenset[Provision]:
        return frozenset({"roles"})  # of transitions, by their position in the batch

    @property
    def is_uniform(self) -> bool:
        return False

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        if batch_size < 2:
            raise ValueError(
                f"batch_size must be at least 2, one of them to be imitated, got {batch_size}"
            )
        super().check_sizes(capacity, num_envs, drawn(batch_size, self.share))

    def init(self, key: Array, ring: Ring) -> SILState:
        return SILState(
            inner=self.inner.init(key, ring),
            priorities=proportional.init(ring.capacity, track_minimum=True),
            returns=episode_returns.init(ring),
            useful=jnp.zeros((), jnp.float32),
        )

    def add(
        self, state: SILState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> SILState:
        reward, discount, last = (get_field(transition, x) for x in ("reward", "discount", "last"))
        returns, swept, known = episode_returns.add(
            state.returns, ring, slots, reward, discount, last.astype(bool), self.truncated
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
        count = drawn(batch_size, self.share)
        inner = self.inner.sample(state.inner, ring, key, count)
        # The inner sampler receives the key itself, so that it draws as it would alone.
        key = jax.random.fold_in(key, _OWN)
        slots, stats = proportional.draw(
            state.priorities, ring, key, batch_size - count, "stratified"
        )
        returns = buffer.read(state.returns.values, slots)
        known = jnp.broadcast_to(sum_tree.total(state.priorities.tree) > 0, slots.shape)
        aux = Aux(jnp.where(known, returns, 0.0), known, inner.aux)
        beta = schedules.linear(self.beta, self.beta, None)
        weights = proportional.weights(ImportanceWeights(beta, "buffer"), stats)
        slots = jnp.concatenate([inner.indices, slots])
        weights = jnp.concatenate([inner.weights, weights])
        if inner.probability is None:
            return Draw(slots, weights, aux)
        rest = self.inner.probability(state.inner, ring, slots[count:], count)
        chance = jnp.concatenate([inner.probability, rest])
        return Draw(slots, weights, aux, self._mixed(state, ring, slots, chance, batch_size))

    def relabel(self, state: SILState, ring: Ring, draw: Draw, transition: Tree) -> Tree:
        aux: Any = draw.aux
        count = len(draw.indices) - len(aux.returns)
        first, last = (
            jax.tree.map(lambda x, part=part: x[part], transition) for part in _parts(count)
        )
        own = Draw(draw.indices[:count], draw.weights[:count], aux.inner)
        first = self.inner.relabel(state.inner, ring, own, first)
        reward, discount = get_field(last, "reward"), get_field(last, "discount")
        last = replace_fields(
            last,
            reward=jnp.where(aux.imitated, aux.returns.astype(reward.dtype), reward),
            discount=jnp.where(aux.imitated, jnp.zeros_like(discount), discount),
        )
        return jax.tree.map(lambda *x: jnp.concatenate(x), first, last)

    def update(self, state: SILState, ring: Ring, sample: Sample, **feedback: Array) -> SILState:
        aux: Any = sample.aux
        count = len(sample.indices) - len(aux.returns)
        advantage = feedback["td_error"][count:]
        slots = jnp.where(aux.imitated, sample.indices[count:], IGNORED)
        valid = slots != IGNORED
        own = {name: values[:count] for name, values in feedback.items()}
        useful = (valid & (advantage > 0)).sum(dtype=jnp.int32).astype(jnp.float32)
        return state._replace(
            inner=self.inner.update(state.inner, ring, first_rows(sample, count), **own),
            priorities=proportional.write(state.priorities, slots, self.leaf(advantage)),
            useful=useful / jnp.maximum(valid.sum(dtype=jnp.int32), 1),
        )

    def leaf(self, advantage: Array) -> Array:
        """Return priorities `[B]` of transitions with advantages R - Q, `[B]`."""
        advantage = jnp.maximum(advantage, _FLOOR)
        if self.clip is not None:
            advantage = jnp.minimum(advantage, self.clip)
        # A leaf of 0 means that the return is not known.
        return jnp.maximum(to_power(advantage, self.alpha), jnp.finfo(jnp.float32).tiny)

    def end_episodes(self, state: SILState, ring: Ring) -> SILState:
        return state._replace(
            inner=self.inner.end_episodes(state.inner, ring),
            returns=episode_returns.end_episodes(state.returns, ring, self.truncated),
        )

    def probability(self, state: SILState, ring: Ring, slots: Array, batch_size: int) -> Array:
        count = drawn(batch_size, self.share)
        chance = self.inner.probability(state.inner, ring, slots, count)
        return self._mixed(state, ring, slots, chance, batch_size)

    def metrics(self, state: SILState, ring: Ring) -> dict[str, Array]:
        return {**super().metrics(state, ring), "useful_imitations": state.useful}

    def _mixed(
        self, state: SILState, ring: Ring, slots: Array, chance: Array, batch_size: int
    ) -> Array:
        """Return the probabilities of `slots` `[n]`, given those of the inner sampler, `[n]`."""
        share = drawn(batch_size, self.share) / batch_size
        own = proportional.probability(state.priorities, ring, slots)
        return share * chance + (1.0 - share) * own


_OWN = 0x53494C00  # `fold_in` with a small number would repeat a key of `jax.random.split`


def drawn(batch_size: int, share: float) -> int:
    """Return the number of rows in a batch that the inner sampler draws.

    Example:
      >>> drawn(64, 0.25), drawn(2, 0.9)
      (48, 1)
    """
    return min(max(batch_size - round(share * batch_size), 1), batch_size - 1)


def first_rows(sample: Sample, count: int) -> Sample:
    """Return the rows of a batch that the inner sampler drew."""
    aux: Any = sample.aux
    rest = jax.tree.map(lambda x: x[:count], sample._replace(aux=None))
    return rest._replace(aux=aux.inner)


def _parts(count: int) -> tuple[slice, slice]:
    return slice(None, count), slice(count, None)


def sampler(config: SILConfig = SILConfig()) -> SelfImitation:
    """Return the sampler of self-imitation, over a sampler with default options."""
    return _sampler(config.inner, config)


def method(config: SILConfig = SILConfig()) -> Method:
    """Return self-imitation over another method (see `combine`).

    Args:
      config: options; `config.for_run(updates)` sets the length of the other method's schedules.
    """
    return combine(config.inner, config)


def combine(inner: Method, config: SILConfig = SILConfig()) -> Method:
    """Return a method that also imitates finished episodes whose returns exceed the critic.

    The critic loss is that of the inner method on its rows, plus `coefficient` times the weighted
    mean of `max(R - Q, 0)^2 / 2` on the imitated ones, or of the Huber loss with kappa `clip`. The
    sum over critics is taken of both. The actor learns from the rows of the inner method.

    Args:
      inner: method that draws the first rows, with any options.
      config: options, of which `over` and `over_updates` are ignored.

    Raises:
      ValueError: If the inner method is not a method, draws other than single transitions, chooses
        from candidates, or learns weights.

    Example:
      >>> from jaxreplay.methods import per
      >>> combine(per.method(), SILConfig(share=0.25)).sampler.inner == per.sampler()
      True
    """
    if not isinstance(inner, Method):
        raise ValueError(f"inner must be a method, such as per.method(), got {inner!r}")
    if inner.objective.choose is not None:
        raise ValueError(
            "inner must not choose from candidates, whose rows have no roles: use another method, "
            "such as per.method()"
        )
    if inner.objective.learned_weights is not None:
        raise ValueError(
            "inner must not learn weights, as they would learn from returns as well: use another "
            "method, such as per.method()"
        )
    return Method(_sampler(inner, config), _objective(inner.objective, config))


def _sampler(inner: Method, config: SILConfig) -> SelfImitation:
    return SelfImitation(
        inner.sampler, config.share, config.alpha, config.beta, config.clip, config.truncated
    )


def _objective(inner: Objective, config: SILConfig) -> Objective:
    losses = {"mse": objectives.mse, "huber": objectives.huber(), "l1": objectives.l1}
    inner_error: Loss = losses[config.loss] if inner.error is None else inner.error
    own_error = objectives.mse if config.clip is None else objectives.huber(config.clip)

    def error(td: Array) -> Array:  # [N, B], the target minus Q
        count = drawn(td.shape[-1], config.share)
        own = own_error(jnp.maximum(td[..., count:], 0.0))
        return jnp.concatenate([inner_error(td[..., :count]), own], axis=-1)

    def of_inner(
        loss: Array, sample: Sample, trust: Trust | None
    ) -> tuple[Array, Sample, Trust | None]:
        count = drawn(len(loss), config.share)
        rows = jax.tree.map(lambda x: x[:count], (loss, trust))
        return rows[0], first_rows(sample, count), rows[1]

    def critic(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        aux: Any = sample.aux
        count = drawn(len(loss), config.share)
        own = jnp.where(aux.imitated, sample.weights[count:] * loss[count:], 0.0).mean()
        return inner.critic(*of_inner(loss, sample, trust)) + config.coefficient * own

    def actor(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        return inner.actor(*of_inner(loss, sample, trust))

    return inner._replace(error=error, critic=critic, actor=actor, roles=True)
