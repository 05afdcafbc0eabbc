"""PPO with the clipped objective, as a baseline (Schulman et al. 2017)."""

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from agents import common, gaussian, options, rollouts
from agents.critics import VALUES
from agents.gaussian import Behaviour
from agents.networks import Activation, Actor, Obs, Params, Value, apply, batch_of_one
from agents.types import Agent, Continuous, Info, Offers
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition, Trust

OFFERS = Offers(VALUES | {"log_ratio"}, on_policy=True)
_PAPER = "Novati & Koumoutsakos 2019, App. D"


@dataclasses.dataclass(frozen=True)
class PPOConfig(Config):
    """PPO hyperparameters; the replay's batch size sets the number of steps per update."""

    clip: float = option(
        0.2, "epsilon: the policy loss clips ratios to 1 +- epsilon", _PAPER, above=0
    )
    gae: float = option(0.97, "GAE lambda for advantage estimates", _PAPER, at_least=0, at_most=1)
    epochs: int = option(10, options.EPOCHS, _PAPER)
    minibatch: int = option(64, "number of steps per minibatch", _PAPER, at_least=1)
    initial_variance: float = option(0.2, "initial variance per action dimension", above=0)
    hidden: tuple[int, ...] = option((64, 64), options.HIDDEN_OF_ALL, _PAPER)
    activation: Activation = option("tanh", options.ACTIVATION)
    actor_learning_rate: float = option(1e-4, options.POLICY_LEARNING_RATE)
    critic_learning_rate: float = option(3e-4, options.VALUE_LEARNING_RATE)
    anneal: float = option(5e-7, options.ANNEAL, _PAPER)


class Policy(nn.Module):
    """Policy network for the mean `[B, A]`, with a state-independent variance `[A]`."""

    size: int
    config: PPOConfig

    @nn.compact
    def __call__(self, obs: Obs) -> tuple[Array, Array]:
        mean = Actor(self.size, self.config.hidden, self.config.activation)(obs)
        start = float(np.log(self.config.initial_variance))
        log_variance = self.param("log_variance", nn.initializers.constant(start), (self.size,))
        return mean, jnp.exp(log_variance)


class Networks(NamedTuple):
    """Policy and value network parameters."""

    policy: Params
    value: Params


class PPOState(NamedTuple):
    """PPO agent state."""

    networks: Networks
    opt_state: optax.OptState


class Steps(NamedTuple):
    """Training data for one update, computed before the gradient steps."""

    obs: Obs  # [B, ...]
    action: Array  # [B, A] float32
    log_prob: Array  # [B] float32, log density of the action under the behaviour policy
    advantage: Array  # [B] float32, normalised to mean 0 and standard deviation 1 over the batch
    target: Array  # [B] float32, regression target for the value network


def clipped_loss(log_ratio: Array, advantage: Array, clip: float) -> Array:
    """Return one example's policy loss `[]` (Schulman et al. 2017, Eq. 7, negated).

    The loss is `-min(ratio * advantage, clip(ratio, 1 - clip, 1 + clip) * advantage)`, where
    `ratio` is the action's density under the policy divided by that under the behaviour policy.
    """
    ratio = jnp.exp(log_ratio)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


class _PPO:
    """Implementation of PPO."""

    def __init__(self, config: PPOConfig, space: Continuous, objective: Objective | None) -> None:
        common.check_arguments("PPO", space, Continuous, objective, OFFERS)
        self.config = config
        self.policy_network = Policy(space.size, config)
        self.value_network = Value((*config.hidden, 1), config.activation)
        self.optimiser = common.adam_per_field(
            config.anneal, policy=config.actor_learning_rate, value=config.critic_learning_rate
        )

    def init(self, key: Array, obs: Obs, _action: Array) -> PPOState:
        policy_key, value_key = jax.random.split(key)
        networks = Networks(
            self.policy_network.init(policy_key, batch_of_one(obs)),
            self.value_network.init(value_key, batch_of_one(obs)),
        )
        return PPOState(networks, self.optimiser.init(networks))

    def value(self, networks: Networks, obs: Obs) -> Array:
        return apply(self.value_network, networks.value, obs)[:, 0]

    def policy(self, networks: Networks, obs: Obs) -> tuple[Array, Array]:
        """Return the policy mean `[B, A]` and variance `[A]`."""
        return apply(self.policy_network, networks.policy, obs)

    def greedy(self, state: PPOState, obs: Obs) -> Array:
        return self.policy(state.networks, obs)[0]

    def act(self, state: PPOState, obs: Obs, key: Array, _: Any = None) -> tuple[Array, Behaviour]:
        return gaussian.act(*self.policy(state.networks, obs), key)

    def trust(self, networks: Networks, t: Transition) -> Trust:
        policy = self.policy(networks, t.obs)
        return gaussian.trust(*policy, cast(Behaviour, t.extras), t.action)

    def prepare(self, networks: Networks, sample: Sample) -> tuple[Steps, dict[str, Array]]:
        """Compute the Steps to train on, and feedback such as TD errors, for a batch."""
        t = sample.transition
        value, next_value = self.value(networks, t.obs), self.value(networks, t.next_obs)
        advantage = rollouts.advantages("PPO", sample, value, next_value, self.config.gae)
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_prob = gaussian.log_prob(*cast(Behaviour, t.extras), t.action)
        target = advantage + value
        feedback = {"td_error": advantage, "q_value": value, "target": target}
        return Steps(t.obs, t.action, log_prob, scaled, target), feedback

    def loss(self, networks: Networks, steps: Steps) -> tuple[Array, dict[str, Array]]:
        log_prob = gaussian.log_prob(*self.policy(networks, steps.obs), steps.action)
        per_step = jax.vmap(clipped_loss, (0, 0, None))
        policy = per_step(log_prob - steps.log_prob, steps.advantage, self.config.clip).mean()
        value = 0.5 * jnp.square(self.value(networks, steps.obs) - steps.target).mean()
        return policy + value, {"loss": value, "actor_loss": policy}

    def gradient_step(self, state: PPOState, batch: Steps) -> tuple[PPOState, dict[str, Array]]:
        grads, metrics = jax.grad(self.loss, has_aux=True)(state.networks, batch)
        networks, opt_state = common.descend(self.optimiser, grads, state.opt_state, state.networks)
        return PPOState(networks, opt_state), metrics | {"grad_norm": common.global_norm(grads)}

    def update(self, state: PPOState, sample: Sample, key: Array) -> tuple[PPOState, Info]:
        steps, feedback = self.prepare(state.networks, sample)
        epochs, size = self.config.epochs, min(self.config.minibatch, steps.target.size)
        state, metrics = rollouts.train(self.gradient_step, state, steps, key, epochs, size)
        metrics["q_value"] = feedback["q_value"].mean()
        metrics["variance"] = self.policy(state.networks, steps.obs)[1].mean()
        trust = self.trust(state.networks, sample.transition)
        return state, common.add_trust(Info(feedback, metrics), trust)

    def feedback(self, state: PPOState, t: Transition, _key: Array) -> dict[str, Array]:
        value = self.value(state.networks, t.obs)
        target = t.reward + t.discount * self.value(state.networks, t.next_obs)
        feedback = {"td_error": target - value, "q_value": value, "target": target}
        return feedback | common.trust_feedback(self.trust(state.networks, t))


def ppo(config: PPOConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Create a PPO agent.

    Batches must consist of the newest T steps of E environments in chronological order, whose slots
    are `Sample.aux.slots` `[T, E]`. Each step must be used in one update only. PPO does not use the
    losses in `objective`.

    Raises:
      ValueError: If `action_space` is not `Continuous`, or if `objective` requires an action
        density or sets a loss on TD errors.
    """
    agent = _PPO(config, action_space, objective)
    return Agent(agent.init, agent.act, agent.greedy, agent.update, agent.feedback)
