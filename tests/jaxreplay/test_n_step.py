"""n-step windows refuse steps that would be broadcast or lose data (returns: test_ring.py)."""

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, n_step, ring
from jaxreplay.methods import per
from jaxreplay.n_step import Step
from tests.refusals import refused

E = 4
NUMBER, FLAG, OBS = np.float32(0), np.bool_(0), np.zeros(2, np.float32)
EXAMPLE = Step(OBS, np.int32(0), NUMBER, FLAG, FLAG, OBS, FLAG)
ROW = jax.tree.map(lambda x: jnp.zeros((E, *x.shape), x.dtype), EXAMPLE)

STEPS = [
    (jax.tree.map(lambda x: x[:1], ROW), ("obs", "[1, 2]", "[4, 2]")),
    (ROW._replace(reward=jnp.zeros(8)), ("reward", "[8]", "[4]")),
    (ROW._replace(reward=jnp.zeros((E, 1))), ("reward", "[4, 1]", "[4]")),
    (EXAMPLE, ("obs", "[2]", "[4, 2]")),
    (ROW._replace(terminated=jnp.zeros(E)), ("float32", "bool", "terminated > 0")),
    (ROW._replace(action=jnp.zeros(E)), ("action", "float32", "int32")),
    (ROW._replace(extras=jnp.zeros(E)), ("extras",)),
    (ROW._replace(obs=None), ("obs",)),
    (tuple(ROW), ("push", "tuple", "n_step.Step")),
]


@pytest.mark.parametrize(("step", "parts"), STEPS, ids=[" ".join(x) for _, x in STEPS])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("jitted", [False, True])
def test_push_refuses_steps_that_differ_from_the_example(step, parts, n, jitted):
    push = lambda window: n_step.push(window, step, 0.9)
    with refused(*parts):
        (jax.jit(push) if jitted else push)(n_step.init(EXAMPLE, n, E))


@pytest.mark.parametrize("n", [1, 3])
def test_push_casts_numpy_arrays_to_the_dtypes_of_the_window(n):
    step = jax.tree.map(np.asarray, ROW)
    step = step._replace(reward=np.arange(E), action=np.arange(E), obs=np.ones((E, 2)))
    window, out = n_step.init(EXAMPLE, n, E), None
    for _ in range(n):
        window, out = n_step.push(window, step, 0.5)
    np.testing.assert_allclose(out.reward, {1: 1, 3: 1 + 0.5 + 0.25}[n] * np.arange(E))


def test_loop_in_the_docstring_adds_only_valid_transitions():
    ones = jax.tree.map(lambda x: jnp.ones((8, *x.shape), x.dtype), EXAMPLE)
    names = {
        "jax": jax, "n_step": n_step, "key": jax.random.key(0), "play": lambda key: ones,
        "keys": jax.random.split(jax.random.key(1), 7),
        "replay": Replay(per.sampler(), capacity=80, batch_size=4, num_envs=8),
    }  # fmt: skip
    example = "    def fill" + (n_step.__doc__ or "").partition("    def fill")[2]
    exec(textwrap.dedent(example), names)
    assert ring.size(names["state"].ring) == 5 * 8
    np.testing.assert_array_equal(ring.contents(names["state"].ring).reward[:40], 1)


@pytest.mark.parametrize("name", ["terminated", "truncated", "first"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.complex64])
def test_errors_about_flags_advise_a_bool_dtype(name, dtype):
    window = n_step.init(EXAMPLE, 2, E)
    given = np.dtype(dtype).name
    with refused(given, "bool", f"{name} > 0") as error:
        n_step.push(window, ROW._replace(**{name: jnp.zeros(E, dtype)}), 0.9)
    assert str(error.value).count(given) == 1  # no advice to use this dtype


@pytest.mark.parametrize("gamma", [99, -0.1, float("nan"), float("inf"), jnp.float32(1.1), "half"])
def test_gamma_outside_0_1_is_refused(gamma):
    with refused("gamma"):
        n_step.push(n_step.init(EXAMPLE, 2, E), ROW, gamma)


def test_gamma_may_be_any_number_type_or_traced():
    window = n_step.init(EXAMPLE, 1, E)
    for push in (n_step.push, jax.jit(n_step.push)):
        for gamma in (0, 1, np.float32(0.5), np.array(0.5), jnp.float32(0.5)):
            np.testing.assert_array_equal(push(window, ROW, gamma)[1].discount, [gamma] * E)


def test_scan_within_shard_map_carries_a_window():
    def returns(rewards):
        def push(window, reward):
            return n_step.push(window, ROW._replace(reward=reward), 0.5)

        return jax.lax.scan(push, n_step.init(EXAMPLE, 2, E), rewards)[1].reward

    mesh = jax.sharding.Mesh(jax.devices()[:1], "d")
    over = jax.sharding.PartitionSpec("d")
    rewards = jnp.arange(3.0 * E).reshape(3, E)
    found = jax.jit(jax.shard_map(returns, mesh=mesh, in_specs=over, out_specs=over))(rewards)
    np.testing.assert_array_equal(found, jax.jit(returns)(rewards))


EXAMPLES = [
    ({"n": 1.5}, ("n_step", "1.5")),
    ({"n": 0}, ("n_step", "0")),
    ({"num_envs": 0}, ("num_envs", "0")),
    ({"num_envs": "4"}, ("num_envs", "'4'")),
    ({"example": ROW}, ("reward", "float32", "[4]")),
    ({"example": EXAMPLE._replace(terminated=NUMBER)}, ("float32", "bool", "terminated > 0")),
    ({"example": EXAMPLE._replace(first=None)}, ("first", "NoneType")),
]


@pytest.mark.parametrize(("change", "parts"), EXAMPLES, ids=[" ".join(x) for _, x in EXAMPLES])
def test_init_refuses_examples_that_are_not_one_step(change, parts):
    with refused(*parts):
        n_step.init(**{"example": EXAMPLE, "n": 2, "num_envs": E} | change)
