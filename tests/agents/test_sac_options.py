"""SAC's options against NumPy and by properties: ensembles, layers, CrossQ, delays, resets."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from agents import common, distributions, ensembles
from agents.critics import Critics, fit, largest_magnitude, mean_magnitude, value_feedback
from agents.layers import BatchRenorm, Dropout, LayerNorm, LayerOptions
from agents.networks import Critic, ResidualMLP, apply, learning
from agents.sac import SACConfig, sac, soft_target, temperature_loss
from agents.types import Continuous
from experiments import environments
from experiments.runs.presets import PRESETS
from experiments.training.config import LoopConfig
from experiments.training.loop import make_program
from experiments.training.seeds import over_seeds
from jaxreplay import Replay, objectives
from jaxreplay.contrib import laber, relo
from jaxreplay.methods import refer, uniform
from tests.refusals import refused

ROWS, ALPHA = 8, 0.2
SMALL = {"hidden": (4,), "initial_alpha": ALPHA}


def make(sample, objective=None, **options):
    """Return an agent, its initial state and its compiled update."""
    agent = sac(SACConfig(**{**SMALL, **options}), Continuous(2), objective)
    state = jax.jit(agent.init)(
        jax.random.key(0), sample.transition.obs[0], sample.transition.action[0]
    )
    return agent, state, jax.jit(agent.update)


def assert_close(left, right, rtol=1e-4, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), left, right)


def differs(left, right):
    leaves = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in leaves)


# Ensembles


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
    critic, keys = Critic((4,)), jax.random.split(jax.random.key(0), 2)
    obs, action = jax.random.normal(keys[0], (ROWS, 3)), jnp.ones((ROWS, 2))
    members = jnp.int32([size - 1, 0][: min(size, 2)])

    @jax.jit
    def values(key):
        ensemble = ensembles.init_ensemble(critic, key, obs, action, size)
        alone = [critic.init(each, obs, action) for each in jax.random.split(key, size)]
        expected = jnp.stack([apply(critic, params, obs, action) for params in alone])
        some = ensembles.take(ensemble, members)
        both = [ensembles.apply_ensemble(critic, each, obs, action) for each in (ensemble, some)]
        return both, [expected, expected[members]]

    assert_close(*values(keys[1]))


def test_stacked_critics_have_the_gradients_of_separate_critics(sample):
    """Also when each critic chooses its own rows and has its own key."""
    trees = [{"w": jnp.float32([n, 1 - n, 0.5])} for n in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *trees)
    target, key = jnp.arange(8.0), jax.random.key(1)
    sample = jax.tree.map(jnp.asarray, sample)

    def value(params, t, key):
        return t.obs @ params["w"] + jax.random.normal(key, t.reward.shape)

    plain = common.complete(None, objectives.mse)
    for objective in (plain, laber.method(laber.LaBERConfig()).objective):
        objective = common.complete(objective, objectives.mse)

        @jax.jit
        def gradients(params, objective=objective):
            critics = Critics(value, params, params, jax.random.key(2))

            def loss(params, sample, target, key):
                q = critics._replace(key=key).values(params, sample.transition)
                return objective.critic(objective.losses(target - q), sample, None), q

            return fit(loss, critics, sample, target, objective, key)

        one, three = gradients(stacked), gradients(tuple(trees))
        grads = jax.tree.map(lambda *x: jnp.stack(x), *three[0])
        assert_close((one[0], *one[1:]), (grads, *three[1:]))


def test_td_error_may_be_the_largest_or_the_mean_of_the_critics():
    errors = jnp.float32([-3.0, 1.0, 2.5])[:, None]
    for combine, expected in (
        (largest_magnitude, -3.0),
        (mean_magnitude, 2.1666666667),
    ):
        feedback = value_feedback(-errors, jnp.zeros(1), combine)
        np.testing.assert_allclose(feedback["td_error"], [expected], rtol=1e-6)


def test_soft_targets_and_temperature_gradients_worked_by_hand():
    numbers = [jnp.float32(x) for x in ([2.0, 7.0], -1.3, ALPHA, 0.5, 0.99)]
    np.testing.assert_allclose(soft_target(*numbers), 2.7374, rtol=1e-6)
    np.testing.assert_allclose(
        soft_target(*numbers, reduce="mean"), 0.5 + 0.99 * (4.5 + 0.26), rtol=1e-6
    )
    slope = jax.grad(temperature_loss)
    log_alpha, log_prob = jnp.log(jnp.float32(ALPHA)), jnp.float32([-1.3])
    np.testing.assert_allclose(slope(log_alpha, log_prob, -1.0), 0.46, rtol=1e-6)
    np.testing.assert_allclose(slope(log_alpha, log_prob, -1.0, "log_alpha"), 2.3, rtol=1e-6)


# Layers


class Wrapped(nn.Module):
    """Module around a layer or a function that creates modules."""

    layer: object

    @nn.compact
    def __call__(self, x):
        return self.layer(x, 64)  # pyright: ignore[reportCallIssue]


def test_layer_norm_follows_dropout_and_the_last_layer_is_plain():
    options = LayerOptions(dropout=0.25, layer_norm=True)
    hidden, x = Wrapped(options.layers()[0]), jax.random.normal(jax.random.key(0), (ROWS, 3))
    variables = hidden.init(jax.random.key(1), x)
    out, stored = hidden.apply(
        variables, x, rngs={"dropout": jax.random.key(2)}, capture_intermediates=True,
        mutable=["intermediates"],
    )  # fmt: skip
    inner = stored["intermediates"]
    dense, dropped = (
        np.asarray(inner[name]["__call__"][0], np.float64) for name in ("Dense_0", "Dropout_0")
    )
    kept = dropped != 0
    np.testing.assert_allclose(dropped, np.where(kept, dense / 0.75, 0), rtol=1e-5)
    np.testing.assert_allclose(kept.mean(), 0.75, atol=0.1)
    centred = dropped - dropped.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt(dropped.var(axis=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    assert (hidden.apply(variables, x) == hidden.apply(variables, x)).all()  # without a key
    last = Wrapped(options.layers()[1]).init(jax.random.key(1), x)["params"]
    assert set(last) == {"Dense_0"}


def test_layer_norm_worked_by_hand():
    x = jnp.float32([[1.0, -2.0, 0.5, 3.0], [4 / 3, 0.0, 2 / 3, 4.0]])  # plain, after dropout
    params = {"scale": jnp.ones(4), "shift": jnp.zeros(4)}
    out = nn.relu(LayerNorm().apply({"params": params}, x))
    expected = [[0.2105586887, 0, 0, 1.3335383618], [0, 0, 0, 1.6464635428]]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("mean", "variance", "warm", "expected", "after", "evaluated"),
    [
        (0.0, 1.0, False, [-1.3415066425, -0.4471688808, 0.4471688808, 1.3415066425],
         (0.03, 1.04), [0.0, 1.9990007494, 3.9980014988, 5.9970022481]),
        (0.0, 1.0, True, [0.0, 1.9990007494, 3.9980014988, 5.9970022481],
         (0.03, 1.04), [0.0, 1.9990007494, 3.9980014988, 5.9970022481]),
        (2.5, 4.0, True, [-1.2498437793, -0.2499687559, 0.7499062676, 1.749781291],
         (2.505, 4.01), [-1.2498437793, -0.2499687559, 0.7499062676, 1.749781291]),
    ],
)  # fmt: skip
def test_batch_renorm_worked_by_hand(mean, variance, warm, expected, after, evaluated):
    module, x = BatchRenorm(warmup=10), jnp.float32([[0.0], [2.0], [4.0], [6.0]])
    variables = module.init(jax.random.key(0), x)
    assert jax.tree.leaves(variables["batch_stats"]) == [0, 0, 1]  # batches, mean, variance
    statistics = {
        "mean": jnp.float32([mean]), "variance": jnp.float32([variance]),
        "batches": jnp.float32(10 if warm else 9),
    }  # fmt: skip
    variables = {**variables, "batch_stats": statistics}
    out, new = learning(module, variables, x)
    np.testing.assert_allclose(out[:, 0], expected, rtol=1e-5, atol=1e-6)
    new = new["batch_stats"]
    np.testing.assert_allclose([new["mean"][0], new["variance"][0]], after, rtol=1e-6)
    assert new["batches"] == statistics["batches"] + 1
    np.testing.assert_allclose(apply(module, variables, x)[:, 0], evaluated, rtol=1e-5, atol=1e-6)


def test_batch_renorm_clips_its_corrections():
    variables = BatchRenorm(0).init(jax.random.key(0), jnp.zeros((1, 1)))
    x = jnp.float32([[90.0], [110.0]])  # mean 100, std 10
    out, _ = learning(BatchRenorm(0), variables, x)
    np.testing.assert_allclose(out[:, 0], [5 - 3, 5 + 3], rtol=1e-4)


def test_residual_network_agrees_with_numpy():
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    network = ResidualMLP((4, 4, 1))
    params = network.init(jax.random.key(0), jnp.float32(x))["params"]
    layer = [
        lambda x, p=params[f"Dense_{n}"]: x @ np.float64(p["kernel"]) + np.float64(p["bias"])
        for n in range(6)
    ]
    h = layer[0](x)
    for first in (1, 3):
        h = h + layer[first + 1](np.maximum(layer[first](normalised(h)), 0))
    np.testing.assert_allclose(
        network.apply({"params": params}, jnp.float32(x)), layer[5](normalised(h)), rtol=1e-4,
        atol=1e-5,
    )  # fmt: skip
    assert params["Dense_1"]["kernel"].shape == (4, 16)


# Updates by hand


def normalised(x):
    """Return the layer normalisation of x with scale 1 and shift 0."""
    return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-6)


def renormalised(x, p, corrections, frozen):
    """Return batch renormalisation from mean 0 and variance 1; corrections may be frozen."""
    own, running = np.sqrt(x.var(axis=0) + 1e-3), np.sqrt(1 + 1e-3)
    if frozen is None:
        r = np.clip(own / running, 1 / 3, 3)
        corrections.append((r, np.clip(x.mean(axis=0) / running, -5, 5)))
    else:
        corrections.append(frozen[len(corrections)])
    r, d = corrections[-1]
    return ((x - x.mean(axis=0)) / own * r + d) * p["scale"] + p["shift"]


def numpy_critic(params, x, kind, frozen=None):
    """Return Q `[B]` of a critic with one hidden layer, and the corrections of its layers."""
    p, corrections = params["params"]["MLP_0"], []

    def layer(x, n):
        if kind == "renorm":
            x = renormalised(x, p[f"BatchRenorm_{n}"], corrections, frozen)
        return x @ p[f"Dense_{n}"]["kernel"] + p[f"Dense_{n}"]["bias"]

    h = layer(x, 0)
    if kind == "norm":
        h = normalised(h) * p["LayerNorm_0"]["scale"] + p["LayerNorm_0"]["shift"]
    return layer(np.maximum(h, 0), 1)[:, 0], corrections


def numerical_gradient(loss, params):
    """Return the gradient of `loss(params)` by central differences."""
    leaves, tree = jax.tree.flatten(params)
    gradients = []
    for place, leaf in enumerate(leaves):
        gradients.append(np.zeros(np.shape(leaf)))
        for index in np.ndindex(np.shape(leaf)):
            ends = []
            for step in (1e-6, -1e-6):
                moved = np.array(leaf)
                moved[index] += step
                ends.append(
                    loss(jax.tree.unflatten(tree, [*leaves[:place], moved, *leaves[place + 1 :]]))
                )
            gradients[-1][index] = (ends[0] - ends[1]) / 2e-6
    return jax.tree.unflatten(tree, gradients)


HAND = {
    "plain": {"critics": 4, "target_subset": 2, "actor_reduce": "mean", "priority_from": "mean"},
    "norm": {"critics": 3, "layer_norm": True},
    "renorm": {"batch_renorm": True, "renorm_warmup": 0, "target_network": False},
}


@pytest.mark.parametrize("kind", HAND)
def test_critic_update_agrees_with_numpy(sample, kind):
    """With b1 0.5, Adam's first moment is half of the gradient."""
    agent, state, update = make(sample, **HAND[kind], adam_b1=0.5)
    key, t = jax.random.key(3), sample.transition
    after, info = update(state, sample, key)
    target_key = jax.random.split(key)[0]
    outputs = Networks(HAND[kind]).actor(state.actor, t.next_obs)
    next_action, log_prob = distributions.sample_and_log_prob(outputs, target_key)
    now, later = np.hstack([t.obs, t.action]), np.hstack([t.next_obs, next_action])
    now, later = now.astype(np.float64), later.astype(np.float64)
    size = HAND[kind].get("critics", 2)
    trees = [
        jax.tree.map(np.float64, state.critics[n])
        if size == 2
        else jax.tree.map(lambda x, n=n: np.float64(x[n]), state.critics)
        for n in range(size)
    ]
    frozen = [None] * size
    if kind == "renorm":
        both = np.vstack([now, later])
        values, frozen = zip(*(numpy_critic(tree, both, kind) for tree in trees))
        next_q = np.stack([value[ROWS:] for value in values])
    else:
        next_q = np.stack([numpy_critic(tree, later, kind)[0] for tree in trees])
    if kind == "plain":
        members = ensembles.draw_members(jax.random.fold_in(target_key, 2), 4, 2)
        next_q = next_q[np.asarray(members)]
    target = t.reward + t.discount * (next_q.min(axis=0) - ALPHA * np.float64(log_prob))
    np.testing.assert_allclose(info.feedback["target"], target, rtol=1e-4, atol=1e-5)

    def values_of(tree, frozen):
        inputs = np.vstack([now, later]) if kind == "renorm" else now
        return numpy_critic(tree, inputs, kind, frozen)[0][:ROWS]

    errors = np.stack([target - values_of(*each) for each in zip(trees, frozen)])
    td = np.abs(errors).mean(axis=0)
    if kind != "plain":
        td = errors[np.abs(errors).argmax(axis=0), np.arange(ROWS)]
    np.testing.assert_allclose(info.feedback["td_error"], td, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(
        info.metrics["loss"], 0.5 * np.square(errors).sum(axis=0).mean(), rtol=1e-4
    )
    moments = after.critic_opt_state.inner[0].mu
    for n in range(size):
        loss = lambda tree, n=n: 0.5 * np.square(target - values_of(tree, frozen[n])).mean()
        moment = moments[n] if size == 2 else jax.tree.map(lambda x, n=n: x[n], moments)
        expected = numerical_gradient(loss, trees[n])
        assert set(moment) == {"params"}  # statistics have no gradients
        assert_close(
            jax.tree.map(lambda x: np.asarray(x) / 0.5, moment),
            {"params": expected["params"]},
            rtol=2e-3,
            atol=2e-4,
        )
    if kind == "renorm":
        check_statistics(state, after, now, later)


class Networks:
    """Networks of an agent with these options."""

    def __init__(self, options):
        from agents.sac import _networks

        self.networks = _networks(SACConfig(**{**SMALL, **options}), 2)

    def actor(self, params, obs):
        return distributions.from_outputs(apply(self.networks[0], params, obs))

    def critics(self, params, obs, action):
        return ensembles.apply_ensemble(self.networks[1], params, obs, action)


def check_statistics(state, after, now, later):
    """Assert the running statistics: critics' of the joint batch, the actor's of observations."""
    both = np.vstack([now, later])
    for tree in after.critics:
        found = tree["batch_stats"]["MLP_0"]["BatchRenorm_0"]
        np.testing.assert_allclose(found["mean"], 0.01 * both.mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(found["variance"], 0.99 + 0.01 * both.var(axis=0), rtol=1e-5)
        assert found["batches"] == 1
    of_actor = after.actor["batch_stats"]["MLP_0"]["BatchRenorm_0"]
    np.testing.assert_allclose(of_actor["mean"], 0.01 * now[:, :3].mean(axis=0), rtol=1e-4)
    assert not differs(state.actor["batch_stats"]["MLP_0"]["BatchRenorm_0"]["mean"], np.zeros(3))
    assert after.target_critics is None


def test_actor_loss_uses_the_mean_of_all_critics(sample):
    options = HAND["plain"]
    _, state, update = make(sample, **options)
    key, networks, obs = jax.random.key(3), Networks(options), sample.transition.obs
    after, info = update(state, sample, key)
    dist = networks.actor(state.actor, obs)
    action, log_prob = distributions.sample_and_log_prob(dist, jax.random.split(key)[1])
    q = np.asarray(networks.critics(after.critics, obs, action))
    loss = (ALPHA * np.asarray(log_prob) - q.mean(axis=0)).mean()
    np.testing.assert_allclose(info.metrics["actor_loss"], loss, rtol=1e-4)


def test_targets_may_use_the_mean_and_omit_entropy(sample):
    key, options = jax.random.key(3), {"backup_entropy": False, "target_reduce": "mean"}
    _, state, update = make(sample, **options)
    t, networks = sample.transition, Networks(options)
    _, info = update(state, sample, key)
    dist = networks.actor(state.actor, t.next_obs)
    action, _ = distributions.sample_and_log_prob(dist, jax.random.split(key)[0])
    q = np.asarray(networks.critics(state.critics, t.next_obs, action)).mean(axis=0)
    np.testing.assert_allclose(
        info.feedback["target"], t.reward + t.discount * q, rtol=1e-4, atol=1e-5
    )


def test_dropout_zeroes_numbers_independently_and_keeps_the_mean():
    x = jnp.ones((4_000, 5))
    out = np.asarray(Dropout(0.25).apply({}, x, rngs={"dropout": jax.random.key(0)}))
    assert set(np.unique(out)) == {0.0, np.float32(4 / 3)}
    dropped = out == 0
    np.testing.assert_allclose(dropped.mean(axis=0), 0.25, atol=0.03)  # 4 standard errors
    np.testing.assert_allclose(np.corrcoef(dropped.T), np.eye(5), atol=0.07)
    np.testing.assert_array_equal(Dropout(0.25).apply({}, x), x)


def test_dropout_is_active_in_values_and_targets(sample):
    keys = jax.random.split(jax.random.key(3))
    wet, state, update = make(sample, dropout=0.5)
    found = [update(state, sample, key)[1].feedback for key in keys]
    assert differs(found[0]["q_value"], found[1]["q_value"])
    assert differs(found[0]["target"][1:], found[1]["target"][1:])
    feedback = jax.jit(wet.feedback)(state, sample.transition, keys[0])
    again = jax.jit(wet.feedback)(state, sample.transition, keys[1])
    assert differs(feedback["q_value"], again["q_value"])


# Delay and resets


@pytest.fixture(scope="module")
def delayed(sample):
    """Return states and metrics of six updates, with policy_delay 3 and reset_every 4."""
    agent, state, update = make(sample, policy_delay=3, reset_every=4)
    states, metrics = [state], []
    for number in range(6):
        state, info = update(state, sample, jax.random.key(number))
        states.append(state)
        metrics.append(info.metrics)
    return agent, states, metrics


def test_resets_happen_every_reset_every_updates_and_keep_the_clock(sample, delayed):
    agent, states, _ = delayed
    t = sample.transition
    for number, state in enumerate(states[1:], 1):
        assert state.clock.updates == number
        steps = state.critic_opt_state.inner[0].count
        assert steps == (0 if number == 4 else number % 4)
    key = jax.random.fold_in(jax.random.key(3), 4)  # key of the fourth update
    fresh = jax.jit(agent.init)(key, t.obs[0], t.action[0])
    assert_close(states[4]._replace(clock=None), fresh._replace(clock=None), rtol=1e-6, atol=1e-7)
    assert differs(fresh.actor, states[0].actor)


def test_actor_changes_every_policy_delay_updates(delayed):
    _, states, metrics = delayed
    for number in (1, 2, 3, 5, 6):  # the fourth update resets
        before, after = states[number - 1], states[number]
        due = number % 3 == 0
        assert differs(before.actor, after.actor) == due
        assert differs(before.log_alpha, after.log_alpha) == due
        assert differs(before.target_critics, after.target_critics)
    assert [float(m["actor_loss"]) for m in metrics[:2]] == [0.0, 0.0]
    assert metrics[2]["actor_loss"] == metrics[3]["actor_loss"] != 0
    assert metrics[5]["actor_loss"] != metrics[4]["actor_loss"]


def test_clocks_continue_past_32_bits(sample, delayed):
    agent, states, _ = delayed
    update = jax.jit(agent.update)
    late = states[1]._replace(clock=states[1].clock._replace(updates=jnp.int32(2**31 - 1)))
    # Delay and resets coincide every 12 updates, and 2^31 - 1 is 7 modulo 12.
    late, _ = update(late, sample, jax.random.key(0))
    assert int(late.clock.updates) > 2**30 and int(late.clock.updates) % 12 == 8
    assert late.critic_opt_state.inner[0].count == 0


# Defaults, presets and refusals


GOLDEN = {
    "actor_loss": -1.0749189853668213, "alpha": 0.9993998408317566, "entropy": 1.0924357175827026,
    "grad_norm": 1.6547116041183472, "loss": 2.9029641151428223, "q_value": 0.039241887629032135,
}  # fmt: skip


def test_default_options_reproduce_recorded_updates(sample):
    """Metrics of three updates, and fields of the state, recorded before the options existed."""
    _, state, update = make(sample, hidden=(16, 16), initial_alpha=1.0)
    for number in range(3):
        state, info = update(state, sample, jax.random.key(number))
    found = {name: float(value) for name, value in info.metrics.items()}
    assert found == pytest.approx(GOLDEN, rel=1e-4)
    paths = {jax.tree_util.keystr(p[:1]) for p, _ in jax.tree_util.tree_leaves_with_path(state)}
    assert paths == {
        ".actor", ".critics", ".target_critics", ".log_alpha", ".actor_opt_state",
        ".critic_opt_state", ".alpha_opt_state",
    }  # fmt: skip
    assert len(jax.tree.leaves(state)) == 78


def test_subset_of_all_targets_equals_no_subset(sample):
    _, state, update = make(sample, critics=3)
    _, _, subset = make(sample, critics=3, target_subset=3)
    assert_close(*(f(state, sample, jax.random.key(0)) for f in (update, subset)), rtol=1e-6)


SLOW = [pytest.param(x, marks=pytest.mark.slow) for x in ("crossq", "droq", "simba", "sr_sac")]


@pytest.mark.parametrize("name", ["redq", *SLOW])
def test_seeds_of_presets_can_be_vmapped(sample, name):
    small = {"hidden": (4, 4), "critic_hidden": (4, 4)}
    agent, _, update = make(sample, **{**PRESETS[name].agents["sac"], **small, "policy_delay": 2})
    t, keys = sample.transition, jax.random.split(jax.random.key(1), 2)
    states = jax.vmap(lambda key: agent.init(key, t.obs[0], t.action[0]))(keys)
    together = jax.jit(jax.vmap(agent.update, in_axes=(0, None, 0)))
    alone = [jax.tree.map(lambda x, n=n: x[n], states) for n in range(2)]
    for _ in range(3):
        states, infos = together(states, sample, keys)
        alone, own = zip(*(update(state, sample, key) for state, key in zip(alone, keys)))
    # Compare values: biases before batch normalisation have only gradients from rounding.
    for n in range(2):
        got = jax.tree.map(lambda x, n=n: x[n], infos)
        assert_close(got.feedback, own[n].feedback, rtol=1e-2, atol=1e-3)
        assert_close(got.metrics["actor_loss"], own[n].metrics["actor_loss"], rtol=1e-2, atol=1e-3)
    assert differs(got.feedback, own[0].feedback)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"target_subset": 3}, ("target_subset", "3", "critics=2")),
        ({"critics": 0}, ("critics", "0")),
        ({"dropout": 1.0}, ("dropout", "1.0")),
        ({"network": "residual", "dropout": 0.1}, ("residual", "dropout")),
        ({"network": "residual", "layer_norm": True}, ("residual", "layer_norm")),
        ({"network": "residual", "batch_renorm": True}, ("residual", "batch_renorm")),
        ({"network": "residual", "hidden": (4, 8)}, ("hidden", "(4, 8)", "equal")),
        (
            {"network": "residual", "hidden": (4,), "critic_hidden": (4, 8)},
            ("critic_hidden", "(4, 8)", "equal"),
        ),
        ({"policy_delay": 2**17 - 1, "reset_every": 2**16}, ("policy_delay", "reset_every")),
        ({"reset_every": 0}, ("reset_every", "0")),
    ],
)
def test_conflicting_options_are_refused(options, parts):
    with refused(*parts):
        SACConfig(**options)


def test_methods_without_effect_under_the_options_are_refused(sample):
    space = Continuous(2)
    lagging = relo.method(relo.ReLoConfig()).objective
    with refused("reducible_loss", "target_network"):
        sac(SACConfig(target_network=False), space, lagging)
    others = laber.method(laber.LaBERConfig()), refer.method(refer.ReFERConfig())
    for objective in (lagging, *(method.objective for method in others)):
        with refused("batch_renorm"):
            sac(SACConfig(batch_renorm=True), space, objective)
    one = jax.tree.map(lambda x: x[:1], sample)
    agent, state, _ = make(sample, batch_renorm=True)
    with refused("batch_renorm", "batch size", "2"):
        agent.update(state, one, jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "updates"),
    [
        ("redq", {"critics": 3, "policy_delay": 2}, 2),
        ("droq", {"policy_delay": 2}, 2),
        ("crossq_small", {"critic_hidden": (64, 64)}, 1),
        ("simba", {"hidden": (32,), "critic_hidden": (64,), "critic_learning_rate": 1e-3,
                   "actor_learning_rate": 1e-3}, 2),
        ("sr_sac", {"reset_every": 5_000, "actor_learning_rate": 1e-3,
                    "critic_learning_rate": 1e-3}, 2),
    ],
)  # fmt: skip
def test_presets_swing_the_pendulum_up(name, options, updates):
    task = environments.make("gymnax/Pendulum-v1")
    config = SACConfig(**{**PRESETS[name].agents["sac"], "hidden": (64, 64), **options})
    method, agent = uniform.method(), sac(config, task.action_space)
    replay = Replay(method.sampler, capacity=5_000, batch_size=128)
    loop = LoopConfig(steps=5_000, warmup=500, eval_every=5_000, updates=updates, inspect=0)
    program = make_program(task, agent, replay, loop)
    seeds = over_seeds(program)
    state = seeds.init(jax.vmap(jax.random.key)(jnp.arange(2)))
    for blocks in program.schedule.log_points:
        state, metrics = seeds.chunk(state, jnp.int32(blocks))
    assert np.mean(metrics["eval_return"]) > -250  # random actions reach -1200
