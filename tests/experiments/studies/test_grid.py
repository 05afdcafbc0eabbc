"""What a grid's names and values stand for; nothing is compiled."""

import argparse

import pytest

from experiments.runs.run_config import defaults
from experiments.studies import grid
from experiments.studies.grid import Axis, Place
from tests.refusals import assert_names, refused

BASES = {
    ("walk/4", label): defaults("walk/4", "dqn", method)
    for label, method in {"uniform": "uniform", "per": "per", "mine": "per", "lap": "lap"}.items()
}
ALPHA = Place("replay_options", "alpha")


def expanded(*texts, bases=BASES, **options):
    return grid.expand([grid.read_axis(text) for text in texts], bases, **options)


def settings(points, label):
    return [dict(p.settings) for p in points if p.label == label]


def test_every_method_has_every_combination_of_the_settings_that_it_has():
    points = expanded("replay.alpha=0.2,0.6", "agent.learning_rate=1e-4,1e-3,1e-2")
    assert [len(settings(points, label)) for label in ("uniform", "per", "lap")] == [3, 6, 6]
    assert {p.config.replay_options.alpha for p in points if p.label == "per"} == {0.2, 0.6}
    assert {p.config.agent_options.learning_rate for p in points} == {1e-4, 1e-3, 1e-2}
    assert len({point.id for point in points}) == len(points) == 21


def test_a_label_has_settings_of_its_own_which_win():
    points = expanded("replay.alpha=0.2,0.6", "mine.alpha=0.9", "n_step=1,3")
    assert {p.settings[ALPHA] for p in points if p.label == "mine"} == {0.9}
    assert {p.settings[ALPHA] for p in points if p.label == "per"} == {0.2, 0.6}
    assert {p.config.loop.n_step for p in points} == {1, 3}


def test_it_is_said_who_runs_without_a_setting():
    axes = [grid.read_axis("replay.alpha=0.2,0.6"), grid.read_axis("mine.beta=0,1")]
    (remark,) = grid.lacking(axes, BASES)
    assert_names(remark, "replay.alpha", "uniform")
    assert "lap" not in remark  # which has it


def test_values_are_read_as_on_the_command_line():
    hidden = expanded("agent.hidden=64 64,256")
    assert {p.config.agent_options.hidden for p in hidden} == {(64, 64), (256,)}
    points = expanded("per.clip=none,2", "per.weigh_actor=true,false")
    options = {
        (p.config.replay_options.clip, p.config.replay_options.weigh_actor)
        for p in points
        if p.label == "per"
    }
    assert options == {(None, True), (2.0, True), (None, False), (2.0, False)}


def test_defaults_are_added_where_the_grid_leaves_them_out():
    with_ = expanded("replay.alpha=0.2,0.6", defaults=True)
    assert [p.settings[ALPHA] for p in with_ if p.label == "per"] == [0.2, 0.6]  # 0.6 is its own
    with_ = expanded("replay.alpha=0.2,0.3", defaults=True)
    assert [p.settings[ALPHA] for p in with_ if p.label == "per"] == [0.2, 0.3, 0.6]
    found = grid.base_points(with_, BASES)
    assert found["walk/4"]["per"] == "walk/4 per replay.alpha=0.6"
    assert found["walk/4"]["uniform"] == "walk/4 uniform"


@pytest.mark.parametrize(
    ("texts", "parts"),
    [
        (["replay.alpah=1"], ("grid", "replay.alpah", "replay.alpha")),
        (["uniform.alpha=1"], ("grid", "uniform.alpha")),
        (["replay.alpha=0.2,-1"], ("grid", "replay.alpha", "-1", "per", "-1.0")),
        (["replay.alpha=0.2,x"], ("replay.alpha", "x", "per")),
        (["replay.beta=0,2"], ("replay.beta", "per", "2.0", "0", "1")),
        (["n_step=1,2", "n_step=3"], ("grid", "n_step")),
        (["replay.beta=0.4", "per.beta=0.5", "mine.beta=1"], ("grid", "replay.beta")),
        (["replay.alpha=0.2,0.20"], ("replay.alpha", "0.20")),
        (["per.normalise=batch,size"], ("per.normalise", "size", "batch", "buffer")),
    ],
)
def test_bad_grids_are_refused_with_their_place(texts, parts):
    with refused(*parts):
        expanded(*texts)


@pytest.mark.parametrize("text", ["replay.alpha", "replay.alpha=", "=1", "a=1,,2", "a=1,1"])
def test_what_is_no_axis_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        grid.read_axis(text)


def test_dashes_in_names_are_underscores():
    assert grid.read_axis("n-step=1, 3") == Axis("n_step", ("1", "3"))


@pytest.mark.parametrize(
    ("texts", "given", "parts"),
    [
        (["replay.alpha=0.2"], "per.alpha", ("--per.alpha 0.6", "replay.alpha")),
        (["per.beta=0.2"], "per.beta", ("--per.beta 0.4", "grid")),
        (["n_step=2,3"], "n_step", ("--n-step 5", "n_step")),
        (["agent.tau=0.1"], "agent.tau", ("--agent.tau 0.005", "grid")),
        (["per.alpha=0.2"], "mine.alpha", None),
        (["n_step=1,5"], "n_step", None),
        (["replay.alpha=0.2"], "steps", None),
    ],
)
def test_values_beside_a_grid_that_never_takes_them_are_refused(texts, given, parts):
    axes = [grid.read_axis(text) for text in texts]
    if parts is None:
        grid.check_fixed(axes, BASES, {given})
        return
    with refused(*parts, "--defaults true"):
        grid.check_fixed(axes, BASES, {given})
