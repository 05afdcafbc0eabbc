"""Large batch experience replay, LaBER (Lahire et al. 2022): draws by gradient norm.

A large batch of candidates is drawn uniformly. The agent learns from a part of them, drawn in
proportion to gradient norms of the current networks.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from jaxreplay import numerics, objectives, sum_tree
from jaxreplay.methods import options, uniform
from jaxreplay.objectives import Choice, LossName
from jaxreplay.option import Config, option
from jaxreplay.sampler import Method
from jaxreplay.types import Array

_PAPER = "Lahire et al. 2022"

Weights = Literal["mean", "lazy", "max"]


@dataclasses.dataclass(frozen=True)
class LaBERConfig(Config):
    """Hyperparameters of LaBER."""

    candidates: int = option(
        4, "transitions drawn per transition to learn from", f"code of {_PAPER}", at_least=1
    )
    weights: Weights = option(
        "mean",
        "importance weights of a transition with gradient norm g: mean(g) / g with the mean over "
        "all candidates, so that gradients are unbiased (mean); 1 / g (lazy); or min(g) / g with "
        "the minimum over the chosen transitions (max)",
        f"{_PAPER}: all three; code for Atari: lazy",
    )
    loss: LossName = option("agent", options.LOSS)


@dataclasses.dataclass(frozen=True)
class ChooseByGradient:
    """Chooses B of M candidates for each critic, with probability `norm_i / sum_j norm_j`.

    Draws are independent and with replacement. NaN and infinite norms count as 0. Candidates with a
    norm of 0 are never drawn, unless all norms are 0: draws are then uniform. The actor's rows are
    drawn uniformly with replacement.

    Args:
      candidates: M / B.
      weights: see `LaBERConfig.weights`; 1 if all norms are 0.
    """

    candidates: int = 4
    weights: Weights = "mean"

    def __call__(self, norms: Array, key: Array, /) -> Choice:
        """Return the chosen rows `[N, B]`, their weights `[N, B]`, and the actor's rows `[B]`.

        Args:
          norms: `[N, M]` float32, gradient norms of N critics.
          key: PRNG key.

        Raises:
          ValueError: If M is not a multiple of `candidates`.
        """
        count, rest = divmod(norms.shape[-1], self.candidates)
        if rest:
            raise ValueError(
                f"batch_size must be a multiple of {self.candidates}, the number of candidates per "
                f"transition to learn from, got {norms.shape[-1]}"
            )
        actor_key, *keys = jax.random.split(key, len(norms) + 1)
        chosen = [self._draw(row, key, count) for row, key in zip(norms, keys, strict=True)]
        rows, weights = (jnp.stack(parts) for parts in zip(*chosen, strict=True))
        return Choice(rows, weights, numerics.integers(actor_key, (count,), norms.shape[-1]))

    def _draw(self, norms: Array, key: Array, count: int) -> tuple[Array, Array]:
        norms = jnp.where(jnp.isfinite(norms), norms, 0.0).astype(jnp.float32)
        largest = norms.max()
        norms = jnp.where(largest > 0, norms, 1.0)
        shares = norms / jnp.where(largest > 0, largest, 1.0)  # whose sum does not overflow
        tree = sum_tree.rebuild(sum_tree.init(len(norms)), shares)
        rows = sum_tree.sample(tree, key, count, "iid")
        norm = norms[rows]
        scale = {"mean": norms.mean(), "lazy": jnp.ones(()), "max": norm.min()}[self.weights]
        return rows, scale / norm


sampler = uniform.sampler


def method(config: LaBERConfig = LaBERConfig()) -> Method:
    """Return LaBER: the sampler of uniform replay, and an objective that chooses from its batches.

    The batch size of the replay is the number of candidates, `candidates` times the number of
    transitions from which the agent learns. The agent computes the norms of all candidates for each
    critic without differentiating the network, as derivatives of the loss with respect to its
    output: `|td|` for the squared error, `min(|td|, 1)` for the Huber loss.
    """
    choose = ChooseByGradient(config.candidates, config.weights)
    return Method(
        sampler(), objectives.weighted(objectives.named(config.loss))._replace(choose=choose)
    )
