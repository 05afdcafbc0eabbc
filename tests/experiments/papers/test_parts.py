"""Saved parts of computed tables, which interrupted computations resume from."""

import numpy as np
import pandas as pd
import pytest

from experiments.papers import __main__ as papers
from experiments.papers import archive, cliffwalk, computations, figures, lap_tables, running
from experiments.papers.digits import DIGITS
from experiments.papers.entry import Request
from experiments.papers.running import Parts
from experiments.runs import interrupt
from tests.refusals import assert_names

COMMAND = ["run", "per.fig1", "--size", "smoke"]  # has eight parts
NAME = "cliffwalk_sizes"
BELOW = f"{NAME}.smoke.parts"
ROWS = [{"arm": "per", "seed": 0, "value": 1 / 3}, {"arm": "per", "seed": 1, "value": np.inf}]


def learned(monkeypatch, stop_at: int | None = None, stop=KeyboardInterrupt) -> list[tuple]:
    """Replace computation of curves by random numbers, which stops at curve `stop_at` (from 1),
    and draw no figure; return a list that records requests."""
    asked = []

    def run(n, method, seeds, linear, **_):
        asked.append((n, method, linear))
        if len(asked) == stop_at:
            raise stop
        rng = np.random.default_rng([n, linear, method is cliffwalk.METHODS["uniform"]])
        updates = np.where(rng.random(seeds) < 0.3, -1, rng.integers(1, 1_000, seeds))
        return cliffwalk.Curve(updates, rng.random((4, seeds)).astype(np.float32))

    monkeypatch.setattr(cliffwalk, "run", run)
    monkeypatch.setattr(figures, "draw", lambda *_: None)
    return asked


def numbers(out) -> bytes:
    return archive.paths(out, NAME, "smoke")[0][0].read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the bytes of a table computed without interruption."""
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        learned(patch)
        assert papers.main([*COMMAND, "--out", str(out)]) == 0
    return numbers(out)


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Return a function that computes the table in a folder up to its fourth part."""

    def run(**patches):
        with monkeypatch.context() as patch:
            before = learned(patch, stop_at=4)
            for name, value in patches.items():
                patch.setattr(running, name, value)
            assert papers.main([*COMMAND, "--out", str(tmp_path / "out")]) == 130
        return tmp_path / "out", before

    return run


def test_stopped_computations_resume(whole, stopped, monkeypatch, capsys):
    out, before = stopped()
    assert_names(capsys.readouterr().err.splitlines()[-1], NAME)
    assert len(list((out / BELOW).glob("part.*.json"))) == 3
    assert not list(out.glob("*.csv.gz"))  # tables are written when complete
    after = learned(monkeypatch)
    assert papers.main([*COMMAND, "--out", str(out)]) == 0
    assert len(after) == 5 and not set(after) & set(before[:3])
    assert numbers(out) == whole
    assert not (out / BELOW).exists()  # parts are removed with the finished table


def test_signals_of_schedulers_stop_computations(tmp_path, monkeypatch, capsys):
    learned(monkeypatch, stop_at=1, stop=interrupt.Terminated)
    assert papers.main([*COMMAND, "--out", str(tmp_path)]) == 143
    assert_names(capsys.readouterr().err.splitlines()[-1], NAME)


@pytest.mark.parametrize(
    "other",
    [
        {"plain": lambda values: {**values, "seeds": 3}},
        {"version_of": lambda source: "0123456789ab"},
    ],
    ids=["settings", "code"],
)
def test_parts_of_other_settings_or_code_are_not_used(other, whole, stopped, monkeypatch):
    out, _ = stopped(**other)
    asked = learned(monkeypatch)
    assert papers.main([*COMMAND, "--out", str(out)]) == 0
    assert len(asked) == 8 and numbers(out) == whole and not (out / BELOW).exists()


@pytest.mark.parametrize("damage", [lambda content: content[:-20], lambda content: b"{}"])
def test_damaged_parts_are_named_and_recomputed(damage, whole, stopped, monkeypatch, capsys):
    out, _ = stopped()
    first = min((out / BELOW).glob("part.*.json"))
    first.write_bytes(damage(first.read_bytes()))
    asked = learned(monkeypatch)
    assert papers.main([*COMMAND, "--out", str(out)]) == 0
    assert_names(capsys.readouterr().err, first)
    assert len(asked) == 6 and numbers(out) == whole


def test_files_left_by_a_kill_are_removed(tmp_path, monkeypatch):
    learned(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "clear", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            papers.main([*COMMAND, "--out", str(tmp_path)])
    (tmp_path / BELOW / ".part.abc.def.json.123.tmp").touch()
    assert papers.main([*COMMAND, "--out", str(tmp_path)]) == 0
    assert not (tmp_path / BELOW).exists()


def test_rows_of_the_same_device_are_restored_exactly(tmp_path):
    here, there = ({"device": name, "jax": "1"} for name in ("cpu", "gpu"))
    assert Parts(tmp_path, "abc", here)("one", lambda: ROWS) == ROWS
    other = Parts(tmp_path, "abc", there)
    assert other("one", lambda: ROWS[:1]) == ROWS[:1]
    again = Parts(tmp_path, "abc", here)
    assert again("one", lambda: 1 / 0) == ROWS and again.seconds > 0
    other.clear()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, id=source.name, marks=pytest.mark.slow)
        for source in (computations.SIZES, computations.STARTS, computations.SWEEP, DIGITS)
    ],
)
def test_parts_are_independent(source, tmp_path):
    if source.needs:
        pytest.importorskip(source.needs)
    options = source.options("smoke")
    frame = source.function(Request(options, str, Parts(tmp_path, "abc")))
    for path in sorted(tmp_path.glob("part.*.json"))[::2]:
        path.unlink()
    again = source.function(Request(options, str, Parts(tmp_path, "abc")))
    pd.testing.assert_frame_equal(again, frame, check_exact=True)


def test_run_times_are_measured_task_by_task(tmp_path, monkeypatch):
    monkeypatch.setattr(lap_tables.training, "own_loop", lambda config: None)
    times = lambda runs, *_: {replay: [2.0] for replay in runs}
    monkeypatch.setattr(lap_tables.timing, "take_turns", times)
    options = {**lap_tables.RUN_TIME.options("smoke"), "tasks": ("td3", "sac")}
    frame = lap_tables.run_times(Request(options, str, Parts(tmp_path, "abc")))
    assert list(frame["task"].unique()) == ["td3", "sac"] and (frame["value"] == 1).all()
    again = Parts(tmp_path, "abc")
    monkeypatch.setattr(lap_tables, "_times", lambda *_: 1 / 0)
    pd.testing.assert_frame_equal(lap_tables.run_times(Request(options, str, again)), frame)
    assert len(list(tmp_path.glob("part.*.json"))) == 2
    monkeypatch.setattr(lap_tables.timing, "machine", lambda: {"processor": "another"})
    with pytest.raises(ZeroDivisionError):
        lap_tables.run_times(Request(options, str, Parts(tmp_path, "abc")))
