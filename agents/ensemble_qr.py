"""DQN with an ensemble of quantile heads, which separates epistemic and aleatoric uncertainty.

One torso has M linear heads, each of which predicts the quantiles of returns (QR-DQN, Dabney et al.
2018a). Each head learns from its own random part of the stored transitions, so that heads agree
where there is much data (Clements et al. 2019). Uncertainty-prioritised replay
(`jaxreplay.contrib.uper`) requires the feedback of this agent.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import common, options
from agents.critics import VALUES
from agents.heads import midpoints
from agents.networks import Network, Obs, Params, QNetwork, apply, batch_of_one
from agents.types import Agent, Discrete, Info, Offers
from jaxreplay import counters, objectives
from jaxreplay.loops import unrolled
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition

UNCERTAINTY = frozenset({"epistemic", "aleatoric", "target_error"})
OFFERS = Offers(VALUES | UNCERTAINTY | {"reducible_loss"}, scalar_loss=True)
_CODE = "code of Carrasco-Davis et al. 2025"


@dataclasses.dataclass(frozen=True)
class EnsembleQRConfig(Config):
    """Hyperparameters; the defaults suit vector observations, as in CartPole."""

    members: int = option(8, "M: heads of the network", _CODE, at_least=1)
    quantiles: int = option(32, "quantiles of each head", f"{_CODE}: 201", at_least=1)
    mask_probability: float = option(
        0.5, "probability that a head learns from a transition", _CODE, above=0, at_most=1
    )
    actions: Literal["taken", "mean"] = option(
        "taken",
        "uncertainties in feedback: of the stored action (taken), or averaged over all actions "
        "(mean)",
        f"mean: {_CODE}",
    )
    network: Network = option("auto", options.NETWORK)
    hidden: tuple[int, ...] = option((128, 128), options.HIDDEN)
    optimiser: Literal["adam", "rmsprop"] = option("adam", options.OPTIMISER)
    learning_rate: float = option(5e-4, options.LEARNING_RATE, f"{_CODE}: 1e-5")
    adam_eps: float = option(1e-8, options.ADAM_EPS, "Kingma & Ba 2015")
    rmsprop_decay: float = option(0.95, options.RMSPROP_DECAY)
    rmsprop_eps: float = option(1e-5, options.RMSPROP_EPS)
    rmsprop_eps_in_root: bool = option(False, options.RMSPROP_EPS_IN_ROOT)
    max_grad_norm: float = option(10.0, options.MAX_GRAD_NORM)
    tau: float = option(0.005, options.TAU)
    target_every: int = option(1, options.TARGET_EVERY)
    epsilon_start: float = option(1.0, options.EPSILON_START)
    epsilon_end: float = option(0.05, options.EPSILON_END)
    epsilon_updates: int = option(10_000, options.EPSILON_UPDATES)


class EnsembleQRState(NamedTuple):
    """Agent state."""

    params: Params  # online network parameters
    target_params: Params  # target network parameters
    opt_state: optax.OptState
    updates: Array  # [] int32, update count for the epsilon schedule and target network updates
    seed: Array  # [] uint32, seed of `masks`


def uncertainties(quantiles: Array) -> tuple[Array, Array]:
    """Return the epistemic and the aleatoric uncertainty, `[...]` each, of heads `[..., M, m]`.

    The epistemic uncertainty is the variance over the M heads, averaged over the m quantiles. For
    the aleatoric uncertainty, each quantile is averaged over the heads, and the variance of the m
    averages is taken (Clements et al. 2019). For any target y, the mean of `(y - quantiles)^2` is
    the sum of both uncertainties and the squared error of the overall mean.

    >>> uncertainties(jnp.float32([[0, 2], [2, 4]]))
    (Array(1., dtype=float32), Array(1., dtype=float32))
    """
    return quantiles.var(axis=-2).mean(axis=-1), quantiles.mean(axis=-2).var(axis=-1)


def masks(seed: Array, sample: Sample, members: int, probability: float) -> Array:
    """Return a mask `[M, B]` bool, True where a head learns from a transition.

    The masks of a transition are computed from its slot and version. They are therefore the same in
    every batch until the slot is overwritten, and need not be stored.

    Args:
      seed: `[]` uint32.
      sample: B transitions.
      members: number of heads M.
      probability: probability that a head learns from a transition.
    """
    key = unrolled(jax.random.key(seed))

    def draw(version: Array, slot: Array) -> Array:
        own = jax.random.fold_in(jax.random.fold_in(key, version), slot)
        return jax.random.bernoulli(own, probability, (members,))

    return jax.vmap(draw, out_axes=1)(sample.version, sample.indices)


class _EnsembleQR:
    """Implementation of the agent."""

    def __init__(
        self, config: EnsembleQRConfig, space: Discrete, objective: Objective | None
    ) -> None:
        common.check_arguments("Ensemble QR", space, Discrete, objective, OFFERS)
        self.config, self.num_actions = config, space.n
        self.objective = common.with_default_loss(objective, objectives.huber(1.0))
        outputs = config.members * config.quantiles
        self.network = QNetwork(space.n, config.network, config.hidden, atoms=outputs)
        self.optimiser = common.q_optimiser(config)
        self.epsilon = common.epsilon_schedule(config)

    def init(self, key: Array, obs: Obs, _action: Array) -> EnsembleQRState:
        params = self.network.init(key, batch_of_one(obs))
        seed = jax.random.bits(jax.random.fold_in(key, _MASKS), (), jnp.uint32)
        updates = jnp.zeros((), jnp.int32)
        return EnsembleQRState(params, params, self.optimiser.init(params), updates, seed)

    def heads(self, params: Params, obs: Obs) -> Array:
        """Return quantiles `[B, n, M, m]` of all actions."""
        outputs = apply(self.network, params, obs)
        return outputs.reshape(*outputs.shape[:2], self.config.members, self.config.quantiles)

    def greedy(self, state: EnsembleQRState, obs: Obs) -> Array:
        q = self.heads(state.params, obs).mean(axis=(-2, -1))
        return jnp.argmax(q, axis=-1).astype(jnp.int32)

    def act(
        self, state: EnsembleQRState, obs: Obs, key: Array, _: Any = None
    ) -> tuple[Array, None]:
        epsilon = self.epsilon(state.updates)
        return common.epsilon_greedy(self.greedy(state, obs), key, epsilon, self.num_actions), None

    def targets(self, state: EnsembleQRState, t: Transition) -> Array:
        """Return each head's target quantiles `[B, M, m]` for the action with the largest mean."""
        heads = self.heads(state.target_params, t.next_obs)
        best = common.batched_index(heads, jnp.argmax(heads.mean(axis=(-2, -1)), axis=-1))
        return t.reward[:, None, None] + t.discount[:, None, None] * best

    def losses(self, heads: Array, action: Array, target: Array) -> Array:
        """Return the losses `[M, B]` of each head's quantiles for the stored actions."""
        taken = common.batched_index(heads, action)
        # Batches come last, because the loss of an objective may depend on the row.
        taken, target = (jnp.moveaxis(x, 0, -1) for x in (taken, target))  # [M, m, B]
        u = target[:, None] - taken[:, :, None]  # [M, m, m, B]
        side = jnp.abs(midpoints(self.config.quantiles)[:, None, None] - (u < 0))
        error = self.objective.error or objectives.mse
        loss = side * error(u.reshape(-1, u.shape[-1])).reshape(u.shape)
        return loss.mean(axis=2).sum(axis=1)

    def update(
        self, state: EnsembleQRState, sample: Sample, _key: Array
    ) -> tuple[EnsembleQRState, Info]:
        config, t = self.config, sample.transition
        target = self.targets(state, t)
        mask = masks(state.seed, sample, config.members, config.mask_probability)
        learning = common.averaged(mask.sum(axis=0).mean())  # mean number of heads

        def loss(params: Params) -> tuple[Array, tuple[Array, Array]]:
            heads = self.heads(params, t.obs)
            losses = self.losses(heads, t.action, target)
            learned = jnp.where(mask, losses, 0.0).sum(axis=0) / jnp.maximum(learning, _LEAST)
            return self.objective.critic(learned, sample, None), (heads, losses)

        (value, (heads, losses)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        value, grads = common.averaged((value, grads))
        feedback = self.feedback_of(state, t, target, heads, losses)
        params, opt_state = common.descend(self.optimiser, grads, state.opt_state, state.params)
        updates = counters.increment(state.updates, config.target_every)
        target_params = common.periodic_update(
            params, state.target_params, updates, config.target_every, config.tau
        )
        metrics = {
            "loss": value,
            "q_value": feedback["q_value"].mean(),
            "grad_norm": common.global_norm(grads),
            "epistemic": feedback["epistemic"].mean(),
            "aleatoric": feedback["aleatoric"].mean(),
            "epsilon": jnp.asarray(self.epsilon(updates), jnp.float32),
        }
        after = EnsembleQRState(params, target_params, opt_state, updates, state.seed)
        return after, Info(feedback, metrics)

    def feedback_of(
        self, state: EnsembleQRState, t: Transition, target: Array, heads: Array, losses: Array
    ) -> dict[str, Array]:
        """Return the feedback, given targets, outputs of the online network, and their losses."""
        taken = common.batched_index(heads, t.action)
        q, y = taken.mean(axis=(-2, -1)), target.mean(axis=(-2, -1))
        if self.config.actions == "taken":
            epistemic, aleatoric = uncertainties(taken)
        else:
            epistemic, aleatoric = (x.mean(axis=-1) for x in uncertainties(heads))
        found = {
            "td_error": y - q,
            "q_value": q,
            "target": y,
            "epistemic": epistemic,
            "aleatoric": aleatoric,
            "target_error": jnp.square(y - q),
        }
        if "reducible_loss" in self.objective.requires.feedback:
            lagged = self.losses(self.heads(state.target_params, t.obs), t.action, target)
            found["reducible_loss"] = (losses - lagged).mean(axis=0)
        return found

    def feedback(self, state: EnsembleQRState, t: Transition, _key: Array) -> dict[str, Array]:
        target, heads = self.targets(state, t), self.heads(state.params, t.obs)
        losses = self.losses(heads, t.action, target)
        return self.feedback_of(state, t, target, heads, losses)

    def gradient(self, state: EnsembleQRState, t: Transition, weights: Array, _key: Array) -> Any:
        target = self.targets(state, t)

        def loss(params: Params) -> Array:
            losses = self.losses(self.heads(params, t.obs), t.action, target)
            return (weights * losses.mean(axis=0)).mean()

        return jax.grad(loss)(state.params)


_MASKS = 0x3A5C
_LEAST = 1e-6  # keeps the loss finite if no head learns from any transition of a batch


def ensemble_qr(
    config: EnsembleQRConfig, action_space: Discrete, objective: Objective | None = None
) -> Agent:
    """Create a DQN agent with an ensemble of quantile heads.

    The loss is the mean quantile Huber loss over all pairs of a transition and a head that learns
    from it. A loss on TD errors in `objective` replaces the Huber loss. The greedy action is the
    action with the largest mean over heads and quantiles; targets use the greedy action of the
    target network.

    The feedback `td_error` is the mean of the target minus the mean of the prediction, and
    `target_error` is the square of `td_error`. The feedback `epistemic` and `aleatoric` are the
    `uncertainties` before the update.

    `Agent.gradient` is the gradient of the loss without masks.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects the importance-weighted quantile Huber loss
        with kappa 1.

    Raises:
      ValueError: If `action_space` is not `Discrete`, or if `objective` requires an action density,
        candidates or learned weights.
    """
    agent = _EnsembleQR(config, action_space, objective)
    return Agent(
        agent.init,
        agent.act,
        agent.greedy,
        agent.update,
        agent.feedback,
        gradient=agent.gradient,
        loss=objectives.huber(1.0),
    )
