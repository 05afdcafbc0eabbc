"""Shared agent components: argument checks, optimisers, target networks and critic regression."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from agents.types import Continuous, Discrete, Info, Offers
from jaxreplay import devices, objectives, schedules
from jaxreplay.loops import if_finite, sum_of_squares
from jaxreplay.objectives import Objective
from jaxreplay.sampler import Method
from jaxreplay.schedules import Schedule
from jaxreplay.types import Array, Sample, Trust

_FEW_ACTIONS = 4

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
    offers: Offers,
) -> None:
    """Raise ValueError if an agent does not support an action space or an objective.

    Args:
      agent: name of the agent in error messages.
      action_space: an instance of `kind`, with at least one action or dimension.
      kind: the action space type that the agent supports.
      objective: an `Objective`, or None.
      offers: properties of the agent, which must include all that the objective requires.
    """
    needed, offered = "discrete", "continuous"
    if kind is Continuous:
        needed, offered = offered, needed
    (size,) = kind._fields
    require(
        isinstance(action_space, Discrete | Continuous),
        f"{agent} requires action_space {kind.__name__}({size}), got {action_space!r}",
    )
    require(
        isinstance(action_space, kind),
        f"{agent} requires {needed} actions, got action_space {action_space}: choose an agent for "
        f"{offered} actions",
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
    lacking = offers.lack(objective.needs) if isinstance(objective, Objective) else []
    require(
        not lacking,
        f"{agent} lacks {', '.join(lacking)}, which this replay method requires: use another "
        "agent, another method, or options of the method that do not require it",
    )


def read_aux(agent: str, sample: Sample, name: str, methods: str) -> Any:
    """Return the field `name` of `Sample.aux`.

    Args:
      agent: name of the agent in error messages.
      sample: a batch.
      name: name of the field.
      methods: replay methods that provide the field, for error messages.

    Raises:
      ValueError: If the replay method does not provide the field.
    """
    values = getattr(sample.aux, name, None)
    require(values is not None, f"{agent} requires Sample.aux.{name}: use {methods}")
    return values


def with_default_loss(objective: Objective | None, error: Callable[[Array], Array]) -> Objective:
    """Return the objective, with the agent's default loss if it sets no loss on TD errors.

    Args:
      objective: the replay method's objective; None selects importance-weighted losses.
      error: the agent's default loss function for TD errors, used if `objective.error` is None.
    """
    objective = objective or objectives.weighted()
    return objective if objective.error is not None else objective._replace(error=error)


def inverse_time_decay(rate: float, anneal: float) -> optax.Schedule:
    """Return the learning rate schedule `rate / (1 + anneal k)` after k gradient steps.

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
      decoupled_decay: coefficient of the weight decay of AdamW (Loshchilov & Hutter 2019). Each
        step subtracts the parameters times this coefficient and the learning rate.
    """
    schedule = inverse_time_decay(rate, anneal)
    inner = optax.adam(schedule, b1)
    if decoupled_decay:
        inner = optax.adamw(schedule, b1, weight_decay=decoupled_decay)
    if weight_decay:
        inner = optax.chain(optax.add_decayed_weights(weight_decay), inner)
    return if_finite(inner)


def adam_per_field(anneal: float, **rates: float) -> optax.GradientTransformation:
    """Create a separate `adam` for each field of a NamedTuple of parameters.

    Args:
      anneal: decay of all learning rates; see `inverse_time_decay`.
      **rates: initial learning rate of each field, by field name.
    """
    optimisers: dict[Any, Any] = {name: adam(rate, anneal) for name, rate in rates.items()}
    return optax.multi_transform(optimisers, lambda params: type(params)(*params._fields))


def q_optimiser(config: Any) -> optax.GradientTransformation:
    """Create the optimiser of a Q-network, including gradient clipping.

    Args:
      config: a config with the options of `DQNConfig` from `optimiser` to `max_grad_norm`.
    """
    inner = optax.adam(config.learning_rate, eps=config.adam_eps)
    if config.optimiser == "rmsprop":
        inner = centred_rmsprop(
            config.learning_rate,
            config.rmsprop_decay,
            config.rmsprop_eps,
            config.rmsprop_eps_in_root,
        )
    elif config.optimiser == "sgd":
        inner = optax.sgd(config.learning_rate)
    return clip_gradients(inner, config.max_grad_norm)


def epsilon_schedule(config: Any) -> Schedule:
    """Return epsilon as a function of the number of updates.

    Args:
      config: a config with the options `epsilon_start`, `epsilon_end` and `epsilon_updates`.
    """
    return schedules.linear(config.epsilon_start, config.epsilon_end, config.epsilon_updates)


def clip_gradients(
    inner: optax.GradientTransformation, max_norm: ArrayLike
) -> optax.GradientTransformation:
    """Clip gradients by global norm before `inner`; a `max_norm` of 0 disables clipping."""
    if isinstance(max_norm, jax.Array):  # a traced max_norm may be 0, so choose at run time
        max_norm = jnp.where(max_norm > 0, max_norm, jnp.inf)
    elif max_norm == 0:
        return inner

    def clip(grads: optax.Updates, params: optax.Params | None) -> optax.Updates:
        del params
        norm = global_norm(grads)

        def scale(x: Array) -> Array:
            return jnp.where(
                norm < max_norm, x, (x / norm.astype(x.dtype) * max_norm).astype(x.dtype)
            )

        return jax.tree.map(scale, grads)

    return optax.chain(optax.stateless(clip), inner)


def global_norm(grads: Any) -> Array:
    """Return the L2 norm `[]` of a pytree of gradients, taken as one vector."""
    return jnp.sqrt(sum_of_squares(grads))


def centred_rmsprop(
    rate: float, decay: float, eps: float, eps_in_root: bool
) -> optax.GradientTransformation:
    """Create centred RMSProp without momentum (Graves 2013, Eq. 38-40; Mnih et al. 2015, Tab. 1).

    For nearly constant gradients, rounding can make the variance estimate negative. This optimiser
    replaces negative estimates by 0, whereas `optax.rmsprop(centered=True)` returns NaN. The two
    are otherwise equivalent.

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


def averaged(tree: P) -> P:
    """Return the means of gradients and losses over the devices that share a batch.

    The tree is sent in one message. Outside of a `jax.shard_map` over `devices.AXIS`, the tree
    itself is returned.
    """
    return devices.mean(tree, devices.current())


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
    if values.shape[1] > _FEW_ACTIONS:
        return _masked_sum(values, action)
    return jax.lax.platform_dependent(values, action, cpu=_masked_sum, default=_selected)


def _masked_sum(values: Array, action: Array) -> Array:
    """Select the value of each action by a masked sum, faster than a gather and its gradient."""
    mask = jnp.arange(values.shape[1]) == action[:, None]
    mask = mask.reshape(*mask.shape, *[1] * (values.ndim - 2))
    return jnp.where(mask, values, 0).sum(axis=1)


def _selected(values: Array, action: Array) -> Array:
    """Select the value of each action by one `where` per action, without a separate GPU kernel."""
    chosen = jnp.zeros_like(values[:, 0])
    for number in range(values.shape[1]):
        is_own = (action == number).reshape(-1, *[1] * (values.ndim - 2))
        chosen = jnp.where(is_own, values[:, number], chosen)
    return chosen


def trust_feedback(trust: Trust | None) -> dict[str, Array]:
    """Return the feedback `log_ratio` `[B]`, or an empty dict if `trust` is None."""
    return {} if trust is None else {"log_ratio": trust.log_ratio}


def add_trust(info: Info, trust: Trust | None) -> Info:
    """Add the feedback `log_ratio` and the metric `kl` to an Info, unless `trust` is None."""
    if trust is None:
        return info
    return Info(info.feedback | trust_feedback(trust), info.metrics | {"kl": trust.kl.mean()})
