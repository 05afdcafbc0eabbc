"""ERO: numbers by hand, and training and choices of the replay policy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreplay import buffer, sum_tree
from jaxreplay.methods.ero import EROConfig, log_likelihood, sampler
from tests.slots import Slots

CAPACITY, BATCH = 40, 4
SAMPLER = sampler(EROConfig(hidden=(8,), learning_rate=1e-2, batch_size=16))


class Subset(Slots):
    """A replay whose rewards are 0, 1, 2, 0, 1, ..."""

    def __init__(self, count=30):
        super().__init__(SAMPLER, CAPACITY, BATCH)
        for time in range(count):
            self.add(reward=time % 3)

    def chosen(self):
        return np.asarray(sum_tree.leaves(jax.device_get(self.state.sampler.chosen)))

    def observe(self, episode_return, seed=0):
        value, key = np.float32(episode_return), jax.random.key(seed)
        self.state = self.run.observe_return(self.state, value, key)
        return self.state.sampler

    def choose(self, slots):
        leaves = jnp.zeros(CAPACITY).at[jnp.asarray(slots)].set(1.0)
        return self.put(chosen=sum_tree.rebuild(self.state.sampler.chosen, leaves))


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


def test_rewards_are_changes_of_returns_and_update_the_subset():
    slots, rewards = Subset(), []
    start = slots.chosen()
    for number, episode_return in enumerate((12.0, 15.0, 9.0)):
        before, after = slots.state.sampler, slots.observe(episode_return, number)
        rewards.append(slots.metric("replay_reward"))
        # The first return is only a baseline.
        assert equal(before.params, after.params) == (number == 0)
        assert (slots.chosen() == start).all() == (number == 0)
    assert rewards == [0.0, 3.0, -6.0]
    assert set(slots.chosen()) == {0.0, 1.0} and not slots.chosen()[30:].any()
    sum_tree.check_valid(slots.state.sampler.chosen)
    assert slots.metric("subset") == pytest.approx(slots.chosen().sum() / 30)
    before = slots.state.sampler
    assert equal(before, slots.observe(np.nan))  # no episode ended, so nothing is learned


def test_an_equal_return_changes_the_subset_but_no_parameters():
    slots = Subset()
    slots.observe(1.0)
    before, chosen = slots.observe(3.0), slots.chosen()
    after = slots.observe(3.0, 7)
    assert equal((after.params, after.opt_state), (before.params, before.opt_state))
    assert (slots.chosen() != chosen).any()


def test_a_better_return_raises_the_probability_of_the_choices():
    """Adam's first step has the gradient's sign: opposite for a better and a worse return."""
    slots, steps = Subset(), []
    start, state = slots.observe(1.0), slots.state
    for episode_return in (3.0, -1.0):
        slots.state = state
        steps.append(optax.tree.sub(slots.observe(episode_return, 1).params, start.params))
    for up, down in zip(*(jax.tree.leaves(step) for step in steps), strict=True):
        np.testing.assert_allclose(up, -np.asarray(down), atol=1e-6)
    # All items were in the subset, so the probability of keeping an item rises.
    assert float(steps[0]["params"]["Dense_1"]["bias"][0]) > 0


@pytest.mark.parametrize(
    ("subset", "drawn"),
    [
        ([1, 4, 5, 7, 29], [1, 4, 5, 7, 29]),
        (range(30), range(30)),  # with all items in the subset, replay is uniform
        ([1, 4, 5], range(30)),  # a subset smaller than a batch is ignored
    ],
)
def test_draws_are_uniform_over_the_subset(subset, drawn):
    slots = Subset().choose([*subset])
    counts = np.bincount(slots.draws(4000).indices.ravel(), minlength=CAPACITY)
    chance = np.zeros(CAPACITY)
    chance[[*drawn]] = 1 / len(drawn)
    np.testing.assert_allclose(slots.probability(), chance, rtol=1e-5)
    expected = BATCH * 4000 * chance
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


def test_new_items_enter_the_subset_with_td_error_0():
    errors = buffer.in_rows(jnp.full(CAPACITY, 2.0))
    slots = Subset(CAPACITY).choose([1, 4, 5, 7]).put(td_error=errors).add()
    assert np.flatnonzero(slots.chosen()).tolist() == [0, 1, 4, 5, 7]
    errors = buffer.of_slots(slots.state.sampler.td_error, CAPACITY)
    np.testing.assert_array_equal(errors, [0.0] + [2.0] * (CAPACITY - 1))


def test_features_are_scaled_by_the_deviation_over_stored_items():
    """The gradients of the only unit's weights and bias have the features as their ratio."""
    config = EROConfig(hidden=(1,), learning_rate=1e-2, batch_size=1)
    slots = Slots(sampler(config), CAPACITY, BATCH)  # 36 slots stay empty
    rewards, td = [0.0, 1.0, 2.0, 0.0], [1.0, -1.0, 0.5, 3.0]
    for reward in rewards:
        slots.add(reward=reward)
    slots.update(range(4), td_error=td)
    scaled = [np.tanh(np.array(x) / np.std(x)) for x in (rewards, td)]
    features = np.stack([*scaled, [0.25, 0.5, 0.75, 1.0]], axis=1)
    hidden = {"kernel": jnp.float32([[0.1], [0.2], [0.3]]), "bias": jnp.ones(1)}
    logit = {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros(1)}
    params = {"params": {"Dense_0": hidden, "Dense_1": logit}}
    slots.put(params=params, has_observed=np.bool_(True))
    found = set()
    for seed in range(12):
        key = jax.random.key(seed)
        after = slots.run.observe_return(slots.state, np.float32(1.0), key).sampler
        moment = optax.tree.get(after.opt_state, "mu")["params"]["Dense_0"]
        off = np.abs(features - np.ravel(moment["kernel"]) / moment["bias"]).max(axis=1)
        assert off.min() < 1e-4
        found.add(int(off.argmin()))
    assert len(found) > 2
