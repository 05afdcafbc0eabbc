"""Checkpoints: exact restoration, atomic writes, and files that belong to others.

`storage/test_damage.py` damages them.
"""

import json
import subprocess
import sys
import zlib
from types import SimpleNamespace
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from experiments.runs.interrupt import Stopped
from experiments.studies import batch, checkpoints
from experiments.studies.checkpoints import FOLDER, Checkpoint, Progress
from experiments.studies.devices import Budget
from experiments.training.drivers import CutShort, Driver
from experiments.training.schedule import Schedule
from jaxreplay import sum_tree
from tests.refusals import refused

RUNS = [("walk/4 per", 3), ("walk/4 per", 4)]


class Pair(NamedTuple):
    a: object
    b: object


class Loop(NamedTuple):
    agent: object
    replay: object


@flax.struct.dataclass
class Node:
    weight: jax.Array
    nothing: object = None


def everything() -> dict:
    """Return a state with every kind of leaf that a run can contain."""
    return {
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 3),
        "pair": Pair(Node(jnp.arange(6.0).reshape(2, 3).T), ()),
        "list": [jnp.array(True), None, jnp.zeros((0, 3)), jnp.uint8(255)],
        "odd": jnp.array([np.nan, -0.0, np.inf, 1e-45], jnp.float32),
        "half": jnp.array([1.5, -2.0], jnp.bfloat16),
        "scalar_half": jnp.bfloat16(3.0),
        "count": jnp.int32(-7),
        "host": np.array([2**40, -1]),
        "host_scalar": np.float64(0.1),
        "plain": (3, 0.1, True),
    }


def assert_same(left, right) -> None:
    """Compare structure, types, dtypes, shapes and bits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert type(a) is type(b)
        if hasattr(a, "dtype"):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        else:
            assert a == b


def driver(like, log_points=9):
    """Return what a checkpoint needs of the driver that reads it."""
    return SimpleNamespace(
        like=lambda: like, schedule=SimpleNamespace(log_points=(1,) * log_points)
    )


def write(folder, state, step=1, progress=Progress(), runs=RUNS) -> Checkpoint:
    checkpoint = Checkpoint(folder, runs)
    checkpoint.write(progress, step, state)
    return checkpoint


def test_states_and_progress_are_restored_bit_for_bit(tmp_path):
    state = everything()
    points = [
        {"eval_return": np.float32([1 / 3, np.nan]), "fault": np.int32([0, step])}
        for step in (0, 9)
    ]
    before = Progress(points, 5, 1.5, 0.25, 2**40, ("a", "b"))
    checkpoint = write(tmp_path, state, 10, before)
    progress, found = checkpoint.read(driver(state))
    assert_same(found, state)
    assert_same(list(progress.points), points)
    assert progress[1:] == before[1:]
    with pytest.MonkeyPatch.context() as patch:  # the content is that of the file
        patch.setattr(checkpoint, "path", tmp_path / "copy")
        checkpoint.path.write_bytes(checkpoint.encode(before, 10, state))
        assert_same(checkpoint.read(driver(state))[1], state)


def test_names_depend_on_what_determines_the_numbers(tmp_path):
    decided = [(RUNS, {"walk/4 per": {"gamma": 0.9}}, 2), (RUNS, {"walk/4 per": {}}, 2),
               (RUNS, {"walk/4 per": {}}, 1), (RUNS[:1], {"walk/4 per": {}}, 2)]  # fmt: skip
    names = {Checkpoint(tmp_path, *by).path for by in decided}
    assert len(names) == len(decided)
    assert names == {Checkpoint(tmp_path, *by).path for by in decided}
    assert Checkpoint(tmp_path, RUNS).read(driver({})) is None and not list(tmp_path.iterdir())


def test_trees_of_seeds_are_built_from_their_leaves(tmp_path):
    def grown(leaves):
        trees = sum_tree.init(50), sum_tree.init(50, reduce="min")
        return [sum_tree.rebuild(tree, leaves) for tree in trees]

    leaves = jax.random.uniform(jax.random.key(0), (3, 50))
    expected = {"seeds": jax.jit(jax.vmap(grown))(leaves)}
    checkpoint = write(tmp_path, expected)
    assert_same(checkpoint.read(driver(jax.eval_shape(lambda: expected)))[1], expected)


def test_agents_are_read_alone_from_the_latest_checkpoint_of_a_seed(tmp_path):
    older, newer = Loop(jnp.arange(2.0), jnp.zeros(9)), Loop(jnp.arange(3.0), jnp.zeros(9))
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "mine.safetensors").write_text("mine")
    with refused(tmp_path, "--resume"):
        checkpoints.of_seed(tmp_path, 3)
    first = write(tmp_path, older, 10)
    second = write(tmp_path, newer, 30, runs=[("walk/4 per", seed) for seed in (4, 5, 6)])
    assert checkpoints.of_seed(tmp_path, 3) == (first.path, [3, 4], 10)
    assert checkpoints.of_seed(tmp_path, 4) == (second.path, [4, 5, 6], 30)
    with refused(tmp_path, "--resume"):
        checkpoints.of_seed(tmp_path, 7)
    assert_same(checkpoints.read_part(second.path, "agent", newer.agent), newer.agent)
    with refused("float32[3]", "float32[2]"):
        checkpoints.read_part(second.path, "agent", older.agent)


def test_restored_states_can_be_donated(tmp_path):
    state = {"x": jnp.arange(1000.0)}
    checkpoint = write(tmp_path, state)
    step = jax.jit(lambda state: {"x": state["x"] + 1}, donate_argnums=0)
    for _ in range(2):
        found = checkpoint.read(driver(state))[1]
        np.testing.assert_array_equal(step(found)["x"], np.arange(1000.0) + 1)


@pytest.mark.parametrize(
    ("now", "parts"),
    [
        ({"agent": Pair(jnp.ones((2, 4)), jnp.int32(0))},
         ("['agent'].a", "float32[2,3]", "float32[2,4]")),
        ({"agent": Pair(jnp.ones((2, 3)), jnp.float32(0))},
         ("['agent'].b", "int32[]", "float32[]")),
        ({"agent": Pair(jnp.ones((2, 3)), jnp.int32(0)), "more": jnp.ones(1)}, ("['more']",)),
        ({"agent": Pair(jnp.ones((2, 3)), jax.random.key(0))}, ()),
    ],
)  # fmt: skip
def test_states_of_another_structure_are_not_read(tmp_path, now, parts):
    checkpoint = write(tmp_path, {"agent": Pair(jnp.ones((2, 3)), jnp.int32(0))})
    with refused(checkpoint.path, *parts, error=Stopped):
        checkpoint.read(driver(now))


def test_more_log_points_than_the_schedule_has_are_damage(tmp_path):
    state, points = {"x": jnp.ones(3)}, [{"eval_return": np.zeros(2, np.float32)}] * 4
    checkpoint = write(tmp_path, state, progress=Progress(points))
    assert len(checkpoint.read(driver(state, 4))[0].points) == 4
    with refused(checkpoint.path, "4", error=Stopped):
        checkpoint.read(driver(state, 3))


def test_foreign_and_newer_files_are_named(tmp_path):
    checkpoint, state = Checkpoint(tmp_path, RUNS), {"x": jnp.ones(3)}
    checkpoint.path.parent.mkdir()
    save_file({"x": np.ones(3, np.float32)}, checkpoint.path)
    with refused(checkpoint.path):
        checkpoints.of_seed(tmp_path, 3)
    text = json.dumps({"format": 99, "leaves": {}, "crc32": {}})
    later = {"jaxreplay.batch": f"{zlib.crc32(text.encode()):08x} {text}"}
    save_file({"x": np.ones(3, np.float32)}, checkpoint.path, metadata=later)
    with refused(checkpoint.path, "format 99", "2", error=Stopped):
        checkpoint.read(driver(state))


def test_checkpoints_are_written_while_the_last_of_another_batch_is_removed(tmp_path, monkeypatch):
    first, make = write(tmp_path, {"x": jnp.ones(3)}), checkpoints.tempfile.mkdtemp

    def remove_first(**options):
        first.remove()
        return make(**options)

    monkeypatch.setattr(checkpoints.tempfile, "mkdtemp", remove_first)
    assert write(tmp_path, {"x": jnp.ones(3)}, runs=RUNS[:1]).path.exists()


def test_only_checkpoints_are_removed(tmp_path):
    folder = tmp_path / FOLDER
    mine = ["notes.txt", "mine.safetensors", "0123456789abcdef.best.safetensors"]
    checkpoint = write(tmp_path, {"x": jnp.ones(3)})
    other = write(tmp_path, {"x": jnp.ones(3)}, runs=RUNS[:1])
    for name in mine:
        (folder / name).touch()
    checkpoint.remove()
    checkpoint.remove()  # it may be missing
    assert {path.name for path in folder.iterdir()} == {*mine, other.path.name}
    checkpoints.remove_all(tmp_path)
    assert {path.name for path in folder.iterdir()} == set(mine)
    for name in mine:
        (folder / name).unlink()
    checkpoints.remove_all(tmp_path)
    checkpoints.remove_all(tmp_path)
    assert not folder.exists()


class Clock(Driver):
    """A driver whose log points take ten seconds of a clock, and a checkpoint that takes some."""

    axes = None

    def __init__(self, monkeypatch, seconds, cut=""):
        super().__init__(Schedule(0, 20, 1, (1,) * 10, tuple(range(21, 31)), 10))
        self.now, self.seconds, self.cut, self.saved, self.begun = 0.0, seconds, cut, [], None
        monkeypatch.setattr(batch.time, "perf_counter", lambda: self.now)

    def init(self):
        self.begun = "init"
        return "state"

    def like(self):
        return "state"

    def resume(self, saved):
        self.begun = saved
        return "state"

    def chunk(self, state, blocks):
        self.now += 10
        if self.now == 30 and self.cut != "":
            raise CutShort(self.cut, 0)
        return state, {"fault": np.zeros(1), "eval_return": np.zeros(1)}

    def read(self, driver):
        """Return no checkpoint, as `Checkpoint.read`."""

    def write(self, progress, step, state):
        """Record a checkpoint, as `Checkpoint.write`."""
        assert state == "state" and len(progress.points) == step - 20
        self.now += self.seconds
        self.saved.append(step - 20)


@pytest.mark.parametrize(
    ("every", "seconds", "keep", "log_points"),
    [
        (0, 0.0, False, range(1, 10)),
        (0, 0.0, True, range(1, 11)),
        (25, 0.0, False, [3, 6, 9]),
        (0, 1.0, False, [1, 3, 5, 7, 9]),  # a checkpoint takes at most a twentieth of the time
        (25, 1.0, False, [3, 8]),
        (1000, 1.0, True, [10]),
        (1000, 1.0, False, []),
    ],
)
def test_checkpoints_are_written_from_time_to_time(every, seconds, keep, log_points, monkeypatch):
    clock, budget = Clock(monkeypatch, seconds), Budget(1)
    progress = batch.train(
        clock, budget, clock, lambda step, progress: True, code="a", every=every, keep=keep
    )
    assert clock.saved == list(log_points) and len(progress.points) == 10
    assert progress.code == ("a",) and progress.seconds == clock.now


def test_batches_that_are_stopped_write_a_checkpoint(monkeypatch):
    clock, budget = Clock(monkeypatch, 1.0), Budget(1)
    reached = lambda step, progress: step < 23
    assert batch.train(clock, budget, clock, reached, code="a", every=1000) is None
    assert clock.saved == [3]
    before = Progress([{"fault": np.zeros(1), "eval_return": np.zeros(1)}] * 4, code=("a",))
    clock = Clock(monkeypatch, 1.0)
    clock.read = lambda driver: (before, "saved")
    found = batch.train(clock, budget, clock, lambda *_: True, code="b", every=1000)
    assert clock.begun == "saved" and found.code == ("a", "b") and len(found.points) == 10
    for state, saved in ((None, []), ("state", [2])):  # None: in the warm-up
        clock = Clock(monkeypatch, 1.0, cut=state)
        assert batch.train(clock, budget, clock, lambda *_: True, code="a", every=1000) is None
        assert clock.saved == saved


@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o770, 0o660), (0o700, 0o600)])
def test_permissions_follow_the_folder(tmp_path, folder, file):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER).chmod(folder)
    assert write(tmp_path, {"x": jnp.ones(3)}).path.stat().st_mode & 0o777 == file


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from experiments.studies.checkpoints import Checkpoint, Progress

def state(step):
    return {"x": np.full((1000, 500), step), "y": np.int64(step)}

driver = SimpleNamespace(like=lambda: state(0), schedule=SimpleNamespace(log_points=()))
checkpoint, rng, before = Checkpoint(Path(sys.argv[1]), [("a", 0)]), random.Random(0), 0
checkpoint.write(Progress(), 0, state(0))
for _ in range(20):
    child = os.fork()
    if child == 0:
        for step in range(before + 1, 10**6):
            checkpoint.write(Progress(blocks=step), step, state(step))
    time.sleep(rng.uniform(0.02, 0.2))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    progress, read = checkpoint.read(driver)
    step = progress.blocks
    assert step >= before and (read["x"] == step).all() and read["y"] == step, step
    before = step
checkpoint.write(Progress(blocks=before + 1), before + 1, state(before + 1))
import resource  # and a disk that is full
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    checkpoint.write(Progress(), before + 2, state(before + 2))
except OSError as error:
    print(before, checkpoint.read(driver)[0].blocks - before, error)
"""


def test_checkpoints_survive_kill_9_and_a_full_disk(tmp_path):
    # Runs in a process without threads, because it forks the processes to kill.
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    saved, after, error = done.stdout.strip().split(" ", 2)
    assert int(saved) > 0
    assert after == "1" and str(tmp_path) in error  # error of the operating system
    left = [path.name for path in (tmp_path / FOLDER).iterdir()]
    unfinished = [name for name in left if name.startswith(checkpoints.UNFINISHED)]
    assert len(left) - len(unfinished) == 1  # `folders.prepare` removes the others
