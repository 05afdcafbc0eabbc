"""The comparison command: one folder per method, one table, one figure."""

import json

import pytest

from experiments import compare

TINY = [
    "--agent", "dqn", "--env", "gymnax/CartPole-v1", "--seeds", "2", "--steps", "300",
    "--warmup", "100", "--eval-every", "100", "--eval-episodes", "2", "--env.max-steps", "30",
    "--agent.hidden", "16", "--tensorboard", "false", "--inspect", "0",
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
    assert set(json.loads((compared / "summary.json").read_text())) == {"huber", "lap"}
    assert json.loads((compared / "huber" / "config.json").read_text())["replay"] == "uniform"
    config = json.loads((compared / "lap" / "config.json").read_text())
    assert config["replay_options"]["kappa"] == 0.5


def test_labels_name_one_method_each(capsys):
    for bad, message in (
        ("1x=per", "'1x' is no label"), ("x=pre", "unknown replay 'pre'"),
        ("agent=ners", "'agent' is taken"), ("per=lap per", "'per' stands for two methods"),
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
    assert "beta is 2.0" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--env", "gymnax/Acrobot-v1"], "was made with env gymnax/CartPole-v1"),
        (["--agent", "rainbow"], "was made with agent dqn"),
        (["--replays", "per"], "has huber, lap: leave out --replays"),
        (["--overwrite"], "--resume goes on with what --overwrite would discard"),
    ],
)
def test_resuming_something_else_is_refused(compared, option, message, capsys):
    with pytest.raises(SystemExit):
        compare.main(["--resume", str(compared), *option])
    assert message in capsys.readouterr().err


def test_a_run_and_a_comparison_are_not_taken_for_one_another(compared, capsys):
    for folder, message in ((compared / "lap", "holds a run, not a comparison"),):
        with pytest.raises(SystemExit):
            compare.main([*TINY, "--replays", "per", "--out", str(folder), "--overwrite"])
        assert message in capsys.readouterr().err
    assert (compared / "lap" / "metrics.csv").exists()
