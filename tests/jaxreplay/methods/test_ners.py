"""NERS: numbers by hand, properties of the network, and training of the sampler."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreplay import buffer, linear, ring, sum_tree, testing
from jaxreplay.methods import proportional
from jaxreplay.methods.ners import Collected, NERSConfig, log_probabilities, method, sampler
from jaxreplay.methods.parts.score_network import Features, ScoreNetwork, _patches
from jaxreplay.types import Sample
from tests.slots import Slots

EXAMPLE = testing.EXAMPLE._replace(action=np.zeros(2, np.float32))
CAPACITY, BATCH = 12, 4
SMALL = {"hidden": (8, 4), "score_hidden": (4,), "train_size": 8, "learning_rate": 1e-2}
CONFIG = NERSConfig(**SMALL)


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def set_of(count, seed=0):
    rng = np.random.default_rng(seed)
    numbers = lambda size: rng.normal(size=(count, size)).astype(np.float32)
    return Features(numbers(3), numbers(3), numbers(5))


def rows_of(features, rows):
    return jax.tree.map(lambda x: x[np.asarray(rows)], features)


@functools.partial(jax.jit, static_argnums=0)
def initial(network, features):
    """Return initial parameters."""
    return network.init(jax.random.key(1), features)


@functools.partial(jax.jit, static_argnums=0)
def scores_of(network, params, features, valid=None):
    return network.apply(params, features, valid)


def test_the_network_equals_its_equation():
    network, features = ScoreNetwork((6, 4), (5,)), set_of(7)
    params = initial(network, features)
    weights = jax.tree.map(lambda x: np.asarray(x, np.float64), params["params"])

    def layers(x, name, count):
        for number in range(count):
            x = x @ weights[f"{name}_{number}"]["kernel"] + weights[f"{name}_{number}"]["bias"]
            x = np.maximum(x, 0) if number < count - 1 else x
        return x

    d = np.concatenate([np.asarray(part, np.float64) for part in features], axis=1)
    context = np.tile(layers(d, "global", 2).mean(axis=0), (7, 1))
    joint = np.concatenate([layers(d, "local", 2), context], axis=1)
    expected = sigmoid(layers(joint, "score", 2)[:, 0])
    np.testing.assert_allclose(scores_of(network, params, features), expected, rtol=1e-5)


def test_scores_by_hand():
    """One layer each, all numbers given: f_l = f_g = relu of a linear map through two layers."""
    x = np.array([[0.5, -1, 2], [0, 1, -1], [1.5, 0.5, 0], [-0.5, 0, 1]])
    w_l, b_l = np.array([[0.2, -0.3, 0.5], [-0.4, 0.1, 0.3]]), np.array([0.1, -0.1])
    w_g, b_g = np.array([[0.3, 0.2, -0.1], [0.1, -0.2, 0.4]]), np.array([0.0, 0.05])
    identity = {"kernel": np.eye(2), "bias": np.zeros(2)}
    params = {
        "params": {
            "local_0": {"kernel": w_l.T, "bias": b_l}, "local_1": identity,
            "global_0": {"kernel": w_g.T, "bias": b_g}, "global_1": identity,
            "score_0": {"kernel": np.array([[0.7], [-0.5], [0.6], [0.2]]), "bias": [-0.1]},
        }
    }  # fmt: skip
    params = jax.tree.map(np.float32, params,
                          is_leaf=lambda x: isinstance(x, list))  # fmt: skip
    network = ScoreNetwork((2, 2), ())

    def score(rows):
        return scores_of(network, params, Features(None, None, np.float32(x[rows])))

    expected = np.array([0.7422125023, 0.5268491487, 0.5701590254, 0.5640216374])
    np.testing.assert_allclose(score([0, 1, 2, 3]), expected, rtol=1e-6)
    np.testing.assert_allclose(score([2, 0, 3, 1]), expected[[2, 0, 3, 1]], rtol=1e-6)
    three = [0.7502601056, 0.5374298453, 0.5805423048]
    np.testing.assert_allclose(score([0, 1, 2]), three, rtol=1e-6)


@pytest.mark.parametrize("context", [True, False])
def test_scores_are_those_of_a_set(context):
    network, features = ScoreNetwork((16, 8), (8,), global_context=context), set_of(6)
    params = initial(network, features)
    found = lambda rows, valid=None: np.asarray(
        scores_of(network, params, rows_of(features, rows), valid)
    )
    scores, four = found(range(6)), found(range(4))
    assert ((scores > 0) & (scores < 1)).all()
    order = np.array([3, 0, 5, 1, 2, 4])
    np.testing.assert_allclose(found(order), scores[order], rtol=1e-5)
    np.testing.assert_allclose(found([*range(6)] * 2), np.tile(scores, 2), rtol=1e-5)
    # Rows depend on others only through the context, and not on invalid ones.
    assert np.allclose(scores[:4], four, rtol=1e-6) == (not context)
    np.testing.assert_allclose(found(range(6), np.arange(6) < 4)[:4], four, rtol=1e-6)


@pytest.mark.parametrize(("shape", "patch"), [((10, 10, 4), 3), ((84, 84, 4), 5)])
def test_images_share_one_encoder(shape, patch):
    images = jax.ShapeDtypeStruct((2, *shape), np.uint8)
    features = Features(images, images, jax.ShapeDtypeStruct((2, 2), np.float32))
    network = ScoreNetwork((8, 4), (4,))
    scores, params = jax.eval_shape(network.init_with_output, jax.random.key(1), features)
    assert scores.shape == (2,)
    encoder = jax.tree_util.tree_leaves_with_path(params["params"]["encoder"])
    kernels = [x for path, x in encoder if "kernel" in jax.tree_util.keystr(path)]
    assert kernels[-1].shape == (64, 32)
    assert kernels[0].shape[0] == patch**2 * 4


def test_the_encoder_equals_a_convolution():
    """Patches times a matrix, compared with XLA's convolution with the same weights."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 13, 11, 3)).astype(np.float32)
    kernel = rng.normal(size=(5, 5, 3, 6)).astype(np.float32)
    for stride in (1, 2, 5):
        expected = jax.lax.conv_general_dilated(
            images, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        patches = jax.jit(_patches, static_argnums=(1, 2))(images, 5, stride)
        found = np.asarray(patches) @ kernel.reshape(-1, 6)
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_leaves_probabilities_and_weights_by_hand():
    scores, alpha = np.array([1, 0.8, 0.3, 0.05, 1]), 0.5
    state = proportional.init(5)
    leaves = np.float32(scores**alpha)
    state = state._replace(tree=jax.jit(sum_tree.rebuild)(state.tree, leaves))
    held = ring.init(EXAMPLE, 5).replace(steps_added=np.int32(5))
    chance = np.asarray(jax.jit(proportional.probability)(state, held, np.arange(5)))
    np.testing.assert_allclose(
        chance, [0.2727949844, 0.2439952517, 0.1494159666, 0.0609988129, 0.2727949844], rtol=1e-6
    )
    inputs = chance[[0, 2, 3]], 5, np.int32(0)
    beta = linear(0.4, 0.4, None)
    raw = jax.jit(proportional.ImportanceWeights(beta, "none"))(*inputs)
    np.testing.assert_allclose(raw, [0.8832373901, 1.123707281, 1.6079903753], rtol=1e-6)
    scaled = jax.jit(proportional.ImportanceWeights(beta, "batch"))(*inputs)
    np.testing.assert_allclose(scaled, [0.5492802717, 0.6988271188, 1], rtol=1e-6)


@jax.jit
def _ascent(z, rest):
    counted = jnp.ones(4, bool)
    objective = lambda z: 2.0 * log_probabilities(jax.nn.sigmoid(z), counted, 0.5, rest).sum()
    return jax.value_and_grad(objective)(z)


def ascent(z, rest):
    """Return reward 2 times the log-probabilities of four items, and its gradient; alpha is 0.5."""
    return _ascent(np.float32(z), np.float32(rest))


def test_gradient_by_hand():
    z = [0.2, -0.4, 1, 0]
    value, gradient = ascent(z, rest=50.0)
    assert float(value) == pytest.approx(-34.2704023276, rel=1e-6)
    expected = [0.4249435036, 0.5700299694, 0.2515660773, 0.4732850335]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    np.testing.assert_allclose(ascent([0.0] * 4, rest=50.0)[1], [0.473230065] * 4, rtol=1e-5)
    # Normalised over the subset only, equal scores would get no gradient.
    np.testing.assert_allclose(ascent([0.0] * 4, rest=0.0)[1], 0, atol=1e-6)
    # In a large buffer the normaliser vanishes: alpha n times the mean gradient of bare scores.
    bare = 2.0 * (1 - sigmoid(z)) / 4
    np.testing.assert_allclose(np.divide(ascent(z, rest=1e9)[1], 0.5 * 4), bare, rtol=1e-6)


def test_the_expected_gradient_of_log_p_is_zero():
    """This holds under p itself, with the scores of all items up to date."""
    z = np.float32([0.2, -0.4, 1.0, 0.0])
    counted = np.ones(4, bool)
    log_p = lambda z: log_probabilities(jax.nn.sigmoid(z), counted, 0.5, 0.0)
    values, jacobian = jax.jit(lambda z: (log_p(z), jax.jacobian(log_p)(z)))(z)
    mean = (np.exp(values)[:, None] * jacobian).sum(axis=0)
    np.testing.assert_allclose(mean, 0, atol=1e-7)


class Scored(Slots):
    """A replay with `count` transitions of random rewards."""

    def __init__(self, config=CONFIG, count=CAPACITY):
        super().__init__(sampler(config), CAPACITY, BATCH, example=EXAMPLE)
        self.rows(range(count))

    def rows(self, seeds):
        for seed in seeds:
            value = np.random.default_rng(seed).normal()
            self.add(reward=value, obs=np.float32(value))
        return self

    def replay(self, times=3):
        """Sample and update batches; return the last of them and its TD errors."""
        for time in range(times):
            td = np.random.default_rng(200 + time).normal(size=BATCH).astype(np.float32)
            batch = self.run.sample(self.state, jax.random.key(100 + time))
            self.state = self.run.update(self.state, batch, td_error=td, q_value=td, target=2 * td)
        return jax.device_get(batch), td

    def observe(self, episode_return):
        """Observe a return, and return the sampler's state."""
        value = np.float32(episode_return)
        self.state = self.run.observe_return(self.state, value, jax.random.key(0))
        return self.state.sampler


def equal(left, right):
    leaves = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(x, y) for x, y in leaves)


def test_new_transitions_get_the_highest_score_and_features_of_one():
    slots = Scored()
    slots.replay()
    assert slots.leaves().max() <= 1.0 and slots.leaves().min() < 1.0
    slots.rows(range(50, 50 + CAPACITY))  # overwrites all slots
    inner = slots.state.sampler
    stored = [buffer.of_slots(x, CAPACITY) for x in (inner.td_error, inner.q_value)]
    for values in (slots.leaves(), *stored, inner.priorities.max_leaf):
        np.testing.assert_array_equal(values, 1.0)


def test_a_replayed_batch_is_scored_as_a_set():
    slots = Scored()
    batch, td = slots.replay(times=1)
    inner, t = jax.device_get(slots.state.sampler), batch.transition
    np.testing.assert_allclose(inner.td_error.ravel()[batch.indices], np.tanh(td), rtol=1e-6)
    np.testing.assert_allclose(inner.q_value.ravel()[batch.indices], np.tanh(2 * td), rtol=1e-6)
    time = np.float32(batch.version / CAPACITY)
    scalars = [t.action, t.reward, time, np.tanh(td), np.tanh(2 * td)]
    scalars = np.concatenate([x.reshape(BATCH, -1) for x in scalars], axis=1)
    network = ScoreNetwork(CONFIG.hidden, CONFIG.score_hidden)
    scores = scores_of(network, inner.params, Features(t.obs, t.next_obs, scalars))
    leaves = slots.leaves()[batch.indices]
    np.testing.assert_allclose(leaves, np.asarray(scores) ** CONFIG.alpha, rtol=1e-5)


@pytest.mark.parametrize("gradient", ["buffer", "none"])
def test_rewards_are_differences_of_consecutive_returns(gradient):
    slots, rewards = Scored(NERSConfig(**SMALL, gradient=gradient)), []
    for number, episode_return in enumerate((100.0, 120.0, 90.0, 150.0)):
        slots.replay()
        before, after = slots.state.sampler, slots.observe(episode_return)
        rewards.append(slots.metric("replay_reward"))
        assert equal(before.params, after.params) == (number == 0)
        assert not (after.collected.tickets < 1).any()  # a new subset is collected
    assert rewards == [0.0, 20.0, -30.0, 60.0]


def test_a_step_has_the_sign_of_the_reward():
    slots, found = Scored(), {}
    slots.observe(1.0)
    slots.replay()
    start = slots.state
    for episode_return in (3.0, -1.0, 1.0):
        slots.state = start
        params = slots.observe(episode_return).params
        found[episode_return] = jax.tree.map(np.subtract, params, start.sampler.params)
    for up, down in zip(*(jax.tree.leaves(found[x]) for x in (3.0, -1.0)), strict=True):
        np.testing.assert_allclose(up, -down, atol=1e-6)
    # After a rise, replayed items become more likely.
    assert float(found[3.0]["params"]["score_1"]["bias"][0]) > 0
    assert not any(step.any() for step in jax.tree.leaves(found[1.0]))


def collected_of(slots):
    """A collected subset of these slots, in a ring without overwritten rows."""
    slots, none = np.int32(slots), CONFIG.train_size - len(slots)
    tickets = np.append(np.full(len(slots), 0.5, np.float32), np.full(none, np.inf, np.float32))
    slots = np.append(slots, np.zeros(none, np.int32))
    return Collected(slots, slots + 1, tickets)


@pytest.mark.parametrize(
    ("stored", "total", "chosen", "rest"),
    [
        (CAPACITY, CAPACITY, [3, 3, 5], 10.0),  # an item drawn twice is in the sum once
        (8, 7.9, [*range(8)], 0.0),  # a total that rounding left below the sum of its parts
    ],
    ids=["drawn twice", "rounded"],
)
def test_a_step_follows_the_explicit_gradient(stored, total, chosen, rest):
    slots, reward = Scored(count=stored), 2.0  # all leaves are 1
    inner = slots.state.sampler
    tree = inner.priorities.tree.replace(root=np.float32(total))
    slots.put(
        priorities=inner.priorities._replace(tree=tree), collected=collected_of(chosen),
        has_observed=np.bool_(True), episode_return=np.float32(1.0),
    )  # fmt: skip
    t = jax.jit(ring.gather)(slots.state.ring, np.int32(chosen))
    time, ones = np.float32(np.add(chosen, 1) / stored)[:, None], np.ones((len(chosen), 2))
    scalars = np.concatenate([t.action, t.reward[:, None], time, ones], axis=1, dtype=np.float32)
    once = np.unique(chosen, return_index=True)[1]

    @jax.jit
    @jax.grad
    def gradient(params):
        network = ScoreNetwork(CONFIG.hidden, CONFIG.score_hidden)
        masses = network.apply(params, Features(t.obs, t.next_obs, scalars)) ** CONFIG.alpha
        return -reward * jnp.log(masses / (masses[once].sum() + rest)).sum()

    found = optax.tree.get(slots.observe(1.0 + reward).opt_state, "mu")
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(gradient(inner.params)), strict=True)
    for mu, expected in pairs:  # Adam's first moment is a tenth of the first gradient
        np.testing.assert_allclose(mu, 0.1 * np.asarray(expected), rtol=1e-3, atol=1e-6)


def test_overwritten_items_do_not_affect_the_step():
    """Two runs differ only in items that were replayed and then overwritten."""
    found = []
    for times in (1, 0):
        slots = Scored()
        slots.observe(1.0)
        if times:
            slots.replay(times)
        kept = slots.rows(range(70, 70 + CAPACITY)).state
        if times:
            # No item is left, so the gradient and Adam's first step are zero.
            assert equal(slots.observe(5.0).params, kept.sampler.params)
        slots.state = kept
        slots.replay(1)
        found.append(slots.observe(5.0).params)
    for left, right in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)  # the order of sums differs


def test_the_collected_subset_is_uniform():
    slots = Scored(NERSConfig(**SMALL | {"train_size": 4}))
    replay = slots.run.replay

    def step(state, key):
        batch, td = replay.sample(state, key), jnp.zeros(BATCH)
        return replay.update(state, batch, td_error=td, target=td), batch.indices

    def collect(key):
        state, indices = jax.lax.scan(step, slots.state, jax.random.split(key, 3))
        return indices[-1], state.sampler.collected

    keys = jax.random.split(jax.random.key(0), 3000)
    last, collected = jax.device_get(jax.jit(jax.vmap(collect))(keys))
    # Tickets do not depend on the batch: on average a third of the subset is from each of three.
    tickets = collected.tickets
    assert tickets.max() < 1
    assert abs(tickets.mean() - 4 / 13 * 5 / 8) < 0.01  # mean of the least 4 of 12
    share = np.mean([np.isin(c, i).mean() for c, i in zip(collected.slots, last, strict=True)])
    assert share > 1 / 3  # slots may occur in several batches


def test_invalid_rows_of_a_batch_are_not_collected():
    slots = Scored()
    slots.put(collected=collected_of([]))
    versions = slots.versions([0, 1, 2, 3]) - np.int32([0, CAPACITY, 0, CAPACITY])
    tickets = np.float32([0.4, 0.1, 0.3, 0.2])
    batch = slots.run.sample(slots.state, jax.random.key(0))
    batch = batch._replace(indices=np.arange(4, dtype=np.int32), version=versions, aux=tickets)
    td = np.ones(4, np.float32)
    collected = slots.run.update(slots.state, batch, td_error=td, target=td).sampler.collected
    kept = np.sort(np.asarray(collected.tickets))
    np.testing.assert_array_equal(kept[:2], np.float32([0.3, 0.4]))
    assert (kept[2:] >= 1).all()
    valid = np.asarray(collected.tickets) < 1
    assert set(np.asarray(collected.slots)[valid].tolist()) == {0, 2}
    assert set(np.asarray(collected.versions)[valid].tolist()) == {1, 3}


def test_large_features_keep_the_network_finite():
    slots = Scored().add(CAPACITY, obs=np.float32(1e6), reward=-1e6)
    slots.observe(1.0)
    slots.replay()
    for episode_return in (5.0, 1.0):
        slots.observe(episode_return)
        slots.replay()
    params = slots.state.sampler.params
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    assert slots.leaves().min() > 0


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"features": ("reward", "td_error", "time")}, 3),
        ({"features": ("obs",), "squash": True}, 3),
        ({"time_feature": "episode"}, 3 + 3 + 2 + 4),
    ],
)
def test_features_and_time_feature_are_options(options, size):
    slots = Slots(sampler(NERSConfig(**SMALL, **options)), CAPACITY, BATCH, example=EXAMPLE)
    kernel = slots.state.sampler.params["params"]["local_0"]["kernel"]
    assert kernel.shape == (size, SMALL["hidden"][0])
    slots.add(CAPACITY, obs=np.float32([1.0, -2.0, 3.0]), reward=0.5)
    slots.update(range(BATCH), batch=slots.sample(), td_error=[0.0] * 4, target=[1.0] * 4)
    assert np.isfinite(slots.leaves()).all() and (slots.leaves()[:BATCH] < 1).all()
    if "time_feature" in options:
        np.testing.assert_array_equal(slots.state.sampler.positions.steps, np.arange(CAPACITY))


def test_weigh_actor_applies_weights_to_the_actor_loss():
    """Alg. 1 weighs the losses of actor and critic; the default weighs only that of the critic."""
    loss = jnp.float32([1.0, 2.0, 4.0])
    sample = Sample(jnp.arange(3), None, jnp.float32([1.0, 0.5, 0.25]), jnp.arange(3))
    weighted, plain = 1.0, 7 / 3  # means of the weighted losses 1, 1, 1 and of the plain losses
    for weigh_actor, expected in ((False, plain), (True, weighted)):
        objective = method(NERSConfig(weigh_actor=weigh_actor)).objective
        np.testing.assert_allclose(objective.critic(loss, sample, None), weighted)
        np.testing.assert_allclose(objective.actor(loss, sample, None), expected, rtol=1e-6)
