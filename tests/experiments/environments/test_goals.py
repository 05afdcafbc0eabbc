"""Goal-conditioned tasks: comparison with plain Python, and learning with hindsight."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.types import Continuous, Discrete
from experiments import environments
from experiments.environments import goals
from experiments.runs import assembly, run_config
from experiments.training.loop import make_train
from tests.refusals import refused


def play(name, actions, seed=0):
    """Take actions `[T, ...]` after a reset; return observations before each step, and steps."""
    environment = environments.make(name)

    def step(carry, given):
        key, action = given
        after, seen, out = environment.step(key, carry[0], action)
        return (after, seen), (carry[1], out)

    keys = jax.random.split(jax.random.key(seed + 1), len(actions))
    start = environment.reset(jax.random.key(seed))
    _, steps = jax.lax.scan(step, start, (keys, jnp.asarray(actions)))
    return environment, *jax.device_get(steps)


def test_bit_flipping_ends_when_all_bits_match_the_goal():
    n = 4
    actions = np.random.default_rng(0).integers(0, n, 400)
    environment, seen, out = play(f"goals/BitFlip-{n}", actions)
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
    environment, seen, out = play("goals/PointReach", actions)
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
    environment, seen, out = play(full, actions)
    task = environment.goals
    assert environment.spec.goals == task and environments.has_goals(full)
    reward, terminated = task.reward(task.achieved(out.final_obs), task.desired(out.final_obs))
    np.testing.assert_array_equal(reward, out.reward)
    np.testing.assert_array_equal(terminated, out.terminated)
    moved = task.replace(seen, task.achieved(seen))
    np.testing.assert_array_equal(task.desired(moved), task.achieved(seen))
    assert task.reward(task.achieved(moved), task.desired(moved))[1].all()


def test_other_tasks_have_no_goals():
    assert environments.make("walk/4").goals is None
    assert not environments.has_goals("walk/4")


@pytest.mark.parametrize("name", ["BitFlip-1", "BitFlip-65", "BitFlip-ten", "BitFlip-"])
def test_invalid_numbers_of_bits_are_refused(name):
    with refused(f"goals/{name}", "2", "64"):
        environments.make(f"goals/{name}")


@pytest.mark.parametrize("name", ["BitFlip-3", "PointReach"])
def test_states_are_rendered(name):
    environment = environments.make(f"goals/{name}")
    render = environments.renderer(f"goals/{name}")
    pictures = []
    for seed in range(2):
        pictures.append(render(environment.reset(jax.random.key(seed))[0]))
        assert pictures[-1].dtype == np.uint8 and pictures[-1].ndim == 3
    assert not np.array_equal(*pictures)


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
