"""The state that a training run carries from step to step, and the keys of its random numbers."""

from typing import Any, NamedTuple

import chex
import jax
from flax import struct

from experiments.environments.types import Array
from jaxreplay import devices
from jaxreplay.loops import unrolled
from jaxreplay.n_step import Window

Metrics = dict[str, Array]  # each [] float32


class Sums(struct.PyTreeNode):
    """Sums of metrics over gradient updates, in only two arrays, which reduces compile time."""

    totals: Array  # [M] float32
    counts: Array  # [M] float32, number of terms in each sum
    names: tuple[str, ...] = struct.field(pytree_node=False)

    def means(self) -> Metrics:
        """Return the mean of each metric; NaN for a metric without terms."""
        return dict(zip(self.names, self.totals / self.counts, strict=True))


class Keys(NamedTuple):
    """Root keys, one per use. The key of a step is its root folded with a step counter.

    Roots that are folded with the same counter share an array, so that one hash makes all keys.
    """

    collect: Array  # [2 + E]: actions, feedback about the step, each environment
    learn: Array  # [2]: batch, agent
    observe: Array  # [2]: returns given to the replay, an evaluation for the replay
    evaluate: Array  # []
    inspect: Array  # []


class Episodes(NamedTuple):
    """The running episode of every environment."""

    returns: Array  # [E] float32, undiscounted, so far
    lengths: Array  # [E] int32, agent steps so far


class LoopState(NamedTuple):
    """The complete state of a run; a compiled loop continues from it bit for bit."""

    keys: Keys
    rows: Array  # [] int32, step counter: agent steps in each environment
    updates: Array  # [] int32, step counter: gradient updates
    env_state: Any  # [E, ...]; () for environments on the host
    obs: chex.ArrayTree  # [E, ...]
    episodes: Episodes
    extras: chex.ArrayTree  # [E, ...] of the previous step, zeros at the start of an episode
    window: Window
    fault: Array  # [] int32, `rows` after the first step with a non-finite number, or 0
    agent: Any
    replay: Any
    draws: Any = ()  # see `counting.start`; () without the option `count_draws`
    since: Any = ()  # sums accumulated since the last log point, of a host loop


def a_key() -> Any:
    """Return shape and dtype of a PRNG key, for tracing."""
    return jax.eval_shape(jax.random.key, 0)


def reset_keys(key: Array, num_envs: int) -> Array:
    """Return the keys `[E]` of the environments' reset in the run of `key`."""
    return roots(key, num_envs)[2]


def acting_key(state: LoopState) -> Array:
    """Return the key of the next actions."""
    return fold_in(state.keys.collect, state.rows)[0]


def feedback_key(state: LoopState) -> Array:
    """Return the key of the feedback about the next step."""
    return fold_in(state.keys.collect, state.rows)[1]


def step_keys(state: LoopState) -> Array:
    """Return the keys `[E]` of the environments' next step."""
    return fold_in(state.keys.collect, state.rows)[2:]


def learning_keys(state: LoopState) -> Array:
    """Return the keys `[2]` of the next gradient update: batch, agent."""
    return fold_in(state.keys.learn, state.updates)


def observing_keys(state: LoopState) -> Array:
    """Return the keys `[2]` for passing returns to the replay, and for the replay's evaluations."""
    return fold_in(state.keys.observe, state.rows)


def evaluation_key(state: LoopState) -> Array:
    """Return the key of an evaluation."""
    return jax.random.fold_in(state.keys.evaluate, state.rows)


def inspection_key(state: LoopState) -> Array:
    """Return the key of an inspection of the replay."""
    return jax.random.fold_in(state.keys.inspect, state.rows)


def fold_in(roots: Array, counter: Array) -> Array:
    """Return roots `[n]` folded with a step counter `[]`, in one hash."""
    return jax.vmap(jax.random.fold_in, (0, None))(roots, counter)


def roots(key: Array, num_envs: int) -> tuple[Array, Array, Array, Keys]:
    """Return the keys of the agent, the replay and the resets `[E]`, and the root keys.

    The devices of a run initialise and evaluate the agent with the same keys, and have different
    keys for everything else.
    """
    keys = jax.random.split(unrolled(key), 10 + 2 * num_envs)
    agent, _, evaluate, _ = keys[:4]
    if (axis := devices.current()) is not None:
        own = jax.random.fold_in(key, jax.lax.axis_index(axis))
        keys = jax.random.split(unrolled(own), 10 + 2 * num_envs)
    _, replay, _, inspect = keys[:4]
    learn, observe, collect, resets = keys[4:6], keys[6:8], keys[8:-num_envs], keys[-num_envs:]
    return agent, replay, resets, Keys(collect, learn, observe, evaluate, inspect)
