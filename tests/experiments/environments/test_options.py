"""Options that make compiled tasks harder: sticky actions, hidden entries, delayed rewards."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import environments
from tests.refusals import refused

CARTPOLE = "gymnax/CartPole-v1"


def alternating(time):
    return time % 2


@functools.cache
def played(name, steps, actions=alternating, **options):
    """Return the observations and results of the steps of one rollout."""
    environment = environments.make(name, **options)
    reset, step = jax.jit(environment.reset), jax.jit(environment.step)
    (state, first), trace = reset(jax.random.key(0)), []
    for time in range(steps):
        state, *result = step(jax.random.key(time), state, np.int32(actions(time)))
        trace.append(jax.device_get(result))
    assert step._cache_size() <= 1  # 0 if JAX calls it by a path that caches elsewhere
    return np.asarray(first), trace


def test_hidden_entries_are_missing_and_nothing_else_changes():
    (first, whole), (less, hidden) = played(CARTPOLE, 80), played(CARTPOLE, 80, hide=(1, 3))
    np.testing.assert_array_equal(less, first[[0, 2]])
    for (obs, out), (own, step) in zip(whole, hidden, strict=True):
        np.testing.assert_array_equal(own, obs[[0, 2]])
        np.testing.assert_array_equal(step.final_obs, out.final_obs[[0, 2]])
        assert step.terminated == out.terminated and step.reward == out.reward
    assert any(out.terminated for _, out in whole)
    assert environments.make(CARTPOLE, hide=(1, 3)).spec.obs.shape == (2,)


def test_projections_are_fixed_linear_maps_of_unit_rows():
    n = 6  # alternating actions go along the walk, again and again
    (first, whole), (less, projected) = (
        played(f"walk/{n}", 12, **options) for options in ({}, {"project": 4})
    )
    seen = np.array([first, *(out.final_obs for _, out in whole)])
    codes = np.array([less, *(out.final_obs for _, out in projected)])
    (_, again) = played.__wrapped__(f"walk/{n}", 12, project=4)
    np.testing.assert_array_equal(codes[1:], [out.final_obs for _, out in again])
    rows = codes[:n]  # of the states in order
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(codes, seen @ rows, atol=1e-6)
    assert len(np.unique(rows, axis=0)) == n and not codes[n].any()  # the end is zeros
    assert [out.reward for _, out in projected] == [out.reward for _, out in whole]
    both = environments.make(CARTPOLE, hide=(1, 3), project=5)
    assert both.spec.obs.shape == (5,)


@pytest.mark.parametrize("limit", [7, None])
def test_delayed_rewards_are_paid_every_few_steps_and_at_the_end(limit):
    limited = {} if limit is None else {"max_steps": limit}
    _, now = played(CARTPOLE, 80, **limited)
    _, later = played(CARTPOLE, 80, **limited, delay=4)
    owed, time = 0.0, 0
    for (_, out), (_, step) in zip(now, later, strict=True):
        owed, time = owed + float(out.reward), time + 1
        over = bool(out.terminated | out.truncated)
        expected = owed if over or time % 4 == 0 else 0.0
        assert float(step.reward) == expected
        owed, time = owed - expected, 0 if over else time
    assert {float(out.reward) for _, out in later} >= {0.0, 3.0}


def test_sticky_probability_1_repeats_the_first_action_of_the_episode():
    # On walk/4 the actions 0, 1, 0, 1 reach the end; the first action of the episode is 0.
    _, trace = played("walk/4", 6, sticky=1.0)
    assert [bool(out.terminated) for _, out in trace] == [False, True] * 3
    _, free = played("walk/4", 8, sticky=0.0)
    assert [float(out.reward) for _, out in free] == [0, 0, 0, 1] * 2


def test_sticky_actions_repeat_with_the_given_probability():
    environment = environments.make("walk/2", sticky=0.3)

    def first_two(key):
        start, one, two = jax.random.split(key, 3)
        state, _ = environment.reset(start)
        state, _, _ = environment.step(one, state, jnp.int32(0))
        return environment.step(two, state, jnp.int32(1))[2].reward  # 0 if action 0 sticks

    solved = jax.jit(jax.vmap(first_two))(jax.random.split(jax.random.key(1), 4_000)).mean()
    assert abs(float(solved) - 0.7) < 0.03  # four standard errors


def test_sparse_rewards_are_one_for_success():
    environment = environments.make("gymnax/MountainCar-v0", sparse=True)
    state, _ = jax.jit(environment.reset)(jax.random.key(0))
    step = jax.jit(environment.step)
    _, _, out = step(jax.random.key(1), state, np.int32(1))
    assert (float(out.reward), bool(out.terminated)) == (0.0, False)
    near = state.inner.replace(position=jnp.float32(0.49), velocity=jnp.float32(0.07))
    _, _, out = step(jax.random.key(1), state._replace(inner=near), np.int32(2))
    assert (float(out.reward), bool(out.terminated)) == (1.0, True)


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("walk/4", {"sparse": True}, ("--env.sparse", "walk/4")),
        (CARTPOLE, {"hide": (1, 4)}, ("--env.hide", "1 4", CARTPOLE)),
        (CARTPOLE, {"hide": (0, 1, 2, 3)}, ("--env.hide", CARTPOLE)),
        ("gymnax/Breakout-MinAtar", {"hide": (0,)}, ("--env.hide", "gymnax/Breakout-MinAtar")),
        ("gymnax/Breakout-MinAtar", {"project": 4}, ("--env.project", "gymnax/Breakout-MinAtar")),
        ("goals/PointReach", {"project": 4}, ("goals/PointReach", "--env.project")),
        ("goals/BitFlip-4", {"delay": 2}, ("goals/BitFlip-4", "--env.delay")),
        ("goals/PointReach", {"hide": (0,)}, ("goals/PointReach", "--env.hide")),
        (CARTPOLE, {"sticky": 1.5}, ("sticky", "1.5")),
        (CARTPOLE, {"delay": 0}, ("delay", "0")),
    ],
)
def test_options_that_do_not_fit_are_refused(name, options, parts):
    with refused(*parts):
        environments.make(name, **options)


@pytest.mark.parametrize(
    "name",
    [*(f"walk/{n}" for n in ("1", "65", "010", "+10", "1e1", "ten", "-3", "٣", "10/2", "")),
     *(f"gymnax/DeepSea-bsuite-{n}" for n in ("1", "65", "08", "", "x")), "memory/Maze-3",
     "memory/TMaze-1", "memory/Chain-x", *(f"goals/BitFlip-{n}" for n in ("1", "65", "ten", ""))],
)  # fmt: skip
def test_other_sizes_are_refused(name):
    for call in (environments.make, environments.check, environments.action_kind):
        with refused(name):
            call(name)
