"""Pytrees of arrays in safetensors files, exact, with checksums, and written atomically.

A file contains arrays and a header with entries of the caller, without pickle, and one rename
publishes it. Every array has a checksum of its bytes, dtype and shape.

A sum tree is stored as its leaves, because the number of its nodes depends on the device.
`unflatten` builds the tree for the device in use; it equals a tree with the same history.
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
    """The contents of a file have changed since it was written."""


class _Leaves(NamedTuple):
    """The stored part of a sum tree."""

    leaves: Any  # [..., C] float32


def write(tree: Tree, path: Path, temporary: Path, tag: str, about: dict[str, Any]) -> None:
    """Write a pytree to a file that appears under its name when it is complete and on disk.

    Args:
      tree: of arrays (any JAX dtype), typed PRNG keys and Python scalars.
      path: of the file, which is replaced.
      temporary: an unused path in the same file system, best in a folder of its own: safetensors
        creates another file next to it.
      tag: identifies the program that wrote the file.
      about: JSON-able entries of the header.

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
    # One entry: safetensors writes several in an order that differs between processes.
    metadata = {tag: f"{zlib.crc32(text.encode()):08x} {text}"}
    try:
        safetensors.numpy.save_file(arrays, temporary, metadata=metadata)
    except safetensors.SafetensorError as error:
        raise OSError(f"{path} can't be written: {error}") from None
    # safetensors makes it private: give it the permissions of the folder.
    temporary.chmod(path.parent.stat().st_mode & 0o666)
    _fsync(temporary)
    os.replace(temporary, path)


def publish(folder: Path) -> None:
    """Flush a folder to the disk, after files in it were renamed."""
    _fsync(folder)


def open_file(path: Path) -> Any:
    """Return a context manager of an open file, for `tagged` and `read`.

    Raises:
      ImportError: safetensors is not installed.
      Damaged: the file is not in safetensors format, or truncated.
    """
    safetensors = _safetensors()
    if not untrusted.is_regular(path):
        raise Damaged(f"{path} is not a regular file")
    try:
        return safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, UnicodeDecodeError, ValueError) as error:
        raise Damaged(f"{path} is damaged ({untrusted.printable(error)})") from None


def tagged(file: Any, tag: str) -> str | None:
    """Return the text of the header with a tag, None without one."""
    return (file.metadata() or {}).get(tag)


def parse(written: str, what: str, known: int, about: Mapping[str, type]) -> dict[str, Any]:
    """Return the header from its text.

    Args:
      written: text that `tagged` returned.
      what: name of the file, for messages.
      known: the supported format. Headers of other formats are returned with an unchecked content;
        the caller rejects them.
      about: types of the caller's entries.

    Raises:
      Damaged: the header has changed since it was written.
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
            raise Damaged(f"{what} is damaged ({name} of its header is not {kind.__name__})")
    return header


def read(file: Any, header: dict[str, Any], name: str, like: Any, what: str) -> Any:
    """Return one leaf with the shape and dtype of `like`.

    Raises:
      Damaged: its bytes have changed since it was written.
    """
    safetensors = _safetensors()
    stored = next((x for x in _names_of(name) if x in header["crc32"]), name)
    try:
        array = file.get_tensor(stored)
    except (safetensors.SafetensorError, ValueError, TypeError) as error:
        raise Damaged(f"{what} is damaged ({name}: {untrusted.printable(error)})") from None
    if _checksum(array) != header["crc32"].get(stored):
        raise Damaged(f"{what} is damaged ({name or 'its one array'})")
    try:
        if stored.endswith("nodes"):  # the leaves come first
            array = array[..., : like.shape[-1]]
        return _restore(array, like)
    except (ValueError, TypeError) as error:  # dtype or shape differ from the header
        raise Damaged(f"{what} is damaged ({name}: {untrusted.printable(error)})") from None


def flatten(tree: Tree) -> list[tuple[Any, Any]]:
    """Return the leaves of a pytree with their paths; a sum tree has one, its leaves."""
    return jax.tree_util.tree_flatten_with_path(_without_nodes(tree))[0]


def unflatten(like: Tree, leaves: list[Any]) -> Tree:
    """Return the pytree with the structure of `like` and these leaves, in the order of `flatten`.

    Args:
      like: pytree of arrays or their shapes.
      leaves: arrays.
    """
    read = jax.tree.unflatten(jax.tree.structure(_without_nodes(like)), leaves)

    def whole(like: Any, read: Any) -> Any:
        return sum_tree.rebuild_batched(like, read.leaves) if _is_tree(like) else read

    return jax.tree.map(whole, like, read, is_leaf=_is_tree)


def stated(header: dict[str, Any], wanted: dict[str, str]) -> dict[str, str]:
    """Return dtype and shape of every array in a file, by path, under the names of this version.

    Files of earlier versions contain all nodes of sum trees, of which `read` returns the leaves.

    Args:
      header: from `parse`.
      wanted: dtype and shape of the expected arrays, by path.
    """
    stated = dict(header["leaves"])
    for name in wanted:
        _, old, nodes = _names_of(name)
        root = nodes.removesuffix("nodes") + "root"
        if name not in stated and old in stated:
            stated[name] = stated.pop(old)
        elif name not in stated and nodes in stated and root in stated:
            stated[name] = wanted[name]
            del stated[nodes], stated[root]
    return stated


def describe(leaf: Any) -> str:
    """Return dtype and shape of a leaf, such as "float32[3,4]"."""
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def advice(saved: str | None, own: str | None, otherwise: str) -> str:
    """Return a remedy for an array whose saved dtype or shape differs from the expected one.

    Args:
      saved: dtype and shape from `describe`, or None if the array is missing.
      own: the same of the expected array.
      otherwise: remedy for differences other than `jax_enable_x64`.
    """
    if saved is None or own is None or saved == own or _single(saved) != _single(own):
        return otherwise
    return f"set jax_enable_x64 to {saved != _single(saved)}, as it was then"


def _single(described: str) -> str:
    """Return the description of an array with 32 instead of 64 bits."""
    return re.sub(r"^(u?int|float)64\b", r"\g<1>32", described)


def _safetensors() -> Any:
    packages.imported("safetensors.numpy", "files of arrays")
    return packages.imported("safetensors", "files of arrays")


def _is_tree(node: Any) -> bool:
    return isinstance(node, SumTree)


def _without_nodes(tree: Tree) -> Tree:
    """Return a pytree with the leaves of every sum tree in its place, of arrays or shapes."""

    def bare(node: Any) -> Any:
        if not _is_tree(node):
            return node
        shapes = isinstance(node.nodes, jax.ShapeDtypeStruct)
        found = jax.eval_shape(sum_tree.leaves, node) if shapes else sum_tree.leaves(node)
        return _Leaves(found)

    return jax.tree.map(bare, tree, is_leaf=_is_tree)


_RENAMED = {".steps_added": ".steps_added", ".has_observed": ".told", ".malformed": ".odd"}


def _names_of(name: str) -> tuple[str, str, str]:
    """Return the names of an array in this version and before, and of the nodes of a sum tree."""
    old = re.sub(r"\.\w+$", lambda match: _RENAMED.get(match[0], match[0]), name)
    return name, old, name.removesuffix("leaves") + "nodes"


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
