"""NAF: normalised advantage functions (Gu et al. 2016)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import advantages, common, exploration
from agents.common import Critique
from agents.networks import Actor, Obs, Params, apply
from agents.options import NoisyTargetOptions
from agents.types import Agent, Continuous, Info
from jaxreplay import objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import option
from jaxreplay.types import Array, Sample, Transition

_PAPER = "Novati & Koumoutsakos 2019, App. D"


@dataclasses.dataclass(frozen=True)
class NAFConfig(NoisyTargetOptions):
    """Hyperparameters of NAF; noise is in units of the action range [-1, 1]."""

    learning_rate: float = option(1e-4, "Adam step size", _PAPER, above=0, at_most=10)


class Outputs(NamedTuple):
    """What the one network returns for every state."""

    mean: Array  # [B, A], of the policy, and where Q is largest
    value: Array  # [B]
    factor: Array  # [B, A, A], lower triangular L


class NAFState(NamedTuple):
    """What NAF carries from update to update."""

    params: Params
    target: Params
    opt_state: optax.OptState


def q_value(outputs: Outputs, action: Array) -> Array:
    """Return `Q(s, a) = V(s) - 1/2 (a - m)^T L L^T (a - m)`, `[B]` (Gu et al. 2016, Eq. 4)."""
    return outputs.value + jax.vmap(advantages.quadratic)(outputs.factor, action, outputs.mean)


class _NAF(exploration.NoisyPolicy):
    """The functions of one agent, over a network that is made once."""

    def __init__(self, config: NAFConfig, space: Continuous, objective: Objective | None) -> None:
        common.check_made("NAF", space, Continuous, objective)
        self.config, self.objective = config, common.complete(objective, objectives.mse)
        self.size = size = space.size
        self.network = Actor(size + 1 + size * (size + 1) // 2, config.hidden, config.activation)
        self.optimiser = common.adam(config.learning_rate, config.anneal)
        exploration.check_noise(config, self.objective.requires.density)

    def init(self, key: Array, obs: Obs, action: Array) -> NAFState:
        del action
        params = self.network.init(key, obs[None])
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
        return jax.vmap(common.one_step_target)(next_value, t.reward, t.discount)

    def criticise(self, params: Params, sample: Sample, target: Array) -> Critique:
        t, outputs = sample.transition, self.outputs(params, sample.transition.obs)
        if not self.objective.requires.density:
            return Critique(q_value(outputs, t.action)[None], target)
        # The mean learns from an actor's loss alone, value and factor from the critic's.
        fixed_mean = outputs._replace(mean=jax.lax.stop_gradient(outputs.mean))
        q = q_value(fixed_mean, t.action)[None]
        return Critique(q, target, penalty=self.mean_loss(params, sample, target))

    def mean_loss(self, params: Params, sample: Sample, target: Array) -> Array:
        """Return the loss `[]` that moves the mean alone, as an actor's."""
        t, outputs = sample.transition, self.outputs(params, sample.transition.obs)
        mean_only = jax.lax.stop_gradient(outputs)._replace(mean=outputs.mean)
        td = target - q_value(mean_only, t.action)
        loss = common.per_sample_loss(self.objective, td[None])
        return self.objective.actor(loss, sample, self.trust(outputs.mean, t))

    def update(self, state: NAFState, sample: Sample, key: Array) -> tuple[NAFState, Info]:
        del key
        t = sample.transition
        trust, target = self.trust(self.greedy(state, t.obs), t), self.targets(state, t)
        grads, info, _ = common.critic_gradient(
            lambda params: self.criticise(params, sample, target),
            state.params, sample, self.objective, trust,
        )  # fmt: skip
        params, opt_state = common.descend(self.optimiser, grads, state.opt_state, state.params)
        target_params = common.follow(params, state.target, self.config.tau)
        return NAFState(params, target_params, opt_state), common.add_trust(info, trust)

    def feedback(self, state: NAFState, t: Transition, key: Array) -> dict[str, Array]:
        del key
        outputs = self.outputs(state.params, t.obs)
        q = q_value(outputs, t.action)[None]
        feedback = common.value_feedback(q, self.targets(state, t))
        return feedback | common.trust_feedback(self.trust(outputs.mean, t))


def naf(config: NAFConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Make a NAF agent; `objective` shapes its loss (default: weighted half squared error).

    Its loss is a critic's. For objectives with trust terms it is an actor's where it moves the
    mean: a penalty is mixed with that part alone (Novati & Koumoutsakos 2019, App. D).

    Raises:
      ValueError: the action space is not continuous, or the noise does not fit the objective.
    """
    made = _NAF(config, action_space, objective)
    of_action = made.objective.requires.density  # else extras are where the noise is
    return Agent(made.init, made.act, made.greedy, made.update, made.feedback, of_action)
