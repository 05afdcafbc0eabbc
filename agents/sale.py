"""SALE: embeddings of observations and actions that predict the next embedding.

Fujimoto et al. 2023.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from agents.layers import dense
from agents.networks import MLP, Obs, Params, apply, flat_or_encoded
from jaxreplay.types import Array

_SMALLEST = 1e-8  # mean magnitude that divides embeddings


class Encoder(NamedTuple):
    """Parameters of an encoder's two networks."""

    state: Params  # observation -> embedding z_s
    pair: Params  # z_s and action -> embedding z_sa, a prediction of the next z_s


class Embedded(NamedTuple):
    """Observations with their embeddings."""

    obs: Obs  # [B, ...]
    state: Array  # [B, Z], z_s
    pair: Any = None  # [B, Z], z_sa; None for actors, which do not read it


def avg_l1_norm(x: Array) -> Array:
    """Divide vectors `[..., D]` by the mean magnitude of their entries.

    >>> avg_l1_norm(jnp.float32([1, -2, 3, 0])).round(2).tolist()
    [0.67, -1.33, 2.0, 0.0]
    """
    return x / jnp.maximum(jnp.abs(x).mean(axis=-1, keepdims=True), _SMALLEST)


class ELUNetwork(nn.Module):
    """A multilayer perceptron with ELU and a linear last layer.

    It maps vectors `[B, D]` or observations to `[B, features[-1]]`.
    """

    features: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Obs) -> Array:
        x = flat_or_encoded(x)
        for size in self.features[:-1]:
            x = nn.elu(dense(x, size))
        return dense(x, self.features[-1])


class EmbeddedCritic(nn.Module):
    """Q-values `[B]` for embedded observations and actions `[B, A]`."""

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, obs: Embedded, action: Array) -> Array:
        x = avg_l1_norm(dense(_joined(flat_or_encoded(obs.obs), action), self.hidden[0]))
        return ELUNetwork((*self.hidden, 1))(_joined(x, obs.pair, obs.state))[..., 0]


class EmbeddedActor(nn.Module):
    """Unbounded outputs `[B, size]` for embedded observations."""

    size: int
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, obs: Embedded) -> Array:
        x = avg_l1_norm(dense(flat_or_encoded(obs.obs), self.hidden[0]))
        return MLP((*self.hidden, self.size))(_joined(x, obs.state))


def init_encoder(network: ELUNetwork, key: Array, obs: Obs, action: Array) -> Encoder:
    """Initialise an encoder whose two networks have the shape of `network`."""
    first, second = jax.random.split(key)
    state = network.init(first, obs)
    return Encoder(state, network.init(second, _joined(encode(network, state, obs), action)))


def encode(network: ELUNetwork, params: Params, obs: Obs) -> Array:
    """Return the embeddings z_s `[B, Z]` of observations, by the parameters `Encoder.state`."""
    return avg_l1_norm(apply(network, params, obs))


def embed(network: ELUNetwork, encoder: Encoder, obs: Obs, action: Array) -> Embedded:
    """Return both embeddings of observations `[B, ...]` and actions `[B, A]`."""
    state = encode(network, encoder.state, obs)
    return with_pair(network, encoder, Embedded(obs, state), action)


def with_pair(network: ELUNetwork, encoder: Encoder, obs: Embedded, action: Array) -> Embedded:
    """Return embedded observations that include the embeddings z_sa of actions `[B, A]`."""
    return obs._replace(pair=apply(network, encoder.pair, _joined(obs.state, action)))


def _joined(*parts: Any) -> Array:
    return jnp.concatenate(parts, axis=-1)
