"""Shared data types: transitions, draws, batches and the requirements of samplers.

Dimensions: `E` environments, `B` batch size, `T` sequence length, `C` slots in the ring buffer.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay._internal.arguments import check_size

Array = jax.Array
Tree = Any  # a pytree of arrays
State = Any  # the state of a sampler, a replay or an agent: a pytree of arrays

IGNORED = np.int32(2**31 - 1)  # index that marks entries of a batch for `Sampler.update` to skip


class Transition(NamedTuple):
    """A single-step or n-step transition.

    Fields have shape `[E, ...]` when added and `[B, ...]` when sampled. `discount` includes gamma.
    Fields set to None are not stored. A sampler's `Requirements` list the fields that it reads.
    """

    obs: Tree = None  # [E, ...]
    action: Any = None  # [E] int32, or [E, A] float32 for A action dimensions
    reward: Any = None  # [E] float32, discounted sum of n rewards
    discount: Any = None  # [E] float32, gamma^n, or 0 if the episode terminated within n steps
    next_obs: Tree = None  # [E, ...] observation after n steps, before any reset
    first: Any = None  # [E] bool, whether `obs` is the first observation of an episode
    last: Any = None  # [E] bool, whether the episode terminated or was truncated after `action`
    extras: Tree = None  # [E, ...] agent outputs for the action, such as mean, variance and value
    n_steps: Any = None  # [E] int32, number of agent steps covered, at most n; None means 1.
    # `n_steps` is not stored; storage types that share observations use it to locate `next_obs`.


class Draw(NamedTuple):
    """Slots drawn by a sampler, with importance weights."""

    indices: Array  # [B] int32, or [B, T] for sequences (`Sampler.length`)
    weights: Array  # [B] float32
    aux: Tree = None  # auxiliary arrays for the method's objective and for agents that support them
    probability: Array | None = None  # [B] float32, probability of each slot or sequence, equal to
    # `Sampler.probability`; None if computing the probability requires extra work


class Sample(NamedTuple):
    """A sampled batch of transitions.

    `version` identifies the transition stored in a slot at sampling time. `Replay.update` drops
    feedback such as TD errors for slots that have been overwritten since sampling. Sequence
    samplers return indices, versions and transitions of shape `[B, T, ...]`.

    The order of a batch is not random. Sum-tree samplers (PER, LAP, PSER, NERS, sequences) use
    stratified sampling by default and return slots in ascending order, so the first and the last
    quarter of a batch contain transitions from different times. Rank-based replay draws one
    transition per segment of the ranking, in descending order of TD error. `latest` and `windows`
    return slots in chronological order. A loss over the whole batch does not depend on the order.
    Before splitting a batch into minibatches, permute the batch, or draw independently
    (`sampling="iid"`).
    """

    indices: Array  # [B] int32; `IGNORED` marks transitions without valid feedback in `update`
    transition: Tree  # [B, ...], with the same pytree type as the added transitions
    weights: Array  # [B] float32
    version: Array  # [B] int32, the ring buffer's step counter when the slot was written
    aux: Tree = None  # auxiliary arrays, as in `Draw`
    probability: Array | None = None  # [B] float32, as in `Draw`


LOG_RATIO_LIMIT = 7.0  # Log importance ratios are clipped to [-7, 7], as in the ReF-ER authors'
# code, so that exp(log ratio) is finite in every loss.


class Trust(NamedTuple):
    """Distances between the policy pi and the behaviour policy mu, which have action densities."""

    log_ratio: Array  # [B] log pi(a|s) / mu(a|s)
    kl: Array  # [B] KL(mu || pi)
    reverse_kl: Array  # [B] KL(pi || mu)


@dataclasses.dataclass(frozen=True)
class Goals:
    """Goals of a task: their layout in observations, and the reward of reaching them.

    Observations are flat arrays `[..., D]` that end with the achieved goal, `size` numbers, and the
    desired goal, another `size` numbers. Hindsight replay replaces the desired goal.

    Args:
      reward: pure function of the achieved goal, as observed after a step, and the desired goal,
        both `[..., size]`. It returns the reward and whether the episode terminates, `[...]` each.
      size: number of elements of a goal.
    """

    reward: Callable[[Array, Array], tuple[Array, Array]]
    size: int

    def __post_init__(self) -> None:
        if not callable(self.reward):
            raise ValueError(f"reward must be a function of two goals, got {self.reward!r}")
        check_size("size", self.size)

    def achieved(self, obs: Array) -> Array:
        """Return the achieved goals `[..., size]` in observations `[..., D]`."""
        return obs[..., -2 * self.size : -self.size]

    def desired(self, obs: Array) -> Array:
        """Return the desired goals `[..., size]` in observations `[..., D]`."""
        return obs[..., -self.size :]

    def replace(self, obs: Array, desired: Array) -> Array:
        """Return observations `[..., D]` with `desired` `[..., size]` as their desired goals."""
        return jnp.concatenate([obs[..., : -self.size], desired], axis=-1)


EpisodeReturns = Literal["evaluation", "training"]
Provision = Literal["returns", "roles", "sequences", "trajectories"]

# Names of feedback: outputs of the agent, one number per transition, for the sampler. Agents may
# pass all of them, regardless of which the sampler reads.
FEEDBACK = frozenset(
    {
        "td_error", "q_value", "target", "log_ratio", "value", "advantage", "next_value",
        "reward_scale", "reducible_loss", "model_loss", "expected_td_error",
        "epistemic", "aleatoric", "target_error",
    }
)  # fmt: skip
DENSITY = "a policy with an action density (log_ratio)"
_NONE: frozenset[str] = frozenset()


class Refresh(NamedTuple):
    """When and how a training loop passes feedback on all stored transitions to a replay."""

    every: int  # number of updates between two calls of `Replay.refresh`
    chunk: int  # number of transitions that the agent evaluates at once


class Requirements(NamedTuple):
    """Requirements of a sampler or an objective on agents, transitions and training loops."""

    feedback: frozenset[str] = _NONE  # names of feedback, such as TD errors, for `Replay.update`
    feedback_of_new: frozenset[str] = _NONE  # names of feedback for `Replay.add`
    density: bool = False  # the objective reads `Trust`, so the policy must have an action density
    scalar_loss: bool = False  # the objective replaces the agent's loss for scalar TD errors
    chooses: bool = False  # the objective chooses the rows from which the agent learns
    learned_weights: bool = False  # the objective learns weights; the agent stores their state
    all_new: bool = False  # each batch consists of the transitions added since the previous batch,
    # so the agent and the training loop must be on-policy
    new_steps: bool = False  # the training loop must keep adding transitions
    single_steps: bool = False  # transitions must be single-step, not n-step
    goals: bool = False  # the task must have goals, which the sampler receives by `for_goals`
    whole_episodes: bool = False  # episodes must be stored completely or not at all
    episode_returns: EpisodeReturns | None = None  # type of the returns passed to `observe_return`
    transition_fields: frozenset[str] = _NONE  # names of fields that the sampler reads
    refresh: Refresh | None = None  # when the training loop must call `Replay.refresh`

    def known(self, feedback: Mapping[str, Any]) -> dict[str, Any]:
        """Return only those entries of `feedback` whose names `Replay` accepts."""
        names = FEEDBACK | self.feedback
        return {name: values for name, values in feedback.items() if name in names}


def union(first: Requirements, second: Requirements) -> Requirements:
    """Combine two requirements, such as those of a sampler and an objective.

    Raises:
      ValueError: If one requires evaluation returns and the other requires training returns.
    """
    returns = {first.episode_returns, second.episode_returns} - {None}
    if len(returns) > 1:
        raise ValueError("episode_returns must come from either evaluation or training, got both")
    pairs: Any = zip(first, second, strict=True)
    return Requirements(*(x | y if isinstance(x, frozenset) else x or y for x, y in pairs))


def get_field(transition: Tree, name: str) -> Any:
    """Return a field of a mapping, NamedTuple or dataclass, or None if the field is missing."""
    if isinstance(transition, Mapping):
        return transition.get(name)
    return getattr(transition, name, None)


def has_field(transition: Tree, name: str) -> bool:
    """Return whether a transition has a field with this name that contains an array."""
    return bool(jax.tree.leaves(get_field(transition, name)))


def replace_fields(transition: Tree, **changes: Any) -> Tree:
    """Return a copy of a transition with the fields named in `changes` replaced.

    Raises:
      ValueError: If `transition` is not a mapping, a NamedTuple or a dataclass.
    """
    if isinstance(transition, Mapping):
        return type(transition)({**transition, **changes})  # pyright: ignore[reportCallIssue]
    if isinstance(transition, tuple) and hasattr(transition, "_replace"):
        return transition._replace(**changes)  # pyright: ignore[reportAttributeAccessIssue]
    if dataclasses.is_dataclass(transition) and not isinstance(transition, type):
        return dataclasses.replace(transition, **changes)
    raise ValueError(
        f"transition must be a dict, a NamedTuple or a dataclass, got a {type(transition).__name__}"
    )
