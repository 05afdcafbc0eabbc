"""The command that looks at the replay of a run."""

import csv
import json

import numpy as np
import pytest

from experiments import microscope, train
from tests.refusals import assert_names, refusal

TINY = [
    "--env", "walk/3", "--seeds", "2", "--seed", "3", "--steps", "120", "--warmup", "20",
    "--eval-every", "60", "--eval-episodes", "1", "--inspect", "0", "--n-step", "1",
    "--batch-size", "8", "--tensorboard", "false", "--figures", "false", "--agent.hidden", "8",
]  # fmt: skip
FILES = {
    "microscope.md", "methods.csv", "slots.npz", "microscope.json", "microscope.html", "who.png",
    "stale.png", "effect.png", "agreement.png",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "per"
    assert train.main([*TINY, "--replay", "per", "--out", str(folder)]) == 0
    return folder


def look(run, out, *words):
    assert microscope.main([str(run), "--out", str(out), *map(str, words)]) == 0
    return json.loads((out / "microscope.json").read_text())


def test_files_of_a_look(run, tmp_path):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    names = ["--methods", "lap", "relo", "geometric", "ere"]
    first = look(run, tmp_path / "a", *names, "--seed", 4)
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES
    assert (first["env"], first["replay"], first["seed"]) == ("walk/3", "per", 4)
    assert first["step"] == 120 and first["gradients"] == "parameters"
    assert first["run"]["stored"] == 120 and first["run"]["replay volume"] == 8
    with (tmp_path / "a" / "methods.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"uniform", "per, stored", "per", "lap", "relo", "geometric", "ere"}
    assert rows["ere"]["basis"].startswith("not comparable") and not rows["ere"]["entropy"]
    assert rows["relo"]["entropy"] and float(rows["per"]["TV to run"]) > 0
    with np.load(tmp_path / "a" / "slots.npz") as slots:
        assert slots["P_per_stored"].sum() == pytest.approx(1, abs=1e-4)
        assert len(slots["slot"]) == 120 and {"episode", "td", "age_updates"} <= set(slots)
    text = (tmp_path / "a" / "microscope.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("| ")][-len(rows) - 2 :]
    assert {line.count("|") for line in table} == {len(rows["per"]) + 1}
    page = (tmp_path / "a" / "microscope.html").read_text()
    assert_names(page, "walk/3", "not comparable", "<svg")
    # The same look again, and another seed; the run stays as it is.
    assert look(run, tmp_path / "b", *names, "--seed", 4)["digest"] == first["digest"]
    other = look(run, tmp_path / "c", "--methods", "uniform")
    assert other["methods"]["per"]["entropy"] != first["methods"]["per"]["entropy"]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_verdicts_of_the_nearest_volume():
    header, *rows = microscope.verdicts("walk/10", 3.0)
    assert {row[1] for row in rows} == {"2"} and {"per", "lap"} <= {row[0] for row in rows}
    assert len(header) == len(rows[0])
    assert {row[1] for row in microscope.verdicts("walk/10", 64.0)[1:]} == {"8"}
    assert microscope.verdicts("walk/3", 2.0) == [] == microscope.verdicts("walk/10", 0.0)


def test_counted_draws(run, tmp_path):
    """Counting changes no number of the run."""
    folder = tmp_path / "counted"
    words = [*TINY, "--replay", "per", "--count-draws", "true", "--out", str(folder)]
    assert train.main(words) == 0
    assert (folder / "metrics.csv").read_bytes() == (run / "metrics.csv").read_bytes()
    seen = look(folder, tmp_path / "look", "--methods", "uniform")
    assert not seen["forecasts"]
    assert (tmp_path / "look" / "episodes.png").exists()
    with np.load(tmp_path / "look" / "slots.npz") as slots:
        draws, first = slots["draws"], slots["first_draw"]
    assert draws.sum() == 100 * 8  # nothing was overwritten
    assert seen["run"]["never drawn"] == pytest.approx((draws == 0).mean())
    np.testing.assert_array_equal(first >= 0, draws > 0)


def test_bad_looks(run, tmp_path, capsys):
    for words, parts in (
        ([run, "--seed", 9], ["3 to 4", 9]),
        ([run, "--methods", "perr"], ["perr"]),
        ([run, "--replay", "lap"], ["per", "lap"]),
        ([run, "--gradients", 0], ["gradients"]),
        ([tmp_path / "none"], ["none"]),
    ):
        assert_names(refusal(capsys, microscope.main, *words), *parts)
