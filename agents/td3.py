"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018), and TD3+BC."""

import dataclasses
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from agents import common, options
from agents.critics import CRITIC_OFFERS, Critics, critic_feedback, critic_gradient, fit
from agents.ensembles import apply_ensemble, init_ensemble, member
from agents.learned_weights import learn_weights
from agents.networks import Actor, Critic, Obs, Params, apply, batch_of_one
from agents.types import Agent, Continuous, Info
from jaxreplay import counters, objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition

OFFERS = CRITIC_OFFERS
_PAPER = "Fujimoto et al. 2020, Tab. 6"
_SMALLEST = 1e-8  # scale of Q in TD3+BC


@dataclasses.dataclass(frozen=True)
class TD3Config(Config):
    """TD3 hyperparameters."""

    target_noise: float = option(0.2, options.TARGET_NOISE)
    target_noise_clip: float = option(0.5, options.TARGET_NOISE_CLIP)
    policy_delay: int = option(2, options.POLICY_DELAY)
    bc_alpha: float | None = option(
        None,
        "alpha of TD3+BC, the weight of Q relative to cloning, 2.5 in the paper; none: TD3",
        "Fujimoto & Gu 2021, Eq. 5",
        at_least=0,
    )
    hidden: tuple[int, ...] = option((256, 256), options.HIDDEN_OF_ALL, options.TWINS)
    actor_learning_rate: float = option(3e-4, options.ACTOR_LEARNING_RATE, options.TWINS)
    critic_learning_rate: float = option(3e-4, options.CRITIC_LEARNING_RATE, options.TWINS)
    tau: float = option(0.005, options.TAU, options.TWINS)
    exploration_noise: float = option(0.1, options.EXPLORATION_NOISE)


class Policy(NamedTuple):
    """The part of the state that changes only every `policy_delay` updates."""

    actor: Params
    target_actor: Params
    target_critics: tuple[Params, Params]
    opt_state: optax.OptState  # actor optimiser state
    loss: Array  # [] float32, actor loss at the latest actor update


class TD3State(NamedTuple):
    """TD3 agent state."""

    policy: Policy
    critics: tuple[Params, Params]
    critic_opt_state: optax.OptState
    updates: Array  # [] int32, update count for the policy delay


def clipped_double_q_target(q_t: Array, reward: Array, discount: Array) -> Array:
    """Return one example's target `[]` (Fujimoto et al. 2018, Eq. 10).

    The target is `reward + discount * min_n q_t[n]`, over N target critics.

    Args:
      q_t: `[N]`, the target critics' Q-values for the next observation and target action.
      reward: `[]`.
      discount: `[]`, 0 if the episode terminated.
    """
    chex.assert_rank([q_t, reward, discount], [1, 0, 0])
    return reward + discount * q_t.min()


def explore(action: Array, key: Array, std: float) -> Array:
    """Return actions `[B, A]` plus Gaussian noise of scale `std`, clipped to [-1, 1]."""
    return jnp.clip(action + std * jax.random.normal(key, action.shape), -1, 1)


def smooth(action: Array, key: Array, std: float, bound: float) -> Array:
    """Return target actions `[B, A]` with clipped noise (Fujimoto et al. 2018, Alg. 1)."""
    noise = std * jax.random.normal(key, action.shape)
    return jnp.clip(action + jnp.clip(noise, -bound, bound), -1, 1)


def cloning_loss(q: Array, action: Array, stored: Array, alpha: float) -> Array:
    """Return the actor's losses `[B]` in TD3+BC (Fujimoto & Gu 2021, Eq. 3 to 5).

    The loss is `-lambda q + mean_d (action[d] - stored[d])^2`. The factor
    `lambda = alpha / mean(|q|)`, with the mean over the batch, has no gradient.

    Args:
      q: `[B]`, Q-values of the policy's actions.
      action: `[B, A]`, actions of the policy.
      stored: `[B, A]`, actions of the data.
      alpha: weight of Q. An alpha of 0 leaves only the cloning loss.
    """
    chex.assert_rank([q, action, stored], [1, 2, 2])
    scale = jnp.maximum(jax.lax.stop_gradient(jnp.abs(q).mean()), _SMALLEST)
    return -alpha / scale * q + jnp.square(action - stored).mean(axis=-1)


class _TD3:
    """Implementation of TD3."""

    def __init__(self, config: TD3Config, space: Continuous, objective: Objective | None) -> None:
        common.check_arguments("TD3", space, Continuous, objective, OFFERS)
        self.config, self.objective = config, common.with_default_loss(objective, objectives.mse)
        self.actor, self.critic = Actor(space.size, config.hidden), Critic(config.hidden)
        self.actor_optimiser = optax.adam(config.actor_learning_rate)
        self.critic_optimiser = optax.adam(config.critic_learning_rate)

    def init(self, key: Array, obs: Obs, action: Array) -> TD3State:
        actor_key, critic_key = jax.random.split(key)
        actor = self.actor.init(actor_key, batch_of_one(obs))
        critics = init_ensemble(self.critic, critic_key, batch_of_one(obs), action[None], 2)
        opt_state, loss = self.actor_optimiser.init(actor), jnp.zeros((), jnp.float32)
        policy = Policy(actor, actor, critics, opt_state, loss)
        updates = jnp.zeros((), jnp.int32)
        return TD3State(policy, critics, self.critic_optimiser.init(critics), updates)

    def policy_action(self, params: Params, obs: Obs) -> Array:
        return jnp.tanh(apply(self.actor, params, obs))

    def greedy(self, state: TD3State, obs: Obs) -> Array:
        return self.policy_action(state.policy.actor, obs)

    def act(self, state: TD3State, obs: Obs, key: Array, _: Any = None) -> tuple[Array, None]:
        return explore(self.greedy(state, obs), key, self.config.exploration_noise), None

    def value(self, params: Params, t: Transition) -> Array:
        return apply(self.critic, params, t.obs, t.action)

    def critics(self, state: TD3State) -> Critics:
        return Critics(self.value, state.critics, state.policy.target_critics)

    def targets(self, policy: Policy, t: Transition, key: Array) -> Array:
        action = self.policy_action(policy.target_actor, t.next_obs)
        action = smooth(action, key, self.config.target_noise, self.config.target_noise_clip)
        q = apply_ensemble(self.critic, policy.target_critics, t.next_obs, action)
        return jax.vmap(clipped_double_q_target, in_axes=(1, 0, 0))(q, t.reward, t.discount)

    def loss(
        self, params: tuple[Params, Params], sample: Sample, target: Array
    ) -> tuple[Array, Array]:
        """Return the loss `[]` of a batch and the Q-values `[N, B]` of its actions."""
        q = apply_ensemble(self.critic, params, sample.transition.obs, sample.transition.action)
        td_error = target - q
        return self.objective.critic(self.objective.losses(td_error), sample, None), q

    def improve_policy(
        self, policy: Policy, critics: tuple[Params, Params], sample: Sample
    ) -> Policy:
        """Apply one actor gradient step, and update all target networks."""
        obs, stored, alpha = sample.transition.obs, sample.transition.action, self.config.bc_alpha

        def actor_loss(params: Params) -> Array:
            action = self.policy_action(params, obs)
            q = apply(self.critic, member(critics, 0), obs, action)
            loss = -q if alpha is None else cloning_loss(q, action, stored, alpha)
            return self.objective.actor(loss, sample, None)

        loss, grads = common.averaged(jax.value_and_grad(actor_loss)(policy.actor))
        actor, opt_state = common.descend(
            self.actor_optimiser, grads, policy.opt_state, policy.actor
        )
        target_actor, target_critics = common.soft_update(
            (actor, critics), (policy.target_actor, policy.target_critics), self.config.tau
        )
        return Policy(actor, target_actor, target_critics, opt_state, loss)

    def update(self, state: TD3State, sample: Sample, key: Array) -> tuple[TD3State, Info]:
        target = self.targets(state.policy, sample.transition, key)
        critics = self.critics(state)
        grads, info, chosen = fit(self.loss, critics, sample, target, self.objective, key)
        critics, critic_opt_state = common.descend(
            self.critic_optimiser, grads, state.critic_opt_state, state.critics
        )
        updates = counters.increment(state.updates, self.config.policy_delay)
        policy = jax.lax.cond(
            updates % self.config.policy_delay == 0,
            lambda: self.improve_policy(state.policy, critics, chosen),
            lambda: state.policy,
        )
        info.metrics["actor_loss"] = policy.loss
        return TD3State(policy, critics, critic_opt_state, updates), info

    def gradient(self, state: TD3State, t: Transition, weights: Array, key: Array) -> Any:
        target = self.targets(state.policy, t, key)
        return critic_gradient(self.critics(state), t, weights, target, self.objective)

    def feedback(self, state: TD3State, t: Transition, key: Array) -> dict[str, Array]:
        target = self.targets(state.policy, t, key)
        return critic_feedback(self.critics(state), t, target, self.objective)


def td3(config: TD3Config, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Create a TD3 agent.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects half the importance-weighted squared error.

    Raises:
      ValueError: If `action_space` is not `Continuous`, or if `objective` requires an action
        density.
    """
    agent = _TD3(config, action_space, objective)
    made = Agent(
        agent.init, agent.act, agent.greedy, agent.update, agent.feedback, gradient=agent.gradient
    )
    return learn_weights(made, objective, action_space)
