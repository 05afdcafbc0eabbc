"""Edited results: numbers of runs are recomputed from tables, all files have checksums."""

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments import compare, plot, sweep, train, watch
from experiments.report import __main__ as report
from experiments.report import source
from experiments.runs import manifest
from experiments.studies import results
from tests.refusals import refusal, refused

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def edited(path, change):
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))


def page_of(folder, capsys):
    """Return the text of a page and standard error, which contains the same warnings."""
    capsys.readouterr()
    page = folder.parent / "page.html"
    assert report.main([str(folder), "--out", str(page)]) == 0
    said, text = capsys.readouterr().err, page.read_text()
    assert all(line in text for line in said.splitlines())
    return text, said


@pytest.mark.parametrize("kind", ["run", "comparison", "grid", "search"])
def test_unchanged_results_give_no_warning(folders, capsys, kind):
    folder = folders / kind
    assert page_of(folder, capsys)[1] == ""
    assert manifest.differing(folder) == []
    command = {"run": train, "comparison": compare}.get(kind, sweep)
    assert command.main(["--resume", str(folder)]) == 0
    said = capsys.readouterr().err
    assert ".json" not in said and ".csv" not in said
    assert page_of(folder, capsys)[1] == ""


def test_summaries_are_computed_from_the_tables(folders, capsys):
    run = folders / "run"
    before = json.loads((run / "summary.json").read_text())
    wrong = {"final_return": [500.0, 500.0], "final_iqm": 500.0, "mean_return": [1e9, 0.0],
             "reached": 2, "diverged": [0], "steps_per_second": -5.0, "train_seconds": -1.0,
             "final_interval": [499.0, 501.0]}  # fmt: skip
    edited(run / "summary.json", lambda saved: saved.update(wrong))
    assert source.runs({"run": run}, other_code=False).arms["run"].summary == before
    assert "summary.json" in page_of(run, capsys)[1]
    edited(run / "summary.json", lambda saved: saved.update(before | {"final_iqm": 500.0}))
    assert plot.main([str(run), "--out", str(folders / "plot")]) == 0
    said = capsys.readouterr()
    assert "summary.json" in said.err and "500" not in said.out
    assert json.loads((folders / "plot" / "summary.json").read_text())["run"] == before


@pytest.mark.parametrize(
    ("how", "tail"), [("edited", False), ("doubled", True), ("lost", False), ("lost", True)]
)
def test_rows_of_unfinished_runs_are_checked_against_written_bytes(folders, capsys, how, tail):
    run = folders / "run"
    (run / "summary.json").unlink()
    assert page_of(run, capsys)[1] == ""
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    at = len(lines) - 1 if tail else 2
    cells = lines[at].split(",")
    cells[lines[0].split(",").index("eval_return")] = "500.0"
    change = {"edited": [",".join(cells)], "doubled": [lines[at]] * 2, "lost": []}
    (run / "metrics.csv").write_text("".join([*lines[:at], *change[how], *lines[at + 1 :]]))
    text, said = page_of(run, capsys)
    assert "metrics.csv" in said
    frame = source.runs({"run": run}, other_code=False).arms["run"].frame
    assert not frame.duplicated(["seed", "step"]).any()


@pytest.mark.parametrize(
    ("column", "value", "ended"), [("seconds", -5.0, True), ("steps_per_second", 1e9, False)]
)
def test_edited_times_are_reported(folders, capsys, ended, column, value):
    run = folders / "run"
    if not ended:
        (run / "summary.json").unlink()
    frame = pd.read_csv(run / "timing.csv")
    frame.loc[0, column] = value
    frame.to_csv(run / "timing.csv", index=False)
    text, said = page_of(run, capsys)
    assert "timing.csv" in said


def test_resuming_a_finished_run_rejects_an_edited_table(folders):
    run = folders / "run"
    frame = pd.read_csv(run / "timing.csv")
    frame.loc[0, "seconds"] += 1.0
    frame.to_csv(run / "timing.csv", index=False)
    for _ in range(2):
        assert train.main(["--resume", str(run)]) == 0
        (line,) = manifest.differing(run)
        assert str(run / "timing.csv") in line


def test_verdicts_of_a_page_are_computed_from_the_table(folders, capsys):
    folder = folders / "comparison"
    before = results.read(folder).findings.rows
    edited(folder / "verdicts.json", lambda saved: saved["arms"]["per"].update(verdict="agrees"))
    assert results.read(folder).findings.rows == before
    assert "verdicts.json" in page_of(folder, capsys)[1]


def test_committed_studies_have_valid_checksums():
    for path in RESULTS.glob("sweeps/*"):
        assert results.read(path).remarks == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved["costs"][0].update(seconds=-5.0),
        lambda saved: saved["search"]["studies"]["walk/4"]["per"]["trials"][1].update(score=1e9),
        lambda saved: saved["points"][next(iter(saved["points"]))].update(code=["0123456789ab"]),
        lambda saved: saved["failed"].update({"walk/4 per seed 0": "it was edited"}),
    ],
)
def test_edited_files_without_a_table_are_found_by_checksum(folders, capsys, change):
    edited(folders / "search" / "study.json", change)
    assert "study.json" in page_of(folders / "search", capsys)[1]
    for path in ("run/summary.json", "run/config.json"):
        edited(folders / path, lambda saved: saved.setdefault("per", {}).update(more="words"))
        assert path in page_of(folders / path.partition("/")[0], capsys)[1]


@pytest.mark.parametrize("ended", [False, True])
def test_checkpoint_names_must_equal_their_step(folders, capsys, ended):
    below = folders / "run" / "checkpoints"
    if not ended:
        (folders / "run" / "summary.json").unlink()
        max(below.glob("step_*")).unlink()
    last = max(below.glob("step_*"))
    last.rename(last.with_name("step_000000009999.safetensors"))
    for command, words in ((train, ["--resume", folders / "run"]), (watch, [folders / "run"])):
        error = refusal(capsys, command.main, *words)
        assert "9999" in error and last.name in error
    (below / "step_000000009999.safetensors").rename(last)
    assert train.main(["--resume", str(folders / "run")]) == 0


def test_checksums_outside_the_folder_are_refused(folders):
    path = folders / "run" / "manifest.json"
    edited(path, lambda saved: saved["checksums"].update({"../secret.csv": [[0, 0]]}))
    with refused(path, "../secret.csv"):
        manifest.differing(folders / "run")
