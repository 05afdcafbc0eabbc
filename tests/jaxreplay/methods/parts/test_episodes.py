"""Choice of episodes to forget, compared with the paper's rule applied one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay.methods.parts.episodes import choose_forgotten


def by_hand(share, steps, oldness, memory):
    """Forget the worst episode, the oldest of equals, until the rest fits; keep at least one."""
    share = np.float32(share)
    left = [i for i in range(len(steps)) if steps[i] > 0]
    gone = []
    while sum(steps[i] for i in left) > memory and len(left) > 1:
        worst = max(left, key=lambda i: (share[i], oldness[i]))
        left.remove(worst)
        gone.append(worst)
    return sorted(gone)


def forgotten(share, steps, oldness, memory):
    arrays = jnp.asarray(share, jnp.float32), jnp.asarray(steps), jnp.asarray(oldness)
    return np.flatnonzero(jax.jit(choose_forgotten)(*arrays, memory)).tolist()


STEPS = [300, 200, 250, 200, 150]
FAR = [30, 90, 25, 10, 75]
OLDNESS = [5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("memory", "gone"), [(1000, [4]), (700, [0, 1, 4]), (1100, []), (10**6, [])]
)
def test_episodes_with_the_largest_far_policy_share_are_forgotten_first(memory, gone):
    share = np.divide(FAR, STEPS)
    assert forgotten(share, STEPS, OLDNESS, memory) == gone


def test_the_oldest_of_equal_episodes_are_forgotten_first():
    assert forgotten(np.zeros(5), STEPS, OLDNESS, 1000) == [0]
    assert forgotten(np.zeros(5), STEPS, OLDNESS, 500) == [0, 1, 2]


def test_the_last_episode_is_kept_even_if_it_exceeds_the_memory():
    assert forgotten([0.3], [900], [0], 100) == []
    assert forgotten([0.3, 0.2], [900, 800], [1, 0], 100) == [0]
    assert forgotten([0.2, 0.2, 0.2], [9, 8, 7], [1, 2, 0], 1) == [0, 1]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.integers(1, 300))
def test_choices_equal_those_of_the_rule_applied_one_by_one(data, memory):
    count = 12  # one shape, so that it compiles once
    steps = data.draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    share = data.draw(
        st.lists(st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 1.0]), min_size=count, max_size=count)
    )
    oldness = data.draw(st.permutations(range(0, 7 * count, 7)))
    assert forgotten(share, steps, oldness, memory) == by_hand(share, steps, oldness, memory)
