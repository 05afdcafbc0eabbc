"""RACER: an off-policy actor-critic with a single network (Novati & Koumoutsakos 2019, Sec. 4)."""

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from agents import common, gaussian, options
from agents.advantages import FORMS, FormName
from agents.critics import VALUES
from agents.gaussian import Behaviour
from agents.networks import MLP, Activation, Obs, Params, apply, batch_of_one, flat_or_encoded
from agents.types import Agent, Continuous, Info, Offers
from jaxreplay import returns
from jaxreplay.loops import IfFiniteState
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition, Trust

OFFERS = Offers(
    VALUES | {"log_ratio", "value", "advantage", "next_value"},
    density=True,
    reads=frozenset({"returns"}),
)
_PAPER = "Novati & Koumoutsakos 2019, Tab. 1"


@dataclasses.dataclass(frozen=True)
class RACERConfig(Config):
    """RACER hyperparameters."""

    advantage: FormName = option("dg", "advantage form; none selects V-RACER", f"{_PAPER}, App. A")
    initial_variance: float = option(
        0.2, "initial policy variance per dimension, for actions in [-1, 1]", _PAPER, above=0
    )
    hidden: tuple[int, ...] = option((128, 128), options.HIDDEN_OF_ALL, options.REFER)
    activation: Activation = option("softsign", options.ACTIVATION, options.REFER)
    learning_rate: float = option(1e-4, options.ADAM_LEARNING_RATE, _PAPER)
    anneal: float = option(5e-7, options.ANNEAL, f"{_PAPER}, Eq. 10")


class Outputs(NamedTuple):
    """Network outputs."""

    mean: Array  # [B, A], policy mean
    variance: Array  # [A], policy variance, shared by all states
    value: Array  # [B], V(s)
    shape: Array  # [B, size(A)], outputs that the advantage's Form reads


class RACERState(NamedTuple):
    """RACER agent state."""

    params: Params
    opt_state: optax.OptState


class Network(nn.Module):
    """A network for policy mean, value and advantage, with a separate variance parameter."""

    size: int
    config: RACERConfig

    @nn.compact
    def __call__(self, obs: Obs) -> Outputs:
        form = FORMS[self.config.advantage]
        width = self.size + 1 + form.size(self.size)
        out = MLP((*self.config.hidden, width), self.config.activation)(flat_or_encoded(obs))
        mean, value, shape = jnp.split(out, [self.size, self.size + 1], axis=-1)
        start = float(np.log(np.expm1(self.config.initial_variance)))  # inverse of softplus
        variance = self.param("variance", nn.initializers.constant(start), (self.size,))
        return Outputs(mean, nn.softplus(variance), value[:, 0], shape + form.bias(self.size))


def surrogate_loss(
    log_prob: Array, log_ratio: Array, value: Array, advantage: Array, q_ret: Array
) -> Array:
    """Return one example's loss `[]`. Eq. 5, 6 and 8 of the paper give its negative gradient.

    Args:
      log_prob: `[]`, log pi(a|s) of the stored action a under the policy pi.
      log_ratio: `[]`, log(pi(a|s) / mu(a|s)), where mu is the behaviour policy.
      value: `[]`, V(s).
      advantage: `[]`, A(s, a), with no gradient through the policy mean and variance.
      q_ret: `[]`, the Retrace estimate of Q(s, a).
    """
    constant = jax.lax.stop_gradient
    ratio = constant(jnp.exp(log_ratio))
    advantage_ret = constant(q_ret - value)
    target = constant(returns.trace_corrected_value(q_ret, value, advantage, log_ratio))
    policy = -ratio * advantage_ret * log_prob
    critic = 0.5 * jnp.square(value - target)
    return policy + critic + 0.5 * ratio * jnp.square(advantage_ret - advantage)


class _RACER:
    """Implementation of RACER."""

    def __init__(self, config: RACERConfig, space: Continuous, objective: Objective | None) -> None:
        common.check_arguments("RACER", space, Continuous, objective, OFFERS)
        self.objective = common.with_default_loss(objective, jnp.square)  # RACER ignores `error`
        self.form = FORMS[config.advantage]
        self.network = Network(space.size, config)
        self.optimiser = common.adam(config.learning_rate, config.anneal)

    def init(self, key: Array, obs: Obs, _action: Array) -> RACERState:
        params = self.network.init(key, batch_of_one(obs))
        return RACERState(params, self.optimiser.init(params))

    def outputs(self, params: Params, obs: Obs) -> Outputs:
        return apply(self.network, params, obs)

    def greedy(self, state: RACERState, obs: Obs) -> Array:
        return self.outputs(state.params, obs).mean

    def act(
        self, state: RACERState, obs: Obs, key: Array, _: Any = None
    ) -> tuple[Array, Behaviour]:
        out = self.outputs(state.params, obs)
        return gaussian.act(out.mean, out.variance, key)

    def advantage(self, out: Outputs, action: Array) -> Array:
        """Return A(s, a) `[B]`, with no gradient through the policy mean and variance."""
        mean, variance = jax.lax.stop_gradient((out.mean, out.variance))
        advantage = jax.vmap(self.form.advantage, in_axes=(0, 0, 0, None))
        return advantage(out.shape, action, mean, variance)

    def trust(self, out: Outputs, t: Transition) -> Trust:
        return gaussian.trust(out.mean, out.variance, cast(Behaviour, t.extras), t.action)

    def _feedback(
        self, state: RACERState, t: Transition, out: Outputs, trust: Trust
    ) -> dict[str, Array]:
        advantage = self.advantage(out, t.action)
        return {
            "log_ratio": trust.log_ratio,
            "value": out.value,
            "advantage": advantage,
            "next_value": self.outputs(state.params, t.next_obs).value,
            "q_value": out.value + advantage,
        }

    def loss(
        self, params: Params, sample: Sample, q_ret: Array
    ) -> tuple[Array, tuple[Outputs, Trust]]:
        t = sample.transition
        out = self.outputs(params, t.obs)
        trust = self.trust(out, t)
        log_prob = gaussian.log_prob(out.mean, out.variance, t.action)
        per_sample = jax.vmap(surrogate_loss)(
            log_prob, trust.log_ratio, out.value, self.advantage(out, t.action), q_ret
        )
        return self.objective.actor(per_sample, sample, trust), (out, trust)

    def update(self, state: RACERState, sample: Sample, _key: Array) -> tuple[RACERState, Info]:
        q_ret = common.read_aux(
            "RACER", sample, "q_ret", "the replay method 'refer' with returns=True"
        )
        (loss, (out, trust)), grads = jax.value_and_grad(self.loss, has_aux=True)(
            state.params, sample, q_ret
        )
        params, opt_state = common.descend(self.optimiser, grads, state.opt_state, state.params)
        feedback = self._feedback(state, sample.transition, out, trust)
        feedback |= {"td_error": q_ret - feedback["q_value"], "target": q_ret}
        metrics = {
            "loss": loss,
            "q_value": feedback["q_value"].mean(),
            "grad_norm": common.global_norm(grads),
            "variance": out.variance.mean(),
            # 1 if the optimiser skipped the update because the gradient is not finite.
            "skipped": 1.0 - cast(IfFiniteState, opt_state).finite,
        }
        return RACERState(params, opt_state), common.add_trust(Info(feedback, metrics), trust)

    def feedback(self, state: RACERState, t: Transition, _key: Array) -> dict[str, Array]:
        out = self.outputs(state.params, t.obs)
        feedback = self._feedback(state, t, out, self.trust(out, t))
        # Use a one-step target, since only sampled batches have return estimates.
        target = t.reward + t.discount * feedback["next_value"]
        return feedback | {"td_error": target - feedback["q_value"], "target": target}


def racer(
    config: RACERConfig, action_space: Continuous, objective: Objective | None = None
) -> Agent:
    """Create a RACER agent.

    RACER trains on the Retrace estimates `Sample.aux.q_ret` `[B]`. The replay method computes them
    from the agent's feedback `value`, `advantage`, `next_value` and `log_ratio`.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: objective of the replay method, whose function `actor` reduces the losses `[B]` to
        a number; None takes their unweighted mean.

    Raises:
      ValueError: If `action_space` is not `Continuous`, or if `objective` sets a loss on TD errors.
    """
    agent = _RACER(config, action_space, objective)
    return Agent(agent.init, agent.act, agent.greedy, agent.update, agent.feedback)
