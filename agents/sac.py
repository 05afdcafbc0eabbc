"""SAC with twin critics and a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905)."""

import dataclasses
import math
from typing import Any, NamedTuple, cast

import chex
import jax
import jax.numpy as jnp
import optax

from agents import common, distributions, gaussian
from agents.common import Critics
from agents.gaussian import Behaviour
from agents.learned_weights import learn_weights
from agents.networks import Actor, Critic, Obs, Params, apply, apply_twin, init_twin
from agents.options import TwinCriticOptions
from agents.types import Agent, Continuous, Info
from jaxreplay import objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import option
from jaxreplay.types import Array, Sample, Transition, Trust

_PAPER = "Haarnoja et al. 2018, Tab. 1"


@dataclasses.dataclass(frozen=True)
class SACConfig(TwinCriticOptions):
    """SAC hyperparameters."""

    alpha_learning_rate: float = option(
        3e-4, "Adam learning rate for the log temperature", _PAPER, above=0, at_most=10
    )
    initial_alpha: float = option(1.0, "initial temperature", above=0)
    target_entropy: float = option(-1.0, "target entropy per action dimension", _PAPER)


class SACState(NamedTuple):
    """SAC agent state."""

    actor: Params
    critics: tuple[Params, Params]
    target_critics: tuple[Params, Params]
    log_alpha: Array  # [] float32, logarithm of the temperature
    actor_opt_state: optax.OptState
    critic_opt_state: optax.OptState
    alpha_opt_state: optax.OptState


class Extras(NamedTuple):
    """Extras stored with each step if the replay method requires an action density."""

    behaviour: Behaviour  # [E, A] each, distribution of the action before tanh
    pre_tanh: Array  # [E, A], action before tanh; arctanh can't recover it near +-1


def soft_target(
    q_t: Array, log_prob_t: Array, alpha: Array, reward: Array, discount: Array
) -> Array:
    """Return one example's soft target `[]` (Haarnoja et al. 2018, Eq. 5 and 6).

    The target is `reward + discount * (min_n q_t[n] - alpha * log_prob_t)`, over N critics.

    Args:
      q_t: `[N]`, the target critics' Q-values for the next observation and a sampled action.
      log_prob_t: `[]`, log density of the sampled action.
      alpha: `[]`, temperature.
      reward: `[]`.
      discount: `[]`, 0 if the episode terminated.
    """
    chex.assert_rank([q_t, log_prob_t, alpha, reward, discount], [1, 0, 0, 0, 0])
    return reward + discount * (q_t.min() - alpha * log_prob_t)


def temperature_loss(log_alpha: Array, log_prob: Array, target_entropy: float) -> Array:
    """Return the temperature loss, `-alpha * mean(log_prob + target_entropy)` `[]`.

    Haarnoja et al. 2018, Eq. 18. The policy entropy is the mean of `-log_prob` `[B]`. Gradient
    descent increases alpha if the entropy is below `target_entropy`, and decreases it otherwise.
    """
    return -jnp.exp(log_alpha) * jnp.mean(log_prob + target_entropy)


class _SAC:
    """Implementation of SAC."""

    def __init__(self, config: SACConfig, space: Continuous, objective: Objective | None) -> None:
        common.check_arguments(
            "SAC", space, Continuous, objective, chooses=True, learned_weights=True
        )
        self.config, self.objective = config, common.complete(objective, objectives.mse)
        self.target_entropy = config.target_entropy * space.size
        self.actor, self.critic = Actor(2 * space.size, config.hidden), Critic(config.hidden)
        self.actor_optimiser = common.adam(config.actor_learning_rate)
        self.critic_optimiser = common.adam(config.critic_learning_rate)
        self.alpha_optimiser = common.adam(config.alpha_learning_rate)

    def init(self, key: Array, obs: Obs, action: Array) -> SACState:
        actor_key, critic_key = jax.random.split(key)
        actor_params = self.actor.init(actor_key, obs[None])
        critics = init_twin(self.critic, critic_key, obs[None], action[None])
        log_alpha = jnp.asarray(math.log(self.config.initial_alpha), jnp.float32)
        return SACState(
            actor=actor_params,
            critics=critics,
            target_critics=critics,
            log_alpha=log_alpha,
            actor_opt_state=self.actor_optimiser.init(actor_params),
            critic_opt_state=self.critic_optimiser.init(critics),
            alpha_opt_state=self.alpha_optimiser.init(log_alpha),
        )

    def policy(self, params: Params, obs: Obs) -> distributions.TanhNormal:
        return distributions.from_outputs(apply(self.actor, params, obs))

    def greedy(self, state: SACState, obs: Obs) -> Array:
        return distributions.mode(self.policy(state.actor, obs))

    def act(
        self, state: SACState, obs: Obs, key: Array, previous: Any = None
    ) -> tuple[Array, Extras | None]:
        del previous
        dist = self.policy(state.actor, obs)
        pre_tanh = dist.mean + jnp.exp(dist.log_std) * jax.random.normal(key, dist.mean.shape)
        extras = Extras(_before_tanh(dist), pre_tanh) if self.objective.requires.density else None
        return jnp.tanh(pre_tanh), extras

    def trust(self, dist: distributions.TanhNormal, t: Transition) -> Trust | None:
        if not self.objective.requires.density:
            return None
        # Importance ratio and KL divergences are invariant under tanh, so use the Gaussians.
        extras = cast(Extras, t.extras)
        return gaussian.trust(*_before_tanh(dist), extras.behaviour, extras.pre_tanh)

    def value(self, params: Params, t: Transition) -> Array:
        return apply(self.critic, params, t.obs, t.action)

    def critics(self, state: SACState) -> Critics:
        return Critics(self.value, state.critics, state.target_critics)

    def targets(self, state: SACState, t: Transition, key: Array) -> Array:
        dist = self.policy(state.actor, t.next_obs)
        action, log_prob = distributions.sample_and_log_prob(dist, key)
        q = apply_twin(self.critic, state.target_critics, t.next_obs, action)
        return jax.vmap(soft_target, in_axes=(1, 0, None, 0, 0))(
            q, log_prob, jnp.exp(state.log_alpha), t.reward, t.discount
        )

    def improve_actor(
        self, state: SACState, sample: Sample, key: Array
    ) -> tuple[SACState, dict[str, Array]]:
        """Take a gradient step on actor and temperature, and return agent state and metrics."""
        t = sample.transition

        def actor_loss(params: Params) -> tuple[Array, Array]:
            dist = self.policy(params, t.obs)
            action, log_prob = distributions.sample_and_log_prob(dist, key)
            q = apply_twin(self.critic, state.critics, t.obs, action).min(axis=0)
            loss = jnp.exp(state.log_alpha) * log_prob - q
            return self.objective.actor(loss, sample, self.trust(dist, t)), log_prob

        (loss, log_prob), grads = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
        grad = jax.grad(temperature_loss)(state.log_alpha, log_prob, self.target_entropy)
        actor, actor_opt_state = common.descend(
            self.actor_optimiser, grads, state.actor_opt_state, state.actor
        )
        log_alpha, alpha_opt_state = common.descend(
            self.alpha_optimiser, grad, state.alpha_opt_state, state.log_alpha
        )
        state = state._replace(
            actor=actor,
            log_alpha=log_alpha,
            actor_opt_state=actor_opt_state,
            alpha_opt_state=alpha_opt_state,
        )
        return state, {"actor_loss": loss, "entropy": -log_prob.mean()}

    def update(self, state: SACState, sample: Sample, key: Array) -> tuple[SACState, Info]:
        target_key, actor_key = jax.random.split(key)
        t, alpha = sample.transition, jnp.exp(state.log_alpha)
        trust = self.trust(self.policy(state.actor, t.obs), t)
        target = self.targets(state, t, target_key)
        grads, info, chosen = common.fit(
            self.critics(state), sample, target, self.objective, key, trust
        )
        critics, critic_opt_state = common.descend(
            self.critic_optimiser, grads, state.critic_opt_state, state.critics
        )
        state = state._replace(critics=critics, critic_opt_state=critic_opt_state)
        state, metrics = self.improve_actor(state, chosen, actor_key)
        info.metrics.update(metrics, alpha=alpha)
        target_critics = common.soft_update(critics, state.target_critics, self.config.tau)
        return state._replace(target_critics=target_critics), common.add_trust(info, trust)

    def feedback(self, state: SACState, t: Transition, key: Array) -> dict[str, Array]:
        trust = self.trust(self.policy(state.actor, t.obs), t)
        target = self.targets(state, t, key)
        feedback = common.critic_feedback(self.critics(state), t, target, self.objective)
        return feedback | common.trust_feedback(trust)


def _before_tanh(dist: distributions.TanhNormal) -> Behaviour:
    return Behaviour(dist.mean, jnp.exp(2 * dist.log_std))


def sac(config: SACConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Create a SAC agent.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects half the importance-weighted squared error.

    Raises:
      ValueError: If `action_space` is not `Continuous`.
    """
    agent = _SAC(config, action_space, objective)
    made = Agent(agent.init, agent.act, agent.greedy, agent.update, agent.feedback)
    return learn_weights(made, objective, action_space)
