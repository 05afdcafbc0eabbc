"""The laws that every replay method keeps, as checks of a method of your own.

`check_method(MyConfig(), method)` runs them all; nothing here needs a test runner. Each law is a
function of a `Case`, so that a runner can name the one that fails:
`@pytest.mark.parametrize("law", testing.LAWS)`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import ring as ring_
from jaxreplay._internal.hlo import assert_in_place as assert_in_place
from jaxreplay._internal.hlo import large_copies as large_copies
from jaxreplay.methods import MakeMethod
from jaxreplay.option import Config
from jaxreplay.replay import Replay, check_valid
from jaxreplay.sampler import Method
from jaxreplay.types import (
    FEEDBACK,
    Array,
    Sample,
    Transition,
    Tree,
    get_field,
    has_field,
    replace_fields,
)

_FIELDS: dict[str, Any] = {  # of NumPy: importing this module starts no device
    "obs": np.zeros(3, np.float32),
    "action": np.zeros((), np.int32),
    "reward": np.zeros((), np.float32),
    "discount": np.zeros((), np.float32),
    "next_obs": np.zeros(3, np.float32),
    "first": np.zeros((), bool),
    "last": np.zeros((), bool),
}
EXAMPLE = Transition(**_FIELDS)
E, CAPACITY, BATCH = 2, 24, 8


class Case:
    """A method in a small replay of two environments, and its compiled verbs."""

    def __init__(self, method: Method, example: Tree = EXAMPLE) -> None:
        """Put a method to the test; feedback of its own names gets numbers like any other."""
        self.method, self.example = method, example
        self.feedback = FEEDBACK | method.requires.feedback
        self.replay: Replay = Replay(
            method.sampler, capacity=CAPACITY, batch_size=BATCH, num_envs=E
        )
        self.slots = CAPACITY * method.sampler.capacity_factor
        length = method.sampler.length
        self.shape = (BATCH,) if length is None else (BATCH, length)  # of a batch's indices
        self.add = jax.jit(self._add)
        self.step = jax.jit(self._traced)
        self.traces = 0  # of `step`
        self.sample = jax.jit(self.replay.sample)
        self.update = jax.jit(lambda state, batch, told: self.replay.update(state, batch, **told))
        self.init = jax.jit(lambda key: self.replay.init(key, self.example))

    def _add(self, state: Any, row: Tree) -> Any:
        wanted = self.method.requires.feedback_of_new
        return self.replay.add(state, row, **{name: get_field(row, "reward") for name in wanted})

    def cycle(self, state: Any, time: Any) -> tuple[Any, Sample]:
        """One add, sample, update and observe, all decided by `time`."""
        keys = jax.random.split(jax.random.fold_in(jax.random.key(9), time), 3)
        state = self._add(state, self.rows(time))
        batch = self.replay.sample(state, keys[0])
        values = 3 * jax.random.normal(keys[1], self.shape)
        state = self.replay.update(state, batch, **self.feedback_of(values))
        return self.replay.observe(state, values.mean(), keys[2]), batch

    def _traced(self, state: Any, time: Any) -> tuple[Any, Sample]:
        self.traces += 1
        return self.cycle(state, time)

    def feedback_of(self, values: Array) -> dict[str, Array]:
        """Return feedback that says `values` `[B]` or `[B, T]` whatever it is about."""
        return dict.fromkeys(self.feedback, values)

    def filled(self, count: int = BATCH) -> Any:
        """Return the state after `count` rows."""
        state = self.init(jax.random.key(0))
        for time in range(count):
            state = self.add(state, self.rows(time))
        return state

    def rows(self, time: Any) -> Tree:
        """Return a row of E transitions that carry their number, in episodes of four steps."""
        return rows(time, self.example)

    @functools.cached_property
    def full(self) -> Any:
        """The state of a replay whose every slot is written."""
        return self.filled(self.slots // E)


def rows(time: Any, example: Tree = EXAMPLE) -> Tree:
    """Return a row of E transitions that carry their number, in episodes of four steps.

    Reward and observation are the number; other fields are the example's.
    """
    number = time * E + jnp.arange(E, dtype=jnp.float32)
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (E, *x.shape)), example)
    told = {
        "first": jnp.full(E, time % 4 == 0),
        "last": jnp.full(E, time % 4 == 3),
        "reward": number,
        "obs": _numbered(number, get_field(example, "obs")),
    }
    return replace_fields(row, **{name: x for name, x in told.items() if has_field(row, name)})


def _numbered(number: Array, example: Any) -> Any:
    """Return observations full of their number `[n]`, shaped like one example."""

    def fill(x: Array) -> Array:
        return jnp.tile(number.reshape(-1, *(1,) * x.ndim), (1, *x.shape)).astype(x.dtype)

    return jax.tree.map(fill, example)


def check_method(
    config: Any,
    method: MakeMethod,
    updates: int = 100,
    example: Tree = EXAMPLE,
) -> None:
    """Check a replay method against every law of this module.

    Args:
      config: options to make it with; their dataclass is checked too.
      method: `method(config) -> Method`.
      updates: gradient steps of a run, which `config.for_run` fills into open schedules.
      example: one transition, unbatched, of any type, with the fields that the method looks at;
        its reward is one number.

    Raises:
      AssertionError: it breaks a law, which the message names, or an error is raised under it.
    """
    check_config(config)
    case = Case(method(config.for_run(updates)), example)
    for law in LAWS:
        try:
            law(case)
        except AssertionError as error:
            raise AssertionError(f"{law.__name__}: {error}") from error
        except Exception as error:
            kind = type(error).__name__
            raise AssertionError(f"{law.__name__}: it raises {kind}: {error}") from error


def check_config(config: Any) -> None:
    """Check that options can be defaults, keys, command-line options and a JSON file.

    Raises:
      AssertionError: they cannot.
    """
    kind = type(config)
    _ensure(dataclasses.is_dataclass(kind), f"{kind.__name__} is no dataclass")
    _ensure(isinstance(config, Config), f"{kind.__name__} is not below jaxreplay.option.Config")
    hash(config)
    _ensure(kind() == kind(), f"{kind.__name__} has an option without a default")
    for field in dataclasses.fields(kind):
        _ensure("help" in field.metadata, f"{field.name} is not declared with option(...)")
    _ensure(dataclasses.replace(config) == config, "a copy differs from its original")


def states_share_no_buffers(case: Case) -> None:
    """A state may be donated as soon as it is made: no two leaves are one buffer."""
    leaves = jax.tree.leaves(case.replay.init(jax.random.key(0), case.example))
    places = [leaf.unsafe_buffer_pointer() for leaf in leaves if leaf.size]
    _ensure(len(set(places)) == len(places), "two leaves are one buffer")


def eager_jit_vmap_and_scan_agree(case: Case) -> None:
    """However JAX runs it, the numbers agree; and it compiles once."""
    start, steps = case.filled(), 15  # wraps round a ring without a capacity factor
    expected: tuple[Any, Any] = (start, None)
    for time in range(steps):
        expected = case.step(expected[0], time)
        if time == 0:  # compiles anew what it branches and loops over
            same(expected, case.cycle(start, time), rtol=1e-5)
    _ensure(case.traces == 1, "it compiles again at a later step")
    many = jax.tree.map(lambda x: jnp.stack([x, x]), start)
    scan = jax.vmap(lambda s: jax.lax.scan(case.cycle, s, jnp.arange(steps)))
    scanned, batches = jax.jit(scan)(many)
    last = jax.tree.map(lambda x: x[:, -1], batches)
    twice = jax.tree.map(lambda x: np.stack([x, x]), expected)
    same((scanned, last), twice, rtol=1e-5)


def batches_have_the_promised_shapes(case: Case) -> None:
    """Indices, weights and transitions have their shapes and dtypes; weights are positive."""
    batch = case.sample(case.filled(), jax.random.key(0))
    found = [(x.dtype.name, x.shape) for x in (batch.indices, batch.weights, batch.version)]
    _ensure(found[0] == ("int32", case.shape), f"indices are {found[0]}")
    _ensure(found[1] == ("float32", (BATCH,)), f"weights are {found[1]}")
    _ensure(found[2][1] == case.shape, f"versions are {found[2]}")
    weights = np.asarray(batch.weights)
    _ensure(np.isfinite(weights).all() and (weights > 0).all(), f"weights are {weights}")
    row = batch.transition
    stored = [(x.dtype, (*case.shape, *x.shape)) for x in jax.tree.leaves(case.example)]
    _ensure([(x.dtype, x.shape) for x in jax.tree.leaves(row)] == stored, "fields have changed")
    kinds = [jax.tree.structure(x) for x in (row, case.example)]
    _ensure(kinds[0] == kinds[1], f"a row comes back as {type(row).__name__}")
    obs = get_field(case.example, "obs")
    told = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(case.shape) :]), row)  # [B T, ...]
    same(get_field(told, "obs"), _numbered(get_field(told, "reward"), obs))


def states_keep_their_types(case: Case) -> None:
    """No verb changes a shape or a dtype, and nothing is weakly typed."""
    state = case.replay.init(jax.random.key(0), case.example)
    types = lambda tree: [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]  # noqa: E731
    _ensure(not any(weak for *_, weak in types(state)), "a leaf is weakly typed")
    after = case.step(case.filled(), 0)[0]
    _ensure(types(after) == types(state), "a verb changes a shape or a dtype")


def only_written_slots_are_drawn(case: Case) -> None:
    """Before the ring is full, rows of slots that were never written are not drawn, or weigh 0."""
    for count in (1, 4, 5, 11):  # of one row, batches hold more than is stored
        state = case.filled(count)
        can = bool(case.replay.can_sample(state))
        _ensure(can == (count * E >= BATCH), f"can_sample is {can} with {count * E} stored")
        for seed in range(5):
            batch = case.sample(state, jax.random.key(seed))
            counts = np.broadcast_to(np.asarray(batch.weights).T, case.shape[::-1]).T > 0
            slots = np.asarray(batch.indices)[counts]
            known = ((slots >= 0) & (slots < count * E)).all()
            _ensure(known, f"{count * E} slots are written, and drawn are {slots}")
            _ensure(counts.all() or not can, f"weights are {batch.weights}")
            number = np.asarray(get_field(batch.transition, "reward"))[counts]
            _ensure((number < count * E).all(), "a row holds another's step")


def draws_follow_the_probabilities(case: Case) -> None:
    """`probability` sums to 1 and tells how often each slot is drawn, within five deviations."""
    state, draws = case.filled(8), 2000
    for time in range(8, 13):  # wraps round a ring without a capacity factor
        state, _ = case.step(state, time)
    chance = jax.jit(case.replay.probability)(state, jnp.arange(case.slots))
    chance = np.asarray(chance, np.float64)
    _ensure(abs(chance.sum() - 1) < 1e-5, f"probabilities sum to {chance.sum()}")
    _ensure((chance >= 0).all(), "a probability is negative")
    draw = jax.jit(jax.vmap(lambda key: case.replay.sample(state, key)))
    batches = draw(jax.random.split(jax.random.key(1), draws))
    drawn = np.asarray(batches.indices).ravel()
    counts, expected = np.bincount(drawn, minlength=case.slots), drawn.size * chance
    off = np.abs(counts - expected) > 5 * np.sqrt(expected)
    _ensure(not off.any(), f"slots {np.flatnonzero(off)} are drawn more or less often than told")
    if isinstance(batches.probability, jax.Array) and case.method.sampler.length is None:
        told = np.asarray(batches.probability).ravel()
        _ensure(np.allclose(told, chance[drawn], rtol=1e-4), "rows' probabilities are others")


def verbs_are_pure(case: Case) -> None:
    """The same input gives the same output, and stays as it was."""
    state = case.filled()
    before = jax.tree.map(np.array, state)
    same(case.step(state, 1), case.step(state, 1))
    same(state, before)


def keys_decide_the_draw(case: Case) -> None:
    """The same key draws the same batch, others draw others, unless all of a batch is new."""
    if case.method.requires.all_new:
        return  # nothing is left to chance
    drawn = [np.asarray(case.sample(case.full, jax.random.key(k)).indices) for k in (1, 1, 2, 3)]
    same(drawn[0], drawn[1])
    different = (drawn[0] != drawn[2]).any() and (drawn[2] != drawn[3]).any()
    _ensure(different, "the key makes no difference")


def donation_changes_nothing(case: Case) -> None:
    """A step that takes over its input's buffers gives the same numbers."""
    donating = jax.jit(lambda state, time: case.cycle(state, time), donate_argnums=0)
    expected, given_away = case.step(case.filled(), 3), case.filled()
    same(donating(given_away, 3), expected)
    _ensure(given_away.ring.words.is_deleted(), "the ring was not taken over")


def feedback_for_overwritten_slots_is_dropped(case: Case) -> None:
    """Rows overwritten since they were drawn get no feedback, and are counted."""
    batch = case.sample(case.full, jax.random.key(0))
    state = case.full
    for time in range(5):
        state = case.add(state, case.rows(100 + time))
    stale = np.asarray(batch.indices) < 5 * E
    after = case.update(state, batch, case.feedback_of(jnp.full(case.shape, 0.5)))
    dropped = int(after.dropped)
    _ensure(dropped == stale.sum(), f"{dropped} rows are dropped, {stale.sum()} are stale")
    check_valid(after)


def feedback_that_is_no_number_is_dropped(case: Case) -> None:
    """NaN and infinity never enter the state, and are counted."""
    state = case.full
    batch = case.sample(state, jax.random.key(0))
    slots = jnp.arange(BATCH)
    if len(case.shape) == 2:
        slots = slots[:, None] + jnp.arange(case.shape[1]) * E
    batch = batch._replace(indices=slots, version=ring_.version(state.ring, slots))
    one = (2, 0)[: len(case.shape)]
    for bad in (np.nan, np.inf, -np.inf):
        after = case.update(state, batch, case.feedback_of(jnp.ones(case.shape).at[one].set(bad)))
        _ensure(int(after.dropped) == 1, f"{int(after.dropped)} rows are dropped for one {bad}")
        for new, old in zip(*map(jax.tree.leaves, (after.sampler, state.sampler)), strict=True):
            entered = _is_nan(new) & ~_is_nan(old)
            _ensure(not entered.any(), f"{bad} makes the state NaN")


def new_feedback_that_is_no_number_is_counted(case: Case) -> None:
    """New rows may come with NaN and infinity: these never enter the state, and are counted."""
    wanted = case.method.requires.feedback_of_new
    if not wanted:
        return
    row, count = case.rows(0), case.slots // E  # so that what is done now and then is done
    add = jax.jit(lambda state, told: case.replay.add(state, row, **told))
    for bad in (np.nan, np.inf, -np.inf):
        after = case.full
        for _ in range(count):
            after = add(after, dict.fromkeys(wanted, jnp.ones(E).at[0].set(bad)))
        _ensure(int(after.dropped) == count, f"{int(after.dropped)} of {count} rows are dropped")
        for leaf in jax.tree.leaves(after.sampler):
            _ensure(not _is_nan(leaf).any(), f"{bad} makes the state NaN")


def finite_feedback_of_either_sign_is_kept(case: Case) -> None:
    """No priority is skipped where feedback is finite, as a negative one would be in silence.

    Told by the metric `skipped_leaves`, which methods with a tree of priorities have.
    """
    tell = jax.jit(case.replay.metrics)
    if "skipped_leaves" not in jax.eval_shape(tell, case.full):
        return
    state = case.full
    batch = case.sample(state, jax.random.key(0))
    values = jnp.where(jnp.arange(BATCH) % 2 == 0, 1.5, -1.5)
    values = jnp.broadcast_to(values.reshape(-1, *[1] * (len(case.shape) - 1)), case.shape)
    known = {
        "update": case.update(state, batch, case.feedback_of(values)),
        "add": case.add(state, case.rows(-5)),  # whose numbers are negative
    }
    for verb, after in known.items():
        count = int(tell(after)["skipped_leaves"]) - int(tell(state)["skipped_leaves"])
        _ensure(count == 0, f"{verb} skips {count} priorities: are they negative?")


def empty_replays_refuse_to_sample(case: Case) -> None:
    """Outside of jit, sampling from nothing is a ValueError."""
    try:
        case.replay.sample(case.replay.init(jax.random.key(0), case.example), jax.random.key(0))
    except ValueError as error:
        _ensure("the replay is empty" in str(error), str(error))
    else:
        raise AssertionError("an empty replay gives a batch")


def missing_feedback_is_named(case: Case) -> None:
    """An update without what the method reads is refused, and says what is missing."""
    needed = case.method.requires.feedback
    if not needed:
        return
    state = case.filled()
    batch = case.sample(state, jax.random.key(0))
    try:
        case.replay.update(state, batch)
    except ValueError as error:
        _ensure(all(name in str(error) for name in needed), str(error))
    else:
        raise AssertionError("an update without feedback goes through")


def batches_may_be_as_large_as_the_capacity(case: Case) -> None:
    """A batch of all that is stored is drawn from it."""
    size = BATCH * E  # holds windows of several steps, too
    replay = Replay(case.method.sampler, capacity=size, batch_size=size, num_envs=E)
    add = jax.jit(replay.add)
    state = replay.init(jax.random.key(0), case.example)
    slots = size * case.method.sampler.capacity_factor
    for time in range(slots // E + 1):
        row = case.rows(time)
        wanted = case.method.requires.feedback_of_new
        state = add(state, row, **{name: get_field(row, "reward") for name in wanted})
    batch = jax.jit(replay.sample)(state, jax.random.key(0))
    drawn = set(np.asarray(batch.indices).ravel().tolist())
    _ensure(drawn <= set(range(slots)), "a slot is out of range")


def other_batch_sizes_are_drawn_on_demand(case: Case) -> None:
    """Another size gives what a replay of that batch size gives; on-policy methods refuse it."""
    size, key = BATCH * 2, jax.random.key(0)
    state = jax.eval_shape(case.replay.init, key, case.example)
    if case.method.requires.all_new:
        try:
            jax.eval_shape(lambda s, k: case.replay.sample(s, k, size), state, key)
        except ValueError as error:
            _ensure("batch_size" in str(error), str(error))
        else:
            raise AssertionError("a batch of another size is drawn")
        return
    other = Replay(case.method.sampler, capacity=CAPACITY, batch_size=size, num_envs=E)
    asked = jax.make_jaxpr(lambda s, k: case.replay.sample(s, k, batch_size=size))(state, key)
    _ensure(str(asked) == str(jax.make_jaxpr(other.sample)(state, key)), "batches differ")
    batch = jax.eval_shape(lambda s, k: case.replay.sample(s, k, batch_size=size), state, key)
    _ensure(batch.weights.shape == (size,), f"weights are {batch.weights.shape}")
    told = case.feedback_of(jnp.zeros(batch.indices.shape))
    after = jax.eval_shape(lambda s, b: case.replay.update(s, b, **told), state, batch)
    types = lambda tree: [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]  # noqa: E731
    _ensure(types(after) == types(state), "an update of another size changes the state's shapes")


LAWS: tuple[Callable[[Case], None], ...] = (
    states_share_no_buffers,
    eager_jit_vmap_and_scan_agree,
    batches_have_the_promised_shapes,
    states_keep_their_types,
    only_written_slots_are_drawn,
    draws_follow_the_probabilities,
    verbs_are_pure,
    keys_decide_the_draw,
    donation_changes_nothing,
    feedback_for_overwritten_slots_is_dropped,
    feedback_that_is_no_number_is_dropped,
    new_feedback_that_is_no_number_is_counted,
    finite_feedback_of_either_sign_is_kept,
    empty_replays_refuse_to_sample,
    missing_feedback_is_named,
    batches_may_be_as_large_as_the_capacity,
    other_batch_sizes_are_drawn_on_demand,
)


def same(left: Any, right: Any, rtol: float = 0.0) -> None:
    """Raise AssertionError unless two pytrees are equal, or close by `rtol`."""
    atol = 1e-6 if rtol else 0.0
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), left, right)


def _is_nan(leaf: Array) -> np.ndarray:
    return np.isnan(np.asarray(leaf, np.float32))


def _ensure(ok: Any, message: str) -> None:
    """Raise AssertionError: unlike `assert`, also where Python optimises."""
    if not ok:
        raise AssertionError(message)
