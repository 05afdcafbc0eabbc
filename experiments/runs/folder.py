"""Claiming a folder for a run, a plot or a study; emptying it, and locking it.

Only files that a manifest declares as ours are ever removed. A folder that holds files by our names
and no manifest is left alone.
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
from jaxreplay.saving import check_writable, saved_digest

LOCK = ".jaxreplay.lock"
_ADVICE = "choose another --out"
_FOLDERS = ("checkpoints/unfinished", "checkpoints", "tensorboard", "unfinished")
_TABLES = ("metrics.csv", "timing.csv")


def check_run(out: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Check that a run may use a folder, and change nothing.

    Raises:
      ValueError: the folder can't be used, is not a run's, holds a run although neither `resume`
        nor `overwrite` is given, or does not hold the run to resume with this configuration.
    """
    _check_usable(out, "run", resume, overwrite)
    if resume:
        before, path = run_config.read(out).to_json(), out / "config.json"
        # A checkpoint has the whole configuration, and its check names the edited option.
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
    """Make `out` this run's folder; other runs are removed only on request, and only our files.

    Raises:
      ValueError: as `check_claim`.
    """
    check_run(out, config, resume=resume, overwrite=overwrite)
    before = manifest.read(out) if resume else Manifest("run", demos=_digest_of_demos(config))
    if not resume:
        _remove(out, "run")
    make(out)
    if not has_ended(out):
        now = code.version()
        versions = (*(each for each in before.code if each != now), now)
        # The tables are about to be truncated to the rows before the checkpoint.
        sums = {name: own for name, own in before.checksums.items() if name not in _TABLES}
        before = before._replace(code=versions, checksums=sums)
    manifest.write(out, before._replace(output=output))
    if not resume:
        manifest.write_json(out / "config.json", config.to_json())


def check_folder(out: Path, kind: Kind, *, resume: bool = False, overwrite: bool) -> None:
    """Check that a folder may be used for a plot or a study, and change nothing.

    Raises:
      ValueError: the folder can't be used, is of another kind, holds one of this kind although
        neither `resume` nor `overwrite` is given, or holds none to resume.
    """
    _check_usable(out, kind, resume, overwrite)
    if resume:
        _report_edits(out)


def prepare(out: Path, kind: Kind, *, resume: bool = False, overwrite: bool) -> None:
    """Make `out` the folder of a plot or a study, and remove our files of an earlier one.

    Raises:
      ValueError: as `check_claim_kind`.
    """
    check_folder(out, kind, resume=resume, overwrite=overwrite)
    if not resume:
        _remove(out, kind)
        make(out)
        manifest.write(out, Manifest(kind))


def check_code(out: Path, allowed: bool) -> None:
    """Check that one version of the code, under the same settings of JAX, makes a run.

    Args:
      out: folder of the run; a run that has not ended continues with the present code.
      allowed: whether the user accepts different versions.

    Raises:
      ValueError: the versions differ, with their names.
    """
    now = () if has_ended(out) else (code.version(),)
    versions = dict.fromkeys([*manifest.read(out).code, *now])
    if len(versions) > 1 and not allowed:
        raise ValueError(
            f"the run in {out} would come from different versions of the code or settings of JAX "
            f"({', '.join(versions)}): start a new run, go back to those, or add --other-code true"
        )


def check_demos(out: Path, config: RunConfig) -> None:
    """Raise ValueError if the file of --demos is not the one with which a run began."""
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
      ValueError: the system refuses.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} can't be made ({error.strerror}): {_ADVICE}") from None


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if necessary.

    The operating system releases the lock when its process ends for whatever reason, so the file
    of a killed process has no effect. A folder that is empty at the end is removed, unless it
    existed and was empty before.

    Raises:
      ValueError: another process holds the folder, or the folder or lock can't be made.
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
        # Ours is empty, and a folder that was deleted and made again has another process's lock.
        with contextlib.suppress(FileNotFoundError):
            if mine.st_size == 0 and os.path.samestat(path.lstat(), mine):
                path.unlink()
        file_lock.release()
        if not was_empty:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _report_edits(out: Path) -> None:
    """Print the names of the edited files of a resumed folder."""
    for line in manifest.differing(out):
        say_once(line)


def _check_usable(out: Path, kind: Kind, resume: bool, overwrite: bool) -> None:
    """Raise ValueError if a path can't become a folder of this kind, or can't be resumed."""
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
    """Raise ValueError if a path can't become a folder, or is not writable."""
    try:
        for path in (out, *out.parents):
            if path.is_dir():
                with tempfile.TemporaryDirectory(dir=path, prefix=".jaxreplay"):
                    return  # file permissions do not always reveal what the system allows
            if path.exists() or path.is_symlink():
                raise ValueError(f"{path} is not a folder: {_ADVICE}")
    except OSError as error:  # no permission, a name that is too long, a loop of links
        raise ValueError(f"{out} can't be used ({error.strerror}): {_ADVICE}") from None


def _ours(out: Path, kind: Kind) -> Iterator[Path]:
    """Yield the files and links in a folder that have our names, without following links."""
    names = re.compile("|".join(FILES[kind]))
    for name in ("", *_FOLDERS):
        folder, above = out / name, [out / part for part in _FOLDERS if name.startswith(part)]
        if links := [path for path in above if path.is_symlink()]:
            yield from links
        elif folder.is_dir():
            own = (path.relative_to(out).as_posix() for path in folder.iterdir())
            yield from (out / each for each in own if names.fullmatch(each))


def discard(out: Path) -> None:
    """Remove a run's folder that we made; other people's files in it stay."""
    _remove(out, "run")
    for path in (out, out.parent):
        with contextlib.suppress(OSError):  # holds other files
            path.rmdir()


def _remove(out: Path, kind: Kind) -> None:
    """Remove our files from a folder of this kind, and our folders in it if they are empty then."""
    if not out.is_dir() or manifest.read(out).kind != kind:
        return
    # The manifest goes last: after an interruption, the rest is still known to be ours.
    for path in sorted(_ours(out, kind), key=lambda path: (path.name == MANIFEST, path)):
        path.unlink(missing_ok=True)
    for name in _FOLDERS:
        with contextlib.suppress(OSError):  # missing, or holds other people's files
            (out / name).rmdir()
