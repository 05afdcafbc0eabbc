"""Pytrees of arrays in safetensors files: bit for bit, checked, complete or not there at all.

One file holds arrays and a header, without pickle, so that one rename publishes it. Every array
has a checksum of its bytes, dtype and shape. What the header says besides is the caller's.

Of a sum tree, a file holds the leaves alone: how many nodes lie above them depends on the device.
`unflatten` builds the tree for the device in use, the same bit for bit as a tree with that history.
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
    """A file's bytes are not those that were written."""


class _Leaves(NamedTuple):
    """The part of a sum tree that files hold."""

    leaves: Any  # [..., C] float32


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
    stored = name if name in header["crc32"] else _nodes_of(name)
    try:
        array = file.get_tensor(stored)
    except (safetensors.SafetensorError, ValueError, TypeError) as error:
        raise Damaged(f"{what} is damaged ({name}: {untrusted.printable(error)})") from None
    if _checksum(array) != header["crc32"].get(stored):
        raise Damaged(f"{what} is damaged ({name or 'its one array'})")
    try:
        if stored != name:  # the leaves come first
            array = array[..., : like.shape[-1]]
        return _restore(array, like)
    except (ValueError, TypeError) as error:  # of another dtype or shape than the header says
        raise Damaged(f"{what} is damaged ({name}: {untrusted.printable(error)})") from None


def flatten(tree: Tree) -> list[tuple[Any, Any]]:
    """Return the leaves of a pytree with their paths; of a sum tree, its own leaves are one."""
    return jax.tree_util.tree_flatten_with_path(_without_nodes(tree))[0]


def unflatten(like: Tree, leaves: list[Any]) -> Tree:
    """Return the pytree of these leaves, in the order in which `flatten` returns those of `like`.

    Args:
      like: of the same structure; of its arrays, only shapes and dtypes are looked at.
      leaves: arrays.
    """
    read = jax.tree.unflatten(jax.tree.structure(_without_nodes(like)), leaves)

    def whole(like: Any, read: Any) -> Any:
        return sum_tree.rebuild_batched(like, read.leaves) if _is_tree(like) else read

    return jax.tree.map(whole, like, read, is_leaf=_is_tree)


def stated(header: dict[str, Any], wanted: dict[str, str]) -> dict[str, str]:
    """Return dtype and shape of every array in a file, by place.

    Files of earlier versions hold whole sum trees. They are stated by their leaves alone, which
    `read` takes out of them.

    Args:
      header: as `parse` returns it.
      wanted: dtype and shape of the arrays to be read, by place.
    """
    stated = dict(header["leaves"])
    for name in wanted:
        nodes, root = _nodes_of(name), name.removesuffix("leaves") + "root"
        if name not in stated and nodes in stated and root in stated:
            stated[name] = wanted[name]
            del stated[nodes], stated[root]
    return stated


def describe(leaf: Any) -> str:
    """Return dtype and shape of a leaf, such as "float32[3,4]"."""
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def advice(saved: str | None, own: str | None, otherwise: str) -> str:
    """Return what to do about an array that is saved as another than is wanted.

    Args:
      saved: dtype and shape, as `describe` has them; None: there is none.
      own: the same of what is wanted.
      otherwise: what to do unless it is the setting of JAX by which numbers have 64 bits.
    """
    if saved is None or own is None or saved == own or _single(saved) != _single(own):
        return otherwise
    return f"set jax_enable_x64 to {saved != _single(saved)}, as it was then"


def _single(described: str) -> str:
    """Return how an array of 64 bits is described where JAX has 32."""
    return re.sub(r"^(u?int|float)64\b", r"\g<1>32", described)


def _safetensors() -> Any:
    packages.imported("safetensors.numpy", "files of arrays")
    return packages.imported("safetensors", "files of arrays")


def _is_tree(node: Any) -> bool:
    return isinstance(node, SumTree)


def _without_nodes(tree: Tree) -> Tree:
    """Replace every sum tree, of arrays or of their shapes, by its leaves."""

    def bare(node: Any) -> Any:
        if not _is_tree(node):
            return node
        shapes = isinstance(node.nodes, jax.ShapeDtypeStruct)
        found = jax.eval_shape(sum_tree.leaves, node) if shapes else sum_tree.leaves(node)
        return _Leaves(found)

    return jax.tree.map(bare, tree, is_leaf=_is_tree)


def _nodes_of(name: str) -> str:
    """Return where the nodes of a tree are whose leaves are at `name`, in files of before."""
    return name.removesuffix("leaves") + "nodes"


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
