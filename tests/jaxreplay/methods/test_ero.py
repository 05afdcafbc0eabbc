"""ERO: numbers by hand, and training and choices of the replay policy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreplay import Replay, Transition, sum_tree
from jaxreplay.methods.ero import EROConfig, log_likelihood, sampler
from tests.refusals import refused

EXAMPLE = Transition(
    obs=jnp.zeros(1),
    action=jnp.zeros((), jnp.int32),
    reward=jnp.zeros(()),
    discount=jnp.zeros(()),
    next_obs=jnp.zeros(1),
    first=jnp.zeros((), bool),
    last=jnp.zeros((), bool),
)
CAPACITY, BATCH = 40, 4
CONFIG = EROConfig(hidden=(8,), learning_rate=1e-2, batch_size=16)
REPLAY = Replay(sampler(CONFIG), capacity=CAPACITY, batch_size=BATCH)
OBSERVE, ADD = jax.jit(REPLAY.observe_return), jax.jit(REPLAY.add)


def filled(count=30):
    state = REPLAY.init(jax.random.key(0), EXAMPLE)
    row = jax.tree.map(lambda x: x[None], EXAMPLE)
    for time in range(count):
        state = ADD(state, row._replace(reward=jnp.full(1, float(time % 3))))
    return state


def chosen(state):
    return np.asarray(sum_tree.leaves(state.sampler.chosen))


def observed(state, episode_return, key=0):
    return OBSERVE(state, jnp.float32(episode_return), jax.random.key(key))


def equal(left, right):
    leaves = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(bool((x == y).all()) for x, y in leaves)


def test_likelihood_by_hand():
    keep, mask = np.array([0.9, 0.5, 0.2]), jnp.array([1.0, 0.0, 0.0])
    logits = jnp.asarray(np.log(keep / (1 - keep)), jnp.float32)
    value, gradient = jax.value_and_grad(lambda x: 1.5 * log_likelihood(x, mask))(logits)
    assert float(value) == pytest.approx(-1.5324768713, rel=1e-6)
    np.testing.assert_allclose(gradient, [0.15, -0.75, -0.3], rtol=1e-5)
    assert np.isfinite(float(log_likelihood(jnp.array([80.0, -80.0]), jnp.array([0.0, 1.0]))))


def test_score_function_has_mean_zero():
    logits = jnp.array([1.0, -0.5, 0.2])
    masks = jax.random.bernoulli(jax.random.key(0), jax.nn.sigmoid(logits), (20_000, 3))
    gradients = jax.vmap(jax.grad(log_likelihood), (None, 0))(logits, masks.astype(jnp.float32))
    error = np.asarray(gradients.std(axis=0)) / np.sqrt(20_000)
    assert (np.abs(np.asarray(gradients.mean(axis=0))) < 4 * error).all()


def test_the_first_return_is_only_a_baseline():
    state = filled()
    after = observed(state, 10.0)
    assert equal(after.sampler.params, state.sampler.params)
    np.testing.assert_array_equal(chosen(after), chosen(state))
    assert float(REPLAY.metrics(after)["replay_reward"]) == 0


def test_rewards_are_changes_of_returns_and_update_the_subset():
    state, rewards = filled(), []
    for number, episode_return in enumerate((12.0, 15.0, 9.0)):
        before, state = state, observed(state, episode_return, number)
        rewards.append(float(REPLAY.metrics(state)["replay_reward"]))
        assert equal(before.sampler.params, state.sampler.params) == (number == 0)
    assert rewards == [0.0, 3.0, -6.0]
    assert set(chosen(state)) == {0.0, 1.0} and not chosen(state)[30:].any()
    sum_tree.check_valid(state.sampler.chosen)
    share = chosen(state).sum() / 30
    assert float(REPLAY.metrics(state)["subset"]) == pytest.approx(share)
    before = state
    state = observed(state, float("nan"))  # no episode ended, so nothing is learned
    assert equal(before.sampler, state.sampler)


def test_an_equal_return_changes_the_subset_but_no_parameters():
    state = observed(observed(filled(), 1.0), 3.0)
    after = observed(state, 3.0, 7)
    assert equal(after.sampler.params, state.sampler.params)
    assert equal(after.sampler.opt_state, state.sampler.opt_state)
    assert (chosen(after) != chosen(state)).any()


def test_a_better_return_raises_the_probability_of_the_choices():
    """Adam's first step has the gradient's sign: opposite for a better and a worse return."""
    start = observed(filled(), 1.0)
    steps = [
        optax.tree.sub(observed(start, episode_return, 1).sampler.params, start.sampler.params)
        for episode_return in (3.0, -1.0)
    ]
    for up, down in zip(*(jax.tree.leaves(step) for step in steps), strict=True):
        np.testing.assert_allclose(up, -np.asarray(down), atol=1e-6)
    # All items were in the subset, so the probability of keeping an item rises.
    bias = steps[0]["params"]["Dense_1"]["bias"]
    assert float(bias[0]) > 0


def frequencies(state, draws=4000):
    keys = jax.random.split(jax.random.key(3), draws)
    drawn = jax.jit(jax.vmap(lambda key: REPLAY.sample(state, key).indices))(keys)
    counts = np.bincount(np.asarray(drawn).ravel(), minlength=CAPACITY)
    chance = np.asarray(REPLAY.probability(state, jnp.arange(CAPACITY)))
    assert chance.sum() == pytest.approx(1, rel=1e-5)
    expected = BATCH * draws * chance
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()
    return counts


def with_subset(state, slots):
    leaves = jnp.zeros(CAPACITY).at[jnp.asarray(slots)].set(1.0)
    tree = sum_tree.rebuild(state.sampler.chosen, leaves)
    return state._replace(sampler=state.sampler._replace(chosen=tree))


def test_draws_are_uniform_over_the_subset():
    assert set(np.flatnonzero(frequencies(with_subset(filled(), [1, 4, 5, 7, 29])))) == {
        1, 4, 5, 7, 29,
    }  # fmt: skip
    assert (frequencies(filled()) > 0)[:30].all()  # with all items in the subset, replay is uniform


def test_a_subset_smaller_than_a_batch_is_ignored():
    assert (frequencies(with_subset(filled(), [1, 4, 5])) > 0)[:30].all()


def test_new_items_enter_the_subset_with_td_error_0():
    state = with_subset(filled(CAPACITY), [1, 4, 5, 7])
    state = state._replace(sampler=state.sampler._replace(td_error=jnp.full(CAPACITY, 2.0)))
    after = ADD(state, jax.tree.map(lambda x: x[None], EXAMPLE))
    assert np.flatnonzero(chosen(after)).tolist() == [0, 1, 4, 5, 7]
    np.testing.assert_array_equal(after.sampler.td_error, [0.0] + [2.0] * (CAPACITY - 1))


def test_features_are_scaled_by_the_deviation_over_stored_items():
    from jaxreplay.methods.ero import _features

    state, live = filled(4), slice(4)  # the other 36 slots are empty
    td = jnp.zeros(CAPACITY).at[live].set(jnp.array([1.0, -1.0, 0.5, 3.0]))
    features = np.asarray(_features(state.sampler._replace(td_error=td), state.ring))
    squashed = [np.tanh(x / np.std(x)) for x in ([0.0, 1.0, 2.0, 0.0], np.asarray(td[live]))]
    expected = np.stack([*squashed, [0.25, 0.5, 0.75, 1.0]], axis=1)
    np.testing.assert_allclose(features[live], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"hidden": ()}, ("hidden",)),
        ({"hidden": (8, 0)}, ("hidden", "0")),
        ({"learning_rate": 0.0}, ("learning_rate", "0.0")),
        ({"batch_size": 0}, ("batch_size", "0")),
    ],
)
def test_options_out_of_range_are_refused(options, parts):
    with refused(*parts):
        EROConfig(**options)
