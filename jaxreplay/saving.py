"""Saving and loading replays as safetensors files, bit for bit and on any device.

A loaded replay draws the same batches as the saved one. The file describes its contents: `load`
requires a replay with the same sizes, fields and sampler state, and `load_rows` only the fields.
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

from jaxreplay import ring as ring_
from jaxreplay._internal import array_file as array_file  # exported for other kinds of files
from jaxreplay._internal import untrusted as untrusted
from jaxreplay._internal.array_file import Damaged
from jaxreplay._internal.packages import VERSION
from jaxreplay._internal.untrusted import check_writable, printable
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Tree, get_field, has_field, replace_fields

FORMAT = 1
_TAG = "jaxreplay.replay"
_HEADER = {"capacity": int, "num_envs": int, "row": list}


def save(
    replay: Replay, state: ReplayState, path: str | os.PathLike, *, overwrite: bool = False
) -> Path:
    """Write the state of a replay to a file, atomically.

    The file does not include arrays that the caller keeps on the host. Save vmapped states one by
    one: `jax.tree.map(lambda x: x[seed], state)`.

    Args:
      replay: the replay that made the state.
      state: a concrete state, outside of `jit`.
      path: the file, in an existing folder. A replay that was saved there before is replaced.
      overwrite: replace any other regular file, too.

    Returns:
      The path.

    Raises:
      ValueError: another file, a link or a folder has that name, the folder does not exist, or the
        state does not belong to the replay.
      ImportError: safetensors is not installed.
      OSError: the file can't be written.

    Example:
      path = save(replay, state, "replay.safetensors")
      state = load(replay, path, example)
    """
    path = Path(path)
    _check_state(replay, state)
    if not path.parent.is_dir():
        raise ValueError(f"folder {path.parent} does not exist: make it first")
    check_writable(path, "give the name of a file")
    if path.exists() and not overwrite and not _is_saved_replay(path):
        raise ValueError(
            f"{path} exists and is not a saved replay: give another name, or overwrite=True"
        )
    sizes = {"capacity": replay.capacity, "num_envs": replay.num_envs}
    about = {"format": FORMAT, "version": VERSION, **sizes, "row": _fields(state.ring)}
    temporary = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=path.parent))
    try:
        array_file.write(state, path, temporary / path.name, _TAG, about)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    array_file.publish(path.parent)
    return path


def load(replay: Replay, path: str | os.PathLike, example: Tree) -> ReplayState:
    """Return the state of a saved replay.

    The file has neither the name nor the options of the sampler (alpha, beta): make the replay with
    the same ones. Samplers with equal state arrays, such as PER and LAP, can't be distinguished.

    Args:
      replay: a replay with the same sizes, and a sampler with the same state arrays.
      path: the file.
      example: one unbatched transition, as for `replay.init`.

    Raises:
      ValueError: one line: the first difference in format, sizes, fields of a transition or arrays
        of the sampler; or the file does not exist or is not a saved replay. `Damaged`, a subclass,
        if checksums do not match.
      ImportError: safetensors is not installed.
    """
    path = Path(path)
    like = jax.eval_shape(replay.init, jax.random.key(0), example)
    with _open(path) as (file, header):
        _check_same(path, header, replay, like)
        leaves = [
            array_file.read(file, header, jax.tree_util.keystr(place), leaf, str(path))
            for place, leaf in array_file.flatten(like)
        ]
    return array_file.unflatten(like, leaves)


def load_rows(replay: Replay, path: str | os.PathLike, example: Tree, key: Array) -> ReplayState:
    """Return a new state of a replay, filled with the transitions of a saved one.

    Number of environments, capacity and sampler may differ. The transitions are added as new ones,
    without the sampler's state (priorities, parameters). Those of all saved environments, each in
    the order of time, are concatenated and split into equal parts, one for each environment of the
    replay. Episodes end where an environment or a part ends. Dropped are the oldest transitions of
    each environment if the capacity is smaller, and the first ones if the split leaves a remainder.
    In a full replay, the transitions of the first environment are overwritten first.

    Args:
      replay: a replay without feedback about new transitions, and with `storage=Transitions()`.
      path: the file.
      example: one unbatched transition, as for `replay.init`.
      key: PRNG key, as for `replay.init`.

    Raises:
      ValueError: as `load` for the file and its fields; the replay requires feedback about new
        transitions; or one of the replays stores observations once or transitions on the host.
      ImportError: safetensors is not installed.
    """
    path = Path(path)
    state = replay.init(key, example)
    if names := replay.requires.feedback_of_new:
        raise ValueError(
            f"this replay method reads {', '.join(sorted(names))} of new transitions, and files do "
            "not have it: choose options that do without"
        )
    if state.ring.frames is not None or state.ring.split is not None:
        raise ValueError(
            "load_rows needs a replay that stores whole transitions on the device: make it with "
            "storage=Transitions()"
        )
    with _open(path) as (file, header):
        return _add_rows(replay, state, _read_ring(path, file, header, example))


@contextlib.contextmanager
def _open(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a saved replay; yield the file and its header."""
    if not path.is_file():
        raise ValueError(f"file {path} does not exist: give one that jaxreplay.save has written")
    with array_file.open_file(path) as file:
        text = array_file.tagged(file, _TAG)
        if text is None:
            raise ValueError(
                f"{path} is not a saved replay: give a file that jaxreplay.save has written"
            )
        header = array_file.parse(text, str(path), FORMAT, _HEADER)
        if header["format"] != FORMAT:
            raise ValueError(
                f"{path} has format {header['format']} (jaxreplay "
                f"{printable(header.get('version'))}), and this version, {VERSION}, reads {FORMAT}:"
                " load it with the version that wrote it"
            )
        yield file, header


def _read_ring(path: Path, file: Any, header: dict[str, Any], example: Tree) -> Ring:
    """Return the ring of a saved replay of any size and with any sampler."""
    names = [".ring.words", ".ring.steps_added"]
    if {x for x in header["leaves"] if x.startswith(".ring.")} != set(names):
        raise ValueError(
            f"{path} is a replay that stores observations once, or transitions on the host: load "
            f"it into a replay with the same storage and num_envs {header['num_envs']}"
        )
    kinds = jax.ShapeDtypeStruct((), jnp.uint32), jax.ShapeDtypeStruct((), jnp.int32)
    words, steps_added = (
        array_file.read(file, header, name, kind, str(path))
        for name, kind in zip(names, kinds, strict=True)
    )
    like = jax.eval_shape(lambda: ring_.init(example, len(words), header["num_envs"]))
    _check_fields(path, header, _fields(like))
    return like.replace(words=words, steps_added=steps_added)


def _add_rows(replay: Replay, state: ReplayState, ring: Ring) -> ReplayState:
    """Add the transitions of a ring to the new state of a replay."""
    stored = int(ring_.size(ring)) // ring.num_envs
    each = min(stored, max(1, replay.capacity // ring.num_envs))  # steps of an environment
    envs = jnp.arange(ring.num_envs, dtype=jnp.int32)[:, None]
    age = jnp.arange(each, dtype=jnp.int32)[::-1]
    slots = ring_.recent(ring, age * ring.num_envs + envs).ravel()
    ends = jnp.broadcast_to(age == 0, (ring.num_envs, each)).ravel()
    steps = slots.size // replay.num_envs
    if not steps:
        return state
    rest = slots.size - steps * replay.num_envs
    slots, ends = (x[rest:].reshape(replay.num_envs, steps).T for x in (slots, ends))
    rollout = ring_.gather(ring, slots)
    ends = ends.at[-1].set(True)
    for name, marks in {"first": jnp.roll(ends, 1, axis=0), "last": ends}.items():
        if has_field(rollout, name):
            flags = get_field(rollout, name)
            flags = jnp.where(marks, jnp.ones_like(flags), flags)
            rollout = replace_fields(rollout, **{name: flags})
    return replay.end_episodes(jax.jit(replay.add_rollout)(state, rollout))


def _check_state(replay: Replay, state: ReplayState) -> None:
    """Validate that `load` can return the state to this replay."""
    ring = state.ring
    if isinstance(ring.steps_added, Tracer):
        raise ValueError("save is called inside of jit: call it with a concrete state")
    if ring.steps_added.ndim:
        raise ValueError(
            "the state is vmapped: save one at a time, jax.tree.map(lambda x: x[seed], state)"
        )
    fits = ring.num_envs == replay.num_envs and ring.capacity % replay.capacity == 0
    if fits and ring.frames is None:  # the layout of frames does not determine the example
        layout = ring_.row_layout(ring)
        row = [jnp.zeros(field.shape, field.dtype) for field in layout.fields]
        example = jax.tree.unflatten(layout.treedef, row)
        fits = _describe(jax.eval_shape(replay.init, jax.random.key(0), example)) == _describe(
            state
        )
    if not fits:
        raise ValueError(
            f"the state is not of this replay, which has capacity {replay.capacity} and "
            f"{replay.num_envs} environments: give the replay that made it"
        )


def _describe(state: ReplayState) -> dict[str, str]:
    """Return dtype and shape of every array, by its path in the state."""
    places = array_file.flatten(state)
    return {jax.tree_util.keystr(place): array_file.describe(leaf) for place, leaf in places}


def _is_saved_replay(path: Path) -> bool:
    try:
        with array_file.open_file(path) as file:
            return array_file.tagged(file, _TAG) is not None
    except (Damaged, OSError):
        return False


def _fields(ring: Ring) -> list[list[str]]:
    """Return the name, and the dtype with shape, of every field of a transition."""
    return [
        [field.name, f"{field.dtype}[{','.join(map(str, field.shape))}]"]
        for field in ring_.row_layout(ring).fields
    ]


def _check_same(path: Path, header: dict[str, Any], replay: Replay, like: ReplayState) -> None:
    """Validate sizes, fields and arrays of a file against a replay and its state."""
    for name, own in {"capacity": replay.capacity, "num_envs": replay.num_envs}.items():
        if header[name] != own:
            raise ValueError(
                f"{path} is a replay with {name} {header[name]}, not {own}: make the replay with "
                f"{name}={header[name]}, or load its transitions alone (jaxreplay.load_rows)"
            )
    _check_fields(path, header, _fields(like.ring))
    advice = "make the replay with the sampler and the options of the saved one"
    own = _describe(like)
    _check_equal(path, array_file.stated(header, own), own, "array", "this replay", advice)


def _check_fields(path: Path, header: dict[str, Any], fields: list[list[str]]) -> None:
    saved = header["row"]
    if not all(isinstance(pair, list) and [*map(type, pair)] == [str, str] for pair in saved):
        raise Damaged(f"{path} is damaged (row of its header is not a list of names and dtypes)")
    advice = "give the example of the saved replay"
    _check_equal(path, dict(saved), dict(fields), "field", "this example", advice)
    if saved != fields:
        raise ValueError(f"{path} has its fields in another order than this example: {advice}")


def _check_equal(
    path: Path, saved: dict[str, str], own: dict[str, str], kind: str, owner: str, advice: str
) -> None:
    """Raise ValueError with the first difference between two mappings of names to dtypes."""
    for name in [*own, *(name for name in saved if name not in own)]:
        if saved.get(name) != own.get(name):
            advice = array_file.advice(saved.get(name), own.get(name), advice)
            raise ValueError(
                f"{path} has {printable(saved.get(name, 'nothing'))} for {kind} {printable(name)}, "
                f"and {owner} has {own.get(name, 'nothing')}: {advice}"
            )
