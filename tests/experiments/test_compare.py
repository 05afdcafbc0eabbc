"""The comparison command: methods on one task, with a control, as a study."""

import json
import re
from pathlib import Path

import pytest

from experiments import compare, study
from experiments.studies import results, store, study_page
from tests.experiments import tiny
from tests.refusals import assert_names, refusal

TINY = [*tiny.TINY, "--env", "walk/4", "--figures", "false", "--report", "false"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "two"
    replays = ["huber=uniform", "lap", "--huber.loss", "huber", "--lap.kappa", "0.5"]
    options = [*TINY, "--inspect", "2", "--figures", "true", "--out", str(out), "--replays"]
    assert compare.main([*options, *replays]) == 0
    return out


def test_arms_share_one_table_and_figures(compared):
    table = store.read(compared).table
    assert set(table["replay"]) == {"huber", "lap", "control"}
    seeds = table.groupby("replay")["seed"].agg(["min", "max"])
    assert seeds.loc["control"].tolist() == [2, 3] and seeds.loc["lap"].tolist() == [0, 1]
    points = store.read(compared).facts["points"]
    configs = {own["replay"]: own["config"] for own in points.values()}
    assert configs["huber"]["replay"] == configs["control"]["replay"] == "uniform"
    assert configs["lap"]["replay_options"]["kappa"] == 0.5
    for name in ("learning_curves", "replayed", "own_metrics", "verdicts"):
        assert (compared / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_arms_are_judged_against_uniform_replay(compared):
    found = json.loads((compared / "verdicts.json").read_text())
    assert (found["baseline"], found["primary"]["name"]) == ("huber", "auc")
    assert set(found["arms"]) == {"lap", "control"}
    assert found["arms"]["lap"]["verdict"] in ("pilot", "not tested")
    text = (compared / "study.md").read_text()
    assert_names(text, "auc", "huber", "lap")
    assert_names(next(x for x in text.splitlines() if x.startswith("- control")), "walk/4")


def test_pages_of_finished_comparisons_miss_no_run(compared):
    warnings = study_page._warnings(results.read(compared))
    assert warnings and not any(re.search(r"\b6\b", line) for line in warnings)  # 2 of 3 arms


def test_resuming_a_finished_comparison_writes_only_a_requested_page(compared, capsys):
    before, page = (compared / "study.csv.gz").read_bytes(), compared / "report.html"
    assert not page.exists()
    words = ["--resume", str(compared), "--figures", "false"]
    assert compare.main([*words, "--report", "true"]) == 0
    assert_names(capsys.readouterr().out, page)
    (title,) = re.findall("<h1>(.*?)</h1>", page.read_text())
    assert_names(title, "dqn", "walk/4")
    assert 'id="verdicts"' in page.read_text()
    page.write_text("mine")
    assert compare.main(words) == 0
    assert_names(capsys.readouterr().out, page, "--out")
    assert page.read_text() == "mine"
    assert (compared / "study.csv.gz").read_bytes() == before


@pytest.mark.parametrize(
    ("option", "parts"),
    [
        (["--env", "gymnax/Acrobot-v1"], ("walk/4", "--envs", "--out")),
        (["--agent", "rainbow"], ("dqn", "--agent", "--out")),
        (["--replays", "per"], ("huber", "lap", "--replays", "--out")),
        (["--preset", "per_proportional"], ("--preset",)),
        (["--overwrite"], ("--resume", "--overwrite")),
        (["--control", "false"], ("control", "--out")),
        (["--learn-every", "1", "4"], ("learn_every",)),
        (["--lap.kappa", "2"], ("kappa",)),
    ],
)
def test_resuming_with_other_options_is_refused(compared, option, parts, capsys):
    assert_names(refusal(capsys, compare.main, "--resume", compared, *option), *parts)


def test_replay_ratios_are_an_axis_and_the_default_folder_names_the_runs(monkeypatch, capsys):
    started = []
    monkeypatch.setattr(study, "_run", lambda asked, out, *_: started.append((asked, out)))
    assert compare.main([*TINY, "--replays", "uniform", "--learn-every", "8", "16"]) == 0
    ((asked, out),) = started
    assert {(point.name, point.config.loop.learn_every) for point in asked.points()} == {
        ("uniform_every8", 8), ("uniform_every16", 16),
        ("control_every8", 8), ("control_every16", 16),
    }  # fmt: skip
    assert out == Path("runs/compare-dqn-walk-4")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--baseline", "rank"], ("baseline", "rank", "uniform", "pal")),
        (["--primary", "last_9"], ("last_9", "9", "2")),
        (["--ungated", ""], ("ungated",)),
        (["--replays", "control=per"], ("control",)),
        (["--learn-every", "1", "4", "1"], ("learn_every", "1")),
        (["--json"], ("--json", "--list")),
        (["--replays", "=per", "uniform"], ("--replays", "''")),
        (["--replays", "agent=ners"], ("--replays", "agent")),
        (["--replays", "per=lap", "per"], ("per", "other=lap")),
    ],
)
def test_invalid_input_is_refused_before_training(tmp_path, capsys, options, parts):
    out = tmp_path / "x"
    assert_names(refusal(capsys, compare.main, *TINY, *options, "--out", out), *parts)
    assert not out.exists()
