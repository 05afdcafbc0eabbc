"""Observation and reward normalisation (Novati & Koumoutsakos 2019, App. C)."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from agents.common import averaged
from agents.types import Agent, Info
from jaxreplay import ring as ring_
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Sample, Transition

_EPSILON = 1e-7


class Scaling(NamedTuple):
    """Statistics for normalising observations and rewards."""

    mean: chex.ArrayTree  # [...] float32, mean of each observation dimension
    std: chex.ArrayTree  # [...] float32, standard deviation of each dimension
    reward: Array  # [] float32, root mean square of rewards


class ScaledState(NamedTuple):
    """State of an agent with normalised inputs."""

    agent: Any  # state of the wrapped agent
    scaling: Scaling


def normalise_inputs(agent: Agent) -> Agent:
    """Wrap an agent to normalise observations and rewards with the `scaling` in its state.

    Values and TD errors, including those in the feedback, then refer to scaled rewards. The
    feedback `reward_scale` `[B]` is the root mean square by which rewards are divided. The
    initial scaling is the identity, and the training loop updates the scaling with
    `measure_observations` and `measure_rewards`.

    Returns:
      An agent whose state is a `ScaledState`.
    """

    def init(key: Array, obs: chex.ArrayTree, action: Array) -> ScaledState:
        zeros = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), obs)
        ones = jax.tree.map(jnp.ones_like, zeros)
        scaling = Scaling(zeros, ones, jnp.ones((), jnp.float32))
        return ScaledState(agent.init(key, scale_observations(scaling, obs), action), scaling)

    def act(state: ScaledState, obs: chex.ArrayTree, key: Array, previous: Any = None):
        return agent.act(state.agent, scale_observations(state.scaling, obs), key, previous)

    def greedy(state: ScaledState, obs: chex.ArrayTree) -> Array:
        return agent.greedy(state.agent, scale_observations(state.scaling, obs))

    def recall(state: ScaledState, obs: chex.ArrayTree, previous: Any = None):
        assert agent.recall is not None
        return agent.recall(state.agent, scale_observations(state.scaling, obs), previous)

    def update(state: ScaledState, sample: Sample, key: Array) -> tuple[ScaledState, Info]:
        sample = sample._replace(transition=scale_transition(state.scaling, sample.transition))
        inner, info = agent.update(state.agent, sample, key)
        return state._replace(agent=inner), info._replace(feedback=with_scale(state, info.feedback))

    def feedback(state: ScaledState, t: Transition, key: Array) -> dict[str, Array]:
        return with_scale(
            state, agent.feedback(state.agent, scale_transition(state.scaling, t), key)
        )

    def with_scale(state: ScaledState, feedback: dict[str, Array]) -> dict[str, Array]:
        like = next(iter(feedback.values()))
        return feedback | {"reward_scale": jnp.full_like(like, state.scaling.reward)}

    def gradient(state: ScaledState, t: Transition, weights: Array, key: Array) -> Any:
        assert agent.gradient is not None
        return agent.gradient(state.agent, scale_transition(state.scaling, t), weights, key)

    return agent._replace(
        init=init, act=act, greedy=greedy, update=update, feedback=feedback,
        recall=agent.recall and recall, gradient=agent.gradient and gradient,
    )  # fmt: skip


def scale_observations(scaling: Scaling, obs: chex.ArrayTree) -> chex.ArrayTree:
    """Subtract the mean from observations, and divide them by the standard deviation."""
    return jax.tree.map(
        lambda x, mean, std: (x - mean) / (std + _EPSILON), obs, scaling.mean, scaling.std
    )


def scale_transition(scaling: Scaling, t: Transition) -> Transition:
    """Normalise the observations and scale the rewards of transitions `[B, ...]`."""
    return t._replace(
        obs=scale_observations(scaling, t.obs),
        next_obs=scale_observations(scaling, t.next_obs),
        reward=t.reward / (scaling.reward + _EPSILON),
    )


def measure_observations(scaling: Scaling, ring: Ring) -> Scaling:
    """Update the scaling with the mean and std of all observations in the ring buffer.

    Statistics are per dimension (Novati & Koumoutsakos 2019, Eq. 21 to 23). Sums are divided by the
    number of summands, whereas the paper divides by one less.
    """
    stored, size = _stored_slots(ring)

    def mean(x: Array) -> Array:
        mask = stored.reshape(-1, *[1] * (x.ndim - 1))
        return averaged(jnp.where(mask, x.astype(jnp.float32), 0.0).sum(axis=0) / size)

    obs = ring_.contents(ring).obs
    means = jax.tree.map(mean, obs)
    std = jax.tree.map(lambda x, m: jnp.sqrt(mean(jnp.square(x - m))), obs, means)
    return scaling._replace(mean=means, std=jax.tree.map(_or_one, std))


def measure_rewards(scaling: Scaling, ring: Ring) -> Scaling:
    """Update the scaling with the root mean square of all rewards in the ring buffer."""
    stored, size = _stored_slots(ring)
    squares = jnp.where(stored, jnp.square(ring_.contents(ring).reward), 0.0)
    return scaling._replace(reward=_or_one(jnp.sqrt(averaged(squares.sum() / size))))


def _or_one(scale: Array) -> Array:
    """Replace zero scales, which constant inputs produce, by 1."""
    return jnp.where(scale > 0, scale, 1.0)


def _stored_slots(ring: Ring) -> tuple[Array, Array]:
    """Return a mask `[capacity]` of occupied slots, and their number, at least 1."""
    size = ring_.size(ring)
    return jnp.arange(ring.capacity) < size, jnp.maximum(size, 1)
