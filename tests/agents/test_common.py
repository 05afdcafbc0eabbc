"""Regression shared by all agents: losses, feedback, gradients and optimisers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents import common
from agents.critics import Critics, fit, largest_magnitude
from jaxreplay import equivalence, objectives
from tests.agents import tools
from tests.refusals import refused

# Errors Q - y of two critics for four samples. The target is 0 and the parameters are Q, so that
# the gradient is the derivative of the loss with respect to Q.
Q = jnp.float32([[0.2, -1.5, 3.0, -0.05], [-0.4, -1.0, 5.0, 0.02]])


def gradient(objective):
    objective = common.with_default_loss(objective, objectives.mse)

    def loss(q, sample, target):
        return objective.critic(objective.losses(target - q), sample, None), q

    zeros = np.zeros((4, 1), np.float32)
    sample = tools.sample_of(zeros, zeros, np.zeros(4), np.zeros(4), zeros)
    critics, target = Critics(lambda q, t: q, Q, Q), jnp.zeros(4)
    step = lambda key: fit(loss, critics, sample, target, objective, key)[:2]
    return jax.jit(step)(jax.random.key(0))


def test_largest_magnitude_propagates_nan():
    for td in ([jnp.nan, 1.0], [1.0, jnp.nan]):
        assert jnp.isnan(largest_magnitude(jnp.float32(td)))
    for values in ([-2, 2], [2, -2]):
        assert largest_magnitude(jnp.float32(values)) == 2


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4)])
def test_batched_index_has_the_gradient_of_indexing(shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values[0, 1] = np.nan  # belongs to an action that was not taken
    action = np.int32([0, 2, 1, 1, 2])
    with pytest.raises(AssertionError, match="rank"):
        common.batched_index(jnp.asarray(values), jnp.asarray(action)[:, None])
    np.testing.assert_array_equal(common.batched_index(values[1:], jnp.int32([-1, 3, 9, -1])), 0)
    own = values[np.arange(5), action]
    got, pull = jax.vjp(lambda x: common.batched_index(x, action), jnp.asarray(values))
    np.testing.assert_array_equal(got, own)
    expected = np.zeros_like(values)
    expected[np.arange(5), action] = 2 * own
    np.testing.assert_array_equal(pull(jnp.asarray(2 * own))[0], expected)


def test_epsilon_greedy_explores_uniformly():
    best, draw = np.full(60_000, 3, np.int32), jax.jit(common.epsilon_greedy, static_argnums=3)
    drawn = draw(best, jax.random.key(0), 0.6, 5)
    share = np.bincount(drawn, minlength=5) / len(best)
    np.testing.assert_allclose(share, [0.12, 0.12, 0.12, 0.52, 0.12], atol=0.008)  # 5 sigma
    np.testing.assert_array_equal(draw(best, jax.random.key(0), 0.0, 5), best)


@pytest.mark.parametrize("twin", ["own", "max"])
def test_losses_receive_the_errors_of_both_critics(twin):
    pal = equivalence.pal(alpha=0.4, kappa=1.0, twin=twin)
    grads, info = gradient(objectives.plain(pal))
    expected = jax.jit(jax.value_and_grad(lambda q: pal(0.0 - q).sum(axis=0).mean()))(Q)
    np.testing.assert_allclose(info.metrics["loss"], expected[0], rtol=1e-6)
    np.testing.assert_allclose(grads, expected[1], rtol=1e-6)


def test_objectives_without_a_loss_are_refused():
    with refused("error", "with_default_loss"):
        objectives.plain().losses(Q)


def test_a_default_loss_does_not_replace_that_of_an_objective():
    objective = objectives.plain(objectives.l1)
    assert common.with_default_loss(objective, objectives.mse).error is objectives.l1
    assert common.with_default_loss(objectives.plain(), objectives.mse).error is objectives.mse


def test_adam_skips_non_finite_gradients():
    optimiser = common.adam(0.1, anneal=0.0, weight_decay=0.5)
    update, params = jax.jit(optimiser.update), {"a": np.ones(3, np.float32), "b": np.float32(1)}
    good, state = {"a": np.full(3, np.float32(2)), "b": np.float32(0)}, optimiser.init(params)
    plain = optax.chain(optax.add_decayed_weights(0.5), optax.adam(0.1))
    fresh, _ = jax.jit(plain.update)(good, plain.init(params), params)
    for bad in np.float32([np.nan, np.inf, -np.inf, 1e30]):
        steps, after = update(good | {"b": bad}, state, params)
        assert not any(x.any() for x in jax.tree.leaves(steps))
        tools.assert_close(update(good, after, params)[0], fresh, rtol=1e-6)


def rmsprop_by_hand(grads, rate, decay, eps, eps_in_root):
    """Return the updates by centred RMSProp for gradients `[T, ...]`, in float64."""
    mean, square, steps = 0.0, 0.0, []
    for grad in np.asarray(grads, np.float64):
        mean = decay * mean + (1 - decay) * grad
        square = decay * square + (1 - decay) * grad**2
        variance = square - mean**2
        root = np.sqrt(variance + eps) if eps_in_root else np.sqrt(variance) + eps
        steps.append(-rate * grad / root)
    return np.stack(steps)


def steps_of(optimiser, grads):
    def body(state, grad):
        step, state = optimiser.update(grad, state)
        return state, step

    return jax.jit(lambda: jax.lax.scan(body, optimiser.init(grads[0]), grads)[1])()


@pytest.mark.parametrize("eps_in_root", [True, False])
def test_centred_rmsprop_agrees_with_numpy_and_optax(eps_in_root):
    grads = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    grads[:, 0] *= 1e-3  # here epsilon and its position matter
    found = steps_of(common.centred_rmsprop(0.1, 0.9, 1e-2, eps_in_root), jnp.asarray(grads))
    expected = rmsprop_by_hand(grads, 0.1, 0.9, 1e-2, eps_in_root)
    np.testing.assert_allclose(found, expected, rtol=2e-4)
    of_optax = optax.rmsprop(0.1, 0.9, 1e-2, centered=True, eps_in_sqrt=eps_in_root)
    np.testing.assert_allclose(found, steps_of(of_optax, jnp.asarray(grads)), rtol=1e-4)


@pytest.mark.parametrize("eps_in_root", [True, False])
def test_rmsprop_of_constant_gradients_is_finite(eps_in_root):
    """Their variance is 0, or negative by rounding."""
    rng = np.random.default_rng(0)
    grad = rng.normal(size=5_000) * 10.0 ** rng.uniform(-6, 2, 5_000)
    optimiser = common.centred_rmsprop(1.0, 0.95, 1e-5, eps_in_root)
    steps = steps_of(optimiser, jnp.broadcast_to(jnp.float32(grad), (400, 5_000)))
    assert np.isfinite(steps).all()


def test_gradients_are_clipped_before_the_optimiser():
    sgd = optax.sgd(1.0)
    step = steps_of(common.clip_gradients(sgd, 1.0), jnp.float32([[3, 4]]))
    np.testing.assert_allclose(step, [[-0.6, -0.8]], rtol=1e-6)
    assert common.clip_gradients(sgd, 0.0) is sgd


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_gradient_clipping_accepts_a_traced_limit(limit):
    gradient = jnp.float32([3, 4])

    def step(limit):
        optimiser = common.clip_gradients(optax.sgd(1.0), limit)
        return optimiser.update(gradient, optimiser.init(gradient))[0]

    np.testing.assert_allclose(jax.jit(step)(jnp.float32(limit)), step(limit), rtol=1e-6)
