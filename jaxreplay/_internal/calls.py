"""Checks of the arguments of `Replay`. Every error is a ValueError of one line."""

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
    check_feedback_array,
    check_kind,
    check_scalar,
)
from jaxreplay._internal.buffer import unrolled
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.storage import Storage
from jaxreplay.types import (
    FEEDBACK,
    IGNORED,
    Requirements,
    Sample,
    Tree,
    get_field,
    has_field,
)

_OBSERVATIONS = frozenset({"obs", "next_obs"})


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
    if getattr(storage, "on_host", False) and sampler.requires.transition_fields & _OBSERVATIONS:
        raise ValueError(
            "storage has on_host=True, and this sampler reads observations: store them on the "
            "device, or choose features without obs and next_obs"
        )
    observes = type(sampler).observe is not Sampler.observe
    if observes != (sampler.requires.episode_returns is not None):
        raise ValueError(
            f"{type(sampler).__name__} must have both `observe` and `requires.episode_returns` "
            '("evaluation" or "training"), or neither'
        )


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


_FIELDS = {  # meanings of fields, for messages
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
    """Raise ValueError unless feedback is complete, known, and one real number per transition.

    Args:
      wanted: names of the feedback that the sampler reads.
      feedback: by name; names of `FEEDBACK` that the sampler does not read are ignored.
      function: "add" or "update".
      shape: of the transitions, `[B]` or `[B, T]`.
    """
    unknown = sorted(set(feedback) - FEEDBACK - wanted)
    if unknown:
        reads = ", ".join(sorted(wanted)) or "no feedback"
        raise ValueError(
            f"{function} was given {', '.join(unknown)}, which is not a name of feedback: this "
            f"sampler reads {reads}"
        )
    missing = sorted(wanted - set(feedback))
    if missing:
        given = f"only {', '.join(sorted(feedback))}" if feedback else "no feedback"
        raise ValueError(f"{function} needs {', '.join(missing)}, and was given {given}")
    for name, values in feedback.items():
        check_feedback_array(function, name, values, shape)


def check_transition(requires: Requirements, example: Tree) -> None:
    """Raise ValueError unless the example has the fields that a sampler reads.

    The fields first, last, terminated and truncated are one bool, reward and discount one real
    number.
    """
    missing = sorted(name for name in requires.transition_fields if not has_field(example, name))
    if missing:
        named = ", ".join(f"{name} ({_FIELDS.get(name, 'a field')})" for name in missing)
        raise ValueError(
            f"the example, a {type(example).__name__}, lacks {named}, which this sampler reads: "
            "add it, or use another sampler"
        )
    for name in sorted(requires.transition_fields & SCALARS.keys()):
        check_scalar(name, get_field(example, name), SCALARS[name])


def check_batch_size(requires: Requirements, asked: Any, own: int, capacity: int) -> None:
    """Raise ValueError unless a batch size is a static number that can be sampled.

    Args:
      requires: of the sampler.
      asked: the batch size.
      own: the replay's batch size.
      capacity: the replay's capacity.
    """
    if isinstance(asked, Tracer):
        raise ValueError(
            "batch_size is traced: it must be static, as in "
            "jax.jit(replay.sample, static_argnames='batch_size')"
        )
    check_size("batch_size", asked)
    if asked > capacity:
        raise ValueError(f"batch_size {asked} is larger than the capacity {capacity}")
    if requires.all_new and asked != own:
        raise ValueError(
            f"batch_size is {asked}: this sampler returns every new step once, in batches of {own}"
        )


def checked_rollout(ring: Ring, rollout: Tree, feedback: Mapping[str, Any]) -> Tree:
    """Return a rollout `[T, E, ...]` in a ring's dtypes; raise ValueError if it does not fit."""
    if ring.split is not None:
        raise ValueError("add_rollout needs storage on the device: with on_host=True use add")
    leaves = jax.tree.leaves_with_path((rollout, dict(feedback)))
    lengths = {packing.name_of(path[1:]): jnp.shape(leaf)[:1] for path, leaf in leaves}
    (first, steps), *others = lengths.items() or [("the rollout", ())]
    for name, other in others:
        if other != steps:
            raise ValueError(
                f"rollout has {first} of {list(steps)} steps and {name} of {list(other)}: all "
                "fields must have the same number"
            )
    if not steps:
        raise ValueError(f"rollout has {first} of shape []: it must begin with [T, E]")
    if not steps[0]:
        raise ValueError("rollout has no steps: it must have at least 1")
    # All steps have the same shapes and dtypes; of integers on the host, the extremes must fit.
    for extreme in (np.min, np.max):
        ring_.check_fits(ring, jax.tree.map(functools.partial(_one_step, extreme), rollout))
    return ring_.as_stored(ring, jax.tree.map(jnp.asarray, rollout))


def _one_step(extreme: Callable[..., Any], leaf: Any) -> Any:
    """Return a field of one step from all steps `[T, E, ...]`."""
    known = isinstance(leaf, np.ndarray) and np.issubdtype(leaf.dtype, np.integer)
    return extreme(leaf, axis=0) if known else leaf[0]
