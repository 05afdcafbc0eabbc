"""Networks: multilayer perceptrons, the three image torsos, and heads for values and actions.

Every layer starts from Torch's default, uniform in +-1/sqrt(fan-in) for weights and biases:
the original DQN, TD3 and their successors in the papers were all trained from it
(Fujimoto et al. 2020, App. D).
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from flax import linen as nn

from agents.linear import Dense

Array = jax.Array
Params: TypeAlias = Mapping[str, Any]  # a module's variables: {"params": {layer: {"kernel": ...}}}
Obs: TypeAlias = Any  # observations [B, ...]; one array, though a replay stores any pytree
Layer = Callable[[Array, int], Array]  # (x [B, D], features) -> [B, features], inside a module

Activation: TypeAlias = Literal["relu", "softsign", "tanh"]
Network: TypeAlias = Literal["auto", "mlp", "minatar", "nature", "data_efficient"]

# (channels, kernel size, stride) of each convolution, and the width of the hidden layer after them.
_CONVOLUTIONS = {
    "minatar": ((16, 3, 1),),  # Young & Tian 2019
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. 2015
    "data_efficient": ((32, 5, 5), (64, 5, 5)),  # van Hasselt et al. 2019
}
_HIDDEN = {"minatar": 128, "nature": 512, "data_efficient": 256}

uniform_kernel = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
_small_kernel = nn.initializers.variance_scaling(0.01 / 3, "fan_in", "uniform")  # +-0.1/sqrt(fan)


def uniform_bias(fan_in: int) -> Callable[..., Array]:
    """Return the initialiser of a bias, uniform in +-1/sqrt(fan_in)."""
    bound = fan_in**-0.5

    def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def dense(x: Array, features: int) -> Array:
    """Apply a linear layer to `[B, D]`, inside a module: `-> [B, features]`."""
    bias = uniform_bias(x.shape[-1])
    return Dense(features, kernel_init=uniform_kernel, bias_init=bias)(x)


def _patch_convolution(x: Array, features: int, size: int, stride: int) -> Array:
    """Convolve by patches times a matrix, for small images and kernels.

    Several times faster than a convolution on CPU, and one batched matrix product under vmap
    over seeds; large kernels would cost too much memory.
    """
    patches = jax.lax.conv_general_dilated_patches(
        x, (size, size), (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return dense(patches, features)


def _convolution(x: Array, features: int, size: int, stride: int) -> Array:
    return nn.Conv(
        features,
        (size, size),
        (stride, stride),
        padding="VALID",
        kernel_init=uniform_kernel,
        bias_init=uniform_bias(size * size * x.shape[-1]),
    )(x)


def as_float(obs: Obs) -> Array:
    """Return observations as float32; uint8 images are scaled to [0, 1]."""
    scale = 255.0 if obs.dtype == jnp.uint8 else 1.0
    return obs.astype(jnp.float32) / scale


def flat(obs: Obs) -> Array:
    """Return observations `[B, ...]` as float32 vectors `[B, D]`."""
    return as_float(obs).reshape(obs.shape[0], -1)


class MLP(nn.Module):
    """Layers of the given sizes `[B, D] -> [B, features[-1]]`, the last one linear.

    Between them ReLU from Torch's initial weights, or softsign or tanh from those of Novati &
    Koumoutsakos 2019 (App. D): Glorot's, small ones in the last layer, and biases of 0.
    """

    features: tuple[int, ...]
    activation: Activation = "relu"
    layer: Layer = dense  # of the ReLU network: plain, noisy, normalised ...

    @nn.compact
    def __call__(self, x: Array) -> Array:
        if self.activation != "relu":
            squash = nn.soft_sign if self.activation == "softsign" else jnp.tanh
            for size in self.features[:-1]:
                x = squash(Dense(size, kernel_init=nn.initializers.glorot_uniform())(x))
            return Dense(self.features[-1], kernel_init=_small_kernel)(x)
        for size in self.features[:-1]:
            x = nn.relu(self.layer(x, size))
        return self.layer(x, self.features[-1])


class Torso(nn.Module):
    """Convolutions of a named image network, flattened: `[B, H, W, C] -> [B, D]`.

    84x84 images give D = 3136 ("nature") and 576 ("data_efficient").
    """

    network: Network

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        x = as_float(obs)
        convolve = _patch_convolution if self.network == "minatar" else _convolution
        for features, size, stride in _CONVOLUTIONS[self.network]:
            x = nn.relu(convolve(x, features, size, stride))
        return x.reshape(x.shape[0], -1)


def network_for(shape: tuple[int, ...]) -> Network:
    """Return the name of the network that fits one observation of the given shape.

    Raises:
      ValueError: no network is known for this shape.
    """
    if len(shape) <= 2:
        return "mlp"
    if len(shape) == 3 and shape[:2] == (84, 84):
        return "nature"
    if len(shape) == 3 and shape[:2] == (10, 10):
        return "minatar"
    raise ValueError(
        f"no network fits observations of shape {shape}: name one of {get_args(Network)[1:]}"
    )


def dueling_q(value: Array, advantages: Array) -> Array:
    """Return Q `[n]` from a value `[1]` and advantages `[n]` (Wang et al. 2016, Eq. 9)."""
    return value + advantages - advantages.mean(axis=-1, keepdims=True)


class QNetwork(nn.Module):
    """Action values of every action, `[B, ...] -> [B, num_actions]`.

    With `dueling`, value and advantages have a last hidden layer each and share the rest
    (Wang et al. 2016). `hidden` are the hidden sizes of "mlp"; image networks have their own.
    With `atoms`, each action has a vector of so many outputs, `-> [B, num_actions, atoms]`, and
    value and advantages are vectors too (Hessel et al. 2018). `layer` makes all layers but
    convolutions.
    """

    num_actions: int
    network: Network = "auto"
    hidden: tuple[int, ...] = (64, 64)
    dueling: bool = False
    atoms: int | None = None
    layer: Layer = dense

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        shape = obs.shape[1:]
        network = network_for(shape) if self.network == "auto" else self.network
        if network == "mlp":
            x, hidden = flat(obs), self.hidden
        elif len(shape) == 3:
            x, hidden = Torso(network)(obs), (_HIDDEN[network],)
            if x.shape[-1] == 0:
                raise ValueError(
                    f"network {network!r} needs larger images than {shape}: use network auto"
                )
        else:
            raise ValueError(
                f"network {network!r} needs [H, W, C] images, not shape {shape}: use network auto"
            )
        if not self.dueling:
            return self._head(x, (*hidden, self.num_actions))
        for size in hidden[:-1]:
            x = nn.relu(self.layer(x, size))
        value = self._head(x, (hidden[-1], 1), "value")
        advantages = self._head(x, (hidden[-1], self.num_actions), "advantages")
        if self.atoms is None:
            return dueling_q(value, advantages)
        return jax.vmap(dueling_q, in_axes=-1, out_axes=-1)(value, advantages)

    def _head(self, x: Array, sizes: tuple[int, ...], name: str | None = None) -> Array:
        """Return what a network of `sizes` makes of `x`, the last size times `atoms` if any."""
        *hidden, rows = sizes
        if self.atoms is None:
            return MLP((*hidden, rows), layer=self.layer, name=name)(x)
        out = MLP((*hidden, rows * self.atoms), layer=self.layer, name=name)(x)
        return out.reshape(-1, rows, self.atoms)


class Critic(nn.Module):
    """Q of observations `[B, ...]` and actions `[B, A]`, `-> [B]`.

    `layer` makes the layers of ReLU networks. It may keep variables of its own, such as the running
    statistics of batch normalisation: flax's `critic.apply(..., mutable=[...])` returns the new
    ones, `common.Critique.aux` hands them on, and the agent's state carries them.
    """

    hidden: tuple[int, ...]
    activation: Activation = "relu"
    layer: Layer = dense

    @nn.compact
    def __call__(self, obs: Obs, action: Array) -> Array:
        x = jnp.concatenate([flat(obs), action], axis=-1)
        return MLP((*self.hidden, 1), self.activation, self.layer)(x)[..., 0]


class Actor(nn.Module):
    """Unsquashed outputs `[B, size]` from observations `[B, ...]`; `layer` as in `Critic`."""

    size: int
    hidden: tuple[int, ...]
    activation: Activation = "relu"
    layer: Layer = dense

    @nn.compact
    def __call__(self, obs: Obs) -> Array:
        return MLP((*self.hidden, self.size), self.activation, self.layer)(flat(obs))


def apply(network: nn.Module, params: Params, *inputs: Any) -> Any:
    """Return what a network's `__call__` returns for these inputs, e.g. `[B, n]`."""
    return network.apply(params, *inputs)


def init_twin(critic: nn.Module, key: Array, obs: Obs, action: Array) -> tuple[Params, Params]:
    """Return parameters of two independent critics.

    Two trees and two calls: measured on one core, an update of SAC is 1 % faster so than with one
    stacked tree under vmap for one seed, and 12 % for eight.
    """
    first, second = jax.random.split(key)
    return critic.init(first, obs, action), critic.init(second, obs, action)


def apply_twin(critic: nn.Module, params: tuple[Params, Params], obs: Obs, action: Array) -> Array:
    """Return both critics' Q, `[2, B]`."""
    return jnp.stack([apply(critic, p, obs, action) for p in params])
