"""Loss functions of TD errors, and objectives, by which replay methods modify an agent's losses.

A loss function maps TD errors of any shape, such as `[N, B]` for N critics, to losses of the same
shape. TD errors are targets minus values. All loss functions in this module are even.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax.numpy as jnp

from jaxreplay.option import Bounds
from jaxreplay.types import Array, Requirements, Sample, State, Tree, Trust, union

Loss = Callable[[Array], Array]
Reduce = Callable[[Array, Sample, Trust | None], Array]  # maps losses [B] to a scalar loss


def mse(td: Array) -> Array:
    """Return `td^2 / 2`, whose gradient is `td`."""
    return 0.5 * jnp.square(td)


def l1(td: Array) -> Array:
    """Return `|td|`, whose gradient is `sign(td)`."""
    return jnp.abs(td)


def huber(kappa: float = 1.0) -> Loss:
    """Return the Huber loss (Fujimoto et al. 2020, Eq. 2).

    The loss is `td^2 / 2` if `|td| <= kappa`, and `kappa * (|td| - kappa / 2)` otherwise.

    Args:
      kappa: absolute TD error above which the loss is linear, positive.

    Raises:
      ValueError: If `kappa` is not positive.

    Example:
      >>> huber(1.0)(jnp.array([0.5, 2.0])).tolist()
      [0.125, 1.5]
    """
    Bounds(above=0).check("kappa", kappa)

    def loss(td: Array) -> Array:
        size = jnp.abs(td)
        return jnp.where(size <= kappa, 0.5 * jnp.square(td), kappa * (size - 0.5 * kappa))

    return loss


LossName = Literal["agent", "mse", "huber", "l1"]


def named(name: LossName) -> Loss | None:
    """Return a loss by name; "huber" has kappa 1, and "agent" is None, for the agent's own loss."""
    return {"agent": None, "mse": mse, "huber": huber(1.0), "l1": l1}[name]


class Choice(NamedTuple):
    """The rows from which N critics and the actor learn, chosen from a batch of M candidates."""

    rows: Array  # [N, B] int32, rows for each critic
    weights: Array  # [N, B] float32, factors that multiply the `Sample.weights` of these rows
    actor: Array  # [B] int32, rows for the actor


class Choose(Protocol):
    """Choose the rows to learn from; implement it as a frozen dataclass."""

    @property
    def candidates(self) -> int:
        """Number of candidates M / B for each row that is chosen."""
        ...

    def __call__(self, norms: Array, key: Array, /) -> Choice:
        """Return the rows to learn from.

        Args:
          norms: `[N, M]` float32, norms of the loss gradients with respect to the critics' outputs.
            For losses of TD errors, these are `|d loss / d td|`.
          key: PRNG key.
        """
        ...


ValueOf = Callable[[Tree, Tree, Array], Array]  # (params, obs, action) -> values [B] of a network


class LearnedWeights(Protocol):
    """Transition weights that are learned from TD errors; implement it as a frozen dataclass.

    The agent provides a network: the function `value`, and its initial parameters.
    """

    @property
    def hidden(self) -> tuple[int, ...]:
        """Hidden layer sizes of the network."""
        ...

    def init(self, params: Tree, /) -> State:
        """Return the initial state, given the initial parameters of the network."""
        ...

    def weights(self, state: Any, value: ValueOf, sample: Sample, next_action: Array, /) -> Array:
        """Return weights `[B]` float32 in place of `Sample.weights`.

        Args:
          state: state before the update.
          value: function that maps parameters of the network, and observations and actions
            `[B, ...]`, to the network's values `[B]`.
          sample: the batch.
          next_action: `[B, ...]`, actions of the agent in `next_obs`.
        """
        ...

    def learn(
        self, state: Any, value: ValueOf, sample: Sample, next_action: Array, td: Array, /
    ) -> State:
        """Return the state after learning from TD errors `[B]` of the agent before its update."""
        ...

    def metrics(self, state: Any, /) -> dict[str, Array]:
        """Return scalar float32 metrics."""
        ...


class Objective(NamedTuple):
    """The part of a replay method that modifies an agent's losses.

    An agent computes its critic loss as `critic(losses(td_error), sample, trust)`, and its actor
    loss as `actor(losses, sample, trust)`. With `choose`, the batch holds candidates: the
    agent evaluates all candidates without gradients, and each critic learns from the rows that are
    chosen for it, `sum_n critic(error(td_error_n), sample_n, trust)`. With `learned_weights`, the
    agent's state includes the state of the learned weights, which replace `Sample.weights`.
    """

    error: Loss | None  # maps TD errors [N, B], targets minus values of N critics, to losses of the
    # same shape; None uses the agent's default, Huber with kappa 1 for DQN, squared for TD3 and SAC
    critic: Reduce  # for critic losses; `trust` is None if the policy has no action density
    actor: Reduce  # for actor losses
    requires: Requirements = Requirements()  # what the objective requires of agents
    choose: Choose | None = None  # chooses rows of a batch of candidates; None keeps all rows
    learned_weights: LearnedWeights | None = None  # weights with a state; None keeps the weights
    # of the sampler
    roles: bool = False  # whether the position of a row in the batch decides its loss

    def losses(self, td_error: Array) -> Array:
        """Return losses `[B]` for TD errors `[N, B]` of N critics, summed over the critics.

        Raises:
          ValueError: If `error` is None.
        """
        if self.error is None:
            raise ValueError(
                "objective.error is None: set it to the agent's loss with "
                "agents.common.with_default_loss"
            )
        return self.error(td_error).sum(axis=0)

    @property
    def needs(self) -> Requirements:
        """`requires`, together with the properties that follow from the other fields."""
        of_fields = Requirements(
            scalar_loss=self.error is not None,
            chooses=self.choose is not None,
            learned_weights=self.learned_weights is not None,
        )
        return union(self.requires, of_fields)

    @property
    def candidates(self) -> int:
        """Number of transitions to draw per transition that is learned from."""
        return 1 if self.choose is None else self.choose.candidates


def _mean(loss: Array, sample: Sample, trust: Trust | None) -> Array:
    del sample, trust
    return loss.mean()


def _weighted_mean(loss: Array, sample: Sample, trust: Trust | None) -> Array:
    del trust
    return (sample.weights * loss).mean()


def plain(error: Loss | None = None) -> Objective:
    """Return an objective that averages losses over the batch without weights.

    Args:
      error: loss function for TD errors; None uses the agent's default loss.
    """
    return Objective(error=error, critic=_mean, actor=_mean)


def weighted(error: Loss | None = None, actor: bool = False) -> Objective:
    """Return an objective that averages critic losses multiplied by `Sample.weights`.

    Args:
      error: loss function for TD errors; None uses the agent's default loss.
      actor: whether to weight the actor loss as well, as in the code of Novati & Koumoutsakos 2019.
        Fujimoto et al. 2020 do not weight the actor loss in TD3 with PER.
    """
    return Objective(error=error, critic=_weighted_mean, actor=_weighted_mean if actor else _mean)
