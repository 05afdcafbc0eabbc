"""Ensemble of quantile heads: uncertainties, masks, and losses and feedback in NumPy."""

import jax
import numpy as np
import pytest

from agents.ensemble_qr import EnsembleQRConfig, ensemble_qr, masks
from agents.types import Discrete
from experiments import environments
from experiments.training.config import LoopConfig
from experiments.training.loop import make_train
from jaxreplay import Replay, objectives
from jaxreplay.contrib import relo, uper
from tests.agents import tools

M, QUANTILES, ACTIONS, ROWS = 3, 4, 2, 6
SMALL = {"members": M, "quantiles": QUANTILES, "hidden": (3,), "max_grad_norm": 0.0}
FRACTIONS = (np.arange(QUANTILES) + 0.5) / QUANTILES


def made(objective=None, **options):
    """Return a compiled agent, a state with another target network, and a batch."""
    whole = ensemble_qr(EnsembleQRConfig(**SMALL | options), Discrete(ACTIONS), objective)
    names = ("init", "act", "greedy", "update", "feedback", "gradient")
    agent, sample = tools.compiled(whole, names), tools.batch(ROWS, 3, ACTIONS)
    weights = np.linspace(0.25, 1.5, ROWS, dtype=np.float32)
    sample = sample._replace(weights=weights, version=np.int32([1, 1, 1, 2, 2, 2]))
    state, other = (tools.start(agent, sample, jax.random.key(seed)) for seed in range(2))
    return agent, state._replace(target_params=other.params), sample


def outputs(params, obs):
    """Return the quantiles `[B, n, M, m]` of all actions."""
    return tools.perceptron(params["params"], obs).reshape(-1, ACTIONS, M, QUANTILES)


def learns(state, sample):
    """Return which heads learn from which rows, `[B, M]`, one by one."""
    key = jax.random.key(state.seed)
    rows = []
    for version, slot in zip(sample.version, sample.indices):
        own = jax.random.fold_in(jax.random.fold_in(key, version), slot)
        rows.append(np.asarray(jax.random.bernoulli(own, 0.5, (M,))))
    return np.array(rows)


def targets_of(state, t):
    heads = outputs(tools.in_double(state.target_params), t.next_obs)
    best = heads.mean(axis=(2, 3)).argmax(axis=1)
    chosen = heads[np.arange(ROWS), best]
    return t.reward[:, None, None] + t.discount[:, None, None] * chosen


def pinball(target, quantiles):
    """Return the loss of a head with absolute errors, pair by pair."""
    pairs = [
        abs(f - (y < q)) * abs(y - q) / len(target)
        for q, f in zip(quantiles, FRACTIONS) for y in target
    ]  # fmt: skip
    return sum(pairs)


def huber(target, quantiles):
    return tools.quantile_loss(target, quantiles, FRACTIONS)


@pytest.mark.parametrize(
    ("objective", "head_loss"),
    [
        (None, huber),
        pytest.param(objectives.weighted(objectives.l1), pinball, marks=pytest.mark.slow),
    ],
)
def test_loss_and_gradient_agree_with_numpy(objective, head_loss):
    """The loss is a mean over pairs of a row and a head that learns from it."""
    agent, state, sample = made(objective)
    after, info = agent.update(state, sample, tools.KEY)
    mask, target = learns(state, sample), targets_of(state, sample.transition)
    assert 0 < mask.sum() < mask.size

    def loss(params):
        taken = outputs(params, sample.transition.obs)[np.arange(ROWS), sample.transition.action]
        total = 0.0
        for row, head in zip(*mask.nonzero()):
            total += sample.weights[row] * head_loss(target[row, head], taken[row, head])
        return total / mask.sum()

    np.testing.assert_allclose(info.metrics["loss"], loss(state.params), rtol=1e-4)
    tools.assert_gradient(after.opt_state, loss, state.params)


@pytest.mark.parametrize("actions", ["taken", "mean"])
def test_feedback_agrees_with_numpy(actions):
    agent, state, sample = made(actions=actions)
    _, info = agent.update(state, sample, tools.KEY)
    t, y = sample.transition, targets_of(state, sample.transition).mean(axis=(1, 2))
    heads = outputs(tools.in_double(state.params), t.obs)
    taken = heads[np.arange(ROWS), t.action]
    epistemic, aleatoric = heads.var(axis=2).mean(axis=2), heads.mean(axis=2).var(axis=2)
    q = taken.mean(axis=(1, 2))
    if actions == "taken":
        epistemic, aleatoric = (x[np.arange(ROWS), t.action] for x in (epistemic, aleatoric))
        whole = np.square(y[:, None, None] - taken).mean(axis=(1, 2))
        np.testing.assert_allclose(np.square(y - q) + epistemic + aleatoric, whole)
    else:
        epistemic, aleatoric = epistemic.mean(axis=1), aleatoric.mean(axis=1)
    expected = {
        "td_error": y - q, "q_value": q, "target": y, "epistemic": epistemic,
        "aleatoric": aleatoric, "target_error": np.square(y - q),
    }  # fmt: skip
    tools.assert_close(dict(info.feedback), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(info.metrics["epistemic"], epistemic.mean(), rtol=1e-4)
    best = heads.mean(axis=(2, 3)).argmax(axis=1)
    np.testing.assert_array_equal(agent.greedy(state, t.obs), best)


def test_gradient_is_that_of_an_update_if_every_head_learns():
    agent, state, sample = made(mask_probability=1.0)
    after, _ = agent.update(state, sample, tools.KEY)
    found = agent.gradient(state, sample.transition, sample.weights, tools.KEY)
    tools.assert_close(found, tools.gradient_of(after.opt_state), rtol=1e-3, atol=1e-6)


def test_nothing_is_learned_if_no_head_learns():
    agent, state, sample = made(mask_probability=1e-9)
    after, info = agent.update(state, sample, tools.KEY)
    tools.assert_same(after.params, state.params)
    assert info.metrics["loss"] == 0 and np.isfinite(info.feedback["td_error"]).all()


def test_reducible_loss_is_that_of_the_networks_beyond_the_target_networks():
    agent, state, sample = made(relo.method().objective)
    t, target = sample.transition, targets_of(state, sample.transition)
    losses = []
    for params in (state.params, state.target_params):
        taken = outputs(tools.in_double(params), t.obs)[np.arange(ROWS), t.action]
        pairs = zip(target.reshape(-1, QUANTILES), taken.reshape(-1, QUANTILES))
        losses.append(np.reshape([huber(*pair) for pair in pairs], (ROWS, M)).mean(axis=1))
    found = agent.feedback(state, t, tools.KEY)["reducible_loss"]
    np.testing.assert_allclose(found, losses[0] - losses[1], rtol=1e-4, atol=1e-6)


def test_masks_are_functions_of_the_transition():
    rng = np.random.default_rng(0)
    sample = tools.batch(400, 3, ACTIONS)
    sample = sample._replace(version=np.int32(rng.integers(1, 5, 400)))
    draw = jax.jit(masks, static_argnums=(2, 3))
    found = np.asarray(draw(np.uint32(7), sample, 8, 0.5))
    assert found.shape == (8, 400)
    assert abs(found.mean() - 0.5) < 4 * 0.5 / np.sqrt(3200)
    assert np.ptp(np.corrcoef(found) - np.eye(8)) < 0.5  # heads are independent
    order = rng.permutation(400)
    moved = sample._replace(indices=sample.indices[order], version=sample.version[order])
    np.testing.assert_array_equal(draw(np.uint32(7), moved, 8, 0.5), found[:, order])
    for other in (
        draw(np.uint32(8), sample, 8, 0.5),
        draw(np.uint32(7), sample._replace(version=sample.version + 4), 8, 0.5),
        draw(np.uint32(7), sample._replace(indices=sample.indices + 400), 8, 0.5),
    ):
        assert 0.4 < (np.asarray(other) == found).mean() < 0.6


@pytest.mark.slow
def test_the_walk_is_solved_with_uncertainty_as_priority():
    task, method = environments.make("walk/10"), uper.method(uper.UPERConfig().for_run(2_000))
    config = EnsembleQRConfig(hidden=(32,), epsilon_end=1.0, learning_rate=1e-3)
    agent = ensemble_qr(config, task.action_space, method.objective)
    replay = Replay(method.sampler, capacity=8_000, batch_size=32)
    loop = LoopConfig(steps=8_000, learn_every=4, n_step=1, eval_every=1_000, inspect=0)
    metrics = jax.jit(make_train(task, agent, replay, loop))(jax.random.key(0))[1]
    assert metrics["eval_return"].max() == 1
