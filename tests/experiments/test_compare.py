"""The comparison command: methods on one task, with a control, as a study."""

import json
import re
from pathlib import Path

import pytest

from experiments import compare
from experiments.studies import store
from tests.refusals import assert_names, refusal

TINY = [
    "--agent", "dqn", "--env", "walk/10", "--seeds", "2", "--steps", "300",
    "--warmup", "100", "--eval-every", "100", "--eval-episodes", "2", "--env.max-steps", "30",
    "--agent.hidden", "16", "--figures", "false", "--inspect", "0", "--report", "false",
]  # fmt: skip


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
    assert_names(next(x for x in text.splitlines() if x.startswith("- control")), "walk/10")


def test_resuming_a_finished_comparison_writes_only_a_requested_page(compared, capsys):
    before, page = (compared / "study.csv.gz").read_bytes(), compared / "report.html"
    assert not page.exists()
    assert compare.main(["--resume", str(compared), "--report", "true"]) == 0
    assert_names(capsys.readouterr().out, page)
    (title,) = re.findall("<h1>(.*?)</h1>", page.read_text())
    assert_names(title, "dqn", "walk/10")
    assert 'id="verdicts"' in page.read_text()
    page.write_text("mine")
    assert compare.main(["--resume", str(compared)]) == 0
    assert_names(capsys.readouterr().out, page, "--out")
    assert page.read_text() == "mine"
    assert (compared / "study.csv.gz").read_bytes() == before


@pytest.mark.parametrize(
    ("option", "parts"),
    [
        (["--env", "gymnax/Acrobot-v1"], ("walk/10", "--envs", "--out")),
        (["--agent", "rainbow"], ("dqn", "--agent", "--out")),
        (["--replays", "per"], ("huber", "lap", "--replays", "--out")),
        (["--overwrite"], ("--resume", "--overwrite")),
        (["--control", "false"], ("control", "--out")),
        (["--learn-every", "1", "4"], ("learn_every",)),
        (["--lap.kappa", "2"], ("kappa",)),
    ],
)
def test_resuming_with_other_options_is_refused(compared, option, parts, capsys):
    assert_names(refusal(capsys, compare.main, "--resume", compared, *option), *parts)


def test_learn_every_may_be_an_axis(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = Path("runs/compare-dqn-walk-10")  # the default
    options = [*TINY, "--replays", "uniform", "--learn-every", "8", "16", "--figures", "true"]
    assert compare.main(options) == 0
    judged = json.loads((out / "verdicts.json").read_text())["arms"]
    assert set(judged) == {"control_every8", "control_every16"}
    assert judged["control_every8"]["baseline"] == "uniform_every8"
    # Learning at every 16th step replays each transition 4 times.
    assert judged["control_every16"]["replays_per_transition"] == 4
    assert (out / "learning_curves_1.png").exists() and (out / "learning_curves_2.png").exists()
    before = (out / "study.csv.gz").read_bytes()
    assert compare.main(["--resume", str(out)]) == 0
    assert (out / "study.csv.gz").read_bytes() == before
    assert "8 agent steps per update" in capsys.readouterr().out


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
