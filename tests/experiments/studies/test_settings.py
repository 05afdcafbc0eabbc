"""Grids and search spaces: names and values, samplers, and selection of the best trial."""

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.runs.run_config import defaults
from experiments.studies import engines, grid, samplers, search, spaces
from experiments.studies.grid import Place
from experiments.studies.options import SearchOptions, Where
from experiments.studies.spaces import Choices, Range
from experiments.studies.study import Study
from experiments.training import spread
from tests.refusals import assert_names, refused

BASES = {
    ("walk/4", label): defaults("walk/4", "dqn", method)
    for label, method in {"uniform": "uniform", "per": "per", "mine": "per", "lap": "lap"}.items()
}
ALPHA, RATE = Place("replay_options", "alpha"), Place("agent_options", "learning_rate")


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
        (["replay.alpha=0.2,0.20"], ("replay.alpha", "0.20")),
        (["per.normalise=batch,size"], ("per.normalise", "size", "batch", "buffer")),
    ],
)
def test_invalid_grids_are_refused_with_their_position(texts, parts):
    with refused(*parts):
        expanded(*texts)


@pytest.mark.parametrize("text", ["replay.alpha", "replay.alpha=", "=1", "a=1,,2", "a=1,1"])
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


HIDDEN, N_STEP = Place("agent_options", "hidden"), Place("loop", "n_step")


def read(*texts):
    return spaces.read([grid.read_axis(text) for text in texts], BASES)


SPACE = read(
    "replay.alpha=0:1", "agent.learning_rate=1e-5:1e-2:log", "agent.hidden=64 64,256", "n_step=1:5"
)["walk/4", "per"]


def test_ranges_and_choices_apply_to_methods_with_the_setting():
    found = read("replay.alpha=0:1", "lap.alpha=0.2,0.4", "agent.learning_rate=1e-5:1e-2:log")
    assert found["walk/4", "uniform"] == {RATE: Range(1e-5, 1e-2, True, False)}
    assert found["walk/4", "per"][ALPHA] == Range(0.0, 1.0, False, False)
    assert found["walk/4", "lap"][ALPHA] == Choices((0.2, 0.4))
    assert SPACE[HIDDEN] == Choices(((64, 64), (256,)))
    assert SPACE[N_STEP] == Range(1, 5, False, True)
    texts = [own.text for own in SPACE.values()]
    assert texts == ["0.0:1.0", "1e-05:0.01:log", "64 64,256", "1:5"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("replay.alpha=-1:1", ("replay.alpha", "-1", "per", "-1.0")),
        ("replay.beta=0:2", ("replay.beta", "2", "per", "2.0")),
        ("replay.beta=0:x", ("replay.beta", "x", "per")),
        ("replay.beta=1:0", ("replay.beta", "1:0")),
        ("replay.beta=0:1:log", ("replay.beta", "0:1:log")),
        ("replay.beta=0:1:2", ("replay.beta", "0:1:2", "LOW:HIGH", "LOW:HIGH:log")),
        ("per.clip=1:none", ("per.clip", "1:none")),
        ("agent.hidden=64:256", ("agent.hidden", "64:256")),
        ("per.sampling=iid:stratified", ("per.sampling", "iid:stratified")),
    ],
)
def test_invalid_spaces_are_refused_with_their_position(text, parts):
    with refused("space", *parts):
        read(text)


def draws(own, count=2000):
    rng = np.random.default_rng(0)
    return [own.draw(rng) for _ in range(count)]


def test_draws_are_uniform_on_their_scale_and_have_few_digits():
    found = np.array(draws(Range(1e-4, 1e-2, True, False)))
    assert found.min() >= 1e-4 and found.max() <= 1e-2
    assert abs((found < 1e-3).mean() - 0.5) < 0.05
    assert all(float(f"{value:.4g}") == value for value in found)
    found = np.array(draws(Range(0.0, 4.0, False, False)))
    assert abs((found < 1).mean() - 0.25) < 0.04
    for log in (False, True):
        found = draws(Range(1, 4, log, True))
        assert set(found) == {1, 2, 3, 4} and all(isinstance(value, int) for value in found)
    share = np.mean([value == 2 for value in draws(Range(1, 4, False, True))])
    assert abs(share - 0.25) < 0.04
    assert set(draws(Choices((None, 1.0)))) == {None, 1.0}


def asked(name, batches, scores, seed=0, env="walk/4"):
    """Return proposals of a sampler in batches that are scored by a function of settings."""
    sampler = samplers.make(name, env, "per", SPACE, seed, True)
    found = []
    for batch in batches:
        new = [sampler.ask() for _ in range(batch)]
        for settings in new:
            sampler.tell(len(found), scores(settings))
            found.append(settings)
    return found


def by_alpha(settings):
    return -abs(settings[ALPHA] - 0.3) if settings[N_STEP] < 5 else None


@pytest.mark.parametrize("name", ["random", "optuna"])
def test_proposals_follow_from_the_seed_and_lie_in_the_space(name):
    first = asked(name, [4, 4, 4, 4], by_alpha)
    assert first == asked(name, [4, 4, 4, 4], by_alpha)
    assert first != asked(name, [4, 4, 4, 4], by_alpha, seed=1)
    assert first != asked(name, [4, 4, 4, 4], by_alpha, env="walk/5")
    for place, own in SPACE.items():
        low, *_, high = own.ends
        assert all(
            settings[place] in own.ends or low <= settings[place] <= high for settings in first
        )


def test_random_settings_are_independent_of_batches():
    assert asked("random", [16], by_alpha) == asked("random", [3, 5, 8], lambda settings: 0.0)


def test_optuna_learns_from_scores():
    def mean_distance(found):
        return np.mean([abs(settings[ALPHA] - 0.3) for settings in found[32:]])

    told, untold = (asked("optuna", [8] * 8, f) for f in (by_alpha, lambda settings: None))
    assert mean_distance(told) < 0.5 * mean_distance(untold)


def test_missing_packages_are_named_with_an_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with refused("--search optuna", "pip install", "[search]"):
        samplers.describe("optuna")
    assert samplers.describe("random") == "random"


BATCH = Place("sizes", "batch_size")


@pytest.fixture
def prepared():
    base = defaults("walk/4", "dqn", "per")
    loop = dataclasses.replace(base.loop, steps=200, warmup=100, n_step=1)
    base = dataclasses.replace(base, seed=3, seeds=2, loop=loop)
    axes = (grid.read_axis("batch_size=8,98"), grid.read_axis("n_step=1:5"))
    how = SearchOptions(search="random", trials=20, fresh_seeds=4)
    study = Study({("walk/4", "per"): base}, axes, search=how)
    engine = engines.Here(spread.choose_devices(1), "off", Where())
    return search.Search(study, Path("nowhere"), Where(), engine)


def test_fresh_seeds_follow_tuning_seeds(prepared):
    assert prepared.asked["seeds"] == [3, 4] and prepared.asked["fresh_seeds"] == [5, 6, 7, 8]
    (tuning,) = prepared.tunings
    assert (tuning.default.config.seed, tuning.default.config.seeds) == (5, 4)
    assert prepared.asked["space"]["walk/4"]["per"] == {"batch_size": "8,98", "n_step": "1:5"}
    assert prepared.budget(tuning) == (40, 8)


def test_invalid_combinations_of_settings_are_reported(prepared):
    (tuning,) = prepared.tunings
    assert prepared.checked(tuning, {BATCH: 98, N_STEP: 2}).config.loop.n_step == 2
    why = prepared.checked(tuning, {BATCH: 98, N_STEP: 5})  # each is valid alone
    assert_names(why, "walk/4 per batch_size=98 n_step=5", "100", "96")


@pytest.mark.parametrize(("higher", "best"), [(True, "c"), (False, "b")])
def test_ties_are_won_by_the_first_trial(higher, best):
    scores = {"a": None, "b": 0.5, "c": 2.0, "d": 2.0, "e": 0.5}
    trials = [{"point": name, "score": score} for name, score in scores.items()]
    assert search.best_of(trials, higher) == best
    assert search.best_of(trials[:1], higher) is None
