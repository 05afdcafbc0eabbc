"""Noisy linear layers, which explore through learned weight noise (Fortunato et al. 2018)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from agents.layers import Array, Layer, uniform_bias, uniform_kernel
from agents.networks import Params
from jaxreplay.loops import product

_COLLECTION, _FACTORS = "noise", "factors"  # names of the noise collection in flax and its variable
Noise = Mapping[str, Any]  # noise factors of all noisy layers, nested like the layers


def squash(x: Array) -> Array:
    """Apply `sgn(x) sqrt(|x|)` to noise factors (Fortunato et al. 2018, Sec. 3)."""
    return jnp.sign(x) * jnp.sqrt(jnp.abs(x))


class NoisyDense(nn.Module):
    """A linear layer `[B, D] -> [B, features]` with noisy weights and biases.

    For D inputs x, `y = (mu_w + sigma_w * eps_w) x + mu_b + sigma_b * eps_b` with factorised
    Gaussian noise, `eps_w[i, j] = f(eps_i) f(eps_j)` and `eps_b[j] = f(eps_j)`, where f is `squash`
    (Fortunato et al. 2018, Eq. 9 to 11). Means mu are initialised uniformly in +-1/sqrt(D), as in
    `agents.networks`, and sigmas to `sigma` / sqrt(D) (Sec. 3.2).

    The noise is passed with the parameters (see `with_noise`) and shared across the batch. Without
    noise, the layer uses the mean weights and biases.
    """

    features: int
    sigma: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        fan_in = x.shape[-1]
        constant = nn.initializers.constant(self.sigma * fan_in**-0.5)
        shape = (fan_in, self.features)
        kernel = self.param("kernel", uniform_kernel, shape)
        bias = self.param("bias", uniform_bias(fan_in), shape[1:])
        kernel_sigma = self.param("kernel_sigma", constant, shape)
        bias_sigma = self.param("bias_sigma", constant, shape[1:])
        mean = product(x, kernel) + bias
        if not self.has_variable(_COLLECTION, _FACTORS):
            return mean
        factors = self.get_variable(_COLLECTION, _FACTORS)
        inputs, outputs = factors[:fan_in], factors[fan_in:]
        # eps_w is an outer product, so scale the inputs and outputs instead of each weight.
        return mean + outputs * (product(x * inputs, kernel_sigma) + bias_sigma)


def noisy(sigma: float) -> Layer:
    """Create a `layer` argument for networks, a function that applies `NoisyDense`.

    The initial noise scale is `sigma` / sqrt(D) for D inputs.
    """

    def layer(x: Array, features: int) -> Array:
        return NoisyDense(features, sigma)(x)

    return layer


def draw_noises(params: Params, key: Array, count: int) -> Noise:
    """Draw `count` independent noise samples for all noisy layers.

    Each layer with D inputs has an array `[count, D + features]` of noise factors. A single
    PRNG call compiles and runs faster than one call per layer.
    """
    sizes = {
        path[1:-1]: sum(leaf.shape)
        for path, leaf in sorted(flatten_dict(params).items())  # jit sorts dict keys; init doesn't
        if path[-1] == "kernel_sigma"
    }
    ends = np.cumsum(list(sizes.values()))
    factors = squash(jax.random.normal(key, (count, ends[-1])))
    parts = jnp.split(factors, ends[:-1], axis=1)
    return unflatten_dict(
        {(*path, _FACTORS): part for path, part in zip(sizes, parts, strict=True)}
    )


def with_noise(params: Params, noise: Noise) -> Params:
    """Add one noise sample, `[D + features]` per layer with D inputs, to parameters for `apply`."""
    return {**params, _COLLECTION: noise}
