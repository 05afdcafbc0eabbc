"""DDPG with a bounded or unbounded policy mean.

Lillicrap et al. 2016; Novati & Koumoutsakos 2019, Alg. 4.
"""

import dataclasses
import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import common, exploration, options
from agents.critics import DENSITY_OFFERS, Critics, critic_feedback, critic_gradient, fit
from agents.ensembles import Ensemble
from agents.learned_weights import learn_weights
from agents.networks import Activation, Actor, Critic, Obs, Params, apply, batch_of_one
from agents.types import Agent, Continuous, Info
from jaxreplay import objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition, Trust

OFFERS = DENSITY_OFFERS
_PAPER = "Novati & Koumoutsakos 2019, App. D"


@dataclasses.dataclass(frozen=True)
class DDPGConfig(Config):
    """DDPG hyperparameters; the noise scale assumes actions in [-1, 1]."""

    bounded: bool = option(
        True, "bound the mean by tanh; false selects u-DDPG with a linear mean", _PAPER
    )
    hidden: tuple[int, ...] = option((128, 128), options.HIDDEN_OF_ALL, _PAPER)
    activation: Activation = option("softsign", options.ACTIVATION, _PAPER)
    actor_learning_rate: float = option(1e-5, options.ACTOR_LEARNING_RATE, _PAPER)
    critic_learning_rate: float = option(
        1e-4, "Adam learning rate for the critic", _PAPER, above=0, at_most=10
    )
    critic_weight_decay: float = option(
        1e-4, "L2 coefficient for the critic parameters", _PAPER, at_least=0
    )
    anneal: float = option(0.0, options.ANNEAL)
    tau: float = option(0.01, options.TAU, _PAPER)
    noise: Literal["gaussian", "ou"] = option("gaussian", options.NOISE)
    noise_std: float = option(0.2, options.NOISE_STD)


class Networks(NamedTuple):
    """Actor and critic network parameters."""

    actor: Params
    critic: Params


class DDPGState(NamedTuple):
    """DDPG agent state."""

    networks: Networks
    targets: Networks  # target network parameters
    actor_opt_state: optax.OptState
    critic_opt_state: optax.OptState


class _DDPG(exploration.NoisyPolicy):
    """Implementation of DDPG."""

    def __init__(self, config: DDPGConfig, space: Continuous, objective: Objective | None) -> None:
        common.check_arguments("DDPG", space, Continuous, objective, OFFERS)
        self.config, self.objective = config, common.with_default_loss(objective, objectives.mse)
        exploration.check_noise(config.noise, self.objective.requires.density)
        self.actor = Actor(space.size, config.hidden, config.activation)
        self.critic = Critic(config.hidden, config.activation)
        self.actor_optimiser = common.adam(config.actor_learning_rate, config.anneal)
        self.critic_optimiser = common.adam(
            config.critic_learning_rate, config.anneal, config.critic_weight_decay
        )

    def init(self, key: Array, obs: Obs, action: Array) -> DDPGState:
        actor_key, critic_key = jax.random.split(key)
        networks = Networks(
            self.actor.init(actor_key, batch_of_one(obs)),
            self.critic.init(critic_key, batch_of_one(obs), action[None]),
        )
        return DDPGState(
            networks=networks,
            targets=networks,
            actor_opt_state=self.actor_optimiser.init(networks.actor),
            critic_opt_state=self.critic_optimiser.init(networks.critic),
        )

    def policy(self, params: Params, obs: Obs) -> Array:
        mean = apply(self.actor, params, obs)
        return jnp.tanh(mean) if self.config.bounded else mean

    def greedy(self, state: DDPGState, obs: Obs) -> Array:
        return self.policy(state.networks.actor, obs)

    def value(self, params: Params, t: Transition) -> Array:
        return apply(self.critic, params, t.obs, t.action)

    def critics(self, state: DDPGState) -> Critics:
        return Critics(self.value, (state.networks.critic,), (state.targets.critic,))

    def targets(self, state: DDPGState, t: Transition) -> Array:
        action = self.policy(state.targets.actor, t.next_obs)
        next_value = apply(self.critic, state.targets.critic, t.next_obs, action)
        return t.reward + t.discount * next_value

    def loss(
        self, params: tuple[Params], sample: Sample, target: Array, trust: Trust | None
    ) -> tuple[Array, Array]:
        """Return the loss `[]` of a batch and the Q-values `[1, B]` of its actions."""
        q = self.value(params[0], sample.transition)[None]
        td_error = target - q
        return self.objective.critic(self.objective.losses(td_error), sample, trust), q

    def actor_gradient(
        self, params: Params, critic_params: Params, sample: Sample
    ) -> tuple[Array, Params]:
        """Return the actor loss `[]` and its gradient."""
        t = sample.transition

        def loss(params: Params) -> Array:
            mean = self.policy(params, t.obs)
            q = apply(self.critic, critic_params, t.obs, mean)
            return self.objective.actor(-q, sample, self.trust(mean, t))

        return common.averaged(jax.value_and_grad(loss)(params))

    def update(self, state: DDPGState, sample: Sample, key: Array) -> tuple[DDPGState, Info]:
        t, networks = sample.transition, state.networks
        trust, target = self.trust(self.greedy(state, t.obs), t), self.targets(state, t)
        (grads,), info, chosen = fit(
            functools.partial(self.loss, trust=trust),
            self.critics(state), sample, target, self.objective, key,
        )  # fmt: skip
        critic, critic_opt_state = common.descend(
            self.critic_optimiser, grads, state.critic_opt_state, networks.critic
        )
        info.metrics["actor_loss"], grads = self.actor_gradient(networks.actor, critic, chosen)
        actor, actor_opt_state = common.descend(
            self.actor_optimiser, grads, state.actor_opt_state, networks.actor
        )
        networks = Networks(actor, critic)
        targets = common.soft_update(networks, state.targets, self.config.tau)
        state = DDPGState(networks, targets, actor_opt_state, critic_opt_state)
        return state, common.add_trust(info, trust)

    def gradient(self, state: DDPGState, t: Transition, weights: Array, _key: Array) -> Ensemble:
        target = self.targets(state, t)
        return critic_gradient(self.critics(state), t, weights, target, self.objective)

    def feedback(self, state: DDPGState, t: Transition, _key: Array) -> dict[str, Array]:
        trust, target = self.trust(self.greedy(state, t.obs), t), self.targets(state, t)
        feedback = critic_feedback(self.critics(state), t, target, self.objective)
        return feedback | common.trust_feedback(trust)


def ddpg(config: DDPGConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Create a DDPG agent.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects half the importance-weighted squared error.

    Raises:
      ValueError: If `action_space` is not `Continuous`, or if `objective` requires an action
        density but the noise is temporally correlated.
    """
    agent = _DDPG(config, action_space, objective)
    of_action = agent.objective.requires.density  # otherwise, extras hold only noise
    made = Agent(
        agent.init,
        agent.act,
        agent.greedy,
        agent.update,
        agent.feedback,
        of_action,
        gradient=agent.gradient,
    )
    return learn_weights(made, objective, action_space)
