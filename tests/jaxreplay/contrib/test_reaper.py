"""ReaPER: reliabilities by hand, and a plain reference over episodes."""

import jax
import numpy as np
import pytest

from jaxreplay.contrib import reaper
from jaxreplay.contrib.reaper import ReaPERConfig
from tests.slots import Slots


class Dense:
    """Reliability by definition, over lists of the stored steps of each environment."""

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

    def probability(self):
        mass = np.zeros(self.steps * len(self.rows))
        for env, rows in enumerate(self.rows):
            for number, (episode, x, slot) in enumerate(rows):
                upto = sum(x for e, x, _ in rows[: number + 1] if e == episode)
                whole = self.whole(env, episode)
                if episode == self.episode[env]:
                    whole = max(whole, self.largest_sum)
                mass[slot] = x**self.config.alpha * (upto / whole) ** self.config.omega
        return mass / mass.sum()


@pytest.mark.parametrize(
    ("steps", "num_envs", "length"),
    [(24, 2, 5), (16, 1, 40), (1, 4, 3)],
)
def test_probabilities_equal_those_of_the_definition(steps, num_envs, length):
    """Covers episodes that wrap around the ring, are cut, or are longer than the ring."""
    config, rng = ReaPERConfig(alpha=0.7, omega=0.8), np.random.default_rng(0)
    dense, capacity = Dense(config, steps, num_envs), steps * num_envs
    slots = Slots(reaper.sampler(config), capacity, 4, num_envs)
    for turn in range(3 * steps + 20):
        first = rng.random(num_envs) < 1 / length
        slots.add(first=first, last=first)
        dense.add(first)
        if turn > 4:
            batch = slots.sample(turn)
            td = (4 * rng.normal(size=capacity) * 10.0 ** rng.integers(-3, 3))[batch.indices]
            slots.update(batch.indices, batch=batch, td_error=td)
            dense.update(batch.indices, td)
        if turn % max(1, steps // 8) == 0 or turn > 3 * steps + 15:
            expected = dense.probability()
            np.testing.assert_allclose(slots.probability(), expected, rtol=1e-4, atol=1e-9)


BASE = reaper.sampler(ReaPERConfig(epsilon=0.0))


def episode(td, capacity=None, **options):
    """Return the slots of an episode that have been updated with their TD errors."""
    count, config = len(td), ReaPERConfig(**{"epsilon": 0.0} | options)
    slots = Slots(reaper.sampler(config), capacity or count, count, base=BASE,
                  shared="init add sample end_episodes")  # fmt: skip
    slots.add(first=True, last=True).add(count - 1)
    return slots.update(range(count), batch=slots.sample(), td_error=td)


def ended(td, **options):
    slots = episode(td, **options)
    slots.state = slots.run.end_episodes(slots.state)
    return slots


TD = [0.5, 0.2, 1.0, 0.1, 0.2]
BY_HAND = [  # td^alpha (sum of td so far / sum of td)^omega
    ({}, TD, [0.1762057152, 0.1480731784, 0.3131646004, 0.1596686816, 0.2028878244]),
    ({"alpha": 1.0, "omega": 1.0}, TD,
     [0.0936329588, 0.0524344569, 0.6367041199, 0.0674157303, 0.1498127341]),
    ({}, [0.5, 0.2, 0.1, 0.1, 0.2],
     [0.2353378967, 0.1977644728, 0.1672002264, 0.1732138512, 0.2264835529]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "td", "expected"), BY_HAND)
def test_probabilities_of_an_ended_episode_by_hand(options, td, expected):
    """The reliabilities of the first case are 0.25, 0.35, 0.85, 0.9 and 1."""
    slots = ended(td, **options)
    np.testing.assert_allclose(slots.probability(), expected, rtol=2e-5)
    reliability = np.mean(np.cumsum(td) / sum(td))
    assert slots.metric("mean_reliability") == pytest.approx(reliability, rel=1e-5)


def test_probabilities_of_a_running_episode_by_hand():
    slots = episode(TD[:3], capacity=5).put(largest_sum=np.float32(4.0))
    leaf = np.array([0.4352752816, 0.3657803855, 0.7736003882, 0, 0])
    np.testing.assert_allclose(slots.probability(), leaf / leaf.sum(), rtol=2e-5)


def test_td_errors_of_zero_by_hand():
    slots = episode([0.0, 0.0, 1.0])
    np.testing.assert_allclose(slots.probability(), [0, 0, 1])
    batch = slots.sample()
    assert (batch.indices == 2).all()
    np.testing.assert_array_equal(batch.weights, np.ones(3))
    np.testing.assert_allclose(episode([0.0, 0.0, 0.0]).probability(), 1 / 3, rtol=1e-6)


def test_huge_td_errors_of_new_transitions_leave_reliabilities_finite():
    slots = Slots(reaper.sampler(ReaPERConfig(initial="td")), 4)
    slots.add(4, feedback={"td_error": 3e38})
    expected = np.arange(1, 5) ** 0.3
    np.testing.assert_allclose(slots.probability(), expected / expected.sum(), rtol=1e-5)
    assert np.isfinite(slots.sample().weights).all()


@pytest.mark.parametrize("omega", [300.0, 1e4])  # the contract has the usual ones
def test_draws_follow_the_probabilities_however_few_candidates_are_accepted(omega):
    """About 1 in 64 candidates are accepted, and fewer if the last step has a small x."""
    count = 64
    for last in (1.0, 1e-8):
        x = np.array([1.0] * (count - 1) + [last])
        slots = ended(x, alpha=1.0, omega=omega)
        mass = x * (np.cumsum(x) / x.sum()) ** omega
        np.testing.assert_allclose(slots.probability(), mass / mass.sum(), rtol=2e-3, atol=1e-7)
        batches = slots.draws(200, 16)
        expected = batches.indices.size * mass / mass.sum()
        counts = np.bincount(batches.indices.ravel(), minlength=count)
        assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 2).all()
        weights = mass[batches.indices] ** -0.5
        weights /= weights.max(axis=1, keepdims=True)
        np.testing.assert_allclose(batches.weights, weights, rtol=2e-3)


def test_draws_are_the_same_with_x64():
    slots = episode(TD, epsilon=1e-6, alpha=0.0, omega=3.0)
    draws = lambda: np.stack([slots.sample(seed).indices for seed in range(8)])
    expected = draws()
    with jax.enable_x64(True):
        np.testing.assert_array_equal(draws(), expected)
