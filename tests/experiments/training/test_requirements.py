"""What replay methods ask of the loop, and remarks about runs that may surprise."""

import pytest

from experiments.training.config import LoopConfig, check, remarks
from jaxreplay import Replay
from jaxreplay.methods import latest, refer, uniform
from tests.refusals import assert_names, refused

LOOP = {"n_step": 1, "learn_every": 1, "updates": 1, "warmup": 8}


def replay_of(sampler):
    return Replay(sampler, capacity=16, batch_size=4)


@pytest.mark.parametrize(
    ("sampler", "loop", "parts"),
    [
        (refer.sampler(), {"n_step": 3}, ("n_step", "3", "1")),
        (refer.sampler(), {"warmup": 17}, ("warmup", "17", "16")),
        (latest.sampler(), {}, ("updates", "4", "learn_every")),
        (latest.sampler(), {"learn_every": 4, "updates": 2}, ("updates", "1", "learn_every")),
    ],
)
def test_loops_that_do_not_fit_are_refused(sampler, loop, parts):
    with refused(*parts):
        check(LoopConfig(**LOOP | loop), replay_of(sampler))


def test_loops_that_fit_pass():
    check(LoopConfig(**LOOP | {"n_step": 3, "warmup": 100}), replay_of(uniform.sampler()))
    check(LoopConfig(**LOOP | {"learn_every": 4}), replay_of(latest.sampler()))


def test_long_episodes_are_remarked_on_where_they_are_kept_whole():
    (remark,) = remarks(replay_of(refer.sampler()), "pendulum", 200)
    assert_names(remark, "200", "16")
    assert remarks(replay_of(refer.sampler()), "pendulum", 16) == ()
    assert remarks(replay_of(uniform.sampler()), "pendulum", 200) == ()
