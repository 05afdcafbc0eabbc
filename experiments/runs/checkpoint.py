"""Atomic checkpoints of a pytree of arrays, one safetensors file each, without pickle.

A safetensors file contains both arrays and metadata, so a single rename publishes a checkpoint.
Orbax needs at least twice the time to save and to load (84 MB of replay and 200 small leaves on two
CPU cores), writes a folder of 18 files without fsync, and rejects arrays of size zero.
"""

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from experiments.storage import kinds
from experiments.storage.files import Damaged as Damaged  # raised when a checkpoint is read
from experiments.storage.files import reading
from experiments.training.schedule import Schedule
from jaxreplay.saving import array_file, printable

Tree = Any  # any pytree of arrays, typed PRNG keys and Python scalars
_META = {
    "config": kinds.dict_of(kinds.anything), "progress": kinds.many(kinds.natural, 2),
    "metrics": kinds.many(kinds.natural, 2),
}  # fmt: skip
_NAME = re.compile(r"step_(\d{12})\.safetensors")
_UNFINISHED = re.compile(rf"{_NAME.pattern}|\.tmp\w{{6}}")  # the latter are written by safetensors
_TAG = "jaxreplay"
_FORMAT = 2
_REMEDY = "restore it, or start a new run"
_KEPT = 2  # number of newest checkpoints to keep: the second is a fallback if the first is damaged


def save(folder: Path, step: int, state: Tree, meta: dict) -> Path:
    """Write a checkpoint, and delete all but the two newest ones.

    The write is atomic: if the process is killed, previous checkpoints stay intact.

    Args:
      folder: folder of the checkpoints, created if it does not exist.
      step: number of agent steps done, part of the file's name.
      state: pytree of arrays (any JAX dtype), typed PRNG keys and Python scalars.
      meta: JSON-able metadata.

    Returns:
      Path of the checkpoint.

    Raises:
      ValueError: the folder contains a checkpoint of a later step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    newest = latest(folder)
    if newest is not None and newest > step:
        raise ValueError(f"{folder} holds a later checkpoint (step {newest}): use another folder")
    # A killed process leaves temporary files of safetensors; they are in a folder of their own.
    unfinished = folder / "unfinished"
    unfinished.mkdir(exist_ok=True)
    for left in [path for path in unfinished.iterdir() if _UNFINISHED.fullmatch(path.name)]:
        left.unlink()
    path = path_of(folder, step)
    about = {"format": _FORMAT, "meta": meta}
    array_file.write(state, path, unfinished / path.name, _TAG, about)
    with contextlib.suppress(OSError):  # the folder contains other files
        unfinished.rmdir()
    array_file.flush(folder)
    for old in _steps(folder)[:-_KEPT]:
        path_of(folder, old).unlink()
    return path


def latest(folder: Path, before: int | None = None) -> int | None:
    """Return the step of the newest checkpoint in `folder`, older than `before`, or None."""
    return max((x for x in _steps(folder) if before is None or x < before), default=None)


def read_meta(folder: Path, step: int | None = None) -> dict:
    """Return the metadata of a checkpoint (the newest if `step` is None) without reading arrays.

    Raises:
      Damaged: the file was changed.
      ValueError: the checkpoint does not exist, or has another format.
    """
    with _open(folder, step) as saved:
        return saved.header["meta"]


def read_run(folder: Path, step: int | None = None) -> dict[str, Any]:
    """Return the metadata of a run's checkpoint.

    Returns:
      "config", "progress" (see `experiments.runs.run.Progress`), and "metrics": size and checksum
      of `metrics.csv`.

    Raises:
      Damaged: the file was changed, or a field is missing or has the wrong type.
      ValueError: the checkpoint does not exist, or has another format.
    """
    with _open(folder, step) as saved:
        meta = saved.header["meta"]
        with reading(saved.path, _REMEDY):
            kinds.check(meta, _META)
        return meta


def check_name(folder: Path, named: int, schedule: Schedule, progress: Sequence[int]) -> None:
    """Check the step in a checkpoint's name against the progress in its content.

    Raises:
      Damaged: the schedule of the run does not include the progress.
      ValueError: the name has another step.
    """
    with reading(path_of(folder, named), _REMEDY):
        held = schedule.step_at(*progress)
    if named != held:
        raise ValueError(
            f"the checkpoint of step {named} in {folder} holds step {held}: rename it "
            f"{path_of(folder, held).name}"
        )


def set_aside(folder: Path, step: int) -> Path:
    """Rename a damaged checkpoint so that it is not read again; return the new path."""
    path = path_of(folder, step)
    return path.rename(path.with_suffix(".damaged"))


def load(folder: Path, like_state: Tree, step: int | None = None, part: str = "") -> Tree:
    """Return the state of a checkpoint (the newest if `step` is None), bit for bit.

    Args:
      folder: folder of the checkpoints.
      like_state: structure, shapes and dtypes of the state, for example from `jax.eval_shape`.
      step: agent steps of the checkpoint.
      part: path of the subtree to read, such as `.agent`; `like_state` is then this subtree.

    Raises:
      Damaged: the bytes of the file differ from those written.
      ValueError: the checkpoint does not exist, has another format, or has a leaf with another
        path, shape or dtype.
    """
    with _open(folder, step) as file:
        places = array_file.flatten(like_state)
        wanted = {part + jax.tree_util.keystr(at): array_file.describe(x) for at, x in places}
        stated = file.header["leaves"]
        saved = {name: leaf for name, leaf in stated.items() if _is_in(part, name)}
        _check_same_leaves(saved, wanted, folder)
        return file.read(like_state, part)


def _is_in(part: str, name: str) -> bool:
    return name.startswith(part) and (not part or name[len(part) :][:1] in ("", ".", "["))


def _check_same_leaves(saved: dict[str, str], now: dict[str, str], folder: Path) -> None:
    for name in {**now, **saved}:
        was, needed = saved.get(name), now.get(name)
        if was != needed:
            advice = "resume with the options and code version of that run, or use another --out"
            raise ValueError(
                f"checkpoint in {folder} holds {printable(was or 'nothing')} for leaf "
                f"{printable(name) or '.'}, this run needs {needed or 'nothing'}: "
                f"{array_file.advice(was, needed, advice)}"
            )


def path_of(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint after `step` agent steps."""
    return folder / f"step_{step:012d}.safetensors"


def _steps(folder: Path) -> list[int]:
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def _open(
    folder: Path, step: int | None
) -> contextlib.AbstractContextManager[array_file.ArrayFile]:
    which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    step = latest(folder) if step is None else step
    if step is None or not path_of(folder, step).exists():
        raise ValueError(f"{which} in {folder}: nothing to resume, start the run without --resume")
    return array_file.opened(path_of(folder, step), _TAG, _FORMAT, {"meta": dict}, _REMEDY)
