"""Layers of networks: linear with Torch's initialisation, dropout, and normalisation."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxreplay.loops import product

Array = jax.Array
Layer = Callable[[Array, int], Array]  # (x [B, D], features) -> y [B, features], inside a module

uniform_kernel = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def _dot_general(x: Array, kernel: Array, dimensions: Any, precision: Any = None) -> Array:
    del dimensions, precision  # flax contracts x's last axis and the kernel's first axis
    return product(x, kernel)


Dense = functools.partial(nn.Dense, dot_general=_dot_general)


def uniform_bias(fan_in: int) -> Callable[..., Array]:
    """Create an initialiser that draws biases uniformly in +-1/sqrt(fan_in)."""
    bound = fan_in**-0.5

    def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def dense(x: Array, features: int) -> Array:
    """Create and apply a linear layer `[B, D] -> [B, features]` inside a module."""
    bias = uniform_bias(x.shape[-1])
    return Dense(features, kernel_init=uniform_kernel, bias_init=bias)(x)


class Dropout(nn.Module):
    """Dropout that is active if the module is applied with a PRNG key (see `apply`).

    Each random 32-bit word masks two units, because drawing the words dominates the cost. The rate
    is therefore rounded to a multiple of 2^-16 below 1.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        if not self.has_rng("dropout"):
            return x
        dropped, size = min(round(self.rate * 2**16), 2**16 - 1), x.shape[-1]
        shape = (*x.shape[:-1], -(-size // 2))
        words = jax.random.bits(self.make_rng("dropout"), shape, jnp.uint32)
        kept = jnp.concatenate([(words & 0xFFFF) >= dropped, (words >> 16) >= dropped], -1)
        return x * (kept[..., :size].astype(x.dtype) / (1 - dropped / 2**16))


# Under vmap over seeds on CPU, sums over an axis and gradients of broadcast vectors take several
# times as long as products with vectors of ones, which the normalisations below use instead.
_dot = functools.partial(jnp.matmul, precision="highest")


class LayerNorm(nn.Module):
    """Layer normalisation of `[B, D]` (Ba et al. 2016), as flax's `nn.LayerNorm`."""

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale, shift = _scale_and_shift(self, x)
        ones = jnp.ones((x.shape[-1], 1), x.dtype)
        centred = x - _dot(_dot(x, ones) / x.shape[-1], ones.T)
        variance = _dot(jnp.square(centred), ones) / x.shape[-1]
        return centred * _dot(jax.lax.rsqrt(variance + self.epsilon), scale[None]) + shift


class BatchRenorm(nn.Module):
    """Batch renormalisation of `[B, D]` (Ioffe 2017, Alg. 1), with a learned scale and shift.

    While the collection "batch_stats" is mutable (see `learning`), the layer normalises by mean and
    variance of the batch, corrected towards the running statistics within bounds, and updates the
    running statistics. Otherwise it normalises by the running statistics. Gradients flow through
    the statistics of the batch, not through the correction.

    The default constants are those of CrossQ (Bhatt et al. 2024). The first `warmup` batches are
    not corrected, so that the layer then performs batch normalisation.
    """

    warmup: int = 100_000
    momentum: float = 0.99
    epsilon: float = 1e-3
    r_max: float = 3.0
    d_max: float = 5.0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        size = x.shape[-1:]
        scale, shift = _scale_and_shift(self, x)
        mean = self.variable("batch_stats", "mean", jnp.zeros, size, jnp.float32)
        variance = self.variable("batch_stats", "variance", jnp.ones, size, jnp.float32)
        # float32: it stays at 2^24, past any warm-up, where an int32 would overflow.
        batches = self.variable("batch_stats", "batches", jnp.zeros, (), jnp.float32)
        running = jnp.sqrt(variance.value + self.epsilon)
        if not self.is_mutable_collection("batch_stats") or self.is_initializing():
            gain = scale / running
            return x * gain + (shift - mean.value * gain)
        own_mean, own_variance = _moments(jax.lax.stop_gradient(x))
        batch_std = jnp.sqrt(own_variance + self.epsilon)
        warm = batches.value >= self.warmup
        r = jnp.where(warm, jnp.clip(batch_std / running, 1 / self.r_max, self.r_max), 1.0)
        d = jnp.clip((own_mean - mean.value) / running, -self.d_max, self.d_max)
        d = jnp.where(warm, d, 0.0)
        for old, new in ((mean, own_mean), (variance, own_variance)):
            old.value = self.momentum * old.value + (1 - self.momentum) * new
        batches.value += 1
        return _standardised(x, own_mean, batch_std, r * scale, d * scale + shift)


def _moments(x: Array) -> tuple[Array, Array]:
    """Return mean and variance `[D]` over the batch of `[B, D]`."""
    ones = jnp.ones(len(x), x.dtype)
    mean = _dot(ones, x) / len(x)
    return mean, _dot(ones, jnp.square(x - mean)) / len(x)


@jax.custom_vjp
def _standardised(x: Array, mean: Array, std: Array, gain: Array, offset: Array) -> Array:
    """Return `(x - mean) / std * gain + offset` for mean and std of the batch.

    The gradient with respect to `x` treats the arguments mean and std as functions of `x`. The
    gradients with respect to mean and std are zero.
    """
    return (x - mean) * (gain / std) + offset


def _standardised_fwd(x: Array, mean: Array, std: Array, gain: Array, offset: Array):
    return _standardised(x, mean, std, gain, offset), (x, mean, std, gain)


def _standardised_bwd(kept, grad: Array):
    x, mean, std, gain = kept
    ones, normal = jnp.ones(len(x), x.dtype), (x - mean) / std
    of_offset, of_gain = _dot(ones, grad), _dot(ones, grad * normal)
    of_x = gain / std * (grad - of_offset / len(x) - normal * (of_gain / len(x)))
    return of_x, jnp.zeros_like(mean), jnp.zeros_like(std), of_gain, of_offset


_standardised.defvjp(_standardised_fwd, _standardised_bwd)


def _scale_and_shift(module: nn.Module, x: Array) -> tuple[Array, Array]:
    size = x.shape[-1:]
    return (
        module.param("scale", nn.initializers.ones, size, jnp.float32),
        module.param("shift", nn.initializers.zeros, size, jnp.float32),
    )


class LayerOptions(NamedTuple):
    """Normalisation and dropout in the layers of an `MLP`."""

    renorm_warmup: int | None = None  # of a `BatchRenorm` before each layer; None: no such layer
    dropout: float = 0.0  # dropout rate after hidden layers
    layer_norm: bool = False  # whether `LayerNorm` follows dropout

    def layers(self) -> tuple[Layer, Layer]:
        """Return the functions that create the hidden layers and the last layer."""
        return (dense if self == LayerOptions() else self._hidden), self._last

    def _last(self, x: Array, features: int) -> Array:
        if self.renorm_warmup is not None:
            x = BatchRenorm(self.renorm_warmup)(x)
        return dense(x, features)

    def _hidden(self, x: Array, features: int) -> Array:
        x = self._last(x, features)
        if self.dropout:
            x = Dropout(self.dropout)(x)
        return LayerNorm()(x) if self.layer_norm else x
