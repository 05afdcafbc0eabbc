"""The phases of the loop for environments on the host: vmapped over seeds and jitted."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.environments.types import Array, EnvironmentSpec, TimeStep
from experiments.training import host_store
from experiments.training.evaluation import evaluation_keys, keys_at
from experiments.training.once import jit_once
from experiments.training.phases import Mode, Phases
from experiments.training.seeds import axes_of, with_axis
from experiments.training.state import (
    LoopState,
    Metrics,
    Sums,
    a_key,
    evaluation_key,
    observing_keys,
)
from jaxreplay import n_step
from jaxreplay.types import Sample


class FromHost(NamedTuple):
    """Shapes and dtypes of all that the host hands to the device, of one seed."""

    obs: Any  # [E, ...]
    out: TimeStep  # [E]
    batch: Any  # what `host_store` gives of a batch [B]; () if all is on the device
    looked_at: Any  # ... of what log points look at, [n, B]
    returns: jax.ShapeDtypeStruct  # [N] float32, of an evaluation
    lengths: jax.ShapeDtypeStruct  # [N] int32


class HostPhases:
    """Phases over seeds, jitted: arrays get a leading `[S]`.

    Functions are those of `Phases`, and `advance`: to take a step in, and to decide on the next.
    They donate the state that they return anew.

    Attributes:
      axes: a LoopState of 0 where a leaf has a seed axis, and None where all seeds share it.
      like: shapes and dtypes of the state of one seed.
      nothing_played: sums over no training episodes.
      nothing_learned: sums over no gradient updates.
    """

    def __init__(self, phases: Phases, environment: EnvironmentSpec, seeds: int) -> None:
        """Learn the shapes; nothing is compiled or run.

        Args:
          phases: of the loop.
          environment: the one that the loop steps.
          seeds: S.
        """
        self._phases = phases
        obs = with_axis(environment.obs, phases.replay.num_envs)
        self.like = jax.eval_shape(phases.start, a_key(), (), obs)
        given = _from_host(phases, obs, self.like)
        self.axes = axes_of(
            lambda key, given: phases.after_warmup(phases.start(key, (), given.obs)),
            lambda state, key, given: _once(phases, state, given)[0],
            given,
        )
        _, learned = jax.eval_shape(lambda *args: _once(phases, *args), self.like, given)
        self.nothing_learned = jax.tree.map(lambda x: jnp.zeros((seeds, *x.shape)), learned)
        self.nothing_played = dict.fromkeys(("returns", "episodes"), jnp.zeros(seeds))
        self._jit()

    def _jit(self) -> None:
        phases, axes, over = self._phases, self.axes, self._over_seeds
        start = jax.vmap(lambda key, obs: phases.start(key, (), obs), out_axes=axes)
        self.start = jit_once(start)
        self.decide = jax.jit(self._decide, static_argnums=1)
        self.greedy = jax.jit(self._greedy_all, static_argnums=3)
        self.take_in = jax.jit(self._take_in_all, static_argnums=1, donate_argnums=0)
        self.advance = over(self._advance, 5, (axes, 0, 0, 0))
        self.learn = over(self._learn, 1, (axes, 0))
        self.sample = over(phases.sample, 0, 0)
        self.learn_from = over(self._learn_from, 3, (axes, 0))
        self.looked_at = jax.jit(jax.vmap(phases.looked_at, (axes,)))
        self.after_warmup = over(phases.after_warmup, 0, axes)
        self.after_block = over(phases.after_block, 0, axes)
        self.observe = over(phases.observe, 1, axes)
        self.log_point = over(phases.log_point, 5, (axes, 0))
        self.cut_off = over(self._cut_off, 1, axes)

    def _over_seeds(self, function: Callable[..., Any], others: int, out_axes: Any) -> Any:
        """Vmap and jit a function of a state, which is donated, and of other arguments."""
        mapped = jax.vmap(function, (self.axes, *[0] * others), out_axes)
        return jax.jit(mapped, donate_argnums=0)

    def _decide(self, state: LoopState, mode: Mode) -> tuple[Array, Any]:
        return jax.vmap(lambda one: self._phases.decide(one, mode), (self.axes,))(state)

    def _take_in_all(self, state: LoopState, mode: Mode, *rest: Any) -> tuple[LoopState, Metrics]:
        mapped = jax.vmap(
            lambda one, *rest: self._take_in(one, mode, *rest),
            (self.axes, *[0] * len(rest)),
            (self.axes, 0),
        )
        return mapped(state, *rest)

    def _take_in(
        self, state: LoopState, mode: Mode, played: Metrics, action: Array, extras: Any,
        obs: Array, out: TimeStep,
    ) -> tuple[LoopState, Metrics]:  # fmt: skip
        state, ended = self._phases.take_in(state, mode, action, extras, (), obs, out)
        return state, jax.tree.map(jnp.add, played, ended)

    def _advance(self, state: LoopState, *rest: Any) -> tuple[LoopState, Metrics, Array, Any]:
        state, played = self._take_in(state, "act", *rest)
        return state, played, *self._phases.decide(state, "act")

    def _learn(self, state: LoopState, learned: Sums) -> tuple[LoopState, Sums]:
        state, more = self._phases.learn(state)
        return state, jax.tree.map(jnp.add, learned, more)

    def _learn_from(
        self, state: LoopState, learned: Sums, batch: Sample, given: Any
    ) -> tuple[LoopState, Sums]:
        batch = host_store.filled(state.replay.ring, batch, given)
        state, more = self._phases.learn_from(state, batch)
        return state, jax.tree.map(jnp.add, learned, more)

    def _cut_off(self, state: LoopState, obs: Array) -> LoopState:
        """Return a state that goes on from `obs` `[E, ...]`, after resets that it did not see."""
        # The latest step bootstraps from its true next observation, and returns end there.
        window, replay = state.window, state.replay
        if len(window.steps.truncated) == 1:  # nothing waits in it: the ring has the latest step
            replay = self._phases.replay.end_episodes(replay)
        else:
            window = n_step.end_episodes(window)
        return state._replace(
            replay=replay,
            obs=obs,
            window=window,
            episodes=jax.tree.map(jnp.zeros_like, state.episodes),
            extras=jax.tree.map(jnp.zeros_like, state.extras),
        )

    def _greedy_all(self, state: LoopState, obs: Array, time: Array, for_replay: bool) -> Array:
        def greedy(state: LoopState, obs: Array) -> Array:
            key = observing_keys(state)[1] if for_replay else evaluation_key(state)
            key, _ = keys_at(evaluation_keys(key, len(obs)), time)
            return self._phases.greedy(state.agent, obs, key)

        return jax.vmap(greedy, (self.axes, 0))(state, obs)

    def is_due(self, rows: int) -> bool:
        """Tell whether it is time to evaluate for the replay, after so many rows."""
        every = self._phases.config.observe_every
        return every is not None and bool(self._phases.is_due(rows, every))


def _from_host(phases: Phases, obs: Any, like: LoopState) -> FromHost:
    """Return what the host hands over to a loop with states of such shapes and dtypes."""

    def shaped(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    lanes, episodes = phases.replay.num_envs, phases.config.eval_episodes
    flag = shaped(bool, lanes)
    ring, draws = like.replay.ring, (phases.sample, phases.looked_at)
    drawn, looked_at = (jax.eval_shape(draw, like) for draw in draws)
    batches = (host_store.given_like(ring, batch) for batch in (drawn, looked_at))
    out = TimeStep(shaped(jnp.float32, lanes), flag, flag, obs)
    returns, lengths = shaped(jnp.float32, episodes), shaped(jnp.int32, episodes)
    return FromHost(obs, out, *batches, returns, lengths)


def _once(phases: Phases, state: LoopState, given: FromHost) -> tuple[LoopState, Sums]:
    """Do once what the loop does over and over; with the sums of a gradient update."""
    action, extras = phases.decide(state, "act")
    state, played = phases.take_in(state, "act", action, extras, None, given.obs, given.out)
    batch = phases.sample(state)
    batch = host_store.filled(state.replay.ring, batch, given.batch)
    state, learned = phases.learn_from(state, batch)
    state = phases.after_block(state)
    if phases.evaluates_for_replay:
        state = phases.observe(state, given.returns)
    evaluated = (given.returns, given.lengths, given.looked_at)
    return phases.log_point(state, played, learned, *evaluated)[0], learned
