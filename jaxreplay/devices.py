"""One replay on several devices: reductions over a mesh axis under `jax.shard_map`.

A replay with an `axis_name` is one of D equal parts, each on its own device with its own
environments. Devices add, sample and update at the same times, and each draws its share of the
batch, B / D transitions, from its own part. A transition with priority p on a device whose
priorities sum to S therefore has the probability p / (D S), the expected fraction of the whole
batch. Importance weights, the maximum priority of new transitions, and metrics are computed over
all parts together.

If `axis_name` is None, the functions of this module treat their argument as the only part and
exchange nothing between devices.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp

from jaxreplay.types import Array

AXIS = "replay_devices"  # name of the mesh axis that agents, losses with batch statistics (PAL) and
# compiled training loops use; a replay may use an axis of any name

Tree = TypeVar("Tree")


def current() -> str | None:
    """Return `AXIS` under a `jax.shard_map` over an axis with this name, otherwise None."""
    return AXIS if AXIS in jax.sharding.get_abstract_mesh().manual_axes else None


def count(axis_name: str | None) -> int:
    """Return the number of devices D along a mesh axis; 1 for None."""
    return 1 if axis_name is None else jax.lax.axis_size(axis_name)


def mean(tree: Tree, axis_name: str | None) -> Tree:
    """Return the means over devices of a pytree of floating-point arrays, such as gradients.

    Use `jax.shard_map(..., check_vma=False)`, or differentiate with respect to parameters that
    `loops.varying` has marked; otherwise, JAX itself sums gradients over devices.
    """
    return tree if axis_name is None else jax.lax.pmean(tree, axis_name)


def total(tree: Tree, axis_name: str | None) -> Tree:
    """Return the sums over devices of a pytree of arrays."""
    return tree if axis_name is None else jax.lax.psum(tree, axis_name)


def largest(value: Array, axis_name: str | None) -> Array:
    """Return the elementwise maxima of an array over devices.

    Devices exchange their values as a sum of arrays, each of which is zero outside the device's own
    row. XLA sends this sum and the sum of gradients in one message, which it does not do for a
    maximum.
    """
    if axis_name is None:
        return value
    return _rows(value, axis_name).max(axis=0)


def variance(values: Array, axis_name: str | None) -> Array:
    """Return the variance `[]` of all elements of the devices' arrays, which have equal sizes."""
    if axis_name is None:
        return values.var()
    means, variances = _rows(jnp.stack([values.mean(), values.var()]), axis_name).T
    return variances.mean() + means.var()


def _rows(value: Array, axis_name: str) -> Array:
    """Return the arrays of all devices, `[D, ...]`, as a sum of rows that are zero elsewhere."""
    own = jnp.arange(count(axis_name)) == jax.lax.axis_index(axis_name)
    own = own.reshape(-1, *[1] * value.ndim)
    return jax.lax.psum(jnp.where(own, value[None], jnp.zeros_like(value)[None]), axis_name)


def gathered(values: Array, axis_name: str | None) -> Array:
    """Return the concatenation `[D * n]` of the arrays `[n]` of all devices."""
    if axis_name is None:
        return values
    return jax.lax.all_gather(values, axis_name, tiled=True)


def times(value: Array, axis_name: str | None) -> Array:
    """Return `value * D` in float32.

    The result is the sum over D devices if all devices have the same value. Computing it does not
    require messages between devices.
    """
    return value if axis_name is None else value.astype(jnp.float32) * count(axis_name)


def share(value: Array, axis_name: str | None) -> Array:
    """Return `value / D` for D devices.

    This converts a fraction of one device's part to a fraction of all parts.
    """
    return value if axis_name is None else value / count(axis_name)
