"""Folders of results: foreign files are kept, and runs are never confused."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.runs import folder, manifest, run_config
from experiments.runs.folder import check_run, prepare_run
from experiments.runs.run_config import OutputConfig, defaults
from experiments.studies import store
from tests.refusals import refused

CONFIG = defaults("gymnax/CartPole-v1", "dqn", "per")


def claim_study(out, overwrite=False):
    folder.prepare(out, "study", overwrite=overwrite)


def tree(path: Path) -> dict[str, bytes]:
    """Return the contents of all files below a path."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def put(path: Path, *names: str) -> None:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(f"mine: {name}")


def started(out: Path) -> None:
    """Make the folder of a run with all files that runs write."""
    prepare_run(out, CONFIG, resume=False, overwrite=False)
    put(out, "metrics.csv", "timing.csv", "summary.json", "learning_curve.png")
    put(out, "checkpoints/step_000000000100.safetensors")
    put(out, "checkpoints/unfinished/step_000000000200.safetensors")
    put(out, EVENTS)


EVENTS = "tensorboard/events.out.tfevents.1700000000.host.jaxreplay"
FOREIGN = [
    (".config.json.x.tmp", "tensorboard/events.out.tfevents.1700000000.host", "replayed_mine.png"),
    ("tensorboard/events.out.tfevents.mine", "checkpoints/unfinished/.tmp-notes"),
    ("checkpoints/thesis.pt", "checkpoints/step_000000000100.best.safetensors"),
    ("notes.txt", "wandb/run-1/files/config.yaml"),
    ("tensorboard/other/events.out.tfevents.9", "checkpoints/step_1.pt", "data/metrics.csv"),
]


@pytest.mark.parametrize("names", FOREIGN)
def test_foreign_files_are_never_removed(tmp_path, names):
    out = tmp_path / "run"
    put(out, *names)
    before = tree(out)
    prepare_run(out, CONFIG, resume=False, overwrite=False)  # no file has the name of a result
    assert {name: tree(out)[name] for name in before} == before
    started_files = ("metrics.csv", "checkpoints/step_000000000100.safetensors")
    put(out, *started_files)
    prepare_run(out, CONFIG, resume=False, overwrite=True)
    assert {name: tree(out)[name] for name in before} == before
    assert not set(tree(out)) & set(started_files)


@pytest.mark.parametrize(
    "name",
    ["metrics.csv", "summary.json", "checkpoints/step_000000000007.safetensors", "config.json",
     "replayed.png", "study.json", "tensorboard/events.out.tfevents.1700000000.host.jaxreplay"],
)  # fmt: skip
def test_foreign_files_with_names_of_results_are_kept(tmp_path, name):
    put(tmp_path, name, "a.txt", ".jaxreplay.lock")
    before = tree(tmp_path)
    for overwrite in (False, True):
        with refused(tmp_path, name, "--out"):
            if name == "study.json":
                claim_study(tmp_path, overwrite)
            prepare_run(tmp_path, CONFIG, resume=False, overwrite=overwrite)
        assert tree(tmp_path) == before


def test_overwriting_removes_what_a_run_wrote(tmp_path):
    out = tmp_path / "run"
    started(out)
    with refused(out, "--overwrite", f"--resume {out}", "--out"):
        prepare_run(out, CONFIG, resume=False, overwrite=False)
    assert (out / "metrics.csv").exists()
    prepare_run(out, CONFIG, resume=False, overwrite=True)
    assert sorted(tree(out)) == ["config.json", "manifest.json"]
    assert not (out / "checkpoints").exists() and not (out / "tensorboard").exists()


def test_runs_and_studies_reject_folders_of_each_other(tmp_path):
    started(tmp_path / "run")
    claim_study(tmp_path / "study")
    before = tree(tmp_path)
    for overwrite in (False, True):
        with refused(tmp_path / "run", "run", "study", "--out"):
            claim_study(tmp_path / "run", overwrite)
        with refused(tmp_path / "study", "study", "run", "--out"):
            prepare_run(tmp_path / "study", CONFIG, resume=False, overwrite=overwrite)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("kept", [(), ("manifest.json",), ("config.json", "manifest.json")])
def test_kills_while_claiming_a_folder_leave_it_usable(tmp_path, kept):
    prepare_run(tmp_path / "x", CONFIG, resume=False, overwrite=False)
    for path in (tmp_path / "x").iterdir():
        if path.name not in kept:
            path.rename(path.with_name(f".{path.name}.abc.tmp"))  # temporary name
    again = "config.json" in kept
    prepare_run(tmp_path / "x", CONFIG, resume=again, overwrite=False)
    assert run_config.read(tmp_path / "x") == CONFIG


def test_kills_while_removing_a_run_leave_it_recognisable(tmp_path, monkeypatch):
    started(tmp_path)
    removed = []

    def unlink(path, **_):
        if len(removed) == 4:
            raise KeyboardInterrupt
        removed.append(path)
        os.remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            prepare_run(tmp_path, CONFIG, resume=False, overwrite=True)
    assert manifest.read(tmp_path).kind == "run"
    prepare_run(tmp_path, CONFIG, resume=False, overwrite=True)
    assert sorted(tree(tmp_path)) == ["config.json", "manifest.json"]


UNFINISHED = "unfinished/0123456789abcdef.safetensors"


def begin(out: Path, kind: str, resume: bool = False, overwrite: bool = True) -> None:
    if kind == "run":
        prepare_run(out, CONFIG, resume=resume, overwrite=overwrite)
    else:
        folder.prepare(out, "study", resume=resume, overwrite=overwrite)


@pytest.mark.parametrize("kind", ["run", "study"])
def test_results_that_are_being_removed_are_not_resumed(kind, tmp_path, monkeypatch):
    """A kill while --overwrite removes old files leaves none of them beside the new ones."""
    begun = {"run": {"config.json", "manifest.json"}, "study": {"manifest.json"}}[kind]
    names = ["study.csv.gz", "study.json", UNFINISHED]
    names = names if kind == "study" else ["metrics.csv", "summary.json", *CHECKPOINTS]
    for count in range(1, len(begun) + len(names)):
        out, removed = tmp_path / str(count), []
        begin(out, kind)
        put(out, *names)

        def unlink(path, count=count, removed=removed, **_):
            if len(removed) == count:
                raise KeyboardInterrupt
            removed.append(path)
            os.remove(path)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "unlink", unlink)
            begin(out, kind)
        with refused(out):
            begin(out, kind, resume=True)
            assert kind == "study" and store.read(out)
        begin(out, kind)
        assert set(tree(out)) == begun


CHECKPOINTS = ["checkpoints/step_000000032000.safetensors", "checkpoints/step_000000036000.damaged"]


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("kind", ["run", "study"])
def test_temporary_files_of_killed_processes_are_removed(kind, resume, tmp_path):
    begin(tmp_path, kind)
    ours = {
        "run": [".config.json.a1b2_c3d.tmp", ".summary.json.abcdefgh.tmp"],
        "study": [".study.json.a1b2_c3d.tmp", "unfinished/.0123456789abcdef.npz.abcdefgh.tmp"],
    }
    foreign = [".notes.json.abcdefgh.tmp", ".config.json.ABCDEFGH.tmp", ".study.json.abc.tmp",
               "config.json.abcdefgh.tmp"]  # fmt: skip
    put(tmp_path, *ours[kind], *foreign)
    busy = f".{'config' if kind == 'run' else 'study'}.json.12345678.tmp"
    for name in (*ours[kind], *foreign):
        os.utime(tmp_path / name, (0, 0))
    put(tmp_path, busy)  # another process is writing it
    begin(tmp_path, kind, resume, overwrite=not resume)
    assert not set(ours[kind]) & set(tree(tmp_path))
    assert {busy, *foreign} <= set(tree(tmp_path))


def test_edited_configs_are_detected_without_a_checkpoint(tmp_path):
    prepare_run(tmp_path, CONFIG, resume=False, overwrite=False)
    saved = json.loads((tmp_path / "config.json").read_text())
    saved["loop"]["gamma"] = 0.5
    (tmp_path / "config.json").write_text(json.dumps(saved))
    edited = run_config.read(tmp_path)
    with refused(tmp_path / "config.json"):
        check_run(tmp_path, edited, resume=True, overwrite=False)


def test_foreign_files_with_the_name_of_the_lock_are_kept(tmp_path):
    mine, path = tmp_path / "mine", tmp_path / folder.LOCK
    mine.write_text("mine")
    path.symlink_to(mine)
    with refused(path, "--out"), folder.lock(tmp_path):
        pass
    path.unlink()
    path.write_text("notes")
    with folder.lock(tmp_path):
        pass
    assert (mine.read_text(), path.read_text()) == ("mine", "notes")
    path.unlink()
    with folder.lock(tmp_path):
        path.unlink()
        path.touch()  # lock of another process in a recreated folder
    assert path.exists()


def test_outputs_are_saved_without_remote_loggers(tmp_path):
    output = OutputConfig(threshold=195.0, checkpoint_every=3)
    prepare_run(tmp_path / "x", CONFIG, output, resume=False, overwrite=False)
    assert manifest.read(tmp_path / "x").output == output
    assert manifest.read(None).output == manifest.read(tmp_path).output == OutputConfig()
    saved = json.loads((tmp_path / "x" / "manifest.json").read_text())
    assert saved["output"]["wandb"] is False


def test_plots_overwrite_only_plots_on_request(tmp_path):
    for overwrite in (False, True):
        folder.prepare(tmp_path / "plot", "plot", overwrite=overwrite)
        put(tmp_path / "plot", "comparison.md", "learning_curves.png")
    with refused(tmp_path / "plot", "--overwrite", "--out"):
        folder.prepare(tmp_path / "plot", "plot", overwrite=False)
    put(tmp_path / "mine", "learning_curves.png")
    started(tmp_path / "run")
    before = tree(tmp_path)
    for name, parts in (("mine", ("learning_curves.png",)), ("run", ("run", "plot"))):
        with refused(tmp_path / name, *parts, "--out"):
            folder.prepare(tmp_path / name, "plot", overwrite=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_links_to_folders_are_not_followed(tmp_path, name):
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "run"
    put(elsewhere, "step_000000000001.safetensors", Path(EVENTS).name)
    prepare_run(out, CONFIG, resume=False, overwrite=False)
    (out / name).symlink_to(elsewhere)
    before = tree(elsewhere)
    for overwrite in (False, True):
        with refused(out / name, "--out"):
            prepare_run(out, CONFIG, resume=False, overwrite=overwrite)
    assert tree(elsewhere) == before


@pytest.mark.parametrize("name", ["config.json", "metrics.csv", EVENTS, "report.html"])
@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_links_with_names_of_results_are_kept_and_not_written_through(tmp_path, name, how):
    started(tmp_path / "run")
    path = tmp_path / "run" / name
    put(tmp_path, "mine")
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "mine")
    before = tree(tmp_path)
    with refused(path, "--out"):
        check_run(tmp_path / "run", CONFIG, **{"resume": False, "overwrite": False, how: True})
    assert tree(tmp_path) == before and path.is_symlink()


def test_figures_of_a_study_are_replaced_and_foreign_figures_kept(tmp_path):
    claim_study(tmp_path)
    mine = ("replayed_4_mine.png", "learning_curves_talk.png")
    put(tmp_path, "replayed_4.png", "solved.png", *mine)
    claim_study(tmp_path, overwrite=True)
    assert {path.name for path in tmp_path.glob("*.png")} == set(mine)


@pytest.mark.parametrize("before", ["none", "empty", "left by a kill", "a run's"])
def test_refused_commands_leave_an_existing_folder_unchanged(tmp_path, before):
    """Refused commands release their lock and remove folders that they made."""
    out = tmp_path / "out"
    if before != "none":
        out.mkdir()
        out.chmod(0o2770)
    if before == "left by a kill":
        (out / folder.LOCK).touch()
    if before == "a run's":
        put(out, "config.json")
    with folder.lock(out):
        (out / "config.json").unlink(missing_ok=True)  # as after a finished table
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
            check_run(path, CONFIG, resume=False, overwrite=False)
    with refused("/proc/x", "--out"), folder.lock(Path("/proc/x")):
        pass
    with refused("/proc/x", "--out"):
        check_run(Path("/proc/x"), CONFIG, resume=False, overwrite=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folders_without_permissions_are_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with refused(tmp_path / "closed" / "x", "Permission denied"):
        check_run(tmp_path / "closed" / "x", CONFIG, resume=False, overwrite=False)


@pytest.mark.parametrize(
    ("change", "parts"),
    [({"format": 99}, ("format 99",)), ({"format": 3}, ("manifest.json", "3")),
     ({"kind": "other"}, ("manifest.json",)),
     *(({"checksums": sums}, ("checksums",))
       for sums in ({"x": [[math.inf, 1]]}, {"x": ["x"]}, {"x": [[1, 2, 3]]}, {"x": [[-1, 1]]}, 3)),
    ],
)  # fmt: skip
def test_damaged_manifests_are_refused(tmp_path, change, parts):
    saved = {"format": 2, "kind": "run", "output": {}, "runs": {}}
    (tmp_path / "manifest.json").write_text(json.dumps(saved | change))
    with refused(*parts):
        manifest.read(tmp_path)


HOLDER = """
import sys, time
from pathlib import Path
from experiments.runs import folder
with folder.lock(Path(sys.argv[1])):
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
        with refused(out, "--out"), folder.lock(out):
            pass
    finally:
        holder.kill()
        holder.wait()
    assert (out / folder.LOCK).exists()  # left by the killed process
    with folder.lock(out):
        assert (out / folder.LOCK).exists()
    assert not (out / folder.LOCK).exists()
