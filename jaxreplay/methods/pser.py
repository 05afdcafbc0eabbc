"""Prioritised sequence experience replay, PSER (Brittain et al. 2019).

A surprising transition lends part of its priority to the steps that led to it: rho^k of it to the
k-th step before, within the episode.
"""

import dataclasses
import math

import jax.numpy as jnp
from flax import struct

from jaxreplay import objectives, sum_tree
from jaxreplay import ring as ring_
from jaxreplay._internal import checks
from jaxreplay.methods import proportional
from jaxreplay.methods.parts import positions as episodes
from jaxreplay.methods.parts.losses import LOSSES, named_loss
from jaxreplay.methods.parts.positions import Positions
from jaxreplay.methods.proportional import INITIALS, ProportionalState
from jaxreplay.option import option
from jaxreplay.requirements import Requirements
from jaxreplay.ring import Ring
from jaxreplay.sum_tree import SAMPLINGS
from jaxreplay.types import Array, Draw, Method, Sample, Sampler, Transition

COMBINATIONS = ("max", "add")
SPACES = ("raw", "leaf")
LEAVES = ("power", "sqrt_huber")
_PAPER = "Brittain et al. 2019"


@dataclasses.dataclass(frozen=True)
class PSERConfig:
    """Hyperparameters of PSER.

    The paper's numbers came from code that decays the tree's leaves, square roots of the Huber
    loss: `decay_space="leaf", leaf="sqrt_huber"`.
    """

    alpha: float = option(0.5, "prioritisation exponent, 0 is uniform", f"{_PAPER}, Tab. 3")
    beta: float = option(0.5, "importance-sampling exponent, constant", f"{_PAPER}, Tab. 4")
    epsilon: float = option(1e-6, "added to |TD error| before the exponent; not given in the paper")
    rho: float = option(0.4, "decay of the priority per step back, in (0, 1)", f"{_PAPER}, Tab. 2")
    window: int | None = option(
        None, "steps back; none: until rho^k falls below `threshold`", f"{_PAPER}, Eq. 9"
    )
    threshold: float = option(0.01, "decayed share that is still passed on", f"{_PAPER}, Eq. 8")
    eta: float = option(
        0.7, "share of its old priority that a replayed transition keeps", f"{_PAPER}, Eq. 10"
    )
    combine: str = option(
        "max", "how decayed and own priority join", f"{_PAPER}, Eq. 6 and 7", COMBINATIONS
    )
    initial: str = option(
        "max",
        "priority of new transitions: the largest so far, or that of their TD error now",
        f"{_PAPER}, Sec. 5.3",
        INITIALS,
    )
    decay_on_add: bool = option(
        False, "decay from new transitions too (as the theory does)", f"{_PAPER}, Sec. 3"
    )
    decay_space: str = option(
        "raw", "what rho and eta act on: the priority (paper) or its power (code)", "", SPACES
    )
    leaf: str = option(
        "power", "leaf of a TD error: (|td| + epsilon)^alpha, or sqrt(Huber) (code)", "", LEAVES
    )
    sampling: str = option(
        "stratified",
        "one draw in each of B equal ranges of the total (systematic: at the same place in all)"
        ", or independent draws",
        "Schaul et al. 2016, App. B.2.1",
        SAMPLINGS,
    )
    loss: str = option(
        "agent", "loss of the TD error, weighted; 'agent' takes the agent's own", "", LOSSES
    )

    def __post_init__(self) -> None:
        checks.check_alpha(self.alpha)
        checks.check_unit("beta", self.beta)
        checks.check_not_negative("epsilon", self.epsilon)
        checks.check_open_unit("rho", self.rho)
        checks.check_open_unit("threshold", self.threshold)
        checks.check_unit("eta", self.eta)
        if self.window is not None:
            checks.check_at_least("window", self.window, 1)
        elif window_of(self.rho, self.threshold) < 1:
            raise ValueError(
                f"rho {self.rho} is below the threshold {self.threshold} after one step: "
                "use a larger rho, or give the window"
            )
        for name, choices in (
            ("combine", COMBINATIONS), ("initial", INITIALS), ("decay_space", SPACES),
            ("leaf", LEAVES), ("sampling", SAMPLINGS),
        ):  # fmt: skip
            checks.check_choice(name, getattr(self, name), choices)
        if self.leaf == "sqrt_huber" and self.decay_space == "raw":
            raise ValueError("leaf sqrt_huber is no power of a priority: use decay_space leaf")
        if self.combine == "add" and self.decay_space == "raw" and self.alpha == 0:
            raise ValueError("combine add with alpha 0 has nothing to add: use combine max")
        named_loss(self.loss)


@struct.dataclass
class PSERState:
    """Priorities, and how far a walk back may go."""

    priorities: ProportionalState
    positions: Positions


def window_of(rho: float, threshold: float = 0.01) -> int:
    """Return the steps k for which `rho^k >= threshold` (Brittain et al. 2019, Eq. 9, floored).

    Raises:
      ValueError: an argument lies outside (0, 1).
    """
    checks.check_open_unit("rho", rho)
    checks.check_open_unit("threshold", threshold)
    return math.floor(math.log(threshold) / math.log(rho) + 1e-9)


def sampler(config: PSERConfig = PSERConfig()) -> Sampler:
    """Make PSER's sampler: PER whose updates raise the priorities of the steps before.

    A replayed transition gets `max(|td| + epsilon, eta * old)` (Eq. 10), and from there the k-th
    step before it `max(rho^k p, own)` (Eq. 6) or `min(rho^k p + own, largest so far)` (Eq. 7), for
    k up to the window, back to the start of the episode and never across the write cursor. The
    result is that of going through the batch in the order of time; where a slot was drawn twice
    with different errors, one of them counts.
    """
    window = config.window or window_of(config.rho, config.threshold)
    raw = config.decay_space == "raw"
    # The tree holds p^alpha. A maximum commutes with the power, so MAX never needs p itself.
    rho, eta = ((x**config.alpha if raw else x) for x in (config.rho, config.eta))
    weigh = proportional.importance(config.beta, config.beta, None, "batch")

    def leaf(td_error: Array) -> Array:
        size = jnp.abs(td_error)
        if config.leaf == "sqrt_huber":
            return jnp.sqrt(objectives.huber(1.0)(td_error) + 1e-10)
        return (size + config.epsilon) ** config.alpha

    def init(key: Array, ring: Ring) -> PSERState:
        del key
        return PSERState(proportional.init(ring.capacity), episodes.init(ring))

    def add(
        state: PSERState,
        ring: Ring,
        slots: Array,
        transition: Transition,
        td_error: Array | None = None,
        **_: Array,
    ) -> PSERState:
        positions = episodes.enter(state.positions, slots, transition.first)
        values = leaf(td_error) if config.initial == "td" else None
        state = PSERState(proportional.enter(state.priorities, slots, values), positions)
        if not config.decay_on_add:
            return state
        values = sum_tree.get(state.priorities.tree, slots)
        tree = _lend(state, state.priorities.tree, ring, slots, values)
        return state.replace(priorities=state.priorities.replace(tree=tree))

    def sample(state: PSERState, ring: Ring, key: Array, batch_size: int) -> Draw:
        indices, odds = proportional.draw(state.priorities, ring, key, batch_size, config.sampling)
        return Draw(indices, weigh(odds))

    def update(
        state: PSERState, ring: Ring, sample: Sample, *, td_error: Array, **_: Array
    ) -> PSERState:
        old = state.priorities
        slots, valid = sample.indices, sample.indices < ring.capacity
        kept = eta * sum_tree.get(old.tree, jnp.where(valid, slots, 0))
        values = jnp.where(valid, jnp.maximum(leaf(td_error), kept), 0.0)
        largest = jnp.maximum(old.max_leaf, values.max())
        priorities = old.replace(
            tree=sum_tree.put(old.tree, slots, values),
            max_leaf=largest,
            updates=old.updates + 1,
        )
        state = state.replace(priorities=priorities)
        tree = _lend(state, priorities.tree, ring, slots, values)
        return state.replace(priorities=priorities.replace(tree=tree))

    def _lend(
        state: PSERState, tree: sum_tree.SumTree, ring: Ring, slots: Array, values: Array
    ) -> sum_tree.SumTree:
        """Pass `values` `[B]`, just put at `slots`, on to the steps before, and repair the tree."""
        steps = jnp.arange(1, window + 1)
        rows = jnp.minimum(slots, ring.capacity - 1)[:, None]
        earlier, held = ring_.previous(ring, rows, steps)  # [B, W]
        reached = held & (steps <= state.positions.steps[rows]) & (slots < ring.capacity)[:, None]
        if config.combine == "add":
            # A slot drawn twice lends once.
            again = jnp.tril(slots[:, None] == slots, -1).any(axis=1)
            reached &= ~again[:, None]
        before = jnp.where(reached, earlier, ring.capacity)
        if config.combine == "max":
            shares = values[:, None] * rho ** steps.astype(jnp.float32)
            tree = sum_tree.put(tree, before.ravel(), shares.ravel(), raise_only=True)
        else:
            largest = state.priorities.max_leaf
            tree = _add_shares(tree, before.ravel(), values, steps, largest)
        chain = jnp.where(reached, earlier, rows)  # the same parents again are harmless
        touched = jnp.concatenate([slots[:, None], chain], axis=1)
        return sum_tree.repair(tree, touched.ravel())

    def _add_shares(
        tree: sum_tree.SumTree, before: Array, values: Array, steps: Array, largest: Array
    ) -> sum_tree.SumTree:
        """Raise leaves by decayed priorities, up to the largest; several may meet in one leaf."""
        power = config.alpha if raw else 1.0
        held = sum_tree.get(tree, jnp.minimum(before, tree.capacity - 1)) ** (1 / power)
        shares = values[:, None] ** (1 / power) * config.rho ** steps.astype(jnp.float32)
        at = jnp.where(before < tree.capacity, before, tree.nodes.size)
        nodes = tree.nodes.at[at].set(held, mode="drop")
        nodes = nodes.at[at].add(shares.ravel(), mode="drop")
        sums = nodes[jnp.minimum(before, tree.capacity - 1)]
        raised = jnp.minimum(sums**power, largest)
        return sum_tree.put(tree.replace(nodes=nodes), before, raised)

    def probability(state: PSERState, ring: Ring, slots: Array, batch_size: int) -> Array:
        return proportional.probability(state.priorities, ring, slots, batch_size)

    def metrics(state: PSERState, ring: Ring) -> dict[str, Array]:
        return proportional.metrics(state.priorities, ring)

    told = frozenset({"td_error"})
    return Sampler(
        init, add, sample, update, probability=probability, metrics=metrics,
        requires=Requirements(
            feedback=told,
            feedback_of_new=told if config.initial == "td" else frozenset(),
            transition_fields=frozenset({"first"}),
        ),
    )  # fmt: skip


def method(config: PSERConfig = PSERConfig(), updates: int | None = None) -> Method:
    """Make PSER: its sampler, and an objective weighted by importance; `updates` is not used."""
    del updates
    return Method(sampler(config), objectives.weighted(named_loss(config.loss)))
