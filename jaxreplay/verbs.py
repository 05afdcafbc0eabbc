"""What every function in a sampler, an objective and a replay takes and returns.

Arguments are passed by position, feedback by name. Shapes: `E` parallel environments, `B` rows of
a sampled batch, `N` critics.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import jax

from jaxreplay.fields import Row

if TYPE_CHECKING:
    from jaxreplay.ring import Ring
    from jaxreplay.types import Draw, Sample, Trust

Array = jax.Array
State = Any  # a sampler's or a replay's own state, any pytree

# --- Of a sampler: over its own state and the ring --------------------------------------------


class InitSampler(Protocol):
    """Make the state of an empty buffer."""

    def __call__(self, key: Array, ring: "Ring", /) -> State:
        """Return the state.

        Args:
          key: PRNG key.
          ring: empty; it tells capacity, environments, and a transition's shapes.
        """
        ...


class AddSampler(Protocol):
    """Take in new transitions."""

    def __call__(
        self,
        state: State,
        ring: "Ring",
        slots: Array,
        transition: Row,
        /,
        *_: Any,
        **feedback: Any,
    ) -> State:
        """Return the state with the new transitions.

        Args:
          state: the sampler's.
          ring: already holds the new rows.
          slots: `[E]` int32, where they are.
          transition: `[E, ...]`, of any type: `fields.get` finds what is in it by name.
          **feedback: `[E]` float32 each, about them: what `Requirements.feedback_of_new` names.
            Name those that you read, and take the others as `**_`. Numbers that are not finite
            come as they are: keep them out of the state.
        """
        ...


class SampleSampler(Protocol):
    """Choose slots; nothing is written."""

    def __call__(self, state: State, ring: "Ring", key: Array, batch_size: int, /) -> "Draw":
        """Return `batch_size` slots that hold a transition, and their weights.

        Or as many stretches of T of them, `[B, T]` (`Sampler.length`).
        """
        ...


class ReadySampler(Protocol):
    """Tell whether there is anything to draw."""

    def __call__(self, state: State, ring: "Ring", /) -> Array:
        """Return `[]` bool."""
        ...


class CheckSizes(Protocol):
    """Refuse sizes of a replay that the sampler can't draw from."""

    def __call__(self, capacity: int, num_envs: int, batch_size: int, /) -> None:
        """Return where a batch can be drawn.

        Args:
          capacity: transitions that the replay remembers, a multiple of `num_envs`.
          num_envs: rows of one add.
          batch_size: rows of one sample, at most the capacity.

        Raises:
          ValueError: one line that says which size does not fit and what would.
        """
        ...


class UpdateSampler(Protocol):
    """Take in what the agent said about a sampled batch."""

    def __call__(
        self, state: State, ring: "Ring", sample: "Sample", /, *_: Any, **feedback: Any
    ) -> State:
        """Return the state after the agent's update.

        Args:
          state: the sampler's.
          ring: the transitions.
          sample: what the agent learned from, `[B]` or `[B, T]`. Rows to be ignored (overwritten
            since, or with feedback that is not finite) carry the out-of-range index `capacity`:
            scatters with `mode="drop"` and `sum_tree.set` skip them.
          **feedback: as many float32 each, by name (`td_error`, `q_value` ...), among them what
            `Requirements.feedback` names. Name those that you read, and take the others as `**_`.
        """
        ...


class ObserveSampler(Protocol):
    """Take in how well the policy does."""

    def __call__(self, state: State, ring: "Ring", episode_return: Array, key: Array, /) -> State:
        """Return the state, told a mean episode return.

        Args:
          state: the sampler's.
          ring: the transitions.
          episode_return: `[]` float32, finite: of an evaluation, or of the training episodes that
            ended since the last call, as `Requirements.episode_returns` says.
          key: PRNG key.
        """
        ...


class EndEpisodesOfSampler(Protocol):
    """Take in that running episodes are left."""

    def __call__(self, state: State, ring: "Ring", /) -> State:
        """Return the state in which the next row of every environment begins an episode.

        Args:
          state: the sampler's.
          ring: its newest row is marked as the last of its episodes, if rows have a field `last`.
        """
        ...


class SamplerProbability(Protocol):
    """Tell how likely slots are."""

    def __call__(self, state: State, ring: "Ring", slots: Array, batch_size: int, /) -> Array:
        """Return `[n]` float32, the chance of `slots` `[n]` int32 of being drawn next.

        It is that of the rows of one batch on average, and sums to 1 over all slots.
        """
        ...


class SamplerMetrics(Protocol):
    """Tell what is worth a curve."""

    def __call__(self, state: State, ring: "Ring", /) -> dict[str, Array]:
        """Return scalars `[]` float32 by name."""
        ...


# --- Of an objective --------------------------------------------------------------------------


class ErrorLoss(Protocol):
    """Turn TD errors into losses."""

    def __call__(self, td: Array, /) -> Array:
        """Return losses `[N, B]` of the TD errors `[N, B]` of N critics."""
        ...


class ReduceLoss(Protocol):
    """Turn a batch of losses into the one to minimise."""

    def __call__(self, loss: Array, sample: "Sample", trust: "Trust | None", /) -> Array:
        """Return `[]` float32.

        Args:
          loss: `[B]`, of each row.
          sample: the rows, with their weights and `aux`.
          trust: how far the policy is from the behaviour; None from agents without a density.
        """
        ...


# --- Of a replay: over its state, which holds ring and sampler --------------------------------


class InitReplay(Protocol):
    """Make an empty replay."""

    def __call__(self, key: Array, example: Row, /) -> State:
        """Return the state.

        Args:
          key: PRNG key, for samplers that have parameters.
          example: one unbatched transition (shapes and dtypes; the values do not matter): a
            `Transition`, or any other pytree of arrays.

        Raises:
          ValueError: the sampler looks at a field that the example lacks.
        """
        ...


class AddReplay(Protocol):
    """Store one row of transitions."""

    def __call__(self, state: State, transition: Row, /, **feedback: Array) -> State:
        """Return the state with the transitions; 0 stands in for what is not finite.

        Args:
          state: the replay's.
          transition: `[E, ...]`, of the same type as the example.
          **feedback: `[E]` each, about them, with what `Requirements.feedback_of_new` names.

        Raises:
          ValueError: feedback is missing, or shapes are not those of the example.
        """
        ...


class AddRollout(Protocol):
    """Store rows of transitions that came one after the other."""

    def __call__(self, state: State, rollout: Row, /, **feedback: Array) -> State:
        """Return the state after as many adds, compiled as one loop.

        Args:
          state: the replay's.
          rollout: `[T, E, ...]`, time first, of the same type as the example.
          **feedback: `[T, E]` each, as `add` takes it.

        Raises:
          ValueError: fields differ in T, a row is none that `add` takes, or the caller keeps rows
            on the host, who takes them one at a time.
        """
        ...


class SampleReplay(Protocol):
    """Draw a batch."""

    def __call__(
        self, state: State, key: Array, /, batch_size: int | None = None
    ) -> "tuple[State, Sample]":
        """Return the state, by which later writes wait for this read, and a batch `[B, ...]`.

        Args:
          state: the replay's.
          key: PRNG key.
          batch_size: B, known when compiled (`static_argnames="batch_size"`); None: the replay's.

        Raises:
          ValueError: the replay is empty (under jit ask `can_sample`), or such a batch can't be
            drawn of it.
        """
        ...


class UpdateReplay(Protocol):
    """Tell the sampler what the agent said about a batch."""

    def __call__(self, state: State, sample: "Sample", /, **feedback: Array) -> State:
        """Return the state; rows that are stale or not finite are dropped and counted.

        Args:
          state: the replay's.
          sample: the batch.
          **feedback: `[B]` each, of stretches `[B, T]`, by name, with what
            `Requirements.feedback` names.

        Raises:
          ValueError: feedback is missing.
        """
        ...


class ObserveReplay(Protocol):
    """Tell the sampler how well the policy does."""

    def __call__(self, state: State, episode_return: Array, key: Array, /) -> State:
        """Return the state, told a mean return `[]`; one that is not finite changes nothing."""
        ...


class EndEpisodes(Protocol):
    """End the episodes that are running."""

    def __call__(self, state: State, /) -> State:
        """Return the state in which the newest row of every environment ended its episode.

        It is for loops whose environments were reset without a step that said so, as after
        `jaxreplay.load`: no stretch, window or walk then leads from the old episodes into the
        new ones. The last step keeps its discount, as at a time limit. Rows with a field `first`
        have it True in the row that comes next. Where an n-step window goes on, call
        `n_step.end_episodes` instead: the newest steps are still in it.

        Args:
          state: the replay's.
        """
        ...


class CanSample(Protocol):
    """Tell whether a batch can be drawn."""

    def __call__(self, state: State, /, batch_size: int | None = None) -> Array:
        """Return `[]` bool: the replay holds at least a batch (None: of its own size).

        Of samplers that draw with replacement what is not a single row (`Sampler.ready`): there is
        anything to draw.
        """
        ...


class ReplayProbability(Protocol):
    """Tell how likely slots are."""

    def __call__(self, state: State, slots: Array, /, batch_size: int | None = None) -> Array:
        """Return `[n]` float32, the chance of `slots` `[n]` of being drawn next.

        It is that of the rows of a batch of this size (None: the replay's) on average.
        """
        ...


class ReplayMetrics(Protocol):
    """Tell what is worth a curve."""

    def __call__(self, state: State, /) -> Mapping[str, Array]:
        """Return scalars `[]` float32 by name."""
        ...
