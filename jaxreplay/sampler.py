"""The base class of samplers, and the pair of a sampler and an objective: a replay method."""

from typing import NamedTuple

from jaxreplay import ring as ring_
from jaxreplay.objectives import Objective
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Draw, Provision, Requirements, Sample, State, Tree, union


class Sampler:
    """Chooses the slots of a batch. Its functions are pure and work on an explicit state.

    A sampler of your own is a frozen dataclass of options below this class, so that two samplers
    with the same options are equal. It implements `init`, `add`, `sample` and `update`; the
    defaults of the other functions are those of uniform sampling. States are pytrees of arrays.

    Arrays as large as the ring are read and written in place inside compiled loops, as long as
    every function that reads one returns a result that depends on the read; see
    `jaxreplay.testing.assert_in_place`.
    """

    def init(self, key: Array, ring: Ring) -> State:
        """Return the state for an empty ring.

        Args:
          key: PRNG key.
          ring: the empty ring, with its capacity, environments and the fields of a transition.
        """
        raise NotImplementedError

    def add(
        self, state: State, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> State:
        """Return the state after new transitions; the default returns it unchanged.

        Args:
          state: of the sampler.
          ring: it holds the new transitions already.
          slots: `[E]` int32, where they are stored.
          transition: `[E, ...]`, of any type; `fields.get` reads a field by name.
          **feedback: `[E]` float32 each, the feedback named by `Requirements.feedback_of_new` and
            possibly more. It may be NaN or infinite, and must not enter the state then.
        """
        del ring, slots, transition, feedback
        return state

    def sample(self, state: State, ring: Ring, key: Array, batch_size: int) -> Draw:
        """Return `batch_size` slots that hold a transition, with their importance weights.

        A sampler of sequences (`length`) returns as many sequences of slots, `[B, T]`.
        """
        raise NotImplementedError

    def update(self, state: State, ring: Ring, sample: Sample, **feedback: Array) -> State:
        """Return the state after the agent's feedback; the default returns it unchanged.

        Args:
          state: of the sampler.
          ring: the transitions.
          sample: the batch, `[B]` or `[B, T]`. `indices` is `IGNORED` where the slot has been
            overwritten since, or feedback is not finite: scatters with `mode="drop"` and
            `sum_tree.set` skip it.
          **feedback: `[B]` or `[B, T]` float32 each, the feedback named by `Requirements.feedback`
            and possibly more.
        """
        del ring, sample, feedback
        return state

    def observe(self, state: State, ring: Ring, episode_return: Array, key: Array) -> State:
        """Return the state after a mean episode return; for learned samplers.

        Args:
          state: of the sampler.
          ring: the transitions.
          episode_return: `[]` float32, finite: the mean return of an evaluation, or of the training
            episodes that ended since the last call (`Requirements.episode_returns`).
          key: PRNG key.
        """
        del ring, episode_return, key
        return state

    def end_episodes(self, state: State, ring: Ring) -> State:
        """Return the state in which the next transition of every environment begins an episode.

        Override it if the state tracks episodes. The ring's newest transitions have `last` set.
        """
        del ring
        return state

    def probability(self, state: State, ring: Ring, slots: Array, batch_size: int) -> Array:
        """Return the probability `[n]` float32 of `slots` `[n]` int32, 1 in sum over all slots.

        It is the expected share of a slot in a batch of this size.
        """
        del state, batch_size
        return ring_.even_probability(ring, slots)

    def metrics(self, state: State, ring: Ring) -> dict[str, Array]:
        """Return metrics `[]` float32 by name, for logs."""
        del state, ring
        return {}

    def ready(self, state: State, ring: Ring, batch_size: int) -> Array:
        """Return whether a batch can be drawn, `[]` bool; by default, whether it is stored."""
        del state
        return ring_.size(ring) >= batch_size

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        """Raise ValueError, in one line, if a replay of these sizes can't be sampled.

        Args:
          capacity: of the replay, in transitions, a multiple of `num_envs`.
          num_envs: environments E.
          batch_size: at most the capacity.
        """

    @property
    def requires(self) -> Requirements:
        """Needs of the sampler: feedback, fields of transitions, the kind of loop."""
        return Requirements()

    @property
    def provides(self) -> frozenset[Provision]:
        """Contents of `Sample.aux` that agents may read."""
        return frozenset()

    @property
    def is_uniform(self) -> bool:
        """Whether draws are uniform by design; comparisons then expect no departure from it."""
        return False

    @property
    def capacity_factor(self) -> int:
        """Slots of the ring per transition of the replay's capacity."""
        return 1

    @property
    def length(self) -> int | None:
        """T for a sampler of sequences, whose batches are `[B, T, ...]`; else None."""
        return None


class Method(NamedTuple):
    """A replay method: the sampler is the replay's, the objective the agent's."""

    sampler: Sampler
    objective: Objective

    @property
    def requires(self) -> Requirements:
        """Needs of both; an objective with a loss of its own needs an agent with TD errors."""
        own = Requirements(scalar_loss=self.objective.error is not None)
        return union(union(self.sampler.requires, self.objective.requires), own)
