"""ReaPER: reliabilities worked out by hand, and a plain reference over episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, Transition, testing
from jaxreplay.methods import per, reaper
from jaxreplay.methods.per import PERConfig
from jaxreplay.methods.reaper import ReaPERConfig

EXAMPLE = Transition(reward=jnp.zeros(()), first=jnp.zeros((), bool), last=jnp.zeros((), bool))


class Dense:
    """The definition of the reliability, for lists of the stored steps of each environment."""

    def __init__(self, config, steps, num_envs):
        self.config, self.steps = config, steps
        self.rows = [[] for _ in range(num_envs)]  # [episode, x, slot] of each stored step
        self.time, self.largest, self.largest_sum = 0, 1.0, 0.0
        self.episode = [-1] * num_envs

    def add(self, first):
        for env, rows in enumerate(self.rows):
            self.episode[env] += bool(first[env]) or self.episode[env] < 0
            slot = self.time % self.steps * len(self.rows) + env
            rows.append([self.episode[env], self.largest, slot])
            del rows[: -self.steps]
        self.time += 1

    def whole(self, env, episode):
        return sum(x for number, x, _ in self.rows[env] if number == episode)

    def update(self, slots, td):
        rows = {row[2]: (env, row) for env, rows in enumerate(self.rows) for row in rows}
        ended = [self.whole(env, row[0]) for env, row in (rows[s] for s in slots)
                 if row[0] != self.episode[env]]  # fmt: skip
        self.largest_sum = max([self.largest_sum, *ended])
        for slot, error in zip(slots, td, strict=True):
            rows[slot][1][1] = abs(error) + self.config.epsilon
            self.largest = max(self.largest, rows[slot][1][1])

    def reliability(self):
        found = np.zeros(self.steps * len(self.rows))
        for env, rows in enumerate(self.rows):
            for number, (episode, _, slot) in enumerate(rows):
                upto = sum(x for e, x, _ in rows[: number + 1] if e == episode)
                whole = self.whole(env, episode)
                if episode == self.episode[env]:
                    whole = max(whole, self.largest_sum)
                found[slot] = upto / whole
        return found

    def probability(self):
        x = np.zeros(self.steps * len(self.rows))
        for rows in self.rows:
            for _, value, slot in rows:
                x[slot] = value
        mass = np.where(x > 0, x**self.config.alpha, 0) * self.reliability() ** self.config.omega
        return mass / mass.sum()


@pytest.mark.parametrize(
    ("steps", "num_envs", "length"),
    [(24, 1, 7), (24, 2, 5), (9, 3, 4), (16, 1, 40), (1, 4, 3), (640, 1, 100), (100, 7, 13)],
)
def test_probabilities_are_those_of_the_definition(steps, num_envs, length):
    """Episodes wrap around the ring buffer, are cut, and are longer than the ring buffer."""
    config = ReaPERConfig(alpha=0.7, omega=0.8)
    dense = Dense(config, steps, num_envs)
    capacity = steps * num_envs
    replay = Replay(reaper.sampler(config), capacity=capacity, batch_size=4, num_envs=num_envs)
    state = replay.init(jax.random.key(0), EXAMPLE)
    add, sample, update = map(jax.jit, (replay.add, replay.sample, replay.update))
    probability, rng = jax.jit(replay.probability), np.random.default_rng(0)
    for turn in range(3 * steps + 20):
        first = rng.random(num_envs) < 1 / length
        edge = jnp.asarray(first)
        row = Transition(reward=jnp.zeros(num_envs), first=edge, last=edge)
        state = add(state, row)
        dense.add(first)
        if turn > 4:
            batch = sample(state, jax.random.key(turn))
            slots = np.asarray(batch.indices)
            td = (4 * rng.normal(size=capacity) * 10.0 ** rng.integers(-3, 3))[slots]
            state = update(state, batch, td_error=jnp.asarray(td, jnp.float32))
            dense.update(slots, td)
        if turn % max(1, steps // 8) == 0 or turn > 3 * steps + 15:
            found = probability(state, jnp.arange(capacity))
            np.testing.assert_allclose(found, dense.probability(), rtol=1e-4, atol=1e-9)
