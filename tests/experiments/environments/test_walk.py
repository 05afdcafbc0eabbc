"""Blind Cliffwalk, compared with plain Python and the papers' memory of all sequences."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.types import Discrete
from experiments import environments
from experiments.environments import types, walk
from experiments.papers import cliffwalk
from tests.refusals import refused


class PlainWalk:
    """Plain Python implementation of the walk."""

    def __init__(self, n):
        self.n, self.at = n, 0

    def step(self, action):
        """Return reward, termination, and the final observation."""
        if action != self.at % 2:  # over the cliff
            self.at = 0
            return 0.0, True, [0.0] * self.n
        self.at += 1
        if self.at == self.n:
            self.at = 0
            return 1.0, True, [0.0] * self.n
        return 0.0, False, self.seen()

    def seen(self):
        return [1.0 if self.at == state else 0.0 for state in range(self.n)]


def play(n, actions):
    """Take actions `[T]` after a reset; return observations before each step, and steps."""
    environment = environments.make(f"walk/{n}")

    def step(carry, action):
        after, seen, out = environment.step(jax.random.key(0), carry[0], action)
        return (after, seen), (carry[1], out)

    return jax.lax.scan(step, environment.reset(jax.random.key(0)), actions)[1]


def test_walk_of_three_states_equals_steps_worked_by_hand():
    # Correct three times (0, 1, 0); wrong; correct, then wrong; correct.
    seen, out = jax.device_get(play(3, jnp.array([0, 1, 0, 1, 0, 0, 0])))
    assert seen.argmax(axis=1).tolist() == [0, 1, 2, 0, 0, 1, 0]
    assert out.reward.tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert out.terminated.tolist() == [False, False, True, True, False, True, False]
    assert not out.truncated.any()
    assert out.final_obs.tolist() == [
        [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 1, 0]
    ]  # fmt: skip
    assert seen.dtype == out.final_obs.dtype == np.float32


def test_random_actions_match_plain_python():
    actions = np.random.default_rng(0).integers(0, 2, 600)
    seen, out = jax.device_get(play(4, jnp.asarray(actions)))
    plain = PlainWalk(4)
    for time, action in enumerate(actions):
        assert seen[time].tolist() == plain.seen()
        reward, over, final = plain.step(action)
        assert (out.reward[time], out.terminated[time]) == (reward, over)
        assert out.final_obs[time].tolist() == final
    # One of 2^4 episodes succeeds by chance: 19 of about 300.
    assert out.reward.sum() / out.terminated.sum() == pytest.approx(2**-4, rel=0.4)


@pytest.mark.parametrize("n", [2, 5])
def test_all_action_sequences_yield_the_memory_of_the_papers(n):
    sequences = np.array(list(itertools.product((0, 1), repeat=n)))
    walks = jax.vmap(functools.partial(play, n))(jnp.asarray(sequences))
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


def test_episodes_terminate_unless_a_shorter_limit_truncates_them():
    environment = environments.make("walk/6")
    assert environment.max_steps == 6 and environment.action_space == Discrete(2)
    cut = environments.make("walk/6", max_steps=2)
    state, _ = cut.reset(jax.random.key(0))
    for action in (0, 1):
        state, obs, out = cut.step(jax.random.key(0), state, jnp.int32(action))
    assert out.truncated and not out.terminated
    assert out.final_obs.argmax() == 2 and obs.argmax() == 0


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


@pytest.mark.parametrize("text", ["1", "65", "010", "+10", "1e1", "ten", "-3", "٣", "10/2"])
def test_other_names_are_refused_in_one_line(text):
    for call in (environments.make, environments.check, environments.action_kind):
        with refused(f"walk/{text}", "2", "64", "walk/10"):
            call(f"walk/{text}")
    with refused("'walk/'", "'walk/8'"):
        environments.check("walk/")
