"""A replay in a file: saved and loaded by itself, bit for bit.

What is loaded draws what the saved one would have drawn. The file says what it holds, and is only
loaded into a replay of the same sizes, rows and sampler's state.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreplay import array_file
from jaxreplay import ring as ring_
from jaxreplay._internal.version import VERSION
from jaxreplay.array_file import Damaged
from jaxreplay.fields import Row
from jaxreplay.replay import ReplayState
from jaxreplay.types import Replay

FORMAT = 1
_TAG = "jaxreplay.replay"


def save(
    replay: Replay, state: ReplayState, path: str | os.PathLike, *, overwrite: bool = False
) -> Path:
    """Write a replay's state to a file, which appears under its name when it is complete.

    Frames or rows that are kept on the host are the caller's to save. Of vmapped states, save one
    at a time: `jax.tree.map(lambda x: x[seed], state)`.

    Args:
      replay: what the state is of.
      state: its state, outside of `jit`.
      path: the file; its folder must exist. A replay that was saved there before is replaced.
      overwrite: replace any other file, too.

    Returns:
      The path.

    Raises:
      ValueError: there is another file of that name, or a link; the folder is missing; or the state
        is not that of the replay.
      ImportError: safetensors is not installed.
      OSError: the file can't be written.
    """
    path = Path(path)
    _check_state(replay, state)
    _check_place(path, overwrite)
    about = {"format": FORMAT, "version": VERSION, **_layout(replay, state)}
    temporary = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=path.parent))
    try:
        array_file.write(state, path, temporary / path.name, _TAG, about)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    array_file.publish(path.parent)
    return path


def load(replay: Replay, path: str | os.PathLike, example: Row) -> ReplayState:
    """Return the state of a replay that was saved.

    Options of the sampler (alpha, beta) are not in the file, and nor is its name: make the replay
    as it was made. Methods that keep the same arrays, as PER and LAP do, are not told apart.

    Args:
      replay: made with the same sizes, and a sampler that keeps the same state.
      path: the file.
      example: one unbatched transition, as for `replay.init`.

    Raises:
      ValueError: one line that names the first difference in format, sizes, fields of a row or
        arrays of the sampler; or there is no such file, or it is no saved replay; `Damaged`: its
        bytes are not those that were written.
      ImportError: safetensors is not installed.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}: give one that jaxreplay.save has written")
    like = jax.eval_shape(replay.init, jax.random.key(0), example)
    with array_file.open_file(path) as file:
        written = array_file.tagged(file, _TAG)
        if written is None:
            raise ValueError(f"{path} is no saved replay: give one that jaxreplay.save has written")
        header = array_file.parse(written, str(path))
        _check_same(path, header, _layout(replay, like), like)
        leaves = [
            array_file.read(file, header, jax.tree_util.keystr(place), leaf, str(path))
            for place, leaf in array_file.flatten(like)
        ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _check_state(replay: Replay, state: ReplayState) -> None:
    """Refuse a state that `load` could not give back to this replay."""
    ring = state.ring
    if isinstance(ring.rows_added, Tracer):
        raise ValueError("save is called inside of jit, where there are no numbers yet")
    if ring.rows_added.ndim:
        raise ValueError(
            "the state is vmapped: save one at a time, jax.tree.map(lambda x: x[seed], state)"
        )
    fits = ring.num_envs == replay.num_envs and ring.capacity % replay.capacity == 0
    if fits and isinstance(ring.frames, tuple):  # else the layout does not say what a row was
        layout = ring_.row_layout(ring)
        rows = [jnp.zeros(field.shape, field.dtype) for field in layout.fields]
        like = jax.eval_shape(
            replay.init, jax.random.key(0), jax.tree.unflatten(layout.treedef, rows)
        )
        fits = _described(like) == _described(state)
    if not fits:
        raise ValueError(
            f"the state is not of this replay, which has capacity {replay.capacity} and "
            f"{replay.num_envs} environments: give the replay that made it"
        )


def _described(state: ReplayState) -> dict[str, str]:
    """Return dtype and shape of every array, by place."""
    places = array_file.flatten(state)
    return {jax.tree_util.keystr(place): array_file.describe(leaf) for place, leaf in places}


def _check_place(path: Path, overwrite: bool) -> None:
    """Refuse to write where a file is that `save` has not written."""
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}: make it first")
    if path.is_symlink():
        raise ValueError(f"{path} is a link, which is not followed: give the file it leads to")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    if path.exists() and not overwrite and not _is_ours(path):
        raise ValueError(
            f"{path} exists and is no saved replay: give another name, or overwrite=True"
        )


def _is_ours(path: Path) -> bool:
    try:
        with array_file.open_file(path) as file:
            return array_file.tagged(file, _TAG) is not None
    except (Damaged, OSError):
        return False


def _layout(replay: Replay, state: ReplayState) -> dict[str, Any]:
    """Return what has to be the same for a state to be another replay's."""
    ring = state.ring
    fields = [
        [field.name, f"{field.dtype}[{','.join(map(str, field.shape))}]"]
        for field in ring_.row_layout(ring).fields
    ]
    return {"capacity": replay.capacity, "num_envs": replay.num_envs, "row": fields}


def _check_same(
    path: Path, header: dict[str, Any], layout: dict[str, Any], like: ReplayState
) -> None:
    if header["format"] != FORMAT:
        raise ValueError(
            f"{path} is of format {header['format']} (jaxreplay {header['version']}), and this "
            f"version, {VERSION}, reads {FORMAT}: load it with the version that wrote it"
        )
    for name in ("capacity", "num_envs"):
        if header[name] != layout[name]:
            raise ValueError(
                f"{path} holds a replay with {name} {header[name]}, not {layout[name]}: make the "
                f"replay with {name}={header[name]}"
            )
    advice = "give the example that the replay was made for"
    _check_equal(path, dict(header["row"]), dict(layout["row"]), "field", "this example", advice)
    if header["row"] != layout["row"]:
        raise ValueError(f"{path} holds its fields in another order than this example: {advice}")
    advice = "make the replay with the sampler and the options that it was saved with"
    _check_equal(path, header["leaves"], _described(like), "array", "this replay", advice)


def _check_equal(
    path: Path, saved: dict[str, str], own: dict[str, str], what: str, who: str, advice: str
) -> None:
    for name in [*own, *(name for name in saved if name not in own)]:
        if saved.get(name) != own.get(name):
            raise ValueError(
                f"{path} holds {saved.get(name, 'nothing')} for {what} {name}, and {who} has "
                f"{own.get(name, 'nothing')}: {advice}"
            )
