"""Checks of the arguments of `Replay`. Every error is a ValueError of one line."""

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
    SINGLE,
    Bounds,
    as_int32,
    check_feedback_arrays,
    check_kind,
    check_known,
    check_single,
)
from jaxreplay._internal.buffer import unrolled
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler, observes
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


def check_sampler(sampler: Any, storage: Any) -> None:
    """Raise ValueError unless this is a sampler that works with the storage."""
    if not isinstance(sampler, Sampler):
        given = type(sampler).__name__
        raise ValueError(f"sampler is a {given}: give a Sampler{_instead(sampler)}")
    try:
        hash(sampler)
    except TypeError as error:
        raise ValueError(
            f"{type(sampler).__name__} can't be hashed ({error}): make it a frozen dataclass of "
            "hashable options"
        ) from None
    if not isinstance(storage, Storage):
        raise ValueError(
            f"storage is {storage!r}: give jaxreplay.Transitions(), SharedObservations() or "
            "Frames(stack=4)"
        )
    if getattr(storage, "on_host", False):
        check_on_host(sampler.requires, "on_host")
    check_observer(sampler.requires, observes(sampler))


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
    if _shapes(state.sampler) != _shapes(_sampler_state(replay.sampler, treedef, kinds)):
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


_OBSERVATIONS = frozenset({"obs", "next_obs"})
_TELLS = {  # what a field is looked at for
    "obs": "what the agent saw",
    "action": "what it did",
    "reward": "what the step gave",
    "discount": "whether it terminated",
    "next_obs": "what the agent saw next",
    "first": "where episodes begin",
    "last": "where episodes end",
}


def check_observer(requires: Requirements, observes: bool) -> None:
    """Refuse a sampler that observes returns but not whose, or says whose and observes none.

    Raises:
      ValueError: one line that says what to do.
    """
    if observes != (requires.episode_returns is not None):
        raise ValueError(
            "a sampler's `observe` and `requires.episode_returns` go together: give both, the "
            'latter "evaluation" or "training", or neither'
        )


def check_feedback(
    wanted: frozenset[str], given: Mapping[str, Any], verb: str, what: str, shape: tuple[int, ...]
) -> None:
    """Refuse a call of the replay without the feedback that its sampler reads, or with odd one.

    Args:
      wanted: names of what the sampler reads.
      given: feedback by name; names of `FEEDBACK` that the sampler does not read are ignored.
      verb: that was called.
      what: the transitions that it is about, in the singular.
      shape: theirs, `[B]` or `[B, T]`.

    Raises:
      ValueError: one line that names what is missing or unknown, or what is not one real number
        for each transition.
    """
    check_known(given, FEEDBACK, wanted)
    missing = wanted - set(given)
    if missing:
        was = f"and was given {', '.join(sorted(given))}" if given else "and was given nothing"
        raise ValueError(f"{verb} needs {', '.join(sorted(missing))} of every {what}, {was}")
    check_feedback_arrays(given, shape, verb, what)


def check_transition(requires: Requirements, example: Tree) -> None:
    """Refuse rows without a field that the sampler looks at, or with more than a number there.

    Raises:
      ValueError: one line that names the fields, and says what they tell, or what they are to be:
        first, last, terminated and truncated one bool, reward and discount one real number.
    """
    missing = sorted(name for name in requires.transition_fields if not has_field(example, name))
    if missing:
        tells = ", ".join(_TELLS[name] for name in missing if name in _TELLS)
        raise ValueError(
            f"this sampler looks at {', '.join(missing)} of transitions{tells and f' ({tells})'}, "
            f"which the example, a {type(example).__name__}, lacks: store it, or choose a sampler "
            "that does without"
        )
    for name in sorted(requires.transition_fields & SINGLE.keys()):
        check_single("this sampler", name, get_field(example, name), SINGLE[name])


def check_batch_size(requires: Requirements, asked: Any, own: int, capacity: int) -> None:
    """Refuse a batch of another size that can't be drawn.

    Args:
      requires: of the sampler.
      asked: rows of one sample.
      own: the replay's batch size.
      capacity: transitions that it remembers.

    Raises:
      ValueError: one line that says what to do.
    """
    if isinstance(asked, Tracer):
        raise ValueError(
            "batch_size must be known when sample is compiled: give a plain number, or "
            "jax.jit(replay.sample, static_argnames='batch_size')"
        )
    check_kind("batch_size", asked, int)
    if asked < 1:
        raise ValueError(f"batch_size is {asked}: it must be at least 1")
    if asked > capacity:
        raise ValueError(
            f"batch_size {asked} is larger than the capacity {capacity}: "
            "use a larger capacity or a smaller batch"
        )
    if requires.all_new and asked != own:
        raise ValueError(
            f"batch_size is {asked}: this replay method gives every new step once, in batches of "
            f"{own}: leave it out"
        )


def check_on_host(requires: Requirements, option: str) -> None:
    """Refuse observations on the host for a sampler that looks at them.

    Args:
      requires: of the sampler.
      option: by which they would be there.

    Raises:
      ValueError: one line that says what to do.
    """
    if requires.transition_fields & _OBSERVATIONS:
        raise ValueError(
            f"{option}: this sampler looks at observations, which must be on the device: "
            "leave it out, or choose features without obs and next_obs"
        )


def checked_rollout(ring: Ring, rollout: Tree, feedback: Mapping[str, Any]) -> Tree:
    """Return steps `[T, E, ...]` in the dtypes of a ring.

    Raises:
      ValueError: one line: fields differ in T, a row does not fit, or the caller keeps rows.
    """
    if ring.split is not None:
        raise ValueError("rows_on_host: the caller takes every row after its own add: add them so")
    leaves = jax.tree.leaves_with_path((rollout, dict(feedback)))
    lengths = {packing.name_of(path[1:]): jnp.shape(leaf)[:1] for path, leaf in leaves}
    (first, steps), *others = lengths.items() or [("the rollout", ())]
    for name, other in others:
        if other != steps:
            raise ValueError(
                f"a rollout has {first} of {list(steps)} steps and {name} of {list(other)}: give "
                "all of its fields the same number"
            )
    if not steps:
        raise ValueError(f"{first} of a rollout has shape []: give it the axes [T, E]")
    if not steps[0]:
        raise ValueError("a rollout has no steps: give one at least")
    # All steps are of one kind and differ in their numbers alone.
    for extreme in (np.min, np.max):
        ring_.check_fits(ring, jax.tree.map(functools.partial(_one_for_all, extreme), rollout))
    return ring_.as_stored(ring, jax.tree.map(jnp.asarray, rollout))


def _one_for_all(extreme: Callable[..., Any], leaf: Any) -> Any:
    """Return one row of a leaf `[T, E, ...]`: where numbers are at hand, by their extremes."""
    known = isinstance(leaf, np.ndarray) and np.issubdtype(leaf.dtype, np.integer)
    return extreme(leaf, axis=0) if known else leaf[0]
