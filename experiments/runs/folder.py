"""Preparation, emptying and locking of the folder of a run, a plot or a study.

Files are removed only from folders with a manifest, and only those that have our names.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from experiments.runs import checkpoint, code, manifest, run_config
from experiments.runs.log import say_once
from experiments.runs.manifest import FILES, MANIFEST, Kind, Manifest, has_ended
from experiments.runs.run_config import OutputConfig, RunConfig
from experiments.storage.files import leftovers
from jaxreplay.saving import check_writable, saved_digest

LOCK = ".jaxreplay.lock"
_ADVICE = "choose another --out"
_FOLDERS = ("checkpoints/unfinished", "checkpoints", "tensorboard", "unfinished")
_TABLES = ("metrics.csv", "timing.csv")


def check_run(out: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Check that a run may use a folder, without changing it.

    Raises:
      ValueError: the folder is unusable or not a run's, contains a run although neither `resume`
        nor `overwrite` is given, or lacks the run to resume with this configuration.
    """
    _check_usable(out, "run", resume, overwrite)
    if resume:
        before, path = run_config.read(out).to_json(), out / "config.json"
        # A checkpoint also has the configuration; comparing both later gives the edited option.
        if manifest.is_edited(path) and checkpoint.latest(out / "checkpoints") is None:
            raise ValueError(f"{path} was edited since the run began: restore it, or start again")
        run_config.check_same(before, config.to_json(), out)
        _report_edits(out)


def prepare_run(
    out: Path,
    config: RunConfig,
    output: OutputConfig = OutputConfig(),
    *,
    resume: bool,
    overwrite: bool,
) -> None:
    """Make `out` the folder of this run; with `overwrite`, remove our files of an earlier one.

    Raises:
      ValueError: as `check_run`.
    """
    check_run(out, config, resume=resume, overwrite=overwrite)
    before = manifest.read(out) if resume else Manifest("run", demos=_digest_of_demos(config))
    if resume:
        _remove_left(out, "run")
    else:
        _remove(out, "run")
    make(out)
    if not has_ended(out):
        now = code.version()
        versions = (*(each for each in before.code if each != now), now)
        # Training truncates the tables to the rows before the checkpoint.
        sums = {name: own for name, own in before.checksums.items() if name not in _TABLES}
        before = before._replace(code=versions, checksums=sums)
    manifest.write(out, before._replace(output=output))
    if not resume:
        manifest.write_json(out / "config.json", config.to_json())


def check_folder(out: Path, kind: Kind, *, resume: bool = False, overwrite: bool) -> None:
    """Check that a folder may be used for a plot or a study, without changing it.

    Raises:
      ValueError: the folder is unusable or of another kind, contains one of this kind although
        neither `resume` nor `overwrite` is given, or has none to resume.
    """
    _check_usable(out, kind, resume, overwrite)
    if resume:
        _report_edits(out)


def prepare(out: Path, kind: Kind, *, resume: bool = False, overwrite: bool) -> None:
    """Make `out` the folder of a plot or a study; unless resumed, remove our earlier files.

    Raises:
      ValueError: as `check_folder`.
    """
    check_folder(out, kind, resume=resume, overwrite=overwrite)
    if resume:
        _remove_left(out, kind)
    else:
        _remove(out, kind)
        make(out)
        manifest.write(out, Manifest(kind))


def check_code(out: Path, allowed: bool) -> None:
    """Raise ValueError if different versions of code and settings make a run, unless `allowed`.

    For a run that has not ended, the present version counts, too.
    """
    now = () if has_ended(out) else (code.version(),)
    versions = dict.fromkeys([*manifest.read(out).code, *now])
    if len(versions) > 1 and not allowed:
        raise ValueError(
            f"the run in {out} would come from different versions of the code or settings of JAX "
            f"({', '.join(versions)}): start a new run, go back to those, or add --other-code true"
        )


def check_demos(out: Path, config: RunConfig) -> None:
    """Raise ValueError if the file of --demos has changed since the run began."""
    known = manifest.read(out).demos
    if known and known != _digest_of_demos(config):
        raise ValueError(
            f"--demos {config.sizes.demos} has changed since the run in {out} began: restore the "
            "file, or start a new run"
        )


def _digest_of_demos(config: RunConfig) -> str:
    path = config.sizes.demos
    return "" if path is None else saved_digest(path)


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
      ValueError: another process has locked the folder, or folder or lock cannot be created.
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


def _report_edits(out: Path) -> None:
    """Print a warning about each edited file of a resumed folder."""
    for line in manifest.differing(out):
        say_once(line)


def _check_usable(out: Path, kind: Kind, resume: bool, overwrite: bool) -> None:
    """Raise ValueError if a path cannot become a folder of this kind, or be resumed."""
    _check_path(out)
    ours = sorted(_ours(out, kind))
    for path in ours:
        check_writable(path, _ADVICE)
    found = manifest.read(out).kind
    if found is not None and found != kind:
        raise ValueError(f"{out} holds a {found}, not a {kind}: {_ADVICE}")
    if found is None and resume:
        raise ValueError(f"{out} holds no {kind} to resume: give the folder of a {kind}")
    begun = found != "run" or any((out / name).exists() for name in ("config.json", "metrics.csv"))
    if found and begun and not resume and not overwrite:
        resuming = "" if kind == "plot" else f"or --resume {out}, "
        raise ValueError(f"{out} already holds a {kind}: add --overwrite, {resuming}or {_ADVICE}")
    if found is None and ours:
        raise ValueError(
            f"{out} holds {ours[0].relative_to(out)}, which would be overwritten, but no {kind} of "
            f"ours: {_ADVICE}"
        )


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

    With `left`, yield the temporary files of such names that killed processes left.
    """
    names = re.compile("|".join(FILES[kind]))
    for name in ("", *_FOLDERS):
        folder, above = out / name, [out / part for part in _FOLDERS if name.startswith(part)]
        if links := [path for path in above if path.is_symlink()]:
            yield from [] if left else links
        elif folder.is_dir():
            found = leftovers(folder) if left else {path: path for path in folder.iterdir()}
            yield from (
                path
                for path, target in found.items()
                if names.fullmatch(target.relative_to(out).as_posix())
            )


def discard(out: Path) -> None:
    """Remove our files from the folder of a run, and then it and its parent if they are empty."""
    _remove(out, "run")
    for path in (out, out.parent):
        with contextlib.suppress(OSError):  # it contains other files
            path.rmdir()


def _remove_left(out: Path, kind: Kind) -> None:
    """Remove temporary files of killed processes from a folder of this kind."""
    for path in list(_ours(out, kind, left=True)):
        path.unlink(missing_ok=True)


def _remove(out: Path, kind: Kind) -> None:
    """Remove our files from a folder of this kind, and our subfolders if they are empty then."""
    if not out.is_dir() or manifest.read(out).kind != kind:
        return
    _remove_left(out, kind)
    # The file that marks a run or study as begun is removed first, so that a half removed one is
    # not resumed, and the manifest last, so that an interrupted removal can be repeated.
    order = {out / "config.json": -1, out / "study.json": -1, out / MANIFEST: 1}
    for path in sorted(_ours(out, kind), key=lambda path: (order.get(path, 0), path)):
        path.unlink(missing_ok=True)
    for name in _FOLDERS:
        with contextlib.suppress(OSError):  # missing, or contains other files
            (out / name).rmdir()
