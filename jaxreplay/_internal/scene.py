"""How methods draw and weight the transitions of one replay, and the gradients that result."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import ring as ring_
from jaxreplay._internal import measures, warm_up
from jaxreplay._internal.measures import Gradients
from jaxreplay.objectives import Loss, Objective
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import Array, State, Tree

NOT_COMPARABLE, ORACLE = "not comparable", "oracle"
_TOLERANCE = 1e-4  # of the sum of probabilities
_CHUNK = 4_096  # transitions whose feedback is evaluated at once
_BYTES = 64_000_000  # size of the gradients of single transitions that are computed at once


class View(NamedTuple):
    """How a method draws and weights the stored transitions, from the oldest to the newest."""

    basis: str  # how the probabilities were computed, or why they are not comparable
    seconds: float  # time of the computation
    probability: Any = None  # [N]; None if it is not comparable
    weights: Any = None  # [N], up to a factor; None if they are not known
    slopes: Any = None  # [N], factors by which the method's own loss scales gradients


class Scene(NamedTuple):
    """The stored transitions, and the agent's feedback on them."""

    ring: Ring
    slots: np.ndarray  # [N], from the oldest to the newest
    told: dict[str, Array]  # feedback [C]
    td: np.ndarray  # [N] TD errors
    slopes: np.ndarray  # [N], derivatives of the agent's loss at the TD errors
    batch_size: int
    updates: int  # number of gradient steps to which schedules are advanced

    def stored(self, method: Method, state: State, key: Array) -> View:
        """Return how the replay's own method draws in its current state."""
        began, size = time.perf_counter(), self._size(method)
        chance = warm_up.probability(method.sampler, state, self.ring, size)
        return self._view(began, "the run's own state", method, chance, state, key)

    def refreshed(self, method: Method, state: State, key: Array) -> View:
        """Return how the replay's own method draws with priorities recomputed for all slots."""
        began, size = time.perf_counter(), self._size(method)
        found = warm_up.refreshed(method.sampler, state, self.ring, self.told, size)
        return self._view(began, "the run's own state, refreshed", method, *found, key)

    def exact(self, method: Method, key: Array, warm: str) -> View:
        """Return how another method would draw, in a state computed from all stored transitions.

        If there is no such state, the field `basis` is the reason.
        """
        began, sampler = time.perf_counter(), method.sampler
        basis, reason = warm_up.basis(sampler), warm_up.lacks(method, self.ring, self.told)
        if reason is None and warm == "none" and basis != warm_up.STATELESS:
            reason = 'has priorities, which warm="none" does not compute'
        if reason is not None:
            return View(f"{NOT_COMPARABLE}: {reason}", time.perf_counter() - began)
        size, updates = self._size(method), jnp.asarray(self.updates, jnp.int32)
        found = warm_up.exact(sampler, self.ring, key, self.told, updates, size)
        return self._view(began, basis, method, *found, key)

    def _size(self, method: Method) -> int:
        return self.batch_size * method.objective.candidates

    def _factors(self, objective: Objective) -> np.ndarray:
        """Return the derivatives `[N]` of a method's loss relative to those of the agent's loss.

        The ratios are 1 if the method uses the agent's loss, or if its loss depends on the position
        of a transition in the batch.
        """
        if objective.error is None or objective.roles:
            return np.ones_like(self.td)
        own, nothing = slopes(objective.error, self.td), self.slopes == 0
        return np.where(nothing, 1.0, own / np.where(nothing, 1.0, self.slopes))

    def _view(
        self, began: float, basis: str, method: Method, chance: Array, state: State, key: Array
    ) -> View:
        every = np.asarray(chance, np.float64)
        probability = every[self.slots]
        if not abs(probability.sum() - 1) <= _TOLERANCE or probability.min() < 0:
            raise ValueError(
                f"probabilities of {type(method.sampler).__name__} sum to {probability.sum():.6g}, "
                "not to 1: the state is damaged, or `Sampler.probability` does not fit the draws"
            )
        weights = warm_up.weights(method, state, self.ring, key, self._size(method), every)
        weights = None if weights is None else weights[self.slots]
        slopes = self._factors(method.objective)
        if method.objective.choose is not None:
            norms = np.abs(self.slopes * slopes)
            if norms.sum() > 0:
                basis, probability = "many candidates", norms / norms.sum()
                weights = np.where(norms > 0, 1 / np.where(norms > 0, norms, 1), 0.0)
        return View(basis, time.perf_counter() - began, probability, weights, slopes)


def slopes(loss: Loss, td: np.ndarray) -> np.ndarray:
    """Return the derivatives `[n]` of a loss at TD errors `[n]`."""
    derivative = jax.jit(jax.grad(lambda td: loss(td).sum()))
    return np.asarray(derivative(jnp.asarray(td)))


def evaluate(
    feedback: Callable[[Tree], Mapping[str, Array]], ring: Ring, slots: np.ndarray
) -> dict[str, Array]:
    """Return the feedback on all slots, `[C]` each, with 0 for empty slots."""
    chunk = min(_CHUNK, ring.capacity)

    @jax.jit
    def part(ring: Ring, slots: Array) -> dict[str, Array]:
        return dict(feedback(ring_.gather(ring, slots)))

    found: dict[str, list[np.ndarray]] = {}
    for begin in range(0, len(slots), chunk):
        at = np.minimum(np.arange(begin, begin + chunk), len(slots) - 1).astype(np.int32)
        for name, values in part(ring, jnp.asarray(slots[at])).items():
            found.setdefault(name, []).append(np.asarray(values, np.float32))
    if "td_error" not in found:
        raise ValueError(f"feedback must return td_error, got {', '.join(found) or 'nothing'}")
    told = {}
    for name, parts in found.items():
        joined = np.concatenate(parts)
        if joined.ndim != 1:
            raise ValueError(
                f"feedback {name} must have shape [B], one number per transition, got "
                f"[{', '.join(['B', *map(str, joined.shape[1:])])}]"
            )
        all_slots = np.zeros(ring.capacity, np.float32)
        all_slots[slots] = joined[: len(slots)]
        told[name] = jnp.asarray(all_slots)
    if not np.isfinite(np.asarray(told["td_error"])).all():
        raise ValueError("td_error is not finite for some transitions: the agent has diverged")
    return told


def choose(key: Array, size: int, count: int) -> np.ndarray:
    if count >= size:
        return np.arange(size)
    return np.asarray(jax.random.choice(key, size, (count,), replace=False))


def effects_of(
    scene: Scene,
    views: Mapping[str, View],
    gradient: Callable[[Tree, Array], Tree] | None,
    chosen: np.ndarray,
) -> dict[str, measures.Effect]:
    """Return the `Effect` of each method whose weights are known, and of the oracle, by label."""
    labels, chances, weights = [], [], []
    for label, view in views.items():
        if view.weights is None or not view.probability[chosen].sum() > 0:
            continue
        labels.append(label)
        chances.append(view.probability[chosen] / view.probability[chosen].sum())
        weights.append((view.weights * view.slopes)[chosen])
    chance, weight = np.stack(chances), np.stack(weights)
    if gradient is None:
        measured = measures.by_output(scene.slopes[chosen].astype(np.float64), chance * weight)
    else:
        measured = _by_parameters(scene.ring, scene.slots[chosen], gradient, chance * weight)
    effects = measures.effects(measured, chance, weight, scene.batch_size)
    return {
        ORACLE: measures.oracle(measured, scene.batch_size),
        **dict(zip(labels, effects, strict=True)),
    }


def _by_parameters(
    ring: Ring, slots: np.ndarray, gradient: Callable[[Tree, Array], Tree], scaled: np.ndarray
) -> Gradients:
    """Return sums over gradients with respect to the parameters, computed in chunks."""

    def single(row: Tree) -> Array:
        one = jax.tree.map(lambda x: x[None], row)
        return jnp.concatenate([x.ravel() for x in jax.tree.leaves(gradient(one, jnp.ones(1)))])

    shapes = jax.eval_shape(lambda: single(_first(ring)))
    chunk = int(np.clip(_BYTES // (4 * max(shapes.size, 1)), 1, min(_CHUNK, len(slots))))

    @jax.jit
    def part(ring: Ring, slots: Array, scaled: Array) -> tuple[Array, Array]:
        found = jax.vmap(single)(ring_.gather(ring, slots))
        return jnp.square(found).sum(axis=1), scaled @ found

    rows = np.concatenate([np.full((1, len(slots)), 1 / len(slots)), scaled])
    norms, sums = [], np.zeros((len(rows), shapes.size))
    for begin in range(0, len(slots), chunk):
        at = np.arange(begin, begin + chunk)
        inside, at = at < len(slots), np.minimum(at, len(slots) - 1)
        squares, total = part(ring, jnp.asarray(slots[at]), jnp.asarray(rows[:, at] * inside))
        norms.append(np.asarray(squares)[inside])
        sums += np.asarray(total)
    return Gradients(np.concatenate(norms).astype(np.float64), sums[0], sums[1:])


def _first(ring: Ring) -> Tree:
    return jax.tree.map(lambda x: x[0], ring_.gather(ring, jnp.zeros(1, jnp.int32)))
