"""Pytrees of arrays in safetensors files: bit for bit, checked, complete or not there at all.

One file holds arrays and a header, without pickle, so that one rename publishes it. Every array
has a checksum of its bytes, dtype and shape. What the header says besides is the caller's.
"""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import untrusted
from jaxreplay._internal import optional
from jaxreplay.types import Tree


class Damaged(ValueError):
    """A file's bytes are not those that were written."""


def write(tree: Tree, path: Path, temporary: Path, tag: str, about: dict[str, Any]) -> None:
    """Write a pytree; the file appears under its name only when it is complete and on disk.

    Args:
      tree: of arrays (any JAX dtype), typed PRNG keys and Python scalars.
      path: where to; what is there is replaced.
      temporary: a path in the same file system that nobody else uses, best in a folder of its own:
        safetensors puts a file of its own beside it.
      tag: whose file it is.
      about: JSON-able, for the header.

    Raises:
      ImportError: safetensors is not installed.
      OSError: the file can't be written.
    """
    safetensors = _safetensors()
    leaves = {jax.tree_util.keystr(place): leaf for place, leaf in flatten(tree)}
    arrays = {name: _to_numpy(leaf) for name, leaf in leaves.items()}
    header = {
        **about,
        "leaves": {name: describe(leaf) for name, leaf in leaves.items()},
        "crc32": {name: _checksum(array) for name, array in arrays.items()},
    }
    text = json.dumps(header)
    # One entry: safetensors writes several in an order that changes from process to process.
    metadata = {tag: f"{zlib.crc32(text.encode()):08x} {text}"}
    try:
        safetensors.numpy.save_file(arrays, temporary, metadata=metadata)
    except safetensors.SafetensorError as error:
        raise OSError(f"{path} can't be written: {error}") from None
    # safetensors lets nobody else read it: whoever may look into the folder may do so here.
    temporary.chmod(path.parent.stat().st_mode & 0o666)
    _fsync(temporary)
    os.replace(temporary, path)


def publish(folder: Path) -> None:
    """Bring a folder's entries to the disk, after files in it were renamed."""
    _fsync(folder)


def open_file(path: Path) -> Any:
    """Open a file for `tagged` and `read`, as a context manager.

    Raises:
      ImportError: safetensors is not installed; Damaged: it is no such file, or cut short.
    """
    safetensors = _safetensors()
    if not untrusted.is_regular(path):
        raise Damaged(f"{path} is not a regular file")
    try:
        return safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, UnicodeDecodeError, ValueError) as error:
        raise Damaged(f"{path} is damaged ({untrusted.printable(error)})") from None


def tagged(file: Any, tag: str) -> str | None:
    """Return what the file's header says under a tag, None if it has none."""
    return (file.metadata() or {}).get(tag)


def parse(written: str, what: str, known: int, about: Mapping[str, type]) -> dict[str, Any]:
    """Return a header, from what is written under the tag of `what`.

    Args:
      written: the tag's text.
      what: whose header it is, for messages.
      known: the format that is understood.
      about: types of the caller's own entries. A header of another format is returned without a
        look at any entry but `format`, which the caller has to refuse.

    Raises:
      Damaged: it is not what was written.
    """
    checksum, _, text = written.partition(" ")
    if checksum != f"{zlib.crc32(text.encode(errors='replace')):08x}":
        raise Damaged(f"{what} is damaged (its header)")
    try:
        header = untrusted.parse_json(text)
    except ValueError as error:
        raise Damaged(f"{what} is damaged ({untrusted.printable(error)})") from None
    kinds = {"format": int}
    if isinstance(header, dict) and header.get("format") == known:
        kinds |= {**about, "leaves": dict, "crc32": dict}
    for name, kind in kinds.items():
        if not isinstance(header, dict) or type(header.get(name)) is not kind:
            raise Damaged(f"{what} is damaged (its header has no {name} that is {kind.__name__})")
    return header


def read(file: Any, header: dict[str, Any], name: str, like: Any, what: str) -> Any:
    """Read one leaf; `like` tells its kind: only shape and dtype are looked at.

    Raises:
      Damaged: it is not what was written.
    """
    safetensors = _safetensors()
    try:
        array = file.get_tensor(name)
    except (safetensors.SafetensorError, ValueError, TypeError) as error:
        raise Damaged(f"{what} is damaged ({name}: {untrusted.printable(error)})") from None
    if _checksum(array) != header["crc32"].get(name):
        raise Damaged(f"{what} is damaged ({name or 'its one array'})")
    try:
        return _restore(array, like)
    except (ValueError, TypeError) as error:  # of another dtype or shape than the header says
        raise Damaged(f"{what} is damaged ({name}: {untrusted.printable(error)})") from None


def flatten(tree: Tree) -> list[tuple[Any, Any]]:
    """Return the leaves of a pytree with their paths."""
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def describe(leaf: Any) -> str:
    """Return dtype and shape of a leaf, such as "float32[3,4]"."""
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _safetensors() -> Any:
    optional.imported("safetensors.numpy", "files of arrays")
    return optional.imported("safetensors", "files of arrays")


def _checksum(array: np.ndarray) -> int:
    """Return a checksum of an array's bytes, dtype and shape."""
    about = zlib.crc32(f"{array.dtype.str}{array.shape}".encode())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, about)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


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


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
