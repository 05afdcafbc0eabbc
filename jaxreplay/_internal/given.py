"""States and batches as a replay's verbs are given them: refused in one line, or arrays of JAX's.

Everything here raises ValueError.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay._internal.arguments import as_int32
from jaxreplay.keys import unrolled
from jaxreplay.types import Sample, Sampler, Tree


def checker(sampler: Sampler, slots: int, num_envs: int, kind: type) -> Callable[[str, Any], Any]:
    """Make the check of states of one replay; it returns them with NumPy's arrays as JAX's.

    Args:
      sampler: the replay's.
      slots: of its ring.
      num_envs: lanes of its ring.
      kind: the class of its states.
    """

    @functools.lru_cache(maxsize=8)
    def shapes_for(treedef: Any, kinds: tuple[tuple[tuple[int, ...], Any], ...]) -> Any:
        """Return the shapes of the sampler's state for a ring of these arrays."""
        ring = jax.tree.unflatten(treedef, [jax.ShapeDtypeStruct(*one) for one in kinds])
        return jax.eval_shape(lambda: sampler.init(unrolled(jax.random.key(0)), _blank(ring)))

    def check(verb: str, state: Any) -> Any:
        if not isinstance(state, kind):
            raise ValueError(f"{verb} takes a replay's state, not a {described(state)}")
        ring = state.ring
        if jnp.ndim(ring.words) != 2:
            raise ValueError(
                f"{verb} was given vmapped states ({jnp.shape(ring.words)[0]} of them): call "
                f"jax.vmap(replay.{verb}), or take one, jax.tree.map(lambda x: x[0], states)"
            )
        if (ring.capacity, ring.num_envs) != (slots, num_envs):
            raise ValueError(
                f"{verb} was given a state with {ring.capacity} slots of {ring.num_envs} "
                f"environments, and this replay has {slots} of {num_envs}: give the state that its "
                "own init made"
            )
        leaves, treedef = jax.tree.flatten(ring)
        wanted = shapes_for(treedef, tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves))
        if _shapes(state.sampler) != _shapes(wanted):
            raise ValueError(
                f"{verb} was given the state of another sampler (a "
                f"{type(state.sampler).__name__}), or of other options: give the state that this "
                "replay's init made"
            )
        return as_arrays(state)

    return check


def check_batch(batch: Any, slots: int, length: int | None) -> Sample:
    """Return a batch for `update`; its rows are to be `[B]`, of stretches `[B, T]`.

    Indices on the host that are none of the slots stand for rows to be ignored.
    """
    if not isinstance(batch, Sample):
        raise ValueError(f"update takes a Sample, not a {described(batch)}")
    indices = as_int32("indices", batch.indices, slots)
    version = as_int32("version", batch.version, np.iinfo(np.int32).min)
    axes = 1 if length is None else 2
    if indices.ndim != axes or version.shape != indices.shape:
        wanted = "[B]" if length is None else f"[B, {length}]"
        raise ValueError(
            f"update was given a batch with indices {list(indices.shape)} and version "
            f"{list(version.shape)}, and both are to be {wanted}: give what sample returned, of "
            "vmapped states under jax.vmap"
        )
    return as_arrays(batch._replace(indices=indices, version=version))


def as_arrays(tree: Tree) -> Tree:
    """Return a pytree with NumPy's arrays and numbers as JAX's."""

    def one(leaf: Any) -> Any:
        return jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf

    return jax.tree.map(one, tree)


def described(what: Any) -> str:
    """Return the type of what was given, and what to do if it is all that `sample` returned."""
    name = type(what).__name__
    if type(what) is tuple and len(what) == 2 and isinstance(what[1], Sample):
        return f"{name} of state and batch: take it apart, state, batch = replay.sample(state, key)"
    return name


def _blank(shapes: Tree) -> Tree:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def _shapes(tree: Tree) -> tuple[Any, list[tuple[int, ...]]]:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [jnp.shape(leaf) for leaf in leaves]
