"""What a training run carries from step to step, and the keys of everything random in it."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import struct

from agents.types import Agent, Continuous, Discrete
from experiments.environments.types import Array
from jaxreplay import n_step
from jaxreplay.loops import unrolled
from jaxreplay.n_step import Step, Window
from jaxreplay.replay import Replay
from jaxreplay.types import Transition

Metrics = dict[str, Array]  # each [] float32


class Sums(struct.PyTreeNode):
    """Sums of metrics over gradient updates; in two arrays, as each array takes time to compile."""

    totals: Array  # [M] float32
    counts: Array  # [M] float32, of how many each is the sum
    names: tuple[str, ...] = struct.field(pytree_node=False)

    def means(self) -> Metrics:
        """Return the mean of each metric; NaN where there was none."""
        return dict(zip(self.names, self.totals / self.counts, strict=True))


class Keys(NamedTuple):
    """One root per use; a step's key is its root folded with the clock, so none is used twice.

    Roots that are folded with the same clock are one array: one hash makes the keys of them all.
    """

    collect: Array  # [2 + E] keys: of acting, of feedback about the step, of each environment
    learn: Array  # [2]: of the batch, of the agent
    observe: Array  # [2]: of telling the replay a return, of an evaluation for it
    evaluate: Array  # []
    inspect: Array  # []


class Episodes(NamedTuple):
    """The running episode of every environment."""

    returns: Array  # [E] float32, undiscounted, so far
    lengths: Array  # [E] int32, agent steps so far


class LoopState(NamedTuple):
    """Everything that a run carries; in a compiled loop, saving it and going on changes nothing."""

    keys: Keys
    rows: Array  # [] int32, a clock: agent steps in each environment so far
    updates: Array  # [] int32, a clock: gradient updates so far
    env_state: Any  # [E, ...]; () if the environments live on the host
    obs: chex.ArrayTree  # [E, ...]
    episodes: Episodes
    extras: chex.ArrayTree  # [E, ...] of the step before, zeros where an episode begins
    window: Window
    fault: Array  # [] int32, `rows` after the first step that was not finite; 0: all were
    agent: Any
    replay: Any
    host: Any = ()  # what of the replay is kept on the host, in NumPy arrays: see `host_store`
    since: Any = ()  # sums accumulated since the last log point


def initial_state(
    action_space: Discrete | Continuous,
    agent: Agent,
    replay: Replay,
    window_length: int,
    key: Array,
    env_state: Any,
    obs: chex.ArrayTree,
) -> LoopState:
    """Make the state before the first step.

    Args:
      action_space: of the environments.
      agent: the agent.
      replay: the replay.
      window_length: n of the n-step returns.
      key: of the whole run.
      env_state: after the reset, `[E, ...]`.
      obs: after the reset, `[E, ...]`.
    """
    roots = _roots(key, replay.num_envs)
    one_obs = jax.tree.map(lambda x: x[0], obs)
    one_action = example_action(action_space)
    agent_state = agent.init(roots.agent, one_obs, one_action)
    extras = jax.eval_shape(agent.act, agent_state, obs, roots.agent)[1]
    one_extras = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), extras)
    scalar, flag = jnp.zeros((), jnp.float32), jnp.zeros((), bool)
    step = Step(one_obs, one_action, scalar, flag, flag, one_obs, flag, one_extras)
    transition = Transition(one_obs, one_action, scalar, scalar, one_obs, flag, flag, one_extras)
    clock = jnp.zeros((), jnp.int32)
    lanes = jnp.zeros(replay.num_envs, jnp.int32)
    return LoopState(
        keys=roots.keys,
        rows=clock,
        updates=clock,
        env_state=env_state,
        obs=obs,
        episodes=Episodes(lanes.astype(jnp.float32), lanes),
        extras=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), extras),
        window=n_step.init(step, window_length, replay.num_envs),
        fault=clock,
        agent=agent_state,
        replay=replay.init(roots.replay, transition),
    )


def example_action(space: Discrete | Continuous) -> Array:
    """Return an action of one environment, for its shape and dtype."""
    if isinstance(space, Discrete):
        return jnp.zeros((), jnp.int32)
    return jnp.zeros(space.size, jnp.float32)


def a_key() -> Any:
    """Return the shape and dtype of a key, to trace with."""
    return jax.eval_shape(jax.random.key, 0)


def reset_keys(key: Array, num_envs: int) -> Array:
    """Return the keys `[E]` of the environments' reset in a run of `key`."""
    return _roots(key, num_envs).resets


def acting_key(state: LoopState) -> Array:
    """Return the key of the next choice of actions."""
    return folded(state.keys.collect, state.rows)[0]


def feedback_key(state: LoopState) -> Array:
    """Return the key of the feedback about what the next step brings."""
    return folded(state.keys.collect, state.rows)[1]


def step_keys(state: LoopState) -> Array:
    """Return the keys `[E]` of the environments' next step."""
    return folded(state.keys.collect, state.rows)[2:]


def learning_keys(state: LoopState) -> Array:
    """Return the keys `[2]` of the next gradient update: of its batch, and of its agent."""
    return folded(state.keys.learn, state.updates)


def observing_keys(state: LoopState) -> Array:
    """Return the keys `[2]` of telling the replay a return, and of an evaluation for it."""
    return folded(state.keys.observe, state.rows)


def evaluation_key(state: LoopState) -> Array:
    """Return the key of an evaluation."""
    return jax.random.fold_in(state.keys.evaluate, state.rows)


def inspection_key(state: LoopState) -> Array:
    """Return the key of looking at what is replayed."""
    return jax.random.fold_in(state.keys.inspect, state.rows)


class _Roots(NamedTuple):
    """What the key of a run is split into."""

    agent: Array  # [] key
    replay: Array  # []
    resets: Array  # [E], of the environments
    keys: Keys


def _roots(key: Array, num_envs: int) -> _Roots:
    keys = jax.random.split(unrolled(key), 10 + 2 * num_envs)  # as many as there are below
    agent, replay, evaluate, inspect = keys[:4]
    learn, observe, collect, resets = keys[4:6], keys[6:8], keys[8:-num_envs], keys[-num_envs:]
    return _Roots(agent, replay, resets, Keys(collect, learn, observe, evaluate, inspect))


def folded(roots: Array, clock: Array) -> Array:
    """Return the keys `[n]` of roots `[n]` at a time, in one hash."""
    return jax.vmap(jax.random.fold_in, (0, None))(roots, clock)
