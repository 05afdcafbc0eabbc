"""What a search asks for, refuses and takes for the best; nothing is compiled."""

import dataclasses
from pathlib import Path

import pytest

from experiments.runs.run_config import defaults
from experiments.studies import engines, grid, search, store
from experiments.studies.grid import Place
from experiments.studies.options import SearchOptions, Where
from experiments.studies.progress import Bar
from experiments.studies.study import Study
from experiments.training import spread
from tests.refusals import assert_names

BATCH, N_STEP = Place("sizes", "batch_size"), Place("loop", "n_step")


@pytest.fixture(scope="module")
def prepared():
    base = defaults("walk/4", "dqn", "per")
    loop = dataclasses.replace(base.loop, steps=200, warmup=100, n_step=1)
    base = dataclasses.replace(base, seed=3, seeds=2, loop=loop)
    axes = (grid.read_axis("batch_size=8,98"), grid.read_axis("n_step=1:5"))
    how = SearchOptions(search="random", trials=20, fresh_seeds=4)
    bases = {("walk/4", "per"): base}
    return search.prepare(Study(bases, axes, search=how), Where(), spread.chosen(1))


def test_fresh_seeds_come_after_those_that_choose(prepared):
    assert prepared.asked["seeds"] == [3, 4] and prepared.asked["fresh_seeds"] == [5, 6, 7, 8]
    (default,) = prepared.defaults
    assert (default.config.seed, default.config.seeds) == (5, 4)
    assert prepared.asked["space"]["walk/4"]["per"] == {"batch_size": "8,98", "n_step": "1:5"}
    assert prepared.budget(prepared.studies[0]) == (40, 8)


def test_settings_that_do_not_go_together_are_told_so(prepared):
    results = store.begin(Path("nowhere"), prepared.study, prepared.defaults, {}, prepared.asked)
    engine = engines.Here(spread.chosen(1), "off", Where())
    works, (study,) = search._Works(prepared, results, engine, Bar(1, 1)), prepared.studies
    assert works._checked(study, {BATCH: 98, N_STEP: 2}).config.loop.n_step == 2
    why = works._checked(study, {BATCH: 98, N_STEP: 5})  # each alone is fine, as prepare found
    assert_names(why, "walk/4 per batch_size=98 n_step=5", "100", "96")


@pytest.mark.parametrize(("higher", "best"), [(True, "c"), (False, "b")])
def test_the_best_is_the_first_of_the_best_scores(prepared, higher, best):
    trials = [
        search.Trial({}, name, score)
        for name, score in (("a", None), ("b", 0.5), ("c", 2.0), ("d", 2.0), ("e", 0.5))
    ]
    study = dataclasses.replace(prepared.studies[0], higher_is_better=higher, trials=trials)
    assert study.best.point == best
    assert dataclasses.replace(study, trials=trials[:1]).best is None
