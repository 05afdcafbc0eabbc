"""PPO with a clipped objective (Schulman et al. 2017), as a baseline."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from agents import common, gaussian
from agents.gaussian import Behaviour
from agents.networks import MLP, Actor, flat
from agents.options import BaselineOptions, NetworkOptions
from agents.types import Agent, Continuous, Info
from jaxreplay import requirements, returns
from jaxreplay.option import option, override
from jaxreplay.types import Array, Objective, Sample, Transition

Params = Any
_PAPER = "Novati & Koumoutsakos 2019, App. D"


@dataclasses.dataclass(frozen=True)
class PPOConfig(BaselineOptions):
    """Hyperparameters of PPO; the steps between updates are the batch size of its replay."""

    anneal: float = override(NetworkOptions, "anneal", 5e-7, _PAPER)
    clip: float = option(
        0.2, "change of the ratio from which it gains nothing more", _PAPER, above=0
    )
    gae: float = option(0.97, "lambda of the generalised advantages", _PAPER, at_least=0, at_most=1)
    epochs: int = option(10, "passes over the steps of an update", _PAPER, at_least=1)
    minibatch: int = option(64, "steps in a gradient step", _PAPER, at_least=1)
    initial_variance: float = option(0.2, "of every action dimension, as RACER's", above=0)


class Policy(nn.Module):
    """Mean `[B, A]` of every state, and one variance `[A]` for all."""

    size: int
    config: PPOConfig

    @nn.compact
    def __call__(self, obs: Array) -> tuple[Array, Array]:
        mean = Actor(self.size, self.config.hidden, self.config.activation)(obs)
        start = float(np.log(self.config.initial_variance))
        log_variance = self.param("log_variance", nn.initializers.constant(start), (self.size,))
        return mean, jnp.exp(log_variance)


class Networks(NamedTuple):
    """Both networks' parameters."""

    policy: Params
    value: Params


class PPOState(NamedTuple):
    """What PPO carries from update to update."""

    networks: Networks
    opt_state: optax.OptState


class Steps(NamedTuple):
    """What the steps of an update teach, found before its gradient steps; all `[B, ...]`."""

    obs: Array
    action: Array
    log_prob: Array  # under the policy that acted
    advantage: Array  # scaled to mean 0 and standard deviation 1 over the update
    target: Array  # of the value


def clipped_loss(log_ratio: Array, advantage: Array, clip: float) -> Array:
    """Return one example's policy loss `[]` (Schulman et al. 2017, Eq. 7, negated)."""
    ratio = jnp.exp(log_ratio)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def ppo(config: PPOConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Make a PPO agent; its losses are its own, so `objective` is not used.

    It learns from the newest steps, in order (`Sample.aux.slots` `[T, E]`), each used in one
    update alone.

    Raises:
      ValueError: the action space is not continuous, or the objective asks for trust terms.
    """
    requirements.refuse_density(objective, "PPO bounds its policy's change by itself")
    common.require(
        isinstance(action_space, Continuous),
        f"PPO needs continuous actions, not {action_space}: choose an agent for discrete actions",
    )
    policy = Policy(action_space.size, config)
    value_network = MLP((*config.hidden, 1), config.activation)
    rates = {"policy": config.actor_learning_rate, "value": config.critic_learning_rate}
    optimiser = optax.multi_transform(
        {name: common.adam(rate, config.anneal) for name, rate in rates.items()},
        Networks("policy", "value"),
    )

    def value_of(networks: Networks, obs: Array) -> Array:
        return value_network.apply(networks.value, flat(obs))[:, 0]

    def init(key: Array, obs: Array, action: Array) -> PPOState:
        del action
        policy_key, value_key = jax.random.split(key)
        networks = Networks(
            policy.init(policy_key, obs[None]), value_network.init(value_key, flat(obs[None]))
        )
        return PPOState(networks, optimiser.init(networks))

    def greedy(state: PPOState, obs: Array) -> Array:
        return policy.apply(state.networks.policy, obs)[0]

    def act(
        state: PPOState, obs: Array, key: Array, previous: Any = None
    ) -> tuple[Array, Behaviour]:
        del previous
        mean, variance = policy.apply(state.networks.policy, obs)
        variance = jnp.broadcast_to(variance, mean.shape)
        return gaussian.sample(mean, variance, key), Behaviour(mean, variance)

    def study(networks: Networks, sample: Sample) -> tuple[Steps, Array, Array]:
        """Return what the steps teach, their values and their advantages, all `[B, ...]`."""
        t, shape = sample.transition, sample.aux.slots.shape
        values, next_values = value_of(networks, t.obs), value_of(networks, t.next_obs)
        in_time = [x.reshape(shape) for x in (t.reward, t.discount, t.last, values, next_values)]
        advantage = returns.advantages(*in_time, config.gae).ravel()
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_prob = gaussian.log_prob(*t.extras, t.action)
        return Steps(t.obs, t.action, log_prob, scaled, advantage + values), values, advantage

    def losses(networks: Networks, steps: Steps) -> tuple[Array, dict[str, Array]]:
        log_prob = gaussian.log_prob(*policy.apply(networks.policy, steps.obs), steps.action)
        gain = jax.vmap(clipped_loss, (0, 0, None))
        policy_loss = gain(log_prob - steps.log_prob, steps.advantage, config.clip).mean()
        value_loss = 0.5 * jnp.square(value_of(networks, steps.obs) - steps.target).mean()
        told = {"loss": value_loss, "actor_loss": policy_loss}
        return policy_loss + value_loss, told

    def update(state: PPOState, sample: Sample, key: Array) -> tuple[PPOState, Info]:
        steps, values, advantage = study(state.networks, sample)
        size = min(config.minibatch, advantage.size)
        whole = advantage.size // size * size  # what does not fill a minibatch waits an epoch

        def gradient_step(state: PPOState, rows: Array) -> tuple[PPOState, dict[str, Array]]:
            batch = jax.tree.map(lambda x: x[rows], steps)
            grads, told = jax.grad(losses, has_aux=True)(state.networks, batch)
            moves, opt_state = optimiser.update(grads, state.opt_state)
            told["grad_norm"] = optax.tree.norm(grads)
            return PPOState(optax.apply_updates(state.networks, moves), opt_state), told

        def epoch(state: PPOState, key: Array) -> tuple[PPOState, dict[str, Array]]:
            order = jax.random.permutation(key, advantage.size)[:whole].reshape(-1, size)
            return jax.lax.scan(gradient_step, state, order)

        state, told = jax.lax.scan(epoch, state, jax.random.split(key, config.epochs))
        info = Info(
            {"td_error": advantage, "q_value": values, "target": steps.target},
            {name: x.mean() for name, x in told.items()} | {"q_value": values.mean()},
        )
        mean, variance = policy.apply(state.networks.policy, steps.obs)
        t = sample.transition
        common.tell_trust(info, gaussian.trust(mean, variance, t.extras, t.action))
        info.metrics["variance"] = variance.mean()
        return state, info

    def feedback(state: PPOState, t: Transition, key: Array) -> dict[str, Array]:
        del key
        values = value_of(state.networks, t.obs)
        target = t.reward + t.discount * value_of(state.networks, t.next_obs)
        now = gaussian.trust(*policy.apply(state.networks.policy, t.obs), t.extras, t.action)
        told = {"td_error": target - values, "q_value": values, "target": target}
        return told | common.trust_feedback(now)

    return Agent(init, act, greedy, update, feedback)
