"""Registry of papers: completeness, valid configurations, and claims about arms that run."""

import fnmatch
import inspect
from pathlib import Path

import pytest

from experiments.papers.catalogue import ENTRIES, EXPERIMENTS, of_papers, read_entries
from experiments.papers.cliffwalk import CONVERGED
from experiments.papers.computations import CLAIMS, COMPUTATIONS
from experiments.papers.entry import PAPERS, Claim, Computation, Experiment
from experiments.papers.printed import claims, stated
from experiments.training.schedule import schedule
from tests.refusals import refused

# Every figure and table of the five papers that shows a result, or settings.
LISTED = {
    "per": "fig1 fig2 fig3 fig4 fig5 fig6 fig7 fig8 fig9 fig10 fig11 fig12 tab1 tab2 tab3 tab4 "
    "tab5 tab6 tab7",
    "lap": "thm1 thm2 thm3 obs1 obs2 obs3 obs4 fig1 fig2 fig3 fig4 fig5 fig6 fig7 tab1 tab2 tab3 "
    "tab4 tab5 tab6 tab7",
    "pser": "thm1 fig2 fig3 fig5 fig6 fig7 fig8 fig9 tab1 tab5 app.tab1 app.tab2 app.tab3 app.tab4",
    "ners": "fig1 fig3 fig4 fig5 figC1 figC2 tab1 tab2 tab3",
    "refer": "fig2 fig3 fig4 fig5 fig6 fig7 fig8 fig9 fig10 fig11 tab1",
}
ROOT = Path(__file__).parents[3]
SOURCES = {e.source.name: e.source for e in ENTRIES.values() if e.source is not None}
SOURCES |= {e.published.name: e.published for e in ENTRIES.values() if e.published is not None}


def test_registry_contains_every_figure_and_table():
    for paper, names in LISTED.items():
        assert {f"{paper}.{name}" for name in names.split()} <= set(ENTRIES)


def test_entries_are_complete():
    for name, entry in ENTRIES.items():
        assert name == entry.id and entry.paper in PAPERS
        assert (entry.source is None) == bool(entry.missing)
        assert entry.source is None or SOURCES[entry.source.name] == entry.source  # unique names
        assert len({len(row) for row in entry.reported}) <= 1, name
        for claim in entry.claims:
            if isinstance(claim, Claim):
                assert claim.direction in ("better", "at least as good", "worse")
                assert claim.says.strip() and claim.arm != claim.baseline
                assert stated(entry, claim) != "not recorded", claim.says
                assert isinstance(entry.source, Experiment) or not claim.beside
    assert {entry.paper for entry in ENTRIES.values()} == set(PAPERS)
    # No experiment, computation or claim is left without an entry.
    assert {*EXPERIMENTS, *(each.name for each in COMPUTATIONS)} <= set(SOURCES)
    assert set(CLAIMS) <= set(ENTRIES)
    assert all(ENTRIES[name].claims[-len(own) :] == own for name, own in claims().items())
    assert [entry.id for entry in of_papers(["lap"])][:2] == ["lap.thm1", "lap.thm2"]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('sorce = "walk_dqn"', ("sorce",)),
        ('source = "walk"', ("walk",)),
        ('note = "one"', ("note",)),
        ('note = ["$one"]', ("one",)),
        ('like = ["_others"]', ("_others",)),
        ('like = ["fig1"]', ("fig1",)),
        ('layout = { draw = "np" }', ("np",)),
        ('layout = { draw = "lines", agregate = "median" }', ("agregate",)),
        ('ours = { statistic = "mean" }', ("mean",)),
    ],
)
def test_mistakes_in_files_of_entries_are_named(line, parts, tmp_path):
    path = tmp_path / "per.toml"
    path.write_text(f'[_base]\n[fig1]\nshows = "errors"\n{line}\n')
    with refused("per.toml", "[fig1]", *parts):
        read_entries(path)
    path.write_text("[fig1\n")
    with refused(path):
        read_entries(path)


def test_lines_mark_the_error_at_which_seeds_count_as_converged():
    layouts = [entry.layout.options for entry in ENTRIES.values() if entry.layout]
    levels = [options["level"] for options in layouts if "level" in options]
    assert levels and set(levels) == {CONVERGED}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_runs_of_every_size_are_valid_configurations(name):
    """Validates options without training."""
    experiment = EXPERIMENTS[name]
    for size in experiment.sizes:
        runs, chosen = experiment.points(size), experiment.sizes[size]
        assert set(runs) == set(chosen.envs)
        for point in (point for arms in runs.values() for point in arms.values()):
            schedule(point.config.loop, point.config.sizes.num_envs)  # raises if it cannot learn
        sections = (("agent", chosen.agent), ("replay", chosen.replay)) if size != "smoke" else ()
        for section, values in sections:
            options = [
                vars(getattr(arm.config, f"{section}_options"))
                for arms in runs.values() for arm in arms.values()
            ]  # fmt: skip
            assert set(values) <= set().union(*options), f"{name}, {size}"
        for arms in runs.values():
            labels = {arm.label for arm in arms.values()}
            assert set(chosen.arms or experiment.arms) <= labels
            (seeds,) = {arm.config.seeds for arm in arms.values()}
            has_control = experiment.question.control and size != "smoke" and seeds > 1
            assert ("control" in labels) == has_control


@pytest.mark.parametrize("name", ENTRIES)
def test_claims_name_arms_that_run(name):
    entry = ENTRIES[name]
    if not isinstance(entry.source, Experiment) or "small" not in entry.source.sizes:
        return
    for env, arms in entry.source.points("small").items():
        for claim in entry.claims:
            if claim.where.get("env", env) == env:
                assert {claim.arm, claim.baseline} <= set(arms), claim.says
        assert set(entry.arms) <= set(arms) | set(entry.source.arms)
        assert not entry.arms or set(entry.arms) & set(arms)


def test_published_sizes_have_the_arms_of_the_small_ones():
    for entry in ENTRIES.values():
        if entry.published is not None:
            published = entry.at("paper")
            arms = next(iter(published.source.points("paper").values()))
            assert set(entry.arms) <= set(arms), entry.id
            for claim in entry.claims:
                assert {claim.arm, claim.baseline} <= set(arms), f"{entry.id}: {claim.says}"
    with refused("all.walk", "paper", *ENTRIES["all.walk"].source.sizes):
        ENTRIES["all.walk"].at("paper")


def test_versions_of_computations_cover_their_own_source():
    for source in SOURCES.values():
        if isinstance(source, Computation):
            own = Path(inspect.getfile(source.function)).relative_to(ROOT).as_posix()
            assert any(fnmatch.fnmatch(own, pattern) for pattern in source.sources), source.name


@pytest.mark.parametrize("size", ["small", "paper"])
def test_betas_are_compared_at_equal_step_sizes(size):
    entry = ENTRIES["per.fig12.steps"]
    for arms in entry.source.points(size).values():
        for claim in entry.claims:
            options = arms[claim.arm].config.agent_options
            assert options == arms[claim.baseline].config.agent_options
            assert options.learning_rate == 2.5e-4 / (4 if claim.arm.endswith("_quarter") else 1)
