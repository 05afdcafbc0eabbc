"""Own tasks, compared with steps worked by hand: walk, goals, memory and Pendulum*."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.types import Continuous, Discrete
from experiments import environments
from experiments.environments import goals, types, walk
from experiments.environments.sparse_pendulum import Pendulum, count_upright, reward, swing
from experiments.environments.types import CompiledConfig
from experiments.papers import cliffwalk
from experiments.runs import assembly, run_config
from experiments.training.loop import make_train
from tests.refusals import refused


@functools.partial(jax.jit, static_argnums=0)
def rollout(name, actions):
    """Take actions `[T, ...]` after a reset; return observations before each step, and steps."""
    environment = environments.make(name)

    def step(carry, given):
        key, action = given
        after, seen, out = environment.step(key, carry[0], action)
        return (after, seen), (carry[1], out)

    keys = jax.random.split(jax.random.key(1), len(actions))
    start = environment.reset(jax.random.key(0))
    return jax.lax.scan(step, start, (keys, actions))[1]


def play(name, actions):
    return jax.device_get(rollout(name, np.asarray(actions)))


@functools.cache
def compiled(name):
    """Return an environment, its reset and its step."""
    environment = environments.make(name)
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


def test_bit_flipping_ends_when_all_bits_match_the_goal():
    n = 4
    actions = np.random.default_rng(0).integers(0, n, 400)
    environment = environments.make(f"goals/BitFlip-{n}")
    seen, out = play(environment.name, actions)
    assert environment.action_space == Discrete(n) and environment.max_steps == n
    assert set(seen.ravel().tolist()) == {0.0, 1.0}
    steps, ends = 0, {"terminated": 0, "truncated": 0}
    for time, action in enumerate(actions):
        bits, desired = seen[time].tolist()[:n], seen[time].tolist()[n:]
        bits[action] = 1 - bits[action]
        steps += 1
        assert out.final_obs[time].tolist() == bits + desired
        assert bool(out.terminated[time]) == (bits == desired)
        assert out.reward[time] == (0 if bits == desired else -1)
        assert bool(out.truncated[time]) == (steps == n and bits != desired)
        for name in ends:
            ends[name] += int(getattr(out, name)[time])
        steps = 0 if out.terminated[time] or out.truncated[time] else steps
    assert min(ends.values()) > 10


def test_point_mass_accelerates_and_stops_at_walls():
    actions = np.random.default_rng(0).uniform(-1, 1, (300, 2)).astype(np.float32)
    actions[100:] = np.sign(actions[100])  # into a corner
    environment = environments.make("goals/PointReach")
    seen, out = play(environment.name, actions)
    assert environment.action_space == Continuous(2) and environment.max_steps == 50
    hits = 0
    for time, action in enumerate(actions):
        velocity, position, desired = np.split(seen[time], 3)
        velocity = 0.8 * velocity + 0.05 * action
        position = position + velocity
        velocity = np.where(np.abs(position) < 1, velocity, 0)
        hits += int((np.abs(position) > 1).any())
        position = np.clip(position, -1, 1)
        expected = np.concatenate([velocity, position, desired])
        np.testing.assert_allclose(out.final_obs[time], expected, atol=1e-6)
        reached = bool(np.linalg.norm(position - desired) <= 0.1)
        assert bool(out.terminated[time]) == reached
        assert out.reward[time] == (0 if reached else -1)
    assert hits > 10 and out.truncated.any()


@pytest.mark.parametrize("name", goals.ACTIONS)
def test_replayed_goals_equal_goals_of_the_task(name):
    full = f"goals/{name}"
    continuous = environments.action_kind(full) == "continuous"
    actions = np.ones((60, 2), np.float32) if continuous else np.arange(60) % 8
    environment, (seen, out) = environments.make(full), play(full, actions)
    task = environment.goals
    assert environment.spec.goals == task and environments.has_goals(full)
    assert environments.make("walk/4").goals is None and not environments.has_goals("walk/4")
    reward, terminated = task.reward(task.achieved(out.final_obs), task.desired(out.final_obs))
    np.testing.assert_array_equal(reward, out.reward)
    np.testing.assert_array_equal(terminated, out.terminated)
    moved = task.replace(seen, task.achieved(seen))
    np.testing.assert_array_equal(task.desired(moved), task.achieved(seen))
    assert task.reward(task.achieved(moved), task.desired(moved))[1].all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replay", "options", "low", "high"),
    [
        ("her", {}, -6.0, 0.0),  # optimal: about -4.0
        ("her", {"over": "per"}, -6.0, 0.0),
        ("uniform", {}, -10.0, -7.5),  # worst: -10
    ],
)
def test_hindsight_solves_tasks_that_uniform_replay_does_not(replay, options, low, high):
    """Random actions reach 10 desired bits in about 1 % of episodes."""
    config = run_config.defaults("goals/BitFlip-10", "dqn", replay)
    chosen = dataclasses.replace(config.replay_options, **options)
    loop = dataclasses.replace(
        config.loop, steps=6_000, n_step=1, eval_every=6_000, eval_episodes=100
    )
    config = dataclasses.replace(config, replay_options=chosen, loop=loop, seeds=1)
    parts = assembly.assemble(config)
    train = make_train(parts.environment, parts.agent, parts.replay, loop)
    found = float(jax.jit(train)(jax.random.key(0))[1]["eval_return"][-1])
    assert low <= found < high


def test_walk_of_three_states_equals_steps_worked_by_hand():
    # Correct three times (0, 1, 0); wrong; correct, then wrong; correct.
    seen, out = play("walk/3", [0, 1, 0, 1, 0, 0, 0])
    assert seen.argmax(axis=1).tolist() == [0, 1, 2, 0, 0, 1, 0]
    assert out.reward.tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert out.terminated.tolist() == [False, False, True, True, False, True, False]
    assert not out.truncated.any()
    assert out.final_obs.tolist() == [
        [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 1, 0]
    ]  # fmt: skip
    assert seen.dtype == out.final_obs.dtype == np.float32


def test_all_action_sequences_yield_the_memory_of_the_papers():
    n = 5
    sequences = np.array(list(itertools.product((0, 1), repeat=n)))
    walks = jax.jit(jax.vmap(functools.partial(rollout, f"walk/{n}")))(sequences)
    seen, out = jax.device_get(walks)
    taken = np.cumsum(out.terminated, axis=1) - out.terminated == 0  # up to the first termination
    assert (out.reward * taken).sum() == 1
    best = int(np.argmax((out.reward * taken).sum(axis=1)))
    np.testing.assert_array_equal(sequences[best], walk.right_action(np.arange(n)))
    found = np.stack([seen.argmax(-1), sequences, out.reward, out.terminated], axis=-1)[taken]
    held = cliffwalk.memory(jax.random.key(0), n)
    stored = np.stack([held.obs, held.action, held.reward, held.last], axis=-1)
    assert len(found) == 2 ** (n + 1) - 2
    assert sorted(found.tolist()) == sorted(stored.tolist())


def test_environments_of_unlisted_lengths_can_be_made():
    assert "walk/10" in environments.names() and "walk/13" not in environments.names()
    assert environments.make("walk/13").spec.obs.shape == (13,)
    assert environments.action_kind("walk/13") == environments.action_kind("walk/10") == "discrete"
    assert environments.missing("walk/13") is None and not environments.is_host("walk/13")
    for n in (types.SIZES[0], types.SIZES[-1]):
        assert environments.make(f"walk/{n}").max_steps == n
    state, render = environments.make("walk/13").reset(None)[0], environments.renderer("walk/13")
    for position in (0, 3, 12):  # the frame shows the position
        picture = render(state._replace(inner=walk.Walker(np.int32(position)))).astype(int)
        blue = (picture[..., 2] - picture[..., 0]) > 100
        assert np.nonzero(blue)[1].mean() == pytest.approx(24 * (position + 0.5), abs=1)


def played(name, actions, seed):
    """Return the cue of an episode, its observations, and the results of its steps."""
    _, reset, step = compiled(name)
    state, obs = reset(jax.random.key(seed))
    cue, seen, outs = int(state.inner.cue), [obs], []
    for time, action in enumerate(actions):
        state, _, out = step(jax.random.key(time), state, np.int32(action))
        seen.append(out.final_obs)
        outs.append(out)
    return cue, np.array(seen), outs


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("turn", [1, 2])
def test_maze_equals_steps_worked_by_hand(seed, turn):
    # Turning in the corridor or walking on at the junction costs 0.1 without moving.
    cue, seen, outs = played("memory/TMaze-3", [1, 0, 2, 0, 0, 0, turn], seed)
    assert cue == (-1, 1)[seed]
    expected = [
        [cue, 0, 0], [cue, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 1, 0], [0, 1, 0], [0, 1, 0]
    ]  # fmt: skip
    np.testing.assert_array_equal(seen, expected)
    rewards = [float(out.reward) for out in outs]
    won = (turn == 1) == (cue == 1)
    np.testing.assert_allclose(rewards, [-0.1, 0, -0.1, 0, 0, -0.1, 1 if won else -1])
    assert [bool(out.terminated) for out in outs] == [False] * 6 + [True]


@pytest.mark.parametrize("seed", [0, 1])
def test_chain_equals_steps_worked_by_hand(seed):
    cue, seen, outs = played("memory/Chain-4", [0, 1, 0, 0, 1], seed)
    assert cue == (-1, 1)[seed]
    np.testing.assert_allclose(
        seen[:5], [[cue, 1], [0, 0.75], [0, 0.5], [0, 0.25], [0, 0]], atol=1e-6
    )
    assert [float(out.reward) for out in outs] == [0, 0, 0, 0, cue]
    assert [bool(out.terminated) for out in outs] == [False] * 4 + [True]
    assert not any(out.truncated for out in outs)


def test_cues_are_fair_and_mazes_end():
    environment, reset, _ = compiled("memory/TMaze-5")
    states, _ = jax.vmap(reset)(jax.random.split(jax.random.key(0), 1_000))
    assert abs(float(states.inner.cue.mean())) < 0.13  # four standard errors
    assert environment.max_steps == 28
    _, _, outs = played("memory/TMaze-5", [1] * 28, 0)
    assert [bool(out.truncated) for out in outs] == [False] * 27 + [True]


NAME = "sparse_pendulum/Pendulum-v0"


@pytest.mark.parametrize(
    ("angle", "speed", "torque", "expected"),
    [
        (np.pi / 4, 0.5, 1.0, (0.8444146677, 1.1803300859)),
        (np.pi / 2, 7.8, 2.0, (2.0132963268, 8.0)),  # the angle uses the unclipped speed
        (-3.0, 0.0, 5.0, (-2.9902920, 0.19415999)),  # the torque is clipped to 2
    ],
)
def test_dynamics_equal_values_worked_by_hand(angle, speed, torque, expected):
    found = swing(jnp.float32(angle), jnp.float32(speed), jnp.float32(torque))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def total(angles):
    upright, returned = jnp.zeros((), jnp.int32), 0.0
    for angle in angles:
        upright = count_upright(upright, jnp.float32(angle))
        returned += float(reward(upright))
    return returned


def test_reward_requires_twenty_consecutive_steps_in_the_region():
    assert total([0.0] * 30 + [2.0] + [1.0] * 25) == 10 + 0 + 5
    assert total([0.1] * 200) == 180
    assert total([1.0, 2.0] * 100) == 0
    for angle, expected in ((np.pi / 3 - 1e-5, 1), (np.pi / 3 + 1e-5, 0), (np.pi, 0),
                            (2 * np.pi + 0.1, 1), (-4 * np.pi - 1.0, 1)):  # fmt: skip
        assert total([angle] * 21) == expected


def test_starts_are_uniform_over_all_angles_and_slow_speeds():
    reset = environments.make(NAME).reset
    state, _ = jax.jit(jax.vmap(reset))(jax.random.split(jax.random.key(0), 4000))
    for values, bound in ((state.inner.angle, np.pi), (state.inner.speed, 1.0)):
        deciles, _ = np.histogram(values, bins=10, range=(-bound, bound))
        assert deciles.sum() == 4000, "a start lies outside its range"
        assert np.abs(deciles - 400).max() < 100  # 5 standard deviations of 19
    assert abs(np.corrcoef(state.inner.angle, state.inner.speed)[0, 1]) < 0.1
    assert (state.inner.upright == 0).all()


def one_step(angle, speed, upright, action):
    _, reset, step = compiled(NAME)
    state, _ = reset(jax.random.key(0))
    inner = Pendulum(jnp.float32(angle), jnp.float32(speed), jnp.int32(upright))
    action = np.full(1, action, np.float32)
    state, _, out = step(jax.random.key(1), state._replace(inner=inner), action)
    assert not out.terminated and not out.truncated
    return int(state.inner.upright), float(out.reward), np.asarray(out.final_obs)


@pytest.mark.parametrize(
    ("angle", "speed", "upright", "expected"),
    [
        (0.0, 0.0, 19, (20, 0.0)),
        (0.0, 0.0, 20, (21, 1.0)),
        (1.0, 4.0, 30, (0, 0.0)),  # leaves the region in this step
        (1.1, -4.0, 0, (1, 0.0)),  # enters the region in this step
    ],
)
def test_steps_count_and_reward_the_next_angle(angle, speed, upright, expected):
    assert one_step(angle, speed, upright, 0.0)[:2] == expected


@pytest.mark.parametrize(
    ("action", "torque"), [(0.25, 0.5), (1.0, 2.0), (-1.0, -2.0), (-9.0, -2.0)]
)
def test_actions_are_scaled_to_the_torque_and_clipped(action, torque):
    speed = 0.15 * torque  # 3 torque * 0.05 s, from upright at rest
    expected = [np.cos(0.05 * speed), np.sin(0.05 * speed), speed]
    np.testing.assert_allclose(one_step(0.0, 0.0, 0, action)[2], expected, atol=1e-6)


def test_options_are_given_as_a_config_or_by_name():
    assert environments.make(NAME, max_steps=None).max_steps == 200
    with refused("max_steps", "0"):
        environments.make(NAME, max_steps=0)
    with refused(NAME, "--env.backend"):
        environments.make(NAME, backend="spring")
    config = environments.options(NAME, max_steps=7)
    assert config == CompiledConfig(max_steps=7)
    assert environments.make(NAME, config).max_steps == 7
    assert environments.make(NAME, config, max_steps=8).max_steps == 8
    with refused(NAME, "CompiledConfig", "BraxConfig"):
        environments.make(NAME, environments.options("brax/ant"))
