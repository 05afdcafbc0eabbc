"""IQL: implicit Q-learning from recorded transitions (Kostrikov et al. 2022)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import common, gaussian, options
from agents.critics import CRITIC_OFFERS, Critics, critic_feedback, fit
from agents.ensembles import apply_ensemble, init_ensemble
from agents.networks import Actor, Critic, Obs, Params, apply, batch_of_one
from agents.types import Agent, Continuous, Info
from jaxreplay import objectives
from jaxreplay.loops import if_finite
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition

OFFERS = CRITIC_OFFERS._replace(chooses=False, learned_weights=False)
_PAPER = "Kostrikov et al. 2022"
_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0  # of the authors' code


@dataclasses.dataclass(frozen=True)
class IQLConfig(Config):
    """IQL hyperparameters; the defaults are those for MuJoCo, with a constant learning rate."""

    expectile: float = option(
        0.7, "expectile of the value; 0.5: the mean, near 1: the maximum", _PAPER, above=0, below=1
    )
    temperature: float = option(
        3.0,
        "inverse temperature beta in the actor's weights exp(beta * advantage)",
        _PAPER,
        at_least=0,
    )
    largest_weight: float = option(
        100.0, "upper bound on the actor's weights", f"code of {_PAPER}", above=0
    )
    actor_updates: int | None = option(
        None,
        "updates over which a cosine lowers the actor's learning rate to 0; none: constant rate",
        f"{_PAPER}: a million",
        at_least=1,
    )
    hidden: tuple[int, ...] = option((256, 256), options.HIDDEN_OF_ALL, options.TWINS)
    actor_learning_rate: float = option(3e-4, options.ACTOR_LEARNING_RATE, options.TWINS)
    critic_learning_rate: float = option(3e-4, options.CRITIC_LEARNING_RATE, options.TWINS)
    value_learning_rate: float = option(
        3e-4, "Adam learning rate for the value", _PAPER, above=0, at_most=10
    )
    tau: float = option(0.005, options.TAU, options.TWINS)


class Policy(NamedTuple):
    """Parameters of a Gaussian policy with the same std in all states."""

    mean: Params  # of a network, whose outputs pass through tanh
    log_std: Array  # [A] float32


class IQLState(NamedTuple):
    """IQL agent state."""

    actor: Policy
    critics: tuple[Params, Params]
    target_critics: tuple[Params, Params]
    value: Params
    actor_opt_state: optax.OptState
    critic_opt_state: optax.OptState
    value_opt_state: optax.OptState


def expectile_loss(difference: Array, expectile: float) -> Array:
    """Return the losses `|expectile - 1{u < 0}| u^2` `[...]` of differences u `[...]`.

    Kostrikov et al. 2022, Eq. 3.
    """
    return jnp.abs(expectile - (difference < 0)) * jnp.square(difference)


class _IQL:
    """Implementation of IQL."""

    def __init__(self, config: IQLConfig, space: Continuous, objective: Objective | None) -> None:
        common.check_arguments("IQL", space, Continuous, objective, OFFERS)
        self.config, self.objective = config, common.with_default_loss(objective, objectives.mse)
        self.size = space.size
        self.mean, self.critic = Actor(space.size, config.hidden), Critic(config.hidden)
        self.value_network = Actor(1, config.hidden)
        self.actor_optimiser = common.adam(config.actor_learning_rate)
        if config.actor_updates is not None:
            rate = optax.cosine_decay_schedule(config.actor_learning_rate, config.actor_updates)
            self.actor_optimiser = if_finite(optax.adam(rate))
        self.critic_optimiser = common.adam(config.critic_learning_rate)
        self.value_optimiser = common.adam(config.value_learning_rate)

    def init(self, key: Array, obs: Obs, action: Array) -> IQLState:
        actor_key, critic_key, value_key = jax.random.split(key, 3)
        mean = self.mean.init(actor_key, batch_of_one(obs))
        actor = Policy(mean, jnp.zeros(self.size, jnp.float32))
        critics = init_ensemble(self.critic, critic_key, batch_of_one(obs), action[None], 2)
        value = self.value_network.init(value_key, batch_of_one(obs))
        return IQLState(
            actor=actor,
            critics=critics,
            target_critics=critics,
            value=value,
            actor_opt_state=self.actor_optimiser.init(actor),
            critic_opt_state=self.critic_optimiser.init(critics),
            value_opt_state=self.value_optimiser.init(value),
        )

    def policy(self, params: Policy, obs: Obs) -> tuple[Array, Array]:
        """Return means `[B, A]` and log stds `[A]`."""
        mean = jnp.tanh(apply(self.mean, params.mean, obs))
        return mean, jnp.clip(params.log_std, _LOG_STD_MIN, _LOG_STD_MAX)

    def greedy(self, state: IQLState, obs: Obs) -> Array:
        return self.policy(state.actor, obs)[0]

    def act(self, state: IQLState, obs: Obs, key: Array, _: Any = None) -> tuple[Array, None]:
        mean, log_std = self.policy(state.actor, obs)
        noise = jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        return jnp.clip(mean + noise, -1, 1), None

    def q_value(self, params: Params, t: Transition) -> Array:
        return apply(self.critic, params, t.obs, t.action)

    def critics(self, state: IQLState) -> Critics:
        return Critics(self.q_value, state.critics, state.target_critics)

    def value(self, params: Params, obs: Obs) -> Array:
        return apply(self.value_network, params, obs)[..., 0]

    def targets(self, value: Params, t: Transition) -> Array:
        return t.reward + t.discount * self.value(value, t.next_obs)

    def loss(
        self, params: tuple[Params, Params], sample: Sample, target: Array
    ) -> tuple[Array, Array]:
        """Return the loss `[]` of a batch and the Q-values `[N, B]` of its actions."""
        q = apply_ensemble(self.critic, params, sample.transition.obs, sample.transition.action)
        td_error = target - q
        return self.objective.critic(self.objective.losses(td_error), sample, None), q

    def update(self, state: IQLState, sample: Sample, key: Array) -> tuple[IQLState, Info]:
        t, config = sample.transition, self.config
        least = apply_ensemble(self.critic, state.target_critics, t.obs, t.action).min(
            axis=0
        )  # [B]

        def value_loss(params: Params) -> Array:
            losses = expectile_loss(least - self.value(params, t.obs), config.expectile)
            return self.objective.critic(losses, sample, None)

        loss, grads = common.averaged(jax.value_and_grad(value_loss)(state.value))
        value, value_opt_state = common.descend(
            self.value_optimiser, grads, state.value_opt_state, state.value
        )
        # As in the authors' code, actor and critics learn from the value after its step.
        advantage = least - self.value(value, t.obs)
        weight = jnp.minimum(jnp.exp(config.temperature * advantage), config.largest_weight)

        def actor_loss(params: Policy) -> Array:
            mean, log_std = self.policy(params, t.obs)
            log_prob = gaussian.log_prob(mean, jnp.exp(2 * log_std), t.action)
            return self.objective.actor(-weight * log_prob, sample, None)

        of_actor, actor_grads = common.averaged(jax.value_and_grad(actor_loss)(state.actor))
        actor, actor_opt_state = common.descend(
            self.actor_optimiser, actor_grads, state.actor_opt_state, state.actor
        )
        critic_grads, info, _ = fit(
            self.loss, self.critics(state), sample, self.targets(value, t), self.objective, key
        )
        critics, critic_opt_state = common.descend(
            self.critic_optimiser, critic_grads, state.critic_opt_state, state.critics
        )
        info.metrics.update(
            value_loss=loss, actor_loss=of_actor, advantage=advantage.mean(), weight=weight.mean()
        )
        target_critics = common.soft_update(critics, state.target_critics, config.tau)
        return IQLState(
            actor, critics, target_critics, value, actor_opt_state, critic_opt_state,
            value_opt_state,
        ), info  # fmt: skip

    def feedback(self, state: IQLState, t: Transition, _key: Array) -> dict[str, Array]:
        target = self.targets(state.value, t)
        return critic_feedback(self.critics(state), t, target, self.objective)


def iql(config: IQLConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Create an IQL agent.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects importance-weighted squared errors. Its
        weights also apply to the value's loss; its loss on TD errors applies only to the critics.

    Raises:
      ValueError: If `action_space` is not `Continuous`, or if `objective` requires an action
        density, chooses from candidates or learns weights.
    """
    agent = _IQL(config, action_space, objective)
    return Agent(agent.init, agent.act, agent.greedy, agent.update, agent.feedback)
