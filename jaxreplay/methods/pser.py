"""Prioritised sequence experience replay, PSER (Brittain et al. 2019).

The priority of a transition is propagated to preceding steps and multiplied by rho at each step.
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import jax.numpy as jnp

from jaxreplay import counters, devices, objectives, schedules, sum_tree
from jaxreplay import ring as ring_
from jaxreplay.methods import options, proportional
from jaxreplay.methods.parts import episodes
from jaxreplay.methods.parts.episodes import Positions
from jaxreplay.methods.proportional import ImportanceWeights, ProportionalState
from jaxreplay.numerics import to_power
from jaxreplay.objectives import LossName
from jaxreplay.option import Bounds, Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.sum_tree import Sampling
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree, get_field

_PAPER = "Brittain et al. 2019"


@dataclasses.dataclass(frozen=True)
class PSERConfig(Config):
    """Hyperparameters of PSER.

    To match the code behind the paper's results, set `decay_space="leaf", leaf="sqrt_huber"`. That
    code computes priorities (tree leaves) as square roots of the Huber loss, and decays the leaves.
    """

    alpha: float = option(0.5, options.ALPHA, f"{_PAPER}, Tab. 3")
    epsilon: float = option(1e-6, options.EPSILON)
    rho: float = option(
        0.4, "decay factor of the priority per step", f"{_PAPER}, Tab. 2", above=0, below=1
    )
    window: int | None = option(
        None,
        "number of preceding steps to update; none: the largest k with rho^k at least `threshold`",
        f"{_PAPER}, Eq. 9",
        at_least=1,
    )
    threshold: float = option(
        0.01, "lower bound on the decay rho^k", f"{_PAPER}, Eq. 8", above=0, below=1
    )
    eta: float = option(
        0.7,
        "minimum fraction of the old priority that a replayed transition retains",
        f"{_PAPER}, Eq. 10",
        at_least=0,
        at_most=1,
    )
    combine: Literal["max", "add"] = option(
        "max", "combination of the decayed and existing priorities", f"{_PAPER}, Eq. 6 and 7"
    )
    decay_on_add: bool = option(
        False, "also propagate the priorities of new transitions", f"{_PAPER}, Sec. 3"
    )
    decay_space: Literal["raw", "leaf"] = option(
        "raw", "apply rho and eta to the priority (paper) or to the leaf (authors' code)"
    )
    leaf: Literal["power", "sqrt_huber"] = option(
        "power", "leaf for a TD error: (|td| + epsilon)^alpha, or sqrt(Huber loss) (authors' code)"
    )
    initial: options.Initial = option("max", options.INITIAL)
    sampling: Sampling = option("stratified", options.SAMPLING)
    beta: float = option(0.5, options.CONSTANT_BETA, f"{_PAPER}, Tab. 4")
    loss: LossName = option("agent", options.LOSS)

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights with a constant beta, divided by their batch maximum."""
        return ImportanceWeights(schedules.linear(self.beta, self.beta, None))

    def check(self) -> None:
        """Raise ValueError if options are inconsistent."""
        if self.window is None and window_of(self.rho, self.threshold) < 1:
            raise ValueError(
                f"rho must be at least threshold {self.threshold}, got rho {self.rho}; increase "
                "rho, or set window"
            )
        if self.leaf == "sqrt_huber" and self.decay_space == "raw":
            raise ValueError('leaf="sqrt_huber" requires decay_space="leaf", got "raw"')
        if self.combine == "add" and self.decay_space == "raw" and self.alpha == 0:
            raise ValueError(
                'combine must be "max" if alpha is 0 and decay_space is "raw", got "add"'
            )


class PSERState(NamedTuple):
    """Priorities of transitions, and their positions within episodes."""

    priorities: ProportionalState
    positions: Positions


def window_of(rho: float, threshold: float = 0.01) -> int:
    """Return the largest k with `rho^k >= threshold` (Brittain et al. 2019, Eq. 9, rounded down).

    Raises:
      ValueError: If `rho` or `threshold` is outside (0, 1).

    Example:
      >>> window_of(0.4)
      5
    """
    for name, value in {"rho": rho, "threshold": threshold}.items():
        Bounds(above=0, below=1).check(name, value)
    return math.floor(math.log(threshold) / math.log(rho) + 1e-9)


@dataclasses.dataclass(frozen=True)
class PSER(Sampler):
    """Samples like PER; updates also raise the priorities of preceding steps.

    A replayed transition receives the priority `p = max(|td| + epsilon, eta * old)`, where `old` is
    its previous priority (Brittain et al. 2019, Eq. 10). The k-th preceding step, with priority
    `q`, receives `max(rho^k p, q)` (Eq. 6) or `min(rho^k p + q, running maximum)` (Eq. 7),
    if k is at most the window and the step is in the same episode and not overwritten. The result
    is the same as if the batch were processed in chronological order. If a batch contains a
    transition several times with different TD errors, one of these errors is used.
    """

    config: PSERConfig = PSERConfig()
    needs_whole = None

    @property
    def requires(self) -> Requirements:
        td_error = frozenset({"td_error"})
        return Requirements(
            feedback=td_error,
            feedback_of_new=td_error if self.config.initial == "td" else frozenset(),
            transition_fields=frozenset({"first"}),
        )

    def init(self, key: Array, ring: Ring) -> PSERState:
        return PSERState(proportional.init(ring.capacity), episodes.init_positions(ring))

    def add(
        self, state: PSERState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> PSERState:
        config = self.config
        values = _leaf(config, feedback["td_error"]) if config.initial == "td" else None
        priorities = proportional.insert(state.priorities, slots, values, ring.axis_name)
        positions = episodes.add_positions(state.positions, slots, get_field(transition, "first"))
        state = PSERState(priorities, positions)
        if not config.decay_on_add:
            return state
        return _pass_back(config, state, ring, slots, sum_tree.get(priorities.tree, slots))

    def sample(self, state: PSERState, ring: Ring, key: Array, batch_size: int) -> Draw:
        sampling = self.config.sampling
        slots, chance = proportional.draw(state.priorities, ring, key, batch_size, sampling)
        weights = proportional.weights(self.config.weight, state.priorities, ring, chance)
        return Draw(slots, weights, probability=chance)

    def update(self, state: PSERState, ring: Ring, sample: Sample, **feedback: Array) -> PSERState:
        config, old = self.config, state.priorities
        slots, valid = sample.indices, sample.indices != IGNORED
        kept = _in_leaves(config, config.eta) * sum_tree.get(old.tree, jnp.where(valid, slots, 0))
        leaves = _leaf(config, feedback["td_error"])
        values = jnp.where(valid, jnp.maximum(leaves, kept), 0.0)
        invalid, largest = proportional.count_invalid_and_max(valid, values)
        largest = devices.largest(largest, ring.axis_name)
        priorities = old._replace(
            tree=sum_tree.put(old.tree, slots, values),
            max_leaf=jnp.maximum(old.max_leaf, largest),
            updates=counters.increment(old.updates),
            skipped=counters.saturating_add(old.skipped, invalid),
        )
        # The tree skips priorities that are NaN or infinite, so do not propagate them either.
        slots = jnp.where(jnp.isfinite(values), slots, IGNORED)
        return _pass_back(config, state._replace(priorities=priorities), ring, slots, values)

    def refresh(self, state: PSERState, ring: Ring, slots: Array, **feedback: Array) -> PSERState:
        """Recompute priorities at `slots` without eta, and propagate them to preceding steps."""
        config, old = self.config, state.priorities
        if config.combine == "add":
            raise ValueError(
                'refresh requires combine="max", got "add", which makes priorities depend on the '
                "order of updates"
            )
        values = _leaf(config, feedback["td_error"])
        slots = jnp.where(jnp.isfinite(values), slots, IGNORED)
        values = jnp.where(slots != IGNORED, values, 0.0)
        tree = sum_tree.put(old.tree, slots, values)
        state = state._replace(priorities=old._replace(tree=tree))
        state = _pass_back(config, state, ring, slots, values)
        highest = sum_tree.leaves(state.priorities.tree).max()
        highest = devices.largest(highest, ring.axis_name)
        largest = jnp.where(highest > 0, highest, 1.0)
        return state._replace(priorities=state.priorities._replace(max_leaf=largest))

    def end_episodes(self, state: PSERState, ring: Ring) -> PSERState:
        return state._replace(positions=episodes.end_positions(state.positions))

    def probability(self, state: PSERState, ring: Ring, slots: Array, batch_size: int) -> Array:
        return proportional.probability(state.priorities, ring, slots)

    def metrics(self, state: PSERState, ring: Ring) -> dict[str, Array]:
        metrics = proportional.metrics(state.priorities, ring)
        return metrics | {"beta": jnp.asarray(self.config.beta, jnp.float32)}


sampler = PSER


def method(config: PSERConfig = PSERConfig()) -> Method:
    """Return PSER: the sampler, and an objective that averages weighted critic losses."""
    return Method(sampler(config), objectives.weighted(objectives.named(config.loss)))


def _leaf(config: PSERConfig, td_error: Array) -> Array:
    if config.leaf == "sqrt_huber":
        return jnp.sqrt(objectives.huber(1.0)(td_error) + 1e-10)
    return to_power(jnp.abs(td_error) + config.epsilon, config.alpha)


def _in_leaves(config: PSERConfig, factor: float) -> float:
    """Return the factor for tree leaves p^alpha that scales the priorities p by `factor`.

    The maximum commutes with the power, so leaves suffice to compute `combine="max"`.
    """
    return factor**config.alpha if config.decay_space == "raw" else factor


def _pass_back(
    config: PSERConfig, state: PSERState, ring: Ring, slots: Array, values: Array
) -> PSERState:
    """Propagate priorities (tree leaves) `values` `[B]` at `slots` `[B]` to earlier steps.

    The leaves at `slots` must already be set; this function repairs their parents. `IGNORED` slots
    are skipped.
    """
    priorities = state.priorities
    steps = jnp.arange(1, (config.window or window_of(config.rho, config.threshold)) + 1)
    safe = jnp.minimum(slots, ring.capacity - 1)[:, None]
    earlier, stored = ring_.previous(ring, safe, steps)  # [B, W], W: number of steps
    reached = stored & (steps <= state.positions.steps[safe]) & (slots != IGNORED)[:, None]
    if config.combine == "add":
        # Propagate duplicate slots only once.
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
    chain = jnp.where(reached, earlier, safe)  # `safe` repeats a repair, which is harmless
    touched = jnp.concatenate([slots[:, None], chain], axis=1)
    tree = sum_tree.repair(tree, touched.ravel())
    return state._replace(priorities=priorities._replace(tree=tree))
