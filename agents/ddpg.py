"""DDPG, bounded and unbounded (Lillicrap et al. 2016; Novati & Koumoutsakos 2019, Alg. 4)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import common, exploration
from agents.networks import Actor, Critic
from agents.options import NoisyTargetOptions
from agents.types import Agent, Continuous, Info
from jaxreplay import objectives
from jaxreplay.option import option
from jaxreplay.types import Array, Objective, Sample, Transition, Trust

Params = Any
_PAPER = "Novati & Koumoutsakos 2019, App. D"


@dataclasses.dataclass(frozen=True)
class DDPGConfig(NoisyTargetOptions):
    """Hyperparameters of DDPG; noise is in units of the action range [-1, 1]."""

    actor_learning_rate: float = option(1e-5, "Adam step size of the actor", _PAPER, above=0)
    critic_learning_rate: float = option(1e-4, "Adam step size of the critic", _PAPER, above=0)
    critic_weight_decay: float = option(
        1e-4, "L2 coefficient of the critic's weights", _PAPER, at_least=0
    )
    bounded: bool = option(
        True, "tanh keeps the mean within the bounds; false: u-DDPG, a linear mean", _PAPER
    )


class Networks(NamedTuple):
    """Both networks' parameters."""

    actor: Params
    critic: Params


class DDPGState(NamedTuple):
    """What DDPG carries from update to update."""

    networks: Networks
    targets: Networks
    actor_opt_state: optax.OptState
    critic_opt_state: optax.OptState


def ddpg(config: DDPGConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Make a DDPG agent; `objective` shapes its losses (default: weighted half squared error).

    Raises:
      ValueError: the action space is not continuous, or the noise does not fit the objective.
    """
    common.require(
        isinstance(action_space, Continuous),
        f"DDPG needs continuous actions, not {action_space}: choose an agent for discrete actions",
    )
    objective = common.complete(objective, objectives.mse)
    exploration.check_noise(config, objective.requires.density)
    actor = Actor(action_space.size, config.hidden, config.activation)
    critic = Critic(config.hidden, config.activation)
    actor_optimiser = common.adam(config.actor_learning_rate, config.anneal)
    critic_optimiser = common.adam(
        config.critic_learning_rate, config.anneal, config.critic_weight_decay
    )

    def policy(params: Params, obs: Array) -> Array:
        mean = actor.apply(params, obs)
        return jnp.tanh(mean) if config.bounded else mean

    def init(key: Array, obs: Array, action: Array) -> DDPGState:
        actor_key, critic_key = jax.random.split(key)
        networks = Networks(
            actor.init(actor_key, obs[None]), critic.init(critic_key, obs[None], action[None])
        )
        return DDPGState(
            networks=networks,
            targets=networks,
            actor_opt_state=actor_optimiser.init(networks.actor),
            critic_opt_state=critic_optimiser.init(networks.critic),
        )

    def greedy(state: DDPGState, obs: Array) -> Array:
        return policy(state.networks.actor, obs)

    def act(state: DDPGState, obs: Array, key: Array, previous: Any = None) -> tuple[Array, Any]:
        density = objective.requires.density
        return exploration.explore(greedy(state, obs), key, config, previous, density)

    def trust(mean: Array, t: Transition) -> Trust | None:
        return exploration.trust(mean, t, config) if objective.requires.density else None

    def targets(state: DDPGState, t: Transition) -> Array:
        action = policy(state.targets.actor, t.next_obs)
        next_value = critic.apply(state.targets.critic, t.next_obs, action)
        return jax.vmap(common.one_step_target)(next_value, t.reward, t.discount)

    def improve(params: Params, critic_params: Params, sample: Sample) -> tuple[Array, Params]:
        obs = sample.transition.obs

        def loss(params: Params) -> Array:
            mean = policy(params, obs)
            q = critic.apply(critic_params, obs, mean)
            return objective.actor(-q, sample, trust(mean, sample.transition))

        return jax.value_and_grad(loss)(params)

    def update(state: DDPGState, sample: Sample, key: Array) -> tuple[DDPGState, Info]:
        del key
        t, networks = sample.transition, state.networks
        now = trust(policy(networks.actor, t.obs), t)
        grads, info = common.critic_gradient(
            lambda params: critic.apply(params, t.obs, t.action)[None],
            networks.critic, targets(state, t), sample, objective, now,
        )  # fmt: skip
        steps, critic_opt_state = critic_optimiser.update(
            grads, state.critic_opt_state, networks.critic
        )
        critic_params = optax.apply_updates(networks.critic, steps)
        actor_loss, grads = improve(networks.actor, critic_params, sample)
        steps, actor_opt_state = actor_optimiser.update(grads, state.actor_opt_state)
        networks = Networks(optax.apply_updates(networks.actor, steps), critic_params)
        info.metrics["actor_loss"] = actor_loss
        common.tell_trust(info, now)
        return DDPGState(
            networks=networks,
            targets=optax.incremental_update(networks, state.targets, config.tau),
            actor_opt_state=actor_opt_state,
            critic_opt_state=critic_opt_state,
        ), info

    def feedback(state: DDPGState, t: Transition, key: Array) -> dict[str, Array]:
        del key
        q = critic.apply(state.networks.critic, t.obs, t.action)[None]
        now = trust(greedy(state, t.obs), t)
        return common.value_feedback(q, targets(state, t)) | common.trust_feedback(now)

    return Agent(init, act, greedy, update, feedback)
