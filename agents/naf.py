"""NAF: normalised advantage functions (Gu et al. 2016)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import advantages, common, exploration
from agents.networks import Actor
from agents.options import NoisyTargetOptions
from agents.types import Agent, Continuous, Info
from jaxreplay import objectives
from jaxreplay.option import option
from jaxreplay.types import Array, Objective, Sample, Transition, Trust

Params = Any
_PAPER = "Novati & Koumoutsakos 2019, App. D"


@dataclasses.dataclass(frozen=True)
class NAFConfig(NoisyTargetOptions):
    """Hyperparameters of NAF; noise is in units of the action range [-1, 1]."""

    learning_rate: float = option(1e-4, "Adam step size", _PAPER, above=0)


class Outputs(NamedTuple):
    """What the one network says of every state."""

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


def naf(config: NAFConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Make a NAF agent; `objective` shapes its loss (default: weighted half squared error).

    Its loss is a critic's. For objectives with trust terms it is an actor's where it moves the
    mean: a penalty is mixed with that part alone (Novati & Koumoutsakos 2019, App. D).

    Raises:
      ValueError: the action space is not continuous, or the noise does not fit the objective.
    """
    common.require(
        isinstance(action_space, Continuous),
        f"NAF needs continuous actions, not {action_space}: choose an agent for discrete actions",
    )
    objective = common.complete(objective, objectives.mse)
    exploration.check_noise(config, objective.requires.density)
    size = action_space.size
    network = Actor(size + 1 + size * (size + 1) // 2, config.hidden, config.activation)
    optimiser = common.adam(config.learning_rate, config.anneal)

    def see(params: Params, obs: Array) -> Outputs:
        mean, value, rest = jnp.split(network.apply(params, obs), [size, size + 1], axis=-1)
        factor = jax.vmap(lambda x: advantages.lower_triangular(x, size))(rest)
        return Outputs(mean, value[:, 0], factor)

    def init(key: Array, obs: Array, action: Array) -> NAFState:
        del action
        params = network.init(key, obs[None])
        return NAFState(params, params, optimiser.init(params))

    def greedy(state: NAFState, obs: Array) -> Array:
        return see(state.params, obs).mean

    def act(state: NAFState, obs: Array, key: Array, previous: Any = None) -> tuple[Array, Any]:
        density = objective.requires.density
        return exploration.explore(greedy(state, obs), key, config, previous, density)

    def trust(mean: Array, t: Transition) -> Trust | None:
        return exploration.trust(mean, t, config) if objective.requires.density else None

    def targets(state: NAFState, t: Transition) -> Array:
        next_value = see(state.target, t.next_obs).value
        return jax.vmap(common.one_step_target)(next_value, t.reward, t.discount)

    def update(state: NAFState, sample: Sample, key: Array) -> tuple[NAFState, Info]:
        del key
        t = sample.transition
        target = targets(state, t)
        now = trust(greedy(state, t.obs), t)

        def q_values(params: Params) -> Array:
            outputs = see(params, t.obs)
            if objective.requires.density:  # the mean learns from `mean_alone`
                outputs = outputs._replace(mean=jax.lax.stop_gradient(outputs.mean))
            return q_value(outputs, t.action)[None]

        def mean_alone(params: Params) -> Array:
            outputs = see(params, t.obs)
            held = jax.lax.stop_gradient(outputs)._replace(mean=outputs.mean)
            td = target - q_value(held, t.action)
            loss = objective.error(td[None]).sum(axis=0)
            return objective.actor(loss, sample, trust(outputs.mean, t))

        grads, info = common.critic_gradient(
            q_values, state.params, target, sample, objective, now,
            more=mean_alone if objective.requires.density else None,
        )  # fmt: skip
        steps, opt_state = optimiser.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, steps)
        common.tell_trust(info, now)
        target_params = optax.incremental_update(params, state.target, config.tau)
        return NAFState(params, target_params, opt_state), info

    def feedback(state: NAFState, t: Transition, key: Array) -> dict[str, Array]:
        del key
        outputs = see(state.params, t.obs)
        feedback = common.value_feedback(q_value(outputs, t.action)[None], targets(state, t))
        return feedback | common.trust_feedback(trust(outputs.mean, t))

    return Agent(init, act, greedy, update, feedback)
