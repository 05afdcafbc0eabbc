"""What agents share: optimisers, and regression of critics to a target."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from agents.types import Info
from jaxreplay import objectives
from jaxreplay.types import Array, Objective, Sample, Trust

Params = Any


def require(ok: bool, message: str) -> None:
    """Raise ValueError with `message` unless `ok`."""
    if not ok:
        raise ValueError(message)


def complete(objective: Objective | None, error: Callable[[Array], Array]) -> Objective:
    """Fill in what a method leaves to the agent: weighted means, and the agent's own `error`."""
    objective = objective or objectives.weighted()
    return objective if objective.error is not None else objective._replace(error=error)


def annealed(rate: float, anneal: float) -> optax.Schedule:
    """Return `rate / (1 + anneal k)` at gradient step k (Novati & Koumoutsakos 2019, Eq. 10)."""
    return lambda step: rate / (1.0 + anneal * step)


def adam(
    rate: float, anneal: float = 0.0, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """Make Adam for agents whose importance ratios or advantages may diverge.

    Its step size is annealed, weight decay is added to the gradient (L2), and a gradient that is
    not finite moves nothing.
    """
    inner = optax.adam(annealed(rate, anneal))
    if weight_decay:
        inner = optax.chain(optax.add_decayed_weights(weight_decay), inner)
    return optax.apply_if_finite(inner, max_consecutive_errors=np.iinfo(np.int32).max)


def clipped_adam(rate: float, eps: float, max_norm: float) -> optax.GradientTransformation:
    """Make Adam for gradients of a limited global norm; a `max_norm` of 0 is no limit."""
    inner = optax.adam(rate, eps=eps)
    return optax.chain(optax.clip_by_global_norm(max_norm), inner) if max_norm > 0 else inner


def follow(
    params: Params, target_params: Params, updates: Array, every: int, tau: float = 1.0
) -> Params:
    """Return the target network after so many updates: moved by `tau` at each multiple of `every`.

    A `tau` of 1 copies the online network.
    """
    return jax.lax.cond(
        updates % every == 0,
        lambda: optax.incremental_update(params, target_params, tau),
        lambda: target_params,
    )


def epsilon_greedy(best: Array, key: Array, epsilon: Array, num_actions: int) -> Array:
    """Return the best actions `[E]`, each replaced by a random one with probability `epsilon`."""
    explore_key, action_key = jax.random.split(key)
    explore = jax.random.bernoulli(explore_key, epsilon, best.shape)
    random = jax.random.randint(action_key, best.shape, 0, num_actions, jnp.int32)
    return jnp.where(explore, random, best)


def one_step_target(next_value: Array, reward: Array, discount: Array) -> Array:
    """Return one example's target `r + discount V(s')`; all `[]`."""
    chex.assert_rank([next_value, reward, discount], 0)
    return reward + discount * next_value


def largest(td: Array) -> Array:
    """Return the entry of `td` `[N]` that is largest in size, with its sign.

    The best of the priorities tried for twin critics (Fujimoto et al. 2020, App. D.1).
    """
    chex.assert_rank(td, 1)
    return td[jnp.argmax(jnp.abs(td))]


def value_feedback(q: Array, target: Array) -> dict[str, Array]:
    """Return the feedback of N critics' values `[N, B]` and their common target `[B]`."""
    td = target - q
    largest_td = jax.vmap(largest, in_axes=1)(td)
    return {"td_error": largest_td, "q_value": q.min(axis=0), "target": target}


def trust_feedback(trust: Trust | None) -> dict[str, Array]:
    """Return the feedback about importance ratios `[B]`, if there are any."""
    return {} if trust is None else {"log_ratio": trust.log_ratio}


def tell_trust(info: Info, trust: Trust | None) -> None:
    """Add how far the policy is from the behaviour to what an update tells."""
    if trust is not None:
        info.feedback.update(trust_feedback(trust))
        info.metrics["kl"] = trust.kl.mean()


def critic_gradient(
    q_values: Callable[[Params], Array],
    params: Params,
    target: Array,
    sample: Sample,
    objective: Objective,
    trust: Trust | None = None,
    more: Callable[[Params], Array] | None = None,
) -> tuple[Params, Info]:
    """Differentiate the loss of N critics that share a target.

    Args:
      q_values: `params -> [N, B]`, each critic's value of the sampled actions.
      params: where to evaluate the gradient.
      target: `[B]`, constant under differentiation.
      sample: what the objective may want to look at (weights, aux).
      objective: shapes the loss; its `error` must be set.
      trust: how far the policy is from the behaviour, for objectives that ask.
      more: `params -> []`, what else to minimise.

    Returns:
      The gradient, and an Info whose feedback is `td_error` `[B]`, target - Q of the critic that
      errs most, `q_value` `[B]`, the least Q, and `target` `[B]`.
    """

    def total(params: Params) -> tuple[Array, tuple[Array, Array]]:
        q = q_values(params)  # [N, B]
        td = target - q
        chex.assert_rank([target, td], [1, 2])
        per_sample = objective.error(td).sum(axis=0)
        loss = objective.critic(per_sample, sample, trust)
        return loss + (more(params) if more else 0.0), (loss, q)

    (_, (value, q)), grads = jax.value_and_grad(total, has_aux=True)(params)
    feedback = value_feedback(q, target)
    metrics = {"loss": value, "q_value": q.mean(), "grad_norm": optax.tree.norm(grads)}
    return grads, Info(feedback, metrics)
