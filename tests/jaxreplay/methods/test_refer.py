"""ReF-ER's memory compared with a plain Python version."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Replay, ring, testing
from jaxreplay.methods import refer
from jaxreplay.methods.parts import estimates
from jaxreplay.methods.refer import ReFERConfig
from tests.methods import compiled
from tests.refusals import refused

EXAMPLE = testing.EXAMPLE._replace(action=np.zeros(1, np.float32))
ROW = jax.tree.map(lambda x: x[None], EXAMPLE)

E, MEMORY, BATCH, EVERY = 2, 24, 8, 3
GAMMA = 0.9


_contents, _returns_of = jax.jit(ring.contents), jax.jit(estimates.returns_of)


class Memory:
    """The memory in plain Python: lists of episodes, processed one step at a time."""

    def __init__(self, config, capacity):
        self.config, self.rows = config, capacity // E
        self.memory = capacity // config.capacity_factor
        self.steps = []  # all steps so far, as dicts
        self.running = [None] * E
        self.episodes = []
        self.live, self.updates, self.swept, self.beta = [], 0, 0, config.beta

    def add(self, row):
        self.row = len(self.steps) // E
        for lane, step in enumerate(row):
            if step["first"] or self.running[lane] is None:
                if self.running[lane] is not None:
                    self.running[lane]["over"] = True  # may have been left without an end
                self.running[lane] = {"steps": [], "over": False, "gone": False, "lane": lane}
                self.running[lane]["start"] = self.row
                self.episodes.append(self.running[lane])
            step |= {"log_ratio": 0.0, "row": self.row, "lane": lane}
            step["q_ret"] = step["reward"] + step["discount"] * step["next_value"]
            self.running[lane]["steps"].append(step)
            self.running[lane]["over"] = step["last"]
            self.steps.append(step)
        if (self.row + 1) % EVERY == 0:
            self.refresh()

    def slot(self, step):
        return step["row"] % self.rows * E + step["lane"]

    def is_far(self, step):
        c_max = 1 + self.config.clip / (1 + self.config.anneal * self.swept)
        return not 1 / c_max < np.exp(step["log_ratio"]) < c_max

    def refresh(self):
        self.swept = self.updates
        staying = lambda step: step["row"] + self.rows > self.row + EVERY
        stays = lambda episode: [s for s in episode["steps"] if staying(s)]
        for episode in self.episodes:
            if episode["over"] and self.row - episode["start"] >= self.rows - EVERY:
                episode["gone"] = True  # its first steps are overwritten soon
        held = [e for e in self.episodes if e["over"] and not e["gone"] and stays(e)]
        share = lambda e: np.mean([self.is_far(s) for s in stays(e)]).astype(np.float32)
        if self.config.forget == "oldest":
            share = lambda e: 0
        while sum(len(stays(e)) for e in held) > self.memory and len(held) > 1:
            worst = max(held, key=lambda e: (share(e), -e["start"], e["lane"]))
            worst["gone"] = True
            held.remove(worst)
        self.live = [s for e in held for s in stays(e)]
        if not self.live:
            self.live = [s for e in self.episodes if not e["over"] for s in stays(e)]
        inside = {id(s) for s in self.live}
        for step in self.steps:
            if id(step) not in inside:
                step["log_ratio"] = 0.0
        for episode in self.episodes:
            after = None
            for s in reversed(episode["steps"]):
                if after is None:
                    s["q_ret"] = s["reward"] + s["discount"] * s["next_value"]
                else:
                    trace = min(1.0, np.exp(after["log_ratio"]))
                    error = after["q_ret"] - after["value"] - after["advantage"]
                    s["q_ret"] = s["reward"] + s["discount"] * (after["value"] + trace * error)
                after = s

    def update(self, slots, feedback):
        known = {self.slot(s): s for s in self.live}
        for row, slot in enumerate(slots):
            if slot in known:
                for name, values in feedback.items():
                    known[slot][name] = float(values[row])
        self.share = share = self.far() / max(len(self.live), 1)
        rate = self.config.beta_rate
        self.beta = (1 - rate) * self.beta + (0 if share > self.config.target else rate)
        self.updates += 1

    def far(self):
        return sum(self.is_far(s) for s in self.live)


@functools.cache
def made(config, capacity=MEMORY, batch_size=BATCH, num_envs=1):
    """Return a replay with compiled functions."""
    sampler = refer.sampler(config)
    return compiled(Replay(sampler, capacity=capacity, batch_size=batch_size, num_envs=num_envs))


CONFIGS = [
    ReFERConfig(returns=True, refresh_every=EVERY, beta_rate=0.1, anneal=0.01),
    ReFERConfig(returns=True, refresh_every=EVERY, forget="oldest"),
]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.sampled_from(CONFIGS),
    st.integers(0, 2**31),
    st.integers(1, 12),
    st.sampled_from([3, 20, 60]),
)
def test_the_memory_equals_one_in_plain_python(config, seed, length, rows):
    rng = np.random.default_rng(seed)
    replay = made(config, num_envs=E)
    state = replay.init(jax.random.key(seed), EXAMPLE)
    memory = Memory(config, MEMORY * config.capacity_factor)
    first = [True] * E
    for number in range(rows):
        row = []
        for lane in range(E):
            last = rng.random() < 1 / length
            terminal = last and rng.random() < 0.5
            numbers = dict(zip(["reward", "value", "advantage", "next_value"], rng.normal(size=4)))
            discount = 0.0 if terminal else GAMMA
            row.append({"first": first[lane], "last": last, "discount": discount, **numbers})
            first[lane] = last or rng.random() < 0.1  # episodes may be left without an end
        dtype = lambda name: bool if name in ("first", "last") else np.float32
        column = lambda name: np.asarray([step[name] for step in row], dtype(name))
        steps = jax.tree.map(lambda x: np.broadcast_to(x, (E, *x.shape)), EXAMPLE)
        names = ("reward", "discount", "first", "last")
        steps = steps._replace(**{name: column(name) for name in names})
        fresh = {name: column(name) for name in ("value", "advantage", "next_value")}
        state = replay.add(state, steps, **fresh)
        memory.add(row)
        compare(state, memory, config)
        if number * E < BATCH or not memory.live:
            continue
        batch = replay.sample(state, jax.random.key(number))
        slots = np.asarray(batch.indices)
        assert set(slots) <= {memory.slot(s) for s in memory.live}
        # equal for equal slots
        draw = lambda: rng.normal(size=MEMORY * config.capacity_factor)[slots]
        feedback = {"log_ratio": 3 * draw(), "value": draw(), "advantage": draw()}
        feedback |= {"next_value": draw()}
        state = replay.update(state, batch, **{k: np.float32(v) for k, v in feedback.items()})
        memory.update(slots, feedback | {"log_ratio": np.clip(feedback["log_ratio"], -7, 7)})
        compare(state, memory, config)
        np.testing.assert_allclose(state.sampler.beta, memory.beta, rtol=1e-4)
        share = float(replay.metrics(state)["far_share"])
        assert share == pytest.approx(memory.share)


def compare(state, memory, config):
    held = state.sampler
    live = {memory.slot(step): step for step in memory.live}
    assert int(held.size) == len(live)
    assert set(np.asarray(held.order)[: len(live)]) == set(live)
    assert set(np.flatnonzero(held.live)) == set(live)
    q_ret, log_ratio = np.asarray(held.estimates.q_ret), np.asarray(held.log_ratio)
    for slot, step in live.items():
        assert q_ret[slot] == pytest.approx(step["q_ret"], rel=1e-3, abs=1e-3)
        assert log_ratio[slot] == pytest.approx(step["log_ratio"], rel=1e-5, abs=1e-6)


def play(replay, lengths):
    """Fill a replay of one environment with episodes of these lengths; rewards number the rows."""
    state, number = replay.init(jax.random.key(0), EXAMPLE), 0
    for length in lengths:
        for step in range(length):
            edges = {"first": np.array([step == 0]), "last": np.array([step == length - 1])}
            row = ROW._replace(reward=np.float32([number]), **edges)
            state, number = replay.add(state, row), number + 1
    return state


def test_only_finished_episodes_are_drawn_once_one_exists():
    replay = made(ReFERConfig(refresh_every=1), capacity=32, batch_size=4)
    running = play(replay, [3])
    assert int(running.sampler.size) == 3
    state = play(replay, [5])
    for step in range(4):
        state = replay.add(state, ROW._replace(first=np.array([step == 0])))
    chance = np.asarray(replay.probability(state, np.arange(state.ring.capacity)))
    np.testing.assert_allclose(chance[:5], 0.2)
    assert chance[5:].sum() == 0


def test_running_episodes_are_drawn_before_any_is_finished():
    replay = made(ReFERConfig(refresh_every=4), capacity=32, batch_size=4)
    state = replay.init(jax.random.key(0), EXAMPLE)
    for number in range(1, 12):
        state = replay.add(state, ROW)
        swept = number // 4 * 4 or number
        chance = np.asarray(replay.probability(state, np.arange(state.ring.capacity)))
        np.testing.assert_allclose(chance[:swept], 1 / swept, rtol=1e-6)
        batch = replay.sample(state, jax.random.key(number))
        assert int(batch.indices.max()) < swept
        state = replay.update(state, batch, log_ratio=np.full(4, 3.0, np.float32))


def test_the_only_episode_is_kept_even_if_longer_than_the_memory():
    replay = made(ReFERConfig(refresh_every=1), capacity=8, batch_size=4)
    state = play(replay, [3, 12])
    assert float(replay.metrics(state)["remembered"]) == 12
    state = play(replay, [3, 12, 5])
    assert float(replay.metrics(state)["remembered"]) == 5  # the long episode is forgotten


def test_far_policy_episodes_are_forgotten_before_new_ones():
    replay = made(ReFERConfig(refresh_every=1), capacity=10, batch_size=8)
    state = play(replay, [4, 4])
    batch = replay.sample(state, jax.random.key(0))
    slots = np.int32([4, 5, 6, 7, 4, 5, 6, 7])  # the second episode is far-policy
    batch = batch._replace(indices=slots, version=ring.version(state.ring, slots))
    state = replay.update(state, batch, log_ratio=np.full(8, 5.0, np.float32))
    assert float(replay.metrics(state)["far_share"]) == 0.5
    for step in range(4):
        edges = {"first": np.array([step == 0]), "last": np.array([step == 3])}
        state = replay.add(state, ROW._replace(**edges))
    assert set(np.flatnonzero(state.sampler.live)) == {0, 1, 2, 3, 8, 9, 10, 11}
    assert float(replay.metrics(state)["far_share"]) == 0
    assert float(replay.metrics(state)["forgotten_episodes"]) == 1
    assert float(replay.metrics(state)["reclaimed_episodes"]) == 0


def test_episodes_that_the_ring_reclaims_are_counted_separately():
    replay = made(ReFERConfig(refresh_every=1, capacity_factor=1), capacity=12, batch_size=4)
    state = play(replay, [4, 4, 4, 4, 4])
    # The ring stores 12 of 20 rows, the oldest of which is next: three episodes start before it.
    assert float(replay.metrics(state)["reclaimed_episodes"]) == 3
    assert float(replay.metrics(state)["forgotten_episodes"]) == 0


def test_ratios_beyond_the_limit_are_clipped_and_remain_far():
    replay = made(ReFERConfig(refresh_every=1), capacity=8, batch_size=4)
    state = play(replay, [4, 4])
    batch = replay.sample(state, jax.random.key(0))
    state = replay.update(state, batch, log_ratio=np.full(4, -80.0, np.float32))
    assert float(np.abs(state.sampler.log_ratio).max()) == 7
    assert float(replay.metrics(state)["far_share"]) > 0


def test_returns_have_the_units_of_scaled_rewards():
    config = ReFERConfig(returns=True, refresh_every=1)
    replay = made(config, capacity=8, batch_size=2)
    state = replay.init(jax.random.key(0), EXAMPLE)
    row = ROW._replace(reward=np.float32([6.0]))
    fresh = {name: np.zeros(1, np.float32) for name in ("value", "advantage", "next_value")}
    for last in (False, False, True):
        step = row._replace(discount=np.float32([0.5]), last=np.array([last]))
        state = replay.add(state, step, **fresh, reward_scale=np.float32([2.0]))
    got = _returns_of(state.sampler.estimates, np.arange(3))
    np.testing.assert_allclose(got, [5.25, 4.5, 3.0])
    # A step with another scale changes the units of all returns without a refresh.
    replay = made(dataclasses.replace(config, refresh_every=4), capacity=16, batch_size=2)
    state = replay.init(jax.random.key(0), EXAMPLE)
    for scale in (1.0, 1.0, 1.0, 1.0, 4.0):
        step = row._replace(discount=np.float32([0.5]))
        state = replay.add(state, step, **fresh, reward_scale=np.float32([scale]))
    got = _returns_of(state.sampler.estimates, np.arange(5))
    np.testing.assert_allclose(got, np.array([11.25, 10.5, 9.0, 6.0, 6.0]) / 4)
    # Feedback on an overwritten batch does not change the scale.
    batch = replay.sample(state, jax.random.key(0))
    told = {name: np.full(2, 8.0, np.float32) for name in (*fresh, "log_ratio", "reward_scale")}
    state = replay.update(state, batch._replace(version=batch.version - 1), **told)
    assert (int(state.dropped), float(state.sampler.estimates.reward_scale)) == (2, 4)


def test_episodes_are_forgotten_whole_and_do_not_return():
    config = ReFERConfig(refresh_every=1, capacity_factor=2)
    replay = made(config, capacity=12, batch_size=4)
    for lengths in ([6, 5, 5, 5, 3], [6, 4, 4, 4, 20], [5, 5, 5, 5, 5, 1, 7]):
        state, begun = play(replay, lengths), 0
        live = np.flatnonzero(state.sampler.live)
        rewards = set(np.asarray(_contents(state.ring).reward)[live].astype(int).tolist())
        for length in lengths:
            inside = rewards & set(range(begun, begun + length))
            assert len(inside) in (0, length) or length > 12
            begun += length


def test_steps_that_are_not_finite_are_stored_as_zero_and_counted():
    config = ReFERConfig(returns=True, refresh_every=1)
    replay = made(config, capacity=16, batch_size=2)
    state = replay.init(jax.random.key(0), EXAMPLE)
    fresh = {name: np.zeros(1, np.float32) for name in ("value", "advantage", "next_value")}
    for reward in (1.0, np.nan, np.inf, 1.0):
        step = ROW._replace(reward=np.float32([reward]), discount=np.ones(1, np.float32))
        state = replay.add(state, step._replace(obs=np.full((1, 3), np.nan, np.float32)), **fresh)
    assert int(state.dropped) == 4
    assert not np.any(_contents(state.ring).obs)
    np.testing.assert_allclose(np.asarray(state.sampler.estimates.q_ret)[:4], [2, 1, 1, 1])


def test_option_returns_requires_feedback_on_new_steps():
    replay = made(ReFERConfig(returns=True), capacity=8, batch_size=2)
    state = replay.init(jax.random.key(0), EXAMPLE)
    with refused("add", "advantage", "next_value", "value"):
        replay.add(state, ROW)
