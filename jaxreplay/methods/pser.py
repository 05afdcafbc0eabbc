"""Prioritised sequence experience replay, PSER (Brittain et al. 2019).

A surprising transition lends part of its priority to the steps that led to it: rho^k of it to the
k-th step before, within the episode.
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import jax.numpy as jnp

from jaxreplay import objectives, sum_tree
from jaxreplay import ring as ring_
from jaxreplay._internal import counters, schedules
from jaxreplay._internal.arguments import Bounds
from jaxreplay._internal.numerics import to_power
from jaxreplay.methods import proportional
from jaxreplay.methods.parts import positions as positions_
from jaxreplay.methods.parts.options import LossOptions, PriorityOptions
from jaxreplay.methods.parts.positions import Positions
from jaxreplay.methods.proportional import ImportanceWeights, ProportionalState
from jaxreplay.option import check_config_class, option, override
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree, get_field

_PAPER = "Brittain et al. 2019"


@dataclasses.dataclass(frozen=True)
class PSERConfig(LossOptions, PriorityOptions):
    """Hyperparameters of PSER.

    The paper's numbers came from code that decays the tree's leaves, square roots of the Huber
    loss: `decay_space="leaf", leaf="sqrt_huber"`.
    """

    alpha: float = override(PriorityOptions, "alpha", 0.5, f"{_PAPER}, Tab. 3")
    beta: float = option(
        0.5,
        "importance-sampling exponent, constant",
        f"{_PAPER}, Tab. 4",
        at_least=0,
        at_most=1,
    )
    rho: float = option(
        0.4, "decay of the priority per step back", f"{_PAPER}, Tab. 2", above=0, below=1
    )
    window: int | None = option(
        None,
        "steps back; none: until rho^k falls below `threshold`",
        f"{_PAPER}, Eq. 9",
        at_least=1,
    )
    threshold: float = option(
        0.01, "decayed share that is still passed on", f"{_PAPER}, Eq. 8", above=0, below=1
    )
    eta: float = option(
        0.7,
        "share of its old priority that a replayed transition keeps",
        f"{_PAPER}, Eq. 10",
        at_least=0,
        at_most=1,
    )
    combine: Literal["max", "add"] = option(
        "max", "how decayed and own priority join", f"{_PAPER}, Eq. 6 and 7"
    )
    decay_on_add: bool = option(
        False, "decay from new transitions too (as the theory does)", f"{_PAPER}, Sec. 3"
    )
    decay_space: Literal["raw", "leaf"] = option(
        "raw", "what rho and eta act on: the priority (paper) or its power (code)"
    )
    leaf: Literal["power", "sqrt_huber"] = option(
        "power", "leaf of a TD error: (|td| + epsilon)^alpha, or sqrt(Huber) (code)"
    )

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights with a constant beta, divided by the batch's largest."""
        return ImportanceWeights(schedules.linear(self.beta, self.beta, None))

    def check(self) -> None:
        """Refuse decays that reach nobody, and leaves that the decay can't act on."""
        if self.window is None and window_of(self.rho, self.threshold) < 1:
            raise ValueError(
                f"rho {self.rho} is below the threshold {self.threshold} after one step: "
                "use a larger rho, or give the window"
            )
        if self.leaf == "sqrt_huber" and self.decay_space == "raw":
            raise ValueError("leaf sqrt_huber is no power of a priority: use decay_space leaf")
        if self.combine == "add" and self.decay_space == "raw" and self.alpha == 0:
            raise ValueError("combine add with alpha 0 has nothing to add: use combine max")


class PSERState(NamedTuple):
    """Priorities, and how far a walk back may go."""

    priorities: ProportionalState
    positions: Positions


def window_of(rho: float, threshold: float = 0.01) -> int:
    """Return the steps k for which `rho^k >= threshold` (Brittain et al. 2019, Eq. 9, floored).

    Raises:
      ValueError: an argument lies outside (0, 1).
    """
    for name, value in {"rho": rho, "threshold": threshold}.items():
        Bounds(above=0, below=1).check(name, value)
    return math.floor(math.log(threshold) / math.log(rho) + 1e-9)


@dataclasses.dataclass(frozen=True)
class PSER(Sampler):
    """PER whose updates also raise the priorities of the preceding steps.

    A replayed transition gets the priority `max(|td| + epsilon, eta * old)` (Eq. 10), and from it
    the k-th step before gets `max(rho^k p, own)` (Eq. 6) or `min(rho^k p + own, largest so far)`
    (Eq. 7), for k up to the window, back to the start of the episode and never across the write
    cursor. The result equals processing the batch in the order of time; of a slot that was drawn
    twice with different errors, one error counts.
    """

    config: PSERConfig = PSERConfig()

    @property
    def requires(self) -> Requirements:
        """TD errors, and where episodes begin."""
        td_error = frozenset({"td_error"})
        return Requirements(
            feedback=td_error,
            feedback_of_new=td_error if self.config.initial == "td" else frozenset(),
            transition_fields=frozenset({"first"}),
        )

    def init(self, key: Array, ring: Ring) -> PSERState:
        return PSERState(proportional.init(ring.capacity), positions_.init(ring))

    def add(
        self, state: PSERState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> PSERState:
        config = self.config
        values = _leaf(config, feedback["td_error"]) if config.initial == "td" else None
        priorities = proportional.insert(state.priorities, slots, values)
        positions = positions_.add(state.positions, slots, get_field(transition, "first"))
        state = PSERState(priorities, positions)
        if not config.decay_on_add:
            return state
        return _lend(config, state, ring, slots, sum_tree.get(priorities.tree, slots))

    def sample(self, state: PSERState, ring: Ring, key: Array, batch_size: int) -> Draw:
        sampling = self.config.sampling
        indices, stats = proportional.draw(state.priorities, ring, key, batch_size, sampling)
        return Draw(indices, self.config.weight(stats), probability=stats.probability)

    def update(self, state: PSERState, ring: Ring, sample: Sample, **feedback: Array) -> PSERState:
        config, old = self.config, state.priorities
        slots, valid = sample.indices, sample.indices != IGNORED
        kept = _in_leaves(config, config.eta) * sum_tree.get(old.tree, jnp.where(valid, slots, 0))
        leaves = _leaf(config, feedback["td_error"])
        values = jnp.where(valid, jnp.maximum(leaves, kept), 0.0)
        overflown, largest = proportional.count_invalid_and_max(valid, values)
        priorities = old._replace(
            tree=sum_tree.put(old.tree, slots, values),
            max_leaf=jnp.maximum(old.max_leaf, largest),
            updates=counters.increment(old.updates),
            skipped=counters.saturating_add(old.skipped, overflown),
        )
        # A leaf that overflows is skipped, and so lends nothing either.
        lenders = jnp.where(jnp.isfinite(values), slots, IGNORED)
        return _lend(config, state._replace(priorities=priorities), ring, lenders, values)

    def end_episodes(self, state: PSERState, ring: Ring) -> PSERState:
        return state._replace(positions=positions_.end(state.positions))

    def probability(self, state: PSERState, ring: Ring, slots: Array, batch_size: int) -> Array:
        return proportional.probability(state.priorities, ring, slots)

    def metrics(self, state: PSERState, ring: Ring) -> dict[str, Array]:
        own = proportional.metrics(state.priorities, ring)
        return own | {"beta": jnp.asarray(self.config.beta, jnp.float32)}


@check_config_class
def sampler(config: PSERConfig = PSERConfig()) -> PSER:
    """Return PSER's sampler (Brittain et al. 2019)."""
    return PSER(config)


@check_config_class
def method(config: PSERConfig = PSERConfig()) -> Method:
    """Return PSER: its sampler, and an objective weighted by importance."""
    return Method(sampler(config), objectives.weighted(config.named_loss))


def _leaf(config: PSERConfig, td_error: Array) -> Array:
    if config.leaf == "sqrt_huber":
        return jnp.sqrt(objectives.huber(1.0)(td_error) + 1e-10)
    return to_power(jnp.abs(td_error) + config.epsilon, config.alpha)


def _in_leaves(config: PSERConfig, factor: float) -> float:
    """Return what a factor of priorities p is of the tree's leaves p^alpha.

    A maximum commutes with the power, so that "max" never needs p itself.
    """
    return factor**config.alpha if config.decay_space == "raw" else factor


def _lend(
    config: PSERConfig, state: PSERState, ring: Ring, slots: Array, values: Array
) -> PSERState:
    """Pass `values` `[B]`, just put at `slots`, on to the steps before, and repair the tree.

    Rows whose slot is out of range are skipped.
    """
    priorities = state.priorities
    steps = jnp.arange(1, (config.window or window_of(config.rho, config.threshold)) + 1)
    rows = jnp.minimum(slots, ring.capacity - 1)[:, None]
    earlier, stored = ring_.previous(ring, rows, steps)  # [B, W]
    reached = stored & (steps <= state.positions.steps[rows]) & (slots != IGNORED)[:, None]
    if config.combine == "add":
        # A slot drawn twice lends once.
        again = jnp.tril(slots[:, None] == slots, -1).any(axis=1)
        reached &= ~again[:, None]
    before = jnp.where(reached, earlier, IGNORED).ravel()
    decay = steps.astype(jnp.float32)
    if config.combine == "max":
        shares = values[:, None] * _in_leaves(config, config.rho) ** decay
        tree = sum_tree.put(priorities.tree, before, shares.ravel(), raise_only=True)
    else:
        power = config.alpha if config.decay_space == "raw" else 1.0
        shares = values[:, None] ** (1 / power) * config.rho**decay
        tree = sum_tree.add(
            priorities.tree, before, shares.ravel(), power=power, limit=priorities.max_leaf
        )
    chain = jnp.where(reached, earlier, rows)  # the same parents again are harmless
    touched = jnp.concatenate([slots[:, None], chain], axis=1)
    tree = sum_tree.repair(tree, touched.ravel())
    return state._replace(priorities=priorities._replace(tree=tree))
