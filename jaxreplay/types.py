"""The vocabulary of the library: what is stored, what is drawn, and what a method is made of.

Shapes: `E` parallel environments, `B` rows of a sampled batch, `C` slots of the ring, `N` critics.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from jaxreplay import verbs
from jaxreplay.fields import Row
from jaxreplay.requirements import Provision, Requirements, union
from jaxreplay.verbs import State

if TYPE_CHECKING:
    from jaxreplay.ring import Ring

Array = jax.Array
Tree = Any  # a pytree of arrays
Aux = Any  # a pytree that a sampler hands to its own objective and to agents that read it


_LEFT_OUT: Any = ()  # a field that holds no array, and takes no memory


class Transition(NamedTuple):
    """One (possibly n-step) transition; fields are `[E, ...]` when added, `[B, ...]` when sampled.

    Agents never see gamma: it is folded into `discount`, which is gamma^n, or 0 if the
    environment terminated within the n steps (truncation keeps bootstrapping). A loop that has no
    use for a field leaves it out; samplers say which ones they look at
    (`Requirements.transition_fields`).
    """

    obs: Tree = _LEFT_OUT  # [E, ...]
    action: Array = _LEFT_OUT  # [E] int32 or [E, A] float32
    reward: Array = _LEFT_OUT  # [E] float32, the discounted sum of the n rewards
    discount: Array = _LEFT_OUT  # [E] float32
    next_obs: Tree = _LEFT_OUT  # [E, ...] the true last observation, never one after a reset
    first: Array = _LEFT_OUT  # [E] bool, the step from `obs` was its episode's first
    last: Array = _LEFT_OUT  # [E] bool, ... its last (terminated or truncated)
    extras: Tree = ()  # [E, ...] what act() said besides the action: mean, std, value
    n_steps: Array | tuple[()] = ()  # [E] int32, agent steps covered, up to n; () stands for 1. Not
    # stored: only frame stacks need it, to know how far apart both observations are


class Draw(NamedTuple):
    """What a sampler returns: which slots, and with what importance-sampling weights."""

    indices: Array  # [B] int32, or [B, T] of stretches: see `Sampler.length`
    weights: Array  # [B] float32
    aux: Aux = ()
    probability: Array | tuple[()] = ()  # [B] float32, each slot's chance of being drawn, as
    # `SamplerProbability` tells it, where the sampler knows it without looking; else (). Of
    # stretches, each stretch's


class Sample(NamedTuple):
    """What the replay returns: the drawn slots with their contents.

    `version` identifies what was in each slot when it was drawn, so that feedback for a slot that
    has been overwritten since is dropped instead of landing on a stranger. Of a sampler of
    stretches, indices, versions and transitions are `[B, T, ...]`.

    Rows need not be in random order. Where priorities lie in a tree (PER, LAP, PSER, NERS,
    sequences), draw k is of the k-th of B equal ranges of their sum, in the order of slots, so that
    the first quarter of a batch is of other times than the last. In rank-based replay it is of the
    k-th segment of ranks, the largest TD errors first. `latest` goes by time, `windows` step by
    step. The loss of a whole batch is the same in any order. Before you cut a batch into smaller
    ones, permute its rows, or draw them independently: the methods' option `sampling="iid"`.
    """

    indices: (
        Array  # [B] int32; the capacity stands for "ignore this row" (see `verbs.UpdateSampler`)
    )
    transition: Row  # [B, ...], of the type that was stored
    weights: Array  # [B] float32
    version: Array  # [B] int32, the ring's row count when the slot was written
    aux: Aux = ()
    probability: Array | tuple[()] = ()  # [B] float32, as `Draw` has it


def ignore_episode_return(state: State, ring: "Ring", episode_return: Array, key: Array) -> State:
    """Return the state as it is: the `observe` of samplers that do not look at returns."""
    del ring, episode_return, key
    return state


def end_no_episodes(state: State, ring: "Ring") -> State:
    """Return the state as it is: the `end_episodes` of samplers that keep none apart."""
    del ring
    return state


def even_probability(state: State, ring: "Ring", slots: Array, batch_size: int) -> Array:
    """Return `[n]` float32, the same for every live slot: the `probability` of uniform draws."""
    del state, batch_size
    from jaxreplay import ring as ring_  # here: rings are made of what this file defines

    return ring_.even_probability(ring, slots)


def no_metrics(state: State, ring: "Ring") -> dict[str, Array]:
    """Return nothing: the `metrics` of samplers that have none."""
    del state, ring
    return {}


class Sampler(NamedTuple):
    """A replay method's sampling half: pure functions over the sampler's own state."""

    init: verbs.InitSampler
    add: verbs.AddSampler
    sample: verbs.SampleSampler
    update: verbs.UpdateSampler
    observe: verbs.ObserveSampler = ignore_episode_return
    probability: verbs.SamplerProbability = even_probability
    metrics: verbs.SamplerMetrics = no_metrics
    requires: Requirements = Requirements()
    provides: frozenset[Provision] = frozenset()  # what agents find in `Sample.aux`
    even: bool = False  # draws are meant to be uniform over what is remembered: such a method is
    # not judged by how far it departs from uniform
    capacity_factor: int = 1  # slots of the ring per transition of the replay's capacity
    length: int | None = None  # T: it draws stretches of so many successive steps of one
    # environment, and batches are [B, T, ...]; None: single transitions
    ready: verbs.ReadySampler | None = None  # None: as soon as the replay holds a batch
    check_sizes: verbs.CheckSizes | None = None  # None: all sizes fit that fit one another
    end_episodes: verbs.EndEpisodesOfSampler = end_no_episodes  # for those whose state knows them


# --- An objective: how a method shapes an agent's losses --------------------------------------

LOG_RATIO_LIMIT = 7.0  # log importance ratios are clipped here, as in the code of the authors of
# ReF-ER: it keeps exp(log ratio) finite in every loss


class Trust(NamedTuple):
    """How far the policy has moved from the one that acted; from agents that have a density."""

    log_ratio: Array  # [B] log pi(a|s) / mu(a|s)
    kl: Array  # [B] KL(mu || pi)
    reverse_kl: Array  # [B] KL(pi || mu)


class Objective(NamedTuple):
    """A replay method's learning half: how it shapes an agent's losses."""

    error: verbs.ErrorLoss | None  # None leaves the agent's own: Huber with kappa 1 for DQN,
    # squared for TD3 and SAC
    critic: verbs.ReduceLoss
    actor: verbs.ReduceLoss
    requires: Requirements = Requirements()


class Method(NamedTuple):
    """A replay method: the sampler goes to the replay, the objective to the agent."""

    sampler: Sampler
    objective: Objective

    @property
    def requires(self) -> Requirements:
        """What both halves need; a loss of TD errors needs an agent that has scalar ones."""
        own = Requirements(scalar_loss=self.objective.error is not None)
        return union(union(self.sampler.requires, self.objective.requires), own)


class Replay(NamedTuple):
    """Ring and sampler behind verbs over one state; made by `make_replay`."""

    init: verbs.InitReplay
    add: verbs.AddReplay
    sample: verbs.SampleReplay
    update: verbs.UpdateReplay
    observe: verbs.ObserveReplay
    can_sample: verbs.CanSample
    probability: verbs.ReplayProbability
    metrics: verbs.ReplayMetrics
    end_episodes: verbs.EndEpisodes
    add_rollout: verbs.AddRollout
    capacity: int  # transitions that it remembers
    num_envs: int  # rows of one add
    batch_size: int  # rows of one sample
    requires: Requirements = Requirements()  # of its sampler
