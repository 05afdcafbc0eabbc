"""Advantages with closed-form expectations under a Gaussian policy (Novati & Koumoutsakos 2019).

Each advantage is a function of the action that peaks at the policy mean, minus the expectation of
that function under the policy `N(mean, variance)`. The advantage therefore has expectation 0. All
functions process a single example: actions, means and variances are `[A]`, for A action dimensions.
Equation numbers refer to the paper.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay.types import Array

FormName: TypeAlias = Literal["dg", "sg", "quadratic", "none"]


class Form(NamedTuple):
    """A parametrisation of the advantage function for A action dimensions.

    * `size(A) -> int`: number of network outputs.
    * `bias(A) -> [size]`: initial output biases.
    * `advantage(outputs[size], action[A], mean[A], variance[A]) -> []`
    """

    size: Callable[[int], int]
    bias: Callable[[int], np.ndarray]
    advantage: Callable[[Array, Array, Array, Array], Array]


def lower_triangular(outputs: Array, size: int) -> Array:
    """Return a lower triangular matrix `[A, A]` from outputs `[A (A + 1) / 2]`.

    The diagonal is positive.
    """
    rows, columns = np.tril_indices(size)
    values = jnp.where(rows == columns, jax.nn.softplus(outputs), outputs)
    return jnp.zeros((size, size), outputs.dtype).at[rows, columns].set(values)


def quadratic(factor: Array, action: Array, mean: Array) -> Array:
    """Return `-1/2 (a - m)^T L L^T (a - m)` `[]` for action a, mean m and factor L `[A, A]`.

    Gu et al. 2016, Eq. 4.
    """
    return -0.5 * jnp.square((action - mean) @ factor).sum()


def quadratic_expectation(factor: Array, variance: Array) -> Array:
    """Return the expectation of `quadratic`, `-1/2 Tr(L L^T Sigma)` `[]`.

    L is `factor`, and Sigma is the diagonal policy covariance. Eq. 15 of the paper omits -1/2;
    Monte Carlo sampling confirms that it is needed.
    """
    return -0.5 * (jnp.square(factor).sum(axis=1) * variance).sum()


def gaussian(height: Array, below: Array, above: Array, action: Array, mean: Array) -> Array:
    """Return `K exp(-1/2 sum_i d_i^2 / L_i)` `[]`, where d is `action - mean` (Eq. 14).

    K is `height` `[]`. L_i is the squared width in dimension i, `above[i]` if d_i is positive
    and `below[i]` otherwise. Equal widths yield the symmetric form in Eq. 13.
    """
    distance = action - mean
    width = jnp.where(distance > 0, above, below)
    return height * jnp.exp(-0.5 * (jnp.square(distance) / width).sum())


def gaussian_expectation(height: Array, below: Array, above: Array, variance: Array) -> Array:
    """Return the expectation `[]` of `gaussian` under the policy (Eq. 16 to 18)."""
    halves = jnp.sqrt(above / (above + variance)) + jnp.sqrt(below / (below + variance))
    return height * jnp.prod(0.5 * halves)


def _quadratic(outputs: Array, action: Array, mean: Array, variance: Array) -> Array:
    factor = lower_triangular(outputs, action.size)
    return quadratic(factor, action, mean) - quadratic_expectation(factor, variance)


def _two_sided_gaussian(outputs: Array, action: Array, mean: Array, variance: Array) -> Array:
    height, *widths = jnp.split(jax.nn.softplus(outputs), [1, 1 + action.size])
    above, below = widths
    height = height[0]
    value = gaussian(height, below, above, action, mean)
    return value - gaussian_expectation(height, below, above, variance)


def _symmetric_gaussian(outputs: Array, action: Array, mean: Array, variance: Array) -> Array:
    return _two_sided_gaussian(jnp.concatenate([outputs, outputs[1:]]), action, mean, variance)


def _no_advantage(outputs: Array, action: Array, mean: Array, variance: Array) -> Array:
    del outputs, action, mean, variance
    return jnp.zeros(())


def _gaussian_bias(widths: int) -> np.ndarray:
    return np.r_[-1.0, np.ones(widths)].astype(np.float32)  # for the height, then for the widths


FORMS: Mapping[FormName, Form] = MappingProxyType(
    {
        "dg": Form(lambda a: 1 + 2 * a, lambda a: _gaussian_bias(2 * a), _two_sided_gaussian),
        "sg": Form(lambda a: 1 + a, lambda a: _gaussian_bias(a), _symmetric_gaussian),
        "quadratic": Form(
            lambda a: a * (a + 1) // 2, lambda a: np.zeros(a * (a + 1) // 2, np.float32), _quadratic
        ),
        "none": Form(lambda a: 0, lambda a: np.zeros(0, np.float32), _no_advantage),
    }
)
