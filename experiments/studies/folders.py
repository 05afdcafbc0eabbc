"""Preparation, emptying and locking of the folder of a study or a plot.

A folder is ours if it has the JSON file of its kind, a study or a plot. Files are removed only from
folders that are ours, and only if they have names that this package gives.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from experiments.files.disk import leftovers, read_json
from experiments.runs.log import EVENTS_SUFFIX
from experiments.studies import checkpoints
from jaxreplay.saving import check_writable

LOCK = ".jaxreplay.lock"
_ADVICE = "choose another --out"
_FOLDERS = ("", checkpoints.FOLDER, "tensorboard")
Kind = Literal["study", "plot"]
MARKS: Mapping[Kind, str] = {"study": "study.json", "plot": "comparison.json"}
_FIGURES = r"(learning_curves?|replayed|own_metrics|looks|solved)(_\d+)?\.png"
# Regular expressions of our file names, specific enough not to match files of users by chance.
_FILES: Mapping[Kind, tuple[str, ...]] = {
    "study": (
        r"(study|verdicts)\.json", r"study\.(csv\.gz|md)", r"metrics\.csv", r"report\.html",
        _FIGURES, r"(verdicts|sensitivity|best)\.png", r"episode\.gif",
        rf"{checkpoints.FOLDER}/{checkpoints.NAME}",
        rf"tensorboard/events\.out\.tfevents\.\d+\..*{re.escape(EVENTS_SUFFIX)}",
    ),
    "plot": (r"comparison\.(json|md)", _FIGURES),
}  # fmt: skip


def is_ours(out: Path, kind: Kind = "study") -> bool:
    """Return whether a folder has results of a kind.

    A `study.json` that does not hold a study belongs to another program, because this package
    never leaves an incomplete one.
    """
    mark = out / MARKS[kind]
    if kind == "plot" or not mark.is_file():
        return mark.is_file()
    try:
        saved = read_json(mark)
    except ValueError:
        return False
    return isinstance(saved, dict) and "study" in saved


def check(out: Path, kind: Kind, *, resume: bool = False, overwrite: bool) -> None:
    """Check that a folder may be used, without changing it.

    Raises:
      ValueError: the folder is unusable or of another kind, has results of this kind although
        `resume` and `overwrite` are False, or has no results although `resume` is True.
    """
    _check_path(out)
    ours = sorted(_ours(out, kind))
    for path in ours:
        check_writable(path, _ADVICE)
    found = next((name for name in MARKS if is_ours(out, name)), None)
    if found is not None and found != kind:
        raise ValueError(f"{out} holds a {found}, not a {kind}: {_ADVICE}")
    if found is None and resume:
        raise ValueError(f"{out} holds no run or study to resume: use the folder of one")
    if found and not resume and not overwrite:
        resuming = "" if kind == "plot" else f"or --resume {out}, "
        raise ValueError(f"{out} already holds results: add --overwrite, {resuming}or {_ADVICE}")
    if found is None and ours:
        raise ValueError(
            f"{out} holds no {kind}, but a file {ours[0].relative_to(out)}, which would be "
            f"overwritten: {_ADVICE}"
        )


def prepare(out: Path, kind: Kind, *, resume: bool = False, overwrite: bool) -> None:
    """Make the folder of a study or plot; unless `resume`, delete the files of an earlier one.

    Raises:
      ValueError: as `check`.
    """
    check(out, kind, resume=resume, overwrite=overwrite)
    if is_ours(out, kind):
        _remove_left(out, kind)
        if not resume:
            _remove(out, kind)
    make(out)


def make(out: Path) -> None:
    """Make a folder and its parents unless they exist.

    Raises:
      ValueError: the folder cannot be created.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} can't be made ({error.strerror}): {_ADVICE}") from None


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; create it if it does not exist.

    The operating system releases the lock when the process ends or is killed. A folder that is
    empty at the end is removed, unless it existed and was empty before.

    Raises:
      ValueError: another process has locked the folder, or the folder or its lock cannot be made.
    """
    was_empty = folder.is_dir() and all(path.name == LOCK for path in folder.iterdir())
    make(folder)
    path = folder / LOCK
    check_writable(path, _ADVICE)
    file_lock = FileLock(path, blocking=False)
    try:
        file_lock.acquire()
        mine = path.stat()
    except Timeout:
        raise ValueError(
            f"another process is at work in {folder}: wait until it ends, or {_ADVICE}"
        ) from None
    except OSError as error:
        raise ValueError(f"{path} can't be used ({error.strerror}): {_ADVICE}") from None
    try:
        yield
    finally:
        # Our lock file is empty. If the folder was deleted and recreated, the lock is not ours.
        with contextlib.suppress(FileNotFoundError):
            if mine.st_size == 0 and os.path.samestat(path.lstat(), mine):
                path.unlink()
        file_lock.release()
        if not was_empty:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _check_path(out: Path) -> None:
    """Raise ValueError if a path cannot become a folder, or is not writable."""
    try:
        for path in (out, *out.parents):
            if path.is_dir():
                with tempfile.TemporaryDirectory(dir=path, prefix=".jaxreplay"):
                    return  # writing is tried, because file permissions are not conclusive
            if path.exists() or path.is_symlink():
                raise ValueError(f"{path} is not a folder: {_ADVICE}")
    except OSError as error:  # for example no permission, too long a name, or a loop of links
        raise ValueError(f"{out} can't be used ({error.strerror}): {_ADVICE}") from None


def _ours(out: Path, kind: Kind, left: bool = False) -> Iterator[Path]:
    """Yield the files and links in a folder that have our names; do not follow links.

    With `left`, yield instead the temporary files that killed processes left when they wrote files
    with our names.
    """
    names = re.compile("|".join(_FILES[kind]))
    for name in _FOLDERS:
        folder = out / name
        if name and folder.is_symlink():
            yield from [] if left else [folder]
        elif folder.is_dir():
            found = leftovers(folder) if left else {path: path for path in folder.iterdir()}
            yield from (
                path
                for path, target in found.items()
                if names.fullmatch(target.relative_to(out).as_posix())
            )


def _remove_left(out: Path, kind: Kind) -> None:
    """Remove what killed processes left: temporary files, and folders of unfinished checkpoints."""
    for path in list(_ours(out, kind, left=True)):
        path.unlink(missing_ok=True)
    folder = out / checkpoints.FOLDER
    if not folder.is_symlink():
        for path in folder.glob(f"{checkpoints.UNFINISHED}*"):
            shutil.rmtree(path, ignore_errors=True)


def _remove(out: Path, kind: Kind) -> None:
    """Remove our files from a folder of this kind, and our subfolders if they are empty then."""
    # The mark comes last, so that an interrupted removal can be repeated.
    for path in sorted(_ours(out, kind), key=lambda path: (path == out / MARKS[kind], path)):
        path.unlink(missing_ok=True)
    for name in _FOLDERS[1:]:
        with contextlib.suppress(OSError):  # missing, or contains other files
            (out / name).rmdir()
