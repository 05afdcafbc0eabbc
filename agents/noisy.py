"""Noisy linear layers: weights with learned noise explore by themselves (Fortunato et al. 2018)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from agents.networks import Array, Layer, uniform_bias, uniform_kernel

STREAM = "noise"  # the name of the random numbers that layers draw from


def squash(x: Array) -> Array:
    """Return `sgn(x) sqrt(|x|)`, which shapes factorised noise (Fortunato et al. 2018, Sec. 3)."""
    return jnp.sign(x) * jnp.sqrt(jnp.abs(x))


class NoisyDense(nn.Module):
    """A linear layer `[B, D] -> [B, features]` whose weights and biases are noisy.

    `y = (mu_w + sigma_w * eps_w) x + mu_b + sigma_b * eps_b` with factorised Gaussian noise,
    `eps_w[i, j] = f(eps_i) f(eps_j)` and `eps_b[j] = f(eps_j)`, f as `squash`
    (Fortunato et al. 2018, Eq. 9 to 11). Means start uniform in +-1/sqrt(D), as everywhere in
    `agents.networks`; sigmas at `sigma` / sqrt(D) (Sec. 3.2).

    Noise is drawn from the random stream `STREAM`, once for all rows: `module.apply(params, x,
    rngs={STREAM: key})`. Without that stream there is none: the weights are their means.
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
        mean = x @ kernel + bias
        if not self.has_rng(STREAM):
            return mean
        noise = squash(jax.random.normal(self.make_rng(STREAM), (fan_in + self.features,)))
        before, behind = noise[:fan_in], noise[fan_in:]
        # The matrix of noise is an outer product: it scales inputs and outputs, and is never made.
        return mean + behind * ((x * before) @ kernel_sigma + bias_sigma)


def noisy(sigma: float) -> Layer:
    """Return the layer that networks take: `NoisyDense` of an initial sigma."""

    def layer(x: Array, features: int) -> Array:
        return NoisyDense(features, sigma)(x)

    return layer
