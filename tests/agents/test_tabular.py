"""Q-learning worked by hand, with a table and with a feature shared by all states."""

import jax
import numpy as np
import pytest

from agents.tabular import TabularConfig, TabularState, q_table, tabular
from agents.types import Discrete
from tests.agents import tools


def stepped(weights, state, action, reward, discount, next_state, **options):
    """Return the Q-values after an update on one transition, and its feedback."""
    config = TabularConfig(num_states=2, **options)
    sample = tools.sample_of([state], np.int32([action]), [reward], [discount], [next_state])
    agent = tools.compiled(tabular(config, Discrete(2)))
    after, info = agent.update(TabularState(np.float32(weights)), sample, tools.KEY)
    return q_table(config, after), info.feedback


def test_update_of_a_table_changes_one_entry():
    q, feedback = stepped([[1.0, 2.0], [0.5, 3.0]], 0, 1, 0.5, 0.9, 1)
    assert float(feedback["td_error"][0]) == pytest.approx(0.5 + 0.9 * 3 - 2)
    assert float(feedback["target"][0]) == pytest.approx(3.2)
    np.testing.assert_allclose(q, [[1.0, 2 + 0.25 * 1.2], [0.5, 3.0]], rtol=1e-6)


def test_update_of_linear_values_changes_the_shared_feature():
    weights = [[1.0, 2.0], [0.5, 3.0], [0.1, -0.2]]
    q, _ = stepped(weights, 1, 0, 1.0, 0.0, 0, linear=True, learning_rate=0.5)
    td = 1.0 - (0.5 + 0.1)
    expected = np.array([[1.1, 1.8], [0.6, 2.8]])
    expected[:, 0] += [0.5 * td, 2 * 0.5 * td]  # the shared weight changes action 0 of both states
    np.testing.assert_allclose(q, expected, rtol=1e-6)


def test_exploration_has_probability_epsilon():
    agent = tools.compiled(tabular(TabularConfig(num_states=2, epsilon=0.5), Discrete(4)))
    state = TabularState(np.float32([[0, 1, 0, 0], [0, 0, 0, 1]]))
    obs = np.tile([0, 1], 2000)
    greedy = np.asarray(agent.greedy(state, obs))
    assert greedy[:2].tolist() == [1, 3]
    same = np.equal(agent.act(state, obs, jax.random.key(0))[0], greedy)
    np.testing.assert_allclose(same.reshape(-1, 2).mean(axis=0), 0.5 + 0.5 / 4, atol=0.05)
