"""The permutation-equivariant score network of NERS (Oh et al. 2021, Sec. 2.2).

Each score depends on its own transition and, through an average over all transitions, on the rest.
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn

from jaxreplay.types import Array

_ENCODED = (256, 64, 32)  # dense layers after the convolutions, as in the authors' code
# (channels, kernel, stride) of each convolution: two for 84 x 84 images, as in van Hasselt et al.
# 2019, and a small one for grids such as MinAtar.
_LARGE = ((32, 5, 5), (64, 5, 5))
_SMALL = ((16, 3, 1),)
_SMALL_SIDE = 24
_LEAST = 1e-6


class Features(NamedTuple):
    """Network inputs for m transitions; observations are None if the config excludes them."""

    obs: Array | None  # [m, ...]
    next_obs: Array | None  # [m, ...]
    scalars: Array  # [m, k]: action, reward, time, squashed TD error, squashed Q value


class ScoreNetwork(nn.Module):
    """Computes scores `[m]` float32 in (0, 1) for m transitions.

    `sigma_k = f_s(f_l(D_k) + mean_j f_g(D_j))`, where D_k are the features of transition k and +
    concatenates (Oh et al. 2021, Eq. 4), with a final sigmoid as in the authors' code.

    Attributes:
      hidden: layer sizes of f_l and f_g; the last layer is linear.
      score_hidden: hidden layer sizes of f_s.
      global_context: whether to use f_g; False is the paper's ablation.
      squash: whether to apply tanh to all features, as in the authors' code.
    """

    hidden: tuple[int, ...] = (128, 256, 128, 64)
    score_hidden: tuple[int, ...] = (128, 64)
    global_context: bool = True
    squash: bool = False

    @nn.compact
    def __call__(self, features: Features, valid: Array | None = None) -> Array:
        """Return the scores; the average includes only transitions that are `valid` `[m]`."""
        x = self._join(features)
        if self.squash:
            x = jnp.tanh(x)
        local = _layers(x, self.hidden, "local")
        if self.global_context:
            outputs = _layers(x, self.hidden, "global")  # [m, d_g]
            weight = jnp.ones(len(x)) if valid is None else valid.astype(jnp.float32)
            mean = (weight[:, None] * outputs).sum(axis=0) / jnp.maximum(weight.sum(), 1.0)
            local = jnp.concatenate([local, jnp.broadcast_to(mean, outputs.shape)], axis=1)
        logit = _layers(local, (*self.score_hidden, 1), "score")[:, 0]
        return jnp.maximum(nn.sigmoid(logit), _LEAST)  # log(0) would turn all parameters into NaN

    def _join(self, features: Features) -> Array:
        """Concatenate all features; images in `obs` and `next_obs` share one encoder."""
        images = [obs for obs in (features.obs, features.next_obs) if obs is not None]
        parts = []
        if images and images[0].ndim == 4:
            encoder = ImageEncoder(name="encoder")
            parts = [encoder(obs) for obs in images]
        else:
            parts = [obs.astype(jnp.float32).reshape(len(obs), -1) for obs in images]
        return jnp.concatenate([*parts, features.scalars], axis=1)


class ImageEncoder(nn.Module):
    """Encodes images `[m, H, W, C]` as `[m, 32]` with convolutions and dense layers, using ReLU."""

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        x = obs.astype(jnp.float32) / (255.0 if obs.dtype == jnp.uint8 else 1.0)
        for channels, size, stride in _SMALL if obs.shape[1] <= _SMALL_SIDE else _LARGE:
            x = nn.relu(nn.Dense(channels)(_patches(x, size, stride)))
        x = x.reshape(len(x), -1)
        for width in _ENCODED:
            x = nn.relu(nn.Dense(width)(x))
        return x


def _patches(x: Array, size: int, stride: int) -> Array:
    """Extract patches `[m, h, w, size * size * C]` from `[m, H, W, C]`.

    A convolution expressed as a matrix product remains a single product under vmap over seeds.
    """
    rows = range(size)
    height, width = ((side - size) // stride + 1 for side in x.shape[1:3])
    cut = [
        x[:, i : i + stride * height : stride, j : j + stride * width : stride]
        for i in rows
        for j in rows
    ]
    return jnp.concatenate(cut, axis=-1)


def _layers(x: Array, sizes: tuple[int, ...], name: str) -> Array:
    """Apply dense layers with ReLU between layers; the last layer is linear."""
    for number, size in enumerate(sizes):
        x = nn.Dense(size, name=f"{name}_{number}")(x)
        if number < len(sizes) - 1:
            x = nn.relu(x)
    return x
