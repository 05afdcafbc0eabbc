"""Base class for samplers, and replay methods: pairs of a sampler and an objective."""

from typing import ClassVar, NamedTuple

from jaxreplay import ring as ring_
from jaxreplay.objectives import Objective
from jaxreplay.ring import Ring
from jaxreplay.types import (
    Array,
    Draw,
    Goals,
    Provision,
    Requirements,
    Sample,
    State,
    Tree,
    union,
)


class Sampler:
    """Base class for samplers, which choose the slots of a batch.

    To define a custom sampler, subclass `Sampler` with a frozen dataclass whose fields are options.
    Two samplers with the same options are then equal. Implement `init` and `sample`, and usually
    `add` and `update`, as pure functions of a pytree state. The defaults of other functions are
    those of uniform sampling without feedback.

    Inside compiled loops, arrays as large as the ring buffer are updated in place if every function
    that reads such an array returns a result that depends on the read, and writes the array only
    after the read, at `buffer.after(rows, slots)`. Use
    `jaxreplay.testing.assert_in_place` to check this. `docs/how_to/write_a_method.md` has examples.

    Attributes:
      needs_whole: reason why `Replay(axis_name=...)` cannot shard the transitions over devices.
        None means that `Replay` can shard them, because the sampler's functions reduce every
        quantity that depends on all transitions over `ring.axis_name`.
    """

    needs_whole: ClassVar[str | None] = "its functions do not reduce over devices"

    def init(self, key: Array, ring: Ring) -> State:
        """Return the initial state.

        Args:
          key: PRNG key.
          ring: an empty ring buffer with the final capacity, number of environments and fields.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement init")

    def add(
        self, state: State, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> State:
        """Return the state updated with new transitions. The default returns `state` unchanged.

        Args:
          state: state of the sampler.
          ring: the ring buffer, which already contains the new transitions.
          slots: `[E]` int32, slots of the new transitions.
          transition: `[E, ...]`, a pytree of any type; `types.get_field` reads a field by name.
          **feedback: `[E]` float32 each, such as `td_error`, including all feedback in
            `Requirements.feedback_of_new`. NaN and infinite values must not enter the state.
        """
        del ring, slots, transition, feedback
        return state

    def sample(self, state: State, ring: Ring, key: Array, batch_size: int) -> Draw:
        """Draw `batch_size` non-empty slots, with importance weights.

        A sequence sampler (see `length`) draws `batch_size` sequences of slots, `[B, T]`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement sample")

    def relabel(self, state: State, ring: Ring, draw: Draw, transition: Tree) -> Tree:
        """Return transitions with fields that are computed at sampling time, such as a new goal.

        The default returns `transition` unchanged.

        Args:
          state: state of the sampler.
          ring: the ring buffer, which may be read at other slots.
          draw: the result of `sample`.
          transition: `[B, ...]`, the stored transitions at `draw.indices`. The result must have the
            same structure, shapes and dtypes.
        """
        del state, ring, draw
        return transition

    def update(self, state: State, ring: Ring, sample: Sample, **feedback: Array) -> State:
        """Return the state updated with feedback. The default returns `state` unchanged.

        Args:
          state: state of the sampler.
          ring: the ring buffer.
          sample: the batch, `[B]` or `[B, T]`. `indices` is `IGNORED` for slots that have been
            overwritten since sampling, and for NaN or infinite feedback. `sum_tree.set` and
            scatters with `mode="drop"` skip these indices.
          **feedback: `[B]` or `[B, T]` float32 each, such as `td_error`, including all feedback in
            `Requirements.feedback`.
        """
        del ring, sample, feedback
        return state

    def refresh(self, state: State, ring: Ring, slots: Array, **feedback: Array) -> State:
        """Return the state with exact priorities of slots, outside of any batch.

        Unlike `update`, this function does not advance schedules over updates. After a call, new
        transitions receive the maximum of all stored priorities. Samplers implement this function
        if their priorities depend on feedback alone.

        Args:
          state: state of the sampler.
          ring: the ring buffer.
          slots: `[n]` int32, distinct, except for `IGNORED`, which marks slots to skip, as in
            `update`.
          **feedback: `[n]` float32 each, including all feedback in `Requirements.feedback`.

        Raises:
          NotImplementedError: If the sampler does not implement this function.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not implement refresh, which sets exact priorities: use a "
            "sampler that implements it, such as per.sampler()"
        )

    def observe_return(self, state: State, ring: Ring, episode_return: Array, key: Array) -> State:
        """Return the state of a learned sampler updated with a mean episode return.

        Args:
          state: state of the sampler.
          ring: the ring buffer.
          episode_return: `[]` float32, finite. Depending on `Requirements.episode_returns`, the
            mean return of an evaluation or of the training episodes that ended since the last call.
          key: PRNG key.
        """
        del ring, episode_return, key
        return state

    def end_episodes(self, state: State, ring: Ring) -> State:
        """Return the state after ending the current episode in every environment.

        Override this function if the state tracks episodes. `last` is already True in the newest
        transitions of `ring`, and the next transitions start new episodes.
        """
        del ring
        return state

    def probability(self, state: State, ring: Ring, slots: Array, batch_size: int) -> Array:
        """Return sampling probabilities `[n]` float32 for `slots` `[n]` int32.

        Each probability is the expected fraction of a batch from this slot. Over all slots,
        probabilities sum to 1.
        """
        del state, batch_size
        return ring_.even_probability(ring, slots)

    def metrics(self, state: State, ring: Ring) -> dict[str, Array]:
        """Return scalar metrics for logging, as a dictionary of float32 arrays."""
        del state, ring
        return {}

    def ready(self, state: State, ring: Ring, batch_size: int) -> Array:
        """Return whether the ring buffer contains enough data to draw a batch, `[]` bool."""
        del state
        return ring_.size(ring) >= batch_size

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        """Raise a one-line ValueError if a replay with these sizes cannot be sampled.

        Args:
          capacity: capacity of the replay in transitions, a multiple of `num_envs`.
          num_envs: number of environments E.
          batch_size: batch size, at most `capacity`.
        """

    def for_goals(self, goals: Goals) -> "Sampler":
        """Return this sampler for a task with these goals. The default ignores goals.

        Samplers with `Requirements.goals` cannot be used for tasks without goals.
        """
        del goals
        return self

    @property
    def requires(self) -> Requirements:
        """Required feedback, transition fields and type of training loop."""
        return Requirements()

    @property
    def provides(self) -> frozenset[Provision]:
        """Names of the data in `Sample.aux` that agents may read."""
        return frozenset()

    @property
    def is_uniform(self) -> bool:
        """Whether sampling is uniform by design. If not, studies check that draws are uneven."""
        return False

    @property
    def capacity_factor(self) -> int:
        """Number of slots in the ring buffer per transition of replay capacity."""
        return 1

    @property
    def length(self) -> int | None:
        """Sequence length T if batches are sequences `[B, T, ...]`, otherwise None."""
        return None


class Method(NamedTuple):
    """A replay method: a sampler for the replay and an objective for the agent."""

    sampler: Sampler
    objective: Objective

    @property
    def requires(self) -> Requirements:
        """Combined requirements of the sampler and the objective."""
        return union(self.sampler.requires, self.objective.needs)
