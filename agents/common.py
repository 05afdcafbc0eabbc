"""What agents share: optimisers, feedback, and regression of critics to a target."""

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

P = TypeVar("P")  # what is learned, any pytree of arrays: the parameters of one network, or of two


def require(ok: bool, message: str) -> None:
    """Raise ValueError with `message` unless `ok`."""
    if not ok:
        raise ValueError(message)


def check_made(
    agent: str, action_space: Any, kind: type[Discrete] | type[Continuous], objective: Any
) -> None:
    """Refuse what an agent can't be made with: actions of the other kind, or no objective.

    Raises:
      ValueError: one line that names the agent.
    """
    needed, other = "discrete", "continuous"
    if kind is Continuous:
        needed, other = other, needed
    require(
        isinstance(action_space, Discrete | Continuous),
        f"{agent} was given {action_space!r} as its action space: give {kind.__name__}"
        f"({kind._fields[0]})",
    )
    require(
        isinstance(action_space, kind),
        f"{agent} needs {needed} actions, not {action_space}: choose an agent for {other} actions",
    )
    (count,) = action_space
    whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
    require(
        whole and int(count) >= 1,
        f"{agent} was given {action_space}: {kind._fields[0]} must be a whole number of at least 1",
    )
    require(
        objective is None or isinstance(objective, Objective),
        f"{agent} takes a replay method's objective, not a {type(objective).__name__}"
        + (": give its .objective" if isinstance(objective, Method) else ""),
    )


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
    not finite leaves parameters and moments as they are.
    """
    inner = optax.adam(annealed(rate, anneal))
    if weight_decay:
        inner = optax.chain(optax.add_decayed_weights(weight_decay), inner)
    return if_finite(inner)


def adam_of_fields(anneal: float, **rates: float) -> optax.GradientTransformation:
    """Make `adam` with a step size for each field of a NamedTuple of parameters, by its name."""
    optimisers: dict[Any, Any] = {name: adam(rate, anneal) for name, rate in rates.items()}
    return optax.multi_transform(optimisers, lambda params: type(params)(*params._fields))


def clipped(
    inner: optax.GradientTransformation, max_norm: ArrayLike
) -> optax.GradientTransformation:
    """Limit the global norm of the gradients that an optimiser gets; 0 is no limit."""
    if isinstance(max_norm, jax.Array):  # an input of the program, which may be 0
        max_norm = jnp.where(max_norm > 0, max_norm, jnp.inf)
    elif max_norm == 0:
        return inner
    return optax.chain(optax.clip_by_global_norm(max_norm), inner)


def centred_rmsprop(
    rate: float, decay: float, eps: float, eps_in_root: bool
) -> optax.GradientTransformation:
    """Make RMSProp that divides by the gradient's standard deviation, without momentum.

    Mnih et al. 2015, Tab. 1, after Graves 2013, Eq. 38 to 40. It is `optax.rmsprop(centered=True)`,
    except that a variance which rounding makes negative, as where a gradient hardly changes, counts
    as 0; optax's steps are NaN there.

    Args:
      rate: step size.
      decay: of the running means of the gradient and of its square, which begin at 0.
      eps: added to the variance, or to its root.
      eps_in_root: whether to the variance, as TensorFlow does; Torch adds it to the root.
    """

    def init(params: optax.Params) -> optax.ScaleByRStdDevState:
        zeros = optax.tree.zeros_like(params)
        return optax.ScaleByRStdDevState(mu=zeros, nu=zeros)

    def scaled(gradient: Array, mean: Array, square: Array) -> Array:
        variance = jnp.maximum(square - jnp.square(mean), 0.0)
        return gradient / (jnp.sqrt(variance + eps) if eps_in_root else jnp.sqrt(variance) + eps)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        moments = cast(optax.ScaleByRStdDevState, state)
        mu = optax.tree.update_moment(updates, moments.mu, decay, 1)
        nu = optax.tree.update_moment(updates, moments.nu, decay, 2)
        return jax.tree.map(scaled, updates, mu, nu), optax.ScaleByRStdDevState(mu=mu, nu=nu)

    scale = optax.GradientTransformation(init, update)
    return optax.chain(scale, optax.scale_by_learning_rate(rate))


def descend(
    optimiser: optax.GradientTransformation, grads: P, opt_state: optax.OptState, params: P
) -> tuple[P, optax.OptState]:
    """Take one gradient step: return the parameters and the optimiser's state after it."""
    steps, opt_state = optimiser.update(cast(Any, grads), opt_state, cast(Any, params))
    return cast(P, optax.apply_updates(cast(Any, params), steps)), opt_state


def follow(params: P, target_params: P, tau: float) -> P:
    """Return the target network moved towards the online one, `tau params + (1 - tau) target`.

    A `tau` of 1 copies the online network.
    """
    moved = optax.incremental_update(cast(Any, params), cast(Any, target_params), tau)
    return cast(P, moved)


def follow_every(params: P, target_params: P, updates: Array, every: int, tau: float = 1.0) -> P:
    """Return the target network after `updates` updates: it follows at each multiple of `every`."""
    return jax.lax.cond(
        updates % every == 0,
        lambda: follow(params, target_params, tau),
        lambda: target_params,
    )


def epsilon_greedy(best: Array, key: Array, epsilon: ArrayLike, num_actions: int) -> Array:
    """Return the best actions `[E]`, each replaced by a random one with probability `epsilon`."""
    coin, number = jax.random.uniform(key, (2, *best.shape))  # in one hash
    return jnp.where(coin < epsilon, action_of(number, num_actions), best)


def action_of(number: Array, num_actions: int) -> Array:
    """Return the int32 actions of numbers that are uniform in [0, 1): all equally likely."""
    return (number * num_actions).astype(jnp.int32)


def of_action(values: Array, action: Array) -> Array:
    """Return the entries of `values` `[B, n, ...]` that belong to actions `[B]`: `[B, ...]`.

    They are 0 for an action that is none of the n.
    """
    chex.assert_rank(action, 1)
    # A sum of one number and zeros: a gather is slower, and its gradient is a scatter.
    own = jnp.arange(values.shape[1]) == action[:, None]
    own = own.reshape(*own.shape, *[1] * (values.ndim - 2))
    return jnp.where(own, values, 0).sum(axis=1)


def one_step_target(next_value: Array, reward: Array, discount: Array) -> Array:
    """Return one example's target `r + discount V(s')`; all `[]`."""
    chex.assert_rank([next_value, reward, discount], 0)
    return reward + discount * next_value


def largest(td: Array) -> Array:
    """Return the entry of `td` `[N]` that is largest in size, with its sign.

    The best of the priorities tried for twin critics (Fujimoto et al. 2020, App. D.1). Of x and -x
    it is the positive one; NaN if any of them is.
    """
    chex.assert_rank(td, 1)
    highest, lowest = td.max(), td.min()
    return jnp.where(highest >= -lowest, highest, lowest)


def value_feedback(q: Array, target: Array) -> dict[str, Array]:
    """Return the feedback about values `[N, B]` of N critics and their common target `[B]`.

    `td_error` is target - Q of the critic that errs most, `q_value` the least Q; all `[B]`.
    """
    td = target - q
    largest_td = jax.vmap(largest, in_axes=1)(td)
    return {"td_error": largest_td, "q_value": q.min(axis=0), "target": target}


def trust_feedback(trust: Trust | None) -> dict[str, Array]:
    """Return the feedback about importance ratios `[B]`, if there are any."""
    return {} if trust is None else {"log_ratio": trust.log_ratio}


def add_trust(info: Info, trust: Trust | None) -> Info:
    """Return an Info that also says how far the policy is from the behaviour, if that is known."""
    if trust is None:
        return info
    return Info(info.feedback | trust_feedback(trust), info.metrics | {"kl": trust.kl.mean()})


def per_sample_loss(objective: Objective, td: Array) -> Array:
    """Return the loss `[B]` of TD errors `[N, B]`, summed over critics.

    Raises:
      ValueError: the objective leaves its `error` open (see `complete`).
    """
    if objective.error is None:
        raise ValueError("this objective leaves the loss to the agent: complete it first")
    return objective.error(td).sum(axis=0)


class Critique(NamedTuple):
    """What N critics make of a batch, as a function of the parameters that are learned."""

    q: Array  # [N, B] float32, values of the actions taken
    target: Array  # [B] float32, what they should have been
    penalty: Array | float = 0.0  # [] float32, what else to minimise
    aux: Any = None  # what to hand back as it is: running statistics of normalised layers, metrics


def critic_gradient(
    criticise: Callable[[P], Critique],
    params: P,
    sample: Sample,
    objective: Objective,
    trust: Trust | None = None,
) -> tuple[P, Info, Any]:
    """Differentiate the loss of N critics that share a target.

    The gradient runs through everything that `criticise` computes, the target included: a target
    that is to be constant is computed outside, or wrapped in `jax.lax.stop_gradient` inside. Inside
    is the place of targets that share a forward pass with the values (CrossQ), or whose gradient is
    wanted (residual gradients).

    Args:
      criticise: `params -> Critique`.
      params: where to evaluate the gradient.
      sample: what the objective may want to look at (weights, aux).
      objective: shapes the loss; its `error` must be set.
      trust: how far the policy is from the behaviour, for objectives that ask.

    Returns:
      The gradient; an Info with the feedback of `value_feedback`; and the Critique's `aux`.
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
