import importlib.util
import sys
import zlib
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

from experiments.runs.log import TensorBoardSink, TerminalSink, WandbSink, waiting
from experiments.runs.run_config import OutputConfig
from experiments.runs.tables import (
    CSVSink,
    CSVTable,
    Elapsed,
    Written,
    check_written,
    written_timing,
)
from tests.refusals import assert_names, refused

STEPS = (100, 200, 300, 400)


def rows(step: int) -> list[dict]:
    """Return the rows of one log point of two seeds."""
    returns = np.array([step / 7, np.nan if step == 200 else -step], np.float32)
    losses = np.array([0.1, 1e-12 * step], np.float32)
    return [
        {"seed": seed, "step": step, "loss": losses[seed], "eval_return": returns[seed]}
        for seed in range(2)
    ]


def write(path, steps=STEPS, kept=Written()) -> bytes:
    table = CSVTable(path, ["seed", "step"], kept)
    for step in steps:
        table.append(rows(step))
    return path.read_bytes()


def written(path, steps) -> Written:
    """Write log points; return the size and checksum of the table."""
    content = write(path, steps)
    return Written(len(content), zlib.crc32(content))


def test_table_equals_values_worked_by_hand(tmp_path):
    write(tmp_path / "m.csv")  # tables that are not resumed are overwritten
    text = write(tmp_path / "m.csv", steps=(100, 200)).decode()
    assert text == (
        "seed,step,eval_return,loss\n"
        "0,100,14.285714,0.1\n1,100,-100.0,1e-10\n"
        "0,200,28.571428,0.1\n1,200,,2e-10\n"
    )


@pytest.mark.parametrize("torn", [b"", b"0,3", b"0,300,42.857143,0.1\n1,300,-3", b"\x30"])
def test_resumed_table_is_identical_to_an_uninterrupted_one(tmp_path, torn):
    whole = write(tmp_path / "whole.csv")
    path = tmp_path / "cut.csv"
    kept = written(tmp_path / "part.csv", (100, 200))
    write(path, steps=(100, 200, 300))
    with path.open("ab") as file:
        file.write(torn)
    check_written(path, kept)
    assert write(path, steps=(300, 400), kept=kept) == whole


DAMAGES = {
    "deleted": lambda lines: None,
    "empty": lambda lines: [],
    "last row cut": lambda lines: lines[:-1],
    "missing in the middle": lambda lines: lines[:2] + lines[3:],
    "doubled": lambda lines: lines[:2] + lines[1:],
    "swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "half a row": lambda lines: [*lines[:-1], lines[-1][:4]],
    "no header": lambda lines: lines[1:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_changed_tables_are_refused(tmp_path, damage):
    metrics, timing = tmp_path / "metrics.csv", tmp_path / "timing.csv"
    sink = CSVSink(tmp_path)
    for step in STEPS:
        sink.log(step, rows(step), Elapsed(1.0))
    check_written(metrics, sink.written["metrics.csv"])
    assert written_timing(timing, STEPS).size == timing.stat().st_size
    for path in (metrics, timing):
        lines = DAMAGES[damage](path.read_text().splitlines(keepends=True))
        path.unlink() if lines is None else path.write_text("".join(lines))
    with refused(metrics, "--out"):
        check_written(metrics, sink.written["metrics.csv"])
    with refused(timing, "--out"):
        written_timing(timing, STEPS)


def test_concurrent_changes_of_the_table_raise(tmp_path):
    path = tmp_path / "m.csv"
    table = CSVTable(path, ["seed", "step"])
    table.append(rows(100))
    content = path.read_bytes()
    path.write_bytes(content + b"x")
    with refused(path, error=OSError):
        table.append(rows(200))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        table.append(rows(200))


@pytest.mark.parametrize("resumed", [False, True])
def test_tables_with_other_columns_are_refused(tmp_path, resumed):
    kept = written(tmp_path / "m.csv", (100,))
    table = CSVTable(tmp_path / "m.csv", ["seed", "step"], kept if resumed else Written())
    if not resumed:
        table.append(rows(100))
    with refused(tmp_path / "m.csv", "beta"):
        table.append([row | {"beta": 0.4} for row in rows(200)])
    with refused(tmp_path / "m.csv", "loss"):
        table.append(
            [{key: row[key] for key in ("seed", "step", "eval_return")} for row in rows(9)]
        )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=9), st.sampled_from(["f4", "f8"]))
def test_numbers_are_read_back_bit_for_bit(tmp_path_factory, values, dtype):
    path = tmp_path_factory.mktemp("numbers") / "m.csv"
    values = np.array(values, dtype)
    CSVTable(path, ["step"]).append([{"step": i, "x": x} for i, x in enumerate(values)])
    read = pd.read_csv(path)["x"].to_numpy().astype(dtype)
    same = (read.view(f"u{read.itemsize}") == values.view(f"u{read.itemsize}")) | np.isnan(values)
    assert same.all()
    assert (np.isnan(read) == np.isnan(values)).all()


def test_times_are_written_to_a_separate_table(tmp_path):
    sink = CSVSink(tmp_path)
    sink.log(100, rows(100), Elapsed(4.0))
    kept = sink.written["metrics.csv"]
    sink.log(300, rows(300), Elapsed(4.0))
    sink = CSVSink(tmp_path, kept, written_timing(tmp_path / "timing.csv", [100]), 100)
    for step in (300, 400):
        sink.log(step, rows(step), Elapsed(4.0))
    assert list(pd.read_csv(tmp_path / "metrics.csv")) == ["seed", "step", "eval_return", "loss"]
    timing = pd.read_csv(tmp_path / "timing.csv")
    assert timing["step"].tolist() == [100, 300, 400]
    assert timing["seconds"].tolist() == [4.0] * 3
    assert timing["steps_per_second"].tolist() == [50.0, 100.0, 50.0]  # of both seeds together


def test_times_are_split_into_training_starting_and_compiling(tmp_path):
    CSVSink(tmp_path).log(100, rows(100), Elapsed(4.0, 2.0, 5.0))
    (row,) = pd.read_csv(tmp_path / "timing.csv").to_dict("records")
    assert row == {
        "step": 100, "compiling": 5.0, "seconds": 4.0, "start_up": 2.0, "steps_per_second": 50.0,
    }  # fmt: skip


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
    sink = TensorBoardSink(tmp_path, None)
    for step in (100, 200):  # at 200 a seed has no return
        sink.log(step, rows(step), Elapsed(1.0))
    sink.close()
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
    sink = WandbSink(tmp_path, {"alpha": 0.6})
    sink.log(100, rows(100), Elapsed(1.0))
    sink.close()
    assert started.call_args.kwargs["config"] == {"alpha": 0.6}
    (logged,), step = started().log.call_args
    assert step == {"step": 100} and logged == {
        "eval_return": pytest.approx((100 / 7 - 100) / 2), "loss": pytest.approx(0.05),
        "eval_return/seed_0": pytest.approx(100 / 7), "eval_return/seed_1": -100,
    }  # fmt: skip
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused("--wandb true", "pip install", "[wandb]", "--wandb false"):
        OutputConfig(wandb=True).check_packages()


def test_progress_is_a_bar_in_a_terminal_and_plain_lines_elsewhere(capsys, monkeypatch):
    def shown():
        sink = TerminalSink("per", total=400)
        for step in STEPS:
            sink.log(step, rows(step), Elapsed(2.0))
        sink.close()
        output = capsys.readouterr()
        assert output.out == ""
        return output.err

    _, early, last = shown().splitlines()
    assert_names(early, "per", "100/400", "100", "-42.9", "6")
    assert_names(last, "per", "400/400", "100", "-171.4", "0")
    for name, value in {"TTY_COMPATIBLE": "1", "FORCE_COLOR": "1", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    bar = shown()
    assert all(number in bar for number in ("400/400", "100", "-171.4")) and "\x1b[" in bar


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
