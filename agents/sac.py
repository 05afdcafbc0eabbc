"""SAC with twin critics and a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905)."""

import dataclasses
import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from agents import common, distributions, gaussian
from agents.gaussian import Behaviour
from agents.networks import Actor, Critic, apply_twin, init_twin
from agents.options import TwinCriticOptions
from agents.types import Agent, Continuous, Info
from jaxreplay import objectives
from jaxreplay.option import option
from jaxreplay.types import Array, Objective, Sample, Transition, Trust

Params = Any
_PAPER = "Haarnoja et al. 2018, Tab. 1"


@dataclasses.dataclass(frozen=True)
class SACConfig(TwinCriticOptions):
    """Hyperparameters of SAC."""

    alpha_learning_rate: float = option(
        3e-4, "Adam step size of the log temperature", _PAPER, above=0
    )
    initial_alpha: float = option(1.0, "temperature before the first update", above=0)
    target_entropy: float = option(-1.0, "entropy aimed at, per action dimension", _PAPER)


class SACState(NamedTuple):
    """What SAC carries from update to update."""

    actor: Params
    critics: tuple[Params, Params]
    target_critics: tuple[Params, Params]
    log_alpha: Array  # [] float32, log temperature
    actor_opt_state: optax.OptState
    critic_opt_state: optax.OptState
    alpha_opt_state: optax.OptState
    updates: Array  # [] int32


class Extras(NamedTuple):
    """What is stored with each step for replay methods that ask for the behaviour."""

    behaviour: Behaviour  # before tanh
    pre_tanh: Array  # [E, A], the action before tanh, which can't be told from it near +-1


def soft_target(
    q_t: Array, log_prob_t: Array, alpha: Array, reward: Array, discount: Array
) -> Array:
    """Return one example's soft target (Haarnoja et al. 2018, Eq. 5 and 6).

    Args:
      q_t: `[N]`, the target critics' values of the next observation and a sampled action.
      log_prob_t: `[]`, log density of that action.
      alpha: `[]`, temperature.
      reward: `[]`.
      discount: `[]`, 0 if the episode terminated.
    """
    chex.assert_rank([q_t, log_prob_t, alpha, reward, discount], [1, 0, 0, 0, 0])
    return reward + discount * (q_t.min() - alpha * log_prob_t)


def temperature_loss(log_alpha: Array, log_prob: Array, target_entropy: float) -> Array:
    """Return the loss `[]` of the temperature (Haarnoja et al. 2018, Eq. 18).

    Descending it raises alpha while the entropy, the mean of minus `log_prob` `[B]`, lies below
    `target_entropy`, and lowers it while above.
    """
    return -jnp.exp(log_alpha) * jnp.mean(log_prob + target_entropy)


def sac(config: SACConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Make a SAC agent; `objective` shapes its losses (default: weighted half squared error).

    Raises:
      ValueError: the action space is not continuous.
    """
    common.require(
        isinstance(action_space, Continuous),
        f"SAC needs continuous actions, not {action_space}: choose an agent for discrete actions",
    )
    objective = common.complete(objective, objectives.mse)
    target_entropy = config.target_entropy * action_space.size
    actor, critic = Actor(2 * action_space.size, config.hidden), Critic(config.hidden)
    actor_optimiser = common.adam(config.actor_learning_rate)
    critic_optimiser = common.adam(config.critic_learning_rate)
    alpha_optimiser = common.adam(config.alpha_learning_rate)

    def policy(params: Params, obs: Array) -> distributions.TanhNormal:
        return distributions.from_outputs(actor.apply(params, obs))

    def init(key: Array, obs: Array, action: Array) -> SACState:
        actor_key, critic_key = jax.random.split(key)
        actor_params = actor.init(actor_key, obs[None])
        critics = init_twin(critic, critic_key, obs[None], action[None])
        log_alpha = jnp.asarray(math.log(config.initial_alpha), jnp.float32)
        return SACState(
            actor=actor_params,
            critics=critics,
            target_critics=critics,
            log_alpha=log_alpha,
            actor_opt_state=actor_optimiser.init(actor_params),
            critic_opt_state=critic_optimiser.init(critics),
            alpha_opt_state=alpha_optimiser.init(log_alpha),
            updates=jnp.zeros((), jnp.int32),
        )

    def greedy(state: SACState, obs: Array) -> Array:
        return distributions.mode(policy(state.actor, obs))

    def act(
        state: SACState, obs: Array, key: Array, previous: Any = None
    ) -> tuple[Array, Extras | tuple[()]]:
        del previous
        dist = policy(state.actor, obs)
        pre_tanh = dist.mean + jnp.exp(dist.log_std) * jax.random.normal(key, dist.mean.shape)
        extras = Extras(_before_tanh(dist), pre_tanh) if objective.requires.density else ()
        return jnp.tanh(pre_tanh), extras

    def trust(dist: distributions.TanhNormal, t: Transition) -> Trust | None:
        if not objective.requires.density:
            return None
        # Ratio and divergence are the same before tanh, where both policies are Gaussian.
        return gaussian.trust(*_before_tanh(dist), t.extras.behaviour, t.extras.pre_tanh)

    def targets(state: SACState, t: Transition, key: Array) -> Array:
        action, log_prob = distributions.sample_and_log_prob(policy(state.actor, t.next_obs), key)
        q = apply_twin(critic, state.target_critics, t.next_obs, action)
        return jax.vmap(soft_target, in_axes=(1, 0, None, 0, 0))(
            q, log_prob, jnp.exp(state.log_alpha), t.reward, t.discount
        )

    def improve(
        state: SACState, critics: tuple[Params, Params], sample: Sample, key: Array
    ) -> tuple[SACState, Array, Array]:
        obs = sample.transition.obs

        def actor_loss(params: Params) -> tuple[Array, Array]:
            dist = policy(params, obs)
            action, log_prob = distributions.sample_and_log_prob(dist, key)
            q = apply_twin(critic, critics, obs, action).min(axis=0)
            loss = jnp.exp(state.log_alpha) * log_prob - q
            return objective.actor(loss, sample, trust(dist, sample.transition)), log_prob

        (loss, log_prob), grads = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
        steps, actor_opt_state = actor_optimiser.update(grads, state.actor_opt_state)
        grad = jax.grad(temperature_loss)(state.log_alpha, log_prob, target_entropy)
        step, alpha_opt_state = alpha_optimiser.update(grad, state.alpha_opt_state)
        state = state._replace(
            actor=optax.apply_updates(state.actor, steps),
            log_alpha=optax.apply_updates(state.log_alpha, step),
            actor_opt_state=actor_opt_state,
            alpha_opt_state=alpha_opt_state,
        )
        return state, loss, log_prob

    def update(state: SACState, sample: Sample, key: Array) -> tuple[SACState, Info]:
        target_key, actor_key = jax.random.split(key)
        obs, action = sample.transition.obs, sample.transition.action
        now = trust(policy(state.actor, obs), sample.transition)
        grads, info = common.critic_gradient(
            lambda params: apply_twin(critic, params, obs, action),
            state.critics,
            targets(state, sample.transition, target_key),
            sample,
            objective,
            now,
        )
        common.tell_trust(info, now)
        steps, critic_opt_state = critic_optimiser.update(grads, state.critic_opt_state)
        critics = optax.apply_updates(state.critics, steps)
        info.metrics["alpha"] = jnp.exp(state.log_alpha)
        state, actor_loss, log_prob = improve(state, critics, sample, actor_key)
        info.metrics.update(actor_loss=actor_loss, entropy=-log_prob.mean())
        target_critics = optax.incremental_update(critics, state.target_critics, config.tau)
        return state._replace(
            critics=critics,
            target_critics=target_critics,
            critic_opt_state=critic_opt_state,
            updates=state.updates + 1,
        ), info

    def feedback(state: SACState, t: Transition, key: Array) -> dict[str, Array]:
        q = apply_twin(critic, state.critics, t.obs, t.action)
        now = trust(policy(state.actor, t.obs), t)
        return common.value_feedback(q, targets(state, t, key)) | common.trust_feedback(now)

    return Agent(init, act, greedy, update, feedback)


def _before_tanh(dist: distributions.TanhNormal) -> Behaviour:
    return Behaviour(dist.mean, jnp.exp(2 * dist.log_std))
