"""Validation of the arguments of `Replay`. All errors are one-line ValueErrors."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay._internal.arguments import SCALARS, as_int32, check_array, check_scalar
from jaxreplay.sampler import Sampler
from jaxreplay.traced import cached, is_traced
from jaxreplay.types import (
    FEEDBACK,
    IGNORED,
    Draw,
    Requirements,
    Sample,
    State,
    Tree,
    get_field,
    has_field,
)


def check_axis(axis_name: Any, sampler: Sampler) -> None:
    """Raise ValueError unless `axis_name` is None, or is a name and `sampler` can be sharded."""
    if axis_name is None:
        return
    if not isinstance(axis_name, str) or not axis_name:
        raise ValueError(f"axis_name must be the name of a mesh axis or None, got {axis_name!r}")
    if sampler.needs_whole is not None:
        raise ValueError(
            f"{type(sampler).__name__} cannot be sharded over devices, because "
            f"{sampler.needs_whole}: use one device (axis_name=None), or a method that can be "
            "sharded, such as `per`"
        )


def check_sampler(sampler: Any) -> None:
    """Raise ValueError unless `sampler` is a hashable sampler whose requirements are consistent."""
    kind = type(sampler).__name__
    if not isinstance(sampler, Sampler):
        raise ValueError(
            f"sampler must be a Sampler, such as per.sampler() or method.sampler, got {kind}"
        )
    try:
        hash(sampler)
    except TypeError as error:
        if not is_traced(sampler):
            raise ValueError(
                f"{kind} must be hashable ({error}): use a frozen dataclass with hashable options"
            ) from None
    for function in ("add", "update"):
        kinds = [x.kind for x in inspect.signature(getattr(sampler, function)).parameters.values()]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            raise ValueError(
                f"{kind}.{function} must end with **feedback, because agents may pass more "
                "feedback than the sampler requires"
            )
    innermost = sampler  # wrappers pass `observe_return` on to their inner sampler
    while isinstance(inner := getattr(innermost, "inner", None), Sampler):
        innermost = inner
    observes = type(innermost).observe_return is not Sampler.observe_return
    if observes != (sampler.requires.episode_returns is not None):
        raise ValueError(
            f"{kind} must define both `observe_return` and `requires.episode_returns` "
            '("evaluation" or "training"), or neither'
        )


def check_example(requires: Requirements, example: Tree) -> None:
    """Raise ValueError unless an example transition has the fields that a sampler reads.

    The fields in `SCALARS` must be scalars of the corresponding type.
    """
    missing = sorted(name for name in requires.transition_fields if not has_field(example, name))
    if missing:
        raise ValueError(
            f"the example ({type(example).__name__}) lacks {', '.join(missing)}, which this "
            "sampler reads: extend the example, or use another sampler"
        )
    for name in sorted(requires.transition_fields & SCALARS.keys()):
        check_scalar(name, get_field(example, name), SCALARS[name])


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
    leaves, treedef = jax.tree.flatten(ring)
    kinds = tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves)
    sizes = (ring.capacity, ring.num_envs), (replay.slots, replay.num_envs)
    expected = _sampler_shapes(replay.sampler, treedef, kinds)
    if sizes[0] != sizes[1] or _shapes(state.sampler) != expected:
        raise ValueError(
            f"{function} got a state ({type(state.sampler).__name__}) from a replay with another "
            f"sampler, other options or other sizes: its (slots, environments) are {sizes[0]}, and "
            f"this replay's are {sizes[1]}: pass a state from this replay's init"
        )
    return _as_arrays(state)


def rollout_length(rollout: Tree) -> int:
    """Return the number of steps T in a rollout `[T, E, ...]`, at least 1."""
    leaves = jax.tree.leaves(rollout)
    shape = jnp.shape(leaves[0]) if leaves else ()
    if not shape or not shape[0]:
        raise ValueError(
            f"rollout must have leading axes [T, E] with at least 1 step, got shape {list(shape)}"
        )
    return shape[0]


def checked_batch(batch: Any, slots: int, length: int | None) -> Sample:
    """Validate that `batch` is from `Replay.sample`, and convert it to JAX arrays.

    Indices that do not fit into int32 are replaced by an index that `update` ignores.
    """
    if not isinstance(batch, Sample):
        raise ValueError(f"sample must be a batch from replay.sample, got {type(batch).__name__}")
    indices = as_int32("indices", batch.indices, int(IGNORED))
    version = as_int32("version", batch.version, np.iinfo(np.int32).min)
    if indices.ndim != (1 if length is None else 2) or version.shape != indices.shape:
        wanted = "[B]" if length is None else f"[B, {length}]"
        raise ValueError(
            f"sample must have indices and version of shape {wanted}, got {list(indices.shape)} "
            f"and {list(version.shape)}: pass a batch from replay.sample, and use jax.vmap for "
            "batches of vmapped states"
        )
    return _as_arrays(batch._replace(indices=indices, version=version))


def checked_draw(sampler: Sampler, draw: Any, batch_size: int) -> Draw:
    """Validate that `draw` is a `Draw` of `batch_size` slots, or sequences of slots."""
    kind, lead = type(sampler).__name__, (batch_size,)
    if not isinstance(draw, Draw):
        got = "an array" if isinstance(draw, jax.Array) else f"a {type(draw).__name__}"
        raise ValueError(f"{kind}.sample must return jaxreplay.Draw(indices, weights), got {got}")
    expected = (lead if sampler.length is None else (*lead, sampler.length)), lead
    shapes = jnp.shape(draw.indices), jnp.shape(draw.weights)
    if shapes != expected or not jnp.issubdtype(jnp.result_type(draw.indices), jnp.integer):
        raise ValueError(
            f"{kind}.sample must return int32 indices of shape {list(expected[0])} and float32 "
            f"weights of shape {list(lead)}, got {' and '.join(_types(draw[:2])[1])}"
        )
    return draw


def next_state(sampler: Sampler, function: str, state: State, *args: Any, **feedback: Any) -> State:
    """Return the state that a function of a sampler returns.

    Raises:
      ValueError: If the function reads feedback or a field that is missing, or returns a state
        whose structure, shapes or dtypes differ from those of `state`.
    """
    name = f"{type(sampler).__name__}.{function}"
    try:
        after = getattr(sampler, function)(state, *args, **feedback)
    except KeyError as error:
        raise ValueError(
            f"{name} reads {error}, which is neither in the feedback "
            f"({', '.join(sorted(feedback)) or 'none'}) nor a field of the transition: declare it "
            "in Requirements.feedback, feedback_of_new (of `add`) or transition_fields"
        ) from error
    if (new := _types(after)) != (old := _types(state)):
        changed = [f"{x} to {y}" for x, y in zip(old[1], new[1], strict=False) if x != y]
        got = ", ".join(changed) if new[0] == old[0] else type(after).__name__
        raise ValueError(
            f"{name} must return the new state with the structure, shapes and dtypes of the old "
            f"one, a {type(state).__name__}: it " + ("changes " if changed else "returns ") + got
        )
    return after


def check_feedback(
    wanted: frozenset[str], feedback: Mapping[str, Any], function: str, shape: tuple[int, ...]
) -> None:
    """Raise ValueError unless all required feedback is present, one real number per transition.

    `feedback` may contain any of the names in `FEEDBACK`. `shape` is the shape of the transitions,
    such as `[B]`, and `function` is the name of the called function in messages.
    """
    if not wanted <= feedback.keys() <= FEEDBACK | wanted:
        reads, given = (", ".join(sorted(x)) or "no feedback" for x in (wanted, feedback))
        raise ValueError(
            f"{function} requires {reads} and accepts the names in jaxreplay.types.FEEDBACK, got "
            f"{given}"
        )
    for name, values in feedback.items():
        hint = functools.partial(_reduction, name, shape)
        check_array(f"{name} for {function}", values, shape, float, hint)


def _reduction(name: str, shape: tuple[int, ...], given: tuple[int, ...]) -> str:
    """Return advice on reducing feedback to one number per transition, or "" if unclear."""
    if len(shape) != 1:
        return ""
    if given in ((*shape, 1), (1, *shape)):
        return f": use {name}[:, 0]" if given[-1] == 1 else f": use {name}[0]"
    if len(given) == 2 and shape[0] in given:
        return f": reduce it, such as {name}.mean(axis={0 if given[1] == shape[0] else 1})"
    return "" if given else f": pass it before averaging, or use jnp.full({shape[0]}, {name})"


def _types(tree: Tree) -> tuple[Any, list[str]]:
    """Return the structure of a pytree, and the dtypes and shapes of its arrays."""
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [f"{x.dtype}{list(x.shape)}" for x in map(jax.typeof, leaves)]


def _shapes(tree: Tree) -> tuple[Any, list[tuple[int, ...]]]:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [jnp.shape(leaf) for leaf in leaves]


@cached
def _sampler_shapes(
    sampler: Sampler, treedef: Any, kinds: tuple[tuple[tuple[int, ...], Any], ...]
) -> tuple[Any, list[tuple[int, ...]]]:
    """Return the `_shapes` of a sampler's state for a ring with arrays of the given kinds."""
    ring = jax.tree.unflatten(treedef, [jax.ShapeDtypeStruct(*kind) for kind in kinds])

    def init() -> Any:
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), ring)
        return sampler.init(jax.random.key(0), empty)

    return _shapes(jax.eval_shape(init))


def _as_arrays(tree: Tree) -> Tree:
    """Convert the NumPy arrays and NumPy scalars of a pytree to JAX arrays."""

    def convert(leaf: Any) -> Any:
        return jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf

    return jax.tree.map(convert, tree)
