"""Shared agent components: argument checks, optimisers, target networks and critic regression."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from agents import ensembles
from agents.ensembles import Ensemble
from agents.types import Continuous, Discrete, Info
from jaxreplay import objectives
from jaxreplay.loops import if_finite
from jaxreplay.objectives import Objective
from jaxreplay.sampler import Method
from jaxreplay.types import Array, Sample, Trust

P = TypeVar("P")  # learned parameters of one or more networks, a pytree of arrays


def require(ok: bool, message: str) -> None:
    """Raise ValueError with `message` unless `ok`."""
    if not ok:
        raise ValueError(message)


def check_arguments(
    agent: str,
    action_space: Any,
    kind: type[Discrete] | type[Continuous],
    objective: Any,
    chooses: bool = False,
    learned_weights: bool = False,
    scalar_loss: bool = True,
    roles: bool = True,
) -> None:
    """Raise ValueError if an agent does not support these arguments.

    Args:
      agent: name of the agent in error messages.
      action_space: a `kind` with at least one action or dimension.
      kind: the action space type that the agent supports.
      objective: an `Objective`, or None.
      chooses: whether the agent scores candidates for `Objective.choose`.
      learned_weights: whether it is wrapped by `learned_weights.learn_weights`.
      scalar_loss: whether `Objective.error` may replace its loss.
      roles: whether a batch is one of transitions `[B]`, whose positions decide their losses.
    """
    needed, other = "discrete", "continuous"
    if kind is Continuous:
        needed, other = other, needed
    (size,) = kind._fields
    require(
        isinstance(action_space, Discrete | Continuous),
        f"{agent} requires action_space {kind.__name__}({size}), got {action_space!r}",
    )
    require(
        isinstance(action_space, kind),
        f"{agent} requires {needed} actions, got action_space {action_space}: choose an agent for "
        f"{other} actions",
    )
    (count,) = action_space
    is_int = isinstance(count, int | np.integer) and not isinstance(count, bool)
    require(
        is_int and int(count) >= 1,
        f"{agent} requires action_space.{size} to be an integer of at least 1, got {action_space}",
    )
    require(
        objective is None or isinstance(objective, Objective),
        f"{agent} requires objective to be an Objective or None, got {type(objective).__name__}"
        + (": pass the method's .objective" if isinstance(objective, Method) else ""),
    )
    require(
        chooses or getattr(objective, "choose", None) is None,
        f"{agent} does not score candidates, from which this objective chooses: use another replay "
        "method, or an agent such as DQN or TD3",
    )
    require(
        learned_weights or getattr(objective, "learned_weights", None) is None,
        f"{agent} does not learn weights of transitions, as this objective requires: use another "
        "replay method, or an agent such as DQN or TD3",
    )
    require(
        scalar_loss or getattr(objective, "error", None) is None,
        f"{agent} has no loss of scalar TD errors, which objective.error would replace: use "
        "--replay.loss agent, another replay method, or an agent such as DQN or TD3",
    )
    require(
        roles or not getattr(objective, "roles", False),
        f"{agent} learns from sequences, whose steps have no roles by their position in the batch, "
        "as this objective requires: use another replay method, or an agent such as DQN or TD3",
    )


def complete(objective: Objective | None, error: Callable[[Array], Array]) -> Objective:
    """Fill in an agent's default loss where a replay method's objective leaves it open.

    Args:
      objective: the replay method's objective; None selects importance-weighted losses.
      error: the agent's default loss function for TD errors, used if `objective.error` is None.
    """
    objective = objective or objectives.weighted()
    return objective if objective.error is not None else objective._replace(error=error)


def inverse_time_decay(rate: float, anneal: float) -> optax.Schedule:
    """Return the learning rate schedule `rate / (1 + anneal k)`, where k is the gradient step.

    Novati & Koumoutsakos 2019, Eq. 10.
    """
    return lambda step: rate / (1.0 + anneal * step)


def adam(
    rate: float,
    anneal: float = 0.0,
    weight_decay: float = 0.0,
    b1: float = 0.9,
    decoupled_decay: float = 0.0,
) -> optax.GradientTransformation:
    """Create Adam for agents whose importance ratios or advantages may diverge.

    If the gradient is not finite, parameters and Adam moments remain unchanged.

    Args:
      rate: initial learning rate.
      anneal: learning rate decay; see `inverse_time_decay`.
      weight_decay: L2 coefficient; the Adam moments include the gradient of the L2 penalty.
      b1: decay rate of the first moment.
      decoupled_decay: share of the parameters that each step subtracts, times the learning rate, as
        in AdamW (Loshchilov & Hutter 2019).
    """
    schedule = inverse_time_decay(rate, anneal)
    inner = optax.adam(schedule, b1)
    if decoupled_decay:
        inner = optax.adamw(schedule, b1, weight_decay=decoupled_decay)
    if weight_decay:
        inner = optax.chain(optax.add_decayed_weights(weight_decay), inner)
    return if_finite(inner)


def adam_per_field(anneal: float, **rates: float) -> optax.GradientTransformation:
    """Create `adam` with a learning rate for each named field of a NamedTuple of parameters."""
    optimisers: dict[Any, Any] = {name: adam(rate, anneal) for name, rate in rates.items()}
    return optax.multi_transform(optimisers, lambda params: type(params)(*params._fields))


def clip_gradients(
    inner: optax.GradientTransformation, max_norm: ArrayLike
) -> optax.GradientTransformation:
    """Clip gradients by global norm before `inner`; a `max_norm` of 0 disables clipping."""
    if isinstance(max_norm, jax.Array):  # a traced max_norm may be 0, so choose at run time
        max_norm = jnp.where(max_norm > 0, max_norm, jnp.inf)
    elif max_norm == 0:
        return inner
    return optax.chain(optax.clip_by_global_norm(max_norm), inner)


def centred_rmsprop(
    rate: float, decay: float, eps: float, eps_in_root: bool
) -> optax.GradientTransformation:
    """Create centred RMSProp without momentum (Graves 2013, Eq. 38-40; Mnih et al. 2015, Tab. 1).

    For nearly constant gradients, rounding can make the variance estimate negative. This optimiser
    then uses 0, whereas the otherwise equivalent `optax.rmsprop(centered=True)` returns NaN.

    Args:
      rate: learning rate.
      decay: decay rate for the running means of the gradient and the squared gradient.
      eps: constant added to the variance or the standard deviation to avoid division by 0.
      eps_in_root: whether to add `eps` to the variance, as TensorFlow does, or to the standard
        deviation, as Torch does.
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
    """Apply one optimiser step, and return the new parameters and optimiser state."""
    steps, opt_state = optimiser.update(cast(Any, grads), opt_state, cast(Any, params))
    return cast(P, optax.apply_updates(cast(Any, params), steps)), opt_state


def soft_update(params: P, target_params: P, tau: float) -> P:
    """Move target parameters towards the online parameters `params` at rate `tau`.

    The result is `tau * params + (1 - tau) * target_params`. A `tau` of 1 copies `params`.
    """
    return cast(P, optax.incremental_update(cast(Any, params), cast(Any, target_params), tau))


def periodic_update(params: P, target_params: P, updates: Array, every: int, tau: float = 1.0) -> P:
    """Apply `soft_update` to target parameters if `updates` is a multiple of `every`.

    `updates` `[]` int32 is the number of agent updates, including the current update.
    """
    return jax.lax.cond(
        updates % every == 0, lambda: soft_update(params, target_params, tau), lambda: target_params
    )


def epsilon_greedy(best: Array, key: Array, epsilon: ArrayLike, num_actions: int) -> Array:
    """Replace each greedy action in `best` `[E]` by a random action with probability `epsilon`."""
    coin, number = jax.random.uniform(key, (2, *best.shape))  # one PRNG call for both is faster
    return jnp.where(coin < epsilon, uniform_to_action(number, num_actions), best)


def uniform_to_action(number: Array, num_actions: int) -> Array:
    """Map uniform numbers in [0, 1) to equally likely int32 actions 0 .. num_actions - 1."""
    return (number * num_actions).astype(jnp.int32)


def batched_index(values: Array, action: Array) -> Array:
    """Return the entries `[B, ...]` of `values` `[B, n, ...]` at `action` `[B]`.

    Actions outside 0 .. n-1 yield 0.

    >>> batched_index(jnp.float32([[1, 2], [3, 4]]), jnp.int32([1, 0])).tolist()
    [2.0, 3.0]
    """
    chex.assert_rank(action, 1)
    # A masked sum is faster than a gather, whose gradient is a scatter.
    mask = jnp.arange(values.shape[1]) == action[:, None]
    mask = mask.reshape(*mask.shape, *[1] * (values.ndim - 2))
    return jnp.where(mask, values, 0).sum(axis=1)


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
      q: `[N, B]`.
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
        return ensembles.each(
            lambda each, *key: self.value(each, transition, *key), params, self.key
        )


def critic_feedback(
    critics: Critics, transition: Any, target: Array, objective: Objective
) -> dict[str, Array]:
    """Return `value_feedback` and `reducible_feedback` for transitions `[B, ...]`."""
    q = critics.values(critics.params, transition)
    feedback = value_feedback(q, target, critics.combine)
    return feedback | reducible_feedback(critics, transition, target, objective)


def reducible_feedback(
    critics: Critics, transition: Any, target: Array, objective: Objective
) -> dict[str, Array]:
    """Return the feedback `reducible_loss` `[B]`, or an empty dict if nothing requires it.

    It is the loss of the critics minus that of the target critics, for the same targets, as a mean
    over critics (Sujit et al. 2022).

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
    online, lagged = (per_sample_loss(objective, td) / len(td) for td in errors)
    return {"reducible_loss": online - lagged}


def trust_feedback(trust: Trust | None) -> dict[str, Array]:
    """Return the feedback `log_ratio` `[B]`, or an empty dict if `trust` is None."""
    return {} if trust is None else {"log_ratio": trust.log_ratio}


def add_trust(info: Info, trust: Trust | None) -> Info:
    """Add the feedback `log_ratio` and the metric `kl` to an Info, unless `trust` is None."""
    if trust is None:
        return info
    return Info(info.feedback | trust_feedback(trust), info.metrics | {"kl": trust.kl.mean()})


def per_sample_loss(objective: Objective, td: Array) -> Array:
    """Return losses `[B]` for the TD errors `[N, B]` of N critics, summed over the critics.

    Raises:
      ValueError: If `objective.error` is None.
    """
    if objective.error is None:
        raise ValueError(
            "objective.error is None: fill in the agent's loss by agents.common.complete"
        )
    return objective.error(td).sum(axis=0)


class Critique(NamedTuple):
    """Values and a common target for N critics on a batch."""

    q: Array  # [N, B] float32, each critic's values of the stored actions
    target: Array  # [B] float32
    penalty: Array | float = 0.0  # [] float32, added to the loss
    aux: Any = None  # `critic_gradient` returns it; may hold batch normalisation statistics
    combine: Callable[[Array], Array] = largest_magnitude  # see `value_feedback`


def critic_gradient(
    criticise: Callable[[P], Critique],
    params: P,
    sample: Sample,
    objective: Objective,
    trust: Trust | None = None,
) -> tuple[P, Info, Any]:
    """Differentiate the loss of N critics with a common target.

    The loss is `objective.critic(sum_n error(target - q_n), sample, trust) + penalty`. The
    gradient also flows through the target. To treat the target as a constant, compute it outside
    `criticise` or apply `jax.lax.stop_gradient`. Compute the target inside `criticise` if it shares
    a forward pass with the values, as in CrossQ, or for residual gradients.

    Args:
      criticise: function that maps `params` to a Critique.
      params: parameters at which to evaluate the gradient.
      sample: batch to pass to the objective.
      objective: objective with `error` set (see `complete`).
      trust: importance ratios and KL divergences, for objectives that require them.

    Returns:
      A tuple of the gradient, an Info, and the Critique's `aux`. The Info contains `value_feedback`
      and the metrics `loss`, `q_value` and `grad_norm`.
    """

    def total(params: P) -> tuple[Array, tuple[Array, Critique]]:
        critique = criticise(params)
        chex.assert_rank([critique.target, critique.q], [1, 2])
        per_sample = per_sample_loss(objective, critique.target - critique.q)
        loss = objective.critic(per_sample, sample, trust)
        return loss + critique.penalty, (loss, critique)

    (_, (loss, critique)), grads = jax.value_and_grad(total, has_aux=True)(params)
    metrics = {"loss": loss, "q_value": critique.q.mean(), "grad_norm": optax.tree.norm(grads)}
    feedback = value_feedback(critique.q, critique.target, critique.combine)
    return grads, Info(feedback, metrics), critique.aux


class Chosen(NamedTuple):
    """The rows of a batch of candidates from which a critic or the actor learns."""

    rows: Array  # [B] int32
    sample: Sample  # [B, ...], with the weights of the choice


def choose(
    objective: Objective, norms: Array, sample: Sample, key: Array
) -> tuple[list[Chosen], Sample]:
    """Let an objective choose from candidates, and return the choice of each critic and the actor.

    Args:
      objective: objective with `choose`.
      norms: `[N, M]`, norms of the gradients of N critics' losses by their outputs.
      sample: M candidates.
      key: PRNG key of the update, which may have been used for other numbers.

    Returns:
      The choices of N critics, and the batch for the actor.

    Raises:
      ValueError: If `objective.choose` is None.
    """
    if objective.choose is None:
        raise ValueError("objective.choose is None: learn from the whole batch instead")
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
    critics: Critics,
    sample: Sample,
    target: Array,
    objective: Objective,
    key: Array,
    trust: Trust | None = None,
    penalty: Callable[[Ensemble], Array] | None = None,
) -> tuple[Ensemble, Info, Sample]:
    """Differentiate the loss of N critics for targets without gradients.

    If the objective chooses from candidates, gradients are those of the chosen rows, and the
    feedback is that of all candidates.

    Args:
      critics: the critics.
      sample: batch of B transitions, or candidates.
      target: `[B]`, targets of all transitions.
      objective: objective with `error` set (see `complete`).
      key: PRNG key of the update, for the choice.
      trust: see `critic_gradient`.
      penalty: maps the critics' parameters to `Critique.penalty`; not with `objective.choose`.

    Returns:
      The gradients of the critics, an Info as of `critic_gradient` that includes
      `reducible_feedback`, and the batch from which the actor learns.
    """
    t, actor = sample.transition, sample
    require(
        objective.choose is None or penalty is None,
        "objective.choose does not work with a penalty on the critics: use another replay method",
    )
    if objective.choose is None:

        def criticise(params: Ensemble) -> Critique:
            added = 0.0 if penalty is None else penalty(params)
            return Critique(critics.values(params, t), target, added, combine=critics.combine)

        grads, info, _ = critic_gradient(criticise, critics.params, sample, objective, trust)
    else:
        q, error = critics.values(critics.params, t), objective.error or objectives.mse
        norms = objectives.minimal_variance_priority(error)(target - q)
        chosen, actor = choose(objective, norms, sample, key)

        def loss_of(params: Any, chosen: Chosen, *key: Array) -> Array:
            td = target[chosen.rows] - critics.value(params, chosen.sample.transition, *key)
            return objective.critic(error(td), chosen.sample, trust)

        def total(params: Ensemble) -> Array:
            return ensembles.each(loss_of, params, critics.key, chosen).sum()

        loss, grads = jax.value_and_grad(total)(critics.params)
        metrics = {"loss": loss, "q_value": q.mean(), "grad_norm": optax.tree.norm(grads)}
        info = Info(value_feedback(q, target, critics.combine), metrics)
    info.feedback.update(reducible_feedback(critics, t, target, objective))
    return grads, info, actor
