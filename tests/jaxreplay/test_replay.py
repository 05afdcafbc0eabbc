"""The verbs of a replay: sizes that are asked for on demand."""

import jax
import numpy as np
import pytest

from jaxreplay import make_replay, testing
from jaxreplay.methods import latest, per


def held(sampler, **sizes):
    sizes = {"capacity": 24, "batch_size": 8, "num_envs": testing.E} | sizes
    replay = make_replay(sampler, **sizes)
    return replay, jax.eval_shape(replay.init, jax.random.key(0), testing.EXAMPLE)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "batch_size is 0: it must be at least 1"),
        (25, "batch_size 25 is larger than the capacity 24"),
        (2.5, "batch_size is 2.5: it must be a whole number"),
        (True, "batch_size is True: it must be a whole number"),
    ],
)
def test_sizes_that_can_not_be_drawn_are_refused(size, message):
    replay, state = held(per.sampler())
    for verb in (replay.sample, replay.probability):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda s, k, verb=verb: verb(s, k, size), state, jax.random.key(0))
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda s: replay.can_sample(s, size), state)


def test_a_size_has_to_be_known_when_sample_is_compiled():
    replay, state = held(per.sampler())
    with pytest.raises(ValueError, match="static_argnames='batch_size'"):
        jax.eval_shape(jax.jit(replay.sample), state, jax.random.key(0), 4)
    sample = jax.jit(replay.sample, static_argnames="batch_size")
    _, batch = jax.eval_shape(lambda s, k: sample(s, k, batch_size=4), state, jax.random.key(0))
    assert batch.indices.shape == batch.weights.shape == (4,)


def test_whether_a_batch_can_be_drawn_depends_on_its_size():
    replay = make_replay(per.sampler(), capacity=8, batch_size=6, num_envs=2)
    state = replay.init(jax.random.key(0), {"a": np.float32(0)})
    for _ in range(2):
        state = replay.add(state, {"a": np.ones(2, np.float32)})
    assert [bool(replay.can_sample(state, size)) for size in (None, 4, 5)] == [False, True, False]


def test_on_policy_batches_have_their_size():
    replay, state = held(latest.sampler())
    with pytest.raises(ValueError, match=r"batch_size is 4: .* in batches of 8: leave it out"):
        jax.eval_shape(lambda s, k: replay.sample(s, k, 4), state, jax.random.key(0))
    jax.eval_shape(lambda s, k: replay.sample(s, k, 8), state, jax.random.key(0))
