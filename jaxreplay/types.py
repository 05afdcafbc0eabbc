"""Arrays that the library passes around: transitions, draws and batches.

Shapes: `E` parallel environments, `B` transitions of a batch, `T` steps of a sequence, `C` slots
of the ring.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

Array = jax.Array
Tree = Any  # a pytree of arrays
State = Any  # the state of a sampler, a replay or an agent: a pytree of arrays

IGNORED = np.int32(2**31 - 1)  # the index of a transition that `Sampler.update` must not change


class Transition(NamedTuple):
    """One (possibly n-step) transition; fields are `[E, ...]` when added, `[B, ...]` when sampled.

    Gamma is part of `discount`, so that agents need not know it. Every field may be None: it is not
    stored then. `Requirements.transition_fields` names the fields that a sampler reads.
    """

    obs: Tree = None  # [E, ...]
    action: Any = None  # [E] int32 or [E, A] float32
    reward: Any = None  # [E] float32, the discounted sum of the n rewards
    discount: Any = None  # [E] float32, gamma^n, or 0 if the environment terminated within n steps
    next_obs: Tree = None  # [E, ...] the true last observation, never one after a reset
    first: Any = None  # [E] bool, whether `obs` was the first observation of its episode
    last: Any = None  # [E] bool, whether the episode terminated or was truncated after `action`
    extras: Tree = None  # [E, ...] the agent's extras of the action: mean, variance, value
    n_steps: Any = None  # [E] int32, agent steps covered, at most n; None is 1. It is not stored:
    # only observations that are stored once need it, to find the next one


class Draw(NamedTuple):
    """The slots that a sampler has drawn, with importance weights."""

    indices: Array  # [B] int32, or [B, T] for sequences (`Sampler.length`)
    weights: Array  # [B] float32
    aux: Tree = None  # read by the method's objective, and by agents that know it
    probability: Array | None = None  # [B] float32, probability of each slot (of each sequence),
    # as `Sampler.probability` returns it; None if it takes extra work


class Sample(NamedTuple):
    """A batch: the drawn slots with their transitions.

    `version` identifies the transition that a slot held when it was drawn: `Replay.update` drops
    feedback for slots that have been overwritten since. Samplers of sequences return indices,
    versions and transitions of shape `[B, T, ...]`.

    The order of a batch is not random. Samplers with a sum tree (PER, LAP, PSER, NERS, sequences)
    draw once in each of B equal ranges of the total priority, in the order of slots, so that the
    first quarter of a batch comes from other times than the last. Rank-based replay draws once per
    segment, the largest TD errors first. `latest` and `windows` are in the order of time. A loss
    over the whole batch does not depend on the order. Before splitting a batch into minibatches,
    permute it, or draw independently (`sampling="iid"`).
    """

    indices: Array  # [B] int32; `IGNORED` marks transitions without valid feedback in `update`
    transition: Tree  # [B, ...], of the type that was added
    weights: Array  # [B] float32
    version: Array  # [B] int32, the ring's step counter when the slot was written
    aux: Tree = None
    probability: Array | None = None  # [B] float32, as in `Draw`


LOG_RATIO_LIMIT = 7.0  # log importance ratios are clipped to +-7, as in the code of the authors of
# ReF-ER, so that exp(log ratio) stays finite in every loss


class Trust(NamedTuple):
    """Distance of the policy from the behaviour policy, from agents with a density."""

    log_ratio: Array  # [B] log pi(a|s) / mu(a|s)
    kl: Array  # [B] KL(mu || pi)
    reverse_kl: Array  # [B] KL(pi || mu)


EpisodeReturns = Literal["evaluation", "training"]
Provision = Literal["returns", "trajectories"]

# What agents may tell about transitions, whether the method at hand reads it or not.
FEEDBACK = frozenset(
    {
        "td_error", "q_value", "target", "log_ratio", "value", "advantage", "next_value",
        "reward_scale",
    }
)  # fmt: skip
_NAMES: frozenset[str] = frozenset()
DENSITY = "a policy with a density (log_ratio)"


class Requirements(NamedTuple):
    """What a replay method needs; the default is nothing.

    Of the agent: `feedback`, `feedback_of_new`, `density`, `scalar_loss`. Of agent and loop:
    `all_new`. Of the loop: `new_steps`, `single_steps`, `whole_episodes`, `episode_returns`. Of
    what is stored: `transition_fields`.
    """

    feedback: frozenset[str] = _NAMES  # about sampled transitions, read by `update`
    feedback_of_new: frozenset[str] = _NAMES  # about new transitions, read by `add`
    density: bool = False  # the objective reads `Trust`, which takes a policy with a density
    scalar_loss: bool = False  # the objective replaces the loss of a scalar TD error
    all_new: bool = False  # every batch is what was added since the batch before: for on-policy
    # agents and loops that collect a batch between two updates
    new_steps: bool = False  # what it does hangs on steps being added all along
    single_steps: bool = False  # transitions are of one step, not of n
    whole_episodes: bool = False  # episodes are remembered whole or not at all
    episode_returns: EpisodeReturns | None = None  # whose returns `observe` is told; None: nobody's
    transition_fields: frozenset[str] = _NAMES  # fields of a row that the sampler looks at


def union(first: Requirements, second: Requirements) -> Requirements:
    """Return what two halves of a method need together.

    Raises:
      ValueError: one wants the returns of evaluations, the other those of training.
    """
    returns = {first.episode_returns, second.episode_returns} - {None}
    if len(returns) > 1:
        raise ValueError("returns of evaluations and of training can't both be observed: use one")
    return Requirements(
        feedback=first.feedback | second.feedback,
        feedback_of_new=first.feedback_of_new | second.feedback_of_new,
        density=first.density or second.density,
        scalar_loss=first.scalar_loss or second.scalar_loss,
        all_new=first.all_new or second.all_new,
        new_steps=first.new_steps or second.new_steps,
        single_steps=first.single_steps or second.single_steps,
        whole_episodes=first.whole_episodes or second.whole_episodes,
        episode_returns=first.episode_returns or second.episode_returns,
        transition_fields=first.transition_fields | second.transition_fields,
    )


def known_feedback(requires: Requirements, feedback: Mapping[str, Any]) -> dict[str, Any]:
    """Return feedback without names of the agent's own that this replay method does not read."""
    known = FEEDBACK | requires.feedback
    return {name: values for name, values in feedback.items() if name in known}


def get_field(row: Tree, name: str) -> Any:
    """Return a field of a row, None if it has none of that name."""
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)


def has_field(row: Tree, name: str) -> bool:
    """Tell whether a row has a field of that name with an array in it."""
    return bool(jax.tree.leaves(get_field(row, name)))


def replace_fields(row: Tree, **changes: Any) -> Tree:
    """Return a row of the same type with other values in some of its fields.

    Args:
      row: a mapping, a NamedTuple or a dataclass.
      **changes: new values of fields that it has.

    Raises:
      ValueError: the row is of another type.
    """
    if isinstance(row, Mapping):
        return type(row)({**row, **changes})  # pyright: ignore[reportCallIssue]
    if isinstance(row, tuple) and hasattr(row, "_replace"):
        return row._replace(**changes)  # pyright: ignore[reportAttributeAccessIssue]
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return dataclasses.replace(row, **changes)
    raise ValueError(
        f"a row of type {type(row).__name__} has no fields to replace: use a dict, a NamedTuple or "
        "a dataclass"
    )
