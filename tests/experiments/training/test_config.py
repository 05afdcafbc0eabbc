"""Sizes of a replay, and the replay that is made of them."""

import pytest

from experiments.training.config import ReplaySizes
from jaxreplay.methods import uniform
from tests.refusals import refused


@pytest.mark.parametrize(
    ("sizes", "steps", "capacity"),
    [
        (ReplaySizes(), 500, 500),
        (ReplaySizes(num_envs=3), 500, 501),  # a multiple of the environments
        (ReplaySizes(), 10, 64),  # holds a batch
        (ReplaySizes(), 2_000_000, 1_000_000),
        (ReplaySizes(capacity=100), 500, 100),
    ],
)
def test_an_open_capacity_follows_from_the_length_of_the_run(sizes, steps, capacity):
    assert sizes.resolve(steps).capacity == capacity


def test_the_replay_has_the_sizes_of_its_config():
    replay = ReplaySizes(num_envs=2, capacity=8, batch_size=4).make(uniform.sampler())
    assert (replay.num_envs, replay.capacity, replay.batch_size) == (2, 8, 4)


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        (ReplaySizes(), ("capacity", "none")),
        (ReplaySizes(capacity=32), ("batch_size", "64", "capacity", "32")),
    ],
)
def test_sizes_that_make_no_replay_are_refused(sizes, parts):
    with refused(*parts):
        sizes.make(uniform.sampler())
