"""Retrace, V-trace and advantages compared with numbers worked by hand and with loops."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import returns
from tests.refusals import refused

retrace = jax.jit(returns.retrace, static_argnames="wrap")

# One episode of four steps, gamma 0.9.
REWARD = np.array([1.0, 0.0, -1.0, 2.0])
VALUE = np.array([0.5, 1.0, -0.5, 0.8, 0.3])
ADVANTAGE = np.array([0.2, -0.3, 0.4, 0.1])
RATIO = np.array([0.7, 1.5, 0.4, 2.0])
LAST = np.array([False, False, False, True])


def as_float32(arrays):
    return [x if x.dtype == bool else np.float32(x) for x in arrays]


def episode(terminal, ratio=RATIO, advantage=ADVANTAGE, value=VALUE):
    discount = np.full(4, 0.9)
    if terminal:
        discount[-1] = 0
    with np.errstate(divide="ignore"):
        log_ratio = np.log(ratio)
    arrays = (REWARD, discount, LAST, value[:4], advantage, value[1:], log_ratio)
    return as_float32(arrays)


@pytest.mark.parametrize(
    ("terminal", "q_ret", "v_tbc"),
    [
        (True, [1.12744, -0.1584, 0.71, 2], [0.799208, 0.1416, -0.176, 1.9]),
        (False, [1.206172, -0.07092, 0.953, 2.27], [0.8543204, 0.22908, -0.0788, 2.17]),
    ],
)
def test_retrace_worked_by_hand(terminal, q_ret, v_tbc):
    given = episode(terminal)
    got = retrace(*given)
    np.testing.assert_allclose(got, q_ret, rtol=1e-5)
    value, advantage, log_ratio = given[3], given[4], given[6]
    target = np.asarray(jax.jit(returns.trace_corrected_value)(got, value, advantage, log_ratio))
    np.testing.assert_allclose(target, v_tbc, rtol=1e-5)
    np.testing.assert_allclose(REWARD[:3] + 0.9 * target[1:], np.asarray(got)[:3], rtol=1e-5)


@pytest.mark.parametrize(
    ("terminal", "expected"),
    [(True, [0.86134, 0.018, 0.02, 2]), (False, [0.9164524, 0.10548, 0.1172, 2.27])],
)
def test_vtrace_worked_by_hand(terminal, expected):
    reward, discount, last, value, _, next_value, log_ratio = episode(terminal)
    got = jax.jit(returns.vtrace)(reward, discount, last, value, next_value, log_ratio)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_a_decay_of_zero_stops_nans():
    found = returns.recursion(np.float32([0.9, 0, 0.9]), np.float32([1, 2, np.nan]))
    np.testing.assert_allclose(found, [2.8, 2, np.nan], rtol=1e-6)


def loop(reward, discount, last, value, advantage, next_value, log_ratio):
    """Retrace as a loop, backwards in time."""
    q, after = np.zeros_like(reward), None
    for t in reversed(range(len(reward))):
        if last[t] or after is None:
            q[t] = reward[t] + discount[t] * next_value[t]
        else:
            trace = min(1.0, np.exp(log_ratio[t + 1]))
            error = after - value[t + 1] - advantage[t + 1]
            q[t] = reward[t] + discount[t] * (value[t + 1] + trace * error)
        after = q[t]
    return q


def random_steps(seed, length):
    rng = np.random.default_rng(seed)
    reward, value, advantage, next_value = rng.normal(size=(4, length))
    last = rng.random(length) < 0.2
    discount = np.where(last & (rng.random(length) < 0.5), 0.0, 0.95)
    return reward, discount, last, value, advantage, next_value, 2 * rng.normal(size=length)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 2**30), st.sampled_from([1, 2, 7, 40]))
def test_retrace_equals_a_loop_in_every_lane(seed, length):
    lanes = [random_steps(seed + lane, length) for lane in range(3)]
    found = np.asarray(retrace(*as_float32([np.stack(x, axis=1) for x in zip(*lanes)])))
    for lane, steps in enumerate(lanes):
        np.testing.assert_allclose(found[:, lane], loop(*steps), rtol=2e-4, atol=2e-4)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.integers(0, 23))
def test_retrace_does_not_depend_on_the_position_in_the_ring(seed, cursor):
    steps = list(random_steps(seed, 24))
    steps[2][-1] = True  # mark the newest step
    straight = retrace(*as_float32(steps))
    turned = [np.roll(x, cursor) for x in steps]
    wrapped = retrace(*as_float32(turned), wrap=True)
    np.testing.assert_allclose(np.roll(wrapped, -cursor), straight, rtol=1e-4, atol=1e-4)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.9, 1.0]))
def test_generalised_advantages_equal_a_loop(seed, decay):
    reward, discount, last, value, _, next_value, _ = random_steps(seed, 30)
    expected, after = np.zeros(30), 0.0
    for t in reversed(range(30)):
        td = reward[t] + discount[t] * next_value[t] - value[t]
        expected[t] = after = td + (0.0 if last[t] else decay * discount[t] * after)
    steps = as_float32([reward, discount, last, value, next_value])
    got = jax.jit(returns.advantages)(*steps, decay)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_numpy_arrays_are_accepted_and_lambda_is_checked():
    rng = np.random.default_rng(0)
    steps = [rng.random(6, np.float32) for _ in range(6)]
    last = np.arange(6) == 2
    for make, arrays in (
        (returns.retrace, (*steps[:2], last, *steps[2:])),
        (returns.vtrace, (*steps[:2], last, *steps[2:5])),
        (returns.advantages, (*steps[:2], last, *steps[2:4], 0.9)),
        (returns.recursion, steps[:2]),
    ):
        found, expected = make(*arrays), make(*map(jax.numpy.asarray, arrays))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    for decay in (np.nan, -0.1, 1.1, "a"):
        with refused("decay", decay):
            returns.advantages(*steps[:2], last, *steps[2:4], decay)
