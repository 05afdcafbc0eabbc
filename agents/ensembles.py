"""Ensembles of critics: initialisation, evaluation of all or some members, and their statistics.

The parameters of one or two critics are a tuple of trees. The parameters of three or more critics
are one tree of stacked arrays `[N, ...]`, evaluated in one batched product: Adam and target
networks then take one operation per layer, and compile time does not grow with N. Loops on
accelerators stack two critics as well, by `stack_pairs`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from agents.networks import Obs, Params, apply, learning
from jaxreplay.types import Array

Ensemble: TypeAlias = Any  # a tuple of N trees of variables, or one tree of arrays [N, ...]


def init_ensemble(critic: nn.Module, key: Array, obs: Obs, action: Array, size: int) -> Ensemble:
    """Initialise `size` critics independently, and return their variables.

    For two critics, two parameter trees and two calls are faster than one stacked tree under vmap.
    On one core, they save 1 % of the time of a SAC update for one seed and 12 % for eight seeds.
    """
    keys = jax.random.split(key, size)
    if size <= 2:
        return tuple(critic.init(key, obs, action) for key in keys)
    return jax.vmap(lambda key: critic.init(key, obs, action))(keys)


def map_members(
    function: Callable[..., Any],
    ensemble: Ensemble,
    key: Array | None = None,
    inputs: Sequence[Any] | None = None,
) -> Any:
    """Apply a function to every member, and return its stacked outputs `[N, ...]`.

    Args:
      function: maps the parameters of a member, its element of `inputs` (if `inputs` is given) and
        its key (if `key` is given) to a pytree of arrays.
      ensemble: the members.
      key: PRNG key, split into one key per member; None for functions without a key.
      inputs: one pytree per member, all of the same structure and shapes; None for functions
        without this argument.
    """
    if not isinstance(ensemble, tuple):
        size = _size(ensemble)
        more = () if inputs is None else (_stack(inputs),)
        keys = () if key is None else (jax.random.split(key, size),)
        return jax.vmap(function)(ensemble, *more, *keys)
    keys = None if key is None else jax.random.split(key, len(ensemble))
    given = [part for part in (ensemble, inputs, keys) if part is not None]
    outputs = [function(*arguments) for arguments in zip(*given, strict=True)]
    return _stack(outputs) if len(outputs) > 1 else jax.tree.map(lambda x: x[None], outputs[0])


def apply_ensemble(
    critic: nn.Module, ensemble: Ensemble, obs: Obs, action: Array, key: Array | None = None
) -> Array:
    """Return the Q-values `[N, B]` of all members; `key` switches dropout on."""

    def value(params: Params, inputs: tuple[Obs, Array], *key: Array) -> Array:
        return apply(critic, params, *inputs, key=key[0] if key else None)

    def shared(ensemble: Ensemble, inputs: tuple[Obs, Array], key: Array | None) -> Array:
        return map_members(lambda params, *key: value(params, inputs, *key), ensemble, key)

    def repeated(ensemble: Ensemble, inputs: tuple[Obs, Array], key: Array | None) -> Array:
        return map_members(value, ensemble, key, [inputs] * 2)

    given = ensemble, (obs, action), key
    if isinstance(ensemble, tuple) or _size(ensemble) != 2:
        return shared(*given)
    # A batched product with inputs that members share would be transposed, by further kernels.
    return jax.lax.platform_dependent(*given, cpu=shared, default=repeated)


def apply_learning(
    critic: nn.Module, ensemble: Ensemble, obs: Obs, action: Array, key: Array | None = None
) -> tuple[Array, Ensemble]:
    """Return the Q-values `[N, B]` of members under batch normalisation, and the new statistics.

    `with_statistics` adds the statistics to an ensemble.
    """

    def value(params: Params, key: Array | None = None) -> tuple[Array, Params]:
        return learning(critic, params, obs, action, key=key)

    q, statistics = map_members(value, ensemble, key)
    if isinstance(ensemble, tuple):
        statistics = tuple(_take(statistics, n) for n in range(len(ensemble)))
    return q, statistics


def stack_pairs(state: Any) -> Any:
    """Return an agent's state with each ensemble of two critics as one tree of stacked arrays.

    A GPU then launches one kernel instead of two. `split_pairs` undoes the stacking.
    """
    return jax.tree.map(lambda x: _stack(x) if _is_pair(x) else x, state, is_leaf=_is_pair)


def split_pairs(state: Any, like: Any) -> Any:
    """Undo `stack_pairs`: return the agent's state with the tuples of `like`.

    Args:
      state: result of `stack_pairs`, or a later state of the same agent.
      like: argument of `stack_pairs`.
    """

    def split(pair: Any, members: Any) -> Any:
        return (_take(members, 0), _take(members, 1)) if _is_pair(pair) else members

    return jax.tree.map(split, like, state, is_leaf=_is_pair)


def _is_pair(node: Any) -> bool:
    """Return whether a node is an ensemble of two critics, or its moments in an optimiser."""
    if type(node) is not tuple or len(node) != 2 or not isinstance(node[0], Mapping):
        return False
    shapes = [jax.tree.map(jnp.shape, member) for member in node]
    return shapes[0] == shapes[1]


def member(ensemble: Ensemble, index: int) -> Params:
    """Return the parameters of one member."""
    return ensemble[index] if isinstance(ensemble, tuple) else _take(ensemble, index)


def trainable(ensemble: Ensemble) -> Ensemble:
    """Return an ensemble without the statistics of its layers, which no gradient changes."""
    if isinstance(ensemble, tuple):
        return tuple({"params": member["params"]} for member in ensemble)
    return {"params": ensemble["params"]}


def with_statistics(ensemble: Ensemble, statistics: Ensemble) -> Ensemble:
    """Add statistics, from `apply_learning` or from another ensemble, to a `trainable` ensemble."""
    if isinstance(ensemble, tuple):
        return tuple(
            {**fixed, **member} for member, fixed in zip(ensemble, statistics, strict=True)
        )
    return {**statistics, **ensemble}


def take(ensemble: Ensemble, members: Array) -> Ensemble:
    """Return the members with these indices `[M]` int32, stacked."""
    return _take(_stack(ensemble) if isinstance(ensemble, tuple) else ensemble, members)


def draw_members(key: Array, size: int, count: int) -> Array:
    """Return the indices `[count]` int32 of members drawn from `size` without replacement."""
    return jax.random.choice(key, size, (count,), replace=False)


def _size(ensemble: Ensemble) -> int:
    return jax.tree.leaves(ensemble)[0].shape[0]


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)


def _take(tree: Any, index: Any) -> Any:
    return cast(Any, jax.tree.map(lambda x: x[index], tree))
