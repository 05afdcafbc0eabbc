"""The comparison command: one folder per method, one table, one figure."""

import json
import shutil
from pathlib import Path

import jax
import pytest

from experiments import compare

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
    assert "Primary metric: auc" in table and "fewer than 10" in table
    control = json.loads((compared / "control" / "config.json").read_text())
    assert (control["replay"], control["seed"]) == ("uniform", 2)


def test_a_page_is_written_at_the_end_unless_it_is_not_wanted(compared, capsys):
    page = compared / "report.html"
    assert not page.exists()
    assert compare.main(["--resume", str(compared), "--report", "true"]) == 0
    assert f"report:  {page}" in capsys.readouterr().out
    assert "<h1>dqn on walk/10</h1>" in page.read_text()
    page.write_text("mine")
    assert compare.main(["--resume", str(compared)]) == 0  # it goes on as it was
    assert "was not written by this command" in capsys.readouterr().out
    assert page.read_text() == "mine"
    page.unlink()
    with pytest.raises(SystemExit):
        compare.main(["--help", "all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "write report.html at the end" in shown
    assert "[default true]" in shown.partition("write report.html")[2][:120]


def test_labels_name_one_method_each(capsys):
    for bad, message in (
        ("1x=per", "'1x' is no label"), ("x=pre", "unknown replay 'pre'"),
        ("agent=ners", "'agent' is taken"), ("per=lap per", "'per' stands for two methods"),
        ("uniform uniform", "'uniform' is named twice: leave one out, or give it another label, "
                            "as in other=uniform"),
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            compare.main(["--replays", *bad.split()])
        assert message in capsys.readouterr().err


def test_resume_finds_the_runs_and_changes_nothing(compared):
    before = (compared / "lap" / "metrics.csv").read_bytes()
    assert compare.main(["--resume", str(compared)]) == 0
    assert (compared / "lap" / "metrics.csv").read_bytes() == before
    assert "| huber" in (compared / "comparison.md").read_text()


def test_nothing_is_overwritten_even_if_only_one_method_is_there(compared, capsys):
    with pytest.raises(SystemExit) as exit_:
        compare.main([*TINY, "--replays", "per", "lap", "--out", str(compared)])
    assert exit_.value.code == 2
    assert "already holds a comparison" in capsys.readouterr().err
    assert not (compared / "per").exists()


def test_bad_option_of_a_method_is_refused_before_anything_runs(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        compare.main(
            [*TINY, "--replays", "uniform", "per", "--per.beta", "2", "--out", str(tmp_path / "x")]
        )
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("error: --per.beta is 2.0: it must lie in [0, 1]")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--env", "gymnax/Acrobot-v1"], "was made with env walk/10"),
        (["--agent", "rainbow"], "was made with agent dqn"),
        (["--replays", "per"], "has huber, lap: leave out --replays"),
        (["--overwrite"], "--resume goes on with what --overwrite would discard"),
        (["--primary", "final"], "what decides it is named before it runs"),
        (["--control", "false"], "was made with control True"),
        (["--learn-every", "1", "4"], "has other runs"),
        (["--threshold", "3"], "was made with threshold None"),
    ],
)
def test_resuming_something_else_is_refused(compared, option, message, capsys):
    with pytest.raises(SystemExit):
        compare.main(["--resume", str(compared), *option])
    assert message in capsys.readouterr().err


def test_several_cadences_are_an_axis(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = Path("runs/compare-dqn-walk-10")  # where nobody says it
    assert compare.main([*TINY, "--replays", "uniform", "--learn-every", "8", "16"]) == 0
    said = capsys.readouterr().err
    assert said.count("308 agent steps, 300 rounded up to whole learning phases of 16\n") == 1
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
    assert "4 replays per transition" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds", "1"], "a comparison needs 2 for an interval"),
        (["--primary", "best_of_all"], "is no primary metric"),
        (["--baseline", "rank"], "baseline 'rank' is none of"),
        (["--ungated", ""], "ungated is the reason"),
        (["--learn-every", "0"], "learn_every is 0"),
        (["--replays", "per", "--control", "false"], "nothing to be compared with"),
        (["--primary", "last_9"], "needs 9 evaluations"),
        (["--replays", "control=per"], "'control' is the baseline with other seeds"),
        (["--learn-every", "1", "4", "1"], "--learn-every names 1 twice"),
        (["--replays", "=per", "uniform"], "'' is no label"),
        (["--json"], "--list"),
    ],
)
def test_questions_that_cannot_be_answered_are_refused(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit):
        compare.main([*TINY, *options, "--out", str(tmp_path / "x")])
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_other_code_is_refused_unless_asked_for(compared, tmp_path, capsys):
    out = tmp_path / "other"
    shutil.copytree(compared, out)
    path = out / "lap" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"code": ["0123456789ab"]}))
    with pytest.raises(SystemExit):
        compare.main(["--resume", str(out)])
    assert "different versions of the code" in capsys.readouterr().err
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
    for folder, message in ((compared / "lap", "holds a run, not a comparison"),):
        with pytest.raises(SystemExit):
            compare.main([*TINY, "--replays", "per", "--out", str(folder), "--overwrite"])
        assert message in capsys.readouterr().err
    assert (compared / "lap" / "metrics.csv").exists()
