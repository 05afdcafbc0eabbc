"""SAC: updates in NumPy for its options and under ReF-ER, and exploration."""

import functools

import jax
import numpy as np
import pytest

from agents import ensembles
from agents.sac import Extras, SACConfig, sac
from agents.types import Continuous
from jaxreplay.methods.refer import ReFERConfig, objective
from tests.agents import tools

ROWS, ALPHA, KEY = 8, 0.2, jax.random.key(3)
# Options of the updates that are computed in NumPy.
KINDS = {
    "default": {},
    "redq": {
        "critics": 4, "target_subset": 2, "actor_reduce": "mean", "priority_from": "mean",
        "alpha_loss": "log_alpha",
    },
    "norm": {"critics": 3, "layer_norm": True},
    "renorm": {"batch_renorm": True, "renorm_warmup": 0, "target_network": False},
}  # fmt: skip


@functools.cache
def make(kind="default", refer=False, **options):
    """Return an agent with compiled functions, and a state with distinct target networks."""
    options = {"hidden": (4,), "initial_alpha": ALPHA, "tau": 0.1, "adam_b1": 0.5} | options
    config = SACConfig(**options | KINDS[kind])
    agent = tools.compiled(sac(config, Continuous(2), objective(ReFERConfig()) if refer else None))
    state, other = (
        tools.start(agent, tools.batch(ROWS), jax.random.key(seed)) for seed in range(2)
    )
    if config.target_network:
        state = state._replace(target_critics=other.critics)
    return agent, state


def members(ensemble):
    """Return the trees of an ensemble's critics."""
    if isinstance(ensemble, tuple):
        return list(tools.in_double(ensemble))
    size = len(jax.tree.leaves(ensemble)[0])
    return [jax.tree.map(lambda x, n=n: np.float64(x[n]), ensemble) for n in range(size)]


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


def evaluate(params, x, kind, frozen=None):
    """Return Q `[B]` of a critic with one hidden layer, and the corrections of its layers."""
    p, corrections = params["params"]["MLP_0"], []

    def layer(x, n):
        if kind == "renorm":
            x = renormalised(x, p[f"BatchRenorm_{n}"], corrections, frozen)
        return x @ p[f"Dense_{n}"]["kernel"] + p[f"Dense_{n}"]["bias"]

    h = layer(x, 0)
    if kind == "norm":
        h = normalised(h) * p["LayerNorm_0"]["scale"] + p["LayerNorm_0"]["shift"]
    return layer(tools.relu(h), 1)[:, 0], corrections


def policy(params, obs, kind="default"):
    """Return mean and log std before tanh; an initial renormalisation divides by sqrt(1.001)."""
    params, scale = params["params"]["MLP_0"], 1.001**-0.5 if kind == "renorm" else 1.0
    layer = lambda x, p: scale * x @ p["kernel"] + p["bias"]
    return np.split(layer(tools.relu(layer(obs, params["Dense_0"])), params["Dense_1"]), 2, axis=1)


def draw(params, obs, key, kind="default"):
    """Return actions of the policy for the key's draws, and their log densities."""
    mean, log_std = policy(params, obs, kind)
    z = np.asarray(jax.random.normal(key, mean.shape))
    action = np.tanh(mean + np.exp(log_std) * z)
    log = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - action**2 + 1e-6)
    return action, log.sum(axis=1)


def check_update(kind, sample, refer=False, beta=1.0):
    """Compare one update with NumPy, and return the gradients of the critics and the actor."""
    agent, state = make(kind, refer)
    after, info = agent.update(state, sample, KEY)
    before, t = tools.in_double(
        (state._replace(critics=None, target_critics=None), sample.transition)
    )
    target_key, actor_key = jax.random.split(KEY)
    trees = members(state.critics)
    near, _ = trust_of(before.actor, t)

    next_action, log_prob = draw(before.actor, t.next_obs, target_key, kind)
    now, later = tools.joined(t.obs, t.action), tools.joined(t.next_obs, next_action)
    frozen, both = [None] * len(trees), np.vstack([now, later])
    if kind == "renorm":  # values of both come from one pass
        values, frozen = zip(*(evaluate(tree, both, kind) for tree in trees))
        next_q = np.stack([value[ROWS:] for value in values])
    else:
        next_q = [evaluate(tree, later, kind)[0] for tree in members(state.target_critics)]
        next_q = np.stack(next_q)
    if kind == "redq":
        next_q = next_q[ensembles.draw_members(jax.random.fold_in(target_key, 2), 4, 2)]
    target = t.reward + t.discount * (next_q.min(axis=0) - ALPHA * log_prob)

    def values_of(tree, frozen):
        return evaluate(tree, both if kind == "renorm" else now, kind, frozen)[0][: len(now)]

    errors = np.stack([target - values_of(*each) for each in zip(trees, frozen)])
    td = np.abs(errors).mean(axis=0)
    if kind != "redq":
        td = errors[np.abs(errors).argmax(axis=0), np.arange(len(now))]
    losses = near * 0.5 * np.square(errors).sum(axis=0)
    np.testing.assert_allclose(info.feedback["target"], target, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(info.feedback["td_error"], td, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(info.metrics["loss"], losses.mean(), rtol=1e-4, atol=1e-7)

    def critic_loss(trees):
        return sum(
            (near * 0.5 * np.square(target - values_of(*each))).mean()
            for each in zip(trees, frozen)
        )

    trainable = [{"params": tree["params"]} for tree in trees]  # statistics have no gradients
    found = members(tools.gradient_of(after.critic_opt_state, b1=0.5))
    tools.assert_close(
        found, tools.numerical_gradient(critic_loss, trainable), rtol=2e-3, atol=2e-5
    )
    grads = {"critics": found}
    norm = np.sqrt(sum(np.square(x).sum() for x in jax.tree.leaves(found)))
    np.testing.assert_allclose(info.metrics["grad_norm"], norm, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(info.metrics["q_value"], (target - errors).mean(), rtol=1e-4)
    if kind == "renorm":
        check_statistics(state, after, now, later)
        return grads
    tools.assert_close(after.target_critics, tools.mixed(0.1, after.critics, state.target_critics))
    improved = members(after.critics)

    def actor_loss(params):
        action, log_prob = draw(params, t.obs, actor_key)
        q = np.stack([evaluate(tree, tools.joined(t.obs, action), kind)[0] for tree in improved])
        reduced = q.mean(axis=0) if kind == "redq" else q.min(axis=0)
        near, kl = trust_of(params, t)
        return (beta * near * (ALPHA * log_prob - reduced) + (1 - beta) * kl).mean()

    np.testing.assert_allclose(info.metrics["actor_loss"], actor_loss(before.actor), rtol=1e-4)
    grads["actor"] = tools.assert_gradient(after.actor_opt_state, actor_loss, before.actor, b1=0.5)
    entropy = -draw(before.actor, t.obs, actor_key)[1].mean()
    np.testing.assert_allclose(info.metrics["entropy"], entropy, rtol=1e-4)
    # The temperature rises if the entropy is below -2; Adam's first step is the learning rate.
    slope = (1 if kind == "redq" else ALPHA) * (entropy + 2)
    found = tools.gradient_of(after.alpha_opt_state)
    np.testing.assert_allclose(found, slope, rtol=1e-4)
    np.testing.assert_allclose(after.log_alpha, np.log(ALPHA) - 3e-4 * np.sign(slope), rtol=1e-5)
    return grads


def trust_of(params, t):
    mean, log_std = policy(params, t.obs)
    behaviour, u = t.extras or (None, None)
    return tools.trust(mean, np.exp(2 * log_std), behaviour, u)


def check_statistics(state, after, now, later):
    """Assert the running statistics: critics' of the joint batch, the actor's of observations."""
    both = np.vstack([now, later])
    for tree in after.critics:
        found = tree["batch_stats"]["MLP_0"]["BatchRenorm_0"]
        np.testing.assert_allclose(found["mean"], 0.01 * both.mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(found["variance"], 0.99 + 0.01 * both.var(axis=0), rtol=1e-5)
        assert found["batches"] == 1
    before, found = (x.actor["batch_stats"]["MLP_0"]["BatchRenorm_0"] for x in (state, after))
    np.testing.assert_allclose(found["mean"], 0.01 * now[:, :3].mean(axis=0), rtol=1e-4)
    assert not before["mean"].any() and after.target_critics is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "default"])
def test_update_agrees_with_numpy(kind):
    """Under ReF-ER, the update below of near steps with beta 1 is that of the default options."""
    check_update(kind, tools.batch(ROWS))


@tools.each_mixture
def test_update_under_refer_agrees_with_numpy(which, beta):
    agent, state = make(refer=True)
    sample = tools.batch(12)
    mean, log_std = policy(state.actor, sample.transition.obs)
    action, behaviour = tools.stored(which, mean, np.exp(2 * log_std))
    sample = tools.change(sample, action=np.tanh(action), extras=Extras(behaviour, action))
    grads = check_update("default", sample._replace(aux=tools.refer_aux(beta)), True, beta)
    largest = {
        name: max(np.abs(x).max() for x in jax.tree.leaves(tree)) for name, tree in grads.items()
    }
    # Far steps do not change the critics, nor the actor at beta 1.
    assert (largest["critics"] == 0) == (which == "far")
    assert (largest["actor"] == 0) == (which == "far" and beta == 1)


def test_targets_may_use_the_mean_and_omit_entropy():
    agent, state = make(backup_entropy=False, target_reduce="mean")
    before, t = tools.in_double((state, tools.batch(ROWS).transition))
    action, _ = draw(before.actor, t.next_obs, KEY)
    q = [tools.perceptron(p, tools.joined(t.next_obs, action))[:, 0] for p in before.target_critics]
    found = agent.feedback(state, tools.batch(ROWS).transition, KEY)["target"]
    np.testing.assert_allclose(found, t.reward + t.discount * np.mean(q, axis=0), rtol=1e-4)


def test_act_samples_and_greedy_returns_the_mode():
    agent, state = make()
    obs = np.zeros((5000, 3), np.float32)
    action, extras = agent.act(state, obs, KEY)
    mean, log_std = policy(state.actor, obs[:1])
    u = np.arctanh(np.asarray(action, np.float64))
    assert extras is None
    np.testing.assert_allclose(u.mean(0), mean[0], atol=0.07)
    np.testing.assert_allclose(u.std(0), np.exp(log_std[0]), rtol=0.07)
    np.testing.assert_allclose(agent.greedy(state, obs)[:1], np.tanh(mean), rtol=1e-5)
    # Under ReF-ER, the distribution before tanh is stored with the action.
    agent, state = make(refer=True)
    action, extras = agent.act(state, obs, KEY)
    np.testing.assert_allclose(extras.behaviour.mean[0], mean[0], rtol=1e-5)
    np.testing.assert_allclose(extras.behaviour.variance[0], np.exp(2 * log_std[0]), rtol=1e-5)
    np.testing.assert_allclose(np.tanh(extras.pre_tanh), action, rtol=1e-5)
