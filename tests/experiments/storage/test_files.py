"""Reading of damaged and foreign files, which are refused by name in one line."""

import json
import os
import re
import shutil

import pytest

from experiments import compare, plot, sweep, train, watch
from experiments.report import __main__ as report
from experiments.runs.folder import LOCK
from experiments.runs.run_config import read as read_config
from experiments.storage import files
from experiments.studies import store
from jaxreplay.saving import printable, untrusted
from tests.refusals import refusal

TINY = [
    "--agent", "dqn", "--seeds", "2", "--steps", "200", "--warmup", "100", "--eval-every", "50",
    "--eval-episodes", "1", "--n-step", "1", "--inspect", "0", "--batch-size", "8",
    "--agent.hidden", "8",
]  # fmt: skip

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


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Return a folder with a run, a comparison, a sweep and a search."""
    out = tmp_path_factory.mktemp("studies")
    own = [*TINY, "--figures", "false"]
    run = ["--env", "walk/4", "--replay", "uniform"]
    assert train.main([*own, *run, "--out", str(out / "run")]) == 0
    arms = ["--env", "walk/4", "--replays", "uniform", "per"]
    assert compare.main([*own, *arms, "--out", str(out / "comparison")]) == 0
    sweeps = [*own, "--envs", "walk/4", "--replays", "uniform"]
    grid = ["--grid", "agent.learning_rate=1e-3,1e-2"]
    assert sweep.main([*sweeps, *grid, "--out", str(out / "sweep")]) == 0
    space = ["--search", "random", "--trials", "2", "--space", "agent.learning_rate=1e-3:1e-2"]
    assert sweep.main([*sweeps, *space, "--out", str(out / "search")]) == 0
    return out


READERS = {  # file -> commands that read it, with options before the folder
    "run/config.json": [(report, []), (train, ["--resume"]), (watch, [])],
    "run/manifest.json": [(report, []), (train, ["--resume"])],
    "run/summary.json": [(report, []), (plot, ["--out", "plot"])],
    "comparison/manifest.json": [(report, []), (compare, ["--resume"])],
    "comparison/study.json": [(report, []), (compare, ["--resume"])],
    "sweep/study.json": [(report, []), (sweep, ["--dry-run", "--resume"])],
    "search/study.json": [(report, []), (sweep, ["--dry-run", "--resume"])],
}


def refused(capsys, command, *words):
    return refusal(capsys, command.main, *words)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", READERS)
def test_damaged_json_is_refused_by_every_reader(
    name, text, studies, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "study"
    shutil.copytree(studies / name.partition("/")[0], folder)
    path = folder / name.partition("/")[2]
    content = TEXTS[text]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for command, words in READERS[name]:
        assert str(folder) in refused(capsys, command, *words, folder)


@pytest.mark.parametrize("name", READERS)
def test_readers_do_not_block_on_pipes(name, studies, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "study"
    shutil.copytree(studies / name.partition("/")[0], folder)
    path = folder / name.partition("/")[2]
    path.unlink()
    os.mkfifo(path)
    for command, words in READERS[name]:
        try:  # some readers treat it as a missing file
            command.main([*words, str(folder)])
        except SystemExit as error:
            assert error.code == 2


FIELDS = [
    (name, field, value)
    for name, fields in {
        "run/summary.json": ("agent", "env", "seeds", "versions"),
        "sweep/study.json": (
            "crc32", "study", "versions", "settings", "columns", "base_points", "points",
            "costs", "failed",
        ),
        "search/study.json": ("search", "base_points", "points"),
    }.items()
    for field in fields
    for value in (None, 3, "\x1b[31m", [None], {"a": None})
    if not (field in ("agent", "env") and isinstance(value, str))  # valid values
]  # fmt: skip


@pytest.mark.parametrize(("name", "field", "value"), FIELDS)
def test_fields_of_the_wrong_kind_are_named(name, field, value, studies, tmp_path, capsys):
    folder = tmp_path / "study"
    shutil.copytree(studies / name.partition("/")[0], folder)
    path = folder / name.partition("/")[2]
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | {field: value}))
    said = refused(capsys, report, folder)
    assert path.name in said and field in said
    path.write_text(json.dumps({key: own for key, own in saved.items() if key != field}))
    if (name, field) not in [("run/summary.json", "versions"), ("search/study.json", "search")]:
        said = refused(capsys, report, folder)  # with the field removed
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
def test_missing_parts_of_a_sweep_are_named(where, field, studies, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(studies / "sweep", folder)
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
    assert str(path) in refused(capsys, sweep, "--file", path)


def test_json_is_read_up_to_the_maximum_depth(tmp_path):
    path = tmp_path / "x.json"
    for levels, right in ((untrusted.DEEPEST, True), (untrusted.DEEPEST + 1, False)):
        path.write_text("[" * levels + "]" * levels)
        if right:
            files.read_json(path)
        else:
            with pytest.raises(files.Unreadable, match=str(untrusted.DEEPEST)):
                files.read_json(path)


def test_control_characters_are_escaped(tmp_path, capsys):
    assert printable("\x1b[31m ä\u202e\ud800\n") == r"\x1b[31m ä\u202e\ud800\n"
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"agent": "\x1b[31m", "loop": {}}))
    with pytest.raises(ValueError, match=re.escape(str(folder))):
        read_config(folder)
    refused(capsys, train, "--resume", folder)
    refused(capsys, train, "--agent", "\x1b[31m\ud800")


def test_pipes_are_refused_as_locks_checkpoints_and_films(studies, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(studies / "run", folder)
    os.mkfifo(folder / LOCK)
    assert LOCK in refused(capsys, train, "--resume", folder)
    (folder / LOCK).unlink()
    os.mkfifo(tmp_path / "film.gif")
    said = refused(capsys, watch, folder, "--out", tmp_path / "film.gif")
    assert "film.gif" in said
    (last,) = sorted((folder / "checkpoints").glob("step_*"))[-1:]
    last.unlink()
    os.mkfifo(last)
    assert str(last) in refused(capsys, watch, folder)
