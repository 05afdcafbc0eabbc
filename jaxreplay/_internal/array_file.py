"""Exact, checksummed and atomic storage of array pytrees in safetensors files.

A file contains arrays and a JSON header with the caller's entries, without pickle. A single rename
publishes the file. The checksum of each array covers its bytes, dtype and shape.

A sum tree is stored as its priorities (tree leaves), because the number of inner nodes depends on
the device. `unflatten` rebuilds the tree for the current device; the result equals a tree that
received the same writes on this device.
"""

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import sum_tree
from jaxreplay._internal import packages, untrusted
from jaxreplay.sum_tree import SumTree
from jaxreplay.types import Tree


class Damaged(ValueError):
    """The contents of a file have changed since the file was written."""


class _Leaves(NamedTuple):
    """The priorities (leaves) of a sum tree, the only part that is stored."""

    leaves: Any  # [..., C] float32


def write(tree: Tree, path: Path, temporary: Path, tag: str, about: dict[str, Any]) -> None:
    """Write a pytree of arrays, typed PRNG keys and Python scalars to `path`, and replace any file.

    The write is atomic: a file at `temporary` is complete and on disk before it is renamed to
    `path`. `temporary` must be on the same file system, preferably in an empty folder, because
    safetensors creates another file next to it. `tag` identifies the program that writes the file,
    and `about` contains JSON-serialisable header entries.

    Raises:
      ImportError: If safetensors is not installed.
      OSError: If the file can't be written.
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
    # Use a single entry, because safetensors orders several entries differently in each process.
    metadata = {tag: f"{zlib.crc32(text.encode()):08x} {text}"}
    try:
        safetensors.numpy.save_file(arrays, temporary, metadata=metadata)
    except safetensors.SafetensorError as error:
        raise OSError(f"{path} can't be written: {error}") from None
    # safetensors creates a file that only the owner can read: apply the folder's permissions.
    temporary.chmod(path.parent.stat().st_mode & 0o666)
    flush(temporary)
    os.replace(temporary, path)


def flush(path: Path) -> None:
    """Flush a file to disk, or a folder after files in it have been renamed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_file(path: Path) -> Any:
    """Open a file for `read_tag` and `read`; the result is a context manager.

    Raises:
      ImportError: If safetensors is not installed.
      Damaged: If the file is not in safetensors format or is truncated.
    """
    safetensors = _safetensors()
    if not untrusted.is_regular(path):
        raise Damaged(f"{path} is not a regular file")
    try:
        return safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, UnicodeDecodeError, ValueError) as error:
        raise Damaged(f"{path} is damaged ({untrusted.printable(error)})") from None


def read_tag(file: Any, tag: str) -> str | None:
    """Return the header text stored under a tag, or None if the file lacks the tag."""
    return (file.metadata() or {}).get(tag)


def parse(written: str, what: str, known: int, about: Mapping[str, type]) -> dict[str, Any]:
    """Parse a header returned by `read_tag`, and validate its entries.

    `about` maps the names of the caller's entries to types, and `what` names the file in errors.
    Headers with a format version other than `known` are returned without validation of their
    entries; the caller must reject them.

    Raises:
      Damaged: If the header has changed since it was written.
    """
    checksum, _, text = written.partition(" ")
    if checksum != f"{zlib.crc32(text.encode(errors='replace')):08x}":
        raise Damaged(f"{what} is damaged (header checksum mismatch)")
    try:
        header = untrusted.parse_json(text)
    except ValueError as error:
        raise Damaged(f"{what} is damaged ({untrusted.printable(error)})") from None
    kinds = {"format": int}
    if isinstance(header, dict) and header.get("format") == known:
        kinds |= {**about, "leaves": dict, "crc32": dict}
    for name, kind in kinds.items():
        if not isinstance(header, dict) or type(header.get(name)) is not kind:
            raise Damaged(f"{what} is damaged (header entry {name} is not {kind.__name__})")
    return header


def read(file: Any, header: dict[str, Any], name: str, like: Any, what: str) -> Any:
    """Read the array with path `name` and convert it to the type, shape and dtype of `like`.

    Raises:
      Damaged: If the array has changed since it was written.
    """
    safetensors = _safetensors()
    try:
        array = file.get_tensor(name)
    except (safetensors.SafetensorError, ValueError, TypeError) as error:
        raise Damaged(f"{what} is damaged ({name}: {untrusted.printable(error)})") from None
    if _checksum(array) != header["crc32"].get(name):
        raise Damaged(f"{what} is damaged ({name or 'its only array'}: checksum mismatch)")
    try:
        return _restore(array, like)
    except (ValueError, TypeError) as error:  # the dtype or shape differs from the header
        raise Damaged(f"{what} is damaged ({name}: {untrusted.printable(error)})") from None


def flatten(tree: Tree) -> list[tuple[Any, Any]]:
    """Return the paths and leaves of a pytree; a sum tree contributes only its priorities."""
    return jax.tree_util.tree_flatten_with_path(_without_nodes(tree))[0]


def unflatten(like: Tree, leaves: list[Any]) -> Tree:
    """Build a pytree like `like` from arrays in the order of `flatten`; rebuild its sum trees."""
    read = jax.tree.unflatten(jax.tree.structure(_without_nodes(like)), leaves)

    def whole(like: Any, read: Any) -> Any:
        return sum_tree.rebuild_batched(like, read.leaves) if _is_tree(like) else read

    return jax.tree.map(whole, like, read, is_leaf=_is_tree)


def describe(leaf: Any) -> str:
    """Return the dtype and shape of a leaf, such as "float32[3,4]"."""
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def advice(saved: str | None, own: str | None, otherwise: str) -> str:
    """Return a remedy if the saved dtype or shape of an array differs from the expected one, `own`.

    Both are results of `describe`, or None for a missing array. `otherwise` is the remedy for
    differences that `jax_enable_x64` does not explain.
    """
    if saved is None or own is None or saved == own or _single(saved) != _single(own):
        return otherwise
    return f"set jax_enable_x64 to {saved != _single(saved)}, as when the file was saved"


def _single(described: str) -> str:
    """Replace a 64-bit dtype in a result of `describe` by its 32-bit equivalent."""
    return re.sub(r"^(u?int|float)64\b", r"\g<1>32", described)


def _safetensors() -> Any:
    packages.import_optional("safetensors.numpy", "array files")
    return packages.import_optional("safetensors", "array files")


def _is_tree(node: Any) -> bool:
    return isinstance(node, SumTree)


def _without_nodes(tree: Tree) -> Tree:
    """Replace every sum tree in a pytree of arrays or shapes by its priorities (`_Leaves`)."""

    def bare(node: Any) -> Any:
        if not _is_tree(node):
            return node
        shapes = isinstance(node.nodes, jax.ShapeDtypeStruct)
        found = jax.eval_shape(sum_tree.leaves, node) if shapes else sum_tree.leaves(node)
        return _Leaves(found)

    return jax.tree.map(bare, tree, is_leaf=_is_tree)


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
    # Creating a key is the only public way to get the PRNG implementation of a key dtype.
    return jax.random.key_impl(jnp.empty((), like.dtype))
