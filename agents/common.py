"""Shared parts of agents: argument checks, optimisers, target networks and critic regression."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from agents.types import Continuous, Discrete, Info
from jaxreplay import objectives
from jaxreplay.loops import if_finite
from jaxreplay.objectives import Objective
from jaxreplay.sampler import Method
from jaxreplay.types import Array, Sample, Trust

P = TypeVar("P")  # learned parameters: a pytree of arrays, of one network or several


def require(ok: bool, message: str) -> None:
    """Raise ValueError with `message` unless `ok`."""
    if not ok:
        raise ValueError(message)


def check_arguments(
    agent: str, action_space: Any, kind: type[Discrete] | type[Continuous], objective: Any
) -> None:
    """Raise ValueError if an agent can't be made with these arguments.

    Args:
      agent: name of the agent, for the message.
      action_space: must be of type `kind`, with at least one action or dimension.
      kind: the type of action space that the agent supports.
      objective: an `Objective`, or None.
    """
    needed, other = "discrete", "continuous"
    if kind is Continuous:
        needed, other = other, needed
    (size,) = kind._fields
    require(
        isinstance(action_space, Discrete | Continuous),
        f"action_space of {agent} is {action_space!r}: it must be {kind.__name__}({size})",
    )
    require(
        isinstance(action_space, kind),
        f"action_space is {action_space}: {agent} needs {needed} actions; choose an agent for "
        f"{other} actions",
    )
    (count,) = action_space
    is_int = isinstance(count, int | np.integer) and not isinstance(count, bool)
    require(
        is_int and int(count) >= 1,
        f"action_space of {agent} is {action_space}: {size} must be an integer of at least 1",
    )
    require(
        objective is None or isinstance(objective, Objective),
        f"objective of {agent} is of type {type(objective).__name__}: it must be an Objective"
        + (", the method's .objective" if isinstance(objective, Method) else ""),
    )


def complete(objective: Objective | None, error: Callable[[Array], Array]) -> Objective:
    """Return the objective with the agent's defaults filled in.

    Args:
      objective: of the replay method; None means losses with importance weights.
      error: the agent's loss of the TD error, used if `objective.error` is None.
    """
    objective = objective or objectives.weighted()
    return objective if objective.error is not None else objective._replace(error=error)


def inverse_time_decay(rate: float, anneal: float) -> optax.Schedule:
    """Return the schedule `rate / (1 + anneal k)` of gradient step k.

    Novati & Koumoutsakos 2019, Eq. 10.
    """
    return lambda step: rate / (1.0 + anneal * step)


def adam(
    rate: float, anneal: float = 0.0, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """Make Adam for agents whose importance ratios or advantages may diverge.

    A gradient that is not finite leaves parameters and moments unchanged.

    Args:
      rate: initial step size.
      anneal: decay of the step size, see `inverse_time_decay`.
      weight_decay: L2 coefficient; the decay term is added to the gradient, before the moments.
    """
    inner = optax.adam(inverse_time_decay(rate, anneal))
    if weight_decay:
        inner = optax.chain(optax.add_decayed_weights(weight_decay), inner)
    return if_finite(inner)


def adam_per_field(anneal: float, **rates: float) -> optax.GradientTransformation:
    """Make `adam` with one step size per field of a NamedTuple of parameters, by field name."""
    optimisers: dict[Any, Any] = {name: adam(rate, anneal) for name, rate in rates.items()}
    return optax.multi_transform(optimisers, lambda params: type(params)(*params._fields))


def clip_gradients(
    inner: optax.GradientTransformation, max_norm: ArrayLike
) -> optax.GradientTransformation:
    """Clip the global norm of the gradients passed to an optimiser; 0 disables clipping."""
    if isinstance(max_norm, jax.Array):  # a traced input of the program, possibly 0
        max_norm = jnp.where(max_norm > 0, max_norm, jnp.inf)
    elif max_norm == 0:
        return inner
    return optax.chain(optax.clip_by_global_norm(max_norm), inner)


def centred_rmsprop(
    rate: float, decay: float, eps: float, eps_in_root: bool
) -> optax.GradientTransformation:
    """Make RMSProp normalised by the standard deviation of the gradient, without momentum.

    Mnih et al. 2015, Tab. 1, after Graves 2013, Eq. 38 to 40. It equals
    `optax.rmsprop(centered=True)`, except that a variance estimate that rounding makes negative, as
    for a nearly constant gradient, is set to 0; optax's steps are NaN there.

    Args:
      rate: step size.
      decay: decay rate of the moments, the running means of the gradient and of its square.
      eps: added to the variance or to the standard deviation, to avoid division by 0.
      eps_in_root: True adds `eps` to the variance, as TensorFlow does; False adds it to the
        standard deviation, as Torch does.
    """

    def init(params: optax.Params) -> optax.ScaleByRStdDevState:
        zeros = optax.tree.zeros_like(params)
        return optax.ScaleByRStdDevState(mu=zeros, nu=zeros)

    def normalise(gradient: Array, mean: Array, square: Array) -> Array:
        variance = jnp.maximum(square - jnp.square(mean), 0.0)
        return gradient / (jnp.sqrt(variance + eps) if eps_in_root else jnp.sqrt(variance) + eps)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        moments = cast(optax.ScaleByRStdDevState, state)
        mu = optax.tree.update_moment(updates, moments.mu, decay, 1)
        nu = optax.tree.update_moment(updates, moments.nu, decay, 2)
        return jax.tree.map(normalise, updates, mu, nu), optax.ScaleByRStdDevState(mu=mu, nu=nu)

    scale = optax.GradientTransformation(init, update)
    return optax.chain(scale, optax.scale_by_learning_rate(rate))


def descend(
    optimiser: optax.GradientTransformation, grads: P, opt_state: optax.OptState, params: P
) -> tuple[P, optax.OptState]:
    """Take one optimiser step; return the new parameters and optimiser state."""
    steps, opt_state = optimiser.update(cast(Any, grads), opt_state, cast(Any, params))
    return cast(P, optax.apply_updates(cast(Any, params), steps)), opt_state


def soft_update(params: P, target_params: P, tau: float) -> P:
    """Return updated target parameters, `tau * params + (1 - tau) * target_params`.

    A `tau` of 1 copies the online network.
    """
    return cast(P, optax.incremental_update(cast(Any, params), cast(Any, target_params), tau))


def periodic_update(params: P, target_params: P, updates: Array, every: int, tau: float = 1.0) -> P:
    """Return the target parameters after a `soft_update` at each multiple of `every` updates.

    `updates` `[]` int32 counts the agent's updates, the current one included.
    """
    return jax.lax.cond(
        updates % every == 0, lambda: soft_update(params, target_params, tau), lambda: target_params
    )


def epsilon_greedy(best: Array, key: Array, epsilon: ArrayLike, num_actions: int) -> Array:
    """Return greedy actions `[E]`, each replaced by a random one with probability `epsilon`."""
    coin, number = jax.random.uniform(key, (2, *best.shape))  # one call hashes once
    return jnp.where(coin < epsilon, uniform_to_action(number, num_actions), best)


def uniform_to_action(number: Array, num_actions: int) -> Array:
    """Map uniform numbers in [0, 1) to int32 actions 0 .. num_actions - 1, equally likely."""
    return (number * num_actions).astype(jnp.int32)


def batched_index(values: Array, action: Array) -> Array:
    """Return the entries `[B, ...]` of `values` `[B, n, ...]` at actions `[B]`.

    Actions outside of 0 .. n-1 give 0.

    >>> batched_index(jnp.float32([[1, 2], [3, 4]]), jnp.int32([1, 0])).tolist()
    [2.0, 3.0]
    """
    chex.assert_rank(action, 1)
    # A masked sum: a gather is slower, and its gradient is a scatter.
    mask = jnp.arange(values.shape[1]) == action[:, None]
    mask = mask.reshape(*mask.shape, *[1] * (values.ndim - 2))
    return jnp.where(mask, values, 0).sum(axis=1)


def largest_magnitude(td: Array) -> Array:
    """Return the entry of `td` `[N]` with the largest magnitude, with its sign, `[]`.

    It is the priority of twin critics that Fujimoto et al. 2020 found best (App. D.1). Of x and -x
    it is the positive one. It is NaN if any entry is.
    """
    chex.assert_rank(td, 1)
    highest, lowest = td.max(), td.min()
    return jnp.where(highest >= -lowest, highest, lowest)


def value_feedback(q: Array, target: Array) -> dict[str, Array]:
    """Return the feedback about values `[N, B]` of N critics with a common target `[B]`.

    Returns:
      `td_error`, target - Q of the critic with the largest error; `q_value`, the minimum over the
      critics; and `target`; each `[B]` float32.
    """
    td_error = jax.vmap(largest_magnitude, in_axes=1)(target - q)
    return {"td_error": td_error, "q_value": q.min(axis=0), "target": target}


def trust_feedback(trust: Trust | None) -> dict[str, Array]:
    """Return the feedback `log_ratio` `[B]`, or an empty dict if `trust` is None."""
    return {} if trust is None else {"log_ratio": trust.log_ratio}


def add_trust(info: Info, trust: Trust | None) -> Info:
    """Return an Info with the feedback `log_ratio` and the metric `kl` added, if they are given."""
    if trust is None:
        return info
    return Info(info.feedback | trust_feedback(trust), info.metrics | {"kl": trust.kl.mean()})


def per_sample_loss(objective: Objective, td: Array) -> Array:
    """Return the losses `[B]` of TD errors `[N, B]`, summed over the critics.

    Raises:
      ValueError: `objective.error` is None (see `complete`).
    """
    if objective.error is None:
        raise ValueError("objective.error is None: set the agent's loss by `complete`")
    return objective.error(td).sum(axis=0)


class Critique(NamedTuple):
    """Values and target of N critics on a batch, as a function of the learned parameters."""

    q: Array  # [N, B] float32, values of the taken actions
    target: Array  # [B] float32
    penalty: Array | float = 0.0  # [] float32, added to the loss
    aux: Any = None  # returned as it is, such as running statistics of normalised layers


def critic_gradient(
    criticise: Callable[[P], Critique],
    params: P,
    sample: Sample,
    objective: Objective,
    trust: Trust | None = None,
) -> tuple[P, Info, Any]:
    """Differentiate the loss of N critics with a common target.

    The loss is `objective.critic(sum_n error(target - q_n), sample, trust) + penalty`. Its gradient
    includes the target's. For a constant target, compute it outside of `criticise`, or apply
    `jax.lax.stop_gradient` inside; compute it inside if it shares a forward pass with the values
    (CrossQ), or for residual gradients.

    Args:
      criticise: `params -> Critique`.
      params: the point at which the gradient is evaluated.
      sample: the batch, passed to the objective (importance weights, aux).
      objective: with its `error` set.
      trust: ratio and divergence of policy and behaviour policy, for objectives that require them.

    Returns:
      The gradient; an Info with `value_feedback` and the metrics `loss`, `q_value` and `grad_norm`;
      and the Critique's `aux`.
    """

    def total(params: P) -> tuple[Array, tuple[Array, Critique]]:
        critique = criticise(params)
        chex.assert_rank([critique.target, critique.q], [1, 2])
        per_sample = per_sample_loss(objective, critique.target - critique.q)
        loss = objective.critic(per_sample, sample, trust)
        return loss + critique.penalty, (loss, critique)

    (_, (loss, critique)), grads = jax.value_and_grad(total, has_aux=True)(params)
    metrics = {"loss": loss, "q_value": critique.q.mean(), "grad_norm": optax.tree.norm(grads)}
    return grads, Info(value_feedback(critique.q, critique.target), metrics), critique.aux
