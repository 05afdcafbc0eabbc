"""Settings of grids: names, values, combinations and refusals."""

import argparse

import pytest

from experiments.runs.run_config import defaults
from experiments.studies import grid
from experiments.studies.grid import Place
from tests.refusals import assert_names, refused

BASES = {
    ("walk/4", label): defaults("walk/4", "dqn", method)
    for label, method in {"uniform": "uniform", "per": "per", "mine": "per", "lap": "lap"}.items()
}
ALPHA, RATE = Place("replay_options", "alpha"), Place("agent_options", "learning_rate")
TOGETHER = ["replay.alpha=0.2,0.4,0.4", "agent.learning_rate=1e-4,1e-3,1e-2"]


def expanded(*texts, bases=BASES, **options):
    return grid.expand([grid.read_axis(text) for text in texts], bases, **options)


def settings(points, label):
    return [dict(p.settings) for p in points if p.label == label]


def test_methods_have_every_combination_of_their_own_settings():
    points = expanded("replay.alpha=0.2,0.6", "agent.learning_rate=1e-4,1e-3,1e-2")
    assert [len(settings(points, label)) for label in ("uniform", "per", "lap")] == [3, 6, 6]
    assert {p.config.replay_options.alpha for p in points if p.label == "per"} == {0.2, 0.6}
    assert {p.config.agent_options.learning_rate for p in points} == {1e-4, 1e-3, 1e-2}
    assert len({point.id for point in points}) == len(points) == 21


def test_settings_of_a_label_override_settings_of_the_method():
    points = expanded("replay.alpha=0.2,0.6", "mine.alpha=0.9", "n_step=1,3")
    assert {p.settings[ALPHA] for p in points if p.label == "mine"} == {0.9}
    assert {p.settings[ALPHA] for p in points if p.label == "per"} == {0.2, 0.6}
    assert {p.config.loop.n_step for p in points} == {1, 3}


def test_remarks_name_methods_without_a_setting():
    axes = [grid.read_axis("replay.alpha=0.2,0.6"), grid.read_axis("mine.beta=0,1")]
    (remark,) = grid.lacking(axes, BASES)
    assert_names(remark, "replay.alpha", "uniform")
    assert "lap" not in remark  # has replay.alpha


def test_values_are_parsed_as_on_the_command_line():
    hidden = expanded("agent.hidden=64 64,256")
    assert {p.config.agent_options.hidden for p in hidden} == {(64, 64), (256,)}
    points = expanded("per.clip=none,2", "per.weigh_actor=true,false")
    options = {
        (p.config.replay_options.clip, p.config.replay_options.weigh_actor)
        for p in points
        if p.label == "per"
    }
    assert options == {(None, True), (2.0, True), (None, False), (2.0, False)}


def test_defaults_are_added_to_grids_without_them():
    with_ = expanded("replay.alpha=0.2,0.6", defaults=True)
    assert [p.settings[ALPHA] for p in with_ if p.label == "per"] == [0.2, 0.6]  # default: 0.6
    with_ = expanded("replay.alpha=0.2,0.3", defaults=True)
    assert [p.settings[ALPHA] for p in with_ if p.label == "per"] == [0.2, 0.3, 0.6]
    found = grid.base_points(with_, BASES)
    assert found["walk/4"]["per"] == "walk/4 per replay.alpha=0.6"
    assert found["walk/4"]["uniform"] == "walk/4 uniform"


def test_values_that_belong_together_make_one_point_each():
    points = expanded(*TOGETHER, together=True)
    assert [(s[ALPHA], s[RATE]) for s in settings(points, "per")] == [
        (0.2, 1e-4), (0.4, 1e-3), (0.4, 1e-2)
    ]  # fmt: skip
    assert settings(points, "uniform") == [{RATE: rate} for rate in (1e-4, 1e-3, 1e-2)]
    # Points of a method that differ only in settings of other methods are one point.
    assert len(settings(expanded("per.beta=0,1", "n_step=3,3", together=True), "lap")) == 1
    assert len(settings(expanded("per.beta=0,0", "n_step=3,3", together=True), "per")) == 1
    with refused("replay.alpha", "3", "n_step", "2"):
        expanded(TOGETHER[0], "n_step=1,3", together=True)


@pytest.mark.parametrize(
    ("texts", "parts"),
    [
        (["replay.alpah=1"], ("grid", "replay.alpah", "replay.alpha")),
        (["uniform.alpha=1"], ("grid", "uniform.alpha")),
        (["replay.alpha=0.2,-1"], ("grid", "replay.alpha", "-1", "per", "-1.0")),
        (["replay.alpha=0.2,x"], ("replay.alpha", "x", "per")),
        (["replay.beta=0,2"], ("replay.beta", "per", "2.0", "0", "1")),
        (["n_step=1,2", "n_step=3"], ("grid", "n_step")),
        (["seeds=1,2"], ("grid", "seeds", "--seeds")),
        (["replay.beta=0.4", "per.beta=0.5", "mine.beta=1"], ("grid", "replay.beta")),
        (["replay.alpha=0.2,0.20"], ("walk/4 per replay.alpha=0.2",)),
        (["per.normalise=batch,size"], ("per.normalise", "size", "batch", "buffer")),
    ],
)
def test_invalid_grids_are_refused_with_their_position(texts, parts):
    with refused(*parts):
        expanded(*texts)


@pytest.mark.parametrize("text", ["replay.alpha", "replay.alpha=", "=1", "a=1,,2"])
def test_invalid_axes_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        grid.read_axis(text)


def test_options_that_the_grid_never_uses_are_refused():
    for text, given, parts in (
        ("replay.alpha=0.2", "per.alpha", ("--per.alpha 0.6", "replay.alpha")),
        ("n_step=2,3", "n_step", ("--n-step 5", "n_step")),
        ("agent.tau=0.1", "agent.tau", ("--agent.tau 0.005", "grid")),
    ):
        with refused(*parts, "--defaults true"):
            grid.check_fixed([grid.read_axis(text)], BASES, {given})
    for text, given in (
        ("per.alpha=0.2", "mine.alpha"), ("n-step=1, 5", "n_step"), ("replay.alpha=0.2", "steps")
    ):  # fmt: skip
        grid.check_fixed([grid.read_axis(text)], BASES, {given})
