"""The comparison command: one folder per method, one table, one figure."""

import json
import re
import shutil
from pathlib import Path

import jax
import pytest

from experiments import compare
from tests.refusals import assert_names

TINY = [
    "--agent", "dqn", "--env", "walk/10", "--seeds", "2", "--steps", "300",
    "--warmup", "100", "--eval-every", "100", "--eval-episodes", "2", "--env.max-steps", "30",
    "--agent.hidden", "16", "--tensorboard", "false", "--figures", "false", "--inspect", "0",
    "--report", "false",
]  # fmt: skip


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "two"
    replays = ["huber=uniform", "lap", "--huber.loss", "huber", "--lap.kappa", "0.5"]
    options = [*TINY, "--inspect", "2", "--out", str(out), "--replays", *replays]
    assert compare.main(options) == 0
    return out


def lines_with(text, *numbers):
    """Return the lines that have these numbers, each as a word."""
    words = (set(re.findall(r"(?<![\w,.])\d+(?![\w,.])", line)) for line in text.splitlines())
    return [found for found in words if found >= set(numbers)]


def test_one_table_and_figure_join_the_runs(compared):
    table = (compared / "comparison.md").read_text()
    assert "| huber" in table and "| lap" in table
    assert (compared / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    assert (compared / "replayed.png").read_bytes().startswith(b"\x89PNG")
    summaries = json.loads((compared / "summary.json").read_text())
    assert set(summaries) == {"huber", "lap", "control"}
    assert len({one["versions"]["code"] for one in summaries.values()}) == 1
    assert json.loads((compared / "huber" / "config.json").read_text())["replay"] == "uniform"
    config = json.loads((compared / "lap" / "config.json").read_text())
    assert config["replay_options"]["kappa"] == 0.5


def test_arms_are_judged_beside_the_one_that_draws_evenly(compared):
    found = json.loads((compared / "verdicts.json").read_text())
    assert (found["baseline"], found["primary"]["name"]) == ("huber", "auc")
    assert set(found["arms"]) == {"lap", "control"}
    assert found["arms"]["lap"]["verdict"] in ("pilot", "not tested")
    assert (compared / "verdicts.png").read_bytes().startswith(b"\x89PNG")
    table = (compared / "comparison.md").read_text()
    assert_names(table, "auc", "huber")
    assert_names(next(x for x in table.splitlines() if x.startswith("- control")), "2", "10")
    control = json.loads((compared / "control" / "config.json").read_text())
    assert (control["replay"], control["seed"]) == ("uniform", 2)


def test_a_page_is_written_at_the_end_unless_it_is_not_wanted(compared, capsys):
    page = compared / "report.html"
    assert not page.exists()
    assert compare.main(["--resume", str(compared), "--report", "true"]) == 0
    assert_names(capsys.readouterr().out, page)
    (title,) = re.findall("<h1>(.*?)</h1>", page.read_text())
    assert_names(title, "dqn", "walk/10")
    page.write_text("mine")
    assert compare.main(["--resume", str(compared)]) == 0  # it goes on as it was
    assert_names(capsys.readouterr().out, page, "--out")
    assert page.read_text() == "mine"
    page.unlink()
    with pytest.raises(SystemExit):
        compare.main(["--help", "all"])
    shown = " ".join(capsys.readouterr().out.split())
    explained = shown.partition("--report BOOL ")[2].partition("--")[0]
    assert_names(explained, "report.html", "[default true]")


def test_labels_name_one_method_each(capsys):
    for bad, parts in (
        ("1x=per", ("--replays", "1x")), ("x=pre", ("--replays", "pre", "per", "uniform")),
        ("agent=ners", ("--replays", "agent")), ("per=lap per", ("per", "other=lap")),
        ("uniform uniform", ("uniform", "other=uniform")),
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            compare.main(["--replays", *bad.split()])
        assert_names(capsys.readouterr().err, *parts)


def test_resume_finds_the_runs_and_changes_nothing(compared):
    before = (compared / "lap" / "metrics.csv").read_bytes()
    assert compare.main(["--resume", str(compared)]) == 0
    assert (compared / "lap" / "metrics.csv").read_bytes() == before
    assert "| huber" in (compared / "comparison.md").read_text()


def test_nothing_is_overwritten_even_if_only_one_method_is_there(compared, capsys):
    with pytest.raises(SystemExit) as exit_:
        compare.main([*TINY, "--replays", "per", "lap", "--out", str(compared)])
    assert exit_.value.code == 2
    assert_names(capsys.readouterr().err, "--overwrite", f"--resume {compared}", "--out")
    assert not (compared / "per").exists()


def test_bad_option_of_a_method_is_refused_before_anything_runs(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        compare.main(
            [*TINY, "--replays", "uniform", "per", "--per.beta", "2", "--out", str(tmp_path / "x")]
        )
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert_names(error, "--per.beta", "2.0", "0", "1")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("option", "parts"),
    [
        (["--env", "gymnax/Acrobot-v1"], ("walk/10", "--env", "--out")),
        (["--agent", "rainbow"], ("dqn", "--agent", "--out")),
        (["--replays", "per"], ("huber", "lap", "--replays", "--out")),
        (["--overwrite"], ("--resume", "--overwrite")),
        (["--primary", "final"], ("auc", "--primary", "--out")),
        (["--control", "false"], ("True", "--control", "--out")),
        (["--learn-every", "1", "4"], ("two",)),  # the folder
        (["--threshold", "3"], ("None", "--threshold", "--out")),
    ],
)
def test_resuming_something_else_is_refused(compared, option, parts, capsys):
    with pytest.raises(SystemExit):
        compare.main(["--resume", str(compared), *option])
    assert_names(capsys.readouterr().err, *parts)


def test_several_cadences_are_an_axis(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = Path("runs/compare-dqn-walk-10")  # where nobody says it
    assert compare.main([*TINY, "--replays", "uniform", "--learn-every", "8", "16"]) == 0
    assert len(lines_with(capsys.readouterr().err, "308", "300", "16")) == 1  # steps rounded up
    saved = {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/config.json")}
    labels = {f"{label}_every{every}" for label in ("uniform", "control") for every in (8, 16)}
    assert set(saved) == labels
    assert saved["control_every16"]["loop"]["learn_every"] == 16
    assert saved["control_every16"]["seed"] == 2
    assert (out / "learning_curves_every8.png").exists()
    judged = json.loads((out / "verdicts.json").read_text())["arms"]
    assert judged["control_every8"]["baseline"] == "uniform_every8"
    before = (out / "control_every8" / "metrics.csv").read_bytes()
    assert compare.main(["--resume", str(out)]) == 0
    assert (out / "control_every8" / "metrics.csv").read_bytes() == before
    # Learning at every 16th step is 4 replays of each transition.
    assert lines_with(capsys.readouterr().out, "16", "4")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--seeds", "1"], ("seeds", "1", "2")),
        (["--primary", "best_of_all"], ("best_of_all", "auc", "final")),
        (["--baseline", "rank"], ("baseline", "rank", "uniform", "pal")),
        (["--ungated", ""], ("ungated",)),
        (["--learn-every", "0"], ("learn_every", "0")),
        (["--replays", "per", "--control", "false"], ("control",)),
        (["--primary", "last_9"], ("last_9", "9", "2")),
        (["--replays", "control=per"], ("control",)),
        (["--learn-every", "1", "4", "1"], ("--learn-every", "1")),
        (["--replays", "=per", "uniform"], ("--replays", "''")),
        (["--json"], ("--json", "--list")),
    ],
)
def test_questions_that_cannot_be_answered_are_refused(tmp_path, capsys, options, parts):
    with pytest.raises(SystemExit):
        compare.main([*TINY, *options, "--out", str(tmp_path / "x")])
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert_names(error, *parts)
    assert not (tmp_path / "x").exists()


def test_other_code_is_refused_unless_asked_for(compared, tmp_path, capsys):
    out = tmp_path / "other"
    shutil.copytree(compared, out)
    path = out / "lap" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"code": ["0123456789ab"]}))
    with pytest.raises(SystemExit):
        compare.main(["--resume", str(out)])
    assert_names(capsys.readouterr().err, "0123456789ab", "lap", "--other-code true")
    assert compare.main(["--resume", str(out), "--other-code", "true"]) == 0


def test_other_settings_of_jax_are_refused_by_name(compared, tmp_path, capsys):
    """What has ended is joined with nothing else; a run that goes on would have other numbers."""
    out = tmp_path / "other"
    shutil.copytree(compared, out)
    (out / "lap" / "summary.json").unlink()  # as if it had been stopped
    with jax.threefry_partitionable(False), pytest.raises(SystemExit):
        compare.main(["--resume", str(out)])
    assert "jax_threefry_partitionable=false" in capsys.readouterr().err
    assert not (out / "lap" / "summary.json").exists()


def test_a_run_and_a_comparison_are_not_taken_for_one_another(compared, capsys):
    folder = compared / "lap"
    with pytest.raises(SystemExit):
        compare.main([*TINY, "--replays", "per", "--out", str(folder), "--overwrite"])
    assert_names(capsys.readouterr().err, folder, "run", "comparison", "--out")
    assert (compared / "lap" / "metrics.csv").exists()
