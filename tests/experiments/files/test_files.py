"""Damaged, foreign and linked files, which are refused by name in one line and kept."""

import argparse
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxreplay as jr
from experiments import plot, report, sweep, train, watch
from experiments.benchmarks.command import numbers
from experiments.figures import film, page, style
from experiments.figures.film import Film
from experiments.files import disk
from experiments.papers import aggregates
from experiments.studies import store
from experiments.studies.checkpoints import FOLDER
from experiments.studies.folders import LOCK
from jaxreplay.methods import uniform
from jaxreplay.saving import printable, untrusted
from tests.refusals import refusal, refused

# Texts that are not JSON, or not a JSON object as in files of results.
TEXTS = {
    "lists": "[" * 100_000,
    "objects": '{"a":' * 500 + "1" + "}" * 500,
    "digits": "1" * 6_000,
    "cut": '{"a": 1',
    "latin": b'{"a": "\xe4"}',
    "number": "3",
    "null": "null",
    "list": "[]",
    "empty": "{}",
}


READERS = {  # file -> commands that read it, with options before the folder
    "run/study.json": [
        (report, []), (train, ["--resume"]), (watch, []), (plot, ["--out", "plot"])
    ],
    "grid/study.json": [(report, []), (sweep, ["--dry-run", "--resume"])],
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", READERS)
def test_damaged_json_is_refused_by_every_reader(name, text, made, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "study"
    shutil.copytree(made / name.partition("/")[0], folder)
    path = folder / name.partition("/")[2]
    content = TEXTS[text]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for command, words in READERS[name]:
        assert str(folder) in refusal(capsys, command.main, *words, folder)


@pytest.mark.parametrize("name", READERS)
def test_readers_do_not_block_on_pipes(name, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "study"
    shutil.copytree(made / name.partition("/")[0], folder)
    path = folder / name.partition("/")[2]
    path.unlink()
    os.mkfifo(path)
    for command, words in READERS[name]:
        try:  # some readers treat it as a missing file
            command.main([*words, str(folder)])
        except SystemExit as error:
            assert error.code == 2


FIELDS = (
    "study", "versions", "settings", "columns", "base_points", "points", "costs", "failed"
)  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_fields_of_the_wrong_kind_are_named(field, folders, capsys):
    path = folders / "grid" / "study.json"
    saved = json.loads(path.read_text())
    for value in (None, 3, "\x1b[31m", [None]):
        path.write_text(json.dumps(saved | {field: value}))
        said = refusal(capsys, report.main, path.parent)
        assert path.name in said and field in said
    path.write_text(json.dumps({key: value for key, value in saved.items() if key != field}))
    said = refusal(capsys, report.main, path.parent)
    assert path.name in said and field in said


@pytest.mark.parametrize(
    ("where", "field"),
    [
        (("points", 0), "point"),
        (("points", 0, "config"), "points"),
        (("points", 0, "config", "loop"), "points"),
        (("points", 0, "settings"), "points"),
        (("costs", 0, "runs"), "costs"),
        (("costs", 0, "seconds"), "costs"),
    ],
)
def test_missing_parts_of_a_sweep_are_named(where, field, made, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(made / "grid", folder)
    saved = json.loads((folder / "study.json").read_text())
    at, last = saved, None
    for step in where:
        parent, last = at, list(at)[step] if isinstance(at, dict) and step == 0 else step
        at = parent[last]
    del parent[last]
    (folder / "study.json").write_text(json.dumps(saved))
    with pytest.raises(store.Damaged, match=field):
        store.read(folder)


TOML = ["a = " + "[" * 10_000, ".".join(["a"] * 5_000) + " = 1", "a = " + "1" * 6_000, "[a", "\0"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [*(("text", text) for text in TOML), ("fifo", ""), ("/dev/zero", ""), ("folder", "")],
)
def test_option_files_are_toml_of_limited_size(kind, text, tmp_path, capsys):
    path = tmp_path / "options.toml"
    if kind == "text":
        path.write_text(text)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir() if kind == "folder" else path.symlink_to(kind)
    assert str(path) in refusal(capsys, sweep.main, "--file", path)


def test_json_is_read_up_to_the_maximum_depth(tmp_path):
    path = tmp_path / "x.json"
    for levels, right in ((untrusted.DEEPEST, True), (untrusted.DEEPEST + 1, False)):
        path.write_text("[" * levels + "]" * levels)
        if right:
            disk.read_json(path)
        else:
            with pytest.raises(disk.Damaged, match=str(untrusted.DEEPEST)):
                disk.read_json(path)


def test_control_characters_are_escaped(tmp_path, capsys):
    assert printable("\x1b[31m ä\u202e\ud800\n") == r"\x1b[31m ä\u202e\ud800\n"
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps({"format": 2, "study": "\x1b[31m"}))
    assert str(folder) in refusal(capsys, train.main, "--resume", folder)
    refusal(capsys, train.main, "--agent", "\x1b[31m\ud800")


def test_pipes_are_refused_as_locks_checkpoints_and_films(made, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(made / "run", folder)
    os.mkfifo(folder / LOCK)
    assert LOCK in refusal(capsys, train.main, "--resume", folder)
    (folder / LOCK).unlink()
    os.mkfifo(tmp_path / "film.gif")
    said = refusal(capsys, watch.main, folder, "--out", tmp_path / "film.gif")
    assert "film.gif" in said
    (last,) = (folder / FOLDER).glob("*.safetensors")
    last.unlink()
    os.mkfifo(last)
    assert str(last) in refusal(capsys, watch.main, folder)


REPLAY = jr.Replay(uniform.sampler(), capacity=2, batch_size=1)


def filmed(path: Path) -> None:
    pictures = Film()
    pictures.add(np.zeros((4, 4, 3), np.uint8))
    pictures.write(path, 5)


def saved(path: Path, **how: bool) -> None:
    state = REPLAY.init(jax.random.key(0), {"x": jnp.zeros(())})
    jr.save(REPLAY, state, path, **how)


WRITERS: dict[str, Callable[[Path], object]] = {
    "a.json": lambda path: disk.write_json(path, {}),
    "b.json": lambda path: numbers(str(path)),
    "a.png": lambda path: style.save(style.make_figure(1, 1), path),
    "b.png": lambda path: aggregates.write(style.make_figure(1, 1), path),
    "a.gif": filmed,
    "b.gif": film.check_path,
    "a.html": page.check_path,
    "a.replay": saved,
    "b.replay": lambda path: saved(path, overwrite=True),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("target", ["a file", "nothing", "ours"])
def test_links_are_refused_by_every_writer(tmp_path, name, target):
    mine, path = tmp_path / "mine", tmp_path / name
    if target == "a file":
        mine.write_text("mine")
    elif target == "ours":
        WRITERS["a.replay"](mine)
    before = mine.read_bytes() if mine.exists() else None
    path.symlink_to(mine)
    with refused(name, "link", error=(ValueError, argparse.ArgumentTypeError)):
        WRITERS[name](path)
    assert path.is_symlink() and (mine.read_bytes() if mine.exists() else None) == before
    assert set(tmp_path.iterdir()) - {mine} == {path}


def test_film_writers_leave_neighbouring_files_unchanged(tmp_path):
    (tmp_path / ".a.unfinished.gif").write_text("mine")
    filmed(tmp_path / "a.gif")
    assert (tmp_path / ".a.unfinished.gif").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.unfinished.gif", "a.gif"]


def test_writers_remove_what_killed_writes_of_the_same_file_left(tmp_path):
    path, names = tmp_path / "a.txt", (".a.txt.abcdefgh.tmp", ".b.txt.abcdefgh.tmp")
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    disk.write_bytes(path, b"")
    assert set(tmp_path.iterdir()) == {path, tmp_path / names[1]}


def test_failed_writes_keep_the_previous_file(tmp_path):
    path = tmp_path / "a.txt"
    disk.write_bytes(path, b"before")
    with pytest.raises(RuntimeError), disk.replacing(path) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]
