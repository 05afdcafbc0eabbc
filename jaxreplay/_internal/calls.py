"""Checks of the arguments of `Replay`. Every error is a ValueError of one line."""

import dataclasses
import functools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxreplay import requirements
from jaxreplay._internal.arguments import as_int32
from jaxreplay._internal.checks import Bounds, check_kind
from jaxreplay.keys import unrolled
from jaxreplay.sampler import Method, Sampler, observes
from jaxreplay.storage import Storage
from jaxreplay.types import IGNORED, Sample, Tree


def check_sampler(sampler: Any, storage: Any) -> None:
    """Raise ValueError unless this is a sampler that works with the storage."""
    if not isinstance(sampler, Sampler):
        given = type(sampler).__name__
        raise ValueError(f"sampler is a {given}: give a Sampler{_instead(sampler)}")
    try:
        hash(sampler)
    except TypeError as error:
        if not _is_traced(sampler):
            raise ValueError(
                f"{type(sampler).__name__} can't be hashed ({error}): make it a frozen dataclass "
                "of hashable options"
            ) from None
    if not isinstance(storage, Storage):
        raise ValueError(
            f"storage is {storage!r}: give jaxreplay.Transitions(), SharedObservations() or "
            "Frames(stack=4)"
        )
    if getattr(storage, "on_host", False):
        requirements.check_on_host(sampler.requires, "on_host")
    requirements.check_observer(sampler.requires, observes(sampler))


def check_size(name: str, size: Any) -> None:
    """Raise ValueError unless a size is a positive whole number."""
    check_kind(name, size, int)
    Bounds(at_least=1).check(name, size)


def checked_state(replay: Any, function: str, state: Any) -> Any:
    """Return a state of a replay, with NumPy arrays as JAX's; raise ValueError for any other."""
    if not hasattr(state, "ring") or not hasattr(state, "fence"):
        raise ValueError(f"{function} takes a ReplayState, not a {type(state).__name__}")
    ring = state.ring
    if jnp.ndim(ring.words) != 2:
        raise ValueError(
            f"{function} was given vmapped states ({jnp.shape(ring.words)[0]} of them): call "
            f"jax.vmap(replay.{function}), or take one, jax.tree.map(lambda x: x[0], states)"
        )
    if (ring.capacity, ring.num_envs) != (replay.slots, replay.num_envs):
        raise ValueError(
            f"{function} was given a state with {ring.capacity} slots of {ring.num_envs} "
            f"environments, and this replay has {replay.slots} of {replay.num_envs}: give the "
            "state that its own init returned"
        )
    leaves, treedef = jax.tree.flatten(ring)
    kinds = tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves)
    expected = _sampler_state.__wrapped__ if _is_traced(replay.sampler) else _sampler_state
    if _shapes(state.sampler) != _shapes(expected(replay.sampler, treedef, kinds)):
        raise ValueError(
            f"{function} was given the state of another sampler (a {type(state.sampler).__name__}) "
            "or of other options: give the state that this replay's init returned"
        )
    return as_arrays(state)


@functools.lru_cache(maxsize=64)
def _sampler_state(
    sampler: Sampler, treedef: Any, kinds: tuple[tuple[tuple[int, ...], Any], ...]
) -> Any:
    """Return the shapes of a sampler's state for a ring of these arrays."""
    ring = jax.tree.unflatten(treedef, [jax.ShapeDtypeStruct(*one) for one in kinds])

    def init() -> Any:
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), ring)
        return sampler.init(unrolled(jax.random.key(0)), empty)

    return jax.eval_shape(init)


def checked_batch(batch: Any, slots: int, length: int | None) -> Sample:
    """Return a batch for `update`, with NumPy arrays as JAX's; raise ValueError for any other.

    Indices on the host that are not slots are ignored.
    """
    if not isinstance(batch, Sample):
        raise ValueError(f"sample is a {type(batch).__name__}: give the batch of replay.sample")
    indices = as_int32("indices", batch.indices, int(IGNORED))
    version = as_int32("version", batch.version, np.iinfo(np.int32).min)
    axes = 1 if length is None else 2
    if indices.ndim != axes or version.shape != indices.shape:
        wanted = "[B]" if length is None else f"[B, {length}]"
        raise ValueError(
            f"sample has indices of shape {list(indices.shape)} and version of shape "
            f"{list(version.shape)}, and both must have {wanted}: give the batch of replay.sample, "
            "and batches of vmapped states under jax.vmap"
        )
    return as_arrays(batch._replace(indices=indices, version=version))


def as_arrays(tree: Tree) -> Tree:
    """Return a pytree with NumPy's arrays and numbers as JAX's."""

    def one(leaf: Any) -> Any:
        return jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf

    return jax.tree.map(one, tree)


def _is_traced(option: Any) -> bool:
    """Return whether options are inputs of a program that is being traced, as in sweeps."""
    if dataclasses.is_dataclass(option):
        return any(_is_traced(getattr(option, x.name)) for x in dataclasses.fields(option))
    if isinstance(option, tuple):
        return any(map(_is_traced, option))
    return isinstance(option, Tracer)


def _shapes(tree: Tree) -> tuple[Any, list[tuple[int, ...]]]:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [jnp.shape(leaf) for leaf in leaves]


def _instead(given: Any) -> str:
    """Return how to get a sampler from the object that was given; "" where that is unknown."""
    if isinstance(given, Method):
        return ", its .sampler"
    if isinstance(given, ModuleType) and callable(getattr(given, "sampler", None)):
        return ", its .sampler()"
    returned = getattr(given, "__annotations__", {}).get("return")
    is_class = isinstance(returned, type) and issubclass(returned, Sampler | Method)
    return ", by calling it" if is_class or isinstance(given, type) else ""
