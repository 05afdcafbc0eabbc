"""`add_rollout` adds several rows in one call, with the result of as many calls of `add`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, SharedObservations, Transitions, testing
from jaxreplay.methods import METHODS, per, uniform
from tests.methods import quick, short
from tests.refusals import refused

T, E = 30, testing.E  # more rows than the ring stores


def together(rows):
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)


@pytest.mark.parametrize("name", quick(METHODS))
def test_a_rollout_equals_repeated_adds(name):
    case = testing.Case(short(name))
    rollout = together([case.rows(time) for time in range(T)])
    new = dict.fromkeys(case.replay.requires.feedback_of_new, rollout.reward)
    add = jax.jit(case.replay.add_rollout)
    testing.same(add(case.init(jax.random.key(0)), rollout, **new), case.fill(T))


@pytest.mark.parametrize("storage", [Transitions(), SharedObservations()])
@pytest.mark.parametrize("jitted", [False, True])
def test_rollouts_accept_feedback_and_shared_observations(storage, jitted):
    sampler = per.sampler(per.PERConfig(initial="td"))
    replay = Replay(sampler, capacity=24, batch_size=4, num_envs=E, storage=storage)
    rows = [testing.rows(time) for time in range(T)]
    state = replay.init(jax.random.key(0), testing.EXAMPLE)
    one, expected = jax.jit(replay.add), state
    for row in rows:
        expected = one(expected, row, td_error=row.reward)
    add = jax.jit(replay.add_rollout) if jitted else replay.add_rollout
    rollout = together(rows)
    testing.same(add(state, rollout, td_error=rollout.reward), expected)


HELD = {"x": np.zeros(2, np.uint8), "n": np.int32(0)}


def held(**options):
    replay = Replay(uniform.sampler(), capacity=8, batch_size=2, num_envs=2, **options)
    return replay, replay.init(jax.random.key(0), HELD)


def test_values_of_numpy_arrays_are_checked_before_a_cast():
    replay, state = held()
    rollout = {"x": np.full((3, 2, 2), 255, np.uint16), "n": np.full((3, 2), 2**31 - 1)}
    expected = state
    for row in range(3):
        expected = replay.add(expected, {name: x[row] for name, x in rollout.items()})
    testing.same(replay.add_rollout(state, rollout), expected)
    rollout["x"][1, 0, 0] = 256
    with refused("x", "256", "uint8"):
        replay.add_rollout(state, rollout)


GOOD = {"x": jnp.zeros((3, 2, 2), jnp.uint8), "n": jnp.zeros((3, 2), jnp.int32)}
OTHERS = [
    ({"n": GOOD["n"][:2]}, {}, ("x", "[3, 2, 2]", "[2, 2, 2]")),
    ({"n": 0, "x": 0}, {}, ("rollout", "[]", "[T, E]")),
    (jax.tree.map(lambda x: x[:0], GOOD), {}, ("rollout", "[0, 2]")),
    (jax.tree.map(lambda x: x[0], GOOD), {}, ("n", "[2]", "[2, 2]")),
    ({"x": GOOD["x"].astype(float)}, {}, ("x", "float32", "uint8")),
    ({"y": GOOD["n"]}, {}, ("y",)),
    ({}, {"td_error": jnp.zeros(2)}, ("td_error", "[2]", "[3, 2]")),
    ({}, {"td": jnp.zeros((3, 2))}, ("td",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "feedback", "parts"), OTHERS, ids=[" ".join(x) for *_, x in OTHERS]
)
def test_rollouts_that_do_not_fit_are_refused_by_name(fields, feedback, parts):
    replay, state = held()
    with refused(*parts):
        replay.add_rollout(state, GOOD | fields, **feedback)
