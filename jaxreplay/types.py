"""The vocabulary of the library: what is stored, what is drawn, and what a method is made of.

Shapes: `E` parallel environments, `B` rows of a sampled batch, `C` slots of the ring, `N` critics.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp

Array = jax.Array
State = Any  # a sampler's own state, any pytree


class Transition(NamedTuple):
    """One (possibly n-step) transition; fields are `[E, ...]` when added, `[B, ...]` when sampled.

    Agents never see gamma: it is folded into `discount`, which is gamma^n, or 0 if the
    environment terminated within the n steps (truncation keeps bootstrapping).
    """

    obs: chex.ArrayTree  # [E, ...]
    action: Array  # [E] int32 or [E, A] float32
    reward: Array  # [E] float32, the discounted sum of the n rewards
    discount: Array  # [E] float32
    next_obs: chex.ArrayTree  # [E, ...] the true last observation, never one after a reset
    first: Array  # [E] bool, the step from `obs` was its episode's first
    last: Array  # [E] bool, the step from `obs` was its episode's last (terminated or truncated)
    extras: chex.ArrayTree = ()  # [E, ...] what act() said besides the action: mean, std, value
    span: Array | tuple[()] = ()  # [E] int32, steps that it covers, up to n; () stands for 1. Not
    # stored: only frame stacks need it, to know how far apart both observations are


class Draw(NamedTuple):
    """What a sampler returns: which slots, and with what importance-sampling weights."""

    indices: Array  # [B] int32
    weights: Array  # [B] float32
    aux: Any = ()  # anything the method wants to hand to its objective


class Sample(NamedTuple):
    """What the replay returns: the drawn slots with their contents.

    `stamp` identifies what was in each slot when it was drawn, so that feedback for a slot that
    has been overwritten since is dropped instead of landing on a stranger.
    """

    indices: Array  # [B] int32; the capacity stands for "ignore this row" (see `Sampler.update`)
    transition: Transition  # [B, ...]
    weights: Array  # [B] float32
    stamp: Array  # [B] int32, the ring's row count when the slot was written
    aux: Any = ()


def ignore_episode_return(state: State, ring: Any, episode_return: Array, key: Array) -> State:
    """Return the state as it is: the `observe` of samplers that do not look at returns."""
    del ring, episode_return, key
    return state


def even_probability(state: State, ring: Any, slots: Array, batch_size: int) -> Array:
    """Return `[n]` float32, the same for every live slot: the `probability` of uniform draws."""
    del state, batch_size
    rows = jnp.minimum(ring.rows_added, ring.capacity // ring.num_envs)
    size = rows * ring.num_envs
    return jnp.where(slots < size, 1.0 / jnp.maximum(size, 1), 0.0)


def _no_metrics(state: State, ring: Any) -> dict[str, Array]:
    del state, ring
    return {}


class Sampler(NamedTuple):
    """A replay method's sampling half: pure functions over the sampler's own state `S`.

    * `init(key, ring) -> S`: the empty ring tells capacity, lanes, and a transition's shapes.
    * `add(S, ring, slots[E], transition[E], **feedback[E]) -> S`: the ring already holds the new
      rows. There is feedback about them only if `fresh` names it.
    * `sample(S, ring, key, batch_size) -> Draw`: reads, never writes.
    * `update(S, ring, sample, **feedback[B]) -> S`: feedback arrives by name (`td_error`,
      `q_value`, ...). Rows to be ignored (overwritten since, or with non-finite feedback) carry the
      out-of-range index `capacity`: scatters with `mode="drop"` and `sum_tree.set` skip them.
    * `observe(S, ring, episode_return[], key) -> S`: how well the policy does: the mean return of an
      evaluation, or of the training episodes that ended since the last call (see `scores`).
    * `probability(S, ring, slots[n], batch_size) -> [n]`: of being drawn next, for the rows of one
      batch on average; sums to 1 over all slots.
    * `metrics(S, ring) -> dict[str, []]`: what is worth a curve.
    """

    init: Callable[[Array, Any], State]
    add: Callable[..., State]
    sample: Callable[..., Draw]
    update: Callable[..., State]
    observe: Callable[..., State] = ignore_episode_return
    probability: Callable[[State, Any, Array, int], Array] = even_probability
    metrics: Callable[[State, Any], dict[str, Array]] = _no_metrics
    scores: Literal["evaluation", "training"] = "evaluation"  # whose returns `observe` is told
    fresh: frozenset[str] = frozenset()  # feedback about new transitions that `add` reads
    capacity_factor: int = 1  # slots of the ring per transition of the replay's capacity
    demands: frozenset[str] = frozenset()  # of the loop, see `Replay`


LOG_RATIO_LIMIT = 7.0  # log importance ratios are clipped here, as in the code of the authors of
# ReF-ER: it keeps exp(log ratio) finite in every loss


class Trust(NamedTuple):
    """How far the policy has moved from the one that acted; from agents that have a density."""

    log_ratio: Array  # [B] log pi(a|s) / mu(a|s)
    kl: Array  # [B] KL(mu || pi)
    reverse_kl: Array  # [B] KL(pi || mu)


class Objective(NamedTuple):
    """A replay method's learning half: how it shapes an agent's losses.

    `error` maps TD errors `[N, B]` of N critics to losses `[N, B]`; None leaves the agent's own
    (Huber with kappa 1 for DQN, squared for TD3 and SAC). `critic` and `actor` reduce per-sample
    losses `[B]` to a scalar, with the sample at hand (weights, aux) and the agent's `Trust`.
    """

    error: Callable[[Array], Array] | None
    critic: Callable[[Array, Sample, Trust | None], Array]
    actor: Callable[[Array, Sample, Trust | None], Array]
    trust: bool = False  # whether they read `Trust`: agents without a density refuse


class Method(NamedTuple):
    """A replay method: the sampler goes to the replay, the objective to the agent."""

    sampler: Sampler
    objective: Objective


class Replay(NamedTuple):
    """Ring and sampler behind the five verbs; made by `make_replay`.

    * `init(key, example) -> S`: `example` is one unbatched Transition (shapes and dtypes).
    * `add(S, transition[E], **feedback[E]) -> S`: with the feedback that `fresh` names; 0 stands in
      for what is not finite.
    * `sample(S, key) -> (S, Sample)`
    * `update(S, sample, **feedback[B]) -> S`
    * `observe(S, episode_return[], key) -> S`: an episode_return that is not finite changes nothing.
    * `can_sample(S) -> bool[]`, `probability(S, slots[n]) -> [n]`, `metrics(S) -> dict[str, []]`
    """

    init: Callable[[Array, Transition], Any]
    add: Callable[..., Any]
    sample: Callable[[Any, Array], tuple[Any, Sample]]
    update: Callable[..., Any]
    observe: Callable[[Any, Array, Array], Any]
    can_sample: Callable[[Any], Array]
    probability: Callable[[Any, Array], Array]
    metrics: Callable[[Any], Mapping[str, Array]]
    capacity: int  # transitions that it remembers
    num_envs: int  # rows of one add
    batch_size: int  # rows of one sample
    scores: (
        Literal["evaluation", "training"] | None
    )  # whose returns `observe` wants; None: nobody's
    fresh: frozenset[str]  # feedback about new transitions that `add` wants
    demands: frozenset[str]  # "single_steps": transitions must be so, not n-step ones; "all_new":
    # a batch must be what was added since the batch before; "whole_episodes": it remembers them
    # whole or not at all; "observations": its sampler looks at them, so they must be on the device
