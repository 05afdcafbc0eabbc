"""The replay microscope: which transitions a replay draws, how stale it is, and to what effect.

`look` evaluates one replay without training: its own method with stored and with exact priorities,
and other methods on the same transitions. Results are NumPy arrays.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxreplay import ring as ring_
from jaxreplay._internal import calls, measures, scene, warm_up
from jaxreplay._internal.arguments import check_choice, check_size
from jaxreplay._internal.scene import Scene, View
from jaxreplay._internal.warm_up import field
from jaxreplay.methods import METHODS
from jaxreplay.objectives import Loss, mse, plain
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import Array, Tree

Feedback = Callable[[Tree], Mapping[str, Array]]  # transitions [B, ...] -> feedback [B] by name
Gradient = Callable[[Tree, Array], Tree]  # transitions and weights [B] -> gradient of their loss


STORED = ", stored"  # end of the name of a replay's own method with the priorities of its state


class Schedule(NamedTuple):
    """How often a training loop takes gradient steps.

    After `warmup` transitions of all environments together, the loop takes `updates` gradient steps
    every `learn_every` steps of each environment.
    """

    updates: int = 1
    learn_every: int = 1
    warmup: int = 0


class Counts(NamedTuple):
    """Draws so far of the transitions in all slots, as counted by a training loop."""

    draws: Any  # [C] int32, number of draws of the transition in each slot
    first_draw: Any  # [C] int32, steps between the write and the first draw; negative if none


@dataclasses.dataclass(frozen=True)
class Look:
    """Results of `look`.

    Attributes:
      slots: arrays `[N]` of the stored transitions by name, from the oldest to the newest: `slot`,
        `environment`, `episode`, `age` (transitions), `age_updates`, `reward`, `ended`, `td` (the
        current |TD error|), `draws`, `first_draw`, and for the method NAME, the probability
        `P NAME` and the weight `w NAME`. A name is missing if the replay does not store the
        quantity, or if the quantity was not passed to `look`.
      methods: for every method, the values in its row of `table`, by the name of the column.
      run: quantities of the replay as a whole, by name, such as "staleness".
      forecasts: names of the quantities in `run` that were not counted, and are expected values
        under uniform replay instead.
      gradients: "parameters" if gradients are with respect to parameters, or "output" if they are
        with respect to the output and assumed to be orthogonal between transitions.
    """

    slots: dict[str, np.ndarray]
    methods: dict[str, dict[str, Any]]
    run: dict[str, float]
    forecasts: frozenset[str]
    gradients: str

    def cells(self) -> list[list[str]]:
        """Return the texts of the cells of `table`, row by row; the first row is the header."""
        names = list(next(iter(self.methods.values())))
        rows = [[x, *(_cell(row[name]) for name in names)] for x, row in self.methods.items()]
        return [["method", *names], *rows]

    def table(self) -> str:
        """Return the methods as a table in Markdown."""
        cells = self.cells()
        head, *rows = [f"| {' | '.join(row)} |" for row in cells]
        return "\n".join([head, f"| --- |{' ---: |' * (len(cells[0]) - 1)}", *rows])

    def frame(self) -> Any:
        """Return the methods as a pandas DataFrame, indexed by their names."""
        import pandas as pd

        return pd.DataFrame.from_dict(self.methods, orient="index").rename_axis("method")


def look(
    replay: Replay,
    state: ReplayState,
    feedback: Feedback,
    *,
    key: Array,
    methods: Iterable[str] | Mapping[str, Method] = METHODS,
    own: str | None = None,
    gradient: Gradient | None = None,
    loss: Loss = mse,
    counts: Counts | None = None,
    schedule: Schedule | None = None,
    warm: str = "exact",
    gradients: int = 4_096,
) -> Look:
    """Measure how a replay's own method, and other methods, draw and weight its transitions.

    The state of the replay does not change. If the exact priorities of its own method are known,
    the results contain this method twice: "NAME, stored" uses the stored priorities, and NAME uses
    exact priorities. The staleness of the replay is the total variation between the probabilities
    of the two.

    Other methods start from an empty state. All stored transitions pass through `Sampler.add` in
    order, then `Sampler.refresh` sets exact priorities. Methods whose probabilities depend on
    anything else are not comparable, and the column `basis` says why.

    Args:
      replay: the replay.
      state: state of the replay; not batched, and not empty.
      feedback: function that maps transitions `[B, ...]` to the agent's feedback, a dictionary of
        arrays `[B]` that contains at least `td_error`.
      key: PRNG key; equal keys give equal numbers.
      methods: names of methods with their default options, or methods by name.
      own: name of the replay's own method in `methods`, with a sampler that equals the replay's
        sampler. None selects the first method with an equal sampler. If there is no such method,
        the replay's own method is named "run".
      gradient: function that maps transitions `[B, ...]` and weights `[B]` to the gradient of the
        weighted loss with respect to the agent's parameters. None uses gradients with respect to
        the agent's output, `loss'(td_error)`, and assumes that gradients of different transitions
        are orthogonal.
      loss: the agent's loss on TD errors.
      counts: draws that the training loop has counted. With None, the results have the expected
        counts under uniform replay.
      schedule: how often the training loop learns, for quantities in updates.
      warm: "exact" computes the states of other methods from all stored transitions. "none" reports
        methods that need such a state as not comparable.
      gradients: number of transitions whose gradients are computed, drawn uniformly.

    Raises:
      ValueError: If the state is empty, damaged, batched or from another replay, or if an argument
        is out of bounds.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxreplay import Replay, Transition, microscope, methods
      >>> replay = Replay(methods.per.sampler(), capacity=4, batch_size=2)
      >>> state = replay.init(jax.random.key(0), Transition(reward=jnp.zeros(())))
      >>> for reward in (0.2, 0.6, 0.5, 0.1):
      ...     state = replay.add(state, Transition(reward=jnp.array([reward])))
      >>> td = lambda t: {"td_error": t.reward}
      >>> seen = microscope.look(
      ...     replay, state, td, key=jax.random.key(1), methods=["per"]
      ... )
      >>> [round(float(p), 3) for p in seen.slots["P per"]]
      [0.188, 0.363, 0.325, 0.124]
    """
    check_choice("warm", warm, ("exact", "none"))
    check_size("gradients", gradients)
    ring, slots = _checked(replay, state)
    name, made = _methods(methods, replay, own)
    told = scene.evaluate(feedback, ring, slots)
    updates = 0 if schedule is None else _updates(int(ring.steps_added), schedule, ring.num_envs)
    batch_size = replay.batch_size // made[name].objective.candidates
    td = np.asarray(told["td_error"])[slots]
    stage = Scene(ring, slots, told, td, scene.slopes(loss, td), batch_size, int(updates))
    views = {}
    for label, method in made.items():
        stateless = warm_up.basis(method.sampler) == warm_up.STATELESS
        alone = warm_up.lacks(method, ring, told) is not None
        is_own = label == name and (alone or not stateless)
        if is_own:
            views[f"{name}{STORED}"] = stage.stored(method, state.sampler, key)
        if is_own and not alone and warm_up.has_priorities(method.sampler):
            views[label] = stage.refreshed(method, state.sampler, key)
        elif not is_own:
            views[label] = stage.exact(method, key, warm)
    mine = views[f"{name}{STORED}" if f"{name}{STORED}" in views else name]
    facts = _facts(stage, counts, schedule)
    effects = scene.effects_of(stage, views, gradient, scene.choose(key, len(slots), gradients))
    rows = {label: _row(facts, view, mine, effects, label) for label, view in views.items()}
    run, forecasts = _run(stage, replay.sampler.length or 1, mine, views.get(name), facts, schedule)
    for label, view in views.items():
        if view.probability is not None:
            facts[f"P {label}"] = view.probability
        if view.weights is not None:
            facts[f"w {label}"] = view.weights
    return Look(facts, rows, run, forecasts, "output" if gradient is None else "parameters")


def _methods(
    methods: Iterable[str] | Mapping[str, Any], replay: Replay, own: str | None
) -> tuple[str, dict[str, Method]]:
    """Return the name of the replay's own method, and methods by name, uniform replay first."""
    if not isinstance(methods, Mapping):
        if unknown := [name for name in methods if name not in METHODS]:
            raise ValueError(f"methods must be among {', '.join(METHODS)}, got {unknown[0]!r}")
        methods = {name: METHODS[name] for name in methods}
    made = {"uniform": METHODS["uniform"], **methods}
    made = {
        label: entry if isinstance(entry, Method) else entry.method(entry.config())
        for label, entry in made.items()
    }
    equal = [label for label, method in made.items() if method.sampler == replay.sampler]
    if own is not None and own not in equal:
        raise ValueError(
            "own must name a method in `methods` whose sampler equals the replay's, "
            f"{replay.sampler}, got {own!r}"
        )
    own = own or (equal[0] if equal else "run")
    return own, made if equal else {**made, own: Method(replay.sampler, plain())}


def _checked(replay: Any, state: Any) -> tuple[Ring, np.ndarray]:
    """Return the ring of a valid state, and its slots `[N]` from the oldest to the newest."""
    if not isinstance(replay, Replay):
        raise ValueError(
            f"replay must be a Replay, got {type(replay).__name__}: call look on each replay of a "
            "mixture"
        )
    ring = calls.checked_state(replay, "look", state).ring
    ring_.check_valid(ring)
    size = int(ring_.size(ring))
    if not size:
        raise ValueError("the replay is empty: add transitions before calling look")
    slots = np.arange(size, dtype=np.int32)
    return ring, slots[np.argsort(-np.asarray(ring_.ages(ring))[:size], kind="stable")]


def _facts(stage: Scene, counts: Counts | None, schedule: Schedule | None) -> dict[str, np.ndarray]:
    """Return the known properties of all stored transitions by name, `[N]` each."""
    ring, slots = stage.ring, stage.slots
    envs, age = ring.num_envs, np.asarray(ring_.ages(ring))[slots]
    facts = {"slot": slots, "environment": slots % envs, "age": age * envs}
    stored = {name: field(ring, name) for name in ("reward", "first", "last")}
    found = {name: np.asarray(x)[slots] for name, x in stored.items() if x is not None}
    if "first" in found or "last" in found:
        facts["episode"] = _episodes(envs, found.get("first"), found.get("last"))
    if "reward" in found:
        facts["reward"] = found["reward"]
    if "last" in found:
        facts["ended"] = found["last"].astype(bool)
    if schedule is not None:
        now = int(ring.steps_added)
        facts["age_updates"] = _updates(now, schedule, envs) - _updates(now - age, schedule, envs)
    facts["td"] = np.abs(stage.td)
    if counts is not None:
        for name, values in zip(("draws", "first_draw"), counts, strict=True):
            if np.shape(values) != (ring.capacity,):
                raise ValueError(
                    f"counts.{name} must have shape [{ring.capacity}], got {np.shape(values)}"
                )
            facts[name] = np.asarray(values)[slots]
    return facts


def _episodes(envs: int, first: np.ndarray | None, last: np.ndarray | None) -> np.ndarray:
    """Return the number of each transition's episode, `[N]`, counted from 0.

    `first` and `last` are flags `[N]` of the transitions, from the oldest to the newest, or None.
    """
    count = max(0 if x is None else len(x) for x in (first, last)) // envs
    begins = np.zeros((count, envs), bool)
    if first is not None:
        begins |= first.reshape(count, envs).astype(bool)
    if last is not None:
        begins[1:] |= last.reshape(count, envs).astype(bool)[:-1]
    begins[0] = True
    own = np.cumsum(begins, axis=0)  # from 1
    before = np.concatenate([[0], np.cumsum(own[-1])[:-1]])
    return (own + before - 1).ravel()


def _updates(steps: Any, schedule: Schedule, envs: int) -> Any:
    """Return the number of updates after `steps` steps of each environment."""
    after = np.maximum(0, np.asarray(steps) - schedule.warmup // envs)
    return schedule.updates * (after // schedule.learn_every)


def _row(
    facts: Mapping[str, np.ndarray],
    view: View,
    own: View,
    effects: Mapping[str, measures.Effect],
    label: str,
) -> dict[str, Any]:
    """Return the row of a method in `Look.methods`."""
    row = dict.fromkeys(_COLUMNS, float("nan")) | {"basis": view.basis, "seconds": view.seconds}
    chance = view.probability
    if chance is None:
        return row
    count, age = len(chance), facts["age"]
    expected, oldest = float(chance @ age), max(int(age.max()), 1)
    newest = max(1, round(count / 100))
    row |= {
        "expected age": expected,
        "recency": 1 - expected / oldest,
        "entropy": measures.entropy(chance),
        "effective buffer": measures.effective_buffer(chance),
        "TV to uniform": measures.total_variation(chance, np.full(count, 1 / count)),
        "TV to run": measures.total_variation(chance, own.probability),
        "correlation with TD": measures.rank_correlation(chance, facts["td"]),
        "newest 1 %": float(chance[-newest:].sum()),
    }
    if "reward" in facts:
        row["with reward"] = float(chance[facts["reward"] != 0].sum())
    if label in effects:
        effect = effects[label]
        row |= {"cosine": effect.cosine, "bias": effect.bias, "noise": effect.noise}
        for name in ("uniform", scene.ORACLE):
            noise = effects[name].noise if name in effects else 0.0
            row[f"noise / {name}"] = effect.noise / noise if noise > 0 else float("nan")
    return row


_COLUMNS = (
    "expected age", "recency", "entropy", "effective buffer", "TV to uniform", "TV to run",
    "correlation with TD", "with reward", "newest 1 %", "cosine", "bias", "noise",
    "noise / uniform", "noise / oracle", "basis", "seconds",
)  # fmt: skip


def _run(
    stage: Scene,
    length: int,
    own: View,
    exact: View | None,
    facts: Mapping[str, np.ndarray],
    schedule: Schedule | None,
) -> tuple[dict[str, float], frozenset[str]]:
    """Return the quantities in `Look.run`, and the names in `Look.forecasts`."""
    ring, count = stage.ring, len(stage.slots)
    run: dict[str, float] = {
        "stored": count,
        "capacity": ring.capacity,
        "batch size": stage.batch_size,
    }
    run["rank correlation"] = measures.rank_correlation(own.probability, facts["td"])
    if exact is not None and exact is not own:
        run["staleness"] = measures.total_variation(own.probability, exact.probability)
    forecasts: set[str] = set()
    if schedule is not None:
        every = schedule.learn_every * ring.num_envs
        run["replay volume"] = schedule.updates * stage.batch_size * length / every
        run["updates per step"] = schedule.updates / every
        run["age of the oldest policy"] = float(facts["age_updates"].max())
    if "draws" in facts:
        drawn = facts["draws"] > 0
        run["never drawn"] = float((~drawn).mean())
        run["rank correlation of drawn"] = measures.rank_correlation(
            own.probability[drawn], facts["td"][drawn]
        )
        waits = np.where(drawn, facts["first_draw"] * ring.num_envs, facts["age"])
        run["median time to first draw"] = measures.median_wait(waits, drawn)
    elif schedule is not None:
        volume, full = run["replay volume"], count == ring.capacity
        run["never drawn"] = measures.forecast_undrawn(volume, full)
        run["median time to first draw"] = measures.forecast_wait(volume, count, full)
        forecasts = {"never drawn", "median time to first draw"}
    return run, frozenset(forecasts)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if np.isnan(value) else f"{0.0 if abs(value) < _ROUNDING else value:.4g}"


_ROUNDING = 1e-6  # rounding error of probabilities in float32
