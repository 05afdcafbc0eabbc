"""Predicted distributions of returns: probabilities of atoms (C51), or quantiles (QR-DQN, IQN).

A head turns outputs `[B, n, m]` for n actions into Q-values, targets and losses. `agents.rainbow`
selects a head.
"""

import dataclasses
from typing import Protocol

import chex
import jax
import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay.types import Array


class Head(Protocol):
    """A representation of return distributions by network outputs.

    Fractions are probabilities `[B, m]` at which a network evaluates the quantile function. They
    are None for networks that do not take them.
    """

    def mean(self, outputs: Array) -> Array:
        """Return the mean `[...]` of distributions `[..., m]`."""
        ...

    def move(self, outputs: Array, reward: Array, discount: Array) -> Array:
        """Return target distributions `[B, m]`, given distributions `[B, m]` at the next states."""
        ...

    def mean_of_target(self, target: Array) -> Array:
        """Return the mean `[B]` of target distributions `[B, m]`."""
        ...

    def loss(self, target: Array, outputs: Array, fractions: Array | None) -> Array:
        """Return the losses `[B]` of predictions `[B, m]` for the stored actions."""
        ...

    def gradient(self, target: Array, outputs: Array, fractions: Array | None) -> Array:
        """Return the gradients `[B, m]` of `loss` with respect to `outputs`."""
        ...

    def priority(self, loss: Array, target: Array) -> Array:
        """Return the feedback `td_error` `[B]`, given `loss` `[B]` and targets `[B, m]`."""
        del target
        return loss

    def metrics(self, target: Array) -> dict[str, Array]:
        """Return metrics `[]` of target distributions `[B, m]`."""
        ...

    def grid(self, rows: int) -> Array | None:
        """Return the fractions `[rows, K]` of the quantiles whose mean is Q; None by default."""
        del rows
        return None

    def draw(self, key: Array, rows: int) -> tuple[Array | None, Array | None]:
        """Draw fractions for predictions and for targets, `[rows, N]` each; None by default."""
        del key, rows
        return None, None


@dataclasses.dataclass(frozen=True)
class Categorical(Head):
    """Probabilities of m fixed atoms (C51, Bellemare et al. 2017); outputs are logits."""

    support: Array  # [m], evenly spaced atoms in ascending order
    kl: bool = False  # whether the priority is the KL divergence instead of the cross-entropy

    def mean(self, outputs: Array) -> Array:
        return jax.nn.softmax(outputs) @ self.support

    def move(self, outputs: Array, reward: Array, discount: Array) -> Array:
        probability = jax.nn.softmax(outputs)
        return jax.vmap(project, in_axes=(0, 0, 0, None))(
            probability, reward, discount, self.support
        )

    def mean_of_target(self, target: Array) -> Array:
        return target @ self.support

    def loss(self, target: Array, outputs: Array, fractions: Array | None) -> Array:
        del fractions
        return jax.vmap(cross_entropy)(target, outputs)

    def gradient(self, target: Array, outputs: Array, fractions: Array | None) -> Array:
        del fractions
        return jax.nn.softmax(outputs) - target

    def priority(self, loss: Array, target: Array) -> Array:
        return jax.vmap(kl_divergence)(loss, target) if self.kl else loss

    def metrics(self, target: Array) -> dict[str, Array]:
        # A large probability of the end atoms indicates that [v_min, v_max] is too narrow.
        return {"mass_at_ends": (target[:, 0] + target[:, -1]).mean()}


@dataclasses.dataclass(frozen=True)
class Quantiles(Head):
    """Quantiles at the m fractions (i - 1/2) / m (QR-DQN, Dabney et al. 2018a)."""

    kappa: float = 1.0  # of the quantile Huber loss

    def mean(self, outputs: Array) -> Array:
        return outputs.mean(axis=-1)

    def move(self, outputs: Array, reward: Array, discount: Array) -> Array:
        return reward[:, None] + discount[:, None] * outputs

    def mean_of_target(self, target: Array) -> Array:
        return target.mean(axis=-1)

    def loss(self, target: Array, outputs: Array, fractions: Array | None) -> Array:
        if fractions is None:
            fractions = jnp.broadcast_to(midpoints(outputs.shape[-1]), outputs.shape)
        return jax.vmap(quantile_huber, in_axes=(0, 0, 0, None))(
            target, outputs, fractions, self.kappa
        )

    def gradient(self, target: Array, outputs: Array, fractions: Array | None) -> Array:
        return jax.grad(lambda x: self.loss(target, x, fractions).sum())(outputs)

    def metrics(self, target: Array) -> dict[str, Array]:
        return {"target_std": target.std(axis=-1).mean()}


@dataclasses.dataclass(frozen=True)
class ImplicitQuantiles(Quantiles):
    """Quantiles at fractions that the network takes as inputs (IQN, Dabney et al. 2018b)."""

    drawn: int = 32  # N and N', fractions drawn for each prediction and target
    averaged: int = 32  # K, fractions over which Q averages quantiles

    def grid(self, rows: int) -> Array:
        return jnp.broadcast_to(midpoints(self.averaged), (rows, self.averaged))

    def draw(self, key: Array, rows: int) -> tuple[Array, Array]:
        # Rainbow's noise has the key itself.
        drawn = jax.random.uniform(jax.random.fold_in(key, _FRACTIONS), (2, rows, self.drawn))
        return drawn[0], drawn[1]


_FRACTIONS = 0x10AF


def midpoints(count: int) -> Array:
    """Return the fractions (i - 1/2) / m, for i = 1 .. m, `[m]` (Dabney et al. 2018a, Lemma 2).

    >>> midpoints(2).tolist()
    [0.25, 0.75]
    """
    return (jnp.arange(count, dtype=jnp.float32) + 0.5) / count


def quantile_huber(target: Array, quantiles: Array, fractions: Array, kappa: float) -> Array:
    """Return one example's quantile Huber loss `[]` (Dabney et al. 2018b, Eq. 3).

    For differences `u[i, j] = target[j] - quantiles[i]`, the loss is the sum over i and mean over j
    of `|fractions[i] - 1{u < 0}| L(u) / kappa`, with the Huber loss L.

    Args:
      target: `[m']`, samples of the target distribution.
      quantiles: `[m]`, predicted quantiles.
      fractions: `[m]`, probabilities of the predicted quantiles, in (0, 1).
      kappa: difference beyond which L is linear. Dabney et al. 2018a do not divide by it (Eq. 10).
    """
    chex.assert_rank([target, quantiles, fractions], 1)
    chex.assert_equal_shape([quantiles, fractions])
    u = target[None, :] - quantiles[:, None]  # [m, m']
    side = jnp.abs(fractions[:, None] - (u < 0))
    return (side * objectives.huber(kappa)(u) / kappa).mean(axis=1).sum()


def project(probability: Array, reward: Array, discount: Array, support: Array) -> Array:
    """Project one example's target distribution onto the m atoms (Bellemare et al. 2017, Eq. 7).

    Each atom z moves to `reward + discount * z`, clipped to the range of `support`. Linear
    interpolation splits the probability of z between the two neighbouring atoms. Each receives the
    fraction `1 - distance / gap`, where `gap` is the spacing of the atoms.

    Args:
      probability: `[m]`, return distribution of the next state.
      reward: `[]`.
      discount: `[]`, 0 if the episode terminated; all probability then moves to the reward.
      support: `[m]`, evenly spaced atoms in ascending order.
    """
    chex.assert_rank([probability, reward, discount, support], [1, 0, 0, 1])
    chex.assert_equal_shape([probability, support])
    gap = (support[-1] - support[0]) / (support.shape[0] - 1)
    moved = jnp.clip(reward + discount * support, support[0], support[-1])
    share = jnp.clip(1 - jnp.abs(moved[None, :] - support[:, None]) / gap, 0, 1)  # [m, m]
    return share @ probability


def cross_entropy(target: Array, logits: Array) -> Array:
    """Return the cross-entropy `[]` of `softmax(logits)` `[m]` relative to `target` `[m]`."""
    chex.assert_rank([target, logits], 1)
    return -jnp.dot(target, jax.nn.log_softmax(logits))


def kl_divergence(cross_entropy: Array, target: Array) -> Array:
    """Return `KL(target || prediction)` `[]` from their cross-entropy `[]` and `target` `[m]`.

    The divergence is the cross-entropy minus the target entropy, and has the same gradient. Hessel
    et al. 2018 use the divergence as the priority (Sec. "The Integrated Agent").
    """
    chex.assert_rank([cross_entropy, target], [0, 1])
    return jnp.maximum(cross_entropy - jax.scipy.special.entr(target).sum(), 0.0)
