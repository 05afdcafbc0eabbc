"""Ensembles of critics: draws of members, values, and gradients when stacked."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents import common, ensembles
from agents.critics import Critics, fit
from agents.networks import Critic
from jaxreplay import objectives
from jaxreplay.contrib import laber
from tests.agents import tools

ROWS = 8


def expected_min(size):
    values = jnp.float32([1, 2, 4, 7, 11])
    draw = functools.partial(ensembles.draw_members, size=5, count=size)
    members = jax.vmap(draw)(jax.random.split(jax.random.key(0), 4_000))
    assert all(len(set(row)) == size for row in np.asarray(members[:100]).tolist())
    return float(values[members].min(axis=1).mean())


def test_minimum_of_a_subset_interpolates_between_mean_and_minimum():
    for size, expected in ((1, 5.0), (2, 2.5), (5, 1.0)):
        np.testing.assert_allclose(expected_min(size), expected, rtol=0.05)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ensembles_agree_with_separate_critics(size):
    critic, t = Critic((4,)), tools.batch(ROWS).transition
    members = jnp.int32([size - 1, 0][: min(size, 2)])

    @jax.jit
    def values(key):
        ensemble = ensembles.init_ensemble(critic, key, t.obs, t.action, size)
        alone = [critic.init(each, t.obs, t.action) for each in jax.random.split(key, size)]
        expected = jnp.stack([critic.apply(params, t.obs, t.action) for params in alone])
        some = ensembles.take(ensemble, members)
        both = [ensembles.apply_ensemble(critic, x, t.obs, t.action) for x in (ensemble, some)]
        return both, [expected, expected[members]]

    found, expected = values(tools.KEY)
    tools.assert_close(found, expected)
    assert found[0].shape == (size, ROWS) and len(np.unique(found[0][:, 0])) == size


def test_stacked_critics_have_the_gradients_of_separate_critics():
    """Also when each critic chooses its own rows and has its own key."""
    trees = [{"w": jnp.float32([n, 1 - n, 0.5])} for n in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *trees)
    target, key = jnp.arange(8.0), jax.random.key(1)
    sample = jax.tree.map(jnp.asarray, tools.batch(ROWS))

    def value(params, t, key):
        return t.obs @ params["w"] + jax.random.normal(key, t.reward.shape)

    plain = common.with_default_loss(None, objectives.mse)
    for objective in (plain, laber.method(laber.LaBERConfig()).objective):
        objective = common.with_default_loss(objective, objectives.mse)

        @jax.jit
        def gradients(params, objective=objective):
            critics = Critics(value, params, params, jax.random.key(2))

            def loss(params, sample, target, key):
                q = critics._replace(key=key).values(params, sample.transition)
                return objective.critic(objective.losses(target - q), sample, None), q

            return fit(loss, critics, sample, target, objective, key)

        one, three = gradients(stacked), gradients(tuple(trees))
        grads = jax.tree.map(lambda *x: jnp.stack(x), *three[0])
        tools.assert_close((one[0], *one[1:]), (grads, *three[1:]))


def test_loops_on_accelerators_stack_pairs_and_split_them_again():
    """Also the pair's moments in an optimiser, but no tuples of other trees."""
    pair = {"w": jnp.float32([1, 2])}, {"w": jnp.float32([3, 4])}
    other = {"w": jnp.ones(2)}, {"w": jnp.ones(3)}
    state = {"critics": pair, "moments": optax.adam(0.1).init(pair), "other": other}
    stacked = ensembles.stack_pairs(state)
    np.testing.assert_array_equal(stacked["critics"]["w"], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(stacked["moments"][0].mu["w"], np.zeros((2, 2)))
    np.testing.assert_array_equal(ensembles.member(stacked["critics"], 1)["w"], [3, 4])
    chex.assert_trees_all_equal(stacked["other"], other)
    chex.assert_trees_all_equal(ensembles.split_pairs(stacked, state), state)
