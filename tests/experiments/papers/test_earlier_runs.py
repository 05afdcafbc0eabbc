"""Replay of an earlier run's transitions."""

import jax
import jax.numpy as jnp

from experiments.papers import earlier_runs
from jaxreplay import Replay, Transition
from jaxreplay.methods import uniform


def filled(replay: Replay, reward: float):
    state = replay.init(jax.random.key(0), Transition(reward=jnp.zeros(())))
    for _ in range(4):
        state = replay.add(state, Transition(reward=jnp.array([reward])))
    return state


def test_half_of_every_batch_comes_from_the_earlier_run():
    own = Replay(uniform.sampler(), capacity=8, batch_size=6)
    both = earlier_runs.unfilled(own, 8, 0.5)
    earlier = filled(own, 1.0)
    state = both.init(jax.random.key(0), Transition(reward=jnp.zeros(())))
    assert state.second.ring.steps_added == 0
    state = state._replace(first=filled(own, -1.0), second=earlier)
    state = both.add(state, Transition(reward=jnp.array([-1.0])))
    assert state.first.ring.steps_added == 5 and state.second.ring.steps_added == 4
    rewards = both.sample(state, jax.random.key(1)).transition.reward
    assert sorted(rewards.tolist()) == [-1.0] * 3 + [1.0] * 3
