"""Saving and loading replays as safetensors files, with bitwise exact contents on any device.

A loaded replay draws the same batches as the saved replay. `load` checks that sizes, fields and
sampler arrays match, and `load_rows` checks only the fields.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreplay import ring as ring_
from jaxreplay._internal import array_file as array_file  # exported for other file formats
from jaxreplay._internal import untrusted as untrusted
from jaxreplay._internal.arguments import zero_based
from jaxreplay._internal.array_file import ArrayFile, Damaged
from jaxreplay._internal.packages import VERSION
from jaxreplay._internal.untrusted import check_writable, printable
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.ring import Ring
from jaxreplay.storage import FrameRing
from jaxreplay.types import Array, Tree, get_field, has_field, replace_fields

FORMAT = 1
_TAG = "jaxreplay.replay"
_STEPS = jax.ShapeDtypeStruct((), jnp.int32)
_REMEDY = "use a file written by jaxreplay.save"
_HEADER = {"capacity": int, "num_envs": int, "row": list}


def save(
    replay: Replay, state: ReplayState, path: str | os.PathLike, *, overwrite: bool = False
) -> Path:
    """Atomically write the state of a replay to a file.

    Save each element of a vmapped state separately, selected by
    `jax.tree.map(lambda x: x[seed], state)`.

    Args:
      replay: the replay that created the state.
      state: a concrete state, outside of `jit`.
      path: file name in an existing folder. A previously saved replay is replaced.
      overwrite: whether to replace other regular files as well.

    Returns:
      The path as a `Path`.

    Raises:
      ValueError: If `path` is a link, a folder, or (unless `overwrite`) a file other than a saved
        replay, if the parent folder does not exist, or if `replay` did not create the state or is a
        mixture.
      ImportError: If safetensors is not installed.
      OSError: If the file can't be written.

    Example:
      path = save(replay, state, "replay.safetensors")
      state = load(replay, path, example)
    """
    path = Path(path)
    _check_state(replay, state)
    if not path.parent.is_dir():
        raise ValueError(f"folder {path.parent} does not exist: create it first")
    check_writable(path, "use the name of a file")
    if path.exists() and not overwrite and not _is_saved_replay(path):
        raise ValueError(
            f"{path} exists and is not a saved replay: use another name, or overwrite=True"
        )
    sizes = {"capacity": replay.capacity, "num_envs": replay.num_envs}
    about = {"format": FORMAT, "version": VERSION, **sizes, "row": _fields(state.ring)}
    temporary = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=path.parent))
    try:
        array_file.write(state, path, temporary / path.name, _TAG, about)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    array_file.flush(path.parent)
    return path


def load(replay: Replay, path: str | os.PathLike, example: Tree) -> ReplayState:
    """Return the state of a saved replay.

    The file does not contain the sampler's name and options, such as alpha and beta. Create
    `replay` with the same sampler and options as the saved replay. `load` cannot distinguish
    samplers whose state arrays have the same names, shapes and dtypes, such as PER and LAP.

    Args:
      replay: a replay with the sizes, sampler and options of the saved replay.
      path: path of the saved replay.
      example: one unbatched transition, as passed to `replay.init`.

    Raises:
      ValueError: If the file does not exist, is not a saved replay, or differs from `replay` and
        `example` in format, sizes, fields or sampler arrays.
      Damaged: If checksums do not match. `Damaged` is a subclass of ValueError.
      ImportError: If safetensors is not installed.
    """
    path = Path(path)
    like = jax.eval_shape(replay.init, jax.random.key(0), example)
    with _open(path) as saved:
        _check_same(path, saved.header, replay, like)
        return saved.read(like)


def load_rows(
    replay: Replay, path: str | os.PathLike, example: Tree, key: Array,
    actions: range | None = None,
) -> ReplayState:  # fmt: skip
    """Return a new replay state filled with the transitions of a saved replay.

    The number of environments, the capacity and the sampler may differ. Transitions are added as
    new transitions; the sampler's state (priorities, parameters) is not loaded. The transitions of
    each saved environment are ordered chronologically, concatenated, and split into equal parts,
    one for each environment of `replay`. Episodes are truncated at the ends of saved environments
    and parts. If `replay` has a smaller capacity, the oldest transitions of each saved environment
    are dropped. If the split leaves a remainder, the first transitions are dropped. When the replay
    is full, transitions of the first saved environment are overwritten first.

    Args:
      replay: a replay with `storage=Transitions()` that requires no feedback such as TD errors on
        new transitions.
      path: path of the saved replay.
      example: one unbatched transition, as passed to `replay.init`.
      key: PRNG key for `replay.init`.
      actions: the n saved discrete actions in the field `action`, such as `range(2)`, which are
        stored as 0 .. n-1. None stores actions unchanged and unchecked.

    Raises:
      ValueError: If the file or its fields are invalid (see `load`), if an action is not in
        `actions`, if `replay` requires feedback on new transitions, or if the storage of either
        replay is `SharedObservations` or `Frames`.
      ImportError: If safetensors is not installed.
    """
    if names := replay.requires.feedback_of_new:
        raise ValueError(
            f"this replay method requires {', '.join(sorted(names))} for new transitions, but "
            "files contain no feedback: choose options of the method that require no feedback for "
            "new transitions"
        )
    with _open(path) as saved:
        ring = _read_ring(saved, example)
    state = replay.init(key, example)
    if type(state.ring) is not Ring:
        raise ValueError(
            "load_rows requires a replay that stores complete transitions: create it with "
            "storage=Transitions()"
        )
    return _add_rows(replay, state, ring, path, actions)


def saved_size(path: str | os.PathLike) -> int:
    """Return the number of transitions in a saved replay.

    Raises:
      ValueError: If the file is not a saved replay, or the storage of its replay is
        `SharedObservations` or `Frames`.
      ImportError: If safetensors is not installed.
    """
    with _open(path) as saved:
        steps = int(_read_steps(saved))
        return min(steps * saved.header["num_envs"], saved.header["capacity"])


def saved_digest(path: str | os.PathLike) -> str:
    """Return a digest of a saved replay, which depends on its sizes, fields and arrays.

    Only the header is read, which holds checksums of the arrays.

    Raises:
      ValueError: If the file is not a saved replay.
      ImportError: If safetensors is not installed.
    """
    with _open(path) as saved:
        return hashlib.sha256(json.dumps(saved.header).encode()).hexdigest()[:12]


def _open(path: str | os.PathLike) -> contextlib.AbstractContextManager[ArrayFile]:
    """Open a saved replay."""
    if not os.path.isfile(path):
        raise ValueError(f"file {path} does not exist: {_REMEDY}")
    return array_file.opened(Path(path), _TAG, FORMAT, _HEADER, _REMEDY)


def _read_ring(saved: ArrayFile, example: Tree) -> Ring:
    """Read the ring buffer of a saved replay, regardless of its size and sampler."""
    steps_added, header = _read_steps(saved), saved.header
    like = jax.eval_shape(lambda: ring_.init(example, header["capacity"], header["num_envs"]))
    _check_fields(saved.path, header, _fields(like))
    words = saved.read(like.words, ".ring.words")
    return like.replace(words=words, steps_added=steps_added)


def _read_steps(saved: ArrayFile) -> Array:
    """Read the step counter of a saved replay that stores complete transitions.

    Raises:
      Damaged: If the sizes contradict the arrays.
      ValueError: If the replay stores observations once.
    """
    header, names = saved.header, {".ring.words", ".ring.steps_added"}
    capacity, num_envs = header["capacity"], header["num_envs"]
    if {x for x in header["leaves"] if x.startswith(".ring.")} != names:
        raise ValueError(
            f"{saved.path} contains a replay that stores observations once: load it into a replay "
            f"with the same storage and num_envs {num_envs}"
        )
    rows, steps = saved.shape(".ring.words"), saved.read(_STEPS, ".ring.steps_added")
    # Rows without words would take no space in the file, and any amount of it in memory.
    fits = len(rows) == 2 and rows[0] == capacity and rows[1] > 0 and steps >= 0
    if not fits or not 1 <= num_envs <= capacity or capacity % num_envs:
        raise Damaged(
            f"{saved.path} is damaged (capacity {capacity}, num_envs {num_envs}, rows {list(rows)} "
            f"and {steps} steps): {_REMEDY}"
        )
    return steps


def _add_rows(
    replay: Replay,
    state: ReplayState,
    ring: Ring,
    path: str | os.PathLike,
    actions: range | None,
) -> ReplayState:
    """Add the transitions in a ring buffer to a new replay state."""
    stored = int(ring_.size(ring)) // ring.num_envs
    kept = min(stored, max(1, replay.capacity // ring.num_envs))  # steps per saved environment
    envs = jnp.arange(ring.num_envs, dtype=jnp.int32)[:, None]
    age = jnp.arange(kept, dtype=jnp.int32)[::-1]
    slots = ring_.recent(ring, age * ring.num_envs + envs).ravel()
    ends = jnp.broadcast_to(age == 0, (ring.num_envs, kept)).ravel()
    steps = slots.size // replay.num_envs
    if not steps:
        return state
    rest = slots.size - steps * replay.num_envs
    slots, ends = (x[rest:].reshape(replay.num_envs, steps).T for x in (slots, ends))
    rollout = ring_.gather(ring, slots)
    if actions is not None:
        saved = get_field(rollout, "action")
        numbered = zero_based(f"actions in {path}", saved, actions)
        rollout = replace_fields(rollout, action=numbered.astype(saved.dtype))
    ends = ends.at[-1].set(True)
    for name, marks in {"first": jnp.roll(ends, 1, axis=0), "last": ends}.items():
        if has_field(rollout, name):
            flags = get_field(rollout, name)
            flags = jnp.where(marks, jnp.ones_like(flags), flags)
            rollout = replace_fields(rollout, **{name: flags})
    return replay.end_episodes(jax.jit(replay.add_rollout)(state, rollout))


def _check_state(replay: Replay, state: ReplayState) -> None:
    """Raise ValueError unless `replay` could load `state` from a file."""
    if not isinstance(replay, Replay):
        raise ValueError(
            f"replay must be a Replay, got {type(replay).__name__}: save the replays of a mixture "
            "separately, as in save(replay.first, state.first, path)"
        )
    ring = state.ring
    if isinstance(ring.steps_added, Tracer):
        raise ValueError("save does not support jit: call it outside of jit with a concrete state")
    if ring.steps_added.ndim:
        raise ValueError(
            "save got vmapped states, expected one state: save each state separately, as in "
            "save(replay, jax.tree.map(lambda x: x[seed], state), path)"
        )
    fits = ring.num_envs == replay.num_envs and ring.capacity % replay.capacity == 0
    # The layout of a `FrameRing` does not determine the example.
    if fits and not isinstance(ring, FrameRing):
        row = [jnp.zeros(field.shape, field.dtype) for field in ring.layout.fields]
        example = jax.tree.unflatten(ring.layout.treedef, row)
        like = jax.eval_shape(replay.init, jax.random.key(0), example)
        fits = _describe(like) == _describe(state)
    if not fits:
        raise ValueError(
            f"the state does not belong to this replay with capacity {replay.capacity} and "
            f"num_envs {replay.num_envs}: pass the replay that created the state"
        )


def _describe(state: ReplayState) -> dict[str, str]:
    """Return the dtype and shape of each array in the state, by path."""
    leaves = array_file.flatten(state)
    return {jax.tree_util.keystr(path): array_file.describe(leaf) for path, leaf in leaves}


def _is_saved_replay(path: Path) -> bool:
    try:
        with _open(path):
            return True
    except ValueError:
        return False


def _fields(ring: Ring) -> list[list[str]]:
    """Return `[name, dtype[shape]]` for every transition field."""
    return [
        [field.name, f"{field.dtype}[{','.join(map(str, field.shape))}]"]
        for field in ring.layout.fields
    ]


def _check_same(path: Path, header: dict[str, Any], replay: Replay, like: ReplayState) -> None:
    """Raise ValueError unless sizes, fields and arrays of a file match a replay and its state."""
    for name, size in {"capacity": replay.capacity, "num_envs": replay.num_envs}.items():
        if header[name] != size:
            raise ValueError(
                f"{path} has {name} {header[name]}, expected {size}: create the replay with {name}="
                f"{header[name]}, or load only its transitions with jaxreplay.load_rows"
            )
    _check_fields(path, header, _fields(like.ring))
    advice = "create the replay with the same sampler and options as the saved replay"
    _check_equal(path, header["leaves"], _describe(like), "array", "this replay", advice)


def _check_fields(path: Path, header: dict[str, Any], fields: list[list[str]]) -> None:
    saved = header["row"]
    if not all(isinstance(pair, list) and [*map(type, pair)] == [str, str] for pair in saved):
        raise Damaged(f"{path} is damaged (`row` is not a list of names and dtypes): {_REMEDY}")
    advice = "pass the example of the saved replay"
    _check_equal(path, dict(saved), dict(fields), "field", "this example", advice)
    if saved != fields:
        raise ValueError(f"{path} and this example have different field orders: {advice}")


def _check_equal(
    path: Path, saved: dict[str, str], expected: dict[str, str], kind: str, owner: str, advice: str
) -> None:
    """Raise ValueError if two mappings from names to dtypes and shapes differ."""
    for name in [*expected, *(name for name in saved if name not in expected)]:
        if saved.get(name) != expected.get(name):
            advice = array_file.advice(saved.get(name), expected.get(name), advice)
            raise ValueError(
                f"{path} has {printable(saved.get(name, 'nothing'))} for {kind} {printable(name)}, "
                f"but {owner} has {expected.get(name, 'nothing')}: {advice}"
            )
