"""SAC for discrete actions (Christodoulou 2019, arXiv:1910.07207)."""

import dataclasses
import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from agents import common, options
from agents.critics import CRITIC_OFFERS, Critics, critic_feedback, critic_gradient, fit
from agents.ensembles import Ensemble, map_members
from agents.learned_weights import learn_weights
from agents.networks import Network, Obs, Params, QNetwork, apply, batch_of_one
from agents.sac import temperature_loss
from agents.types import Agent, Discrete, Info
from jaxreplay import counters, objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition

OFFERS = CRITIC_OFFERS
_PAPER = "Christodoulou 2019"


@dataclasses.dataclass(frozen=True)
class DiscreteSACConfig(Config):
    """Hyperparameters of discrete SAC; the defaults suit vector observations, as in CartPole."""

    initial_alpha: float = option(1.0, options.INITIAL_ALPHA, _PAPER)
    target_entropy: float = option(
        0.98,
        "target entropy, as a fraction of the maximum entropy log n of n actions; smaller "
        "fractions often learn faster",
        f"code of {_PAPER}",
        at_least=0,
        at_most=1,
    )
    network: Network = option("auto", options.NETWORK)
    hidden: tuple[int, ...] = option((128, 128), options.HIDDEN_OF_ALL)
    actor_learning_rate: float = option(3e-4, options.ACTOR_LEARNING_RATE, options.TWINS)
    critic_learning_rate: float = option(3e-4, options.CRITIC_LEARNING_RATE, options.TWINS)
    alpha_learning_rate: float = option(3e-4, options.ALPHA_LEARNING_RATE, _PAPER)
    tau: float = option(0.005, options.TAU, options.TWINS)
    target_every: int = option(1, options.TARGET_EVERY)


class DiscreteSACState(NamedTuple):
    """Discrete SAC agent state."""

    actor: Params
    critics: tuple[Params, Params]
    target_critics: tuple[Params, Params]
    log_alpha: Array  # [] float32, logarithm of the temperature
    actor_opt_state: optax.OptState
    critic_opt_state: optax.OptState
    alpha_opt_state: optax.OptState
    updates: Array  # [] int32, update count for the target networks


def soft_value(q: Array, log_policy: Array, alpha: Array) -> Array:
    """Return one example's soft value `[]` (Christodoulou 2019, Eq. 10).

    The value is `sum_a pi(a) (min_k q[k, a] - alpha log pi(a))`, over N critics and n actions.

    Args:
      q: `[N, n]`, Q-values of the critics.
      log_policy: `[n]`, log probabilities of the actions.
      alpha: `[]`, temperature.
    """
    chex.assert_rank([q, log_policy, alpha], [2, 1, 0])
    return jnp.dot(jnp.exp(log_policy), q.min(axis=0) - alpha * log_policy)


class _DiscreteSAC:
    """Implementation of discrete SAC."""

    def __init__(
        self, config: DiscreteSACConfig, space: Discrete, objective: Objective | None
    ) -> None:
        common.check_arguments("discrete SAC", space, Discrete, objective, OFFERS)
        self.config, self.objective = config, common.with_default_loss(objective, objectives.mse)
        self.target_entropy = config.target_entropy * math.log(space.n)
        self.network = QNetwork(space.n, config.network, config.hidden)
        self.actor_optimiser = common.adam(config.actor_learning_rate)
        self.critic_optimiser = common.adam(config.critic_learning_rate)
        self.alpha_optimiser = common.adam(config.alpha_learning_rate)

    def init(self, key: Array, obs: Obs, _action: Array) -> DiscreteSACState:
        actor, *critics = (
            self.network.init(subkey, batch_of_one(obs)) for subkey in jax.random.split(key, 3)
        )
        critics = critics[0], critics[1]
        log_alpha = jnp.asarray(math.log(self.config.initial_alpha), jnp.float32)
        return DiscreteSACState(
            actor=actor,
            critics=critics,
            target_critics=critics,
            log_alpha=log_alpha,
            actor_opt_state=self.actor_optimiser.init(actor),
            critic_opt_state=self.critic_optimiser.init(critics),
            alpha_opt_state=self.alpha_optimiser.init(log_alpha),
            updates=jnp.zeros((), jnp.int32),
        )

    def log_policy(self, params: Params, obs: Obs) -> Array:
        return jax.nn.log_softmax(apply(self.network, params, obs))  # [B, n]

    def greedy(self, state: DiscreteSACState, obs: Obs) -> Array:
        return jnp.argmax(apply(self.network, state.actor, obs), axis=-1).astype(jnp.int32)

    def act(
        self, state: DiscreteSACState, obs: Obs, key: Array, _: Any = None
    ) -> tuple[Array, None]:
        logits = apply(self.network, state.actor, obs)
        return jax.random.categorical(key, logits).astype(jnp.int32), None

    def value(self, params: Params, t: Transition) -> Array:
        return common.batched_index(apply(self.network, params, t.obs), t.action)

    def critics(self, state: DiscreteSACState) -> Critics:
        return Critics(self.value, state.critics, state.target_critics)

    def all_values(self, params: Ensemble, obs: Obs) -> Array:
        return map_members(lambda critic: apply(self.network, critic, obs), params)  # [N, B, n]

    def targets(self, state: DiscreteSACState, t: Transition) -> Array:
        q = self.all_values(state.target_critics, t.next_obs)
        log_policy = self.log_policy(state.actor, t.next_obs)
        value = jax.vmap(soft_value, in_axes=(1, 0, None))
        return t.reward + t.discount * value(q, log_policy, jnp.exp(state.log_alpha))

    def loss(
        self, params: tuple[Params, Params], sample: Sample, target: Array
    ) -> tuple[Array, Array]:
        """Return the loss `[]` of a batch and the Q-values `[N, B]` of its actions."""
        q = map_members(lambda critic: self.value(critic, sample.transition), params)
        td_error = target - q
        return self.objective.critic(self.objective.losses(td_error), sample, None), q

    def improve_actor(
        self, state: DiscreteSACState, sample: Sample
    ) -> tuple[DiscreteSACState, dict[str, Array]]:
        """Take a gradient step on actor and temperature, and return agent state and metrics."""
        q = self.all_values(state.critics, sample.transition.obs)
        alpha = jnp.exp(state.log_alpha)

        def actor_loss(params: Params) -> tuple[Array, Array]:
            log_policy = self.log_policy(params, sample.transition.obs)
            value = jax.vmap(soft_value, in_axes=(1, 0, None))(q, log_policy, alpha)
            entropy = -jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1)
            return self.objective.actor(-value, sample, None), entropy

        (loss, entropy), grads = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
        grad = jax.grad(temperature_loss)(state.log_alpha, -entropy, self.target_entropy)
        loss, grads, grad = common.averaged((loss, grads, grad))
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
        return state, {"actor_loss": loss, "entropy": entropy.mean(), "alpha": alpha}

    def update(
        self, state: DiscreteSACState, sample: Sample, key: Array
    ) -> tuple[DiscreteSACState, Info]:
        target = self.targets(state, sample.transition)
        grads, info, chosen = fit(
            self.loss, self.critics(state), sample, target, self.objective, key
        )
        critics, critic_opt_state = common.descend(
            self.critic_optimiser, grads, state.critic_opt_state, state.critics
        )
        updates = counters.increment(state.updates, self.config.target_every)
        state = state._replace(critics=critics, critic_opt_state=critic_opt_state, updates=updates)
        state, metrics = self.improve_actor(state, chosen)
        info.metrics.update(metrics)
        target_critics = common.periodic_update(
            critics, state.target_critics, updates, self.config.target_every, self.config.tau
        )
        return state._replace(target_critics=target_critics), info

    def gradient(self, state: DiscreteSACState, t: Transition, weights: Array, _key: Array) -> Any:
        target = self.targets(state, t)
        return critic_gradient(self.critics(state), t, weights, target, self.objective)

    def feedback(self, state: DiscreteSACState, t: Transition, _key: Array) -> dict[str, Array]:
        return critic_feedback(self.critics(state), t, self.targets(state, t), self.objective)


def discrete_sac(
    config: DiscreteSACConfig, action_space: Discrete, objective: Objective | None = None
) -> Agent:
    """Create a SAC agent for discrete actions.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects half the importance-weighted squared error.

    Raises:
      ValueError: If `action_space` is not `Discrete`, or if `objective` requires an action density.
    """
    agent = _DiscreteSAC(config, action_space, objective)
    made = Agent(
        agent.init, agent.act, agent.greedy, agent.update, agent.feedback, gradient=agent.gradient
    )
    return learn_weights(made, objective, action_space)
