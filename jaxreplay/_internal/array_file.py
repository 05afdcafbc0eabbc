"""Exact, checksummed and atomic storage of array pytrees in safetensors files.

A file contains arrays and a JSON header with the caller's entries, without pickle. A single rename
publishes the file. The checksum of each array covers its bytes, dtype and shape.

A sum tree is stored as its priorities (tree leaves), which take less space. `unflatten` rebuilds
the tree; the result equals a tree that received the same writes.
"""

import contextlib
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import sum_tree
from jaxreplay._internal import packages, untrusted
from jaxreplay._internal.untrusted import Damaged as Damaged  # raised when a file is read
from jaxreplay.sum_tree import SumTree
from jaxreplay.types import Tree


class ArrayFile(NamedTuple):
    """An open file of arrays."""

    path: Path
    file: Any  # open file of the safetensors library
    header: dict[str, Any]  # the caller's entries, and "leaves" and "crc32" of the arrays by path
    remedy: str  # what to do about damage, for errors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array without reading it.

        Raises:
          Damaged: If there is no such array.
        """
        with untrusted.parsing(self.path, self.remedy):
            return tuple(self.file.get_slice(name).get_shape())

    def read(self, like: Tree, part: str = "") -> Tree:
        """Read the subtree at the path `part` of the pytree that was written.

        Args:
          like: structure, dtypes and shapes, such as from `jax.eval_shape`.
          part: path of the subtree, such as `.agent`; "" is the whole tree.

        Raises:
          Damaged: If an array has changed since it was written, or differs from `like`.
        """
        leaves = []
        for place, leaf in flatten(like):
            name = part + jax.tree_util.keystr(place)
            with untrusted.parsing(self.path, self.remedy):
                array = self.file.get_tensor(name)
                if _checksum(array) != self.header["crc32"].get(name):
                    raise ValueError(f"checksum mismatch of {name or 'its only array'}")
                restored = _restore(array, leaf)
                stated = self.header["leaves"].get(name)
                if not stated == describe(restored) == describe(leaf):
                    raise ValueError(f"{name} must be {describe(leaf)}, got {describe(array)}")
                leaves.append(restored)
        return unflatten(like, leaves)


class _Leaves(NamedTuple):
    """The priorities (leaves) of a sum tree, the only part that is stored."""

    leaves: Any  # [..., C] float32


def write(tree: Tree, path: Path, temporary: Path, tag: str, about: dict[str, Any]) -> None:
    """Write a pytree of arrays, typed PRNG keys and Python scalars; replace any file at `path`.

    The write is atomic: a file at `temporary` is complete and on disk before it is renamed to
    `path`. `temporary` must be on the same file system, preferably in an empty folder, because
    safetensors creates another file next to it. `tag` identifies the program that writes the file,
    and `about` contains JSON-serialisable header entries.

    Raises:
      ImportError: If safetensors is not installed.
      OSError: If the file can't be written.
    """
    safetensors = _safetensors()
    arrays, metadata = _content(tree, tag, about)
    try:
        safetensors.numpy.save_file(arrays, temporary, metadata=metadata)
    except safetensors.SafetensorError as error:
        raise OSError(f"{path} can't be written: {error}") from None
    # safetensors creates a file that only the owner can read: apply the folder's permissions.
    temporary.chmod(path.parent.stat().st_mode & 0o666)
    flush(temporary)
    os.replace(temporary, path)


def encode(tree: Tree, tag: str, about: dict[str, Any]) -> bytes:
    """Return the bytes that `write` writes.

    Raises:
      ImportError: If safetensors is not installed.
    """
    return _safetensors().numpy.save(*_content(tree, tag, about))


def _content(tree: Tree, tag: str, about: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arrays of a file by path, and its metadata."""
    leaves = {jax.tree_util.keystr(place): leaf for place, leaf in flatten(tree)}
    arrays = {name: _to_numpy(leaf) for name, leaf in leaves.items()}
    header = {
        **about,
        "leaves": {name: describe(leaf) for name, leaf in leaves.items()},
        "crc32": {name: _checksum(array) for name, array in arrays.items()},
    }
    # Use a single entry, because safetensors orders several entries differently in each process.
    return arrays, {tag: untrusted.seal(header)}


def flush(path: Path) -> None:
    """Flush a file to disk, or a folder after files in it have been renamed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened(
    path: Path, tag: str, known: int, about: Mapping[str, type], remedy: str
) -> Iterator[ArrayFile]:
    """Return a context with a file that `write` wrote, after checking its header.

    Args:
      path: path of the file.
      tag: identifies the program that wrote the file.
      known: number of the file format that this version reads.
      about: types of the caller's header entries by name.
      remedy: what to do about a file that cannot be read, for errors.

    Raises:
      ImportError: If safetensors is not installed.
      Damaged: If the file has changed since it was written.
      ValueError: If another program or version wrote the file.
    """
    safetensors = _safetensors()
    with contextlib.ExitStack() as stack:
        with untrusted.parsing(path, remedy):
            if not untrusted.is_regular(path):
                raise ValueError("it is not a regular file")
            file = stack.enter_context(safetensors.safe_open(path, framework="numpy"))
            written = (file.metadata() or {}).get(tag)
            header = None if written is None else _parse(written, known, about)
        if header is None:
            raise ValueError(f"{path} is a file of another program: {remedy}")
        if header["format"] != known:
            version = untrusted.printable(header.get("version", "another version"))
            raise ValueError(
                f"{path} has format {header['format']} (written by {version}), but this version "
                f"reads format {known}: use the version that wrote the file"
            )
        yield ArrayFile(path, file, header, remedy)


def _parse(written: str, known: int, about: Mapping[str, type]) -> dict[str, Any]:
    """Return the header from its text; if the format is not `known`, check only its format."""
    header = untrusted.unseal(written)
    kinds = {"format": int}
    if isinstance(header, dict) and header.get("format") == known:
        kinds |= {**about, "leaves": dict, "crc32": dict}
    for name, kind in kinds.items():
        if not isinstance(header, dict) or type(header.get(name)) is not kind:
            raise ValueError(f"header entry `{name}` must be of type {kind.__name__}")
    if not all(isinstance(kind, str) for kind in header.get("leaves", {}).values()):
        raise ValueError("header entry `leaves` must contain only strings")
    return header


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


def advice(saved: str | None, expected: str | None, otherwise: str) -> str:
    """Return a remedy for a file with an array whose dtype or shape may not be as expected.

    The remedy is to set `jax_enable_x64` if this explains the difference, or else `otherwise`.
    `saved` and `expected` are results of `describe`, or None for a missing array.
    """
    if saved is None or expected is None or saved == expected:
        return otherwise
    if _single(saved) != _single(expected):
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
        leaves = jax.eval_shape(sum_tree.leaves, node) if shapes else sum_tree.leaves(node)
        return _Leaves(leaves)

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
