"""The training loop for environments that compile, with rows in the host's memory.

A block is that of `loop`, divided where the host is needed: after collecting, when new rows leave
the device and the first batch is drawn, and between two gradient updates. Keys, rows and draws are
those of the compiled loop; only rounding by XLA may differ, as between any two programs.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Agent
from experiments.environments.types import Environment
from experiments.training.compiling import jit_once
from experiments.training.config import LoopConfig
from experiments.training.host_store import HostRows, given_like, store_of
from experiments.training.loop import Loop
from experiments.training.phases import make_phases
from experiments.training.seeds import Run, axes_of, jit_over_seeds, keys_of, with_axis
from experiments.training.state import LoopState, Metrics, Sums, a_key
from jaxreplay.loops import host_rows
from jaxreplay.replay import Replay
from jaxreplay.types import Sample


class RowsRun(Run):
    """A Run called from Python; a resumed run gives the same numbers bit for bit."""

    def __init__(
        self,
        environment: Environment,
        agent: Agent,
        replay: Replay,
        config: LoopConfig,
        seeds: Sequence[int],
    ) -> None:
        """Make the run of `seeds`; for other arguments and errors, see `loop.make_program`.

        The replay must have its rows on the host.
        """
        phases = make_phases(environment.action_space, agent, replay, config)
        self._loop = Loop(environment, phases)
        super().__init__(self._loop.schedule)
        self._config, self._seeds = config, list(seeds)
        self._one = jax.eval_shape(self._loop.start, a_key())
        self._store = self._empty_store()
        self._trace()

    def init(self) -> LoopState:
        state, self._store = self._begin(keys_of(self._seeds)), self._empty_store()
        for _ in range(self.schedule.warmup_rows):
            state = self._warm(state)
            self._store.add(state.replay.ring)
        return self._whole(self._after_warmup(state))

    def like(self) -> LoopState:
        return self._whole(jax.eval_shape(self._begin, keys_of(self._seeds)))

    def resume(self, state: LoopState) -> LoopState:
        self._store = HostRows(state.host)
        return state

    def chunk(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics]:
        state = state._replace(host=())
        played, learned = self._nothing
        for _ in range(int(blocks)):
            state, played, leaving, batch = self._collect(state, played)
            leaving = jax.tree.map(np.asarray, leaving)
            for row in range(self._config.learn_every):
                host_rows.write(self._store.kept, jax.tree.map(lambda x, at=row: x[at], leaving))
            for _ in range(self._config.updates - 1):
                given = self._store.read(batch)
                state, learned, batch = self._learn_and_draw(state, learned, batch, given)
            state, learned = self._learn(state, learned, batch, self._store.read(batch))
        given = self._store.read(self._looked_at(state))
        state, metrics = self._log_point(state, played, learned, given)
        return self._whole(state), metrics

    def _whole(self, state: LoopState) -> LoopState:
        """Return the state with the host's rows."""
        return state._replace(host=self._store.kept)

    def _empty_store(self) -> HostRows:
        store = store_of(self._one.replay.ring, len(self._seeds))
        if not isinstance(store, HostRows):
            raise ValueError(
                "the replay is on the device: make it with storage=Transitions(on_host=True)"
            )
        return store

    # Functions of one seed's state, which `_trace` vmaps and jits.

    def _row(self, state: LoopState) -> LoopState:
        """Collect a row of the warm-up."""
        return self._loop.collect(state, "warm-up")[0]

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
        state, more = self._loop.phases.learn_from(state, batch, given)
        return state, jax.tree.map(jnp.add, learned, more)

    def _update_and_draw(self, *args: Any) -> tuple[LoopState, Sums, Sample]:
        state, learned = self._update(*args)
        return state, learned, self._loop.phases.sample(state)

    def _last_update(self, *args: Any) -> tuple[LoopState, Sums]:
        state, learned = self._update(*args)
        return self._loop.after_block(state), learned

    def _trace(self) -> None:
        """Find the axes of the state, and jit the functions above over seeds."""
        phases, one, seeds = self._loop.phases, self._one, len(self._seeds)
        nothing = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in ("returns", "episodes")}
        _, played, _, batch = jax.eval_shape(self._steps, one, nothing)
        draws = batch, jax.eval_shape(phases.looked_at, one)
        given = [given_like(one.replay.ring, draw) for draw in draws]
        learned = jax.eval_shape(phases.learn_from, one, batch, given[0])[1]

        def once(state: LoopState, _: Any, given: Any) -> LoopState:
            state, ended, _, batch = self._steps(state, _zeros(played))
            state, sums, batch = self._update_and_draw(state, _zeros(learned), batch, given[0])
            state, sums = self._last_update(state, sums, batch, given[0])
            return self._loop.log_point(state, ended, sums, given[1])[0]

        self.axes = axes = axes_of(
            lambda key, _: phases.after_warmup(self._loop.start(key)), once, given
        )
        leaving = jax.tree.map(
            lambda axis: None if axis is None else 1,  # after the axis of rows
            axes.replay.ring.leaving, is_leaf=lambda x: x is None,
        )  # fmt: skip
        self._nothing = _zeros(with_axis((played, learned), seeds))
        over = functools.partial(jit_over_seeds, axes=axes)
        self._begin = jit_once(jax.vmap(self._loop.start, out_axes=axes))
        self._warm = jit_once(jax.vmap(self._row, (axes,), axes), donate_argnums=0)
        self._after_warmup = over(phases.after_warmup, out_axes=axes)
        self._collect = over(self._steps, out_axes=(axes, 0, leaving, 0))
        self._learn_and_draw = over(self._update_and_draw, out_axes=(axes, 0, 0))
        self._learn = over(self._last_update, out_axes=(axes, 0))
        self._looked_at = over(phases.looked_at, out_axes=0, donate=False)
        self._log_point = over(self._loop.log_point, out_axes=(axes, 0))


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
