"""RACER: off-policy actor critic with one network (Novati & Koumoutsakos 2019, Sec. 4)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from agents import common, gaussian
from agents.advantages import FORMS
from agents.gaussian import Behaviour
from agents.networks import MLP, flat
from agents.options import NetworkOptions
from agents.types import Agent, Continuous, Info
from jaxreplay import returns
from jaxreplay.option import option, override
from jaxreplay.types import Array, Objective, Sample, Transition, Trust

Params = Any
_PAPER = "Novati & Koumoutsakos 2019, Tab. 1"


@dataclasses.dataclass(frozen=True)
class RACERConfig(NetworkOptions):
    """Hyperparameters of RACER."""

    anneal: float = override(NetworkOptions, "anneal", 5e-7, f"{_PAPER}, Eq. 10")
    learning_rate: float = option(1e-4, "Adam step size", _PAPER, above=0)
    advantage: str = option(
        "dg", "form of the advantage; none: V-RACER", f"{_PAPER}, App. A", tuple(FORMS)
    )
    initial_variance: float = option(
        0.2, "of every action dimension, in units of the action range [-1, 1]", _PAPER, above=0
    )


class Outputs(NamedTuple):
    """What the network says of every state."""

    mean: Array  # [B, A], of the policy
    variance: Array  # [A], of the policy in every state
    value: Array  # [B]
    shape: Array  # [B, k], of the advantage, as its form takes them


class RACERState(NamedTuple):
    """What RACER carries from update to update."""

    params: Params
    opt_state: optax.OptState


class Network(nn.Module):
    """Mean, value and advantage of every state from one network; one variance for all."""

    size: int
    config: RACERConfig

    @nn.compact
    def __call__(self, obs: Array) -> Outputs:
        form = FORMS[self.config.advantage]
        width = self.size + 1 + form.size(self.size)
        out = MLP((*self.config.hidden, width), self.config.activation)(flat(obs))
        mean, value, shape = jnp.split(out, [self.size, self.size + 1], axis=-1)
        start = float(np.log(np.expm1(self.config.initial_variance)))  # softplus's inverse
        variance = self.param("variance", nn.initializers.constant(start), (self.size,))
        return Outputs(mean, nn.softplus(variance), value[:, 0], shape + form.bias(self.size))


def surrogate_loss(
    log_prob: Array, log_ratio: Array, value: Array, advantage: Array, q_ret: Array
) -> Array:
    """Return one example's loss `[]`, whose gradient is minus RACER's (Eq. 5, 6 and 8).

    Args:
      log_prob: `[]`, of the action under the policy.
      log_ratio: `[]`, log pi/mu of the action.
      value: `[]`, V(s).
      advantage: `[]`, A(s, a), with the policy inside it held constant.
      q_ret: `[]`, Retrace's estimate of Q(s, a).
    """
    hold = jax.lax.stop_gradient
    ratio = hold(jnp.exp(log_ratio))
    advantage_ret = hold(q_ret - value)
    target = hold(returns.trace_corrected_value(q_ret, value, advantage, log_ratio))
    policy = -ratio * advantage_ret * log_prob
    critic = 0.5 * jnp.square(value - target)
    return policy + critic + 0.5 * ratio * jnp.square(advantage_ret - advantage)


def racer(
    config: RACERConfig, action_space: Continuous, objective: Objective | None = None
) -> Agent:
    """Make a RACER agent; `objective` shapes its loss as an actor's (default: the mean).

    It learns from Retrace's estimates, which the replay has to keep (`Sample.aux.q_ret`).

    Raises:
      ValueError: the action space is not continuous.
    """
    common.require(
        isinstance(action_space, Continuous),
        f"RACER needs continuous actions, not {action_space}: choose an agent for discrete ones",
    )
    objective = common.complete(objective, jnp.square)  # its `error` is not used
    network = Network(action_space.size, config)
    optimiser = common.adam(config.learning_rate, config.anneal)
    of_batch = jax.vmap(FORMS[config.advantage].advantage, in_axes=(0, 0, 0, None))

    def init(key: Array, obs: Array, action: Array) -> RACERState:
        del action
        params = network.init(key, obs[None])
        return RACERState(params, optimiser.init(params))

    def greedy(state: RACERState, obs: Array) -> Array:
        return network.apply(state.params, obs).mean

    def act(
        state: RACERState, obs: Array, key: Array, previous: Any = None
    ) -> tuple[Array, Behaviour]:
        del previous
        out = network.apply(state.params, obs)
        variance = jnp.broadcast_to(out.variance, out.mean.shape)
        return gaussian.sample(out.mean, variance, key), Behaviour(out.mean, variance)

    def advantage(out: Outputs, action: Array) -> Array:
        hold = jax.lax.stop_gradient
        return of_batch(out.shape, action, hold(out.mean), hold(out.variance))

    def trust(out: Outputs, t: Transition) -> Trust:
        return gaussian.trust(out.mean, out.variance, t.extras, t.action)

    def feedback_of(state: RACERState, t: Transition, out: Outputs, now: Trust) -> dict[str, Array]:
        next_value = network.apply(state.params, t.next_obs).value
        a = advantage(out, t.action)
        return {
            "log_ratio": now.log_ratio, "value": out.value, "advantage": a,
            "next_value": next_value, "q_value": out.value + a,
        }  # fmt: skip

    def update(state: RACERState, sample: Sample, key: Array) -> tuple[RACERState, Info]:
        del key
        t, q_ret = sample.transition, _returns(sample)

        def loss(params: Params) -> tuple[Array, tuple[Outputs, Trust]]:
            out = network.apply(params, t.obs)
            now = trust(out, t)
            log_prob = gaussian.log_prob(out.mean, out.variance, t.action)
            per_sample = jax.vmap(surrogate_loss)(
                log_prob, now.log_ratio, out.value, advantage(out, t.action), q_ret
            )
            return objective.actor(per_sample, sample, now), (out, now)

        (value, (out, now)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        steps, opt_state = optimiser.update(grads, state.opt_state)
        told = feedback_of(state, t, out, now)
        told |= {"td_error": q_ret - told["q_value"], "target": q_ret}
        info = Info(told, {
            "loss": value, "q_value": told["q_value"].mean(), "grad_norm": optax.tree.norm(grads),
            "variance": out.variance.mean(),
            "skipped": 1.0 - opt_state.last_finite,  # share of updates that were not finite
        })  # fmt: skip
        common.tell_trust(info, now)
        return RACERState(optax.apply_updates(state.params, steps), opt_state), info

    def feedback(state: RACERState, t: Transition, key: Array) -> dict[str, Array]:
        del key
        out = network.apply(state.params, t.obs)
        told = feedback_of(state, t, out, trust(out, t))
        target = t.reward + t.discount * told["next_value"]  # the returns' own are the replay's
        return told | {"td_error": target - told["q_value"], "target": target}

    return Agent(init, act, greedy, update, feedback)


def _returns(sample: Sample) -> Array:
    """Return the replay's estimates of Q(s, a) `[B]`."""
    q_ret = getattr(sample.aux, "q_ret", ())
    if isinstance(q_ret, tuple):
        raise ValueError(
            "RACER learns from returns that the replay estimates: use a replay method that keeps "
            "them (its option `returns`)"
        )
    return q_ret
