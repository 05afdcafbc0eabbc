"""Assignment of batches to devices, batch sizes, memory limits and failing runs."""

import dataclasses
import gc
import itertools
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.runs.run_config import defaults
from experiments.studies import batch, engines, grid, plan, programs, store
from experiments.studies.devices import Budget
from experiments.studies.progress import Bar
from experiments.studies.study import Study
from experiments.training import spread
from tests.refusals import assert_names, refused


def points(*texts, seeds=3, replays=("per",)):
    bases = {
        ("walk/4", replay): dataclasses.replace(defaults("walk/4", "dqn", replay), seeds=seeds)
        for replay in replays
    }
    return grid.expand([grid.read_axis(text) for text in texts], bases)


def laid_out(own, devices=2, **options):
    """Return the plan of points with separate programs (their sizes are not traced)."""
    study = Study({(point.env, point.label): point.config for point in own})
    results = store.begin(Path("nowhere"), study, own, {})
    groups = [group for point in own for group in programs.grouped([point])]
    here = spread.choose_devices(1) * devices
    return plan.make(groups, results.missing(own), here, **options)


@pytest.fixture(scope="module")
def three():
    return laid_out(points("batch_size=8,16,32"), width=1)


def test_tables_that_are_slow_to_write_are_written_every_two_minutes(tmp_path):
    (point,) = points("batch_size=8")
    study = Study({(point.env, point.label): point.config})
    results = store.begin(tmp_path, study, [point], {})
    metrics = pd.DataFrame({"step": [8], "eval_return": [0.0]})
    for seed, since, kept in ((0, 110, 0), (1, 130, 2), (2, 110, 2)):
        results.written = time.monotonic() - since, 1e3
        cost = {"seconds": 1.0, "compiling": 0.0, "width": 1, "bytes": 8, "inputs": []}
        results.add([((point, seed), metrics)], {"runs": {point.id: [seed]}, **cost})
        assert (store.paths(tmp_path)[0].exists()) == (kept > 0)
        assert not kept or len(store.read(tmp_path).ended()) == kept


def test_batches_contain_every_run_once(three):
    assert (three.runs, three.batches, len(three.jobs)) == (9, 9, 3)
    for width, lengths in ((2, [2, 1]), (3, [3]), (7, [3])):
        (job,) = laid_out(points("batch_size=8"), width=width).jobs
        assert [len(outcome) for outcome in job.batches] == lengths
        assert [seed for outcome in job.batches for _, seed in outcome] == [0, 1, 2]
    (job,) = laid_out(points("batch_size=8")).jobs  # on CPU, one program per run
    assert job.width == 3


def test_memory_limits_batches_and_refuses_runs_that_do_not_fit():
    own = points("batch_size=8", seeds=10)
    size = laid_out(own).jobs[0].run_bytes
    plenty = laid_out(own, memory=20.5 * size / 1e9)
    assert plenty.jobs[0].width == 3 and plenty.bytes == 6 * size  # one run per device
    tight = laid_out(own, memory=4.5 * size / 1e9)
    assert tight.jobs[0].width == 2 and tight.bytes <= 4.5 * size
    with refused("walk/4 per batch_size=8", "2", "--devices"):
        laid_out(own, memory=1.5 * size / 1e9)


def test_devices_keep_a_program_then_start_new_ones_then_help_others(three):
    board = engines._Board(three, store.Store(Path("nowhere"), {}), Bar(9, 9))
    taken = [board.take(last)[0] for last in (None, None, 0, 0, 0, 2, 2, 2, 1)]
    assert taken == [0, 1, 0, 0, 2, 2, 2, 1, 1] and board.take(1) is None
    stopped = engines._Board(three, store.Store(Path("nowhere"), {}), Bar(9, 9))
    stopped.stop.set()
    assert stopped.take(None) is None


@pytest.fixture
def board(three):
    """A board of two devices that lists its outcomes instead of storing them."""
    board = engines._Board(three, store.Store(Path("nowhere"), {}), Bar(9, 9))
    board.kept = []
    board._keep = board.kept.append
    return board


@pytest.mark.parametrize("error", [OSError("no space"), KeyboardInterrupt()])
def test_errors_and_ctrl_c_stop_all_devices_and_lose_no_batch(board, error):
    both, numbers = threading.Barrier(2), itertools.count()
    keep, interrupts = board._keep, isinstance(error, KeyboardInterrupt)

    def train(task, device):
        both.wait(10)
        if next(numbers) == 0:
            if interrupts:
                return "first"
            raise error
        assert board.stop.wait(10)
        return "last"

    def kept(outcome):
        keep(outcome)
        if outcome == "first":
            raise error  # Ctrl-C arrives in the main thread

    board._keep = kept
    board._waiting = {0: board._waiting[0][:1], 1: board._waiting[1][:1]}
    with pytest.raises(type(error)):
        board.run(train, "now")
    assert board.kept == ["first", "last"][not interrupts :]


def test_programs_of_finished_jobs_are_freed_with_their_traces(three, monkeypatch):
    monkeypatch.setattr(batch, "_compile", lambda seeds, inputs, device: seeds.chunk)
    programs_, (device,) = batch.Programs(1), spread.choose_devices(1)
    traces = []
    for job in three.jobs:
        inputs = job.group.inputs(job.runs[:1])
        for _ in range(2):  # cached the second time
            traces.append(weakref.ref(programs_.compiled(job.group, job.width, inputs, device)[0]))
    gc.collect()
    assert [trace() is not None for trace in traces] == [False] * 4 + [True] * 2
    assert traces[4]() is traces[5]()


def test_failing_runs_do_not_stop_others():
    (point,) = points("num_envs=4")
    runs = [(point, 0), (point, 1), (point, 2)]
    at = {"eval_return": [1.0, 1.0, np.nan], "fault": [0.0, 7.0, 0.0], "agent/loss": [0.1] * 3}
    metrics = [{name: np.array(values, np.float32) for name, values in at.items()}] * 2
    results, failures = batch.split(runs, [100, 200], metrics)
    assert [seed for (_, seed), _ in results] == [0]
    assert list(results[0][1]["step"]) == [100, 200] and "fault" not in results[0][1]
    whys = {seed: why for (_, seed), why in failures}
    assert_names(whys[1], "28", "walk/4")
    assert_names(whys[2], "evaluation", "walk/4")


def test_estimated_minutes_shrink_with_devices():
    own = points("batch_size=8,16")
    one, two, three = (laid_out(own, devices=n) for n in (1, 2, 3))
    assert two.minutes == pytest.approx(one.minutes / 2)
    assert any("--width" in line for line in three.describe())  # one device is idle
    assert not any("--width" in line for line in two.describe())


def test_batches_wait_for_free_memory():
    budget, order, second_ends = Budget(10), [], threading.Event()

    def second():
        with budget.taken(5):
            order.append("second")
        second_ends.set()

    with budget.taken(6):
        with budget.taken(4):  # fits in the remaining memory
            pass
        threading.Thread(target=second, daemon=True).start()
        assert not second_ends.wait(0.2)
        order.append("first")
    assert second_ends.wait(10) and order == ["first", "second"]
    with budget.taken(10):  # all memory is free again
        pass
    with refused("1.1e-08", "1e-08", "--width"), Budget(10).taken(11):
        pass
