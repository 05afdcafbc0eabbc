"""ReF-ER's memory compared with a plain Python version."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import ring, testing
from jaxreplay.methods import refer
from jaxreplay.methods.parts import estimates
from jaxreplay.methods.refer import ReFERConfig
from tests.refusals import refused
from tests.slots import Slots

EXAMPLE = testing.EXAMPLE._replace(action=np.zeros(1, np.float32))
FRESH = ("value", "advantage", "next_value")  # feedback on new steps
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
        self.share = share = sum(map(self.is_far, self.live)) / max(len(self.live), 1)
        rate = self.config.beta_rate
        self.beta = (1 - rate) * self.beta + (0 if share > self.config.target else rate)
        self.updates += 1


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
    slots = Slots(refer.sampler(config), MEMORY, BATCH, E, EXAMPLE)
    memory = Memory(config, MEMORY * config.capacity_factor)
    first = [True] * E
    for number in range(rows):
        row = []
        for lane in range(E):
            last = rng.random() < 1 / length
            numbers = dict(zip(["reward", *FRESH], rng.normal(size=4)))
            discount = 0.0 if last and rng.random() < 0.5 else GAMMA
            row.append({"first": first[lane], "last": last, "discount": discount, **numbers})
            first[lane] = last or rng.random() < 0.1  # episodes may be left without an end
        column = lambda *names: {name: [step[name] for step in row] for name in names}
        slots.add(feedback=column(*FRESH), **column("reward", "discount", "first", "last"))
        memory.add(row)
        compare(slots.state, memory)
        if number * E < BATCH or not memory.live:
            continue
        batch = slots.sample(number)
        drawn = batch.indices
        assert set(drawn) <= {memory.slot(s) for s in memory.live}
        # equal for equal slots
        draw = lambda: rng.normal(size=MEMORY * config.capacity_factor)[drawn]
        feedback = {name: draw() for name in FRESH} | {"log_ratio": 3 * draw()}
        slots.update(drawn, batch=batch, **feedback)
        memory.update(drawn, feedback | {"log_ratio": np.clip(feedback["log_ratio"], -7, 7)})
        compare(slots.state, memory)
        np.testing.assert_allclose(slots.state.sampler.beta, memory.beta, rtol=1e-4)
        assert slots.metric("far_share") == pytest.approx(memory.share)


def compare(state, memory):
    held = jax.device_get(state.sampler)
    live = {memory.slot(step): step for step in memory.live}
    assert int(held.size) == len(live)
    assert set(held.order[: len(live)]) == set(live) == set(np.flatnonzero(held.live))
    for slot, step in live.items():
        assert held.estimates.q_ret[slot] == pytest.approx(step["q_ret"], rel=1e-3, abs=1e-3)
        assert held.log_ratio[slot] == pytest.approx(step["log_ratio"], rel=1e-5, abs=1e-6)


class Played(Slots):
    """A replay of one environment with episodes of these lengths; rewards number the rows."""

    def __init__(self, lengths, capacity, batch_size=4, **options):
        config = ReFERConfig(**{"refresh_every": 1} | options)
        super().__init__(refer.sampler(config), capacity, batch_size, example=EXAMPLE)
        for length in lengths:
            for step in range(length):
                self.add(reward=self.time, first=step == 0, last=step == length - 1)

    def live(self):
        return set(np.flatnonzero(self.state.sampler.live).tolist())

    def told(self, slots, log_ratio):
        return self.update(slots, batch=self.sample(), log_ratio=np.full(len(slots), log_ratio))


def test_the_only_episode_is_kept_even_if_longer_than_the_memory():
    for lengths, remembered in (([3, 12], 12), ([3, 12, 5], 5)):  # the long episode is forgotten
        assert Played(lengths, 8).metric("remembered") == remembered


def test_far_policy_episodes_are_forgotten_before_new_ones():
    slots = Played([4, 4], 10, 8)
    slots.told([4, 5, 6, 7, 4, 5, 6, 7], 5.0)  # the second episode is far-policy
    assert slots.metric("far_share") == 0.5
    slots.add(first=True).add(2).add(last=True)
    assert slots.live() == {0, 1, 2, 3, 8, 9, 10, 11}
    names = ("far_share", "forgotten_episodes", "reclaimed_episodes")
    assert [slots.metric(name) for name in names] == [0, 1, 0]


def test_episodes_that_the_ring_reclaims_are_counted_separately():
    slots = Played([4, 4, 4, 4, 4], 12, capacity_factor=1)
    # The ring stores 12 of 20 rows, the oldest of which is next: three episodes start before it.
    assert slots.metric("reclaimed_episodes") == 3 and slots.metric("forgotten_episodes") == 0


def test_ratios_beyond_the_limit_are_clipped_and_remain_far():
    slots = Played([4, 4], 8)
    slots.told(slots.sample().indices, -80.0)
    assert float(np.abs(slots.state.sampler.log_ratio).max()) == 7
    assert slots.metric("far_share") > 0


def test_returns_have_the_units_of_scaled_rewards():
    def with_scales(scales, capacity, lasts, refresh_every):
        slots = Played([], capacity, 2, returns=True, refresh_every=refresh_every)
        for scale, last in zip(scales, lasts):
            feedback = dict.fromkeys(FRESH, 0.0) | {"reward_scale": scale}
            slots.add(feedback=feedback, reward=6.0, discount=0.5, last=last)
        count = np.arange(len(scales))
        return slots, _returns_of(slots.state.sampler.estimates, count)

    # 6 / 2 = 3, 3 + 3 / 2, 3 + 4.5 / 2
    _, found = with_scales([2.0] * 3, 8, (False, False, True), 1)
    np.testing.assert_allclose(found, [5.25, 4.5, 3.0])
    # A step with another scale changes the units of all returns without a refresh.
    slots, found = with_scales([1.0] * 4 + [4.0], 16, [False] * 5, 4)
    np.testing.assert_allclose(found, np.array([11.25, 10.5, 9.0, 6.0, 6.0]) / 4)
    # Feedback on an overwritten batch does not change the scale.
    told = {name: np.full(2, 8.0) for name in (*FRESH, "log_ratio", "reward_scale")}
    state = slots.update([0, 1], late=2, batch=slots.sample(), **told).state
    assert (int(state.dropped), float(state.sampler.estimates.reward_scale)) == (2, 4)


def test_episodes_are_forgotten_whole_and_do_not_return():
    for lengths in ([6, 5, 5, 5, 3], [6, 4, 4, 4, 20], [5, 5, 5, 5, 5, 1, 7]):
        slots, begun = Played(lengths, 12, capacity_factor=2), 0
        reward = np.asarray(_contents(slots.state.ring).reward)
        rewards = set(reward[sorted(slots.live())].astype(int).tolist())
        for length in lengths:
            inside = rewards & set(range(begun, begun + length))
            assert len(inside) in (0, length) or length > 12
            begun += length


def test_steps_that_are_not_finite_are_stored_as_zero_and_counted():
    slots = Played([], 16, 2, returns=True)
    for reward in (1.0, np.nan, np.inf, 1.0):
        slots.add(feedback=dict.fromkeys(FRESH, 0.0), reward=reward, discount=1.0, obs=np.nan)
    assert int(slots.state.dropped) == 4
    assert not np.any(_contents(slots.state.ring).obs)
    np.testing.assert_allclose(np.asarray(slots.state.sampler.estimates.q_ret)[:4], [2, 1, 1, 1])


def test_option_returns_requires_feedback_on_new_steps():
    with refused("add", "advantage", "next_value", "value"):
        Played([], 8, 2, returns=True).add()


def test_new_steps_have_one_step_estimates_until_the_next_refresh():
    """Q = r + discount V(s') scale: 1 + 0.9 * 3 * 2 = 6.4, and 1 after a termination or for NaN."""
    memory = ring.init(EXAMPLE, 6, num_envs=3)
    row = jax.tree.map(lambda x: np.stack([x] * 3), EXAMPLE)
    row = row._replace(reward=np.ones(3, np.float32), discount=np.float32([0.9, 0.0, 0.9]))
    values = dict.fromkeys(("value", "advantage"), np.zeros(3, np.float32))
    values |= {"next_value": np.float32([3, 3, np.nan]), "reward_scale": np.full(3, 2, np.float32)}
    add = jax.jit(estimates.add)
    state = add(estimates.init(memory), np.arange(3, dtype=np.int32), row, values)
    np.testing.assert_allclose(state.q_ret, [6.4, 1, 1, 0, 0, 0], rtol=1e-6)
