"""Hindsight replay compared with lists of episodes in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, SharedObservations, Transition, Transitions, testing
from jaxreplay import ring as ring_
from jaxreplay.methods import her, per, rank, uniform
from jaxreplay.methods.her import HERConfig
from jaxreplay.types import Goals
from tests.methods import compiled, quick
from tests.refusals import refused

E, STEPS, GAMMA = 3, 10, 0.9
EXAMPLE = Transition(
    obs=np.zeros(4, np.float32),  # step number, unused, achieved goal, desired goal
    action=np.int32(0),
    reward=np.float32(0),
    discount=np.float32(0),
    next_obs=np.zeros(4, np.float32),
    first=np.bool_(0),
    last=np.bool_(0),
)


def reached(achieved, desired):
    same = (achieved == desired).all(axis=-1)
    return same - 1.0, same


TASK = Goals(reached, size=1)


class Lists:
    """Steps of E environments: one dict per step, in `episodes[env][episode][step]`."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.episodes = [[] for _ in range(E)]
        self.left = np.zeros(E, int)  # steps until the current episode ends
        self.count = 0

    def step(self):
        """Return the next transitions `[E, ...]`; every step achieves a different goal."""
        rows = []
        for env in range(E):
            if first := self.left[env] == 0:
                self.episodes[env].append([])
                self.left[env] = self.random.integers(1, 2 * STEPS)
            self.left[env] -= 1
            number, last = float(self.count * E + env + 1), bool(self.left[env] == 0)
            how = self.random.choice(["reached", "failed", "truncated"]) if last else "goes on"
            goal = number if how == "reached" else -1.0
            row = {
                "number": number, "goal": goal, "first": bool(first), "last": last, "how": how,
                "time": self.count,
            }  # fmt: skip
            self.episodes[env][-1].append(row)
            rows.append(row)
        self.count += 1
        return self.transitions(rows)

    def transitions(self, rows):
        def column(name):
            return np.array([row[name] for row in rows], np.float32)

        number, goal, blank = column("number"), column("goal"), np.zeros(len(rows), np.float32)
        ended = np.array([row["how"] in ("reached", "failed") for row in rows])
        return Transition(
            obs=np.stack([number, blank, number - 0.5, goal], axis=1),
            action=number.astype(np.int32),
            reward=np.where(number == goal, 0.0, -1.0).astype(np.float32),
            discount=np.where(ended, 0.0, GAMMA).astype(np.float32),
            next_obs=np.stack([number, blank, number, goal], axis=1),
            first=column("first").astype(bool),
            last=column("last").astype(bool),
        )

    def stored(self, strategy):
        """Map the number of each stored step to its row and to its candidate goals."""
        found = {}
        for episode in (episode for env in self.episodes for episode in env):
            held = [row for row in episode if row["time"] >= self.count - STEPS]
            for at, row in enumerate(held):
                choice = {"future": held[at:], "final": held[-1:], "episode": held}[strategy]
                found[row["number"]] = row, [other["number"] for other in choice]
        return found


@functools.cache
def made(inner, config, batch_size):
    sampler = her.Hindsight(inner, config, TASK)
    replay = Replay(sampler, capacity=E * STEPS, batch_size=batch_size, num_envs=E)
    return replay, compiled(replay)


def filled(strategy, steps, inner=uniform.sampler(), k=4.0, seed=0, batch_size=30):
    replay, fast = made(inner, HERConfig(strategy=strategy, k=k), batch_size)
    lists = Lists(seed)
    state = fast.init(jax.random.key(0), EXAMPLE)
    for _ in range(steps):
        state = fast.add(state, lists.step())
    return replay, state, lists


@functools.cache
def many(replay):
    return jax.jit(jax.vmap(replay.sample, (None, 0)))


def drawn(replay, state, keys=400):
    """Return the transitions of many batches as one batch, and which of them are relabelled."""
    keys = jax.random.split(jax.random.key(1), keys)
    batch = many(replay)(state, keys)
    batch = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), batch)
    return batch.transition, batch.aux.relabelled


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("steps", [4, 23, 47])
def test_goals_are_uniform_over_the_candidates_of_the_same_episode(strategy, steps):
    replay, state, lists = filled(strategy, steps)
    t, relabelled = drawn(replay, state)
    stored = lists.stored(strategy)
    assert set(t.next_obs[:, 0].tolist()) == set(stored)
    assert abs(relabelled.mean() - 0.8) < 0.02
    for number, (row, goals) in stored.items():
        mine = (t.next_obs[:, 0] == number) & relabelled
        found, counts = np.unique(t.next_obs[mine, 3], return_counts=True)
        assert set(found.tolist()) == set(goals)
        mean = mine.sum() / len(goals)
        assert (np.abs(counts - mean) < 5 * np.sqrt(mean)).all()
        success = t.next_obs[mine, 3] == number
        np.testing.assert_array_equal(t.reward[mine], success - 1.0)
        stops = success | (row["how"] == "failed")
        np.testing.assert_array_equal(t.discount[mine], np.where(stops, 0, np.float32(GAMMA)))


def test_relabelling_changes_only_goal_reward_and_discount():
    replay, state, lists = filled("future", 23)
    t, relabelled = drawn(replay, state, keys=20)
    rows = [lists.stored("future")[number][0] for number in t.next_obs[:, 0].tolist()]
    expected = lists.transitions(rows)
    for name in ("action", "first", "last"):
        np.testing.assert_array_equal(getattr(t, name), getattr(expected, name))
    for name in ("obs", "next_obs"):
        ours, theirs = getattr(t, name), getattr(expected, name)
        np.testing.assert_array_equal(ours[:, :3], theirs[:, :3])
        np.testing.assert_array_equal(ours[~relabelled], theirs[~relabelled])
    np.testing.assert_array_equal(t.obs[:, 3], t.next_obs[:, 3])
    for name in ("reward", "discount"):
        np.testing.assert_array_equal(
            getattr(t, name)[~relabelled], getattr(expected, name)[~relabelled]
        )


def test_relabelling_with_the_own_goal_changes_nothing():
    lists = Lists(3)
    t = jax.tree.map(lambda *x: np.concatenate(x), *[lists.step() for _ in range(20)])
    assert {0.0, np.float32(GAMMA)} == set(t.discount.tolist())
    again = her.relabel(TASK, t, TASK.desired(t.next_obs), GAMMA)
    testing.same(again, t)


@pytest.mark.parametrize("strategy", ["future", "final"])
def test_batches_do_not_depend_on_the_storage_of_observations(strategy):
    """In every episode of six steps, next_obs is the following observation."""
    batches = []
    for storage in (Transitions(), SharedObservations(spare=1.0)):
        sampler = her.Hindsight(per.sampler(), HERConfig(strategy=strategy), TASK)
        replay = compiled(Replay(sampler, capacity=16, batch_size=16, num_envs=2, storage=storage))
        state = replay.init(jax.random.key(0), EXAMPLE)
        for time in range(21):
            obs = np.zeros((2, 4), np.float32)
            obs[:, 2] = time + 100 * np.arange(2) + time // 6  # plus one after every last step
            after = obs + np.array([0, 0, 1, 0], np.float32)
            edges = np.full(2, time % 6 == 0), np.full(2, time % 6 == 5)
            row = jax.tree.map(lambda x: np.stack([x, x]), EXAMPLE)
            row = row._replace(obs=obs, next_obs=after, discount=np.full(2, GAMMA, np.float32))
            state = replay.add(state, row._replace(first=edges[0], last=edges[1]))
        batches.append(replay.sample(state, jax.random.key(1)))
        slots = np.arange(16)
        whole = jax.jit(ring_.gather)(state.ring, slots).next_obs
        part = jax.jit(lambda ring: ring_.gather_part(ring, slots, "next_obs", range(1, 3)))
        testing.same(part(state.ring), whole[:, 1:3])
    testing.same(*batches)


INNER = {"uniform": uniform.sampler(), "per": per.sampler(), "rank": rank.sampler()}


@pytest.mark.parametrize("name", quick(INNER, of=("per",)))
def test_slots_weights_and_probabilities_equal_those_of_the_inner_sampler(name):
    def run(sampler):
        replay = compiled(Replay(sampler, capacity=E * STEPS, batch_size=8, num_envs=E))
        state, lists = replay.init(jax.random.key(0), EXAMPLE), Lists(0)
        for time in range(14):
            state = replay.add(state, lists.step())
            if time > 3:
                batch = replay.sample(state, jax.random.key(time))
                td_error = np.float32(batch.indices) - 9.5
                state = replay.update(state, batch, td_error=td_error)
        return batch, replay.probability(state, np.arange(E * STEPS))

    ours, chances = run(her.Hindsight(INNER[name], HERConfig(write_back=True), TASK))
    theirs, expected = run(INNER[name])
    testing.same(ours._replace(aux=None, transition=None), theirs._replace(transition=None))
    testing.same(chances, expected)
    ours, chances = run(her.Hindsight(INNER[name], HERConfig(k=0.0), TASK))
    testing.same(ours._replace(aux=None), theirs)
    testing.same(chances, expected)


def test_only_transitions_that_are_not_relabelled_change_priorities():
    replay, state, _ = filled("future", 23, per.sampler(), batch_size=8)
    fast, slots = compiled(replay), np.arange(8, dtype=np.int32)
    batch = fast.sample(state, jax.random.key(0))
    batch = batch._replace(indices=slots, version=jax.jit(ring_.version)(state.ring, slots))
    after = fast.update(state, batch, td_error=np.full(8, 50, np.float32))
    relabelled = np.asarray(batch.aux.relabelled)
    assert 0 < relabelled.sum() < 8
    nodes, before = (np.asarray(s.sampler.inner.tree.nodes[0, :8]) for s in (after, state))
    np.testing.assert_array_equal(nodes != before, ~relabelled)
    assert int(after.dropped) == 0
    share = replay.metrics(after)["relabelled_terminated"]
    stops = np.asarray(batch.transition.discount)[relabelled] == 0
    np.testing.assert_allclose(share, stops.mean())


def test_goals_of_an_ended_episode_do_not_reach_the_next():
    replay, state, lists = filled("episode", 4)
    state = jax.jit(replay.end_episodes)(state)
    before = set(lists.stored("episode"))
    for env in range(E):
        lists.episodes[env].append([])
    lists.left[:] = 5
    state = jax.jit(replay.add)(state, lists.step())  # `first` is false
    t, relabelled = drawn(replay, state, keys=50)
    new = ~np.isin(t.next_obs[:, 0], list(before)) & relabelled
    assert new.any()
    np.testing.assert_array_equal(t.next_obs[new, 3], t.next_obs[new, 0])


def test_replays_of_different_fill_levels_can_be_vmapped():
    replay, short, _ = filled("future", 4, seed=1)
    _, long, _ = filled("future", 23, seed=2)
    both = jax.tree.map(lambda *x: jnp.stack(x), short, long)
    found = jax.jit(jax.vmap(replay.sample, (0, None)))(both, jax.random.key(3))
    for at, state in enumerate((short, long)):
        expected = jax.jit(replay.sample)(state, jax.random.key(3))
        testing.same(jax.tree.map(lambda x, at=at: x[at], found), expected)


def test_invalid_options_and_goal_tasks_are_refused():
    with refused("strategy", "future", "final", "episode", "random"):
        HERConfig(strategy="random")  # pyright: ignore[reportArgumentType]
    with refused("k", "0", "-1"):
        HERConfig(k=-1.0)
    with refused("goals", "for_goals"):
        Replay(her.sampler(), capacity=8, batch_size=4)
    large = dataclasses.replace(TASK, size=3)
    replay = Replay(her.sampler().for_goals(large), capacity=8, batch_size=4)
    with refused("obs", "6", "4"):
        replay.init(jax.random.key(0), EXAMPLE)
