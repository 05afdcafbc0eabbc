"""Multilayer perceptrons, image torsos, and value and policy networks.

Weights and biases of ReLU networks are initialised as in Torch, uniformly in +-1/sqrt(fan-in). DQN,
TD3 and their successors were trained with this initialisation (Fujimoto et al. 2020, App. D).
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from flax import linen as nn

from agents.layers import Array, Dense, Layer, LayerNorm, dense, uniform_bias, uniform_kernel

Params: TypeAlias = Mapping[str, Any]  # module variables: {"params": {layer: {"kernel": ...}}}
Obs: TypeAlias = Any  # observations: an array [B, ...], or a tree of arrays, such as a dict

Activation: TypeAlias = Literal["relu", "softsign", "tanh"]
Network: TypeAlias = Literal["auto", "mlp", "minatar", "nature", "data_efficient"]

# (channels, kernel size, stride) per convolution; _HIDDEN is the width of the next hidden layer.
_CONVOLUTIONS = {
    "minatar": ((16, 3, 1),),  # Young & Tian 2019
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. 2015
    "data_efficient": ((32, 5, 5), (64, 5, 5)),  # van Hasselt et al. 2019
}
_HIDDEN = {"minatar": 128, "nature": 512, "data_efficient": 256}
_LEAST_FOR_NATURE = 36  # pixels a side

_small_kernel = nn.initializers.variance_scaling(0.01 / 3, "fan_in", "uniform")  # +-0.1/sqrt(fan)


def _patch_convolution(x: Array, features: int, size: int, stride: int) -> Array:
    """Convolve small images by a matrix product over patches.

    On CPU, the product is several times faster than a convolution, and vmap over seeds turns it
    into one batched matrix product. With large kernels, patches require too much memory.
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
    """Convert observations to float32, with uint8 images scaled to [0, 1]."""
    scale = 255.0 if obs.dtype == jnp.uint8 else 1.0
    return obs.astype(jnp.float32) / scale


def batch_of_one(obs: Obs) -> Obs:
    """Convert one observation `[...]` to a batch `[1, ...]`."""
    return jax.tree.map(lambda x: x[None], obs)


def rows(obs: Obs) -> int:
    """Return the number B of observations `[B, ...]`."""
    return jax.tree.leaves(obs)[0].shape[0]


def flatten(obs: Array) -> Array:
    """Convert observations `[B, ...]` of one array to float32 vectors `[B, D]`."""
    return as_float(obs).reshape(obs.shape[0], -1)


class MLP(nn.Module):
    """A multilayer perceptron `[B, D] -> [B, features[-1]]` with a linear last layer.

    ReLU networks are initialised as in Torch. Softsign and tanh networks are initialised as in
    Novati & Koumoutsakos 2019 (App. D): Glorot weights, small last-layer weights, and zero biases.
    """

    features: tuple[int, ...]
    activation: Activation = "relu"
    layer: Layer = dense  # creates each layer of a ReLU network, such as a noisy layer
    last: Layer | None = None  # creates the last layer of a ReLU network; None: `layer` does

    @nn.compact
    def __call__(self, x: Array) -> Array:
        if self.activation != "relu":
            squash = nn.soft_sign if self.activation == "softsign" else jnp.tanh
            for size in self.features[:-1]:
                x = squash(Dense(size, kernel_init=nn.initializers.glorot_uniform())(x))
            return Dense(self.features[-1], kernel_init=_small_kernel)(x)
        for size in self.features[:-1]:
            x = nn.relu(self.layer(x, size))
        return (self.last or self.layer)(x, self.features[-1])


class ResidualMLP(nn.Module):
    """SimBa's residual network `[B, D] -> [B, features[-1]]` (Lee et al. 2025, Sec. 4).

    `features[:-1]` are the equal widths of the residual blocks. A block adds a perceptron with one
    hidden layer of four times the width to its layer-normalised input.
    """

    features: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = dense(x, self.features[0])
        for size in self.features[:-1]:
            x += dense(nn.relu(dense(LayerNorm()(x), 4 * size)), size)
        return dense(LayerNorm()(x), self.features[-1])


class Torso(nn.Module):
    """Convolutional layers with flattened output, `[B, H, W, C] -> [B, D]`.

    For 84x84 images, the output size D is 3136 ("nature") or 576 ("data_efficient"). With
    `layer_norm`, the channels of each pixel are normalised before the activation.
    """

    network: Network
    layer_norm: bool = False

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        x = as_float(obs)
        convolve = _patch_convolution if self.network == "minatar" else _convolution
        for features, size, stride in _CONVOLUTIONS[self.network]:
            x = convolve(x, features, size, stride)
            if self.layer_norm:  # as a matrix: for one seed on CPU, products of 4-D arrays are slow
                x = LayerNorm()(x.reshape(-1, features)).reshape(x.shape)
            x = nn.relu(x)
        return x.reshape(x.shape[0], -1)


def network_for(shape: tuple[int, ...]) -> Network:
    """Return the default network for the shape of a single observation.

    The default is "mlp" for arrays of at most two axes, "minatar" for images of 3 to 16 pixels a
    side, and "nature" for images of 84 x 84 pixels.

    >>> network_for((84, 84, 4))
    'nature'

    Raises:
      ValueError: If there is no default network for `shape`.
    """
    if len(shape) <= 2:
        return "mlp"
    if len(shape) == 3 and shape[:2] == (84, 84):
        return "nature"
    if len(shape) == 3 and all(3 <= size <= 16 for size in shape[:2]):
        return "minatar"
    raise ValueError(
        f"network 'auto' has no default for observations of shape {shape}: choose one of "
        f"{get_args(Network)[1:]}, or flatten the observations in the environment"
    )


def encode(obs: Obs, network: Network = "auto", layer_norm: bool = False) -> tuple[Array, int]:
    """Convert observations `[B, ...]` to features, inside a module.

    Vectors and scalars are flattened, and images `[B, H, W, C]` pass through a `Torso` each. The
    features of a tree of arrays are joined in the order of `jax.tree.leaves`.

    Args:
      obs: one array, or a tree of arrays such as a dict.
      network: network of all images, or "mlp" to flatten them. "auto" selects the network by
        `network_for`, except that in a tree, it selects "nature" for images of at least 36 pixels
        a side.
      layer_norm: whether convolutions are normalised (see `Torso`).

    Returns:
      Features `[B, D]` float32, and the width of the hidden layer after the torsos: the largest
      width that belongs to one of the torsos, or 0 without images.

    Raises:
      ValueError: If `network` does not fit the images, or "auto" has no default for an array.
    """
    alone = jax.tree_util.all_leaves([obs])
    features, widths = [], []
    for part in jax.tree.leaves(obs):
        name = _network_of(part.shape[1:], network, alone)
        if name == "mlp":
            features.append(flatten(part))
            continue
        features.append(Torso(name, layer_norm)(part))
        widths.append(_HIDDEN[name])
        if features[-1].shape[-1] == 0:
            raise ValueError(
                f"network {name!r} is too deep for images of shape {part.shape[1:]}: use network "
                "'auto'"
            )
    if network not in ("auto", "mlp") and not widths:
        shapes = ", ".join(str(part.shape[1:]) for part in jax.tree.leaves(obs))
        raise ValueError(
            f"network {network!r} requires images [H, W, C], got {shapes}: use network 'auto'"
        )
    return features[0] if alone else jnp.concatenate(features, axis=-1), max(widths, default=0)


def _network_of(shape: tuple[int, ...], network: Network, alone: bool) -> Network:
    """Return the network for one array; `alone` means that the observation has no other array."""
    is_image = len(shape) == 3
    if network != "auto":
        return network if is_image else "mlp"
    large = is_image and min(shape[:2]) >= _LEAST_FOR_NATURE
    return "nature" if large and not alone else network_for(shape)


def flat_or_encoded(obs: Obs) -> Array:
    """Return features `[B, D]`: flatten a single array, or `encode` a tree of arrays."""
    return flatten(obs) if jax.tree_util.all_leaves([obs]) else encode(obs)[0]


def dueling_q(value: Array, advantages: Array) -> Array:
    """Combine value `[..., 1]` and advantages `[..., n]` into Q (Wang et al. 2016, Eq. 9)."""
    return value + advantages - advantages.mean(axis=-1, keepdims=True)


class QNetwork(nn.Module):
    """Q-values for all actions, `[B, ...] -> [B, num_actions]`; `encode` reads observations.

    With `dueling`, the value and advantage streams have separate last hidden layers and share all
    earlier layers (Wang et al. 2016). With `atoms`, the output is `[B, num_actions, atoms]`, and
    value and advantages are combined per atom (Hessel et al. 2018). `hidden` sets the hidden
    layer sizes for "mlp"; image networks have fixed sizes. Without hidden layers, Q-values are
    linear in the observation, without bias: a table if observations are one-hot. Otherwise, `layer`
    creates the hidden and output layers. With `layer_norm`, `LayerNorm` follows convolutions and
    hidden layers, before their activations.

    With `fractions` `[B, K]`, the output consists of the quantiles `[B, num_actions, K]` at these
    probabilities. The inputs of the last hidden layer are multiplied by an embedding of the
    fraction, which is computed from `embedding` cosines (Dabney et al. 2018b, Eq. 4, with
    frequencies from 1 to `embedding`).
    """

    num_actions: int
    network: Network = "auto"
    hidden: tuple[int, ...] = (64, 64)
    dueling: bool = False
    atoms: int | None = None
    layer: Layer = dense
    embedding: int = 64
    layer_norm: bool = False

    @nn.compact
    def __call__(self, obs: Obs, fractions: Array | None = None) -> Array:
        x, width = encode(obs, self.network, self.layer_norm)
        hidden = (width,) if width else self.hidden
        if fractions is None:
            return self._values(x, hidden)
        for size in hidden[:-1]:
            x = nn.relu(self._hidden(x, size))
        q = self._values(self._embed(x, fractions), hidden[-1:])  # [B K, num_actions]
        return jnp.moveaxis(q.reshape(*fractions.shape, self.num_actions), 1, 2)

    def _embed(self, x: Array, fractions: Array) -> Array:
        """Multiply features `[B, D]` by embeddings of fractions `[B, K]`; return `[B K, D]`."""
        waves = jnp.pi * jnp.arange(1, self.embedding + 1)
        cosines = jnp.cos(fractions[..., None] * waves).reshape(-1, self.embedding)
        embedded = nn.relu(MLP((x.shape[-1],), name="fractions")(cosines))
        return jnp.repeat(x, fractions.shape[1], axis=0) * embedded

    def _values(self, x: Array, hidden: tuple[int, ...]) -> Array:
        """Apply the remaining hidden layers and the outputs to features `[B, D]`."""
        if not hidden:
            return Dense(self.num_actions, use_bias=False, kernel_init=uniform_kernel)(x)
        if not self.dueling:
            return self._head(x, (*hidden, self.num_actions))
        for size in hidden[:-1]:
            x = nn.relu(self._hidden(x, size))
        value = self._head(x, (hidden[-1], 1), "value")
        advantages = self._head(x, (hidden[-1], self.num_actions), "advantages")
        if self.atoms is None:
            return dueling_q(value, advantages)
        return jax.vmap(dueling_q, in_axes=-1, out_axes=-1)(value, advantages)

    def _head(self, x: Array, sizes: tuple[int, ...], name: str | None = None) -> Array:
        """Apply an MLP `[B, D] -> [B, sizes[-1]]`, or `[B, sizes[-1], atoms]` if `atoms` is set."""
        *hidden, outputs = sizes
        if self.atoms is None:
            return self._mlp((*hidden, outputs), name)(x)
        out = self._mlp((*hidden, outputs * self.atoms), name)(x)
        return out.reshape(-1, outputs, self.atoms)

    def _mlp(self, sizes: tuple[int, ...], name: str | None) -> MLP:
        return MLP(sizes, layer=self._hidden, last=self.layer, name=name)

    @property
    def _hidden(self) -> Layer:
        """Function that creates a hidden layer."""
        layer = self.layer
        return (lambda x, features: LayerNorm()(layer(x, features))) if self.layer_norm else layer


class Critic(nn.Module):
    """Q-values `[B]` for observations `[B, ...]` and actions `[B, A]`.

    `layer` and `last` create the layers of ReLU networks; `residual` selects a `ResidualMLP`.
    Layers may have mutable variables, such as batch normalisation statistics.
    `critic.apply(..., mutable=[...])` then returns the new values (see `ensembles.apply_learning`),
    which the agent stores in its state.
    """

    hidden: tuple[int, ...]
    activation: Activation = "relu"
    layer: Layer = dense
    last: Layer | None = None
    residual: bool = False

    @nn.compact
    def __call__(self, obs: Obs, action: Array) -> Array:
        x, sizes = jnp.concatenate([flat_or_encoded(obs), action], axis=-1), (*self.hidden, 1)
        if self.residual:
            return ResidualMLP(sizes)(x)[..., 0]
        return MLP(sizes, self.activation, self.layer, self.last)(x)[..., 0]


class Actor(nn.Module):
    """Unbounded outputs `[B, size]` for observations `[B, ...]`; for its options, see `Critic`."""

    size: int
    hidden: tuple[int, ...]
    activation: Activation = "relu"
    layer: Layer = dense
    last: Layer | None = None
    residual: bool = False

    @nn.compact
    def __call__(self, obs: Obs) -> Array:
        x, sizes = flat_or_encoded(obs), (*self.hidden, self.size)
        if self.residual:
            return ResidualMLP(sizes)(x)
        return MLP(sizes, self.activation, self.layer, self.last)(x)


class Value(MLP):
    """An `MLP` of observations `[B, ...]`, with the parameter tree of an MLP."""

    @nn.compact
    def __call__(self, obs: Obs) -> Array:
        return super().__call__(flat_or_encoded(obs))


def apply(network: nn.Module, params: Params, *inputs: Any, key: Array | None = None) -> Any:
    """Apply a network to batched inputs, and return its output, such as values `[B, n]`.

    A `key` switches dropout on.
    """
    return network.apply(params, *inputs, rngs=None if key is None else {"dropout": key})


def learning(
    network: nn.Module, variables: Params, *inputs: Any, key: Array | None = None
) -> tuple[Any, Params]:
    """Apply a network with batch normalisation, and return its output and the new statistics.

    The statistics are `{"batch_stats": ...}`, or empty for networks without `BatchRenorm`.
    """
    rngs = None if key is None else {"dropout": key}
    return network.apply(variables, *inputs, rngs=rngs, mutable=["batch_stats"])
