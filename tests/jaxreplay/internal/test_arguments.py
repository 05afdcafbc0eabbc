"""Arrays that do not fit are refused where they are passed, with an error that names the fix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Frames, Replay, ring
from jaxreplay.methods import METHODS, per, refer, uniform
from jaxreplay.testing import EXAMPLE, rows, with_goals
from tests.methods import quick, short
from tests.refusals import refused

BATCH, E = 8, 2
READS = [name for name, entry in METHODS.items() if entry.method().sampler.requires.feedback]
READS.remove("sequences")  # takes feedback `[B, T]`


def started(method, evaluate=lambda fill: jax.jit(fill)()):
    """Return a replay, a state and a batch: arrays, or shapes with `jax.eval_shape`."""
    replay = Replay(method.sampler, capacity=24, batch_size=BATCH, num_envs=E)

    def fill():
        state = replay.init(jax.random.key(0), EXAMPLE)
        fresh = dict.fromkeys(method.sampler.requires.feedback_of_new, jnp.zeros(E))
        for time in range(6):
            state = replay.add(state, rows(time), **fresh)
        return state, replay.sample(state, jax.random.key(0))

    return replay, *evaluate(fill)


@pytest.fixture(scope="module")
def stored():
    return started(per.method())


SHAPES = [
    (np.zeros((BATCH, 1)), ("[8, 1]", "[8]", "td_error[:, 0]")),
    (np.zeros((1, BATCH)), ("[1, 8]", "td_error[0]")),
    (np.zeros((2, BATCH)), ("[2, 8]", "td_error.mean(axis=0)")),
    (np.zeros((BATCH, 3)), ("[8, 3]", "td_error.mean(axis=1)")),
    (np.zeros(()), ("[]", "[8]", "jnp.full(8, td_error)")),
    (0.5, ("[]", "[8]", "jnp.full(8, td_error)")),
    (np.zeros(BATCH + 1), ("[9]", "[8]")),
    (np.zeros(0), ("[0]", "[8]")),
    (np.zeros((BATCH, 1, 1)), ("[8, 1, 1]", "[8]")),
    (np.zeros(BATCH, np.complex64), ("complex64",)),
    (np.zeros(BATCH, bool), ("bool",)),
]


@pytest.mark.parametrize(("values", "parts"), SHAPES)
@pytest.mark.parametrize("jitted", [False, True])
def test_feedback_must_be_one_real_number_per_transition(stored, values, parts, jitted):
    replay, state, batch = stored
    update = lambda state, td: replay.update(state, batch, td_error=td)
    with refused("update", "td_error", *parts):
        (jax.jit(update) if jitted else update)(state, values)


@pytest.mark.parametrize("name", quick(READS))
def test_every_method_refuses_feedback_with_a_column_axis(name):
    entry = METHODS[name]
    replay, *held = started(entry.method(entry.config()), jax.eval_shape)
    feedback = dict.fromkeys(replay.requires.feedback, jnp.zeros((BATCH, 1)))
    with refused("update", "[8, 1]", "[8]"):
        jax.eval_shape(lambda state, batch: replay.update(state, batch, **feedback), *held)


def test_feedback_with_a_column_axis_is_refused_under_vmap(stored):
    replay, state, batch = stored
    many = jax.tree.map(lambda x: np.stack([x, x]), (state, batch))
    update = jax.jit(jax.vmap(lambda s, b, td: replay.update(s, b, td_error=td)))
    with refused("td_error", "[8, 1]"):
        update(*many, np.zeros((2, 8, 1)))
    update(*many, np.zeros((2, 8)))


@pytest.mark.parametrize(
    "values", [np.arange(BATCH), jnp.ones(BATCH, jnp.bfloat16), np.ones(BATCH)]
)
def test_feedback_of_any_real_dtype_is_accepted(stored, values):
    replay, state, batch = stored
    after = jax.jit(lambda td: replay.update(state, batch, td_error=td))(values)
    assert int(after.dropped) == 0


def test_missing_and_unknown_feedback_is_named(stored):
    replay, state, batch = stored
    td = jnp.zeros(BATCH)
    with refused("update", "td_error"):
        replay.update(state, batch)
    with refused("update", "td_error", "q_value"):
        replay.update(state, batch, q_value=td)
    with refused("td_eror", "td_error"):
        replay.update(state, batch, td_error=td, td_eror=td)
    jax.jit(replay.update)(state, batch, td_error=td, q_value=td)  # unused feedback is ignored
    with refused("reward"):
        replay.add(state, rows(7), reward=td)
    other, state, batch = started(uniform.method())
    with refused("x"):
        other.update(state, batch, x=td)


def test_feedback_on_new_steps_has_one_row_per_environment():
    method = refer.method(refer.ReFERConfig(returns=True))
    replay, state, _ = started(method, jax.eval_shape)
    fresh = dict.fromkeys(method.sampler.requires.feedback_of_new, jnp.zeros((E, 1)))
    with refused("add", "[2, 1]", "[2]"):
        jax.eval_shape(lambda state: replay.add(state, rows(7), **fresh), state)


ROW = jax.tree.map(np.asarray, rows(7))
TRANSITIONS = [
    ({"reward": ROW.reward[:1]}, ("reward", "[1]", "[2]")),
    ({"reward": ROW.reward[:, None]}, ("reward", "[2, 1]", "[2]")),
    ({"obs": np.zeros(3, np.float32)}, ("obs", "[3]", "[2, 3]")),
    ({"obs": np.zeros((E, 4), np.float32)}, ("obs", "[2, 4]", "[2, 3]")),
    ({"action": np.full(E, 1.7, np.float32)}, ("action", "float32", "int32")),
    ({"action": np.array([0, 2**40])}, ("action", str(2**40), "int32")),
    ({"action": np.array([0, -(2**40)])}, ("action", str(-(2**40)), "int32")),
    ({"first": np.full(E, 0.5, np.float32)}, ("float32", "bool", "first > 0")),
    ({"last": np.ones(E, np.int32)}, ("int32", "bool", "last > 0")),
    ({"reward": ROW.reward.astype(np.complex64)}, ("reward", "complex64", "float32")),
    ({"obs": None}, ("obs",)),
    ({"extras": np.zeros(E)}, ("extras",)),
]


@pytest.mark.parametrize(("change", "parts"), TRANSITIONS, ids=lambda x: str(x)[:30])
@pytest.mark.parametrize("jitted", [False, True])
def test_transitions_must_fit_the_ring(stored, change, parts, jitted):
    replay, state, _ = stored
    if jitted and not {str(2**40), str(-(2**40))}.isdisjoint(parts):
        pytest.skip("inside of jit, 64 bits are gone before anybody is asked")
    row = ROW._replace(**change)
    add = lambda state: replay.add(state, row)
    with refused(*parts):
        (jax.jit(add) if jitted else add)(state)
    with refused(*parts):
        ring.add(state.ring, row)


def test_a_missing_environment_axis_is_named():
    replay = Replay(uniform.sampler(), capacity=8, batch_size=2)
    state = replay.init(jax.random.key(0), EXAMPLE)
    with refused("obs", "[3]", "[1, 3]", "obs[None]"):
        replay.add(state, EXAMPLE)


def test_wider_dtypes_of_numpy_arrays_are_cast(stored):
    replay, state, _ = stored
    row = ROW._replace(reward=np.array([1, 2]), obs=ROW.obs.astype(np.float64), action=np.arange(E))
    state = jax.jit(lambda state: replay.add(state, row))(state)  # keeps NumPy arrays
    assert np.asarray(ring.contents(state.ring).reward)[12:14].tolist() == [1, 2]


def stores(field, leaf, jitted=False):
    """Add rows with one integer field; return the stored values."""
    replay = Replay(uniform.sampler(), capacity=4, batch_size=2, num_envs=E)
    state = jax.jit(lambda key: replay.init(key, {"a": field}))(jax.random.key(0))
    add = lambda state, leaf: replay.add(state, {"a": leaf})
    state = (jax.jit(add) if jitted else add)(state, leaf)
    return np.asarray(ring.contents(state.ring)["a"])[:E].tolist()


NARROWER = [
    (np.int8(0), np.int32, ("int32", "int8", "a.astype('int8')")),
    (np.int32(0), np.uint32, ("uint32", "int32", "a.astype('int32')")),
]


@pytest.mark.parametrize(("field", "dtype", "parts"), NARROWER)
def test_wider_integer_dtypes_of_jax_arrays_are_refused(field, dtype, parts):
    given = np.ones(E, dtype)
    for leaf, jitted in [(jnp.asarray(given), False), (jnp.asarray(given), True), (given, True)]:
        with refused(*parts):
            stores(field, leaf, jitted)
    assert stores(field, given) == [1, 1]  # values of NumPy arrays are checked
    with refused(np.iinfo(dtype).max, field.dtype):
        stores(field, np.full(E, np.iinfo(dtype).max, dtype))


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int16, np.int32])
def test_narrower_integer_dtypes_are_accepted(dtype):
    assert stores(np.int32(0), jnp.ones(E, dtype)) == [1, 1]


def test_int64_rows_are_not_truncated_with_x64():
    with jax.enable_x64(True), refused("int64", "int32", "a.astype('int32')"):
        stores(np.int32(0), jnp.full(E, 2**40))


def test_rows_of_frames_are_checked():
    replay = Replay(per.sampler(), capacity=16, batch_size=2, storage=Frames(stack=2))
    stack = np.zeros((3, 3, 2), np.uint8)
    example = EXAMPLE._replace(obs=stack, next_obs=stack)
    state = jax.jit(replay.init)(jax.random.key(0), example)
    row = jax.tree.map(lambda x: x[None], example)
    with refused("action", "float32", "int32"):
        replay.add(state, row._replace(action=jnp.zeros(1)))
    jax.jit(replay.add)(state, row)


@pytest.mark.parametrize("name", quick(METHODS))
def test_feedback_on_batches_of_an_empty_replay_is_not_counted(name):
    sampler = with_goals(short(name)).sampler
    replay = Replay(sampler, capacity=24, batch_size=BATCH, num_envs=E)
    state = jax.jit(replay.init)(jax.random.key(0), EXAMPLE)
    assert not bool(jax.jit(replay.can_sample)(state))
    batch = jax.jit(replay.sample)(state, jax.random.key(0))
    np.testing.assert_array_equal(batch.weights, np.zeros(BATCH))
    assert ((batch.indices >= 0) & (batch.indices < 24 * sampler.capacity_factor)).all()
    for leaf in jax.tree.leaves((batch.transition, batch.weights)):
        assert np.isfinite(leaf).all()
