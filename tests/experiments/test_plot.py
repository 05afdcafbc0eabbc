"""Finished runs plotted together, from the command line."""

import json
import shutil

import pytest

from experiments import plot, train
from experiments.runs import code
from tests.refusals import assert_names

SIZES = [
    "--env", "gymnax/Pendulum-v1", "--seeds", "1", "--steps", "60", "--warmup", "20",
    "--eval-every", "20", "--eval-episodes", "1", "--env.max-steps", "10", "--agent.hidden", "8",
    "--inspect", "0", "--batch-size", "8", "--figures", "false",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    for agent in ("ddpg", "naf"):
        names = ["--agent", agent, "--replay", "refer", "--out", str(out / agent)]
        assert train.main([*names, *SIZES]) == 0
    return out


def test_runs_of_two_agents_are_plotted_together(runs, capsys):
    out = runs / "both"
    assert plot.main([f"actor={runs / 'ddpg'}", str(runs / "naf"), "--out", str(out)]) == 0
    assert list(json.loads((out / "summary.json").read_text())) == ["actor", "naf"]
    assert (out / "learning_curves.png").stat().st_size > 10_000
    assert (out / "own_metrics.png").stat().st_size > 10_000
    assert not (out / "replayed.png").exists()  # the runs inspected no batches
    table = (out / "comparison.md").read_text()
    assert "| actor " in table and "| naf " in table
    assert table in capsys.readouterr().out


def test_invalid_plots_are_refused(runs, capsys):
    unfinished = runs / "unfinished"
    unfinished.mkdir()
    (unfinished / "metrics.csv").write_text("seed,step,eval_return\n")
    both = [str(runs / "naf")]
    elsewhere = ["--out", str(runs / "x")]
    for arguments, parts in (
        ([*both, str(runs / "none"), *elsewhere], (runs / "none",)),
        ([*both, str(unfinished), *elsewhere], (f"--resume {unfinished}",)),
        ([*both, f"naf={runs / 'ddpg'}", *elsewhere], ("naf", f"other={runs / 'naf'}")),
        ([*both, "--out", str(runs / "ddpg")], (runs / "ddpg", "--out")),
        ([f"={runs / 'ddpg'}", *elsewhere], ("LABEL=FOLDER", "x=runs/x")),
    ):
        with pytest.raises(SystemExit):
            plot.main(arguments)
        assert_names(capsys.readouterr().err, *parts)
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
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(summary | change))
    command = [str(runs / "naf"), str(other), "--out", str(tmp_path / "x")]
    with pytest.raises(SystemExit):
        plot.main(command)
    assert_names(capsys.readouterr().err, "naf", "other", *parts)
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
        ("metrics.csv", lambda lines: [], ()),
        ("metrics.csv", lambda lines: [*lines[:-1], lines[-1][:-1] + "1\n"], ()),
        ("summary.json", lambda lines: ["{}"], ("env",)),
        ("summary.json", lambda lines: ["[]"], ()),
        ("summary.json", lambda lines: ["{"], ("--resume",)),
        ("summary.json", lambda lines: ["3"], ()),
    ],
)
def test_damaged_runs_are_not_plotted(runs, tmp_path, capsys, name, change, parts):
    run = tmp_path / "damaged"
    shutil.copytree(runs / "naf", run)
    lines = (run / name).read_text().splitlines(keepends=True)
    (run / name).write_text("".join(change(lines)))
    with pytest.raises(SystemExit):
        plot.main([str(run), "--out", str(tmp_path / "x")])
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert_names(error, run / name, *parts)
    assert not (tmp_path / "x").exists()


def test_labels_and_titles_are_shown_verbatim(runs, tmp_path, capsys):
    odd = "_a $x^2$|\n<b>"
    out = tmp_path / "odd"
    options = [f"{odd}={runs / 'naf'}", "--title", "costs $5 and $6\n", "--out", str(out)]
    assert plot.main(options) == 0
    table = (out / "comparison.md").read_text()
    assert "_a $x^2$\\| <b>" in table
    assert (out / "learning_curves.png").stat().st_size > 10_000
