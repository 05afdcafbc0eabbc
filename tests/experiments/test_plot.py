"""Finished runs plotted together, from the command line."""

import json
import shutil
from pathlib import Path

import pytest

from experiments import plot
from experiments.runs import code
from tests.refusals import assert_names, refusal

RESULTS = Path(__file__).parents[2] / "experiments" / "results" / "refer"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return copies of two committed runs, as if by the present code."""
    out = tmp_path_factory.mktemp("runs")
    for agent in ("naf", "racer"):
        shutil.copytree(RESULTS / f"{agent}_pendulum" / "refer", out / agent)
        path = out / agent / "summary.json"
        saved = json.loads(path.read_text())
        saved["versions"]["code"] = code.digest()
        path.write_text(json.dumps(saved))
    return out


def test_runs_of_two_agents_are_plotted_together(runs, capsys):
    out = runs / "both"
    assert plot.main([f"actor={runs / 'racer'}", str(runs / "naf"), "--out", str(out)]) == 0
    assert list(json.loads((out / "summary.json").read_text())) == ["actor", "naf"]
    assert (out / "learning_curves.png").stat().st_size > 10_000
    assert (out / "own_metrics.png").stat().st_size > 10_000
    table = (out / "comparison.md").read_text()
    assert "| actor " in table and "| naf " in table
    assert table in capsys.readouterr().out


def test_invalid_plots_are_refused(runs, capsys):
    unfinished = runs / "unfinished"
    shutil.copytree(runs / "naf", unfinished)
    (unfinished / "summary.json").unlink()
    both, study = [str(runs / "naf")], RESULTS.parent / "sweeps" / "walk_per"
    elsewhere = ["--out", str(runs / "x")]
    for arguments, parts in (
        ([*both, str(runs / "none"), *elsewhere], (runs / "none",)),
        ([*both, str(study), *elsewhere], (study, "experiments.report")),
        ([str(unfinished), *elsewhere], (f"--resume {unfinished}",)),
        ([*both, f"naf={runs / 'racer'}", *elsewhere], ("naf", f"other={runs / 'naf'}")),
        ([*both, "--out", str(runs / "racer")], (runs / "racer", "--out")),
        ([f"={runs / 'racer'}", *elsewhere], ("LABEL=FOLDER", "x=runs/x")),
    ):
        assert_names(refusal(capsys, plot.main, *arguments), *parts)
    assert not (runs / "x").exists()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"env": "gymnax/Reacher-misc"}, ("gymnax/Pendulum-v1", "gymnax/Reacher-misc")),
        ({"versions": {"code": "0123456789ab"}}, ("0123456789ab", "--other-code")),
        (
            {"versions": {"code": f"{code.digest()} (jax_enable_x64=true)"}},
            ("jax_enable_x64=true", "--other-code"),
        ),
        ({"versions": {}}, (code.digest(), "--other-code")),  # as in runs without recorded versions
    ],
)
def test_incompatible_runs_are_refused(runs, tmp_path, capsys, change, parts):
    other = tmp_path / "other"
    shutil.copytree(runs / "naf", other)
    for name in ("summary.json", "config.json"):
        saved = json.loads((other / name).read_text())
        (other / name).write_text(json.dumps(saved | change))
    command = [str(runs / "naf"), str(other), "--out", str(tmp_path / "x")]
    assert_names(refusal(capsys, plot.main, *command), "naf", "other", *parts)
    assert not (tmp_path / "x").exists()
    if "versions" in change:
        assert plot.main([*command, "--other-code"]) == 0


@pytest.mark.parametrize(
    ("name", "change", "parts"),
    [
        ("metrics.csv", lambda lines: lines[:-1], ()),
        ("metrics.csv", lambda lines: [*lines, lines[-1]], ()),
        ("metrics.csv", lambda lines: lines[:1], ()),
        ("metrics.csv", lambda lines: lines[1:], ()),
        ("metrics.csv", lambda lines: [*lines[:-1], lines[-1][:-1] + "1\n"], ()),
        ("summary.json", lambda lines: ["{"], ("--resume",)),
    ],
)
def test_damaged_runs_are_not_plotted(made, tmp_path, capsys, name, change, parts):
    run = tmp_path / "damaged"
    shutil.copytree(made / "run", run)
    lines = (run / name).read_text().splitlines(keepends=True)
    (run / name).write_text("".join(change(lines)))
    error = refusal(capsys, plot.main, run, "--out", tmp_path / "x")
    assert_names(error, run / name, *parts)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("change", [lambda lines: lines[:-1], lambda lines: [*lines, lines[-1]]])
def test_lost_and_doubled_rows_are_found_without_a_checksum(runs, tmp_path, capsys, change):
    run = tmp_path / "damaged"
    shutil.copytree(runs / "naf", run)
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    (run / "metrics.csv").write_text("".join(change(lines)))
    assert_names(refusal(capsys, plot.main, run, "--out", tmp_path / "x"), run / "metrics.csv")


def test_labels_and_titles_are_shown_verbatim(runs, tmp_path, capsys):
    odd = "_a $x^2$|\n<b>"
    out = tmp_path / "odd"
    options = [f"{odd}={runs / 'naf'}", "--title", "costs $5 and $6\n", "--out", str(out)]
    assert plot.main(options) == 0
    table = (out / "comparison.md").read_text()
    assert "_a $x^2$\\| <b>" in table
    assert (out / "learning_curves.png").stat().st_size > 10_000
