"""Contract checks for replay methods.

`check_method(MyConfig(), method)` runs all checks without a test runner. Each check is a function
of a `Case`, so test runners can report checks separately:

    @pytest.mark.parametrize("check", testing.CHECKS)
    def test_contract(check):
        check(testing.Case(my_method.method()))
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import ring as ring_
from jaxreplay._internal.hlo import Operation as Operation
from jaxreplay._internal.hlo import large_copies as large_copies
from jaxreplay._internal.loop_cost import Cost as Cost
from jaxreplay._internal.loop_cost import assert_in_place as assert_in_place
from jaxreplay._internal.loop_cost import compiled_cost as compiled_cost
from jaxreplay.methods import MakeMethod
from jaxreplay.objectives import Objective
from jaxreplay.option import check_class
from jaxreplay.replay import Replay
from jaxreplay.sampler import Method
from jaxreplay.types import (
    FEEDBACK,
    Array,
    Goals,
    Sample,
    Transition,
    Tree,
    get_field,
    has_field,
    replace_fields,
)

EXAMPLE = Transition(  # NumPy arrays, which do not initialise a device on import
    obs=np.zeros(3, np.float32),
    action=np.zeros((), np.int32),
    reward=np.zeros((), np.float32),
    discount=np.zeros((), np.float32),
    next_obs=np.zeros(3, np.float32),
    first=np.zeros((), bool),
    last=np.zeros((), bool),
)
E, CAPACITY, BATCH = 2, 24, 8


def _reached(achieved: Array, desired: Array) -> tuple[Array, Array]:
    reached = (achieved == desired).all(axis=-1)
    return reached.astype(jnp.float32) - 1.0, reached


GOALS = Goals(_reached, size=1)  # the last two elements of a flat observation


def with_goals(method: Method) -> Method:
    """Return the method, with `GOALS` in its sampler if the sampler requires goals."""
    if not method.requires.goals:
        return method
    return method._replace(sampler=method.sampler.for_goals(GOALS))


class Case:
    """A method in a small replay with two environments, and the replay's compiled functions.

    `example` is one unbatched transition of any type, with a scalar reward. Methods that require
    goals receive `GOALS`.
    """

    def __init__(
        self, method: Method, example: Tree = EXAMPLE, capacity: int = CAPACITY,
        batch_size: int = BATCH,
    ) -> None:  # fmt: skip
        method = with_goals(method)
        self.method, self.example = method, example
        self.feedback = FEEDBACK | method.requires.feedback
        self.replay: Replay = Replay(
            method.sampler, capacity=capacity, batch_size=batch_size, num_envs=E
        )
        self.slots, length = self.replay.slots, method.sampler.length
        self.shape = (batch_size,) if length is None else (batch_size, length)  # shape of indices
        self.traces = 0  # number of traces of `step`
        self.init = jax.jit(lambda key: self.replay.init(key, self.example))
        self.add = jax.jit(self._add)
        self.sample = jax.jit(self.replay.sample)
        self.update = jax.jit(lambda state, batch, x: self.replay.update(state, batch, **x))
        self.step = jax.jit(self._count_traces)
        slots = jnp.arange(self.slots, dtype=jnp.int32)
        self.probability = jax.jit(lambda state: self.replay.probability(state, slots))
        self.metrics = jax.jit(self.replay.metrics)

    def _add(self, state: Any, row: Tree) -> Any:
        names = self.method.requires.feedback_of_new
        return self.replay.add(state, row, **{name: get_field(row, "reward") for name in names})

    def _count_traces(self, state: Any, time: Any) -> tuple[Any, Sample]:
        self.traces += 1
        return self.cycle(state, time)

    def cycle(self, state: Any, time: Any) -> tuple[Any, Sample]:
        """Add, sample, update and observe at step `time`; return the new state and the batch."""
        keys = jax.random.split(jax.random.fold_in(jax.random.key(9), time), 3)
        state = self._add(state, self.rows(time))
        batch = self.replay.sample(state, keys[0])
        values = 3 * jax.random.normal(keys[1], self.shape)
        state = self.replay.update(state, batch, **self.feedback_of(values))
        return self.replay.observe_return(state, values.mean(), keys[2]), batch

    def feedback_of(self, values: Array) -> dict[str, Array]:
        """Return `values`, of shape `self.shape`, as feedback for every name in `self.feedback`."""
        return dict.fromkeys(self.feedback, values)

    def fill(self, count: int = BATCH) -> Any:
        """Return the state after adding E transitions `count` times."""
        state = self.init(jax.random.key(0))
        for time in range(count):
            state = self.add(state, self.rows(time))
        return state

    def rows(self, time: Any) -> Tree:
        """Return the transitions of step `time` in the format of the example."""
        return rows(time, self.example)

    @functools.cached_property
    def full(self) -> Any:
        """The state after every slot has been written once."""
        return self.fill(self.slots // E)

    @functools.cached_property
    def full_of_equals(self) -> Any:
        """The state after every slot has been written once, with equal transitions."""
        state = self.init(jax.random.key(0))
        for _ in range(self.slots // E):
            state = self.add(state, self.rows(0))
        return state


def rows(time: Any, example: Tree = EXAMPLE) -> Tree:
    """Return transitions `[E, ...]` of E environments at step `time`, in episodes of four steps.

    In transition e, the reward and all elements of the observation are `E * time + e`. Other fields
    are copied from the example.
    """
    number = time * E + jnp.arange(E, dtype=jnp.float32)
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (E, *x.shape)), example)
    values = {
        "first": jnp.full(E, time % 4 == 0),
        "last": jnp.full(E, time % 4 == 3),
        "reward": number,
        "obs": _fill_obs(number, get_field(example, "obs")),
    }
    return replace_fields(row, **{name: x for name, x in values.items() if has_field(row, name)})


def _fill_obs(number: Array, example: Any) -> Any:
    """Return observations `[n, ...]` shaped like the example and filled with `number` `[n]`."""

    def fill(x: Array) -> Array:
        return jnp.tile(number.reshape(-1, *(1,) * x.ndim), (1, *x.shape)).astype(x.dtype)

    return jax.tree.map(fill, example)


def check_method(
    config: Any, method: MakeMethod, updates: int = 100, example: Tree = EXAMPLE
) -> None:
    """Run all contract checks on a replay method, and `check_config` on its config.

    Args:
      config: an instance of the method's `Config` class.
      method: a function that maps the config to a `Method`.
      updates: number of gradient steps passed to `config.for_run`.
      example: one unbatched transition of any type, with a scalar reward and all fields that the
        method reads.

    Raises:
      AssertionError: If a check fails or raises an error. The message is one line that starts with
        the names of the config, such as "MyMethod" for `MyMethodConfig`, and of the check.

    Example:
      >>> from jaxreplay.methods import uniform
      >>> check_method(uniform.UniformConfig(), uniform.method)
    """
    check_config(config)
    where = name = type(config).__name__.removesuffix("Config")
    try:
        made = method(config.for_run(updates))
        if not isinstance(made, Method) or not isinstance(made.objective, Objective):
            parts = made if isinstance(made, Method) else [made]
            got = ", ".join(type(part).__name__ for part in parts)
            _ensure(False, f"method must return Method(sampler, objective), got {got}")
        case = Case(made, example)
        for check in CHECKS:
            where = f"{name}: {check.__name__}"
            check(case)
    except AssertionError as error:
        raise AssertionError(f"{where}: {_one_line(error)}") from error
    except Exception as error:
        kind, remedy = type(error).__name__, ""
        if isinstance(error, _CONCRETE):
            remedy = ": use jnp.where or jax.lax.cond, not `if` or float(), on values of arrays"
        message = f"{where}: raised {kind}: {_one_line(error, 1)}{remedy}"
        raise AssertionError(message) from error


def check_config(config: Any) -> None:
    """Check that a config is hashable and comparable, and declares all fields with `option`.

    Raises:
      AssertionError: If the class is not a `Config`, or a field lacks a default or `option(...)`.
    """
    kind = type(config)
    try:
        check_class(kind)
        hash(config)
    except (TypeError, ValueError) as error:
        raise AssertionError(str(error)) from error
    for field in dataclasses.fields(kind):
        _ensure("declaration" in field.metadata, f"{field.name} must be declared with option(...)")
    _ensure(kind() == kind(), f"two instances of {kind.__name__} must be equal")
    _ensure(dataclasses.replace(config) == config, "a copy of a config must equal the original")


def states_share_no_buffers(case: Case) -> None:
    """Check that a new state can be donated: no two of its arrays may share a buffer."""
    leaves = jax.tree.leaves(case.replay.init(jax.random.key(0), case.example))
    odd = [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, jax.Array)]
    _ensure(not odd, f"init must return arrays, such as jnp.zeros((), jnp.int32), got {odd}")
    pointers = [leaf.unsafe_buffer_pointer() for leaf in leaves if leaf.size]
    _ensure(len(set(pointers)) == len(pointers), "the arrays of a new state must not share buffers")


def eager_jit_vmap_and_scan_agree(case: Case) -> None:
    """Check that eager and transformed calls agree, and that a step compiles only once."""
    start, steps = case.fill(), 15  # overwrites slots if the capacity factor is 1
    expected: tuple[Any, Any] = (start, None)
    for time in range(steps):
        expected = case.step(expected[0], time)
        if time == 0:  # only once, because eager calls recompile branches and loops
            same(expected, case.cycle(start, time), rtol=1e-5)
    _ensure(case.traces == 1, "`add`, `sample` and `update` must not recompile at later steps")
    states = jax.tree.map(lambda x: jnp.stack([x, x]), start)
    scan = jax.vmap(lambda s: jax.lax.scan(case.cycle, s, jnp.arange(steps)))
    scanned, batches = jax.jit(scan)(states)
    last = jax.tree.map(lambda x: x[:, -1], batches)
    same((scanned, last), jax.tree.map(lambda x: np.stack([x, x]), expected), rtol=1e-5)


def batches_have_the_promised_shapes(case: Case) -> None:
    """Check the shapes, dtypes and observations of a batch, and that weights are positive."""
    batch = case.sample(case.fill(), jax.random.key(0))
    _ensure(batch.indices.dtype == jnp.int32, f"indices must be int32, got {batch.indices.dtype}")
    weights = np.asarray(batch.weights)
    _ensure(weights.dtype == np.float32, f"weights must be float32, got {weights.dtype}")
    shapes = [batch.indices.shape, batch.version.shape, batch.weights.shape]
    expected = [case.shape, case.shape, case.shape[:1]]
    _ensure(
        shapes == expected,
        f"indices, version and weights must have shapes {expected}, got {shapes}",
    )
    _ensure(((weights > 0) & (weights < np.inf)).all(), f"weights must be positive, got {weights}")
    row = batch.transition
    _ensure(
        _types(row) == _types(case.example, case.shape),
        f"transitions must have the structure, dtypes and shapes of the example, got {_types(row)}",
    )
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(case.shape) :]), row)  # [B T, ...]
    obs, number = get_field(flat, "obs"), get_field(flat, "reward")
    if case.method.requires.goals:  # rewards and desired goals may be relabelled
        number = get_field(ring_.gather(case.fill().ring, batch.indices), "reward")
        obs = obs[:, : -GOALS.size]
        same(obs, jnp.broadcast_to(number[:, None], obs.shape))
        return
    same(obs, _fill_obs(number, get_field(case.example, "obs")))


def states_keep_their_types(case: Case) -> None:
    """Check that a step keeps shapes and strong dtypes, and that metrics are float32 scalars."""
    state = case.replay.init(jax.random.key(0), case.example)
    after = case.step(case.fill(), 0)[0]
    weak = any(x.weak_type for x in jax.tree.leaves((state, after)))
    _ensure(not weak, "the arrays of the state must not be weakly typed")
    _ensure(_types(after) == _types(state), "a step must preserve shapes and dtypes")
    for name, value in jax.eval_shape(case.metrics, state).items():
        ok = (value.shape, value.dtype) == ((), jnp.float32)
        _ensure(ok, f"metrics must be float32 scalars, got {name} {value.dtype}{value.shape}")


def only_written_slots_are_drawn(case: Case) -> None:
    """Check that empty slots are not drawn, or have weight 0."""
    for count in (1, 4, 5, 11):  # after one step, the replay contains less than a batch
        state = case.fill(count)
        can = bool(case.replay.can_sample(state))
        _ensure(
            can == (count * E >= BATCH),
            f"can_sample must not be {can} with {count * E} transitions",
        )
        for seed in range(5):
            batch = case.sample(state, jax.random.key(seed))
            valid = np.broadcast_to(np.asarray(batch.weights).T, case.shape[::-1]).T > 0
            slots = np.asarray(batch.indices)[valid]
            written = ((slots >= 0) & (slots < count * E)).all()
            _ensure(written, f"slots must be in [0, {count * E}), got {slots}")
            _ensure(valid.all() or not can, f"weights must be positive, got {batch.weights}")
            number = np.asarray(get_field(batch.transition, "reward"))[valid]
            _ensure((number < count * E).all(), "drawn rewards must be those that were added")


def draws_follow_the_probabilities(case: Case) -> None:
    """Check that sampling frequencies match `probability` within five standard deviations.

    The check runs once with feedback of similar size, and once with feedback between 1e-8 and 1.
    Importance weights must not increase with probability.
    """
    state, keys = case.fill(8), jax.random.split(jax.random.key(1), 2000)
    sample = jax.jit(jax.vmap(case.replay.sample, (None, 0)))
    for time in range(8, 13):  # overwrites slots if the capacity factor is 1
        state, _ = case.step(state, time)
    _check_frequencies(case, case.probability(state), sample(state, keys))
    for time in range(20):
        batch = case.sample(state, jax.random.key(time))
        values = 10.0 ** (-8 * jax.random.uniform(jax.random.key(~time), case.shape))
        state = case.update(state, batch, case.feedback_of(values))
    _check_frequencies(case, case.probability(state), sample(state, keys))


def _check_frequencies(case: Case, chance: Array, batches: Sample) -> None:
    probability = np.asarray(chance, np.float64)
    _ensure(abs(probability.sum() - 1) < 1e-5, f"probabilities sum to {probability.sum()}, not 1")
    _ensure((probability >= 0).all(), "probabilities must not be negative")
    drawn = np.asarray(batches.indices).ravel()
    counts, expected = np.bincount(drawn, minlength=case.slots), drawn.size * probability
    # Two draws of a slot with a tiny probability are possible.
    off = np.abs(counts - expected) > 5 * np.sqrt(expected) + 2 * (expected > 0)
    _ensure(not off.any(), f"frequencies of slots {np.flatnonzero(off)} must match `probability`")
    if isinstance(batches.probability, jax.Array) and case.method.sampler.length is None:
        reported = np.asarray(batches.probability).ravel()
        _ensure(
            np.allclose(reported, probability[drawn], rtol=1e-4),
            "`Draw.probability` must equal `Sampler.probability` at the drawn slots",
        )
    # Rows of a batch with different roles have weights of different scales.
    if case.method.sampler.length is None and "roles" not in case.method.sampler.provides:
        weights, chances = np.asarray(batches.weights, np.float64), probability[drawn]
        increase = np.mean((weights.ravel() - weights.mean()) * (chances - chances.mean()))
        scale = weights.std() * chances.std()
        wrong = scale > 1e-6 and increase > 0.5 * scale
        _ensure(not wrong, "weights must not increase with probability P: use (N P)^-beta")


def functions_are_pure(case: Case) -> None:
    """Check that equal inputs produce equal outputs, and that inputs are not modified."""
    state = case.fill()
    before = jax.tree.map(np.array, state)
    same(case.step(state, 1), case.step(state, 1))
    same(state, before)


def draws_depend_on_the_key(case: Case) -> None:
    """Check that equal keys produce equal batches, and different keys different batches."""
    if case.method.requires.all_new:
        return  # batches contain the newest transitions regardless of the key
    drawn = [np.asarray(case.sample(case.full, jax.random.key(k)).indices) for k in (1, 1, 2, 3)]
    same(drawn[0], drawn[1])
    different = (drawn[0] != drawn[2]).any() and (drawn[2] != drawn[3]).any()
    _ensure(different, "different keys must draw different batches")


def donation_changes_nothing(case: Case) -> None:
    """Check that a step with a donated state returns equal values and reuses its buffers."""
    step = jax.jit(lambda state, time: case.cycle(state, time), donate_argnums=0)
    expected, donated = case.step(case.fill(), 3), case.fill()
    same(step(donated, 3), expected)
    _ensure(donated.ring.words.is_deleted(), "the ring buffer must be donated, but it was copied")


def feedback_for_overwritten_slots_is_dropped(case: Case) -> None:
    """Check that feedback for overwritten transitions is dropped and counted, and changes nothing.

    A method without feedback may change its state, for example if it counts its batches.
    """
    batch, state = case.sample(case.full, jax.random.key(0)), case.full
    for time in range(5):
        state = case.add(state, case.rows(100 + time))
    stale = int((np.asarray(batch.indices) < 5 * E).sum())
    after = case.update(state, batch, case.feedback_of(jnp.full(case.shape, 0.5)))
    _ensure(int(after.dropped) == stale, f"dropped must be {stale}, got {after.dropped}")
    ring_.check_valid(after.ring)
    if case.method.requires.feedback:
        old = batch._replace(version=jnp.zeros_like(batch.version))
        after = case.update(state, old, case.feedback_of(jnp.full(case.shape, 2.0)))
        unchanged = np.allclose(case.probability(after), case.probability(state), rtol=1e-4)
        remedy = "`update` must skip IGNORED indices, as sum_tree.set and mode='drop' do"
        _ensure(unchanged, f"a batch of overwritten transitions changes probabilities: {remedy}")


def overwritten_transitions_are_forgotten(case: Case) -> None:
    """Check that probabilities do not depend on feedback on overwritten transitions.

    Two replays contain equal transitions, but different slots received feedback before all slots
    were overwritten.
    """

    def chances(first: int) -> np.ndarray:
        state = case.full_of_equals
        batch = _at(case, state, jnp.arange(first, first + BATCH))
        for value in (0.1, 3.0):
            state = case.update(state, batch, case.feedback_of(jnp.full(case.shape, value)))
        for time in range(case.slots // E):
            state = case.add(state, case.rows(time % 4))
        return np.asarray(case.probability(state))

    forgotten = np.allclose(chances(0), chances(case.slots // 2), rtol=1e-4, atol=1e-7)
    remedy = "`add` must set the values of new transitions at `slots`"
    _ensure(forgotten, f"probabilities depend on overwritten transitions: {remedy}")


def _at(case: Case, state: Any, slots: Array) -> Sample:
    """Return a batch of the transitions at `slots` `[B]`, or of sequences that start there."""
    batch = case.sample(state, jax.random.key(0))
    if len(case.shape) == 2:
        slots = slots[:, None] + jnp.arange(case.shape[1]) * E
    slots = slots % case.slots
    return batch._replace(indices=slots, version=ring_.version(state.ring, slots))


def nonfinite_feedback_is_dropped(case: Case) -> None:
    """Check that NaN and infinite feedback is counted and does not enter the sampler's state."""
    state = case.full
    batch = _at(case, state, jnp.arange(BATCH))
    one = (2, 0)[: len(case.shape)]
    for bad in (np.nan, np.inf, -np.inf):
        after = case.update(state, batch, case.feedback_of(jnp.ones(case.shape).at[one].set(bad)))
        _ensure(int(after.dropped) == 1, f"dropped must be 1 after one {bad}, got {after.dropped}")
        for new, old in zip(*map(jax.tree.leaves, (after.sampler, state.sampler)), strict=True):
            _ensure(not (_is_nan(new) & ~_is_nan(old)).any(), f"{bad} enters the state as NaN")


def nonfinite_feedback_of_new_transitions_is_dropped(case: Case) -> None:
    """Check that NaN and infinite feedback passed to `add` does not enter the sampler's state."""
    names = case.method.requires.feedback_of_new
    if not names:
        return
    row, count = case.rows(0), case.slots // E  # fill the ring buffer to trigger periodic updates
    add = jax.jit(lambda state, values: case.replay.add(state, row, **values))
    for bad in (np.nan, np.inf, -np.inf):
        after = case.full
        for _ in range(count):
            after = add(after, dict.fromkeys(names, jnp.ones(E).at[0].set(bad)))
        _ensure(int(after.dropped) == count, f"dropped must be {count}, got {after.dropped}")
        for leaf in jax.tree.leaves(after.sampler):
            _ensure(not _is_nan(leaf).any(), f"{bad} enters the state as NaN")


def finite_feedback_of_either_sign_is_kept(case: Case) -> None:
    """Check with the metric `skipped_leaves` that finite feedback produces valid priorities.

    Sum trees skip priorities that are negative, NaN or infinite. Methods without this metric pass
    the check.
    """
    if "skipped_leaves" not in jax.eval_shape(case.metrics, case.full):
        return
    state = case.full
    batch = case.sample(state, jax.random.key(0))
    values = jnp.array([1.5, -1.5, 0.0, 1e-3, -1e-3, 50.0, -50.0, 0.0])
    values = jnp.broadcast_to(values.reshape(-1, *[1] * (len(case.shape) - 1)), case.shape)
    states = {
        "update": case.update(state, batch, case.feedback_of(values)),
        "add": case.add(state, case.rows(-5)),  # with negative rewards as feedback
    }
    for name, after in states.items():
        count, before = (int(case.metrics(x)["skipped_leaves"]) for x in (after, state))
        remedy = "priorities must be finite and not negative for any TD error, including 0"
        _ensure(count == before, f"{name} skipped {count - before} priorities: {remedy}")


def only_declared_fields_and_feedback_are_read(case: Case) -> None:
    """Check that the sampler reads only what it declares, and that transitions may be dicts."""
    sampler, fields = case.method.sampler, _fields(case.example)

    def trace(names: Iterable[str]) -> None:
        example = {name: fields[name] for name in names} or {"unread": np.zeros((), np.float32)}
        jax.eval_shape(lambda key: _every_function(case, example, key), jax.random.key(0))

    try:
        trace(fields)
    except AttributeError as error:
        name = f"transition.{error.name}"
        remedy = f"use jaxreplay.types.get_field(transition, {error.name!r})"
        _ensure(
            not isinstance(error.obj, dict), f"{name} fails for transitions of type dict: {remedy}"
        )
        raise
    declared = [name for name in fields if name in sampler.requires.transition_fields]
    if _works(trace, declared):
        return
    others = [name for name in fields if name not in declared]
    read = [name for name in others if not _works(trace, [x for x in fields if x != name])]
    remedy = "declare them in Requirements.transition_fields (Proportional: transition_fields=...)"
    _ensure(not read, f"{type(sampler).__name__} reads fields {', '.join(read)}: {remedy}")


def _every_function(case: Case, example: Tree, key: Array) -> Any:
    """Call all functions with a transition like `example` and with only the required feedback."""
    replay, needs = case.replay, case.method.sampler.requires
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (E, *x.shape)), example)
    new = dict.fromkeys(needs.feedback_of_new, jnp.ones(E))
    state = replay.add(replay.init(key, example), row, **new)
    batch = replay.sample(state, key)
    feedback = dict.fromkeys(needs.feedback, jnp.ones(case.shape))
    state = replay.end_episodes(replay.update(state, batch, **feedback))
    state = replay.observe_return(state, jnp.ones(()), key)
    return replay.probability(state, jnp.arange(E)), replay.metrics(state)


def _works(call: Callable[..., Any], *args: Any) -> bool:
    try:
        call(*args)
    except Exception:
        return False
    return True


def _fields(transition: Tree) -> dict[str, Any]:
    """Return the fields of a transition that contain arrays, by name."""
    names = (
        transition
        if isinstance(transition, Mapping)
        else (
            getattr(transition, "_fields", None) or [x.name for x in dataclasses.fields(transition)]
        )
    )
    return {name: get_field(transition, name) for name in names if has_field(transition, name)}


def sampling_from_an_empty_replay_raises(case: Case) -> None:
    """Check that, outside of `jit`, sampling from an empty replay raises ValueError."""
    state = case.init(jax.random.key(0))
    _ensure_raises(lambda: case.replay.sample(state, jax.random.key(0)), ("empty",))


def missing_feedback_raises(case: Case) -> None:
    """Check that omitting required feedback raises a ValueError that names the feedback."""
    if case.method.requires.feedback:
        state = case.fill()
        batch = case.sample(state, jax.random.key(0))
        _ensure_raises(lambda: case.replay.update(state, batch), case.method.requires.feedback)


def batch_size_may_equal_the_capacity(case: Case) -> None:
    """Check that the batch size may equal the capacity."""
    size = BATCH * E  # large enough for sequences of several steps
    large = Case(case.method, case.example, capacity=size, batch_size=size)
    batch = large.sample(large.fill(large.slots // E + 1), jax.random.key(0))
    indices = np.asarray(batch.indices)
    _ensure(((indices >= 0) & (indices < large.slots)).all(), "indices must be in range")


def batch_size_can_be_overridden(case: Case) -> None:
    """Check that `sample(..., batch_size)` draws like a replay whose default is this batch size.

    Methods with `Requirements.all_new` must raise ValueError instead.
    """
    size, key = BATCH * 2, jax.random.key(0)
    state = jax.eval_shape(case.init, key)
    sample = functools.partial(case.replay.sample, batch_size=size)
    if case.method.requires.all_new:
        _ensure_raises(lambda: jax.eval_shape(sample, state, key), ("batch_size",))
        return
    resized = Case(case.method, case.example, batch_size=size).replay.sample
    programs = [str(jax.make_jaxpr(function)(state, key)) for function in (sample, resized)]
    _ensure(programs[0] == programs[1], "draws must equal those of a replay with this batch size")
    batch = jax.eval_shape(sample, state, key)
    _ensure(
        batch.weights.shape == (size,),
        f"weights must have shape [batch_size], got {batch.weights.shape}",
    )
    feedback = case.feedback_of(jnp.zeros(batch.indices.shape))
    after = jax.eval_shape(case.update, state, batch, feedback)
    _ensure(_types(after) == _types(state), "an update with another batch size must preserve types")


CHECKS: tuple[Callable[[Case], None], ...] = (
    states_share_no_buffers,
    only_declared_fields_and_feedback_are_read,
    eager_jit_vmap_and_scan_agree,
    batches_have_the_promised_shapes,
    states_keep_their_types,
    only_written_slots_are_drawn,
    draws_follow_the_probabilities,
    functions_are_pure,
    draws_depend_on_the_key,
    donation_changes_nothing,
    feedback_for_overwritten_slots_is_dropped,
    overwritten_transitions_are_forgotten,
    nonfinite_feedback_is_dropped,
    nonfinite_feedback_of_new_transitions_is_dropped,
    finite_feedback_of_either_sign_is_kept,
    sampling_from_an_empty_replay_raises,
    missing_feedback_raises,
    batch_size_may_equal_the_capacity,
    batch_size_can_be_overridden,
)


def same(left: Any, right: Any, rtol: float = 0.0) -> None:
    """Raise AssertionError unless two pytrees are equal, or almost equal if `rtol` is positive."""
    atol = 1e-6 if rtol else 0.0
    for (path, x), y in zip(jax.tree.leaves_with_path(left), jax.tree.leaves(right), strict=True):
        try:
            np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)
        except AssertionError as error:
            name = jax.tree_util.keystr(path)
            message = f"{name} differs between equal calls: functions must be pure"
            raise AssertionError(message) from error


def _types(tree: Tree, leading: tuple[int, ...] = ()) -> tuple[Any, list[tuple[Any, ...]]]:
    """Return a pytree's structure and leaf dtypes and shapes, with `leading` axes prepended."""
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [(x.dtype, (*leading, *x.shape)) for x in leaves]


def _is_nan(leaf: Array) -> np.ndarray:
    return np.isnan(np.asarray(leaf, np.float32))


_CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)  # raised by Python code that needs the values of traced arrays


def _one_line(error: Exception, lines: int | None = None) -> str:
    return " ".join(" ".join(str(error).splitlines()[:lines]).split())


def _ensure(ok: Any, message: str) -> None:
    """Raise AssertionError unless `ok`, even under `python -O`."""
    if not ok:
        raise AssertionError(message)


def _ensure_raises(call: Callable[[], Any], parts: Iterable[str]) -> None:
    """Raise AssertionError unless `call` raises a ValueError whose message contains `parts`."""
    try:
        call()
    except ValueError as error:
        _ensure(all(part in str(error) for part in parts), str(error))
    else:
        raise AssertionError("expected a ValueError, but none was raised")
