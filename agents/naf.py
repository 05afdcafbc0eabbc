"""NAF: normalised advantage functions (Gu et al. 2016)."""

import dataclasses
import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import advantages, common, exploration, options
from agents.critics import DENSITY_OFFERS, Critics, critic_feedback, fit
from agents.learned_weights import learn_weights
from agents.networks import Activation, Actor, Obs, Params, apply, batch_of_one
from agents.types import Agent, Continuous, Info
from jaxreplay import objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition, Trust

OFFERS = DENSITY_OFFERS
_PAPER = "Novati & Koumoutsakos 2019, App. D"


@dataclasses.dataclass(frozen=True)
class NAFConfig(Config):
    """NAF hyperparameters; the noise scale assumes actions in [-1, 1]."""

    hidden: tuple[int, ...] = option((128, 128), options.HIDDEN_OF_ALL, _PAPER)
    activation: Activation = option("softsign", options.ACTIVATION, _PAPER)
    learning_rate: float = option(1e-4, options.ADAM_LEARNING_RATE)
    anneal: float = option(0.0, options.ANNEAL)
    tau: float = option(0.01, options.TAU, _PAPER)
    noise: Literal["gaussian", "ou"] = option("gaussian", options.NOISE)
    noise_std: float = option(0.2, options.NOISE_STD)


class Outputs(NamedTuple):
    """Network outputs."""

    mean: Array  # [B, A], policy mean, which maximises Q
    value: Array  # [B], V(s)
    factor: Array  # [B, A, A], lower-triangular factor L of the quadratic advantage


class NAFState(NamedTuple):
    """NAF agent state."""

    params: Params
    target: Params  # target network parameters
    opt_state: optax.OptState


def q_value(outputs: Outputs, action: Array) -> Array:
    """Return Q(s, a) `[B]` for actions a `[B, A]` (Gu et al. 2016, Eq. 4).

    `Q(s, a) = V(s) - 1/2 (a - m)^T L L^T (a - m)`, where m is the policy mean.
    """
    return outputs.value + jax.vmap(advantages.quadratic)(outputs.factor, action, outputs.mean)


class _NAF(exploration.NoisyPolicy):
    """Implementation of NAF."""

    def __init__(self, config: NAFConfig, space: Continuous, objective: Objective | None) -> None:
        common.check_arguments("NAF", space, Continuous, objective, OFFERS)
        self.config, self.objective = config, common.with_default_loss(objective, objectives.mse)
        self.size = size = space.size
        self.network = Actor(size + 1 + size * (size + 1) // 2, config.hidden, config.activation)
        self.optimiser = common.adam(config.learning_rate, config.anneal)
        exploration.check_noise(config.noise, self.objective.requires.density)

    def init(self, key: Array, obs: Obs, _action: Array) -> NAFState:
        params = self.network.init(key, batch_of_one(obs))
        return NAFState(params, params, self.optimiser.init(params))

    def outputs(self, params: Params, obs: Obs) -> Outputs:
        out = apply(self.network, params, obs)
        mean, value, rest = jnp.split(out, [self.size, self.size + 1], axis=-1)
        factor = jax.vmap(lambda x: advantages.lower_triangular(x, self.size))(rest)
        return Outputs(mean, value[:, 0], factor)

    def greedy(self, state: NAFState, obs: Obs) -> Array:
        return self.outputs(state.params, obs).mean

    def targets(self, state: NAFState, t: Transition) -> Array:
        next_value = self.outputs(state.target, t.next_obs).value
        return t.reward + t.discount * next_value

    def value(self, params: Params, t: Transition) -> Array:
        outputs = self.outputs(params, t.obs)
        if self.objective.requires.density:
            # The critic loss trains only V(s) and L, and `mean_loss` trains only the policy mean.
            outputs = outputs._replace(mean=jax.lax.stop_gradient(outputs.mean))
        return q_value(outputs, t.action)

    def critics(self, state: NAFState) -> Critics:
        return Critics(self.value, (state.params,), (state.target,))

    def mean_loss(self, params: Params, sample: Sample, target: Array) -> Array:
        """Return the actor loss `[]`. Its gradient reaches only the policy mean."""
        t, outputs = sample.transition, self.outputs(params, sample.transition.obs)
        mean_only = jax.lax.stop_gradient(outputs)._replace(mean=outputs.mean)
        td = target - q_value(mean_only, t.action)
        loss = self.objective.losses(td[None])
        return self.objective.actor(loss, sample, self.trust(outputs.mean, t))

    def loss(
        self, params: tuple[Params], sample: Sample, target: Array, trust: Trust | None
    ) -> tuple[Array, Array]:
        """Return the loss `[]` of a batch and the Q-values `[1, B]` of its actions."""
        q = self.value(params[0], sample.transition)[None]
        td_error = target - q
        loss = self.objective.critic(self.objective.losses(td_error), sample, trust)
        if self.objective.requires.density:
            loss += self.mean_loss(params[0], sample, target)
        return loss, q

    def update(self, state: NAFState, sample: Sample, key: Array) -> tuple[NAFState, Info]:
        t = sample.transition
        trust, target = self.trust(self.greedy(state, t.obs), t), self.targets(state, t)

        (grads,), info, _ = fit(
            functools.partial(self.loss, trust=trust),
            self.critics(state), sample, target, self.objective, key,
        )  # fmt: skip
        params, opt_state = common.descend(self.optimiser, grads, state.opt_state, state.params)
        target_params = common.soft_update(params, state.target, self.config.tau)
        return NAFState(params, target_params, opt_state), common.add_trust(info, trust)

    def feedback(self, state: NAFState, t: Transition, _key: Array) -> dict[str, Array]:
        trust, target = self.trust(self.greedy(state, t.obs), t), self.targets(state, t)
        feedback = critic_feedback(self.critics(state), t, target, self.objective)
        return feedback | common.trust_feedback(trust)


def naf(config: NAFConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Create a NAF agent.

    If the objective requires an action density, `objective.actor` trains the policy mean, and its
    penalty does not affect V(s) and the factor L (Novati & Koumoutsakos 2019, App. D).

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects half the importance-weighted squared error.

    Raises:
      ValueError: If `action_space` is not `Continuous`, or if `objective` requires an action
        density but the noise is temporally correlated.
    """
    agent = _NAF(config, action_space, objective)
    of_action = agent.objective.requires.density  # otherwise, extras hold only noise
    made = Agent(agent.init, agent.act, agent.greedy, agent.update, agent.feedback, of_action)
    return learn_weights(made, objective, action_space)
