"""Execution of a study: batches, devices, memory limits, failing runs, and Ctrl-C."""

import contextlib
import dataclasses
import gc
import itertools
import math
import os
import signal
import threading
import time
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from experiments.environments.host import EnvironmentFailed
from experiments.runs.interrupt import Stopped
from experiments.runs.run_config import defaults
from experiments.studies import batch, devices, grid, plan, programs, runner, store
from experiments.studies.checkpoints import FOLDER
from experiments.studies.definition import Study
from experiments.studies.devices import Budget
from experiments.studies.executor import _Board
from experiments.studies.options import Question, StudyOptions, Where
from experiments.training import drivers
from experiments.training.drivers import CompiledDriver
from experiments.training.host_loop import HostDriver
from tests.refusals import assert_names, refused


def points(*texts, seeds=3, replays=("per",)):
    bases = {
        ("walk/4", replay): dataclasses.replace(defaults("walk/4", "dqn", replay), seeds=seeds)
        for replay in replays
    }
    return grid.expand([grid.read_axis(text) for text in texts], bases)


def laid_out(asked, units=2, **options):
    """Return the plan of points with separate programs (their sizes are not traced)."""
    study = Study({(point.env, point.label): point.config for point in asked})
    results = store.begin(Path("nowhere"), study, asked, {})
    groups = [group for point in asked for group in programs.grouped([point])]
    return plan.make(groups, results.missing(asked), [devices.choose(1)] * units, **options)


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
        results.add([((point, seed), metrics)], {"runs": {point.id: [seed]}, **cost}, ["code"])
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
    asked = points("batch_size=8", seeds=10)
    size = laid_out(asked).jobs[0].run_bytes
    plenty = laid_out(asked, limit=20.5 * size / 1e9)
    assert plenty.jobs[0].width == 3 and plenty.bytes == 6 * size  # one batch per device
    tight = laid_out(asked, limit=4.5 * size / 1e9)
    assert tight.jobs[0].width == 2 and tight.bytes <= 4.5 * size
    with refused("walk/4 per batch_size=8", "2", "--devices"):
        laid_out(asked, limit=1.5 * size / 1e9)
    with refused("walk/4 per batch_size=8", "10"):  # the seeds of a single run train together
        laid_out(asked, units=1, limit=4.5 * size / 1e9, together=True)


def test_memory_of_each_accelerator_limits_seeds_that_train_together(monkeypatch):
    slots = tuple(devices.Slot("gpu", "GPU", "node", 10**9) for _ in range(4))
    (point,) = points("batch_size=8", seeds=10)
    groups, runs = programs.grouped([point]), [(point, seed) for seed in range(10)]
    size = laid_out([point]).jobs[0].run_bytes

    def made(width, limit):
        return plan.make(groups, runs, [slots], width, limit * size / 1e9, together=True).jobs[0]

    assert made(None, 4 * 3.1).width == 3  # four devices with at most three seeds
    with refused("walk/4 per batch_size=8"):
        made(None, 4 * 2.9)
    assert made(2, 4 * 4.1).width == 2  # two programs of two seeds on one of the devices
    with refused("walk/4 per batch_size=8"):
        made(2, 4 * 3.9)


def test_devices_keep_a_program_then_start_new_ones_then_help_others(three):
    board = _Board(three, store.Store(Path("nowhere"), {}), (), "", math.inf)
    taken = [board.take(last)[0] for last in (None, None, 0, 0, 0, 2, 2, 2, 1)]
    assert taken == [0, 1, 0, 0, 2, 2, 2, 1, 1] and board.take(1) is None
    stopped = _Board(three, store.Store(Path("nowhere"), {}), (), "", math.inf)
    stopped._stopped = True
    assert stopped.take(None) is None


@pytest.fixture
def board(three):
    """A board of two devices that lists its results instead of storing them."""
    board = _Board(three, store.Store(Path("nowhere"), {}), (), "", math.inf)
    board.kept = []
    board._keep, board._write = board.kept.append, lambda: None
    return board


@pytest.mark.parametrize("error", [OSError("no space"), KeyboardInterrupt()])
def test_errors_and_ctrl_c_stop_all_devices_and_lose_no_batch(board, error, ctrl_c):
    two, numbers, interrupts = threading.Barrier(2), itertools.count(), error.args == ()
    keep = board._keep

    def train(task, device):
        two.wait(10)
        if next(numbers) == 0:
            if interrupts:
                return "first"
            raise error
        deadline = time.monotonic() + 30
        while not board.stopped:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return "last"

    def kept(outcome):
        if outcome == "first":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)  # the main thread receives the signal in the meantime
        keep(outcome)

    board._keep = kept
    board._waiting = {0: board._waiting[0][:1], 1: board._waiting[1][:1]}
    with pytest.raises(type(error)):
        board.run(train, "now")
    assert board.kept == ["first", "last"][not interrupts :]


def test_outcomes_are_kept_after_an_error_of_another(board):
    def kept(outcome):
        keep(outcome)
        raise OSError("no space")

    keep, board._keep = board._keep, kept
    board._waiting = {0: board._waiting[0][:1], 1: board._waiting[1][:1]}
    two = threading.Barrier(2)

    def train(task, device):
        two.wait(10)
        return task.runs

    with pytest.raises(OSError):
        board.run(train, "now")
    assert len(board.kept) == 2 and board.stopped


def test_a_program_that_cannot_run_fails_its_job_and_an_environment_only_its_batch(board):
    errors = {0: RuntimeError("out of memory"), 1: EnvironmentFailed("seed 0: broken")}
    jobs = board._plan.jobs

    def train(task, unit):
        number = jobs.index(task.job)
        if number == 0 or (number == 1 and task.runs[0][1] == 0):
            raise errors[number]
        return batch.BatchResult([(run, None) for run in task.runs], [], {})

    board.run(train, "now")
    failed = [(run, why) for outcome in board.kept for run, why in outcome.failures]
    assert [why for _, why in failed].count("out of memory") == 3  # all runs of the first job
    assert {(point.id, seed) for (point, seed), why in failed if "broken" in why} == {
        ("walk/4 per batch_size=16", 0)
    }
    assert sum(len(outcome.results) for outcome in board.kept) == 5


def test_programs_of_finished_jobs_are_freed_with_their_traces(three, monkeypatch):
    monkeypatch.setattr(drivers, "_compile", lambda seeds, inputs, place: seeds.chunk)
    cache, (device,), traces = drivers.Programs(1), devices.choose(1), []
    for job in three.jobs[:2]:
        program, inputs = job.group.program, job.group.inputs(job.runs[:1])
        example = programs.example(job.group.points[0].config, job.group.traced)
        for _ in range(2):  # cached the second time
            chunk, _ = cache.compiled(program, cache.seeds(program, example), inputs, device)
            traces.append(weakref.ref(chunk))
            del chunk
    gc.collect()
    assert [trace() is not None for trace in traces] == [False] * 2 + [True] * 2
    assert traces[2]() is traces[3]()


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
    asked = points("batch_size=8,16")
    one, two, three = (laid_out(asked, units=n) for n in (1, 2, 3))
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


# Studies that are stopped by Ctrl-C

DRIVERS = {"walk/4": CompiledDriver, "gymnasium/CartPole-v1": HostDriver}


def make_study(env, replays=("uniform", "per"), seeds=2):
    return Study.make(
        env, "dqn", list(replays), seeds=seeds, question=Question(control=False),
        loop={"steps": 250, "warmup": 100, "eval_every": 50, "eval_episodes": 1, "inspect": 0},
        sizes={"batch_size": 8}, agent_options={"hidden": (8,)},
        options=StudyOptions(figures=False, report=False),
    )  # fmt: skip


class Whole(NamedTuple):
    """An uninterrupted study whose environments on the host, if any, cannot be closed."""

    env: str
    out: Path
    threads: set[threading.Thread]  # in which environments on the host stepped
    said: list[str]  # about failures to close them


@pytest.fixture(scope="module", params=DRIVERS)
def whole(request, tmp_path_factory):
    found = Whole(request.param, tmp_path_factory.mktemp("whole") / "study", set(), [])
    before, close = HostDriver.chunk, HostDriver.close

    def chunk(driver, state, blocks):
        found.threads.add(threading.current_thread())
        return before(driver, state, blocks)

    def closing(driver):
        close(driver)
        raise OSError("the window is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostDriver, "chunk", chunk)
        patch.setattr(HostDriver, "close", closing)
        patch.setattr(batch, "say", found.said.append)
        runner.run(make_study(found.env), found.out, show=False)
    return found


@pytest.mark.parametrize("whole", ["gymnasium/CartPole-v1"], indirect=True)
def test_environments_on_the_host_step_in_the_main_thread(whole):
    assert whole.threads == {threading.main_thread()}
    assert len(store.read(whole.out).ended()) == 4  # although they could not be closed
    assert_names(" ".join(whole.said), "the window is gone")


@contextlib.contextmanager
def counted(monkeypatch, kind, stop_at=None):
    """Count the calls of `chunk` of a driver; press Ctrl-C in the call `stop_at` (from 1)."""
    calls, before = [], kind.chunk

    def chunk(driver, state, blocks):
        calls.append(blocks)
        if len(calls) == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 30
            while not driver.stop():  # until the main thread has noticed
                assert time.monotonic() < deadline
                time.sleep(0.01)
        return before(driver, state, blocks)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "chunk", chunk)
        yield calls


def test_studies_stopped_by_ctrl_c_resume(whole, tmp_path, monkeypatch, ctrl_c):
    env, before = whole.env, whole.out
    study, out, where = make_study(env), tmp_path / "study", Where(devices="1")
    mine = out / FOLDER / "mine.safetensors"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with counted(monkeypatch, DRIVERS[env], stop_at=5), pytest.raises(Stopped) as stopped:
        runner.run(study, out, where=where, show=False)
    assert stopped.value.exit_code == 130
    assert_names(str(stopped.value), "2", "4", f"--resume {out}")  # runs
    assert {point for point, _ in store.read(out).ended()} == {f"{env} uniform"}
    assert len(list(mine.parent.iterdir())) == 2
    with counted(monkeypatch, DRIVERS[env]) as calls:
        results = runner.run(study, out, resume=True, where=where, show=False)
    # The compiled loop stops at a log point, and the loop on the host between two.
    assert len(calls) == {"walk/4": 1, "gymnasium/CartPole-v1": 2}[env]
    assert len(results.store.facts["costs"]) == 2 and list(mine.parent.iterdir()) == [mine]
    if DRIVERS[env] is CompiledDriver:
        assert (out / "study.csv.gz").read_bytes() == (before / "study.csv.gz").read_bytes()
    # Environments on the host begin new episodes.
    tables = [store.read(folder).table for folder in (before, out)]
    kept = [own[(own["replay"] == "uniform") | (own["step"] == 150)] for own in tables]
    pd.testing.assert_frame_equal(*kept)
    assert len(tables[1]) == len(tables[0]) == 2 * 2 * 3  # arms, seeds and log points


def test_narrow_batches_continue_from_their_checkpoint(tmp_path, monkeypatch, ctrl_c, capsys):
    """The width is that of all runs, not of the missing ones."""
    study, out, where = make_study("walk/4", ["per"], 3), tmp_path / "study", Where(devices="1")
    study = dataclasses.replace(study, options=dataclasses.replace(study.options, width=2))
    with counted(monkeypatch, CompiledDriver, stop_at=5), pytest.raises(Stopped):
        runner.run(study, out, where=where, show=False)  # in the second batch, of one seed
    capsys.readouterr()
    runner.run(study, out, resume=True, where=where, show=False, dry_run=True)
    assert "1 run will continue" in capsys.readouterr().err
    runner.run(study, out, resume=True, where=where, show=False)
    runner.run(study, tmp_path / "whole", where=where, show=False)
    tables = [store.paths(folder)[0].read_bytes() for folder in (out, tmp_path / "whole")]
    assert tables[0] == tables[1]


def test_time_limits_hold_in_any_thread(tmp_path, capsys):
    study, found = make_study("walk/4"), []
    where = Where(hours=1e-9)
    run = lambda: found.append(runner.run(study, tmp_path / "study", where=where, show=False))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [None] and not store.read(tmp_path / "study").ended()
    assert_names(capsys.readouterr().err, "1e-09", "--resume")
