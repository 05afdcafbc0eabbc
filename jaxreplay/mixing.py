"""Batches from two replays, each with its own method, capacity and storage.

A mixture draws a fixed number of transitions from each replay, for example from demonstrations and
from the agent's own experience (RLPD, Ball et al. 2023), or from a small recent and a large replay.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import ring as ring_
from jaxreplay._internal import calls
from jaxreplay._internal.arguments import Bounds, as_int32, check_kind, check_size
from jaxreplay._internal.tracing import cached_method, donatable
from jaxreplay.batches import Parts, join
from jaxreplay.buffer import unrolled
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.ring import Ring
from jaxreplay.types import IGNORED, Array, Requirements, Sample, Tree, union


class MixedState(NamedTuple):
    """State of a `Mixed` replay: one state for each of its two replays."""

    first: ReplayState
    second: ReplayState

    @property
    def ring(self) -> Ring:
        """Ring buffer of the first replay."""
        return self.first.ring


class Aux(NamedTuple):
    """The auxiliary arrays of both methods, and masks of the whole batch if it holds sequences."""

    first: Tree  # `Draw.aux` of the first replay's method
    second: Tree  # `Draw.aux` of the second replay's method

    @property
    def mask(self) -> Array:
        """The `mask` of both parts of the batch, concatenated, `[B, T]` bool."""
        return jnp.concatenate([self.first.mask, self.second.mask])

    @property
    def learn(self) -> Array:
        """Whether to learn from each step, for both parts of the batch, `[B, T]` bool."""
        return jnp.concatenate([self.first.learn, self.second.learn])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"Sample.aux of a mixture lacks {name}: use an agent and an objective that do not read "
            f"{name}, or a single replay"
        )


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Two replays that are used like a single replay, created by `mix`.

    Each function corresponds to the function of `Replay` with the same name. A batch consists of
    `first.batch_size` transitions from the first replay, followed by `second.batch_size` from the
    second, each drawn and weighted by its own method. Slots of the second replay are numbered after
    the slots of the first. `Sample.aux` is an `Aux` with the arrays of both methods.

    An average over a batch is the mean of the averages over its two parts, weighted by the sizes of
    the parts. To split a batch into minibatches, permute it, or take every n-th transition:
    `x[i::n]`.

    Args:
      first: replay that receives new transitions.
      second: replay that also receives new transitions, unless `read_only` is True.
      read_only: whether to add new transitions only to the first replay. The method of the second
        replay still receives feedback.

    Raises:
      ValueError: If the replays draw sequences of different lengths, or have different numbers of
        environments and both receive new transitions.
    """

    first: Replay
    second: Replay
    read_only: bool = False

    def __post_init__(self) -> None:
        check_kind("read_only", self.read_only, bool)
        _check_replays(self.first, self.second)
        first, second = self.first, self.second
        if first.sampler.length != second.sampler.length:
            raise ValueError(
                "both replays must draw transitions, or sequences of the same length, got length "
                f"{first.sampler.length} and {second.sampler.length}"
            )
        if not self.read_only and first.num_envs != second.num_envs:
            raise ValueError(
                f"num_envs of both replays must be equal, got {first.num_envs} and "
                f"{second.num_envs}: use read_only=True if only the first replay receives new "
                "transitions"
            )

    @property
    def batch_size(self) -> int:
        """Number of transitions in a batch."""
        return self.first.batch_size + self.second.batch_size

    @property
    def num_envs(self) -> int:
        """Number of environments whose transitions are added."""
        return self.first.num_envs

    @property
    def capacity(self) -> int:
        """Number of transitions that both replays together can store."""
        return self.first.capacity + self.second.capacity

    @property
    def slots(self) -> int:
        """Number of slots in both ring buffers together."""
        return self.first.slots + self.second.slots

    @property
    def requires(self) -> Requirements:
        """Combined requirements of both samplers."""
        return union(self.first.requires, self.second.requires)

    @cached_method
    def init(self, key: Array, example: Tree, second: ReplayState | None = None) -> MixedState:
        """Return the initial state.

        Args:
          key: PRNG key.
          example: one transition without a batch axis.
          second: state of the second replay, such as `datasets.fill(replay, ...).state` or
            `load(replay, ...)`. None creates an empty replay.

        Raises:
          ValueError: If `second` is missing for a read-only replay, or stores other fields, shapes
            or dtypes than `example`.
        """
        key_first, key_second = jax.random.split(unrolled(key))
        first = self.first.init(key_first, example)
        if second is None:
            if self.read_only:
                raise ValueError(
                    "the second replay is read-only and must be filled: pass its state as `second`"
                )
            second = self.second.init(key_second, example)
        filled: Any = calls.checked_state(self.second, "init", second)
        _check_alike(first, filled)
        return donatable(MixedState(first, filled))

    @cached_method
    def add(self, state: MixedState, transition: Tree, **feedback: Array) -> MixedState:
        """Add one transition per environment, to both replays or only to the first."""
        first = self.first.add(state.first, transition, **feedback)
        if self.read_only:
            return state._replace(first=first)
        return MixedState(first, self.second.add(state.second, transition, **feedback))

    @cached_method
    def add_rollout(self, state: MixedState, rollout: Tree, **feedback: Array) -> MixedState:
        """Add T consecutive transitions per environment, as `add` does."""
        first = self.first.add_rollout(state.first, rollout, **feedback)
        if self.read_only:
            return state._replace(first=first)
        return MixedState(first, self.second.add_rollout(state.second, rollout, **feedback))

    @cached_method
    def sample(self, state: MixedState, key: Array) -> Sample:
        """Sample a batch: transitions from the first replay, then from the second."""
        keys = jax.random.split(unrolled(key))
        first = self.first.sample(state.first, keys[0])
        second = self.second.sample(state.second, keys[1])
        aux, chance = Aux(first.aux, second.aux), None
        if first.probability is not None and second.probability is not None:
            shares = [size / self.batch_size for size in self._parts.sizes]
            chance = join(shares[0] * first.probability, shares[1] * second.probability)
        second = second._replace(indices=second.indices + self.first.slots)
        batch = join(*(part._replace(aux=None, probability=None) for part in (first, second)))
        return batch._replace(aux=aux, probability=chance)

    @cached_method
    def update(self, state: MixedState, sample: Sample, **feedback: Array) -> MixedState:
        """Update both samplers with the agent's feedback on a batch."""
        batches = self.split(sample)
        calls.check_feedback(self.requires.feedback, feedback, "update", sample.indices.shape)
        parts = zip(self._replays, state, batches, self._parts.split(feedback), strict=True)
        return MixedState(
            *(
                replay.update(part, batch, **replay.requires.known(values))
                for replay, part, batch, values in parts
            )
        )

    @cached_method
    def after_reading(self, state: MixedState, batch: Sample) -> MixedState:
        """Return an equal state whose next writes run after a batch has been read."""
        parts = zip(self._replays, state, self.split(batch), strict=True)
        return MixedState(*(replay.after_reading(part, batch) for replay, part, batch in parts))

    @cached_method
    def observe_return(self, state: MixedState, episode_return: Array, key: Array) -> MixedState:
        """Update learned samplers with an episode return."""
        parts = zip(self._replays, state, jax.random.split(unrolled(key)), strict=True)
        return MixedState(
            *(replay.observe_return(part, episode_return, key) for replay, part, key in parts)
        )

    @cached_method
    def can_sample(self, state: MixedState) -> Array:
        """Return whether a batch can be drawn from both replays, `[]` bool."""
        return self.first.can_sample(state.first) & self.second.can_sample(state.second)

    @cached_method
    def probability(self, state: MixedState, slots: Array) -> Array:
        """Return the expected fraction of a batch that comes from each slot, `[n]` float32.

        Slots of the second replay are numbered after the slots of the first.
        """
        slots = as_int32("slots", slots, -1)
        first = self.first.probability(state.first, slots)
        second = self.second.probability(state.second, slots - self.first.slots)
        return self._parts.probability(first, second)

    @cached_method
    def metrics(self, state: MixedState) -> dict[str, Array]:
        """Return the metrics of both replays, with the prefixes `first/` and `second/`."""
        metrics: dict[str, Array] = {}
        for prefix, replay, part in zip(state._fields, self._replays, state, strict=True):
            metrics |= {f"{prefix}/{name}": x for name, x in replay.metrics(part).items()}
        return metrics

    @cached_method
    def end_episodes(self, state: MixedState) -> MixedState:
        """Truncate the current episodes in both replays; a read-only second replay has none."""
        first = self.first.end_episodes(state.first)
        if self.read_only:
            return state._replace(first=first)
        return MixedState(first, self.second.end_episodes(state.second))

    def split(self, batch: Sample) -> tuple[Sample, Sample]:
        """Return the two parts of a batch, as the replays drew them.

        Args:
          batch: batch returned by `sample`.

        Raises:
          ValueError: If the batch was not sampled from this mixture.
        """
        batch = calls.checked_batch(batch, self.slots, self.first.sampler.length)
        if len(batch.indices) != self.batch_size or type(batch.aux) is not Aux:
            raise ValueError(
                f"sample must be a batch of {self.batch_size} transitions from this mixture, got "
                f"{len(batch.indices)} transitions: pass a batch that the mixture's sample returned"
            )
        parts = []
        offsets = (0, self.first.slots)
        samples = self._parts.split_sample(batch, batch.aux)
        for part, offset in zip(samples, offsets, strict=True):
            indices = jnp.where(part.indices == IGNORED, IGNORED, part.indices - offset)
            chance = part.probability
            if chance is not None:
                chance = chance * (self.batch_size / len(indices))
            parts.append(part._replace(indices=indices, probability=chance))
        return parts[0], parts[1]

    @property
    def _parts(self) -> Parts:
        return Parts((self.first.batch_size, self.second.batch_size))

    @property
    def _replays(self) -> tuple[Replay, Replay]:
        return self.first, self.second


def mix(
    first: Replay,
    second: Replay,
    share: float = 0.5,
    batch_size: int | None = None,
    *,
    read_only: bool = False,
) -> Mixed:
    """Return a replay whose batches contain a fixed share of transitions from a second replay.

    Args:
      first: replay that receives new transitions.
      second: replay with its own sampler, capacity and storage.
      share: share of the second replay in each batch, in (0, 1), rounded to whole transitions. Ball
        et al. 2023 use 0.5 for demonstrations.
      batch_size: number of transitions in a batch. None means `first.batch_size`.
      read_only: whether to add new transitions only to the first replay.

    Raises:
      ValueError: If a replay would contribute no transition, or cannot draw batches of this size.

    Example:
      >>> from jaxreplay import Replay, methods
      >>> old = Replay(methods.uniform.sampler(), capacity=1000, batch_size=8)
      >>> new = Replay(methods.per.sampler(), capacity=50, batch_size=8)
      >>> both = mix(old, new, share=0.25)
      >>> both.first.batch_size, both.second.batch_size
      (6, 2)
    """
    _check_replays(first, second)
    Bounds(above=0, below=1).check("share", share)
    total = first.batch_size if batch_size is None else batch_size
    check_size("batch_size", total)
    count = round(share * total)
    if not 0 < count < total:
        raise ValueError(
            f"share must leave each replay at least one of {total} transitions, got {share}: use a "
            "larger batch_size"
        )
    return Mixed(
        dataclasses.replace(first, batch_size=total - count),
        dataclasses.replace(second, batch_size=count),
        read_only,
    )


def _check_replays(first: Any, second: Any) -> None:
    for name, replay in (("first", first), ("second", second)):
        if not isinstance(replay, Replay):
            raise ValueError(f"{name} must be a Replay, got {type(replay).__name__}")
        if "roles" in replay.sampler.provides:
            raise ValueError(
                f"{name} must not use {type(replay.sampler).__name__}, because its transitions are "
                "used differently depending on their position in the batch: use another sampler"
            )


def _check_alike(first: ReplayState, second: ReplayState) -> None:
    """Raise ValueError unless both replays return transitions of the same type."""

    def read(state: ReplayState) -> Tree:
        return ring_.gather(state.ring, jnp.zeros(1, jnp.int32))

    kinds = [jax.eval_shape(read, state) for state in (first, second)]
    if jax.tree.structure(kinds[0]) != jax.tree.structure(kinds[1]):
        raise ValueError(
            f"both replays must store the same fields, got {jax.tree.structure(kinds[0])} and "
            f"{jax.tree.structure(kinds[1])}"
        )
    paths = [jax.tree_util.tree_leaves_with_path(kind) for kind in kinds]
    for (path, leaf), (_, match) in zip(*paths, strict=True):
        if (leaf.shape, leaf.dtype) != (match.shape, match.dtype):
            name = jax.tree_util.keystr(path).lstrip(".")
            raise ValueError(
                f"{name} must have the same shape and dtype in both replays, got "
                f"{leaf.dtype}{list(leaf.shape[1:])} and {match.dtype}{list(match.shape[1:])}"
            )
