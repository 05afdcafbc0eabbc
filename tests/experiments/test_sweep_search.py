"""The search of the sweep command: tuning seeds, fresh seeds, budgets and exact resuming."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from experiments import sweep
from experiments.statistics import primary
from experiments.studies import search, store
from experiments.studies.results import Results
from tests.experiments import tiny
from tests.refusals import assert_names, refusal

TINY = [*tiny.TINY, "--envs", "walk/4", "--devices", "1", "--figures", "false"]
SEARCH = [
    "--replays", "per", "--search", "optuna", "--trials", "14", "--at-once", "6",
    "--fresh-seeds", "3", "--space", "replay.alpha=0:1", "replay.beta=0,0.4,1",
    "--primary", "final",
]  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    out = tmp_path_factory.mktemp("search") / "one"
    words = [*TINY, *SEARCH, "--figures", "true", "--out", str(out)]
    assert sweep.main(words) == 0
    return out


def line_of(text, name):
    """Return the only line of a text that contains a name."""
    (line,) = (line for line in text.splitlines() if name in line)
    return line


def study(folder):
    return json.loads((folder / "study.json").read_text())["search"]["studies"]["walk/4"]["per"]


def test_trials_share_seeds_and_the_final_runs_use_others(searched):
    table = pd.read_csv(searched / "study.csv.gz")
    found = study(searched)
    tried = {trial["point"] for trial in found["trials"]}
    assert len(found["trials"]) == 14
    seeds = table.groupby("point")["seed"].agg(set)
    assert seeds[found["best"]] == {0, 1, 2, 3, 4}
    assert seeds[found["default"]] - {0, 1} == {2, 3, 4}
    assert all(seeds[point] == {0, 1} for point in tried - {found["best"], found["default"]})
    assert found["default"] == "walk/4 per replay.alpha=0.6 replay.beta=0.4"
    best = max(trial["score"] for trial in found["trials"])
    first = next(trial["point"] for trial in found["trials"] if trial["score"] == best)
    assert found["best"] == first


def test_scores_are_interquartile_means_over_tuning_seeds(searched):
    table = pd.read_csv(searched / "study.csv.gz")
    for trial in study(searched)["trials"]:
        own = table[(table["point"] == trial["point"]) & (table["seed"] < 2)]
        last = own[own["step"] == 200]["eval_return"]
        assert trial["score"] == pytest.approx(last.mean())  # the IQM of two seeds is their mean


def test_tables_and_figures_show_budget_spread_and_fresh_seeds(searched):
    text = (searched / "study.md").read_text()
    found = study(searched)
    assert f"| {found['best']} |" in text
    assert_names(line_of(text, "final"), "3")  # fresh seeds
    assert_names(line_of(text, "optuna"), "14", "0", "1")  # trials and tuning seeds
    results = store.read(searched)
    scores = np.array([trial["score"] for trial in found["trials"]])
    line = next(
        line for line in text.splitlines() if line.startswith("| walk/4 per") and "14" in line
    )
    spread = [float(cell) for cell in line.strip("| ").split("|")[-5:]]
    assert spread == pytest.approx(np.quantile(scores, [0, 0.25, 0.5, 0.75, 1]), rel=1e-3)
    tried = Results(results, results.study).trials
    assert list(tried["trial"]) == list(range(14)) and tried["replay.alpha"].between(0, 1).all()
    for name in ("trials.png", "settings.png", "best.png"):
        assert (searched / name).read_bytes().startswith(b"\x89PNG")


def test_incomplete_searches_resume_to_the_same_bytes(searched, tmp_path, capsys):
    out = tmp_path / "cut"
    shutil.copytree(searched, out)
    cut = store.read(out)
    seventh = study(searched)["trials"][7]["point"]
    lost = (cut.frame["point"] == seventh) & (cut.frame["seed"] == 1) | (cut.frame["seed"] == 4)
    cut.frame = cut.frame[~lost].reset_index(drop=True)
    costs = len(cut.facts["costs"])
    cut.write()
    assert sweep.main(["--resume", str(out)]) == 0
    assert (out / "study.csv.gz").read_bytes() == (searched / "study.csv.gz").read_bytes()
    assert study(out) == study(searched)
    new = json.loads((out / "study.json").read_text())["costs"][costs:]
    runs = [(point, seed) for c in new for point, seeds in c["runs"].items() for seed in seeds]
    assert sorted(runs) == sorted(
        [(seventh, 1), (study(searched)["best"], 4), (study(searched)["default"], 4)]
    )


def test_failed_trials_are_named_and_stay_failed(searched, tmp_path):
    out = tmp_path / "failed"
    shutil.copytree(searched, out)
    cut = store.read(out)
    last = study(searched)["trials"][-1]["point"]
    cut.frame = cut.frame[cut.frame["point"] != last].reset_index(drop=True)
    cut.facts["failed"] = {f"{last} seed 1": "agent step 7: walk/4 returned a number"}
    cut.write()
    assert sweep.main(["--resume", str(out)]) == 0
    found = study(out)["trials"]
    assert found[:-1] == study(searched)["trials"][:-1]
    assert found[-1] == {
        "point": last, "score": None, "failed": "seed 1: agent step 7: walk/4 returned a number"
    }  # fmt: skip
    text = (out / "study.md").read_text()
    assert f"- {last}: seed 1: agent step 7: walk/4 returned a number" in text


def test_diverged_points_have_no_score():
    rows = pd.DataFrame({
        "seed": [0, 0, 1, 1], "step": [1, 2, 1, 2], "eval_return": [0.0, 1.0, 0.0, 1.0],
        "diverged": [0, 0, 1, 1],
    })  # fmt: skip
    metric = primary.parse("final")
    score, why = search.score_of(rows, metric)
    assert score is None
    assert_names(why, "seed 1")
    assert search.score_of(rows.assign(diverged=0), metric) == (1.0, None)
    never = primary.parse("steps_to_threshold", 5.0)
    assert search.score_of(rows.assign(diverged=0), never) == (3.0, None)  # later than step 2


def test_methods_have_equal_budgets_and_one_run_without_settings(capsys, tmp_path):
    words = ["--replays", "uniform", "per", "lap", "--search", "random", "--trials", "20"]
    more = ["--space", "replay.alpha=0:1", "per.beta=0,1", "lap.sampling=iid,stratified"]
    out = tmp_path / "x"
    assert sweep.main([*TINY, *words, *more, "--dry-run", "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert_names(line_of(said, "random"), "20", "2", "10")  # trials, methods and fresh seeds
    assert "replay." not in line_of(said, "walk/4 uniform")  # has no tuned setting
    own = line_of(said, "walk/4 per")
    assert_names(own, "replay.alpha", "0", "1", "replay.beta", "0.0", "1.0")
    assert "replay.sampling" not in own and "replay.sampling" in line_of(said, "walk/4 lap")
    # Runs: 20 trials of 2 methods with 2 seeds; 10 fresh seeds of 2 best points and 3 defaults.
    assert_names(line_of(said, "130"), "130")
    assert not out.exists()


def test_option_files_define_the_search_space(tmp_path, capsys):
    path = tmp_path / "search.toml"
    path.write_text(
        'search = "random"\ntrials = 3\n[space]\nreplay.alpha = "0:1"\n'
        "agent.hidden = [[8, 8], [16]]\n"
    )
    words = [*TINY, "--replays", "per", "--file", str(path), "--dry-run"]
    assert sweep.main([*words, "--out", str(tmp_path / "x")]) == 0
    said = capsys.readouterr().err
    assert_names(line_of(said, "walk/4 per"), "replay.alpha", "0", "1", "agent.hidden", "8 8", "16")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--space", "replay.alpha=0:1"], ("--space", "--search random", "optuna")),
        (["--search", "random"], ("--search", "--space replay.alpha=0:1")),
        (["--search", "random", "--grid", "n_step=1"], ("--search", "--grid")),
        (["--search", "random", "--space", "batch_size=8:400"],
         ("walk/4 per batch_size=400", "100")),
        (["--search", "random", "--space", "replay.alpha=0:1", "--keep", "replay/betta"],
         ("--keep", "replay/betta", "replay/beta")),
        (["--grid", "n_step=1", "--keep", "replay/betta"],
         ("--keep", "replay/betta", "replay/beta")),
        (["--search", "tpe", "--space", "n_step=1,2"], ("--search", "tpe", "random", "optuna")),
        (["--search", "random", "--metric", "final_iqm"], ("--metric", "--primary final")),
    ],
)  # fmt: skip
def test_invalid_input_is_refused_in_one_line_before_writing(tmp_path, capsys, words, parts):
    out = tmp_path / "x"
    error = refusal(capsys, sweep.main, *TINY, "--replays", "per", "--out", out, *words)
    assert_names(error, *parts)
    assert not out.exists()


def test_other_searches_are_not_resumed(searched, capsys):
    for words, name in (
        (["--trials", "20"], "trials"),
        (["--primary", "auc"], "primary"),
        (["--space", "replay.alpha=0:0.9"], "space"),
    ):
        error = refusal(capsys, sweep.main, "--resume", searched, *words)
        assert_names(error, searched, name, "--out")
