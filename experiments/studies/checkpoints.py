"""Checkpoints of batches of runs, from which interrupted studies resume.

A checkpoint is one safetensors file with the metrics of all log points so far and the whole state.
Each array has a checksum, and nothing is pickled. A finished file replaces the previous checkpoint
by a rename, so that a killed process leaves an intact checkpoint. Orbax needs at least twice the
time to save and to load (84 MB of replay and 200 small leaves on two CPU cores), writes a folder of
18 files without fsync, and rejects arrays of size zero.
"""

import contextlib
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.files import disk
from experiments.runs.interrupt import Stopped
from experiments.training.drivers import Driver
from jaxreplay.saving import array_file, check_writable

FOLDER = "checkpoints"  # in the folder of a study
NAME = r"[0-9a-f]{16}\.safetensors"
UNFINISHED = ".unfinished-"  # start of the names of temporary folders
_TAG, _FORMAT = "jaxreplay.batch", 2
_ABOUT = {
    "runs": list, "log_points": int, "blocks": int, "step": int, "seconds": float,
    "compiling": float, "bytes": int, "code": list,
}  # fmt: skip
_METRIC = re.compile(r"\['metrics'\]\['([^']*)'\]")  # path of a metric in the file
_REMEDY = "restore it, or remove it to start its runs over"
Metrics = Mapping[str, np.ndarray]  # name -> [S]


class Progress(NamedTuple):
    """Progress of a batch of S runs."""

    points: Sequence[Metrics] = ()  # metrics of all log points so far
    blocks: int = 0  # of steps and updates since the last log point, for environments on the host
    seconds: float = 0.0  # elapsed time, including compilation
    compiling: float = 0.0  # seconds of compilation
    bytes: int = 0  # memory of the batch on a device while it runs
    code: tuple[str, ...] = ()  # versions of the code that computed it


class Checkpoint:
    """The checkpoint of a batch of runs.

    Attributes:
      path: path of the file, whose name depends on all that determines the numbers of the batch,
        except the code and the device.
    """

    def __init__(self, folder: Path, runs: Sequence[tuple[str, int]], *decided_by: Any) -> None:
        """Set the path of the checkpoint in the folder of a study.

        Args:
          folder: folder of the study.
          runs: id of the point and seed of every run.
          *decided_by: further JSON-able values that determine the numbers.
        """
        self._runs = [list(run) for run in runs]
        text = json.dumps([self._runs, *decided_by], sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path = folder / FOLDER / f"{name}.safetensors"

    def write(self, progress: Progress, step: int, state: Any) -> None:
        """Replace the file.

        Args:
          progress: the progress.
          step: agent steps of each run so far.
          state: as returned by `Driver.to_save`.

        Raises:
          OSError: the file cannot be written.
        """
        folder = self.path.parent
        folder.mkdir(exist_ok=True)
        check_writable(self.path, "remove it")
        tree, about = self._content(progress, step, state)
        # safetensors writes another temporary file next to its own, hence a folder.
        temporary = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))
        try:
            array_file.write(tree, self.path, temporary / self.path.name, _TAG, about)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        array_file.flush(folder)

    def encode(self, progress: Progress, step: int, state: Any) -> bytes:
        """Return the content of the file that `write` writes."""
        tree, about = self._content(progress, step, state)
        return array_file.encode(tree, _TAG, about)

    def read(self, driver: Driver) -> tuple[Progress, Any] | None:
        """Return the progress and the saved state.

        Returns:
          The progress and the saved state, or None if there is no file.

        Raises:
          Stopped: the file is damaged, or another version wrote it; the file stays as it is.
        """
        if not self.path.exists():
            return None
        like = driver.like()
        try:
            with array_file.opened(self.path, _TAG, _FORMAT, _ABOUT, _REMEDY) as saved:
                about = {name: saved.header[name] for name in Progress._fields if name in _ABOUT}
                with disk.reading(self.path, _REMEDY):
                    count = saved.header["log_points"]
                    if not 0 <= count <= len(driver.schedule.log_points):
                        raise ValueError(f"{count} log points")
                    matches = map(_METRIC.fullmatch, saved.header["leaves"])
                    names = [match[1] for match in matches if match]
                    shapes = {name: _shape(saved, name, count) for name in names}
                tree = saved.read({"metrics": shapes, "state": like})
        except ValueError as error:
            raise Stopped(str(error), 1) from error
        rows = {name: np.asarray(values) for name, values in tree["metrics"].items()}
        points = [{name: rows[name][at] for name in names} for at in range(count)]
        about["code"] = tuple(about["code"])
        return Progress(points, **about), tree["state"]

    def remove(self) -> None:
        """Delete the file. The folder stays, as another thread may be writing to it."""
        self.path.unlink(missing_ok=True)

    def _content(self, progress: Progress, step: int, state: Any) -> tuple[Any, dict[str, Any]]:
        points = progress.points
        names = points[0] if points else ()
        metrics = {name: np.stack([point[name] for point in points]) for name in names}
        about = progress._asdict() | {
            "format": _FORMAT, "runs": self._runs, "log_points": len(points), "step": step,
            "code": list(progress.code),
        }  # fmt: skip
        del about["points"]
        return {"metrics": metrics, "state": state}, about


def _shape(saved: array_file.ArrayFile, name: str, count: int) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of a metric; raise ValueError unless it has `count` log points."""
    leaf = f"['metrics']['{name}']"
    shape, dtype = saved.shape(leaf), saved.header["leaves"][leaf].partition("[")[0]
    if shape[0] != count:
        raise ValueError(f"{leaf} does not have {count} log points")
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype))


def remove_all(folder: Path) -> None:
    """Delete the checkpoints in the folder of a study that has ended."""
    for path in _paths(folder):
        path.unlink()
    with contextlib.suppress(OSError):  # missing, or contains other files
        (folder / FOLDER).rmdir()


def _paths(folder: Path) -> list[Path]:
    """Return the paths of the checkpoints in the folder of a study, without other files."""
    found = (folder / FOLDER).glob("*.safetensors")
    return sorted(path for path in found if re.fullmatch(NAME, path.name))


def of_seed(folder: Path, seed: int) -> tuple[Path, list[int], int]:
    """Return path, seeds and agent steps of the latest checkpoint that contains a seed of a run.

    Raises:
      Damaged: a checkpoint is damaged.
      ValueError: no checkpoint has the seed.
    """
    found = []
    for path in _paths(folder):
        with array_file.opened(path, _TAG, _FORMAT, _ABOUT, "start the run again") as saved:
            with disk.reading(path, "start the run again"):
                seeds = [number for _, number in saved.header["runs"]]
            found += [(saved.header["step"], path, seeds)] * (seed in seeds)
    if not found:
        raise ValueError(
            f"the run in {folder} has no checkpoint yet: wait for one, or continue with --resume"
        )
    step, path, seeds = max(found)
    return path, seeds, step


def read_part(path: Path, name: str, like: Any) -> Any:
    """Return a field of the states in a checkpoint, `[S, ...]`, such as "agent".

    Args:
      path: path of the checkpoint.
      name: name of the field.
      like: shapes and dtypes of the field.

    Raises:
      Damaged: the checkpoint is damaged.
      ValueError: the checkpoint holds other arrays than `like`.
    """
    with array_file.opened(path, _TAG, _FORMAT, _ABOUT, "start the run again") as saved:
        return saved.read(like, f"['state'].{name}")
