"""Reverse replay: sweeps by hand, and compared with a plain model of episodes and sweeps."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, Transition, sum_tree
from jaxreplay.contrib import reverse
from jaxreplay.contrib.reverse import ReverseConfig
from tests.refusals import refused
from tests.slots import Slots


class Sweeps(Slots):
    """Slots whose batches are compared with the rule of the sweeps.

    It stores episode and step of every slot, and the slot of every sweep.
    """

    def __init__(self, capacity, batch_size, sweeps, num_envs=1):
        sampler = reverse.sampler(ReverseConfig(sweeps=sweeps))
        super().__init__(sampler, capacity, batch_size, num_envs)
        self.sweeps, self.turn, self.at, self.held = sweeps, 0, [None] * sweeps, {}
        self.episode, self.step = list(range(num_envs)), [0] * num_envs

    def steps(self, *ends):
        """Add one step for each of `ends`, which marks environments whose episode ends with it."""
        for last in np.reshape(ends, (-1, self.num_envs)):
            slots = self.time * self.num_envs + np.arange(self.num_envs)
            self.add(first=np.equal(self.step, 0), last=last)
            for env, slot in enumerate(slots % self.capacity):
                self.held[int(slot)] = (self.episode[env], self.step[env])
                self.step[env] += 1
                if last[env]:
                    self.episode[env], self.step[env] = self.episode[env] + self.num_envs, 0
        return self

    def ends(self):
        """Return the newest stored step of every episode."""
        newest = {}
        for slot, (episode, step) in self.held.items():
            if episode not in newest or step > self.held[newest[episode]][1]:
                newest[episode] = slot
        return set(newest.values())

    def draw(self, seed):
        batch = self.run.sample(self.state, jax.random.key(seed))
        self.state = self.run.update(self.state, batch)
        drawn, where = np.asarray(batch.indices).tolist(), {x: s for s, x in self.held.items()}
        for slot in drawn:
            sweep, self.turn = self.turn % self.sweeps, self.turn + 1
            before = self.at[sweep]
            goes_on = before is not None and before in where
            if goes_on and (before[0], before[1] - 1) in where:
                assert slot == where[before[0], before[1] - 1]
            else:
                assert slot in (self.held if before is None else self.ends())
            self.at[sweep] = self.held[slot]
        return drawn


@pytest.mark.parametrize(
    ("capacity", "batch_size", "sweeps", "num_envs"),
    [(24, 6, 4, 2), (30, 4, 7, 3), (12, 12, 1, 1)],
)
def test_sweeps_equal_those_of_a_plain_model(capacity, batch_size, sweeps, num_envs):
    play, rng = Sweeps(capacity, batch_size, sweeps, num_envs), np.random.default_rng(0)
    for time in range(60):
        play.steps(rng.random(num_envs) < 0.2)
        if time * num_envs >= batch_size:
            play.draw(time)
        ends = np.flatnonzero(sum_tree.leaves(jax.device_get(play.state.sampler.ends)))
        assert set(ends) == play.ends()


def test_one_sweep_by_hand():
    play = Sweeps(8, 4, 1).steps(False, False, True, False, False)  # the second episode is running
    follows = {2: {1}, 1: {0}, 0: {2, 4}, 4: {3}, 3: {2, 4}}
    drawn = [slot for seed in range(20) for slot in play.draw(seed)]
    assert all(after in follows[slot] for slot, after in itertools.pairwise(drawn))
    assert set(drawn) == {0, 1, 2, 3, 4}


def test_all_steps_are_equally_likely_in_the_long_run():
    """Episodes have lengths 1, 2, 3, 5 and 9."""
    play = Sweeps(20, 4, 4)
    for length in (1, 2, 3, 5, 9):
        play.steps(*[False] * (length - 1), True)
    assert play.metric("episodes") == 5

    def step(state, key):
        batch = play.run.replay.sample(state, key)
        return play.run.replay.update(state, batch), batch.indices

    keys = jax.random.split(jax.random.key(1), 20_000)
    drawn = jax.jit(lambda state: jax.lax.scan(step, state, keys)[1])(play.state)
    counts = np.bincount(np.asarray(drawn).ravel(), minlength=20)
    np.testing.assert_allclose(counts / counts.sum() * 20, 1, atol=0.06)


def test_probabilities_follow_the_sweeps():
    """Two sweeps are within an episode, and the third has finished one."""
    play = Sweeps(8, 3, 3).steps(False, False, True, False, False, False, True)
    at = np.int32([5, 2, 0])
    play.put(slots=at, versions=at + 1)
    expected = np.zeros(8)
    expected[[4, 1]] = 1 / 3
    expected[[2, 6]] = 1 / 6
    np.testing.assert_allclose(play.probability(), expected, atol=1e-6)
    # In a batch of six, each sweep moves twice; the third starts at 2 or 6.
    expected[[3, 0]] += 1 / 3
    expected[[1, 5]] += 1 / 6
    found = play.run.replay.probability(play.state, jnp.arange(8), batch_size=6)
    np.testing.assert_allclose(found, expected / 2, atol=1e-6)


def test_the_first_steps_of_sweeps_are_spread():
    play = Sweeps(64, 64, 64).steps(*[step % 16 == 15 for step in range(64)])
    assert len({slot % 16 for slot in play.draw(0)}) > 8


def test_the_field_first_is_required():
    replay = Replay(reverse.sampler(), capacity=8, batch_size=2)
    with refused("first"):
        replay.init(jax.random.key(0), Transition(reward=jnp.zeros(())))
