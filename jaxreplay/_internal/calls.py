"""Validation of the arguments of `Replay`. All errors are one-line ValueErrors."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxreplay import ring as ring_
from jaxreplay._internal import packing
from jaxreplay._internal.arguments import (
    SCALARS,
    Bounds,
    as_int32,
    check_array,
    check_kind,
    check_scalar,
)
from jaxreplay.ring import Ring, Storage
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import (
    FEEDBACK,
    IGNORED,
    Requirements,
    Sample,
    Tree,
    get_field,
    has_field,
)


def check_sampler(sampler: Any, storage: Any) -> None:
    """Raise ValueError unless `sampler` is a sampler that supports the storage."""
    if not isinstance(sampler, Sampler):
        given = type(sampler).__name__
        raise ValueError(f"sampler must be a Sampler, got {given}{_instead(sampler)}")
    try:
        hash(sampler)
    except TypeError as error:
        if not _is_traced(sampler):
            raise ValueError(
                f"{type(sampler).__name__} must be hashable ({error}): use a frozen dataclass with "
                "hashable options"
            ) from None
    if not isinstance(storage, Storage):
        raise ValueError(
            "storage must be an instance such as jaxreplay.Transitions(), SharedObservations() or "
            f"Frames(stack=4), got {storage!r}"
        )
    own = sampler
    while isinstance(inner := getattr(own, "inner", None), Sampler):
        own = inner  # wrappers pass `observe_return` on to their inner sampler
    observes = type(own).observe_return is not Sampler.observe_return
    if observes != (sampler.requires.episode_returns is not None):
        raise ValueError(
            f"{type(sampler).__name__} must define both `observe_return` and "
            '`requires.episode_returns` ("evaluation" or "training"), or neither'
        )


def check_size(name: str, size: Any) -> None:
    """Raise ValueError unless a size is a positive integer."""
    check_kind(name, size, int)
    Bounds(at_least=1).check(name, size)


def checked_state(replay: Any, function: str, state: Any) -> Any:
    """Validate that `state` is a state of this replay, and convert it to JAX arrays."""
    if not hasattr(state, "ring") or not hasattr(state, "fence"):
        raise ValueError(f"{function} got {type(state).__name__}, expected a ReplayState")
    ring = state.ring
    if jnp.ndim(ring.words) != 2:
        raise ValueError(
            f"{function} got {jnp.shape(ring.words)[0]} vmapped states, expected one state: use "
            f"jax.vmap(replay.{function}), or select one by jax.tree.map(lambda x: x[0], states)"
        )
    if (ring.capacity, ring.num_envs) != (replay.slots, replay.num_envs):
        raise ValueError(
            f"{function} got a state with {ring.capacity} slots and {ring.num_envs} environments, "
            f"expected {replay.slots} and {replay.num_envs}: pass the state that this replay's "
            "init returned"
        )
    leaves, treedef = jax.tree.flatten(ring)
    kinds = tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves)
    expected = _sampler_state.__wrapped__ if _is_traced(replay.sampler) else _sampler_state
    backend = jax.default_backend()  # the number of children per sum tree node depends on it
    if _shapes(state.sampler) != _shapes(expected(replay.sampler, treedef, kinds, backend)):
        raise ValueError(
            f"{function} got the state ({type(state.sampler).__name__}) of a different sampler or "
            "of different options: pass the state that this replay's init returned"
        )
    return as_arrays(state)


@functools.lru_cache(maxsize=64)
def _sampler_state(
    sampler: Sampler, treedef: Any, kinds: tuple[tuple[tuple[int, ...], Any], ...], backend: str
) -> Any:
    """Return the shapes of a sampler's state for a ring buffer with arrays of the given shapes."""
    ring = jax.tree.unflatten(treedef, [jax.ShapeDtypeStruct(*one) for one in kinds])

    def init() -> Any:
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), ring)
        return sampler.init(jax.random.key(0), empty)

    return jax.eval_shape(init)


def checked_batch(batch: Any, slots: int, length: int | None) -> Sample:
    """Validate a batch for `update`, and convert it to JAX arrays.

    Indices that do not fit into int32 are replaced by an index that `update` ignores.

    Raises:
      ValueError: If `batch` is not a batch from `Replay.sample`.
    """
    if not isinstance(batch, Sample):
        raise ValueError(f"sample must be a batch from replay.sample, got {type(batch).__name__}")
    indices = as_int32("indices", batch.indices, int(IGNORED))
    version = as_int32("version", batch.version, np.iinfo(np.int32).min)
    axes = 1 if length is None else 2
    if indices.ndim != axes or version.shape != indices.shape:
        wanted = "[B]" if length is None else f"[B, {length}]"
        raise ValueError(
            f"sample must have indices and version of shape {wanted}, got {list(indices.shape)} "
            f"and {list(version.shape)}: pass a batch from replay.sample, and use jax.vmap for "
            "batches of vmapped states"
        )
    return as_arrays(batch._replace(indices=indices, version=version))


def as_arrays(tree: Tree) -> Tree:
    """Convert the NumPy arrays and NumPy scalars of a pytree to JAX arrays."""

    def one(leaf: Any) -> Any:
        return jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf

    return jax.tree.map(one, tree)


def _is_traced(option: Any) -> bool:
    """Return whether any option is a traced input of a compiled program, as in option sweeps."""
    if dataclasses.is_dataclass(option):
        return any(_is_traced(getattr(option, x.name)) for x in dataclasses.fields(option))
    if isinstance(option, tuple):
        return any(map(_is_traced, option))
    return isinstance(option, Tracer)


def _shapes(tree: Tree) -> tuple[Any, list[tuple[int, ...]]]:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [jnp.shape(leaf) for leaf in leaves]


def _instead(given: Any) -> str:
    """Return a hint on how to get a sampler from an object, or "" if unclear."""
    if isinstance(given, Method):
        return ": pass its .sampler"
    if isinstance(given, ModuleType) and callable(getattr(given, "sampler", None)):
        return ": pass its .sampler()"
    returned = getattr(given, "__annotations__", {}).get("return")
    is_class = isinstance(returned, type) and issubclass(returned, Sampler | Method)
    return ": call it" if is_class or isinstance(given, type) else ""


_FIELDS = {  # descriptions of fields for error messages
    "obs": "the observation before the action",
    "action": "the action",
    "reward": "the reward",
    "discount": "gamma^n, or 0 after termination",
    "next_obs": "the observation after the action",
    "first": "whether a step begins an episode",
    "last": "whether a step ends an episode",
}


def check_feedback(
    wanted: frozenset[str], feedback: Mapping[str, Any], function: str, shape: tuple[int, ...]
) -> None:
    """Raise ValueError unless all required feedback, such as TD errors, is present and valid.

    Valid feedback is one real number per transition.

    Args:
      wanted: names of the feedback that the sampler reads.
      feedback: arrays by name; names in `FEEDBACK` that the sampler does not read are allowed.
      function: name of the called function in error messages: "add" or "update".
      shape: shape of the transitions, `[B]` or `[B, T]`.
    """
    unknown = sorted(set(feedback) - FEEDBACK - wanted)
    if unknown:
        reads = ", ".join(sorted(wanted)) or "no feedback"
        raise ValueError(
            f"{function} got unknown feedback {', '.join(unknown)}: this sampler reads {reads}"
        )
    missing = sorted(wanted - set(feedback))
    if missing:
        given = f"only {', '.join(sorted(feedback))}" if feedback else "no feedback"
        raise ValueError(f"{function} requires {', '.join(missing)}, got {given}")
    for name, values in feedback.items():
        check_feedback_array(function, name, values, shape)


def check_feedback_array(function: str, name: str, values: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless feedback, or an episode return, is one real number per transition."""
    hint = functools.partial(_hint, name, shape)
    check_array(f"{name} for {function}", values, shape, float, hint)


def _hint(name: str, shape: tuple[int, ...], given: tuple[int, ...]) -> str:
    """Return advice on reducing feedback to one number per transition, or "" if unclear."""
    if len(shape) != 1:
        return "" if shape else ": pass the mean of several returns"
    if given in ((*shape, 1), (1, *shape)):
        return f": use {name}[:, 0]" if given[-1] == 1 else f": use {name}[0]"
    if len(given) == 2 and shape[0] in given:
        return f": reduce it, such as {name}.mean(axis={0 if given[1] == shape[0] else 1})"
    return "" if given else f": pass it before averaging, or use jnp.full({shape[0]}, {name})"


def check_transition(requires: Requirements, example: Tree) -> None:
    """Raise ValueError unless an example transition has the fields that a sampler reads.

    The fields in `SCALARS` must be scalars of the corresponding type.
    """
    missing = sorted(name for name in requires.transition_fields if not has_field(example, name))
    if missing:
        named = ", ".join(f"{name} ({_FIELDS.get(name, 'a field')})" for name in missing)
        raise ValueError(
            f"the example ({type(example).__name__}) lacks {named}, which this sampler reads: "
            "extend the example, or use another sampler"
        )
    for name in sorted(requires.transition_fields & SCALARS.keys()):
        check_scalar(name, get_field(example, name), SCALARS[name])


def check_batch_size(requires: Requirements, asked: Any, own: int, capacity: int) -> None:
    """Raise ValueError unless a batch size is static, in range and supported by the sampler.

    Args:
      requires: requirements of the sampler.
      asked: requested batch size.
      own: default batch size of the replay.
      capacity: capacity of the replay.
    """
    if isinstance(asked, Tracer):
        raise ValueError(
            "batch_size must be static, got a traced value: use "
            "jax.jit(replay.sample, static_argnames='batch_size')"
        )
    check_size("batch_size", asked)
    if asked > capacity:
        raise ValueError(f"batch_size must be at most the capacity {capacity}, got {asked}")
    if requires.all_new and asked != own:
        raise ValueError(
            f"batch_size must be {own} for this sampler, which returns every new step once, got "
            f"{asked}"
        )


def checked_rollout(ring: Ring, rollout: Tree, feedback: Mapping[str, Any]) -> Tree:
    """Validate a rollout `[T, E, ...]` and cast it to the ring buffer's dtypes."""
    leaves = jax.tree.leaves_with_path((rollout, dict(feedback)))
    lengths = {packing.name_of(path[1:]): jnp.shape(leaf)[:1] for path, leaf in leaves}
    (first, steps), *others = lengths.items() or [("the rollout", ())]
    for name, other in others:
        if other != steps:
            raise ValueError(
                "all fields of a rollout must have the same number of steps, got "
                f"{list(steps)} for {first} and {list(other)} for {name}"
            )
    if not steps:
        raise ValueError(f"{first} of a rollout must have leading axes [T, E], got shape []")
    if not steps[0]:
        raise ValueError("rollout must have at least 1 step, got 0")
    # Checking the minima and maxima of host integers covers the values of all steps.
    for extreme in (np.min, np.max):
        ring_.check_fits(ring, jax.tree.map(functools.partial(_one_step, extreme), rollout))
    return ring_.as_stored(ring, jax.tree.map(jnp.asarray, rollout))


def _one_step(extreme: Callable[..., Any], leaf: Any) -> Any:
    """Reduce a field `[T, E, ...]` to `[E, ...]`: host integers by `extreme`, others to step 0."""
    known = isinstance(leaf, np.ndarray) and np.issubdtype(leaf.dtype, np.integer)
    return extreme(leaf, axis=0) if known else leaf[0]
