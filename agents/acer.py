"""ACER for continuous actions (Wang et al. 2017, Sec. 5 and Alg. 3), as a baseline."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import common, gaussian
from agents.gaussian import Behaviour
from agents.networks import MLP, Actor, Critic, flat
from agents.options import BaselineOptions
from agents.types import Agent, Continuous, Info
from jaxreplay import requirements, returns
from jaxreplay.option import option
from jaxreplay.types import Array, Objective, Sample, Transition

Params = Any
_PAPER = "Novati & Koumoutsakos 2019, App. D"


@dataclasses.dataclass(frozen=True)
class ACERConfig(BaselineOptions):
    """Hyperparameters of ACER; trajectories' length and number are those of its replay."""

    truncation: float = option(5.0, "c: importance ratios are truncated here", _PAPER, above=0)
    trust_region: float = option(
        1.0, "delta: bound of the KL divergence's growth", _PAPER, above=0, finite=False
    )
    tau: float = option(
        0.001, "rate of the average policy, at every update", _PAPER, above=0, at_most=1
    )
    samples: int = option(5, "actions whose mean advantage is subtracted", _PAPER, at_least=1)
    noise_std: float = option(
        0.3, "of the policy, in units of the action range", "Wang et al. 2017", above=0
    )


class Networks(NamedTuple):
    """The three networks' parameters."""

    policy: Params
    value: Params
    advantage: Params


class ACERState(NamedTuple):
    """What ACER carries from update to update."""

    networks: Networks
    average: Params  # the average policy's
    opt_state: optax.OptState


def policy_gradient(
    score: Array,
    score_new: Array,
    advantage: Array,
    advantage_new: Array,
    log_ratio: Array,
    log_ratio_new: Array,
    truncation: float,
) -> Array:
    """Return one example's ascent direction `[A]` for the policy's mean (Wang et al. 2017, Eq. 14).

    The importance ratio is truncated, and what is cut off is made up for by an action that the
    policy draws anew.

    Args:
      score: `[A]`, gradient of the stored action's log density by the mean.
      score_new: `[A]`, the same of the new action.
      advantage: `[]`, Q^opc - V of the stored action.
      advantage_new: `[]`, Q - V of the new action.
      log_ratio: `[]`, log pi/mu of the stored action.
      log_ratio_new: `[]`, log pi/mu of the new action.
      truncation: c.
    """
    kept = jnp.minimum(jnp.exp(log_ratio), truncation) * advantage * score
    cut = jax.nn.relu(1 - truncation * jnp.exp(-log_ratio_new)) * advantage_new * score_new
    return kept + cut


def within_trust_region(gradient: Array, divergence: Array, bound: float) -> Array:
    """Return the closest direction `[A]` along which the divergence grows by `bound` at most.

    Wang et al. 2017, Eq. 12: `g - max(0, (k^T g - delta) / |k|^2) k`, with k the divergence's
    gradient `[A]`.
    """
    excess = jax.nn.relu(gradient @ divergence - bound)
    return gradient - excess / jnp.maximum(jnp.square(divergence).sum(), 1e-12) * divergence


def acer(config: ACERConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Make an ACER agent; its losses are its own, so `objective` is not used.

    It learns from successive steps (`Sample.aux.slots` `[T, windows]`); the policy is a Gaussian
    of fixed standard deviation.

    Raises:
      ValueError: the action space is not continuous, or the objective asks for trust terms.
    """
    requirements.refuse_density(objective, "ACER bounds its policy's change by itself")
    common.require(
        isinstance(action_space, Continuous),
        f"ACER needs continuous actions, not {action_space}: choose an agent for discrete actions",
    )
    size = action_space.size
    policy = Actor(size, config.hidden, config.activation)
    value_network = MLP((*config.hidden, 1), config.activation)
    advantage_network = Critic(config.hidden, config.activation)
    rates = Networks(
        config.actor_learning_rate, config.critic_learning_rate, config.critic_learning_rate
    )
    optimiser = optax.multi_transform(
        {name: common.adam(rate, config.anneal) for name, rate in rates._asdict().items()},
        Networks(*Networks._fields),
    )
    variance = config.noise_std**2

    def value_of(networks: Networks, obs: Array) -> Array:
        return value_network.apply(networks.value, flat(obs))[:, 0]

    def q_value(networks: Networks, obs: Array, action: Array, drawn: Array) -> Array:
        """Return the stochastic duelling network's Q `[B]` (Wang et al. 2017, Eq. 13).

        `V(s) + A(s, a) - mean_i A(s, u_i)`, with u `drawn` `[n, B, A]` by the policy.
        """
        mean = jax.vmap(lambda u: advantage_network.apply(networks.advantage, obs, u))(drawn)
        own = advantage_network.apply(networks.advantage, obs, action)
        return value_of(networks, obs) + own - mean.mean(axis=0)

    def draw(mean: Array, key: Array) -> Array:
        many = jnp.broadcast_to(mean, (config.samples, *mean.shape))
        return gaussian.sample(many, jnp.full_like(many, variance), key)

    def init(key: Array, obs: Array, action: Array) -> ACERState:
        keys = jax.random.split(key, 3)
        networks = Networks(
            policy.init(keys[0], obs[None]),
            value_network.init(keys[1], flat(obs[None])),
            advantage_network.init(keys[2], obs[None], action[None]),
        )
        return ACERState(networks, networks.policy, optimiser.init(networks))

    def greedy(state: ACERState, obs: Array) -> Array:
        return policy.apply(state.networks.policy, obs)

    def act(
        state: ACERState, obs: Array, key: Array, previous: Any = None
    ) -> tuple[Array, Behaviour]:
        del previous
        mean = greedy(state, obs)
        spread = jnp.full_like(mean, variance)
        return gaussian.sample(mean, spread, key), Behaviour(mean, spread)

    def trust_of(mean: Array, t: Transition, action: Array) -> Any:
        return gaussian.trust(mean, jnp.asarray(variance), t.extras, action)

    def update(state: ACERState, sample: Sample, key: Array) -> tuple[ACERState, Info]:
        key_duel, key_new = jax.random.split(key)
        t, networks = sample.transition, state.networks
        mean = greedy(state, t.obs)
        now = trust_of(mean, t, t.action)
        drawn = draw(mean, key_duel)
        q, value = q_value(networks, t.obs, t.action, drawn), value_of(networks, t.obs)
        steps = (t.reward, t.discount, t.last, value, q - value, value_of(networks, t.next_obs))
        shape = sample.aux.slots.shape
        in_time = [x.reshape(shape) for x in steps]
        # Traces are cut by the A-th root of the ratio, or not at all for the policy's own target.
        log_trace = (now.log_ratio / size).reshape(shape)
        q_ret = returns.retrace(*in_time, log_trace).ravel()
        q_opc = returns.retrace(*in_time, jnp.zeros(shape)).ravel()

        new = gaussian.sample(mean, jnp.full_like(mean, variance), key_new)
        q_new = q_value(networks, t.obs, new, drawn)
        ascent = jax.vmap(policy_gradient, (0, 0, 0, 0, 0, 0, None))(
            (t.action - mean) / variance, (new - mean) / variance, q_opc - value, q_new - value,
            now.log_ratio, trust_of(mean, t, new).log_ratio, config.truncation,
        )  # fmt: skip
        divergence = (mean - policy.apply(state.average, t.obs)) / variance  # KL's, by the mean
        ascent = jax.vmap(within_trust_region, (0, 0, None))(
            ascent, divergence, config.trust_region
        )
        v_target = returns.trace_corrected_value(q_ret, value, q - value, now.log_ratio)

        def loss(networks: Networks) -> tuple[Array, dict[str, Array]]:
            mean = policy.apply(networks.policy, t.obs)
            policy_loss = -(ascent * mean).sum(axis=1).mean()
            q_error = q_ret - q_value(networks, t.obs, t.action, drawn)
            v_error = v_target - value_of(networks, t.obs)
            value_loss = 0.5 * (jnp.square(q_error) + jnp.square(v_error)).mean()
            return policy_loss + value_loss, {"loss": value_loss, "actor_loss": policy_loss}

        grads, told = jax.grad(loss, has_aux=True)(networks)
        moves, opt_state = optimiser.update(grads, state.opt_state)
        networks = optax.apply_updates(networks, moves)
        average = optax.incremental_update(networks.policy, state.average, config.tau)
        info = Info(
            {"td_error": q_ret - q, "q_value": q, "target": q_ret},
            told | {"q_value": q.mean(), "grad_norm": optax.tree.norm(grads)},
        )
        common.tell_trust(info, now)
        return ACERState(networks, average, opt_state), info

    def feedback(state: ACERState, t: Transition, key: Array) -> dict[str, Array]:
        mean = greedy(state, t.obs)
        q = q_value(state.networks, t.obs, t.action, draw(mean, key))
        target = t.reward + t.discount * value_of(state.networks, t.next_obs)
        told = {"td_error": target - q, "q_value": q, "target": target}
        return told | common.trust_feedback(trust_of(mean, t, t.action))

    return Agent(init, act, greedy, update, feedback)
