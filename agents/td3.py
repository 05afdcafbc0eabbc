"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)."""

import dataclasses
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from agents import common
from agents.networks import Actor, Critic, apply_twin, init_twin
from agents.options import TwinCriticOptions
from agents.types import Agent, Continuous, Info
from jaxreplay import objectives, requirements
from jaxreplay.option import option
from jaxreplay.types import Array, Objective, Sample, Transition

Params = Any
_PAPER = "Fujimoto et al. 2020, Tab. 6"


@dataclasses.dataclass(frozen=True)
class TD3Config(TwinCriticOptions):
    """Hyperparameters of TD3; noise is in units of the action range [-1, 1]."""

    exploration_noise: float = option(0.1, "std of the noise on actions taken", _PAPER, at_least=0)
    target_noise: float = option(0.2, "std of the noise on target actions", _PAPER, at_least=0)
    target_noise_clip: float = option(
        0.5, "bound of the noise on target actions", _PAPER, at_least=0, finite=False
    )
    policy_delay: int = option(
        2,
        "updates of the critics per update of actor and targets",
        "Fujimoto et al. 2018, Alg. 1",
        at_least=1,
    )


class Policy(NamedTuple):
    """The part of the state that moves only every `policy_delay` updates."""

    actor: Params
    target_actor: Params
    target_critics: tuple[Params, Params]
    opt_state: optax.OptState  # the actor's
    loss: Array  # [] float32, the actor's at its last update


class TD3State(NamedTuple):
    """What TD3 carries from update to update."""

    policy: Policy
    critics: tuple[Params, Params]
    critic_opt_state: optax.OptState
    updates: Array  # [] int32, the clock of the delayed updates


def clipped_double_q_target(q_t: Array, reward: Array, discount: Array) -> Array:
    """Return one example's target (Fujimoto et al. 2018, Eq. 10).

    Args:
      q_t: `[N]`, the target critics' values of the next observation and target action.
      reward: `[]`.
      discount: `[]`, 0 if the episode terminated.
    """
    chex.assert_rank([q_t, reward, discount], [1, 0, 0])
    return reward + discount * q_t.min()


def td3(config: TD3Config, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Make a TD3 agent; `objective` shapes its losses (default: weighted half squared error).

    Raises:
      ValueError: the action space is not continuous.
    """
    common.require(
        isinstance(action_space, Continuous),
        f"TD3 needs continuous actions, not {action_space}: choose an agent for discrete actions",
    )
    objective = common.complete(objective, objectives.mse)
    requirements.refuse_density(objective, "TD3's policy has no density")
    actor, critic = Actor(action_space.size, config.hidden), Critic(config.hidden)
    actor_optimiser = optax.adam(config.actor_learning_rate)
    critic_optimiser = optax.adam(config.critic_learning_rate)

    def policy_action(params: Params, obs: Array) -> Array:
        return jnp.tanh(actor.apply(params, obs))

    def init(key: Array, obs: Array, action: Array) -> TD3State:
        actor_key, critic_key = jax.random.split(key)
        actor_params = actor.init(actor_key, obs[None])
        critics = init_twin(critic, critic_key, obs[None], action[None])
        opt_state, loss = actor_optimiser.init(actor_params), jnp.zeros((), jnp.float32)
        policy = Policy(actor_params, actor_params, critics, opt_state, loss)
        updates = jnp.zeros((), jnp.int32)
        return TD3State(policy, critics, critic_optimiser.init(critics), updates)

    def greedy(state: TD3State, obs: Array) -> Array:
        return policy_action(state.policy.actor, obs)

    def act(
        state: TD3State, obs: Array, key: Array, previous: Any = None
    ) -> tuple[Array, tuple[()]]:
        del previous
        action = greedy(state, obs)
        noise = config.exploration_noise * jax.random.normal(key, action.shape)
        return jnp.clip(action + noise, -1, 1), ()

    def targets(policy: Policy, t: Transition, key: Array) -> Array:
        action = policy_action(policy.target_actor, t.next_obs)
        bound = config.target_noise_clip
        noise = config.target_noise * jax.random.normal(key, action.shape)
        action = jnp.clip(action + jnp.clip(noise, -bound, bound), -1, 1)
        q = apply_twin(critic, policy.target_critics, t.next_obs, action)
        return jax.vmap(clipped_double_q_target, in_axes=(1, 0, 0))(q, t.reward, t.discount)

    def improve(policy: Policy, critics: tuple[Params, Params], sample: Sample) -> Policy:
        obs = sample.transition.obs

        def actor_loss(params: Params) -> Array:
            q = critic.apply(critics[0], obs, policy_action(params, obs))
            return objective.actor(-q, sample, None)

        loss, grads = jax.value_and_grad(actor_loss)(policy.actor)
        steps, opt_state = actor_optimiser.update(grads, policy.opt_state)
        params = optax.apply_updates(policy.actor, steps)
        target_actor, target_critics = optax.incremental_update(
            (params, critics), (policy.target_actor, policy.target_critics), config.tau
        )
        return Policy(params, target_actor, target_critics, opt_state, loss)

    def update(state: TD3State, sample: Sample, key: Array) -> tuple[TD3State, Info]:
        obs, action = sample.transition.obs, sample.transition.action
        grads, info = common.critic_gradient(
            lambda params: apply_twin(critic, params, obs, action),
            state.critics,
            targets(state.policy, sample.transition, key),
            sample,
            objective,
        )
        steps, critic_opt_state = critic_optimiser.update(grads, state.critic_opt_state)
        critics = optax.apply_updates(state.critics, steps)
        updates = state.updates + 1
        policy = jax.lax.cond(
            updates % config.policy_delay == 0,
            lambda: improve(state.policy, critics, sample),
            lambda: state.policy,
        )
        info.metrics["actor_loss"] = policy.loss
        return TD3State(policy, critics, critic_opt_state, updates), info

    def feedback(state: TD3State, t: Transition, key: Array) -> dict[str, Array]:
        q = apply_twin(critic, state.critics, t.obs, t.action)
        return common.value_feedback(q, targets(state.policy, t, key))

    return Agent(init, act, greedy, update, feedback)
