"""Damage of every kind of file that is written: it is read as before, or refused in one line."""

import copy
import functools
import gzip
import io
import json
import random
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load, save

import jaxreplay as jr
from experiments import suite
from experiments.figures import page
from experiments.files import disk, tables
from experiments.papers import archive
from experiments.papers.running import Parts
from experiments.runs.interrupt import Stopped
from experiments.studies import (
    batch,
    checkpoints,
    devices,
    plan,
    policy,
    programs,
    results,
    run_page,
    store,
    study_page,
)
from experiments.studies.checkpoints import Checkpoint
from experiments.studies.executor import decided_by
from experiments.training import demos
from experiments.training.drivers import Driver
from jaxreplay import Transition
from jaxreplay.methods import uniform
from jaxreplay.saving import untrusted

ROWS = [{"arm": "per", "value": 1 / 3}] * 20
REPLAY = jr.Replay(uniform.sampler(), capacity=8, batch_size=2)
EXAMPLE = Transition(
    jnp.zeros(4), jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros(()), jnp.zeros(4),
    jnp.zeros((), bool), jnp.zeros((), bool),
)  # fmt: skip
SEED, PLACES = 63, 24
MOST = 64 * 2**20  # bytes that reading a damaged, small file may take
LARGE = (10**400, 2**62, -(2**62), -1, 0, 1e308, float("nan"), float("inf"))
WRONG = (*LARGE, True, None, "x", "", [], {}, [None], [1e308])


class Case(NamedTuple):
    """A file, and how commands read it."""

    path: Path
    read: Callable[[], Any]  # returns what was read, for comparison
    is_sealed: bool = False  # whether a checksum covers all of it
    again: Any = None  # value of `read` if damaged content is made again after a message


def page_of(folder: Path) -> str:
    """Return the page of a study or a run, without figures."""
    with mock.patch.object(page, "to_svg", lambda *_: ""):
        if not results.is_run(store.read(folder)):
            return study_page.render(results.read(folder))
        return run_page.render(run_page.read({"a": folder}, other_code=True))


def arrays(tree: Any) -> list[bytes]:
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    plain = (jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(tree))
    return [np.asarray(leaf).tobytes() for leaf in plain]


@functools.cache
def checkpoint_of(folder: Path) -> tuple[Checkpoint, Driver]:
    """Return the checkpoint of the run in a folder, and a driver that reads it."""
    study = policy.read(folder)
    points = study.points()
    runs = store.begin(folder, study, points, {}).missing(points)
    (job,) = plan.make(programs.grouped(points), runs, [devices.choose(1)], together=True).jobs
    return Checkpoint(folder, *decided_by(job, runs)), batch.driver_of(job, runs, devices.choose(1))


def run_case(made: Path, tmp_path: Path, name: str) -> Case:
    folder = tmp_path / "run"
    shutil.copytree(made / "run", folder)
    checkpoint, driver = checkpoint_of(made / "run")
    path = folder / checkpoints.FOLDER / checkpoint.path.name
    if name == "metrics.csv":  # which pages read until the first seed has ended
        (folder / "study.csv.gz").unlink()
    if name == "policy":

        def read_policy() -> Any:
            found, *about = checkpoints.of_seed(folder, 1)
            return about, arrays(checkpoints.read_part(found, "agent", driver.like().agent))

        return Case(path, read_policy)
    if name == "checkpoint":
        checkpoint = copy.copy(checkpoint)
        checkpoint.path = path

        def read() -> Any:
            found = checkpoint.read(driver)
            return found and (found[0][1:], arrays(found[0].points), arrays(found[1]))

        return Case(path, read, is_sealed=True)
    return Case(folder / name, lambda: page_of(folder))


def study_case(made: Path, tmp_path: Path, name: str) -> Case:
    folder = tmp_path / "study"
    shutil.copytree(made / "grid", folder)
    return Case(folder / name, lambda: page_of(folder), is_sealed=name.endswith(".gz"))


def paper_case(_: Path, tmp_path: Path, name: str) -> Case:
    made = {"options": {}, "versions": {"code": "abc"}, "seconds": 1.0}
    archive.write(tmp_path, "x", "small", archive.Data(pd.DataFrame(ROWS), made=made))
    read = lambda: archive.read(tmp_path, "x", "small").frame.to_csv()
    return Case(tmp_path / f"x.small.{name}", read, is_sealed=name == "csv.gz")


def part_case(_: Path, tmp_path: Path, name: str) -> Case:
    Parts(tmp_path, "abc")(name, lambda: ROWS)
    (path,) = tmp_path.iterdir()
    return Case(path, lambda: Parts(tmp_path, "abc")(name, lambda: []), True, again=[])


def replay_case(_: Path, tmp_path: Path, name: str) -> Case:
    path = tmp_path / name
    state = REPLAY.init(jax.random.key(0), EXAMPLE)
    state = REPLAY.add(state, jax.tree.map(lambda x: x[None], EXAMPLE))
    jr.save(REPLAY, state, path)

    def read() -> Any:
        found = demos.with_demos(REPLAY, str(path), 0.5)
        state = found.init(jax.random.key(0), EXAMPLE)
        return jr.saving.saved_size(path), arrays(jr.load(REPLAY, path, EXAMPLE)), arrays(state)

    return Case(path, read, is_sealed=True)


def suite_case(_: Path, tmp_path: Path, name: str) -> Case:
    suite._check_sources({"rank": "rank"}, tmp_path)
    return Case(tmp_path / name, lambda: suite._check_sources({"rank": "rank"}, tmp_path))


CASES: dict[str, tuple[Callable[[Path, Path, str], Case], tuple[str, ...]]] = {
    "run": (run_case, ("study.json", "metrics.csv", "policy", "checkpoint")),
    "study": (study_case, ("study.json", "study.csv.gz")),
    "paper": (paper_case, ("json", "csv.gz")),
    "part": (part_case, ("part",)),
    "replay": (replay_case, ("replay",)),
    "suite": (suite_case, ("methods.json",)),
}  # fmt: skip
NAMES = [(kind, name) for kind, (_, names) in CASES.items() for name in names]


@pytest.fixture(params=NAMES, ids="-".join)
def case(request, made, tmp_path) -> Case:
    kind, name = request.param
    return CASES[kind][0](made, tmp_path, name)


def outcome(case: Case, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what is read, or None if it is refused or made again with one line."""
    capsys.readouterr()
    try:
        found = case.read()
    except (ValueError, Stopped) as error:  # any other exception fails the test
        message = str(error)
    else:
        if found != case.again or not case.is_sealed:
            return found
        message = capsys.readouterr().err.strip()
    assert message and message.isprintable() and len(message) < 1_000
    assert str(case.path.parent) in message
    return None


def damages(whole: bytes) -> Iterator[bytes]:
    """Yield truncated, extended and flipped contents, and those of other formats."""
    rng = random.Random(SEED)
    yield from (b"", whole + b"\0", b"\0" * len(whole), b"[" * 100_000, b"\xff" * 100)
    yield from (whole[: rng.randrange(len(whole))] for _ in range(8))
    for _ in range(PLACES):
        at = rng.randrange(len(whole))
        yield whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :]
    archive = io.BytesIO()
    np.savez(archive, x=np.zeros(3))
    yield archive.getvalue()
    with zipfile.ZipFile(archive) as content:
        entry = content.infolist()[0].header_offset
    packed = bytearray(archive.getvalue())
    packed[entry + 6] |= 1  # encrypted
    yield bytes(packed)
    packed[entry + 8] = 99  # of another compression
    yield bytes(packed)


def test_damaged_files_are_read_or_refused_in_one_line(case, capsys):
    whole, before = case.path.read_bytes(), outcome(case, capsys)
    for content in damages(whole):
        case.path.write_bytes(content)
        found = outcome(case, capsys)
        assert found in (None, before) or not case.is_sealed
    case.path.write_bytes(whole)
    assert outcome(case, capsys) == before


def leaves(value: Any, at: tuple = ()) -> Iterator[tuple]:
    yield at
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(min(len(value), 2)):
            yield from leaves(value[key], (*at, key))


def replaced(value: Any, at: tuple, new: Any) -> Any:
    if not at:
        return new
    value = value.copy()
    value[at[0]] = replaced(value[at[0]], at[1:], new)
    return value


def without(value: Any, at: tuple) -> Any:
    if len(at) > 1:
        return replaced(value, at[:1], without(value[at[0]], at[1:]))
    return {name: own for name, own in value.items() if name != at[0]}


def test_values_of_a_wrong_type_or_size_are_refused_in_one_line(case, capsys):
    """Replace fields of JSON files, also of those behind a checksum that is valid again."""
    content, rng = case.path.read_bytes(), random.Random(SEED)
    if case.path.suffix == ".gz" or case.path.suffix == ".csv":
        pytest.skip("not JSON")
    write = lambda value: json.dumps(value).encode()
    if content[:1] == b"{":
        saved = json.loads(content)
    elif case.path.name.startswith("part."):
        saved, write = untrusted.unseal(content.decode()), lambda v: untrusted.seal(v).encode()
    else:  # safetensors
        tag, header = next(iter(_metadata(content).items()))
        saved, own = untrusted.unseal(header), load(content)
        write = lambda value: save(own, {tag: untrusted.seal(value)})
    found = list(leaves(saved))
    for at in rng.sample(found, min(len(found), PLACES)):
        for value in rng.sample(WRONG, 2):
            case.path.write_bytes(write(replaced(saved, at, value)))
            outcome(case, capsys)
        if at and isinstance(at[-1], str):
            case.path.write_bytes(write(without(saved, at)))
            outcome(case, capsys)


def _metadata(content: bytes) -> dict[str, str]:
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size])["__metadata__"]


def claims(whole: bytes, suffix: str) -> Iterator[bytes]:
    """Yield contents that claim to be large."""
    if suffix == ".gz":
        text = gzip.compress(b"\0" * 2**28, mtime=0)
        yield whole[:-4] + struct.pack("<I", 2**32 - 1)
        yield text[:-8] + whole[-8:]  # with checksum and size of the table
        yield whole + whole
        return
    for size in (2**62, 2**27 - 1):
        yield struct.pack("<Q", size) + whole[8:]
    (size,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + size])
    for name in [name for name in header if name != "__metadata__"]:
        for shape, end in (([2**40], 2**42), ([2**40, 0], 0), ([2**62, 4], 2**62)):
            own = {**header[name], "shape": shape, "data_offsets": [0, end]}
            text = json.dumps({**header, name: own}).encode()
            yield struct.pack("<Q", len(text)) + text + whole[8 + size :]


@pytest.mark.parametrize(
    ("kind", "name"), [(*each,) for each in NAMES if each[1] in
     ("checkpoint", "study.csv.gz", "csv.gz", "replay")], ids=str,
)  # fmt: skip
def test_claimed_sizes_take_no_memory(kind, name, made, tmp_path, capsys):
    case = CASES[kind][0](made, tmp_path, name)
    whole, before = case.path.read_bytes(), outcome(case, capsys)
    assert before is not None
    for content in claims(whole, case.path.suffix):
        case.path.write_bytes(content)
        assert within_memory(case, capsys) is None


def test_large_files_are_refused_before_they_are_read(case, capsys):
    with case.path.open("r+b") as file:
        file.truncate(disk.MOST + 1)  # takes no space on disk
    assert within_memory(case, capsys) is None


def within_memory(case: Case, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the outcome, after asserting that it took little memory."""
    tracemalloc.start()
    try:
        found = outcome(case, capsys)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
    return found


@pytest.mark.parametrize("num_envs", [0, -1, 2**40])
def test_saved_configurations_are_checked_as_options(num_envs, made, tmp_path):
    case = study_case(made, tmp_path, "study.json")
    saved = json.loads(case.path.read_text())
    next(iter(saved["points"].values()))["config"]["sizes"]["num_envs"] = num_envs
    case.path.write_text(json.dumps(saved))
    with pytest.raises(disk.Damaged, match="num_envs") as error:
        case.read()
    assert str(case.path) in str(error.value)


@pytest.mark.parametrize("column", ["seed", "step", "eval_return", "point", "env", "replay"])
def test_crafted_tables_with_valid_checksums_are_refused(column, made, tmp_path):
    case = study_case(made, tmp_path, "study.csv.gz")
    frame = pd.read_csv(case.path)
    for change in (
        frame.drop(columns=column),
        frame.assign(**{column: "x"}),
        frame.assign(**{column: 10**40}),
        frame.assign(**{column: [None] * len(frame)}),
    ):
        case.path.write_bytes(tables.encode(change, 9))
        with pytest.raises(disk.Damaged) as error:
            case.read()
        assert str(case.path) in str(error.value)
