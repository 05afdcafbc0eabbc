"""The phases of the loop with environments on the host, vmapped over seeds and jitted."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from agents.networks import rows
from experiments.environments.types import Array, EnvironmentSpec, TimeStep
from experiments.training.compiling import jit_once
from experiments.training.evaluation import evaluation_keys, keys_at
from experiments.training.phases import Mode, Phases
from experiments.training.seeds import axes_of, jit_over_seeds, with_axis
from experiments.training.state import (
    LoopState,
    Metrics,
    Sums,
    a_key,
    evaluation_key,
    observing_keys,
)
from jaxreplay import n_step


class HostPhases:
    """Phases over seeds, jitted: arrays have a leading `[S]`.

    The functions have the names of those in `Phases`, except `advance`, which stores a step and
    returns the next actions, and `cut_off`, which continues after a reset. Functions that return a
    state donate the given one.

    Attributes:
      axes: a LoopState with 0 for a leaf with a seed axis, and None for a leaf that all seeds
        share.
      like: shapes and dtypes of the state of one seed.
      nothing_played: initial sums over training episodes, zeros.
      nothing_learned: initial sums over gradient updates, zeros.
    """

    def __init__(self, phases: Phases, environment: EnvironmentSpec, seeds: int) -> None:
        """Trace the phases for S `seeds`; nothing is compiled or executed."""
        self._phases = phases
        obs = with_axis(environment.obs, phases.replay.num_envs)
        self.like = jax.eval_shape(phases.start, a_key(), (), obs)
        given = _given(phases, self.like, obs)
        self.axes = axes = axes_of(
            lambda key, _, obs, *others: phases.start(key, (), obs),
            lambda state, _, *given: _once(phases, state, *given)[0],
            *given,
        )
        _, learned = jax.eval_shape(functools.partial(_once, phases), self.like, *given)
        self.nothing_learned = jax.tree.map(lambda x: jnp.zeros((seeds, *x.shape)), learned)
        self.nothing_played = dict.fromkeys(("returns", "episodes"), jnp.zeros(seeds))
        over = functools.partial(jit_over_seeds, axes=axes)
        start = jax.vmap(lambda key, obs: phases.start(key, (), obs), out_axes=axes)
        self.start = jit_once(start)
        self.decide = jax.jit(self._decide, static_argnums=1)
        self.greedy = jax.jit(self._greedy, static_argnums=3)
        take_in = functools.partial(self._take_in, "warm-up")
        self.take_in = over(take_in, out_axes=(axes, 0))  # in the warm-up
        self.advance = over(self._advance, out_axes=(axes, 0, 0, 0))
        self.learn = over(self._learn, out_axes=(axes, 0))
        self.after_warmup = over(phases.after_warmup, out_axes=axes)
        self.after_block = over(phases.after_block, out_axes=axes)
        self.observe_return = over(phases.observe_return, out_axes=axes)
        self.log_point = over(phases.log_point, out_axes=(axes, 0))
        self.cut_off = over(self._cut_off, out_axes=axes)

    def _decide(self, state: LoopState, mode: Mode) -> tuple[Array, Any]:
        return jax.vmap(lambda one: self._phases.decide(one, mode), (self.axes,))(state)

    def _take_in(
        self, mode: Mode, state: LoopState, played: Metrics, action: Array, extras: Any,
        obs: Array, out: TimeStep,
    ) -> tuple[LoopState, Metrics]:  # fmt: skip
        state, ended = self._phases.take_in(state, mode, action, extras, (), obs, out)
        return state, jax.tree.map(jnp.add, played, ended)

    def _advance(self, state: LoopState, *rest: Any) -> tuple[LoopState, Metrics, Array, Any]:
        state, played = self._take_in("act", state, *rest)
        return state, played, *self._phases.decide(state, "act")

    def _learn(self, state: LoopState, learned: Sums) -> tuple[LoopState, Sums]:
        state, more = self._phases.learn(state)
        return state, jax.tree.map(jnp.add, learned, more)

    def _cut_off(self, state: LoopState, obs: Array) -> LoopState:
        """Return a state that continues from `obs` `[E, ...]`, after a reset of the environments.

        The latest step bootstraps from its true next observation, and returns end there.
        """
        window, replay = state.window, state.replay
        if len(window.steps.truncated) == 1:  # the ring already has the latest step
            replay = self._phases.replay.end_episodes(replay)
        else:
            window = n_step.end_episodes(window)
        zeros = jax.tree.map(jnp.zeros_like, (state.episodes, state.extras))
        return state._replace(
            replay=replay, obs=obs, window=window, episodes=zeros[0], extras=zeros[1]
        )

    def _greedy(
        self, state: LoopState, obs: Array, time: Array, for_replay: bool, memory: Any
    ) -> tuple[Array, Any]:
        def greedy(state: LoopState, obs: Array, memory: Any) -> tuple[Array, Any]:
            key = observing_keys(state)[1] if for_replay else evaluation_key(state)
            key, _ = keys_at(evaluation_keys(key, rows(obs)), time)
            return self._phases.greedy(state.agent, obs, key, memory)

        return jax.vmap(greedy, (self.axes, 0, 0))(state, obs, memory)

    def no_memory(self, obs: Array) -> Any:
        """Return the initial memory of the agents, zeros for N episodes of each of S seeds.

        `obs` are the first observations, `[S, N, ...]`.
        """
        first = jax.tree.map(lambda x: x[0], obs)
        one = jax.eval_shape(self._phases.no_memory, self.like.agent, first)
        return jax.tree.map(lambda x: jnp.zeros((rows(obs), *x.shape), x.dtype), one)


def _given(phases: Phases, state: LoopState, obs: Any) -> tuple[Any, ...]:
    """Return shapes and dtypes of the arguments of `_once` that come from outside of a program."""

    def shaped(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    num_envs, episodes = phases.replay.num_envs, phases.config.eval_episodes
    flag = shaped(bool, num_envs)
    evaluated = shaped(jnp.float32, episodes), shaped(jnp.int32, episodes)
    decided = jax.eval_shape(lambda state: phases.decide(state, "act"), state)
    return decided, obs, TimeStep(shaped(jnp.float32, num_envs), flag, flag, obs), evaluated


def _once(
    phases: Phases,
    state: LoopState,
    decided: tuple[Array, Any],
    obs: Any,
    out: TimeStep,
    evaluated: tuple[Array, Array],
) -> tuple[LoopState, Sums]:
    """Run every phase after `decide` once; return the state and the sums of a gradient update."""
    state, played = phases.take_in(state, "act", *decided, None, obs, out)
    state = phases.after_warmup(state)
    state, learned = phases.learn(state)
    state = phases.after_block(state)
    if phases.evaluates_for_replay:
        state = phases.observe_return(state, evaluated[0])
    return phases.log_point(state, played, learned, *evaluated)[0], learned
