"""DQN with Double Q-learning and dueling networks as arguments (Mnih et al. 2015)."""

import dataclasses
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from agents import common
from agents.networks import QNetwork
from agents.options import QNetworkOptions
from agents.types import Agent, Discrete, Info
from jaxreplay import objectives, requirements
from jaxreplay.option import option
from jaxreplay.types import Array, Objective, Sample, Transition

Params = Any


@dataclasses.dataclass(frozen=True)
class DQNConfig(QNetworkOptions):
    """Hyperparameters of DQN; the defaults suit vector observations, such as CartPole's."""

    tau: float = option(
        0.005,
        "target rate; 1 copies the online network, as Mnih et al. 2015 every 10 000 updates",
        above=0,
        at_most=1,
    )


class DQNState(NamedTuple):
    """What DQN carries from update to update."""

    params: Params  # of the online network
    target_params: Params  # of the target network
    opt_state: optax.OptState
    updates: Array  # [] int32, the clock of epsilon and of the target network


def double_q_target(q_target_t: Array, q_online_t: Array, reward: Array, discount: Array) -> Array:
    """Return one example's Double DQN target (van Hasselt et al. 2016, Eq. 4).

    Args:
      q_target_t: `[n]`, the target network's values of the next observation.
      q_online_t: `[n]`, the values whose argmax is the next action: the online network's, or
        `q_target_t` again for DQN (Mnih et al. 2015).
      reward: `[]`.
      discount: `[]`, 0 if the episode terminated.
    """
    chex.assert_rank([q_target_t, q_online_t, reward, discount], [1, 1, 0, 0])
    return reward + discount * q_target_t[jnp.argmax(q_online_t)]


def dqn(config: DQNConfig, action_space: Discrete, objective: Objective | None = None) -> Agent:
    """Make a DQN agent; `objective` shapes its loss (default: weighted Huber, kappa 1).

    Raises:
      ValueError: the action space is not discrete.
    """
    common.require(
        isinstance(action_space, Discrete),
        f"DQN needs discrete actions, not {action_space}: choose an agent for continuous actions",
    )
    objective = common.complete(objective, objectives.huber(1.0))
    requirements.refuse_density(objective, "DQN's policy has no density")
    network = QNetwork(action_space.n, config.network, config.hidden, config.dueling)
    optimiser = common.clipped_adam(config.learning_rate, config.adam_eps, config.max_grad_norm)
    epsilon = config.epsilon()

    def init(key: Array, obs: Array, action: Array) -> DQNState:
        del action
        params = network.init(key, obs[None])
        updates = jnp.zeros((), jnp.int32)
        return DQNState(params, params, optimiser.init(params), updates)

    def greedy(state: DQNState, obs: Array) -> Array:
        return jnp.argmax(network.apply(state.params, obs), axis=-1).astype(jnp.int32)

    def act(
        state: DQNState, obs: Array, key: Array, previous: Any = None
    ) -> tuple[Array, tuple[()]]:
        del previous
        best = greedy(state, obs)
        return common.epsilon_greedy(best, key, epsilon(state.updates), action_space.n), ()

    def q_values(params: Params, t: Transition) -> Array:
        q = network.apply(params, t.obs)
        return jnp.take_along_axis(q, t.action[:, None], axis=1).T  # [1, B]

    def targets(state: DQNState, t: Transition) -> Array:
        q_target = network.apply(state.target_params, t.next_obs)
        q_select = network.apply(state.params, t.next_obs) if config.double else q_target
        return jax.vmap(double_q_target)(q_target, q_select, t.reward, t.discount)

    def update(state: DQNState, sample: Sample, key: Array) -> tuple[DQNState, Info]:
        del key
        t = sample.transition
        grads, info = common.critic_gradient(
            lambda params: q_values(params, t), state.params, targets(state, t), sample, objective
        )
        steps, opt_state = optimiser.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, steps)
        updates = state.updates + 1
        target_params = common.follow(
            params, state.target_params, updates, config.target_every, config.tau
        )
        info.metrics["epsilon"] = jnp.asarray(epsilon(updates), jnp.float32)
        return DQNState(params, target_params, opt_state, updates), info

    def feedback(state: DQNState, t: Transition, key: Array) -> dict[str, Array]:
        del key
        return common.value_feedback(q_values(state.params, t), targets(state, t))

    return Agent(init, act, greedy, update, feedback)
