"""Requirements of methods, and their check against agents and loops."""

import jax
import numpy as np
import pytest

from agents.types import Offers
from experiments.runs.registry import asked_of_agent, lacking_in_method
from jaxreplay import Replay, SharedObservations
from jaxreplay.methods import METHODS, ere, ero, ners, per, pser, uniform
from jaxreplay.testing import EXAMPLE
from jaxreplay.types import Requirements, union
from tests.refusals import assert_names, refused

VALUES = Offers(frozenset({"td_error", "q_value", "target"}))


def requires(name, **options):
    entry = METHODS[name]
    return entry.method(entry.config(**options)).requires


def replay_of(sampler, **sizes):
    return Replay(sampler, **{"capacity": 16, "batch_size": 4} | sizes)


def test_union_joins_the_requirements_of_sampler_and_objective():
    first = Requirements(feedback=frozenset({"td_error"}), single_steps=True)
    second = Requirements(feedback=frozenset({"target"}), density=True, episode_returns="training")
    joint = union(first, second)
    assert joint.feedback == {"td_error", "target"}
    assert joint.single_steps and joint.density and not joint.all_new
    assert joint.episode_returns == "training"
    with refused("training") as error:
        union(second, Requirements(episode_returns="evaluation"))
    assert "evaluation" in str(error.value)


def test_requirements_depend_on_options():
    assert requires("per").feedback_of_new == frozenset()
    assert requires("per", initial="td").feedback_of_new == {"td_error"}
    assert not requires("per").scalar_loss and requires("per", loss="huber").scalar_loss
    assert requires("ners").transition_fields == {"obs", "action", "reward", "next_obs"}
    blind = ("reward", "td_error")
    assert requires("ners", features=blind).transition_fields == {"reward"}
    assert requires("ners", reward="training").episode_returns == "training"
    assert requires("refer", returns=True).feedback == {
        "log_ratio", "value", "advantage", "next_value",
    }  # fmt: skip


def test_lack_lists_missing_feedback_and_abilities_of_an_agent():
    assert VALUES.lack(requires("uniform")) == []
    assert VALUES.lack(requires("per")) == []
    assert Offers(frozenset()).lack(requires("per")) == ["td_error"]
    assert len(VALUES.lack(requires("lap"))) == 1
    (density,) = VALUES.lack(requires("refer"))
    assert_names(density, "log_ratio")
    assert len(VALUES.lack(requires("latest"))) == 1
    assert asked_of_agent(requires("lap")) == ["td_error", "scalar_loss"]


def test_lacking_in_method_lists_missing_inputs_of_an_agent():
    reader = VALUES._replace(reads=frozenset({"returns"}))
    assert lacking_in_method(requires("per"), (), reader) == ["returns"]
    assert lacking_in_method(requires("per"), ("returns",), reader) == []
    on_policy = VALUES._replace(on_policy=True)
    assert len(lacking_in_method(requires("per"), (), on_policy)) == 1
    assert lacking_in_method(requires("latest"), (), on_policy) == []


class Unasked(ners.NERS):
    """A sampler that observes returns but does not require them."""

    requires = Requirements()


class Deaf(uniform.Uniform):
    """A sampler that requires returns but does not observe them."""

    requires = Requirements(episode_returns="training")


@pytest.mark.parametrize("sampler", [Unasked(), Deaf()])
def test_samplers_that_observe_must_declare_episode_returns(sampler):
    with refused("observe_return", "requires.episode_returns"):
        replay_of(sampler)


COLUMN, ONCE = np.zeros(1, np.float32), {"storage": SharedObservations()}
SINGLES = [
    (ere.sampler(), {"last": COLUMN > 0}, {}, ("last", "bool", "[1]")),
    (ere.sampler(), {"last": np.float32(0)}, {}, ("bool", "float32", "last > 0")),
    (pser.sampler(), {"first": np.int32(0)}, {}, ("bool", "int32", "first > 0")),
    (ero.sampler(), {"reward": COLUMN}, {}, ("reward", "float32", "[1]")),
    (uniform.sampler(), {"first": COLUMN > 0}, ONCE, ("first", "bool", "[1]")),
    (uniform.sampler(), {"first": np.float32(0)}, ONCE, ("bool", "float32", "first > 0")),
    (uniform.sampler(), {"n_steps": np.float32(0)}, ONCE, ("n_steps", "float32")),
]


@pytest.mark.parametrize(("sampler", "change", "options", "parts"), SINGLES)
def test_fields_read_by_a_sampler_must_be_scalars_of_their_dtype(sampler, change, options, parts):
    replay = replay_of(sampler, **options)
    with refused(*parts):
        replay.init(jax.random.key(0), EXAMPLE._replace(**change))


def test_unread_fields_may_have_any_shape_and_dtype():
    example = EXAMPLE._replace(last=COLUMN, reward=COLUMN, first=np.int32(0), discount=None)
    jax.eval_shape(replay_of(per.sampler()).init, jax.random.key(0), example)
