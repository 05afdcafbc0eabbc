"""Reverse replay: sweeps by hand, and compared with a plain model of episodes and sweeps."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, Transition, sum_tree
from jaxreplay.contrib import reverse
from jaxreplay.contrib.reverse import ReverseConfig
from jaxreplay.methods import uniform
from tests.refusals import refused

EXAMPLE = Transition(reward=jnp.zeros(()), first=jnp.zeros((), bool), last=jnp.zeros((), bool))


class Play:
    """A replay whose batches are compared with the rule of the sweeps.

    It stores episode and step of every slot, and the slot of every sweep.
    """

    def __init__(self, capacity, batch_size, sweeps, num_envs=1):
        sampler = reverse.sampler(ReverseConfig(sweeps=sweeps))
        self.replay = Replay(sampler, capacity=capacity, batch_size=batch_size, num_envs=num_envs)
        self.state = self.replay.init(jax.random.key(0), EXAMPLE)
        self.num_envs, self.sweeps, self.turn = num_envs, sweeps, 0
        self.at, self.held, self.time = [None] * sweeps, {}, 0
        self.episode, self.step = list(range(num_envs)), [0] * num_envs
        self.add_one = jax.jit(self.replay.add)
        self.cycle = jax.jit(self._cycle)

    def _cycle(self, state, key):
        batch = self.replay.sample(state, key)
        return self.replay.update(state, batch), batch.indices

    def add(self, ends):
        """Add one step per environment; `ends` marks environments whose episode ends with it."""
        first = jnp.array([step == 0 for step in self.step])
        row = Transition(reward=jnp.zeros(self.num_envs), first=first, last=jnp.array(ends))
        self.state = self.add_one(self.state, row)
        for env, end in enumerate(ends):
            slot = (self.time * self.num_envs + env) % self.replay.capacity
            self.held[slot] = (self.episode[env], self.step[env])
            self.step[env] += 1
            if end:
                self.episode[env], self.step[env] = self.episode[env] + self.num_envs, 0
        self.time += 1

    def ends(self):
        """Return the newest stored step of every episode."""
        newest = {}
        for slot, (episode, step) in self.held.items():
            if episode not in newest or step > self.held[newest[episode]][1]:
                newest[episode] = slot
        return set(newest.values())

    def draw(self, key):
        self.state, slots = self.cycle(self.state, jax.random.key(key))
        slots, where = np.asarray(slots), {x: s for s, x in self.held.items()}
        for slot in slots.tolist():
            sweep, self.turn = self.turn % self.sweeps, self.turn + 1
            before = self.at[sweep]
            goes_on = before is not None and before in where
            if goes_on and (before[0], before[1] - 1) in where:
                assert slot == where[before[0], before[1] - 1]
            else:
                assert slot in (self.held if before is None else self.ends())
            self.at[sweep] = self.held[slot]
        return slots


@pytest.mark.parametrize(
    ("capacity", "batch_size", "sweeps", "num_envs"),
    [(24, 4, 4, 1), (24, 6, 4, 2), (30, 4, 7, 3), (12, 12, 1, 1), (24, 4, 64, 2)],
)
def test_sweeps_equal_those_of_a_plain_model(capacity, batch_size, sweeps, num_envs):
    play, rng = Play(capacity, batch_size, sweeps, num_envs), np.random.default_rng(0)
    for time in range(60):
        play.add(list(rng.random(num_envs) < 0.2))
        if time * num_envs >= batch_size:
            play.draw(time)
        ends = np.flatnonzero(np.asarray(sum_tree.leaves(play.state.sampler.ends)))
        assert set(ends) == play.ends()


def test_one_sweep_by_hand():
    play = Play(8, 4, 1)
    for end in (False, False, True, False, False):  # the second episode is running
        play.add([end])
    follows = {2: {1}, 1: {0}, 0: {2, 4}, 4: {3}, 3: {2, 4}}
    drawn = [slot for seed in range(20) for slot in play.draw(seed).tolist()]
    assert all(after in follows[slot] for slot, after in itertools.pairwise(drawn))
    assert set(drawn) == {0, 1, 2, 3, 4}


def test_all_steps_are_equally_likely_in_the_long_run():
    """Episodes have lengths 1, 2, 3, 5 and 9."""
    play = Play(20, 4, 4)
    for length in (1, 2, 3, 5, 9):
        for step in range(length):
            play.add([step == length - 1])
    assert float(play.replay.metrics(play.state)["episodes"]) == 5

    def step(state, key):
        batch = play.replay.sample(state, key)
        return play.replay.update(state, batch), batch.indices

    keys = jax.random.split(jax.random.key(1), 20_000)
    _, slots = jax.lax.scan(step, play.state, keys)
    counts = np.bincount(np.asarray(slots).ravel(), minlength=20)
    np.testing.assert_allclose(counts / counts.sum() * 20, 1, atol=0.06)


def test_probabilities_follow_the_sweeps():
    """Two sweeps are within an episode, and the third has finished one."""
    play = Play(8, 3, 3)
    for end in (False, False, True, False, False, False, True):
        play.add([end])
    sampler = play.state.sampler
    at = jnp.array([5, 2, 0], jnp.int32)
    state = play.state._replace(sampler=sampler._replace(slots=at, versions=at + 1))
    expected = np.zeros(8)
    expected[[4, 1]] = 1 / 3
    expected[[2, 6]] = 1 / 6
    found = play.replay.probability(state, jnp.arange(8))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # In a batch of six, each sweep moves twice; the third starts at 2 or 6.
    expected[[3, 0]] += 1 / 3
    expected[[1, 5]] += 1 / 6
    found = play.replay.probability(state, jnp.arange(8), batch_size=6)
    np.testing.assert_allclose(found, expected / 2, atol=1e-6)


def test_the_first_steps_of_sweeps_are_spread():
    play = Play(64, 64, 64)
    for step in range(64):
        play.add([step % 16 == 15])
    slots = play.draw(0)
    assert len({slot % 16 for slot in slots.tolist()}) > 8


def test_one_sweep_propagates_values_along_an_episode():
    """A tabular chain of 12 steps with a reward at its end, compared with uniform replay."""
    length = 12

    def learned(method, updates):
        replay = Replay(method.sampler, capacity=length, batch_size=1)
        example = EXAMPLE._replace(obs=jnp.zeros((), jnp.int32))
        state = replay.init(jax.random.key(0), example)
        for step in range(length):
            edge = jnp.array([step == 0]), jnp.array([step == length - 1])
            reward = jnp.array([float(edge[1][0])])
            row = Transition(
                jnp.array([step], jnp.int32), reward=reward, first=edge[0], last=edge[1]
            )
            state = replay.add(state, row)

        def step(carry, key):
            state, values = carry
            batch = replay.sample(state, key)
            t = batch.transition
            target = t.reward + jnp.where(t.last, 0.0, values[t.obs + 1])
            return (replay.update(state, batch), values.at[t.obs].set(target)), None

        start = state, jnp.zeros(length + 1)
        (_, values), _ = jax.lax.scan(step, start, jax.random.split(jax.random.key(0), updates))
        return np.asarray(values[:length])

    config = ReverseConfig(sweeps=1)
    assert (learned(reverse.method(config), 2 * length) == 1).all()
    assert learned(uniform.method(), 2 * length).sum() < length


def test_the_field_first_is_required():
    with refused("first"):
        Replay(reverse.sampler(), capacity=8, batch_size=2).init(
            jax.random.key(0), Transition(reward=jnp.zeros(()))
        )
    with refused("sweeps", "0"):
        ReverseConfig(sweeps=0)
