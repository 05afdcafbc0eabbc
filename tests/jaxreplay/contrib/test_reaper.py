"""ReaPER: reliabilities by hand, and a plain reference over episodes."""

import functools

import jax
import numpy as np
import pytest

from jaxreplay import Replay, Transition, testing
from jaxreplay.contrib import reaper
from jaxreplay.contrib.reaper import ReaPERConfig
from jaxreplay.methods import per
from jaxreplay.methods.per import PERConfig
from tests.methods import compiled

EXAMPLE = Transition(reward=np.float32(0), first=np.bool_(0), last=np.bool_(0))


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
def test_probabilities_equal_those_of_the_definition(steps, num_envs, length):
    """Covers episodes that wrap around the ring, are cut, or are longer than the ring."""
    config = ReaPERConfig(alpha=0.7, omega=0.8)
    dense = Dense(config, steps, num_envs)
    capacity = steps * num_envs
    replay = compiled(
        Replay(reaper.sampler(config), capacity=capacity, batch_size=4, num_envs=num_envs)
    )
    state, rng = replay.init(jax.random.key(0), EXAMPLE), np.random.default_rng(0)
    for turn in range(3 * steps + 20):
        first = rng.random(num_envs) < 1 / length
        row = Transition(reward=np.zeros(num_envs, np.float32), first=first, last=first)
        state = replay.add(state, row)
        dense.add(first)
        if turn > 4:
            batch = replay.sample(state, jax.random.key(turn))
            slots = np.asarray(batch.indices)
            td = (4 * rng.normal(size=capacity) * 10.0 ** rng.integers(-3, 3))[slots]
            state = replay.update(state, batch, td_error=np.float32(td))
            dense.update(slots, td)
        if turn % max(1, steps // 8) == 0 or turn > 3 * steps + 15:
            found = replay.probability(state, np.arange(capacity))
            np.testing.assert_allclose(found, dense.probability(), rtol=1e-4, atol=1e-9)


TD = [0.5, 0.2, 1.0, 0.1, 0.2]
BY_HAND = [
    ({}, TD, [0.1762057152, 0.1480731784, 0.3131646004, 0.1596686816, 0.2028878244]),
    ({"alpha": 1.0, "omega": 1.0}, TD,
     [0.0936329588, 0.0524344569, 0.6367041199, 0.0674157303, 0.1498127341]),
    ({"alpha": 0.6, "omega": 0.0}, TD,
     [0.2468765622, 0.1424675172, 0.3741948953, 0.093993508, 0.1424675172]),
    ({}, [0.5, 0.2, 0.1, 0.1, 0.2],
     [0.2353378967, 0.1977644728, 0.1672002264, 0.1732138512, 0.2264835529]),
    ({"alpha": 1.0, "omega": 1.0}, [3.0] * 5, [1 / 15, 2 / 15, 3 / 15, 4 / 15, 5 / 15]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "td", "expected"), BY_HAND)
def test_probabilities_of_an_ended_episode_by_hand(options, td, expected):
    """The reliabilities of the first case are 0.25, 0.35, 0.85, 0.9 and 1."""
    replay, state = episode(ReaPERConfig(epsilon=0.0, **options), td)
    state = replay.end_episodes(state)
    np.testing.assert_allclose(replay.probability(state, np.arange(5)), expected, rtol=2e-5)
    metric = float(replay.metrics(state)["mean_reliability"])
    np.testing.assert_allclose(metric, np.mean(np.cumsum(td) / sum(td)), rtol=1e-5)


def test_probabilities_of_a_running_episode_by_hand():
    replay, state = episode(ReaPERConfig(epsilon=0.0), TD[:3], capacity=5)
    state = state._replace(sampler=state.sampler._replace(largest_sum=np.float32(4.0)))
    leaf = np.array([0.4352752816, 0.3657803855, 0.7736003882, 0, 0])
    found = replay.probability(state, np.arange(5))
    np.testing.assert_allclose(found, leaf / leaf.sum(), rtol=2e-5)


def test_td_errors_of_zero_by_hand():
    replay, state = episode(ReaPERConfig(epsilon=0.0), [0.0, 0.0, 1.0])
    np.testing.assert_allclose(replay.probability(state, np.arange(3)), [0, 0, 1])
    batch = replay.sample(state, jax.random.key(0))
    assert (np.asarray(batch.indices) == 2).all()
    np.testing.assert_array_equal(batch.weights, np.ones(3))
    replay, state = episode(ReaPERConfig(epsilon=0.0), [0.0, 0.0, 0.0])
    np.testing.assert_allclose(replay.probability(state, np.arange(3)), 1 / 3, rtol=1e-6)


def test_huge_td_errors_of_new_transitions_leave_reliabilities_finite():
    config = ReaPERConfig(initial="td")
    replay = compiled(Replay(reaper.sampler(config), capacity=4, batch_size=4))
    state, row = replay.init(jax.random.key(0), EXAMPLE), row_of(False)
    for _ in range(4):
        state = replay.add(state, row, td_error=np.float32([3e38]))
    expected = np.arange(1, 5) ** 0.3
    found = replay.probability(state, np.arange(4))
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-5)
    assert np.isfinite(replay.sample(state, jax.random.key(0)).weights).all()


@pytest.mark.parametrize("omega", [1.0, 30.0, 300.0, 1e4])
def test_draws_follow_the_probabilities_however_few_candidates_are_accepted(omega):
    """From half of the candidates accepted to 1 in 64, and fewer if the last step has a small x."""
    count, batch_size = 64, 16
    for last in (1.0, 1e-8):
        config = ReaPERConfig(alpha=1.0, omega=omega, epsilon=0.0)
        replay, state = episode(config, [1.0] * (count - 1) + [last])
        state = replay.end_episodes(state)
        x = np.array([1.0] * (count - 1) + [last])
        mass = x * (np.cumsum(x) / x.sum()) ** omega
        probability = replay.probability(state, np.arange(count))
        np.testing.assert_allclose(probability, mass / mass.sum(), rtol=2e-3, atol=1e-7)
        draw = functools.partial(replay.sample.__wrapped__, batch_size=batch_size)
        batches = jax.jit(jax.vmap(draw, (None, 0)))(
            state, jax.random.split(jax.random.key(1), 200)
        )
        expected = batches.indices.size * mass / mass.sum()
        counts = np.bincount(np.ravel(batches.indices), minlength=count)
        assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 2).all()
        drawn = mass[np.asarray(batches.indices)] ** -0.5
        weights = drawn / drawn.max(axis=1, keepdims=True)
        np.testing.assert_allclose(batches.weights, weights, rtol=2e-3)


def test_draws_are_the_same_with_x64():
    replay, state = episode(ReaPERConfig(alpha=0.0, omega=3.0), TD)

    def draws():
        return [np.asarray(replay.sample(state, jax.random.key(seed)).indices) for seed in range(8)]

    expected = draws()
    with jax.enable_x64(True):
        np.testing.assert_array_equal(draws(), expected)


def episode(config, td, capacity=None):
    count = len(td)
    capacity = capacity or count
    replay = compiled(Replay(reaper.sampler(config), capacity=capacity, batch_size=count))
    state = replay.init(jax.random.key(0), EXAMPLE)
    for step in range(count):
        state = replay.add(state, row_of(step == 0))
    batch = replay.sample(state, jax.random.key(0))
    slots = np.arange(count, dtype=np.int32)
    batch = batch._replace(indices=slots, version=slots + 1)
    return replay, replay.update(state, batch, td_error=np.float32(td))


def row_of(edge):
    """Return a transition of one environment."""
    return Transition(reward=np.zeros(1, np.float32), first=np.array([edge]), last=np.array([edge]))


def test_omega_0_gives_the_priorities_of_per():
    ours = testing.Case(reaper.method(ReaPERConfig(omega=0.0, alpha=0.6)))
    theirs = testing.Case(per.method(PERConfig()))
    one, other, slots = ours.fill(), theirs.fill(), np.arange(ours.slots)
    for time in range(8, 20):
        other, batch = theirs.step(other, time)
        td = ours.feedback_of(3 * jax.random.normal(jax.random.key(time), ours.shape))
        other = theirs.update(other, batch, td)
        one = ours.add(one, ours.rows(time))
        own = ours.sample(one, jax.random.key(time))
        first = jax.random.split(jax.random.fold_in(jax.random.key(9), time), 3)[1]
        own = own._replace(indices=batch.indices, version=batch.version)
        one = ours.update(one, own, ours.feedback_of(3 * jax.random.normal(first, ours.shape)))
        one = ours.update(one, own, td)
    found, expected = (
        jax.jit(case.replay.probability)(state, slots)
        for case, state in ((ours, one), (theirs, other))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4)
