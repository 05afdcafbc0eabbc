"""Wrong numbers and arrays end in one line that names the argument and the remedy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Frames, Replay, ring
from jaxreplay._internal.arguments import Bounds, check_choice
from jaxreplay.methods import METHODS, per, refer, uniform
from jaxreplay.testing import EXAMPLE, rows, with_goals
from tests.methods import quick, short
from tests.refusals import refused

BATCH, E = 8, 2
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("bounds", "within", "beyond", "valid", "inequality"),
    [
        (Bounds(above=0), [1e-9, 3], [0, -1], ">0", "x>0"),
        (Bounds(at_least=0), [0, 0.5], [-1e-9], ">=0", "x>=0"),
        (Bounds(at_least=2), [2, 9], [1], ">=2", "x>=2"),
        (Bounds(at_most=3), [3, -9], [3.1], "<=3", "x<=3"),
        (Bounds(below=3), [2.9], [3], "<3", "x<3"),
        (Bounds(at_least=0, at_most=1), [0, 1, np.array(1)], [-0.1, 1.1], "[0, 1]", "0<=x<=1"),
        (Bounds(above=0, below=1), [0.5], [0, jnp.array(1)], "(0, 1)", "0<x<1"),
        (Bounds(above=0, finite=False), [INF], [-1], ">0", "x>0"),
        (Bounds(above=0, finite=False), [], [-INF, NAN], "", "x>0"),
        (Bounds(), [-5, 0, 5], [INF, -INF, NAN, 1e39], "", "x"),
    ],
)
def test_bounds_accept_values_within_and_refuse_others(bounds, within, beyond, valid, inequality):
    assert bounds.inequality("x") == inequality
    for value in within:
        bounds.check("x", value)
    for value in beyond:
        with refused("x", value, valid, "none"):
            bounds.check("x", value, ", or none")


def test_numbers_of_another_type_and_choices_are_refused():
    for value in ("x", None, True, np.ones(2)):
        with refused("x"):
            Bounds().check("x", value)
    for value in (1.5, jnp.array(2), np.float32(2)):
        with refused("x", "integer"):
            Bounds().check("x", value, kind=int)
    check_choice("twin", "own", ("own", "max"))
    with refused("twin", "min", "own", "max"):
        check_choice("twin", "min", ("own", "max"))


def test_bounds_accept_traced_values():
    def halved(value):
        Bounds(above=0).check("value", value)
        return value / 2

    assert jax.jit(halved)(-1.0) == -0.5
    with refused("value", "-1.0"):
        halved(jnp.float32(-1.0))


@pytest.fixture(scope="module")
def calls():
    """Return functions that call a replay with wrong arguments, by name."""

    def started(method, **options):
        replay = Replay(method.sampler, capacity=24, batch_size=BATCH, num_envs=E, **options)
        state = jax.jit(replay.init)(jax.random.key(0), EXAMPLE)
        new = dict.fromkeys(replay.requires.feedback_of_new, jnp.zeros(E))
        state = jax.jit(replay.add)(state, rows(0), **new)
        return replay, state, jax.jit(replay.sample)(state, jax.random.key(0))

    replay, state, batch = started(per.method())
    strict, strict_state, _ = started(refer.method(refer.ReFERConfig(returns=True)))
    even, even_state, even_batch = started(uniform.method())
    single = Replay(uniform.sampler(), capacity=8, batch_size=2)
    empty = single.init(jax.random.key(0), EXAMPLE)
    new = dict.fromkeys(strict.requires.feedback_of_new)
    return {
        "update": lambda **feedback: replay.update(state, batch, **feedback),
        "update uniform": lambda **feedback: even.update(even_state, even_batch, **feedback),
        "add": lambda **fields: replay.add(state, ROW._replace(**fields)),
        "add feedback": lambda **feedback: replay.add(state, ROW, **feedback),
        "add refer": lambda values: strict.add(strict_state, ROW, **dict.fromkeys(new, values)),
        "add one": lambda: single.add(empty, EXAMPLE),
        "ring.add": lambda **fields: ring.add(state.ring, ROW._replace(**fields)),
    }


ROW = jax.tree.map(np.asarray, rows(7))
TD = np.zeros(BATCH)
REFUSED = [
    ("update", {"td_error": TD[:, None]}, ("update", "[8, 1]", "[8]", "td_error[:, 0]")),
    ("update", {"td_error": TD[None]}, ("[1, 8]", "td_error[0]")),
    ("update", {"td_error": np.zeros((2, 8))}, ("[2, 8]", "td_error.mean(axis=0)")),
    ("update", {"td_error": np.zeros((8, 3))}, ("[8, 3]", "td_error.mean(axis=1)")),
    ("update", {"td_error": np.zeros((8, 1, 1))}, ("td_error", "[8, 1, 1]", "[8]")),
    ("update", {"td_error": TD[1:]}, ("td_error", "[7]", "[8]")),
    ("update", {"td_error": 0.5}, ("[]", "[8]", "jnp.full(8, td_error)")),
    ("update", {"td_error": TD.astype(np.complex64)}, ("td_error", "complex64")),
    ("update", {"td_error": TD > 0}, ("td_error", "bool")),
    ("update", {}, ("update", "td_error")),
    ("update", {"q_value": TD}, ("update", "td_error", "q_value")),
    ("update", {"td_error": TD, "td_eror": TD}, ("td_eror", "td_error")),
    ("update uniform", {"x": TD}, ("update", "x")),
    ("add feedback", {"reward": TD[:E]}, ("add", "reward")),
    ("add refer", {"values": np.zeros((E, 1))}, ("add", "[2, 1]", "[2]")),
    ("add one", {}, ("obs", "[3]", "[1, 3]", "obs[None]")),
    ("add", {"reward": ROW.reward[:1]}, ("reward", "[1]", "[2]")),
    ("add", {"reward": ROW.reward[:, None]}, ("reward", "[2, 1]", "[2]")),
    ("add", {"obs": np.zeros((E, 4), np.float32)}, ("obs", "[2, 4]", "[2, 3]")),
    ("add", {"action": np.full(E, 1.7, np.float32)}, ("action", "float32", "int32")),
    ("add", {"first": np.full(E, 0.5, np.float32)}, ("float32", "bool", "first > 0")),
    ("add", {"last": np.ones(E, np.int32)}, ("int32", "bool", "last > 0")),
    ("add", {"reward": ROW.reward.astype(np.complex64)}, ("reward", "complex64", "float32")),
    ("add", {"obs": None}, ("obs",)),
    ("add", {"extras": np.zeros(E)}, ("extras",)),
    ("ring.add", {"action": np.full(E, 1.7, np.float32)}, ("action", "float32", "int32")),
]


@pytest.mark.parametrize(("call", "wrong", "parts"), REFUSED, ids=lambda x: str(x)[:30])
@pytest.mark.parametrize("jitted", [False, True])
def test_wrong_arrays_are_refused(calls, call, wrong, parts, jitted):
    with refused(*parts):
        (jax.jit(calls[call]) if jitted else calls[call])(**wrong)


@pytest.mark.parametrize("call", ["add", "ring.add"])
@pytest.mark.parametrize("value", [2**40, -(2**40)])
def test_values_of_numpy_arrays_must_fit(calls, call, value):
    with refused("action", value, "int32"):  # under jit, the upper 32 bits are already gone
        calls[call](action=np.array([0, value]))


@pytest.mark.parametrize("values", [np.arange(8), jnp.ones(8, jnp.bfloat16), np.ones(8)])
def test_feedback_of_any_real_dtype_is_accepted(calls, values):
    assert int(calls["update"](td_error=values, q_value=values).dropped) == 0


def test_wider_dtypes_of_numpy_arrays_are_cast(calls):
    row = {"reward": np.array([1, 2]), "obs": ROW.obs.astype(np.float64), "action": np.arange(E)}
    state = jax.jit(lambda: calls["add"](**row))()  # keeps NumPy arrays
    assert np.asarray(ring.contents(state.ring).reward)[2:4].tolist() == [1, 2]


def stores(field, leaf, jitted=False):
    """Add rows with one integer field; return the stored values."""
    replay = Replay(uniform.sampler(), capacity=4, batch_size=2, num_envs=E)
    state = jax.jit(lambda key: replay.init(key, {"a": field}))(jax.random.key(0))
    add = lambda state, leaf: replay.add(state, {"a": leaf})
    state = (jax.jit(add) if jitted else add)(state, leaf)
    return np.asarray(ring.contents(state.ring)["a"])[:E].tolist()


@pytest.mark.parametrize(
    ("field", "dtype", "parts"),
    [
        (np.int8(0), np.int32, ("int32", "int8", "a.astype('int8')")),
        (np.int32(0), np.uint32, ("uint32", "int32", "a.astype('int32')")),
    ],
)
def test_wider_integer_dtypes_of_jax_arrays_are_refused(field, dtype, parts):
    given = np.ones(E, dtype)
    for leaf, jitted in [(jnp.asarray(given), False), (given, True)]:
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
def test_batches_of_an_empty_replay_have_weight_0_under_jit(name):
    sampler = with_goals(short(name)).sampler
    replay = Replay(sampler, capacity=24, batch_size=BATCH, num_envs=E)

    @jax.jit
    def run(key):
        state = replay.init(key, EXAMPLE)
        return replay.can_sample(state), replay.sample(state, key)

    ready, batch = run(jax.random.key(0))
    assert not bool(ready)
    np.testing.assert_array_equal(batch.weights, np.zeros(BATCH))
    assert ((batch.indices >= 0) & (batch.indices < 24 * sampler.capacity_factor)).all()
    for leaf in jax.tree.leaves((batch.transition, batch.weights)):
        assert np.isfinite(leaf).all()
