"""Who may use a folder: claiming one for a run, a comparison, a plot or a sweep; emptying it.

Only files that a manifest (of format 1: a run's configuration) says are ours are ever removed. A
folder that holds files by such names and neither of them is left alone.
"""

import contextlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from experiments.analysis.files import read_json, write_json
from experiments.runs import checkpoint, checksums, code, manifest, run_config, same_config
from experiments.runs.arms import Arm, Question
from experiments.runs.log import say_once
from experiments.runs.manifest import (
    FILES,
    MANIFEST,
    Kind,
    Manifest,
    has_ended,
    is_run,
    kind_of,
    listed,
    made_by,
)
from experiments.runs.outputs import OutputConfig
from experiments.runs.run_config import RunConfig

LOCK = ".jaxreplay.lock"
_FOLDERS = ("checkpoints/unfinished", "checkpoints", "tensorboard", "unfinished")


def check_claim(out: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that this run may not use; change nothing.

    Raises:
      ValueError: the folder can't be used, is not a run's, holds a run and neither `resume` nor
        `overwrite` is given, or the run to resume is not there or has another configuration.
    """
    kind = _check_usable(out, "run", resume, overwrite)
    if resume and kind != "run":
        raise ValueError(f"{out} holds no run to resume: give the folder of a run")
    if resume:
        before = run_config.read(out).to_json()
        known = manifest.read(out).config_crc32 if (out / MANIFEST).is_file() else None
        # A checkpoint has the whole configuration, and then the field is named.
        written = read_json(out / "config.json")  # perhaps with older names
        edited = known is not None and known != manifest.checksum(written)
        if edited and checkpoint.latest(out / "checkpoints") is None:
            raise ValueError(
                f"{out / 'config.json'} was edited since the run began: restore it, or start anew"
            )
        same_config.check(before, config.to_json(), out)
        _name_edits(out)


def claim(
    out: Path,
    config: RunConfig,
    output: OutputConfig = OutputConfig(),
    *,
    resume: bool,
    overwrite: bool,
) -> None:
    """Make `out` this run's folder, never destroying another run unasked, nor what is not ours.

    Raises:
      ValueError: as `check_claim`.
    """
    check_claim(out, config, resume=resume, overwrite=overwrite)
    versions = made_by(out) if resume else ()
    if not resume:
        _remove(out, "run")
    make(out)
    if not has_ended(out):
        now = code.version()
        versions = (*(each for each in versions if each != now), now)
    manifest.write(out, Manifest("run", output, {}, manifest.checksum(config.to_json()), versions))
    if not resume:
        write_json(out / "config.json", config.to_json())


def check_claim_comparison(
    out: Path, configs: Mapping[str, RunConfig], *, resume: bool, overwrite: bool
) -> None:
    """Refuse a folder that this comparison may not use; change nothing.

    Raises:
      ValueError: as `check_claim`, of the comparison's folder or of one of its runs'.
    """
    kind = _check_usable(out, "comparison", resume, overwrite)
    for label in {*configs, *(listed(out) if overwrite else ())}:
        _check_no_links([out / label, *_named(out / label, "run")])
    if resume and kind != "comparison":
        raise ValueError(f"{out} holds no comparison to resume: give the folder of a comparison")
    for label, config in configs.items():
        again = resume and is_run(out / label)
        check_claim(out / label, config, resume=again, overwrite=overwrite)


def claim_comparison(
    out: Path,
    question: Question,
    arms: Mapping[str, Arm],
    output: OutputConfig,
    *,
    resume: bool,
    overwrite: bool,
) -> None:
    """Make `out` this comparison's folder, and those below it its runs'.

    A run whose folder is lost begins anew.

    Raises:
      ValueError: as `check_claim_comparison`.
    """
    configs = {label: arm.config for label, arm in arms.items()}
    check_claim_comparison(out, configs, resume=resume, overwrite=overwrite)
    if not resume:
        for label in listed(out):
            _remove(out / label, "run")
            if label not in configs:
                with contextlib.suppress(OSError):  # holds what is not ours
                    (out / label).rmdir()
        _remove(out, "comparison")
    make(out)
    runs = {label: config.to_json() for label, config in configs.items()}
    methods = {label: arm.method for label, arm in arms.items()}
    content = Manifest("comparison", output, runs, question=question, methods=methods)
    manifest.write(out, content)
    for label, config in configs.items():
        again = resume and is_run(out / label)
        claim(out / label, config, output, resume=again, overwrite=overwrite)


def claim_plot(out: Path, *, overwrite: bool) -> None:
    """Make `out` the folder of a plot; one that is already there is drawn anew if that is wanted.

    Raises:
      ValueError: the folder can't be used, is a run's or a comparison's, holds a plot and
        `overwrite` is not given, or holds files by the names of a plot's that are not ours.
    """
    _check_usable(out, "plot", resume=False, overwrite=overwrite)
    make(out)
    manifest.write(out, Manifest("plot", OutputConfig(), {}))


def check_claim_study(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that a study may not use; change nothing.

    Raises:
      ValueError: the folder can't be used, is another's, holds a study and neither `resume` nor
        `overwrite` is given, or none that could be resumed.
    """
    if _check_usable(out, "study", resume, overwrite) != "study" and resume:
        raise ValueError(f"{out} does not contain a study to resume: use the folder of a study")
    if resume:
        _name_edits(out)


def claim_study(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Make `out` a study's folder, never destroying another unasked, nor what is not ours.

    Raises:
      ValueError: as `check_claim_sweep`.
    """
    check_claim_study(out, resume=resume, overwrite=overwrite)
    if resume:
        return
    _remove(out, "study")
    make(out)
    manifest.write(out, Manifest("study", OutputConfig(), {}))


def check_code(runs: Iterable[Path], allowed: bool) -> None:
    """Refuse results that different versions of the code, or settings of JAX, made.

    Args:
      runs: folders, there or not; those that have not ended are to go on with the present code.
      allowed: the user has asked for it.

    Raises:
      ValueError: one line that names the versions.
    """
    by_version: dict[str, Path] = {}
    for out in runs:
        versions = [*made_by(out), *(() if has_ended(out) else (code.version(),))]
        by_version |= dict.fromkeys(versions, out)
    if len(by_version) > 1 and not allowed:
        shown = ", ".join(f"{each} ({out.name})" for each, out in by_version.items())
        raise ValueError(
            "different versions of the code or settings of JAX would have made these results: "
            f"{shown}: start anew, go back to those, or add --other-code true"
        )


def make(out: Path) -> None:
    """Make a folder, and those above it, unless they are there.

    Raises:
      ValueError: one line: the system won't have it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} can't be made ({error.strerror}): choose another --out") from None


def _name_edits(out: Path) -> None:
    """Name the files of what is resumed that are not as they were written."""
    for line in checksums.differing(out):
        say_once(line)


def _check_usable(out: Path, kind: Kind, resume: bool, overwrite: bool) -> Kind | None:
    """Refuse a path that can't become a folder of this kind; return what it is now."""
    _check_path(out)
    if not out.is_dir():
        return None
    _check_no_links(_named(out, kind))
    found = kind_of(out)
    if found is not None and found != kind:
        raise ValueError(f"{out} holds a {found}, not a {kind}: choose another --out")
    begun = found != "run" or any((out / name).exists() for name in ("config.json", "metrics.csv"))
    if found and begun and not resume and not overwrite:
        going_on = "" if kind == "plot" else f"or --resume {out}, "
        raise ValueError(
            f"{out} already holds a {kind}: add --overwrite, {going_on}or choose another --out"
        )
    if found is None:
        taken = sorted(path.relative_to(out).as_posix() for path in _named(out, kind))
        if taken:
            raise ValueError(
                f"{out} holds {taken[0]}, but no {kind} of ours: it would be overwritten: choose "
                "another --out"
            )
    return found


def _check_path(out: Path) -> None:
    """Refuse what can't be made a folder, or not be written to."""
    try:
        for path in (out, *out.parents):
            if path.is_dir():
                with tempfile.TemporaryDirectory(dir=path, prefix=".jaxreplay"):
                    return  # what rights say is not always what the system does
            if path.exists() or path.is_symlink():
                raise ValueError(f"{path} is not a folder: choose another --out")
    except OSError as error:  # no rights, a name that is too long, a loop of links
        raise ValueError(f"{out} can't be used ({error.strerror}): choose another --out") from None


def _named(out: Path, kind: Kind) -> Iterator[Path]:
    """Yield the files and links in a folder that go by our names; no link is followed."""
    names = re.compile("|".join(FILES[kind]))
    for name in ("", *_FOLDERS):
        folder, above = out / name, [out / part for part in _FOLDERS if name.startswith(part)]
        if links := [path for path in above if path.is_symlink()]:
            yield from links
        elif folder.is_dir():
            own = (path.relative_to(out).as_posix() for path in folder.iterdir())
            yield from (out / each for each in own if names.fullmatch(each))


def _check_no_links(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_symlink():
            raise ValueError(f"{path} is a link, which is not followed: choose another --out")


def _remove(out: Path, kind: Kind) -> None:
    """Remove our files from a folder, and our folders in it if nothing else is left there."""
    if not out.is_dir() or kind_of(out) != kind:
        return
    # The manifest last: whatever interrupts this, what is left is still known to be ours.
    for path in sorted(_named(out, kind), key=lambda path: (path.name == MANIFEST, path)):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    for name in _FOLDERS:
        with contextlib.suppress(OSError):  # not there, or holds what is not ours
            (out / name).rmdir()
