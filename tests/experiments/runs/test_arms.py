"""The arms of a comparison, and the questions that are refused before any of them runs."""

import dataclasses

import pytest

from experiments.runs import arms
from experiments.runs.arms import CONTROL, Question
from experiments.runs.run_config import defaults
from tests.refusals import assert_names, refused


def bases(*names, seeds=3):
    made = {name: defaults("gymnax/CartPole-v1", "dqn", name) for name in names}
    return {name: dataclasses.replace(config, seeds=seeds) for name, config in made.items()}


def test_every_method_meets_every_cadence_and_the_control_has_other_seeds():
    found = arms.expand(Question(), bases("uniform", "per"), [1, 16])
    assert list(found) == [
        "uniform_every1", "uniform_every16", "per_every1", "per_every16",
        "control_every1", "control_every16",
    ]  # fmt: skip
    control = found["control_every16"]
    assert (control.method, control.every, control.config.loop.learn_every) == (CONTROL, 16, 16)
    assert control.config.replay == "uniform"
    assert (control.config.seed, found["uniform_every16"].config.seed) == (3, 0)
    ratios = [arms.replays_per_transition(found[f"per_every{n}"].config) for n in (1, 16)]
    assert ratios == [64, 4]


def test_one_cadence_needs_no_names_and_the_control_can_be_left_out():
    question = Question(control=False)
    assert list(arms.expand(question, bases("uniform", "per"), ())) == ["uniform", "per"]
    (only,) = arms.expand(question, bases("per"), [4]).values()
    assert only.config.loop.learn_every == 4


def test_the_baseline_is_the_first_that_draws_evenly_unless_one_is_named():
    assert arms.baseline_of(Question(), bases("per", "pal", "uniform")) == "uniform"
    assert arms.baseline_of(Question(), bases("per", "pal")) == "pal"
    assert arms.baseline_of(Question(), bases("per", "rank")) == "per"
    assert arms.baseline_of(Question(baseline="rank"), bases("uniform", "rank")) == "rank"
    evenly = {name: arms.draws_evenly(config) for name, config in bases("uniform", "per").items()}
    assert evenly == {"uniform": True, "per": False}
    assert [arms.learns(config) for config in bases("per", "ero", "ners").values()] == [0, 1, 1]


@pytest.mark.parametrize(
    ("question", "names", "seeds", "parts"),
    [
        (Question(primary="fnal"), ("per",), 3, ("fnal", "auc", "steps_to_threshold", "last_K")),
        (Question(control=False), ("per",), 3, ("control",)),
        (Question(baseline="rank"), ("per",), 3, ("baseline", "rank", "per")),
        (Question(), ("per",), 1, ("seeds", "1", "2")),
    ],
)
def test_questions_that_cannot_be_answered_are_refused(question, names, seeds, parts):
    with refused(*parts):
        arms.check(question, bases(*names, seeds=seeds), 475.0)


def test_every_cadence_needs_the_evaluations_that_decide():
    made = arms.expand(Question(primary="last_40"), bases("uniform", "per"), [1, 5_000])
    with refused("last_40", "40", "10"):
        arms.check_expanded(Question(primary="last_40"), made, 475.0)
    (remark,) = arms.check_expanded(Question(), made, 475.0)
    assert_names(remark, "3", "--seeds 10")
    ten = {label: dataclasses.replace(base, seeds=10) for label, base in bases("per").items()}
    assert arms.check_expanded(Question(), arms.expand(Question(), ten, ()), 475.0) == []


def test_who_cannot_learn_often_enough_is_said_beforehand():
    config = bases("ners")["ners"]
    often = dataclasses.replace(config, loop=dataclasses.replace(config.loop, observe_every=50))
    made = arms.expand(Question(control=False), {"often": often, "ners": config}, ())
    _, remark = arms.check_expanded(Question(), made, 475.0)
    assert_names(remark, "ners", "48")


def test_offline_the_replay_ratio_is_of_what_the_warm_up_stored():
    config = bases("per")["per"]
    loop = dataclasses.replace(config.loop, offline=True, warmup=5_000, steps=55_000)
    offline = dataclasses.replace(config, loop=loop)
    assert arms.replays_per_transition(offline) == 64 * 50_000 / 5_000


def test_a_threshold_metric_needs_a_threshold():
    question = Question(primary="steps_to_threshold")
    arms.check(question, bases("per"), 475.0)
    with refused("steps_to_threshold", "final", "auc"):
        arms.check(question, bases("per"), None)


@pytest.mark.parametrize("reason", ["", "  ", "because"])
def test_the_gate_is_switched_off_with_a_reason_only(reason):
    with refused("ungated"):
        Question(ungated=reason)
    assert Question(ungated="alpha 0 is meant to be uniform").ungated
