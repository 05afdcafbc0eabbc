"""Finished runs plotted together, from the command line."""

import json
import shutil
from pathlib import Path

import pytest

from experiments import plot
from tests.refusals import assert_names, refusal

STUDY = Path(__file__).parents[2] / "experiments" / "results" / "sweeps" / "walk_per"


def edited(folder, *, code=None, **config):
    """Change the configuration and the version of the code of the run in a folder."""
    path = folder / "study.json"
    saved = json.loads(path.read_text())
    (point,) = saved["points"].values()
    point["config"] |= config
    point["code"] = point["code"] if code is None else code
    path.write_text(json.dumps(saved))


@pytest.fixture
def runs(made, tmp_path):
    """Return a folder of two runs, which differ in the name of the agent."""
    for agent in ("naf", "racer"):
        shutil.copytree(made / "run", tmp_path / agent)
        edited(tmp_path / agent, agent=agent)
    return tmp_path


def test_runs_of_two_agents_are_plotted_together(runs, capsys):
    """Labels and titles are shown verbatim."""
    odd, out = "_a $x^2$|\n<b>", runs / "out"
    words = [f"{odd}={runs / 'racer'}", str(runs / "naf"), "--title", "costs $5 and $6\n"]
    assert plot.main([*words, "--out", str(out)]) == 0
    assert len(json.loads((out / "comparison.json").read_text())) == 2
    assert (out / "learning_curves.png").stat().st_size > 10_000
    table = (out / "comparison.md").read_text()
    assert "_a $x^2$\\| <b>" in table and "| naf " in table
    assert table in capsys.readouterr().out
    assert_names(refusal(capsys, plot.main, *words, "--out", out), out, "--overwrite", "--out")
    assert plot.main([*words, "--out", str(out), "--overwrite"]) == 0


def test_invalid_plots_are_refused(runs, capsys):
    unfinished, damaged = runs / "unfinished", runs / "damaged"
    for folder in (unfinished, damaged):
        shutil.copytree(runs / "naf", folder)
    (unfinished / "study.csv.gz").unlink()
    table = damaged / "study.csv.gz"
    table.write_bytes(table.read_bytes()[:-1])
    valid, elsewhere = [str(runs / "naf")], ["--out", str(runs / "x")]
    for arguments, parts in (
        ([*valid, str(runs / "none"), *elsewhere], (runs / "none",)),
        ([*valid, str(STUDY), *elsewhere], (STUDY,)),
        ([str(unfinished), *elsewhere], (f"--resume {unfinished}",)),
        ([str(damaged), *elsewhere], (table,)),
        ([*valid, f"naf={runs / 'racer'}", *elsewhere], ("naf", f"other={runs / 'naf'}")),
        ([*valid, "--out", str(runs / "racer")], (runs / "racer", "--out")),
        ([f"={runs / 'racer'}", *elsewhere], ("LABEL=FOLDER", "x=runs/x")),
    ):
        assert_names(refusal(capsys, plot.main, *arguments), *parts)
    assert not (runs / "x").exists()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"env": "gymnax/Reacher-misc"}, ("walk/4", "gymnax/Reacher-misc")),
        ({"code": ["0123456789ab"]}, ("0123456789ab", "--other-code")),
        ({"code": []}, ("none", "--other-code")),
    ],
)
def test_incompatible_runs_are_refused(runs, capsys, change, parts):
    edited(runs / "racer", **change)
    command = [str(runs / "naf"), str(runs / "racer"), "--out", str(runs / "x")]
    assert_names(refusal(capsys, plot.main, *command), "naf", "racer", *parts)
    assert not (runs / "x").exists()
    if "code" in change:
        assert plot.main([*command, "--other-code"]) == 0
