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

# Names of feedback that agents may give, whether or not the sampler reads it.
FEEDBACK = frozenset(
    {
        "td_error", "q_value", "target", "log_ratio", "value", "advantage", "next_value",
        "reward_scale",
    }
)  # fmt: skip
DENSITY = "a policy with a density (log_ratio)"
_NONE: frozenset[str] = frozenset()


class Requirements(NamedTuple):
    """Needs of a sampler or an objective; the default is none."""

    feedback: frozenset[str] = _NONE  # feedback that `update` reads, about sampled transitions
    feedback_of_new: frozenset[str] = _NONE  # feedback that `add` reads, about new transitions
    density: bool = False  # the objective reads `Trust`: the policy must have a density
    scalar_loss: bool = False  # the objective replaces the loss of a scalar TD error
    all_new: bool = False  # a batch holds the transitions since the batch before: agent and loop
    # must be on-policy
    new_steps: bool = False  # the loop must keep adding transitions
    single_steps: bool = False  # transitions must be of single steps, not n-step
    whole_episodes: bool = False  # episodes are stored whole or not at all
    episode_returns: EpisodeReturns | None = None  # the kind of returns that `observe` takes
    transition_fields: frozenset[str] = _NONE  # fields of transitions that the sampler reads

    def known(self, feedback: Mapping[str, Any]) -> dict[str, Any]:
        """Return feedback without the names that `Replay` does not accept."""
        names = FEEDBACK | self.feedback
        return {name: values for name, values in feedback.items() if name in names}


def union(first: Requirements, second: Requirements) -> Requirements:
    """Return the needs of two parts of a method together.

    Raises:
      ValueError: one needs returns of evaluations and the other returns of training episodes.
    """
    returns = {first.episode_returns, second.episode_returns} - {None}
    if len(returns) > 1:
        raise ValueError("episode_returns is both evaluation and training: use one")
    pairs: Any = zip(first, second, strict=True)
    return Requirements(*(x | y if isinstance(x, frozenset) else x or y for x, y in pairs))


def get_field(transition: Tree, name: str) -> Any:
    """Return a field of a mapping, NamedTuple or dataclass by name, or None without one."""
    if isinstance(transition, Mapping):
        return transition.get(name)
    return getattr(transition, name, None)


def has_field(transition: Tree, name: str) -> bool:
    """Return whether transitions have a field of this name that holds an array."""
    return bool(jax.tree.leaves(get_field(transition, name)))


def replace_fields(transition: Tree, **changes: Any) -> Tree:
    """Return transitions of the same type with other values in some fields.

    Args:
      transition: a mapping, a NamedTuple or a dataclass.
      **changes: new values by name.

    Raises:
      ValueError: the transition is of another type.
    """
    if isinstance(transition, Mapping):
        return type(transition)({**transition, **changes})  # pyright: ignore[reportCallIssue]
    if isinstance(transition, tuple) and hasattr(transition, "_replace"):
        return transition._replace(**changes)  # pyright: ignore[reportAttributeAccessIssue]
    if dataclasses.is_dataclass(transition) and not isinstance(transition, type):
        return dataclasses.replace(transition, **changes)
    raise ValueError(
        f"the transition is a {type(transition).__name__}: use a dict, a NamedTuple or a dataclass"
    )
