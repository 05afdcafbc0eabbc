"""Atomic checkpoints of a pytree of arrays, one safetensors file each, without pickle.

Why safetensors: it is one dependency-free wheel, and a file holds arrays and metadata together, so
one rename publishes a checkpoint. Orbax, measured beside it (84 MB of replay and 200 small leaves
on two CPU cores), takes at least twice as long to save and to load, writes a folder of 18 files
without fsync, and refuses arrays of size zero.
"""

import contextlib
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

Tree = Any  # any pytree of arrays, typed PRNG keys and Python scalars
_NAME = re.compile(r"step_(\d+)\.safetensors")
FORMAT = 2  # 1 had no checksums, and did not say what it was


class Damaged(ValueError):
    """A checkpoint's bytes are not those that were written."""


def save(folder: str | os.PathLike, step: int, state: Tree, meta: dict, keep: int = 2) -> Path:
    """Write one checkpoint and delete all but the newest `keep`.

    The file appears under its name only when it is complete and on disk: a process that is killed
    at any moment leaves the checkpoints before it untouched.

    Args:
      folder: where checkpoints lie; created if it does not exist.
      step: agent steps done, the checkpoint's name.
      state: pytree of arrays (any JAX dtype), typed PRNG keys and Python scalars.
      meta: JSON-able dict to store beside the state.
      keep: how many checkpoints to keep, at least 1.

    Raises:
      ValueError: if the folder holds a checkpoint of a later step, or `keep` is below 1.
    """
    if keep < 1:
        raise ValueError(f"keep={keep} would delete the checkpoint just written: use 1 or more")
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in _flatten(state)}
    arrays = {name: _to_numpy(leaf) for name, leaf in leaves.items()}
    header = {
        "format": FORMAT,
        "meta": meta,
        "leaves": {name: _describe(leaf) for name, leaf in leaves.items()},
        "crc32": {name: _checksum(array) for name, array in arrays.items()},
    }
    text = json.dumps(header)
    # One entry: safetensors writes several in an order that changes from process to process.
    metadata = {"jaxreplay": f"{zlib.crc32(text.encode()):08x} {text}"}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    newest = latest(folder)
    if newest is not None and newest > step:
        raise ValueError(f"{folder} holds a later checkpoint (step {newest}): use another folder")
    # safetensors itself writes a temporary file first, so leftovers are kept in one folder.
    unfinished = folder / "unfinished"
    unfinished.mkdir(exist_ok=True)
    for left in (*unfinished.glob("step_*.safetensors"), *unfinished.glob(".tmp*")):
        left.unlink()
    path = _path(folder, step)
    temporary = unfinished / path.name
    try:
        save_file(arrays, temporary, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"{path} can't be written: {error}") from None
    # safetensors lets nobody else read it: whoever may look into the folder may do so here.
    temporary.chmod(folder.stat().st_mode & 0o666)
    _fsync(temporary)
    os.replace(temporary, path)
    with contextlib.suppress(OSError):  # holds what is not ours
        unfinished.rmdir()
    _fsync(folder)
    for old in _steps(folder)[:-keep]:
        _path(folder, old).unlink()
    return path


def latest(folder: str | os.PathLike, before: int | None = None) -> int | None:
    """Return the step of the newest checkpoint (before a step) in `folder`, None if none is."""
    steps = _steps(Path(folder))
    return max((step for step in steps if before is None or step < before), default=None)


def read_meta(folder: str | os.PathLike, step: int | None = None) -> dict:
    """Return the `meta` of a checkpoint (the newest if `step` is None) without reading arrays.

    Raises:
      ValueError: if there is no such checkpoint, or it is of another version; Damaged, if what is
        read is not what was written.
    """
    with _open(folder, step) as file:
        return _header(file, folder)["meta"]


def set_aside(folder: str | os.PathLike, step: int) -> Path:
    """Give a damaged checkpoint a name by which it is none any more; return its path."""
    path = _path(Path(folder), step)
    return path.rename(path.with_suffix(".damaged"))


def load(
    folder: str | os.PathLike, like_state: Tree, step: int | None = None, part: str = ""
) -> Tree:
    """Return the state of a checkpoint (the newest if `step` is None), bit for bit.

    Args:
      folder: where checkpoints lie.
      like_state: a state of the same structure, shapes and dtypes; only these are read, so
        `jax.eval_shape` of the function that makes the state will do.
      step: which checkpoint.
      part: read only the part of the state under this path, such as `.agent`; `like_state` is then
        that part.

    Raises:
      ValueError: if there is no such checkpoint, it is of another version, or a leaf differs in
        path, shape or dtype (naming the first); Damaged, if its bytes are not those written.
    """
    with _open(folder, step) as file:
        header = _header(file, folder)
        saved = {name: leaf for name, leaf in header["leaves"].items() if _is_in(part, name)}
        likes = {part + jax.tree_util.keystr(path): leaf for path, leaf in _flatten(like_state)}
        _check_same_leaves(saved, {name: _describe(leaf) for name, leaf in likes.items()}, folder)
        leaves = [
            _restore(_read(file, name, header["crc32"][name], folder), like)
            for name, like in likes.items()
        ]
    return jax.tree.unflatten(jax.tree.structure(like_state), leaves)


def check_same_config(saved: dict, now: dict, folder: str | os.PathLike) -> None:
    """Refuse to continue from a checkpoint that was made with other options.

    Args:
      saved: the nested, JSON-able configuration that the checkpoint holds.
      now: the configuration of this run.
      folder: the run's folder, for the message.

    Raises:
      ValueError: the two differ; names the first such field, by its dotted path, and both values.
    """
    before, after = _dotted(_as_json(saved)), _dotted(_as_json(now))
    for name in differing_options(saved, now):
        made = f"with {name}={before[name]}" if name in before else f"without {name}"
        has = f"has {after[name]}" if name in after else "has no such option"
        raise ValueError(
            f"checkpoint in {folder} was made {made}, this run {has}: "
            "use the same options, or another --out"
        )


def differing_options(saved: dict, now: dict) -> list[str]:
    """Return the dotted paths of what two nested, JSON-able configurations differ in."""
    before, after = _dotted(_as_json(saved)), _dotted(_as_json(now))
    names = [*before, *(name for name in after if name not in before)]
    both = before.keys() & after.keys()
    return [name for name in names if name not in both or before[name] != after[name]]


def _header(file: Any, folder: Any) -> dict[str, Any]:
    """Return what was written beside the arrays."""
    written = (file.metadata() or {}).get("jaxreplay")
    if written is None:
        raise ValueError(f"{folder} holds a safetensors file that is no checkpoint of ours")
    checksum, _, text = written.partition(" ")
    if written.startswith('{"meta"'):
        raise ValueError(
            f"the checkpoint in {folder} is of format 1 (jaxreplay 0.1): resume it with that "
            "version, or start a new run"
        )
    if checksum != f"{zlib.crc32(text.encode()):08x}":
        raise Damaged(f"the checkpoint in {folder} is damaged (its header)")
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise ValueError(
            f"the checkpoint in {folder} is of format {header['format']}, this version reads "
            f"{FORMAT}: resume it with the version that wrote it, or start a new run"
        )
    return header


def _read(file: Any, name: str, checksum: int, folder: Any) -> np.ndarray:
    """Read an array, and see that it is what was written."""
    try:
        array = file.get_tensor(name)
    except (SafetensorError, ValueError, TypeError) as error:
        raise Damaged(f"the checkpoint in {folder} is damaged ({name}: {error})") from None
    if _checksum(array) != checksum:
        raise Damaged(f"the checkpoint in {folder} is damaged ({name or 'its one array'})")
    return array


def _checksum(array: np.ndarray) -> int:
    """Return a checksum of an array's bytes, dtype and shape."""
    about = zlib.crc32(f"{array.dtype.str}{array.shape}".encode())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8), about)


def _flatten(tree: Tree) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _describe(leaf: Any) -> str:
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _is_in(part: str, name: str) -> bool:
    return name.startswith(part) and (not part or name[len(part) :][:1] in ("", ".", "["))


def _to_numpy(leaf: Any) -> np.ndarray:
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf, order="C")
    # Extension dtypes (bfloat16, float8) are stored as unsigned integers of the same width.
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array


def _restore(array: np.ndarray, like: Any) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=_key_impl(like))
    if not hasattr(like, "dtype"):
        return array.item()
    array = array.view(like.dtype)
    if isinstance(like, np.generic):
        return array[()]
    return array if isinstance(like, np.ndarray) else jnp.asarray(array)


def _key_impl(like: Any) -> Any:
    if isinstance(like, jax.Array):
        return jax.random.key_impl(like)
    # The only public way from a ShapeDtypeStruct to its implementation is a key of its dtype.
    return jax.random.key_impl(jnp.empty((), like.dtype))


def _check_same_leaves(saved: dict[str, str], now: dict[str, str], folder: Any) -> None:
    if saved == now:
        return
    for name in [*now, *(name for name in saved if name not in now)]:
        if saved.get(name) != now.get(name):
            raise ValueError(
                f"checkpoint in {folder} holds {saved.get(name, 'nothing')} for leaf {name or '.'}"
                f", this run needs {now.get(name, 'nothing')}: resume with the options and the "
                "code version of that run, or use another --out"
            )


def _as_json(config: dict) -> dict:
    return json.loads(json.dumps(config))


def _dotted(config: dict, prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _dotted(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _path(folder: Path, step: int) -> Path:
    return folder / f"step_{step:012d}.safetensors"


def _steps(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(m[1]) for m in map(_NAME.fullmatch, os.listdir(folder)) if m)


def _open(folder: str | os.PathLike, step: int | None) -> Any:
    which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    step = latest(folder) if step is None else step
    if step is None or not _path(Path(folder), step).exists():
        raise ValueError(f"{which} in {folder}: nothing to resume, start the run without --resume")
    path = _path(Path(folder), step)
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, UnicodeDecodeError, ValueError) as error:
        raise Damaged(f"{path} is damaged ({error})") from None


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
