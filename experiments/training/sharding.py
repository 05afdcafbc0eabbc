"""One run on several devices, over which its environments, replay and batches are sharded.

Parameters, optimiser states and step counters are the same on every device: gradients are averaged,
and every device plays the same evaluations. All else is sharded: a device steps its own
environments, stores their transitions, and draws its share of each batch from them. The sharded
parts of the state have a leading axis of devices, `[D, ...]`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.training.compiling import Flags, Traced, Waiting, until_stable
from experiments.training.config import LoopConfig
from experiments.training.state import Keys, LoopState, a_key
from jaxreplay import devices

_WHOLE, _PART = cast(Any, P()), cast(Any, P(devices.AXIS))
SPECS = LoopState(*[_PART] * len(LoopState._fields))._replace(
    keys=Keys(_PART, _PART, _PART, evaluate=_WHOLE, inspect=_PART),
    rows=_WHOLE,
    updates=_WHOLE,
    agent=_WHOLE,
)  # how the mesh divides the fields of a state


def make_mesh(places: Sequence[jax.Device] | np.ndarray) -> Mesh:
    """Return the mesh of a run on these devices."""
    return Mesh(np.array(places), (devices.AXIS,))


def resolve(config: LoopConfig, mesh: Mesh | None) -> tuple[LoopConfig, Mesh | None]:
    """Return the config with the number of devices as `mesh`, and the mesh (None for one device).

    Raises:
      ValueError: the mesh has several axes or another size than the config says, or there are too
        few devices.
    """
    if mesh is None:
        places = jax.devices()
        if config.mesh > len(places):
            raise ValueError(
                f"mesh {config.mesh} needs {config.mesh} devices, and JAX finds {len(places)}: use "
                "a smaller mesh"
            )
        return config, make_mesh(places[: config.mesh]) if config.mesh > 1 else None
    if mesh.devices.ndim != 1:
        raise ValueError(
            f"mesh must have one axis, got {mesh.axis_names}: use jax.make_mesh((4,), 'd')"
        )
    if config.mesh not in (1, mesh.size):
        raise ValueError(
            f"mesh {config.mesh} differs from the given mesh of {mesh.size} devices: use mesh "
            f"{mesh.size}, or leave out the option mesh"
        )
    config = dataclasses.replace(config, mesh=mesh.size)
    return config, make_mesh(mesh.devices) if mesh.size > 1 else None


def divided(
    init: Callable[..., LoopState], chunk: Callable[..., Any], mesh: Mesh
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `init` and `chunk` of a Program on a mesh, given the functions of one device."""

    def own_init(key: Any) -> LoopState:
        return _map_parts(lambda x: x[None], init(key))

    def own_chunk(state: LoopState, blocks: Any) -> Any:
        state = _map_parts(lambda x: x.reshape(x.shape[1:]), state)
        traced = Traced(chunk, state, blocks)
        check(Traced(init, a_key()), traced)
        state, metrics = traced(state, blocks)
        return _map_parts(lambda x: x[None], state), metrics

    # JAX's check of equal values would reject environments with loops; `check` replaces it.
    return (
        jax.shard_map(own_init, mesh=mesh, in_specs=P(), out_specs=SPECS, check_vma=False),
        jax.shard_map(
            own_chunk, mesh=mesh, in_specs=(SPECS, P()), out_specs=(SPECS, P()), check_vma=False
        ),
    )


def check(init: Traced, chunk: Traced) -> None:
    """Check that devices agree on the parts of a state and the metrics that they share.

    `init` and `chunk` contain the whole program: the warm-up, measurements after it, blocks,
    evaluations and log points. The check follows dependencies in the traced functions. A value may
    differ between devices if it depends on the number of a device (and so on its keys) without a
    reduction over devices in between. Numbers are not compared, so a value that is equal for
    another reason counts as different. Branches and loops with messages (collective operations)
    must not depend on such values: a device would wait forever for messages that others do not
    send.

    Args:
      init: `init` of one device.
      chunk: `chunk` of one device.

    Raises:
      ValueError: devices may differ in a part of the agent or a metric, or in their messages.
    """

    def depends(part: Traced, flags: Flags) -> Flags:
        return part.depends(flags, False, on_device=True)

    state, metrics = chunk.outputs
    specs = jax.tree.leaves(specs_of(state), is_leaf=lambda x: isinstance(x, P))
    size = len(specs)
    try:
        differs = until_stable(lambda flags: depends(chunk, flags)[:size], depends(init, [False]))
        differs += depends(chunk, differs)[size:]
    except Waiting as error:
        raise ValueError(
            f"mesh: {error}, so devices would wait for each other: use mesh 1, or another agent"
        ) from None
    shared = [spec == _WHOLE for spec in specs] + [True] * len(jax.tree.leaves(metrics))
    leaves = jax.tree.leaves_with_path((state, metrics))
    for (path, _), is_shared, differ in zip(leaves, shared, differs, strict=True):
        if differ and is_shared:
            raise ValueError(
                f"mesh: devices would disagree on {jax.tree_util.keystr(path[1:]).lstrip('.')}, "
                "because this agent with these options does not average it over devices: use mesh "
                "1, or another agent"
            )


def specs_of(state: LoopState) -> Any:
    """Return a pytree with the PartitionSpec of every leaf of a state."""
    return jax.tree.map(
        lambda spec, part: jax.tree.map(lambda _: spec, part),
        SPECS, state, is_leaf=lambda x: isinstance(x, P),
    )  # fmt: skip


def shardings(mesh: Mesh, axes: Any, state: LoopState) -> Any:
    """Return a pytree with the sharding of every leaf of the state of many seeds.

    Args:
      mesh: the mesh.
      axes: 0 for leaves with a leading axis of seeds, otherwise None.
      state: the state, or shapes and dtypes.
    """

    def place(axis: int | None, spec: Any) -> NamedSharding | None:
        if spec is None:  # an empty part of the state
            return None
        return NamedSharding(mesh, spec if axis is None else P(None, *spec))

    return jax.tree.map(place, axes, specs_of(state), is_leaf=lambda axis: axis is None)


def _map_parts(function: Callable[[Any], Any], state: LoopState) -> LoopState:
    """Map a function over the arrays that are sharded over devices."""
    return jax.tree.map(
        lambda spec, x: function(x) if spec == _PART else x,
        specs_of(state), state, is_leaf=lambda x: isinstance(x, P),
    )  # fmt: skip
