"""Draws of every stored transition."""

import jax
import numpy as np

from experiments.training import counting
from jaxreplay import Replay, Transition
from jaxreplay.methods import uniform


def test_counts_are_those_of_every_transition():
    """Of two environments, over wraparounds, with draws of a transition in the same batch."""
    replay = Replay(uniform.sampler(), capacity=6, batch_size=4, num_envs=2)
    state = replay.init(jax.random.key(0), Transition(reward=np.float32(0)))
    add, draw = jax.jit(replay.add), jax.jit(replay.sample)
    count, counts = jax.jit(counting.count), counting.start(6)
    draws, waits = np.zeros((11, 2), int), np.full((11, 2), -1)
    for time in range(11):
        state = add(state, Transition(reward=np.array([time, time + 0.5], np.float32)))
        if time % 3 == 1:
            continue
        batch = draw(state, jax.random.key(time))
        counts = count(counts, batch, state.ring)
        for value in np.asarray(batch.transition.reward):
            place = int(value), int(value % 1 > 0)
            waits[place] = time - place[0] if not draws[place] else waits[place]
            draws[place] += 1
    found = counting.counted(counts, state.ring)
    order = [8, 9, 10]  # steps in slots 4, 5, then 0 to 3
    slots = [[step % 3 * 2, step % 3 * 2 + 1] for step in order]
    np.testing.assert_array_equal(np.asarray(found.draws)[slots], draws[order])
    np.testing.assert_array_equal(np.asarray(found.first_draw)[slots], waits[order])
    assert (draws[order] > 1).any() and draws[:8].any()
