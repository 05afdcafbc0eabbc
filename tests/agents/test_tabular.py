"""Q-learning worked by hand, with a table and with a feature shared by all states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.tabular import TabularConfig, TabularState, q_table, tabular
from agents.types import Discrete
from jaxreplay.types import Sample, Transition
from tests.refusals import refused


def batch(state, action, reward, discount, next_state):
    flag = jnp.zeros(1, bool)
    transition = Transition(
        jnp.array([state]), jnp.array([action]), jnp.array([reward]), jnp.array([discount]),
        jnp.array([next_state]), flag, flag,
    )  # fmt: skip
    return Sample(jnp.zeros(1, jnp.int32), transition, jnp.ones(1), jnp.ones(1, jnp.int32))


def stepped(linear, weights, *transition, **options):
    config = TabularConfig(num_states=2, linear=linear, **options)
    agent = tabular(config, Discrete(2))
    state = TabularState(jnp.asarray(weights))
    state, info = agent.update(state, batch(*transition), jax.random.key(0))
    return q_table(config, state), info.feedback


def test_update_of_a_table_changes_one_entry():
    q, feedback = stepped(False, [[1.0, 2.0], [0.5, 3.0]], 0, 1, 0.5, 0.9, 1)
    assert float(feedback["td_error"][0]) == pytest.approx(0.5 + 0.9 * 3 - 2)
    assert float(feedback["target"][0]) == pytest.approx(3.2)
    np.testing.assert_allclose(q, [[1.0, 2 + 0.25 * 1.2], [0.5, 3.0]], rtol=1e-6)


def test_update_of_linear_values_changes_the_shared_feature():
    weights = [[1.0, 2.0], [0.5, 3.0], [0.1, -0.2]]
    q, _ = stepped(True, weights, 1, 0, 1.0, 0.0, 0, learning_rate=0.5)
    td = 1.0 - (0.5 + 0.1)
    expected = np.array([[1.1, 1.8], [0.6, 2.8]])
    expected[:, 0] += [0.5 * td, 2 * 0.5 * td]  # the shared weight changes action 0 of both states
    np.testing.assert_allclose(q, expected, rtol=1e-6)


def test_exploration_has_probability_epsilon():
    agent = tabular(TabularConfig(num_states=2, epsilon=0.5), Discrete(4))
    state = TabularState(jnp.asarray([[0.0, 1, 0, 0], [0, 0, 0, 1]]))
    obs = jnp.array([0, 1])
    assert agent.greedy(state, obs).tolist() == [1, 3]
    keys = jax.random.split(jax.random.key(0), 2000)
    actions = jax.vmap(lambda key: agent.act(state, obs, key)[0])(keys)
    greedy = (actions == jnp.array([1, 3])).mean(axis=0)
    np.testing.assert_allclose(greedy, 0.5 + 0.5 / 4, atol=0.05)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"num_states": 0}, ("num_states", "0")),
        ({"learning_rate": 0.0}, ("learning_rate", "0.0")),
        ({"initial_std": -1.0}, ("initial_std", "-1.0")),
        ({"epsilon": 2.0}, ("epsilon", "2.0")),
    ],
)
def test_bad_options_are_refused(options, parts):
    with refused(*parts):
        TabularConfig(**options)
