"""The training loop for environments that compile, with rows in the host's memory.

A block is that of `loop`, cut where the host is needed: after collecting, when new rows leave the
device and the first batch is drawn, and between two gradient updates. Keys and order are the same,
and so are the rows and the draws; only how XLA rounds may differ, as between any two programs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Agent
from experiments.environments.types import Environment
from experiments.training import host_store
from experiments.training.config import LoopConfig, remarks
from experiments.training.host_store import HostRows
from experiments.training.loop import make_loop
from experiments.training.once import jit_once
from experiments.training.schedule import schedule
from experiments.training.seeds import axes_of, keys_of
from experiments.training.state import LoopState, Metrics, Sums, a_key, evaluation_key
from jaxreplay.loops import host_rows
from jaxreplay.replay import Replay
from jaxreplay.types import Sample

_AT_ONCE = 128  # rows of the warm-up that the device collects before they are fetched


class RowsRun:
    """A `seeds.Run`, driven from Python; resumed, it gives the same numbers bit for bit.

    Attributes:
      schedule: log points and counts.
      remarks: what the user should know before it runs.
      layout: empty: it runs on one device.
      axes: a LoopState of 0 where a leaf has a seed axis, and None where all seeds share it.
    """

    def __init__(
        self,
        environment: Environment,
        agent: Agent,
        replay: Replay,
        config: LoopConfig,
        seeds: Sequence[int],
    ) -> None:
        """Make the run; nothing is compiled yet.

        Args:
          environment: one auto-resetting environment; the loop runs `replay.num_envs` of them.
          agent: made with the objective of the replay's method.
          replay: made with the sampler of the same method, for rows on the host.
          config: lengths and cadences.
          seeds: one per run.

        Raises:
          ValueError: the config cannot run.
        """
        self._loop = make_loop(environment, agent, replay, config)
        self._config, self._seeds = config, list(seeds)
        self.schedule = schedule(config, replay.num_envs)
        self.remarks = remarks(replay, environment.name, environment.max_steps)
        self.layout = ""
        self.stops_anywhere = False  # the sums since a log point are in no checkpoint
        self.stop: Callable[[], bool] = lambda: False
        self._one = jax.eval_shape(self._loop.start, a_key())
        self._store = self._empty_store()
        self._trace()

    def init(self) -> LoopState:
        """Return the state after the warm-up."""
        state, self._store = self._begin(self._keys()), self._empty_store()
        left = self.schedule.warmup_rows
        while left > 0:
            rows = min(left, _AT_ONCE)
            state, leaving = self._warm(state, jnp.asarray(rows, jnp.int32))
            self._keep(leaving, rows)
            left -= rows
        return self._whole(self._after_warmup(state))

    def like(self) -> LoopState:
        """Return shapes and dtypes of a state, to load a saved one."""
        return self._whole(jax.eval_shape(self._begin, self._keys()))

    def resume(self, state: LoopState) -> LoopState:
        """Go on from a saved state."""
        self._store = HostRows(state.host)
        return state

    def to_save(self, state: LoopState) -> LoopState:
        """Return the state as it is."""
        return state

    def chunk(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics]:
        """Run `blocks` blocks and an evaluation; the state is donated. Metrics are `[S]`."""
        state = state._replace(host=())
        played, learned = self._nothing
        for _ in range(int(blocks)):
            state, played, leaving, batch = self._collect(state, played)
            self._keep(leaving, self._config.learn_every)
            for _ in range(self._config.updates - 1):
                given = self._store.read(batch)
                state, learned, batch = self._learn_and_draw(state, learned, batch, given)
            state, learned = self._learn(state, learned, batch, self._store.read(batch))
        given = self._store.read(self._looked_at(state))
        state, metrics = self._log_point(state, played, learned, given)
        return self._whole(state), metrics

    def close(self) -> None:
        """There is nothing to close."""

    def _keep(self, leaving: Any, rows: int) -> None:
        """Keep what left the device: the first `rows` rows of `leaving`."""
        leaving = jax.tree.map(np.asarray, leaving)
        for row in range(rows):
            host_rows.write(self._store.kept, jax.tree.map(lambda x, at=row: x[at], leaving))

    def _whole(self, state: LoopState) -> LoopState:
        """Return the state with what the host keeps of it."""
        return state._replace(host=self._store.kept)

    def _empty_store(self) -> HostRows:
        store = host_store.store_of(self._one.replay.ring, len(self._seeds))
        if not isinstance(store, HostRows):
            raise ValueError(
                "the replay is on the device: make it with storage=Transitions(on_host=True)"
            )
        return store

    def _keys(self) -> Any:
        return keys_of(self._seeds)

    # --- What is compiled, of one seed ---------------------------------------------------------

    def _some_rows(self, state: LoopState, rows: Any) -> tuple[LoopState, Any]:
        """Take so many steps of the warm-up; return what of them leaves the device."""
        left = jax.tree.map(
            lambda x: jnp.zeros((_AT_ONCE, *x.shape), x.dtype), state.replay.ring.leaving
        )

        def step(row: Any, carry: Any) -> Any:
            state, left = carry
            state, _ = self._loop.collect(state, "warm-up")
            leaving = state.replay.ring.leaving
            return state, jax.tree.map(lambda all, one: all.at[row].set(one), left, leaving)

        return jax.lax.fori_loop(0, rows, step, (state, left))

    def _steps(self, state: LoopState, played: Metrics) -> tuple[LoopState, Metrics, Any, Sample]:
        """Collect a block's rows, and draw the first batch."""

        def step(state: LoopState, _: Any) -> tuple[LoopState, Any]:
            state, ended = self._loop.collect(state, "act")
            return state, (ended, state.replay.ring.leaving)

        state, (ended, leaving) = jax.lax.scan(step, state, length=self._config.learn_every)
        batch = self._loop.phases.sample(state)
        played = jax.tree.map(lambda x, more: x + more.sum(axis=0), played, ended)
        return state, played, leaving, batch

    def _update(
        self, state: LoopState, learned: Sums, batch: Sample, given: Any
    ) -> tuple[LoopState, Sums]:
        batch = host_store.filled(state.replay.ring, batch, given)
        state, more = self._loop.phases.learn_from(state, batch)
        return state, jax.tree.map(jnp.add, learned, more)

    def _update_and_draw(self, *args: Any) -> tuple[LoopState, Sums, Sample]:
        state, learned = self._update(*args)
        batch = self._loop.phases.sample(state)
        return state, learned, batch

    def _last_update(self, *args: Any) -> tuple[LoopState, Sums]:
        state, learned = self._update(*args)
        return self._loop.observed(self._loop.phases.after_block(state)), learned

    def _evaluation(
        self, state: LoopState, played: Metrics, learned: Sums, given: Any
    ) -> tuple[LoopState, Metrics]:
        returns, lengths = self._loop.evaluate(state, evaluation_key(state))
        return self._loop.phases.log_point(state, played, learned, returns, lengths, given)

    # --- ... and of all ------------------------------------------------------------------------

    def _trace(self) -> None:
        """Learn shapes, and which leaves of the state differ between seeds."""
        phases, ring = self._loop.phases, self._one.replay.ring
        nothing = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in ("returns", "episodes")}
        _, played, _, batch = jax.eval_shape(self._steps, self._one, nothing)
        looked_at = jax.eval_shape(phases.looked_at, self._one)
        given = [host_store.given_like(ring, one) for one in (batch, looked_at)]

        def learn(state: LoopState, batch: Sample, words: Any) -> tuple[LoopState, Sums]:
            return phases.learn_from(state, host_store.filled(state.replay.ring, batch, words))

        learned = jax.eval_shape(learn, self._one, batch, given[0])[1]

        def once(state: LoopState, _: Any, given: Any) -> LoopState:
            zeros = _zeros(played), _zeros(learned)
            state, ended, _, batch = self._steps(state, zeros[0])
            state, sums, batch = self._update_and_draw(state, zeros[1], batch, given[0])
            state, sums = self._last_update(state, sums, batch, given[0])
            return self._evaluation(state, ended, sums, given[1])[0]

        def start(key: Any, _: Any) -> LoopState:
            return phases.after_warmup(self._loop.start(key))

        self.axes = axes = axes_of(start, once, given)
        leaving = jax.tree.map(
            lambda axis: None if axis is None else 1,  # rows lead, and then come seeds
            axes.replay.ring.leaving, is_leaf=lambda x: x is None,
        )  # fmt: skip
        seeds = len(self._seeds)
        self._nothing = _zeros(jax.tree.map(lambda x: _stacked(x, seeds), (played, learned)))

        def over(function: Callable[..., Any], others: int, out_axes: Any) -> Any:
            mapped = jax.vmap(function, (axes, *[0] * others), out_axes)
            return jax.jit(mapped, donate_argnums=0)

        self._begin = jit_once(jax.vmap(self._loop.start, out_axes=axes))
        self._warm = jit_once(
            jax.vmap(self._some_rows, (axes, None), (axes, leaving)), donate_argnums=0
        )
        self._after_warmup = over(phases.after_warmup, 0, axes)
        self._collect = over(self._steps, 1, (axes, 0, leaving, 0))
        self._learn_and_draw = over(self._update_and_draw, 3, (axes, 0, 0))
        self._learn = over(self._last_update, 3, (axes, 0))
        self._looked_at = jax.jit(jax.vmap(phases.looked_at, (axes,)))
        self._log_point = over(self._evaluation, 3, (axes, 0))


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def _stacked(shape: Any, size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size, *shape.shape), shape.dtype)
