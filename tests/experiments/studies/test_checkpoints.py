"""Checkpoints: exact restoration, atomic writes, and refusal of damage and other structures."""

import json
import subprocess
import sys
import zlib
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from experiments.runs.checkpoint import latest, load, read_meta, read_run, save
from jaxreplay import sum_tree
from jaxreplay.saving import Damaged
from tests.refusals import refused


class Pair(NamedTuple):
    a: object
    b: object


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


def test_invalid_metadata_is_damage(tmp_path):
    good = {"config": {}, "progress": [1, 0], "metrics": [10, 3]}
    save(tmp_path, 1, {"x": jnp.int32(0)}, good)
    assert read_run(tmp_path) == good
    for name, value in {"config": 3, "progress": [1], "metrics": None}.items():
        save(tmp_path, 1, {"x": jnp.int32(0)}, good | {name: value})
        with refused(tmp_path, name, error=Damaged):
            read_run(tmp_path)
    save(tmp_path, 1, {"x": jnp.int32(0)}, {})
    with refused(tmp_path, "config", error=Damaged):
        read_run(tmp_path)


def test_every_kind_of_leaf_is_restored_bit_for_bit(tmp_path):
    state = everything()
    save(tmp_path, 10, state, {"log_points": 3, "nested": {"x": [1, None]}})
    assert_same(load(tmp_path, state), state)
    assert read_meta(tmp_path) == {"log_points": 3, "nested": {"x": [1, None]}}


def test_trees_of_seeds_are_built_for_the_device_that_resumes(tmp_path, monkeypatch):
    """Branching factors differ between devices; here one device simulates two."""

    def grown(leaves):
        trees = sum_tree.init(50), sum_tree.init(50, reduce="min")
        return [sum_tree.rebuild(tree, leaves) for tree in trees]

    leaves = jax.random.uniform(jax.random.key(0), (3, 50))
    monkeypatch.setitem(sum_tree._BRANCHING, "cpu", 8)
    save(tmp_path, 1, {"seeds": jax.jit(jax.vmap(lambda own: grown(own)))(leaves)}, {})
    monkeypatch.setitem(sum_tree._BRANCHING, "cpu", 32)
    expected = {"seeds": jax.jit(jax.vmap(lambda own: grown(own)))(leaves)}
    assert_same(load(tmp_path, jax.eval_shape(lambda: expected)), expected)
    assert_same(load(tmp_path, expected["seeds"], part="['seeds']"), expected["seeds"])


@pytest.mark.parametrize("name", ["key", "pair", "odd"])  # "key" is a prefix of "keys"
def test_parts_of_a_checkpoint_are_read_alone(tmp_path, name):
    state = everything()
    save(tmp_path, 1, state, {})
    assert_same(load(tmp_path, state[name], part=f"['{name}']"), state[name])
    with refused(tmp_path, "['pair']['other']", "int32[]"):
        load(tmp_path, {"other": state["count"]}, part="['pair']")


def test_restored_states_can_be_donated(tmp_path):
    state = {"x": jnp.arange(1000.0)}
    save(tmp_path, 1, state, {})
    step = jax.jit(lambda state: {"x": state["x"] + 1}, donate_argnums=0)
    np.testing.assert_array_equal(step(load(tmp_path, state))["x"], np.arange(1000.0) + 1)
    assert_same(load(tmp_path, state), state)


def test_pruning_removes_only_checkpoints(tmp_path):
    mine = ["step_1.best.safetensors", "step_5.safetensors"]
    mine += ["unfinished/.tmp-notes", "unfinished/step_9.pt"]
    left = ["unfinished/.tmpAb12Cd", "unfinished/step_000000000099.safetensors"]
    (tmp_path / "unfinished").mkdir()
    for name in (*mine, *left):
        (tmp_path / name).touch()
    assert latest(tmp_path) is None
    save(tmp_path, 10, {"x": jnp.zeros(1)}, {})
    assert latest(tmp_path) == 10
    for step in (20, 30):
        save(tmp_path, step, {"x": jnp.zeros(1)}, {})
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    kept = {f"step_{step:012}.safetensors" for step in (20, 30)}
    assert found == {*mine, *kept, "unfinished"}


def test_newest_checkpoints_are_kept_and_found(tmp_path):
    assert latest(tmp_path / "absent") is None
    assert latest(tmp_path) is None
    for step in (5, 10, 100, 1000):
        save(tmp_path, step, {"x": jnp.int32(step)}, {"step": step})
    assert latest(tmp_path) == 1000
    assert len(list(tmp_path.iterdir())) == 2
    assert load(tmp_path, {"x": jnp.int32(0)}, step=100)["x"] == 100
    assert read_meta(tmp_path, 100) == {"step": 100} and latest(tmp_path, before=1000) == 100
    save(tmp_path, 1000, {"x": jnp.int32(7)}, {})  # replaces the checkpoint of the same step
    assert load(tmp_path, {"x": jnp.int32(0)})["x"] == 7
    with refused(tmp_path, "step 1000"):
        save(tmp_path, 999, {"x": jnp.int32(0)}, {})


@pytest.mark.parametrize(
    ("now", "parts"),
    [
        ({"agent": Pair(jnp.ones((2, 4)), jnp.int32(0))},
         ("['agent'].a", "float32[2,3]", "float32[2,4]")),
        ({"agent": Pair(jnp.ones((2, 3)), jnp.float32(0))},
         ("['agent'].b", "int32[]", "float32[]")),
        ({"agent": Pair(jnp.ones((2, 3)), None)}, ("['agent'].b", "int32[]")),
        ({"agent": Pair(jnp.ones((2, 3)), jnp.int32(0)), "more": jnp.ones(1)},
         ("['more']", "float32[1]")),
        ({"agent": Pair(jnp.ones((2, 3)), jax.random.key(0))},
         ("['agent'].b", "int32[]", "key<fry>[]")),
    ],
)  # fmt: skip
def test_different_structures_are_refused_by_their_first_leaf(tmp_path, now, parts):
    save(tmp_path, 1, {"agent": Pair(jnp.ones((2, 3)), jnp.int32(0))}, {})
    with refused(tmp_path, *parts, "--out"):
        load(tmp_path, now)


def test_missing_and_damaged_checkpoints_are_refused_in_one_line(tmp_path):
    with refused(tmp_path, "--resume"):
        load(tmp_path, {})
    path = save(tmp_path, 1, {"x": jnp.ones(100)}, {})
    with refused(tmp_path, "step 2"):
        read_meta(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:-7])
    with refused(path, error=Damaged):
        load(tmp_path, {"x": jnp.ones(100)})


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_flipped_bits_are_detected(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("flipped")
    state = {"x": jnp.arange(50.0), "none": jnp.zeros((0, 3)), "key": jax.random.key(3)}
    path = save(folder, 1, state, {"n": 1})
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        found, meta = load(folder, state), read_meta(folder)
    except ValueError as error:  # Damaged, or a structure that differs, in one line
        assert "\n" not in str(error)
        return
    # Flips in unused padding may go undetected and change nothing.
    assert meta == {"n": 1}
    assert_same(found, state)


def test_foreign_and_newer_files_are_refused_by_name(tmp_path):
    path = tmp_path / "step_000000000001.safetensors"
    save_file({"x": np.ones(3, np.float32)}, path)
    with refused(tmp_path):
        load(tmp_path, {"x": jnp.ones(3)})
    text = json.dumps({"format": 99, "meta": {}, "leaves": {}, "crc32": {}})
    later = {"jaxreplay": f"{zlib.crc32(text.encode()):08x} {text}"}
    save_file({"x": np.ones(3, np.float32)}, path, metadata=later)
    with refused(tmp_path, "format 99", "2"):
        read_meta(tmp_path)


@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o770, 0o660), (0o700, 0o600)])
def test_checkpoint_permissions_follow_the_folder(tmp_path, folder, file):
    (tmp_path / "x").mkdir()
    (tmp_path / "x").chmod(folder)
    assert save(tmp_path / "x", 1, {"x": jnp.ones(3)}, {}).stat().st_mode & 0o777 == file


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from experiments.runs.checkpoint import latest, load, read_meta, read_run, save

def state(step):
    return {"x": np.full((1000, 500), step), "y": np.int64(step)}

folder, rng, before = Path(sys.argv[1]), random.Random(0), 0
save(folder, 0, state(0), {"step": 0})
for _ in range(20):
    child = os.fork()
    if child == 0:
        for step in range(before + 1, 10**6):
            save(folder, step, state(step), {"step": step})
    time.sleep(rng.uniform(0.02, 0.2))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    step = latest(folder)
    read = load(folder, state(0))
    assert step >= before and (read["x"] == step).all() and read["y"] == step, step
    assert read_meta(folder) == {"step": step}
    before = step
save(folder, before + 1, state(before + 1), {})
print(before, len(os.listdir(folder)))
import resource  # and a disk that is full
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    save(folder, before + 2, state(before + 2), {})
except OSError as error:
    print(latest(folder) - before, error)
"""


def test_newest_checkpoint_survives_kill_9_and_a_full_disk(tmp_path):
    # Runs in a process without threads, because it forks the processes to kill.
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (saved, files), (after, error) = (line.split(" ", 1) for line in done.stdout.splitlines())
    assert int(saved) > 0
    assert int(files) == 2  # the kept checkpoints, without files left by a kill
    assert after == "1" and str(tmp_path) in error  # error of the operating system
