"""LaBER: choices and weights by hand, and agents that learn from chosen rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.critics import Critics, choose, fit
from experiments.runs import registry
from jaxreplay import equivalence, objectives
from jaxreplay.contrib import laber
from jaxreplay.contrib.laber import ChooseByGradient, LaBERConfig
from jaxreplay.methods import uniform
from jaxreplay.types import Sample, Transition
from tests.jaxreplay.contrib.small_agents import fed_by, is_discrete, made
from tests.refusals import refused

TD = np.array([0.5, -2.0, 0.1, 1.0, 4.0, 0.0, -0.25, 0.75], np.float32)
SHARES = {  # probabilities under the squared error and the Huber loss
    "mse": [0.0581395, 0.2325581, 0.0116279, 0.1162791, 0.4651163, 0, 0.0290698, 0.0872093],
    "huber": [0.1086957, 0.2173913, 0.0217391, 0.2173913, 0.2173913, 0, 0.0543478, 0.1630435],
}
MEAN_WEIGHTS = [2.15, 0.5375, 10.75, 1.075, 0.26875, 0.0, 4.3, 1.4333333]  # under the squared error


NORMS = {
    loss: np.asarray(equivalence.minimal_variance_priority(error)(jnp.asarray(TD)))
    for loss, error in {"mse": objectives.mse, "huber": objectives.huber(1.0)}.items()
}


@functools.cache
def chooser(weights):
    """Return a compiled function of norms `[N, M]` and keys `[n]`, which chooses n times."""
    return jax.jit(jax.vmap(ChooseByGradient(2, weights), (None, 0)))


def draws(norms, weights="mean", count=4000):
    """Rows and weights `[count, B]` of one critic, in `count` independent choices."""
    keys = jax.random.split(jax.random.key(0), count)
    found = chooser(weights)(np.float32(norms)[None], keys)
    return np.asarray(found.rows[:, 0]), np.asarray(found.weights[:, 0])


def test_weights_by_hand():
    rows, weights = draws(NORMS["mse"], "mean")
    np.testing.assert_allclose(weights, np.take(MEAN_WEIGHTS, rows), rtol=1e-5)
    rows, weights = draws(NORMS["mse"], "lazy")
    np.testing.assert_allclose(weights, 1 / np.abs(TD)[rows], rtol=1e-5)
    rows, weights = draws(NORMS["mse"], "max")
    inverse = 1 / np.abs(TD)[rows]
    np.testing.assert_allclose(weights, inverse / inverse.max(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(("loss", "mean", "variance", "plain"), [
    ("mse", 0.5125, 0.89297, 2.47297), ("huber", 0.2625, 0.26172, 0.41672),
])  # fmt: skip
def test_rows_follow_the_norms_so_that_gradients_are_unbiased(loss, mean, variance, plain):
    """Weighted gradients all have one norm: the mean norm over candidates."""
    norms, (rows, weights) = NORMS[loss], draws(NORMS[loss])
    counts = np.bincount(rows.ravel(), minlength=8) / rows.size
    np.testing.assert_allclose(counts, SHARES[loss], atol=0.015)
    assert counts[5] == 0
    gradient = norms * np.sign(TD)
    np.testing.assert_allclose([gradient.mean(), gradient.var()], [mean, plain], rtol=1e-4)
    weighted = weights * gradient[rows]
    np.testing.assert_allclose(np.abs(weighted), norms.mean(), rtol=1e-5)
    np.testing.assert_allclose(weighted.mean(), mean, atol=0.03)
    np.testing.assert_allclose(weighted.var(), variance, rtol=0.05)


@pytest.mark.parametrize("weights", ["mean", "lazy", "max"])
def test_the_scale_of_norms_changes_only_lazy_weights(weights):
    small, large = (draws(scale * NORMS["mse"], weights) for scale in (1, 2.0**70))
    np.testing.assert_array_equal(small[0], large[0])
    factor = 2.0**70 if weights == "lazy" else 1
    np.testing.assert_allclose(small[1], large[1] * factor, rtol=1e-6)
    # Without any norm, candidates are equally likely.
    rows, found = draws(np.zeros(8), weights)
    np.testing.assert_allclose(np.bincount(rows.ravel()) / rows.size, 1 / 8, atol=0.01)
    assert (found == 1).all()


def test_rows_with_norms_that_are_not_finite_are_not_drawn():
    rows, weights = draws([1.0, np.nan, np.inf, 1.0])
    assert set(rows.ravel()) == {0, 3} and (weights == 0.5).all()


def test_each_critic_and_the_actor_have_their_own_rows():
    norms = np.float32(np.eye(8)[[0, 7]])
    rows, _, actor = chooser("mean")(norms, jax.random.split(jax.random.key(0), 200))
    np.testing.assert_array_equal(rows, np.broadcast_to([[0] * 4, [7] * 4], (200, 2, 4)))
    np.testing.assert_allclose(np.bincount(np.ravel(actor)) / 800, 1 / 8, atol=0.05)


def test_batches_must_be_multiples_of_candidates():
    with refused("batch_size", "4", "10"):
        ChooseByGradient(4)(jnp.ones((1, 10)), jax.random.key(0))


def test_the_sampler_is_uniform():
    method = laber.method(LaBERConfig(candidates=3, loss="huber"))
    assert method.sampler == uniform.sampler()
    assert method.requires.chooses and method.requires.scalar_loss
    assert method.objective.candidates == 3 and uniform.method().objective.candidates == 1


def linear_critics(count):
    weights = tuple(jnp.array([0.3 + n, -0.2]) for n in range(count))
    return Critics(lambda w, t: t.obs @ w, weights, weights)


@pytest.mark.parametrize(
    ("count", "loss"), [(1, objectives.huber(1.0)), (2, objectives.mse)], ids=["one", "two"]
)
def test_mean_gradients_of_chosen_rows_equal_those_of_all_candidates(count, loss):
    """Compared with the gradients of the mean over candidates, in expectation and exactly."""
    critics = linear_critics(count)
    obs = jax.random.normal(jax.random.key(1), (8, 2))
    target = jax.random.normal(jax.random.key(2), (8,))
    sample = Sample(jnp.arange(8), Transition(obs), jnp.ones(8), jnp.ones(8, jnp.int32))
    objective = laber.method(LaBERConfig(candidates=2)).objective._replace(error=loss)

    def fitted(objective):
        def loss_of(params, sample, target):
            q = critics.values(params, sample.transition)
            return objective.critic(objective.losses(target - q), sample, None), q

        return lambda key: fit(loss_of, critics, sample, target, objective, key)

    plain, info, _ = jax.jit(fitted(objectives.plain(loss)))(jax.random.key(0))
    keys = jax.random.split(jax.random.key(4), 4000)
    grads, found, actor = jax.jit(jax.vmap(fitted(objective)))(keys)
    for ours, theirs in zip(jax.device_get(grads), plain, strict=True):
        np.testing.assert_allclose(ours.mean(axis=0), theirs, atol=0.04)
    for name, value in info.feedback.items():
        np.testing.assert_allclose(found.feedback[name][0], value, rtol=1e-6)
    assert actor.weights.shape == (4000, 4)
    # one choice by hand
    key = keys[0]
    td = target - jnp.stack([obs @ w for w in critics.params])
    norms = jax.jit(equivalence.minimal_variance_priority(loss))(td)
    chosen, _ = jax.jit(lambda norms: choose(objective, norms, sample, key))(norms)
    td, norms, obs, chosen = jax.device_get((td, norms, obs, chosen))
    for number, (rows, own) in enumerate(chosen):
        slope = -np.sign(td[number, rows]) * norms[number, rows] * own.weights
        expected = (slope[:, None] * obs[rows]).mean(axis=0)
        np.testing.assert_allclose(grads[number][0], expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(own.indices, rows)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=() if x in ("dqn", "td3") else pytest.mark.slow)
        for x in fed_by("laber")
    ],
)
def test_agents_learn_from_the_chosen_rows(name):
    """Feedback covers all candidates; those without a finite target are never chosen."""
    agent, state, sample = made(name, laber.method().objective, 8)
    update, row, key = jax.jit(agent.update), sample.transition, jax.random.key(2)
    _, info = update(state, sample, key)
    assert {values.shape for values in info.feedback.values()} == {(8,)}
    if is_discrete(name):
        told = jax.jit(agent.feedback)(state, row, key)
        np.testing.assert_allclose(info.feedback["td_error"], told["td_error"], rtol=1e-4)
    broken = row._replace(reward=jnp.where(jnp.arange(8) < 4, row.reward, jnp.nan))
    after, info = update(state, sample._replace(transition=broken), key)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    assert np.isfinite(info.metrics["loss"])


def test_training_draws_the_candidates_of_every_gradient_step():
    config = registry.ReplaySizes(capacity=100, batch_size=8)
    assert config.make(uniform.sampler(), 4).batch_size == 32
