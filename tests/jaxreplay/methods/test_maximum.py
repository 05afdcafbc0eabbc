"""Priorities of new transitions: the maximum of all time or of the stored transitions."""

import jax
import numpy as np
import pytest

from jaxreplay import Replay, Transition, sum_tree
from jaxreplay.contrib import eper, relo
from jaxreplay.methods import lap, per, proportional, rank
from jaxreplay.methods.parts import bucket_order
from tests.methods import compiled

EXAMPLE = Transition(reward=np.float32(0))
ROW = Transition(reward=np.zeros(1, np.float32))
CONFIGS = {
    "per": per.PERConfig(alpha=1.0, epsilon=0.0), "rank": rank.RankConfig(),
    "lap": lap.LAPConfig(alpha=1.0, kappa=0.125),
    "relo": relo.ReLoConfig(alpha=1.0, epsilon=0.0),
    "eper": per.PERConfig(alpha=1.0, epsilon=0.0),
}  # fmt: skip
MODULES = {"per": per, "rank": rank, "lap": lap, "relo": relo, "eper": eper}


def sampler_of(name, maximum):
    config = CONFIGS[name].__class__(**{**vars(CONFIGS[name]), "maximum": maximum})
    return MODULES[name].sampler(config)


def priorities(state):
    sampler = state.sampler
    if isinstance(sampler, rank.RankState):
        return np.asarray(bucket_order.values(sampler.order))
    return sum_tree.leaves(jax.device_get(sampler.tree))


def update(replay, state, td):
    """Update slots 0 to 3; the newest is slot `steps_added - 1` modulo 4."""
    slots, added = np.arange(4, dtype=np.int32), int(state.ring.steps_added)
    batch = replay.sample(state, jax.random.key(0))
    batch = batch._replace(indices=slots, version=added - (added - 1 - slots) % 4)
    feedback = dict.fromkeys(("td_error", "reducible_loss", "expected_td_error"), np.float32(td))
    return replay.update(state, batch, **feedback)


@pytest.mark.parametrize("maximum", ["all_time", "stored"])
@pytest.mark.parametrize("name", CONFIGS)
def test_new_transitions_get_the_maximum(name, maximum):
    replay = compiled(Replay(sampler_of(name, maximum), capacity=4, batch_size=4))
    state = replay.init(jax.random.key(0), EXAMPLE)
    for _ in range(4):
        state = replay.add(state, ROW)
    np.testing.assert_allclose(priorities(state), [1, 1, 1, 1])
    state = update(replay, state, [0.5, 50.0, 0.25, 2.0])  # slot 1 is an outlier
    state = replay.add(state, ROW)
    np.testing.assert_allclose(priorities(state), [50, 50, 0.25, 2], rtol=1e-5)
    state = update(replay, state, [0.5, 0.125, 0.25, 2.0])
    state = replay.add(state, ROW)
    new = 2 if maximum == "stored" else 50
    np.testing.assert_allclose(priorities(state), [0.5, new, 0.25, 2], rtol=1e-5)
    np.testing.assert_allclose(replay.metrics(state)["max_priority"], new, rtol=1e-5)
    (rank if name == "rank" else proportional).check_valid(state.sampler, state.ring)


@pytest.mark.parametrize("name", CONFIGS)
def test_stored_maximum_excludes_the_transition_that_is_overwritten(name):
    replay = compiled(Replay(sampler_of(name, "stored"), capacity=4, batch_size=4))
    state = replay.init(jax.random.key(0), EXAMPLE)
    for _ in range(4):
        state = replay.add(state, ROW)
    state = update(replay, state, [50.0, 0.5, 0.25, 2.0])
    state = replay.add(state, ROW)  # overwrites the outlier
    np.testing.assert_allclose(priorities(state), [2, 0.5, 0.25, 2], rtol=1e-5)
    (rank if name == "rank" else proportional).check_valid(state.sampler, state.ring)


@pytest.mark.parametrize("name", ["per", "rank"])
def test_new_transitions_get_1_if_all_priorities_are_0(name):
    replay = compiled(Replay(sampler_of(name, "stored"), capacity=4, batch_size=4))
    state = replay.init(jax.random.key(0), EXAMPLE)
    for _ in range(4):
        state = replay.add(state, ROW)
    state = replay.add(update(replay, state, [0.0] * 4), ROW)
    np.testing.assert_allclose(priorities(state), [1, 0, 0, 0])


@pytest.mark.parametrize("name", CONFIGS)
def test_all_time_stores_no_array_for_the_maximum(name):
    replay = Replay(sampler_of(name, "all_time"), capacity=4, batch_size=4)
    assert replay.init(jax.random.key(0), EXAMPLE).sampler.maximum is None
