"""The folders of runs and comparisons: what in them is ours, and who may use them.

A run's folder holds `config.json`, `metrics.csv` (one row per log point and seed, deterministic),
`timing.csv`, `checkpoints/`, `tensorboard/`, and at the end `summary.json` and figures. A
comparison's holds a table, figures and a folder for each run. `manifest.json` says which of the two
it is, and which files are ours: nothing else is ever removed, and a folder that holds files by such
names but no manifest is left alone.
"""

import contextlib
import dataclasses
import json
import re
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from experiments.analysis.files import write_json
from experiments.runs import checkpoint, code, run_config
from experiments.runs.arms import CONTROL, Arm, Question
from experiments.runs.outputs import OutputConfig
from experiments.runs.run_config import RunConfig

FORMAT = 2  # of folders; 1 had no manifest
MANIFEST = "manifest.json"
LOCK = ".jaxreplay.lock"
_DIGITS = "[0-9]" * 12
LABEL = r"[A-Za-z]\w*"  # of a run in a comparison
Kind = Literal["run", "comparison", "plot"]

_WRITTEN = ("config.json", "summary.json", MANIFEST, "metrics.csv", "timing.csv")
_JOINT = (
    MANIFEST, f".{MANIFEST}.*.tmp", "summary.json", ".summary.json.*.tmp", "comparison.md",
    "verdicts.json", ".verdicts.json.*.tmp", "verdicts.png", "learning_curves*.png",
    "replayed*.png", "own_metrics*.png",
)  # fmt: skip
FILES: Mapping[Kind, tuple[str, ...]] = {
    "run": (
        *_WRITTEN, *(f".{name}.*.tmp" for name in _WRITTEN), "learning_curve.png", "replayed.png",
        "own_metrics.png", "episode.gif", "episode.mp4", f"checkpoints/step_{_DIGITS}.safetensors",
        f"checkpoints/step_{_DIGITS}.damaged", f"checkpoints/unfinished/step_{_DIGITS}.safetensors",
        "checkpoints/unfinished/.tmp*", "tensorboard/events.out.tfevents.*",
    ),
    "comparison": _JOINT,
    "plot": _JOINT,
}  # fmt: skip
_FOLDERS = ("checkpoints/unfinished", "checkpoints", "tensorboard")


class Manifest(NamedTuple):
    """What `manifest.json` says."""

    kind: Kind
    output: OutputConfig
    runs: dict[str, dict[str, Any]]  # of a comparison: every run's configuration, by label
    config_crc32: int | None = None  # of a run: a checksum of its configuration
    code: tuple[str, ...] = ()  # of a run: the versions of the code that trained it, in order
    question: Question = Question()  # of a comparison
    methods: Mapping[str, str] = MappingProxyType({})  # of a comparison: its method, by label


def kind_of(folder: Path) -> Kind | None:
    """Tell whether a folder is a run's, a comparison's or a plot's; None: none of ours.

    Raises:
      ValueError: its manifest is damaged.
    """
    if (folder / MANIFEST).is_file():
        return read_manifest(folder).kind
    if _is_config(folder / "config.json"):  # of format 1
        return "run"
    children = [path for path in folder.glob("*/config.json") if _is_config(path)]
    if (folder / "comparison.md").is_file() and any(
        not path.with_name(MANIFEST).exists() for path in children
    ):
        return "comparison"  # of format 1, too
    return None


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest.

    Raises:
      ValueError: one line: it is damaged, or of a later version.
    """
    path = folder / MANIFEST
    try:
        saved = json.loads(path.read_text())
        if saved["format"] > FORMAT:
            raise ValueError(
                f"{folder} was made by a later version (format {saved['format']}): use that"
            )
        if saved["kind"] not in FILES:
            raise KeyError("kind")
        runs = dict(saved["runs"])
        for label in runs:  # else a stranger's could lead elsewhere
            if not re.fullmatch(LABEL, label):
                raise KeyError(f"label {label}")
        output = OutputConfig(**saved["output"])
        crc, versions = saved.get("config_crc32"), tuple(saved.get("code", ()))
        question = Question(**saved.get("question", {}))
        methods = {str(label): str(own) for label, own in saved.get("methods", {}).items()}
        return Manifest(saved["kind"], output, runs, crc, versions, question, methods)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): restore it, or choose another folder"
        ) from error


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
        known = read_manifest(out).config_crc32 if (out / MANIFEST).is_file() else None
        # A checkpoint has the whole configuration, and then the field is named.
        edited = known is not None and known != _checksum(before)
        if edited and checkpoint.latest(out / "checkpoints") is None:
            raise ValueError(
                f"{out / 'config.json'} was edited since the run began: restore it, or start anew"
            )
        checkpoint.check_same_config(before, config.to_json(), out)


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
    _write_manifest(out, Manifest("run", output, {}, _checksum(config.to_json()), versions))
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
        if (out / label).is_symlink():
            raise ValueError(
                f"{out / label} is a link, which is not followed: choose another --out"
            )
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
            with contextlib.suppress(OSError):  # holds what is not ours
                (out / label).rmdir()
        _remove(out, "comparison")
    make(out)
    runs = {label: config.to_json() for label, config in configs.items()}
    methods = {label: arm.method for label, arm in arms.items()}
    manifest = Manifest("comparison", output, runs, question=question, methods=methods)
    _write_manifest(out, manifest)
    for label, config in configs.items():
        again = resume and is_run(out / label)
        claim(out / label, config, output, resume=again, overwrite=overwrite)


def check_code(runs: Iterable[Path], allowed: bool) -> None:
    """Refuse results that different versions of the code made.

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
            f"different versions of the code would have made these results: {shown}: start anew, "
            "go back to that version, or add --other-code true"
        )


def made_by(out: Path) -> tuple[str, ...]:
    """Return the versions of the code that trained the run in a folder; (): none is known."""
    return read_manifest(out).code if (out / MANIFEST).is_file() else ()


def has_ended(out: Path) -> bool:
    """Tell whether the run in a folder has ended."""
    return (out / "summary.json").is_file()


def listed(out: Path) -> list[str]:
    """Return the labels that a comparison's manifest lists; none, if it has no manifest."""
    if not (out / MANIFEST).is_file() or read_manifest(out).kind != "comparison":
        return []
    return list(read_manifest(out).runs)


def claim_plot(out: Path) -> None:
    """Make `out` the folder of a plot; one that is already there is drawn anew.

    Raises:
      ValueError: the folder can't be used, is a run's or a comparison's, or holds files by the
        names of a plot's that are not ours.
    """
    _check_usable(out, "plot", resume=True, overwrite=False)
    make(out)
    _write_manifest(out, Manifest("plot", OutputConfig(), {}))


def make(out: Path) -> None:
    """Make a folder, and those above it, unless they are there.

    Raises:
      ValueError: one line: the system won't have it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} can't be made ({error.strerror}): choose another --out") from None


def runs_of(out: Path) -> dict[str, dict[str, Any]]:
    """Return the configurations of a comparison's runs, whether their folders are there or not.

    Raises:
      ValueError: its manifest is damaged.
    """
    if (out / MANIFEST).is_file():
        return read_manifest(out).runs
    found = sorted(path for path in out.glob("*/config.json") if _is_config(path))
    return {path.parent.name: json.loads(path.read_text()) for path in found}


def methods_of(out: Path) -> dict[str, str]:
    """Return the label of one run of every method of a comparison, but for the control."""
    known = read_manifest(out).methods if (out / MANIFEST).is_file() else {}
    labels = runs_of(out)
    found = {known.get(label, label): label for label in reversed(list(labels))}
    return {own: found[own] for own in reversed(list(found)) if own != CONTROL}


def saved_question(out: Path | None) -> Question:
    """Return what the comparison in a folder asks; None: the defaults.

    Raises:
      ValueError: its manifest is damaged.
    """
    if out is None or not (out / MANIFEST).is_file():
        return Question()
    return read_manifest(out).question


def saved_output(out: Path | None) -> OutputConfig:
    """Return what the run or comparison in a folder writes, to go on so; None: the defaults.

    Raises:
      ValueError: its manifest is damaged.
    """
    if out is None or not (out / MANIFEST).is_file():
        return OutputConfig()
    return read_manifest(out).output


def is_run(out: Path) -> bool:
    """Tell whether a folder is a run's.

    Raises:
      ValueError: its manifest is damaged.
    """
    return kind_of(out) == "run"


def _check_usable(out: Path, kind: Kind, resume: bool, overwrite: bool) -> Kind | None:
    """Refuse a path that can't become a folder of this kind; return what it is now."""
    _check_path(out)
    if not out.is_dir():
        return None
    for name in _FOLDERS:
        if (out / name).is_symlink():
            raise ValueError(f"{out / name} is a link, which is not followed: choose another --out")
    found = kind_of(out)
    if found is not None and found != kind:
        raise ValueError(f"{out} holds a {found}, not a {kind}: choose another --out")
    begun = found != "run" or any((out / name).exists() for name in ("config.json", "metrics.csv"))
    if found and begun and not resume and not overwrite:
        raise ValueError(
            f"{out} already holds a {kind}: add --overwrite, or --resume {out}, "
            "or choose another --out"
        )
    if found is None:
        found_here = (path for path in _ours(out, kind) if path.suffix != ".tmp")
        taken = sorted(path.relative_to(out).as_posix() for path in found_here)
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


def _ours(out: Path, kind: Kind) -> Iterable[Path]:
    """Yield the files in a folder that go by our names; links to folders are not followed."""
    for pattern in FILES[kind]:
        folder, _, _ = pattern.rpartition("/")
        if not any((out / part).is_symlink() for part in _FOLDERS if folder.startswith(part)):
            yield from out.glob(pattern)


def _remove(out: Path, kind: Kind) -> None:
    """Remove our files from a folder, and our folders in it if nothing else is left there."""
    if not out.is_dir() or kind_of(out) != kind:
        return
    # The manifest last: whatever interrupts this, what is left is still known to be ours.
    for path in sorted(_ours(out, kind), key=lambda path: (path.name == MANIFEST, path)):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    for name in _FOLDERS:
        with contextlib.suppress(OSError):  # not there, or holds what is not ours
            (out / name).rmdir()


def _write_manifest(out: Path, manifest: Manifest) -> None:
    content = {
        "format": FORMAT,
        "kind": manifest.kind,
        # Not what sends data elsewhere: whoever resumes a stranger's run has to ask for that.
        # Nor a consent that was given once.
        "output": dataclasses.asdict(manifest.output) | {"wandb": False, "other_code": False},
        "files": list(FILES[manifest.kind]),
        "runs": manifest.runs,
    }
    if manifest.kind == "comparison":
        content["question"] = dataclasses.asdict(manifest.question)
        content["methods"] = dict(manifest.methods)
    if manifest.code:
        content["code"] = list(manifest.code)
    if manifest.config_crc32 is not None:
        content["config_crc32"] = manifest.config_crc32
    write_json(out / MANIFEST, content)


def _checksum(config: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(config, sort_keys=True).encode())


def _is_config(path: Path) -> bool:
    """Tell whether a file is the `config.json` of a run."""
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(saved, dict) and {"env", "agent", "replay", "seeds", "loop"} <= set(saved)
