"""Destinations of the metrics of a run: CSV, TensorBoard, Weights & Biases, and the terminal."""

import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from experiments import train
from experiments.runs.log import CSVLog, TensorBoardLog, WandbLog, waiting
from experiments.studies.progress import Bar
from tests.refusals import assert_names, refusal

STEPS = (100, 200, 300, 400)


def rows(step: int) -> list[dict]:
    """Return the rows of one log point of two seeds."""
    returns = np.array([step / 7, np.nan if step == 200 else -step], np.float32)
    losses = np.array([0.1, 1e-12 * step], np.float32)
    return [
        {"seed": seed, "step": step, "loss": losses[seed], "eval_return": returns[seed]}
        for seed in range(2)
    ]


def write(folder, steps=STEPS, before=()) -> bytes:
    """Log points after those `before`; return the table."""
    log = CSVLog(folder)
    log.begin([rows(step) for step in before])
    for step in steps:
        log.log(rows(step))
    return (folder / "metrics.csv").read_bytes()


def test_table_equals_values_worked_by_hand(tmp_path):
    write(tmp_path)  # a table that is not resumed is replaced
    text = write(tmp_path, steps=(100, 200)).decode()
    assert text == (
        "seed,step,eval_return,loss\n"
        "0,100,14.285714,0.1\n1,100,-100.0,1e-10\n"
        "0,200,28.571428,0.1\n1,200,,2e-10\n"
    )


@pytest.mark.parametrize("left", [None, b"", b"seed,st", b"0,300,42.857143,0.1\n1,300,-3"])
@pytest.mark.parametrize("known", range(len(STEPS) + 1))
def test_resumed_tables_have_the_bytes_of_an_uninterrupted_one(tmp_path, left, known):
    """Whatever a killed process left, the log points of the checkpoint replace it."""
    whole = write(tmp_path)
    if left is None:
        (tmp_path / "metrics.csv").unlink()
    else:
        (tmp_path / "metrics.csv").write_bytes(left)
    assert write(tmp_path, STEPS[known:], STEPS[:known]) == whole


def test_metrics_that_a_log_point_lacks_are_empty(tmp_path):
    log = CSVLog(tmp_path)
    log.begin([rows(100)])
    log.log([{name: row[name] for name in ("seed", "step", "eval_return")} for row in rows(200)])
    assert pd.read_csv(tmp_path / "metrics.csv")["loss"].isna().tolist() == [False] * 2 + [True] * 2


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=9), st.sampled_from(["f4", "f8"]))
def test_numbers_are_read_back_bit_for_bit(tmp_path_factory, values, dtype):
    folder = tmp_path_factory.mktemp("numbers")
    values = np.array(values, dtype)
    log = CSVLog(folder)
    log.begin([])
    log.log([{"seed": i, "step": 1, "x": x} for i, x in enumerate(values)])
    read = pd.read_csv(folder / "metrics.csv")["x"].to_numpy().astype(dtype)
    same = (read.view(f"u{read.itemsize}") == values.view(f"u{read.itemsize}")) | np.isnan(values)
    assert same.all()
    assert (np.isnan(read) == np.isnan(values)).all()


def scalars(folder) -> list[tuple[str, int, float]]:
    """Return scalars from TensorBoard event files: length, checksum, event, checksum."""
    found = []
    for path in sorted(folder.glob("events*")):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            body = data[12 : 12 + length]
            assert int.from_bytes(data[12 + length : 16 + length], "little") == masked_crc32c(body)
            data = data[16 + length :]
            event = Event.FromString(body)
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return found


def test_tensorboard_gets_means_and_every_return(tmp_path):
    log = TensorBoardLog(tmp_path)
    log.begin([])
    for step in (100, 200):  # at 200 a seed has no return
        log.log(rows(step))
    log.close()
    found = [each for each in scalars(tmp_path / "tensorboard") if not np.isnan(each[2])]
    assert sorted(found, key=lambda each: (each[1], each[0])) == [
        ("eval_return", 100, pytest.approx((100 / 7 - 100) / 2)),
        ("loss", 100, pytest.approx(0.05)),
        ("seed_0/eval_return", 100, pytest.approx(100 / 7)),
        ("seed_1/eval_return", 100, -100),
        ("eval_return", 200, pytest.approx(200 / 7)),
        ("loss", 200, pytest.approx(0.05)),
        ("seed_0/eval_return", 200, pytest.approx(200 / 7)),
    ]


def test_wandb_gets_means_and_every_return(tmp_path, monkeypatch):
    started = mock.Mock()
    monkeypatch.setitem(sys.modules, "wandb", mock.Mock(init=started))
    log = WandbLog(tmp_path, {"alpha": 0.6})
    log.begin([])
    log.log(rows(100))
    log.close()
    assert started.call_args.kwargs["config"] == {"alpha": 0.6}
    (logged,), step = started().log.call_args
    assert step == {"step": 100} and logged == {
        "eval_return": pytest.approx((100 / 7 - 100) / 2), "loss": pytest.approx(0.05),
        "eval_return/seed_0": pytest.approx(100 / 7), "eval_return/seed_1": -100,
    }  # fmt: skip


def test_a_missing_wandb_is_named_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = tmp_path / "run"
    said = refusal(capsys, train.main, "--env", "walk/4", "--wandb", "true", "--out", out)
    assert_names(said, "--wandb true", "pip install", "[wandb]", "--wandb false")
    assert not out.exists()


def test_progress_is_a_bar_in_a_terminal_and_plain_lines_elsewhere(capsys, monkeypatch):
    def shown():
        bar = Bar(400, 2)
        bar.works_on(0, "per")
        for _ in STEPS:
            bar.works_on(0, "per", 100)
        bar.shows("return -171.4")
        bar.ended(2, 1)
        bar.close()
        output = capsys.readouterr()
        assert output.out == ""
        return output.err

    (line,) = shown().splitlines()
    assert_names(line, "400/400", "2/2", "1 failed", "-171.4", "per")
    for name, value in {"TTY_COMPATIBLE": "1", "FORCE_COLOR": "1", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    bar = shown()
    assert all(text in bar for text in ("400/400", "2/2", "-171.4")) and "\x1b[" in bar


def compiles() -> None:
    with waiting("per: compiling the loop"):
        jax.jit(lambda x: x + 1)(jnp.ones(3))
        print("a result")


def test_terminals_show_the_current_wait(monkeypatch, capsys):
    compiles()
    assert capsys.readouterr() == ("a result\n", "")
    for name in ("TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.setenv(name, "1")
    compiles()
    said = capsys.readouterr()
    assert "per: compiling the loop 0:00:00" in said.err
    assert said.out == "a result\n"


def test_waiting_propagates_exceptions(monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with pytest.raises(ValueError, match="gone"), waiting("x"):
        raise ValueError("gone")
    with waiting("x"):  # the previous wait has ended
        pass
