"""PQN: lambda-returns in NumPy, gradient steps and their learning rate, a run."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from agents.pqn import PQNConfig, pqn
from agents.types import Discrete
from experiments import environments
from experiments.runs.registry import AGENTS
from experiments.training.loop import make_train
from jaxreplay import Replay
from jaxreplay.methods import latest
from jaxreplay.methods.windows import Aux
from tests.agents import tools
from tests.refusals import refused

T, E = 3, 3
# Three steps between two states; the episode of the second environment terminates and that of the
# third is truncated at the second step, with another final observation than the next episode's.
STATE, NEXT = [[0, 0, 0], [1, 1, 1], [0, 0, 0]], [[1, 1, 1], [0, 0, 1], [1, 1, 1]]
DISCOUNT = np.float32([[0.5, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0.5]]).ravel()
LAST = np.array([[0, 0, 0], [0, 1, 1], [0, 0, 0]], bool).ravel()
ROLLOUT = tools.sample_of(
    tools.STATES[np.ravel(STATE)], np.int32([0, 1, 0] * T), np.repeat([1, 2, 3], E), DISCOUNT,
    tools.STATES[np.ravel(NEXT)], last=LAST, aux=Aux(np.arange(T * E).reshape(T, E)),
)  # fmt: skip


@functools.cache
def make(**options):
    """Return an agent for two states and two actions, and its initial state."""
    config = {"hidden": (2,), "epochs": 1, "minibatches": 1, "layer_norm": False} | options
    agent = tools.compiled(pqn(PQNConfig(**config), Discrete(2)))
    return agent, tools.start(agent, ROLLOUT)


def lambda_returns(t, next_value, decay):
    """Return weighted sums of n-step returns `[T * E]`, which end where an episode does."""
    result = np.zeros(T * E)
    for row in range(T):
        for lane in range(E):
            start, weight, total, factor = row * E + lane, 1.0, 0.0, 1.0
            for place in range(start, T * E, E):
                total += factor * t.reward[place]
                factor *= t.discount[place]
                end = t.last[place] or place + E >= T * E
                share = weight if end else weight * (1 - decay)
                result[start] += share * (total + factor * next_value[place])
                weight -= share
                if end:
                    break
    return result


@pytest.mark.parametrize("decay", [0.0, 0.65, 1.0])
def test_a_step_follows_the_squared_distance_to_lambda_returns(decay):
    agent, state = make(trace_decay=decay, max_grad_norm=0.0)
    after, info = agent.update(state, ROLLOUT, tools.KEY)
    params, t = tools.in_double((state.params, ROLLOUT.transition))
    target = lambda_returns(t, tools.perceptron(params, t.next_obs).max(axis=1), decay)
    q = tools.perceptron(params, t.obs)[np.arange(T * E), ROLLOUT.transition.action]
    for name, expected in (("target", target), ("q_value", q), ("td_error", target - q)):
        np.testing.assert_allclose(info.feedback[name], expected, rtol=1e-5, atol=1e-6)

    def loss(params):
        q = tools.perceptron(params, t.obs)[np.arange(T * E), ROLLOUT.transition.action]
        return 0.5 * np.square(target - q).mean()

    np.testing.assert_allclose(info.metrics["loss"], loss(params), rtol=1e-5)
    tools.assert_gradient(after.opt_state, loss, state.params)


def test_epochs_and_minibatches_take_further_steps():
    """Two epochs of three minibatches, in an order that the key decides."""
    agent, state = make(epochs=2, minibatches=3)
    after, _ = agent.update(state, ROLLOUT, tools.KEY)
    assert int(after.updates) == 1
    counts = {int(count) for _, count in optax.tree.get_all_with_path(after.opt_state, "count")}
    assert counts == {6}
    assert tools.differs(after.params, agent.update(state, ROLLOUT, jax.random.key(1))[0].params)


def test_learning_rate_and_epsilon_fall_linearly():
    """After two updates the rate is 0; RAdam's first steps are those of momentum alone."""
    options = {"learning_rate_updates": 2, "epsilon_updates": 2, "epsilon_end": 0.1}
    agent, state = make(**options, max_grad_norm=0.0)
    states, epsilons = [state], []
    for _ in range(3):
        state, info = agent.update(states[-1], ROLLOUT, tools.KEY)
        states.append(state)
        epsilons.append(float(info.metrics["epsilon"]))
    assert epsilons == pytest.approx([0.55, 0.1, 0.1])
    for number, rate in enumerate((5e-4, 2.5e-4, 0.0)):
        mean = optax.tree.get(states[number + 1].opt_state, "mu")
        moved = jax.tree.map(np.subtract, states[number].params, states[number + 1].params)
        expected = jax.tree.map(lambda x, n=number: rate * x / (1 - 0.9 ** (n + 1)), mean)
        tools.assert_close(moved, expected, rtol=1e-2, atol=1e-7)
    open_ended = PQNConfig()
    assert open_ended.for_run(7).learning_rate_updates == 7
    constant, start = make(max_grad_norm=0.0)
    late = constant.update(start, ROLLOUT, tools.KEY)[0]
    assert tools.differs(late.params, constant.update(late, ROLLOUT, tools.KEY)[0].params)


def test_batches_that_are_no_rollouts_or_not_divisible_are_refused():
    agent = pqn(PQNConfig(minibatches=4), Discrete(2))
    state = jax.eval_shape(agent.init, tools.KEY, tools.STATES[0], np.int32(0))
    for sample, parts in (
        (ROLLOUT, ("minibatches 4", "9")), (ROLLOUT._replace(aux=None), ("PQN", "slots", "latest")),
    ):  # fmt: skip
        with refused(*parts):
            jax.eval_shape(agent.update, state, sample, tools.KEY)


@pytest.mark.slow
def test_cartpole_is_learned():
    entry, environment = AGENTS["pqn"], environments.make("gymnax/CartPole-v1")
    loop = dataclasses.replace(entry.loop, steps=400_000, inspect=0)
    config = entry.config(epsilon_updates=10).for_run(loop.steps // 4_096)
    replay = Replay(latest.sampler(), capacity=4_096, batch_size=4_096, num_envs=128)
    agent = pqn(config, environment.action_space)
    _, metrics = jax.jit(make_train(environment, agent, replay, loop))(jax.random.key(0))
    assert metrics["eval_return"][-1] > 300
