"""N critics with target networks: their losses, gradients and feedback on a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from agents import common, ensembles
from agents.ensembles import Ensemble
from agents.types import Info, Offers
from jaxreplay import devices, equivalence, objectives
from jaxreplay.objectives import Objective
from jaxreplay.types import Array, Sample

# The loss of N critics: (parameters, batch, targets [B], and a key if `Critics.key` is given) ->
# (loss [], Q-values [N, B] of the stored actions).
CriticLoss = Callable[..., tuple[Array, Array]]

VALUES = frozenset({"td_error", "q_value", "target"})  # feedback of `value_feedback`
# of agents that use `critic_feedback`, `fit` and `learn_weights`
CRITIC_OFFERS = Offers(
    VALUES | {"reducible_loss"}, scalar_loss=True, chooses=True, learned_weights=True
)
DENSITY_OFFERS = CRITIC_OFFERS._replace(
    feedback=CRITIC_OFFERS.feedback | {"log_ratio"}, density=True
)


def largest_magnitude(td: Array) -> Array:
    """Return the signed entry `[]` of `td` `[N]` with the largest magnitude.

    Fujimoto et al. 2020 found this TD error the best priority for twin critics (App. D.1). Ties
    resolve to the positive entry. The result is NaN if any entry is NaN.
    """
    chex.assert_rank(td, 1)
    highest, lowest = td.max(), td.min()
    return jnp.where(highest >= -lowest, highest, lowest)


def mean_magnitude(td: Array) -> Array:
    """Return the mean `[]` of the magnitudes of `td` `[N]`.

    Unlike the largest magnitude, it does not grow with the number of critics by noise alone.
    """
    chex.assert_rank(td, 1)
    return jnp.abs(td).mean()


def value_feedback(
    q: Array, target: Array, combine: Callable[[Array], Array] = largest_magnitude
) -> dict[str, Array]:
    """Return feedback such as TD errors for N critics' values `[N, B]` and a target `[B]`.

    Args:
      q: `[N, B]`, Q-values of the critics.
      target: `[B]`.
      combine: maps the errors `[N]` of a transition, target minus Q, to its TD error `[]`.

    Returns:
      A dict of float32 arrays `[B]`: `td_error`, by default the error of the critic with the
      largest absolute error; `q_value`, the minimum of Q over the critics; and `target`.
    """
    td_error = jax.vmap(combine, in_axes=1)(target - q)
    return {"td_error": td_error, "q_value": q.min(axis=0), "target": target}


class Critics(NamedTuple):
    """N critics with target networks: a function and its parameters."""

    value: Callable[..., Array]  # maps parameters and transitions [B, ...] to Q [B]
    params: Ensemble  # of the N critics
    lagged: Ensemble  # of their N target networks
    key: Array | None = None  # for dropout; if given, `value` takes a key after the transitions
    combine: Callable[[Array], Array] = largest_magnitude  # see `value_feedback`

    def values(self, params: Ensemble, transition: Any) -> Array:
        """Return the Q-values `[N, B]` of critics with these parameters."""
        return ensembles.map_members(
            lambda member, *key: self.value(member, transition, *key), params, self.key
        )


def critic_feedback(
    critics: Critics, transition: Any, target: Array, objective: Objective
) -> dict[str, Array]:
    """Return `value_feedback` and `reducible_feedback` for transitions `[B, ...]`."""
    q = critics.values(critics.params, transition)
    feedback = value_feedback(q, target, critics.combine)
    return feedback | reducible_feedback(critics, transition, target, objective)


def critic_gradient(
    critics: Critics, transition: Any, weights: Array, target: Array, objective: Objective
) -> Ensemble:
    """Return the gradient of the mean weighted loss of N critics with respect to their parameters.

    Args:
      critics: the critics.
      transition: `[B, ...]`.
      weights: `[B]`.
      target: `[B]`, without gradients.
      objective: objective with a loss on TD errors.
    """

    def loss(params: Ensemble) -> Array:
        return (weights * objective.losses(target - critics.values(params, transition))).mean()

    return jax.grad(loss)(critics.params)


def reducible_feedback(
    critics: Critics, transition: Any, target: Array, objective: Objective
) -> dict[str, Array]:
    """Return the feedback `reducible_loss` `[B]`, or an empty dict unless `objective` requires it.

    The reducible loss is the loss of a critic minus the loss of its target critic, both for the
    targets in `target`, averaged over the critics (Sujit et al. 2022).

    Args:
      critics: the critics.
      transition: `[B, ...]`.
      target: `[B]`.
      objective: objective with a loss on TD errors.
    """
    if "reducible_loss" not in objective.requires.feedback:
        return {}
    errors = [
        target - critics.values(params, transition) for params in (critics.params, critics.lagged)
    ]
    online, lagged = (objective.losses(td) / len(td) for td in errors)
    return {"reducible_loss": online - lagged}


def critic_info(
    loss: Array,
    q: Array,
    target: Array,
    grads: Any,
    combine: Callable[[Array], Array] = largest_magnitude,
) -> Info:
    """Return the feedback and the metrics of a gradient step of N critics.

    Args:
      loss: `[]`.
      q: `[N, B]`.
      target: `[B]`.
      grads: gradients of the critics.
      combine: see `value_feedback`.
    """
    metrics = {"loss": loss, "q_value": q.mean(), "grad_norm": common.global_norm(grads)}
    return Info(value_feedback(q, target, combine), metrics)


class Chosen(NamedTuple):
    """The rows of a batch of candidates from which a critic or the actor learns."""

    rows: Array  # [B] int32
    sample: Sample  # [B, ...], with the weights of the choice


def choose(
    objective: Objective, norms: Array, sample: Sample, key: Array
) -> tuple[list[Chosen], Sample]:
    """Choose the rows of a batch of candidates from which each critic and the actor learn.

    Args:
      objective: objective with `choose`.
      norms: `[N, M]`, norms of the gradients of N critics' losses with respect to their
        outputs.
      sample: M candidates.
      key: PRNG key of the update, from which the choice derives a key of its own.

    Returns:
      A list of N `Chosen`, one per critic, and the batch for the actor.

    Raises:
      ValueError: If `objective.choose` is None, or if devices share the batch.
    """
    if objective.choose is None:
        raise ValueError("objective.choose is None: learn from the whole batch instead")
    if devices.current() is not None:
        raise ValueError(
            "this replay method chooses from all candidates of a batch, which cannot be sharded "
            "over devices: use one device, or another method"
        )
    choice = objective.choose(norms, jax.random.fold_in(key, _CHOICE))

    def rows_of(rows: Array, weights: Array) -> Sample:
        weights = weights * sample.weights[rows]  # of the sampler that drew the candidates
        indices, transition, version = jax.tree.map(
            lambda x: x[rows], (sample.indices, sample.transition, sample.version)
        )
        return Sample(indices, transition, weights, version)

    pairs = zip(choice.rows, choice.weights, strict=True)
    chosen = [Chosen(rows, rows_of(rows, weights)) for rows, weights in pairs]
    return chosen, rows_of(choice.actor, jnp.ones(choice.actor.shape, jnp.float32))


_CHOICE = 0x1ABE12  # distinguishes the key of a choice from the others of an update


def fit(
    loss: CriticLoss,
    critics: Critics,
    sample: Sample,
    target: Array,
    objective: Objective,
    key: Array,
) -> tuple[Ensemble, Info, Sample]:
    """Return the gradients of a loss of N critics, with the targets held constant.

    If the objective chooses from candidates, each critic learns from the rows that are chosen for
    it, and the loss is the sum over the critics. The feedback still refers to all candidates.

    Args:
      loss: the agent's loss.
      critics: the critics.
      sample: batch of B transitions, or candidates.
      target: `[B]`, targets of all transitions.
      objective: objective with `error` set (see `with_default_loss`).
      key: PRNG key of the update, for the choice.

    Returns:
      The gradients of the critics, an Info with `value_feedback`, `reducible_feedback` and the
      metrics of `critic_info`, and the batch from which the actor learns.
    """
    actor = sample
    keys = () if critics.key is None else (critics.key,)
    if objective.choose is None:
        (value, q), grads = jax.value_and_grad(loss, has_aux=True)(
            critics.params, sample, target, *keys
        )
    else:
        q, error = critics.values(critics.params, sample.transition), objective.error
        norms = equivalence.minimal_variance_priority(error or objectives.mse)(target - q)
        choices, actor = choose(objective, norms, sample, key)

        def loss_of(member: Any, chosen: Chosen, *key: Array) -> Array:
            return loss((member,), chosen.sample, target[chosen.rows], *key)[0]

        def total(params: Ensemble) -> Array:
            return ensembles.map_members(loss_of, params, critics.key, choices).sum()

        value, grads = jax.value_and_grad(total)(critics.params)
    value, grads = common.averaged((value, grads))
    info = critic_info(value, q, target, grads, critics.combine)
    info.feedback.update(reducible_feedback(critics, sample.transition, target, objective))
    return grads, info, actor
