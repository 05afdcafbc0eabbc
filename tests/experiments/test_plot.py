"""Finished runs plotted together, from the command line."""

import json
import shutil

import pytest

from experiments import plot, train
from experiments.runs import code

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


def test_what_cannot_be_plotted_is_refused(runs, capsys):
    unfinished = runs / "unfinished"
    unfinished.mkdir()
    (unfinished / "metrics.csv").write_text("seed,step,eval_return\n")
    both = [str(runs / "naf")]
    for arguments, message in (
        ([*both, str(runs / "none"), "--out", str(runs / "x")], "holds no run"),
        ([*both, str(unfinished), "--out", str(runs / "x")], "finish it with --resume"),
        ([*both, f"naf={runs / 'ddpg'}", "--out", str(runs / "x")], "two runs are called 'naf'"),
        ([*both, "--out", str(runs / "ddpg")], "choose another --out"),
        ([f"={runs / 'ddpg'}", "--out", str(runs / "x")], "the label is empty"),
    ):
        with pytest.raises(SystemExit):
            plot.main(arguments)
        assert message in capsys.readouterr().err
    assert not (runs / "x").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env": "gymnax/Reacher-misc"}, "different environments"),
        ({"versions": {"code": "0123456789ab"}}, "different versions of the code"),
        ({"versions": {"code": f"{code.digest()} (jax_enable_x64=true)"}}, "jax_enable_x64=true"),
        ({"versions": {}}, "different versions of the code"),  # as before they were recorded
    ],
)
def test_runs_that_do_not_belong_together_are_refused(runs, tmp_path, capsys, change, message):
    other = tmp_path / "other"
    shutil.copytree(runs / "naf", other)
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(summary | change))
    command = [str(runs / "naf"), str(other), "--out", str(tmp_path / "x")]
    with pytest.raises(SystemExit):
        plot.main(command)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    if "versions" in change:
        assert plot.main([*command, "--other-code"]) == 0


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("metrics.csv", lambda lines: lines[:-1], "missing or doubled"),
        ("metrics.csv", lambda lines: [*lines, lines[-1]], "missing or doubled"),
        ("metrics.csv", lambda lines: lines[:1], "missing or doubled"),
        ("metrics.csv", lambda lines: lines[1:], "is damaged"),
        ("metrics.csv", lambda lines: [], "is damaged"),
        (
            "metrics.csv",
            lambda lines: [*lines[:-1], lines[-1][:-1] + "1\n"],
            "not as the run wrote",
        ),
        ("summary.json", lambda lines: ["{}"], "lacks env"),
        ("summary.json", lambda lines: ["[]"], "is damaged"),
        ("summary.json", lambda lines: ["{"], "is damaged"),
        ("summary.json", lambda lines: ["3"], "is damaged"),
    ],
)
def test_damaged_runs_are_not_plotted(runs, tmp_path, capsys, name, change, message):
    run = tmp_path / "damaged"
    shutil.copytree(runs / "naf", run)
    lines = (run / name).read_text().splitlines(keepends=True)
    (run / name).write_text("".join(change(lines)))
    with pytest.raises(SystemExit):
        plot.main([str(run), "--out", str(tmp_path / "x")])
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_labels_and_titles_are_shown_as_they_are(runs, tmp_path, capsys):
    odd = "_a $x^2$|\n<b>"
    out = tmp_path / "odd"
    options = [f"{odd}={runs / 'naf'}", "--title", "costs $5 and $6\n", "--out", str(out)]
    assert plot.main(options) == 0
    table = (out / "comparison.md").read_text()
    assert "_a $x^2$\\| <b>" in table
    assert (out / "learning_curves.png").stat().st_size > 10_000
