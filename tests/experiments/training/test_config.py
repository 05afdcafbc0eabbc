"""Sizes of a replay, and requirements of replay methods."""

import pytest

from experiments.training.config import LoopConfig, ReplaySizes, check
from jaxreplay import Replay
from jaxreplay.methods import latest, refer, uniform
from tests.refusals import refused

LOOP = {"n_step": 1, "learn_every": 1, "updates": 1, "warmup": 8}


@pytest.mark.parametrize(
    ("sizes", "steps", "capacity"),
    [
        (ReplaySizes(), 500, 500),
        (ReplaySizes(num_envs=3), 500, 501),  # a multiple of num_envs
        (ReplaySizes(), 10, 64),  # space for a batch
        (ReplaySizes(), 2_000_000, 1_000_000),
        (ReplaySizes(capacity=100), 500, 100),
    ],
)
def test_default_capacity_follows_from_the_length_of_the_run(sizes, steps, capacity):
    assert sizes.resolve(steps).capacity == capacity


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        (ReplaySizes(), ("capacity", "none")),
        (ReplaySizes(capacity=32), ("batch_size", "64", "capacity", "32")),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, parts):
    with refused(*parts):
        sizes.make(uniform.sampler())


def replay_of(sampler):
    return Replay(sampler, capacity=16, batch_size=4)


@pytest.mark.parametrize(
    ("sampler", "loop", "parts"),
    [
        (refer.sampler(), {"n_step": 3}, ("n_step", "3", "1")),
        (refer.sampler(), {"warmup": 17}, ("warmup", "17", "16")),
        (latest.sampler(), {}, ("updates", "4", "learn_every")),
        (latest.sampler(), {"learn_every": 4, "updates": 2}, ("updates", "1", "learn_every")),
        (latest.sampler(), {"learn_every": 4, "offline": True}, ("offline",)),
        (uniform.sampler(), {"warmup": 3}, ("warmup", "3", "4")),
    ],
)
def test_methods_reject_loops_without_their_requirements(sampler, loop, parts):
    with refused(*parts):
        check(LoopConfig(**LOOP | loop), replay_of(sampler))
