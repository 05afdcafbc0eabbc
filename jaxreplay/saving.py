"""A replay in a file: saved and loaded by itself, bit for bit, on any device.

What is loaded draws what the saved one would have drawn. The file says what it holds, and is only
loaded into a replay of the same sizes, rows and sampler's state.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreplay import array_file, fields
from jaxreplay import ring as ring_
from jaxreplay._internal.version import VERSION
from jaxreplay.array_file import Damaged
from jaxreplay.fields import Row
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.ring import Ring
from jaxreplay.types import Array
from jaxreplay.untrusted import check_writable, printable

FORMAT = 1
_TAG = "jaxreplay.replay"
_HEADER = {"capacity": int, "num_envs": int, "row": list}


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
    like = jax.eval_shape(replay.init, jax.random.key(0), example)
    with _opened(path) as (file, header):
        _check_same(path, header, _layout(replay, like), like)
        leaves = [
            array_file.read(file, header, jax.tree_util.keystr(place), leaf, str(path))
            for place, leaf in array_file.flatten(like)
        ]
    return array_file.unflatten(like, leaves)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a saved replay, and read its header."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}: give one that jaxreplay.save has written")
    with array_file.open_file(path) as file:
        written = array_file.tagged(file, _TAG)
        if written is None:
            raise ValueError(f"{path} is no saved replay: give one that jaxreplay.save has written")
        yield file, array_file.parse(written, str(path), FORMAT, _HEADER)


def load_rows(replay: Replay, path: str | os.PathLike, example: Row, key: Array) -> ReplayState:
    """Return a new state of a replay, filled with the rows of one that was saved.

    Number of environments, capacity and sampler may be others. Rows are added as new ones: what
    the sampler knew of them (priorities, its parameters) stays behind. Each environment's rows
    follow one another as they did, those of all environments are put one after the other and cut
    into equal parts, one for each environment of the replay; the few oldest that are left over are
    dropped, and where the capacity is smaller, the oldest of every environment. All episodes end
    where the environments or the parts do. When the replay is full, the rows of the first
    environment are overwritten first.

    Args:
      replay: of a sampler that needs no feedback about new transitions.
      path: the file.
      example: one unbatched transition, as for `replay.init`.
      key: as for `replay.init`.

    Raises:
      ValueError: as `load`, for fields and files; or either replay stores observations once or
        rows on the host, or it is told of feedback with new transitions.
      ImportError: safetensors is not installed.
    """
    path = Path(path)
    state = replay.init(key, example)
    _check_takes_rows(replay, state)
    with _opened(path) as (file, header):
        return _filled(replay, state, _stored_ring(path, file, header, example))


def _check_takes_rows(replay: Replay, state: ReplayState) -> None:
    wanted = replay.requires.feedback_of_new
    if wanted:
        raise ValueError(
            f"this replay method reads {', '.join(sorted(wanted))} of new transitions, which no "
            "file holds: choose options that do without"
        )
    if state.ring.frames is not None or state.ring.split is not None:
        raise ValueError(
            "rows are loaded into a replay that stores transitions as they are: make it with "
            "storage=Transitions()"
        )


def _stored_ring(path: Path, file: Any, header: dict[str, Any], example: Row) -> Ring:
    """Read the ring of a saved replay, whatever its sizes and sampler were."""
    _check_format(path, header)
    arrays = [".ring.words", ".ring.rows_added"]
    if {x for x in header["leaves"] if x.startswith(".ring.")} != set(arrays):
        raise ValueError(
            f"{path} holds a replay that stores observations once, or on the host: load it into "
            f"one with num_envs {header['num_envs']}"
        )
    number = jax.ShapeDtypeStruct((), jnp.uint32), jax.ShapeDtypeStruct((), jnp.int32)
    words, clock = (
        array_file.read(file, header, name, like, str(path))
        for name, like in zip(arrays, number, strict=True)
    )
    like = jax.eval_shape(lambda: ring_.init(example, len(words), header["num_envs"]))
    _check_row(path, header, _fields(like))
    return like.replace(words=words, rows_added=clock)


def _filled(replay: Replay, state: ReplayState, ring: Ring) -> ReplayState:
    """Add what a ring holds to a replay's new state."""
    stored = int(ring_.size(ring)) // ring.num_envs
    each = min(stored, max(1, replay.capacity // ring.num_envs))  # rows of an environment
    lanes = jnp.arange(ring.num_envs, dtype=jnp.int32)[:, None]
    age = jnp.arange(each, dtype=jnp.int32)[::-1]
    slots = ring_.recent(ring, age * ring.num_envs + lanes).ravel()
    over = jnp.broadcast_to(age == 0, (ring.num_envs, each)).ravel()
    steps = slots.size // replay.num_envs
    if not steps:
        return state
    left = slots.size - steps * replay.num_envs
    slots, over = (x[left:].reshape(replay.num_envs, steps).T for x in (slots, over))
    rollout = ring_.gather(ring, slots)
    over = over.at[-1].set(True)
    begins = jnp.roll(over, 1, axis=0)
    for name, marks in {"first": begins, "last": over}.items():
        if fields.has(rollout, name):
            told = fields.get(rollout, name)
            marked = jnp.where(marks, jnp.ones_like(told), told)
            rollout = fields.replace(rollout, **{name: marked})
    return replay.end_episodes(jax.jit(replay.add_rollout)(state, rollout))


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
    if fits and ring.frames is None:  # else the layout does not say what a row was
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
    check_writable(path, "give the name of a file")
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
    sizes = {"capacity": replay.capacity, "num_envs": replay.num_envs}
    return {**sizes, "row": _fields(state.ring)}


def _fields(ring: Ring) -> list[list[str]]:
    """Return name, and dtype and shape, of every field of a row."""
    return [
        [field.name, f"{field.dtype}[{','.join(map(str, field.shape))}]"]
        for field in ring_.row_layout(ring).fields
    ]


def _check_same(
    path: Path, header: dict[str, Any], layout: dict[str, Any], like: ReplayState
) -> None:
    _check_format(path, header)
    for name in ("capacity", "num_envs"):
        if header[name] != layout[name]:
            raise ValueError(
                f"{path} holds a replay with {name} {header[name]}, not {layout[name]}: make the "
                f"replay with {name}={header[name]}, or load its rows alone (jaxreplay.load_rows)"
            )
    _check_row(path, header, layout["row"])
    advice = "make the replay with the sampler and the options that it was saved with"
    wanted = _described(like)
    saved = array_file.stated(header, wanted)
    _check_equal(path, saved, wanted, "array", "this replay", advice)


def _check_format(path: Path, header: dict[str, Any]) -> None:
    if header["format"] != FORMAT:
        raise ValueError(
            f"{path} is of format {header['format']} (jaxreplay "
            f"{printable(header.get('version'))}), and this version, {VERSION}, reads {FORMAT}: "
            "load it with the version that wrote it"
        )


def _check_row(path: Path, header: dict[str, Any], row: list[list[str]]) -> None:
    advice = "give the example that the replay was made for"
    saved = header["row"]
    if not all(isinstance(pair, list) and [*map(type, pair)] == [str, str] for pair in saved):
        raise Damaged(f"{path} is damaged (its header has no row that is names and dtypes)")
    _check_equal(path, dict(saved), dict(row), "field", "this example", advice)
    if saved != row:
        raise ValueError(f"{path} holds its fields in another order than this example: {advice}")


def _check_equal(
    path: Path, saved: dict[str, str], own: dict[str, str], what: str, who: str, advice: str
) -> None:
    for name in [*own, *(name for name in saved if name not in own)]:
        if saved.get(name) != own.get(name):
            advice = array_file.advice(saved.get(name), own.get(name), advice)
            held, shown = printable(saved.get(name, "nothing")), printable(name)
            raise ValueError(
                f"{path} holds {held} for {what} {shown}, and {who} has "
                f"{own.get(name, 'nothing')}: {advice}"
            )
