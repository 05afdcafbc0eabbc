"""Folders of results: files of others are kept, and kinds of results are never confused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.studies import folders
from experiments.studies.checkpoints import FOLDER, UNFINISHED
from experiments.studies.folders import MARKS, check, prepare
from tests.refusals import refused

CHECKPOINT = f"{FOLDER}/0123456789abcdef.safetensors"
EVENTS = "tensorboard/events.out.tfevents.1700000000.host.jaxreplay"
OURS = {
    "study": ("study.json", "study.csv.gz", "study.md", "metrics.csv", "verdicts.json",
              "report.html", "learning_curve.png", "replayed_4.png", "solved.png", "best.png",
              "episode.gif", CHECKPOINT, EVENTS),
    "plot": ("comparison.json", "comparison.md", "learning_curves.png", "looks.png"),
}  # fmt: skip
FOREIGN = (
    "notes.txt", ".study.json.x.tmp", "replayed_mine.png", "replayed_4_mine.png",
    "data/metrics.csv",
    "tensorboard/events.out.tfevents.1700000000.host", "tensorboard/events.out.tfevents.mine",
    "tensorboard/other/events.out.tfevents.9", "wandb/run-1/files/config.yaml",
    f"{FOLDER}/thesis.pt", f"{FOLDER}/mine.safetensors", f"{FOLDER}/step_000000000100.safetensors",
    f"{FOLDER}/0123456789abcdef.best.safetensors", f"{FOLDER}/0123456789abcde.safetensors",
)  # fmt: skip
KINDS = list(OURS)
other = {"study": "plot", "plot": "study"}


def tree(path: Path) -> dict[str, bytes]:
    """Return the contents of all files below a path."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def put(path: Path, *names: str) -> None:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text('{"study": {}}' if name == "study.json" else f"mine: {name}")


@pytest.mark.parametrize("kind", KINDS)
def test_overwriting_removes_our_files_and_keeps_those_of_others(tmp_path, kind):
    out = tmp_path / "out"
    put(out, *FOREIGN)
    before = tree(out)
    prepare(out, kind, overwrite=False)  # no file has the name of a result
    assert tree(out) == before
    put(out, *OURS[kind])
    with refused(out, "--overwrite", "--out"):
        prepare(out, kind, overwrite=False)
    assert set(tree(out)) == {*FOREIGN, *OURS[kind]}
    prepare(out, kind, resume=True, overwrite=False)
    assert set(tree(out)) == {*FOREIGN, *OURS[kind]}
    prepare(out, kind, overwrite=True)
    assert tree(out) == before


def test_folders_that_we_made_are_removed_when_they_are_empty(tmp_path):
    put(tmp_path, *OURS["study"])
    with refused(tmp_path, "--overwrite", f"--resume {tmp_path}", "--out"):
        prepare(tmp_path, "study", overwrite=False)
    prepare(tmp_path, "study", overwrite=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_foreign_files_with_names_of_results_are_kept(tmp_path, kind):
    for name in OURS[kind]:
        out = tmp_path / name.replace("/", "_")
        put(out, name, "a.txt", folders.LOCK)
        before = tree(out)
        if name == MARKS[kind]:  # which makes a folder ours, and reading it tells the rest
            continue
        for overwrite in (False, True):
            with refused(out, name, "--out"):
                prepare(out, kind, overwrite=overwrite)
        with refused(out):
            prepare(out, kind, resume=True, overwrite=False)
        assert tree(out) == before


@pytest.mark.parametrize("text", ['{"hours": 3}', "[]", "3"])
def test_a_foreign_file_called_study_json_is_kept(tmp_path, text):
    (tmp_path / "study.json").write_text(text)
    put(tmp_path, "metrics.csv")
    for way in ({"overwrite": False}, {"overwrite": True}, {"overwrite": False, "resume": True}):
        with refused(tmp_path):
            prepare(tmp_path, "study", **way)
    assert set(tree(tmp_path)) == {"study.json", "metrics.csv"}


def test_kinds_of_results_refuse_folders_of_each_other(tmp_path):
    for kind in KINDS:
        put(tmp_path / kind, *OURS[kind])
    before = tree(tmp_path)
    for kind in KINDS:
        for way in (
            {"overwrite": False},
            {"overwrite": True},
            {"overwrite": False, "resume": True},
        ):
            with refused(tmp_path / kind, kind, other[kind], "--out"):
                prepare(tmp_path / kind, other[kind], **way)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("kind", KINDS)
def test_kills_while_removing_results_leave_them_recognisable(kind, tmp_path, monkeypatch):
    """Only without the mark, which is removed last, a folder takes results of others."""
    for count in range(len(OURS[kind])):
        out, removed = tmp_path / str(count), []
        put(out, *OURS[kind])

        def unlink(path, count=count, removed=removed, **_):
            if len(removed) == count:
                raise KeyboardInterrupt
            removed.append(path.name)
            os.remove(path)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "unlink", unlink)
            prepare(out, kind, overwrite=True)
        assert folders.is_ours(out, kind) and MARKS[kind] not in removed
        prepare(out, kind, overwrite=True)
        assert not tree(out)


@pytest.mark.parametrize("resume", [True, False])
def test_temporary_files_of_killed_processes_are_removed(resume, tmp_path):
    left = {".study.json.a1b2_c3d.tmp", ".verdicts.json.abcdefgh.tmp",
            f"{FOLDER}/{UNFINISHED}a1b2c3d4/0123456789abcdef.safetensors"}  # fmt: skip
    foreign = {".notes.json.abcdefgh.tmp", ".study.json.ABCDEFGH.tmp", ".study.json.abc.tmp",
               "study.json.abcdefgh.tmp", f"{FOLDER}/.unfinished"}  # fmt: skip
    put(tmp_path, "study.json", *left, *foreign)
    for name in (*left, *foreign):
        os.utime(tmp_path / name, (0, 0))
    busy = ".study.json.12345678.tmp"  # another process is writing it
    put(tmp_path, busy)
    prepare(tmp_path, "study", resume=resume, overwrite=not resume)
    assert set(tree(tmp_path)) == {busy, *foreign, *["study.json"] * resume}


def test_foreign_files_with_the_name_of_the_lock_are_kept(tmp_path):
    mine, path = tmp_path / "mine", tmp_path / folders.LOCK
    mine.write_text("mine")
    path.symlink_to(mine)
    with refused(path, "--out"), folders.lock(tmp_path):
        pass
    path.unlink()
    path.write_text("notes")
    with folders.lock(tmp_path):
        pass
    assert (mine.read_text(), path.read_text()) == ("mine", "notes")
    path.unlink()
    with folders.lock(tmp_path):
        path.unlink()
        path.touch()  # lock of another process in a recreated folder
    assert path.exists()


@pytest.mark.parametrize("name", [FOLDER, "tensorboard"])
def test_links_to_folders_are_not_followed(tmp_path, name):
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "run"
    put(elsewhere, Path(CHECKPOINT).name, Path(EVENTS).name, f"{UNFINISHED}x/y")
    put(out, "study.json")
    (out / name).symlink_to(elsewhere)
    before = tree(elsewhere)
    for way in ({"overwrite": False}, {"overwrite": True}, {"overwrite": False, "resume": True}):
        with refused(out / name, "--out"):
            prepare(out, "study", **way)
    assert tree(elsewhere) == before


@pytest.mark.parametrize("name", ["study.json", "metrics.csv", CHECKPOINT, EVENTS, "report.html"])
@pytest.mark.parametrize("way", ["resume", "overwrite"])
def test_links_with_names_of_results_are_kept_and_not_written_through(tmp_path, name, way):
    put(tmp_path / "run", *OURS["study"])
    path = tmp_path / "run" / name
    put(tmp_path, "mine")
    path.unlink()
    path.symlink_to(tmp_path / "mine")
    before = tree(tmp_path)
    with refused(path, "--out"):
        check(tmp_path / "run", "study", **{"overwrite": False, way: True})
    assert tree(tmp_path) == before and path.is_symlink()


@pytest.mark.parametrize("before", ["none", "empty", "left by a kill", "a study's"])
def test_refused_commands_leave_an_existing_folder_unchanged(tmp_path, before):
    """Refused commands release their lock and remove folders that they made."""
    out = tmp_path / "out"
    if before != "none":
        out.mkdir()
        out.chmod(0o2770)
    if before == "left by a kill":
        (out / folders.LOCK).touch()
    if before == "a study's":
        put(out, "study.json")
    with folders.lock(out):
        (out / "study.json").unlink(missing_ok=True)
    assert out.is_dir() == (before in ("empty", "left by a kill"))
    if out.is_dir():
        assert out.stat().st_mode & 0o7777 == 0o2770 and not list(out.iterdir())


def test_invalid_folder_paths_are_refused(tmp_path):
    put(tmp_path, "file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, named in (
        (tmp_path / "file", tmp_path / "file"),
        (tmp_path / "file" / "below" / "it", tmp_path / "file"),
        (tmp_path / ("x" * 300), "File name too long"),
        (Path("/dev/full"), "/dev/full"),
        (tmp_path / "loop" / "x", tmp_path / "loop"),
    ):
        with refused(named, "--out"):
            check(path, "study", overwrite=False)
    with refused("/proc/x", "--out"), folders.lock(Path("/proc/x")):
        pass
    with refused("/proc/x", "--out"):
        check(Path("/proc/x"), "study", overwrite=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folders_without_permissions_are_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with refused(tmp_path / "closed" / "x", "Permission denied"):
        check(tmp_path / "closed" / "x", "study", overwrite=False)


HOLDER = """
import sys, time
from pathlib import Path
from experiments.studies import folders
with folders.lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_folders_are_locked_by_one_process(tmp_path):
    out = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with refused(out, "--out"), folders.lock(out):
            pass
    finally:
        holder.kill()
        holder.wait()
    assert (out / folders.LOCK).exists()  # left by the killed process
    with folders.lock(out):
        assert (out / folders.LOCK).exists()
    assert not (out / folders.LOCK).exists()
