"""The training loop as one compiled program: nested scans over the phases and the environment.

    block = scan(collect, learn_every), then scan(learn, updates)
    chunk = a loop of blocks, then a greedy evaluation: one log point

Between chunks, Python prints, logs and saves checkpoints; `make_train` puts all chunks in one
compiled program. The function of a chunk is written for one seed, and vmapped over many.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from agents import ensembles
from agents.types import Agent
from experiments.environments.types import Array, Environment
from experiments.training import sharding
from experiments.training.carry import Carry
from experiments.training.compiling import Flags, Traced, default_platform, differing
from experiments.training.config import LoopConfig
from experiments.training.evaluation import evaluate
from experiments.training.phases import Mode, Phases, make_phases
from experiments.training.schedule import Schedule, schedule
from experiments.training.state import (
    LoopState,
    Metrics,
    Sums,
    a_key,
    evaluation_key,
    observing_keys,
    reset_keys,
    step_keys,
)
from jaxreplay import devices
from jaxreplay.replay import Replay


class Program(NamedTuple):
    """A run in two functions.

    * `init(key) -> LoopState`: the state after the warm-up.
    * `chunk(LoopState, blocks) -> (LoopState, Metrics)`: trains for `blocks` blocks (`[]` int32),
      as the module's docstring defines them, and then evaluates.
    """

    init: Callable[[Array], LoopState]
    chunk: Callable[[LoopState, Array], tuple[LoopState, Metrics]]
    schedule: Schedule
    mesh: Mesh | None = None  # of a run on several devices


def make_program(
    environment: Environment,
    agent: Agent,
    replay: Replay,
    config: LoopConfig,
    mesh: Mesh | None = None,
    platform: str | None = None,
) -> Program:
    """Compose environment, agent and replay into a Program.

    Args:
      environment: an auto-resetting environment, of which the loop runs `replay.num_envs` copies.
      agent: made with the objective of the replay's method.
      replay: made with the sampler of the same method.
      config: options of the loop.
      mesh: a mesh of one axis, over whose devices the run is sharded (see `sharding`); None uses
        the first `config.mesh` devices.
      platform: the platform that runs the program, such as "cpu"; None means the platform of the
        mesh or, without a mesh, of JAX's default device. On accelerators, loops join small arrays
        and stack twin critics, so the platform must be known when the loops are traced. States
        outside of loops do not depend on the platform.

    Raises:
      ValueError: the config cannot run, or the run cannot be sharded over the devices.
    """
    config, mesh = sharding.resolve(config, mesh)
    if platform is None:
        platform = default_platform() if mesh is None else mesh.devices.flat[0].platform
    phases = make_phases(environment.action_space, agent, replay, config)
    loop = Loop(environment, phases, packs=platform != "cpu")
    if mesh is None:
        return Program(loop.init, loop.chunk, loop.schedule)
    init, chunk = sharding.divided(loop.init, loop.chunk, mesh)
    return Program(init, chunk, loop.schedule, mesh)


@dataclasses.dataclass(frozen=True)
class Loop:
    """The phases together with an environment that compiles."""

    environment: Environment
    phases: Phases
    packs: bool  # whether loops join small arrays and stack twin critics

    @property
    def schedule(self) -> Schedule:
        return schedule(self.phases.config, self.phases.num_envs)

    def init(self, key: Array) -> LoopState:
        """Return the state after the warm-up."""
        start = self.start(key)
        state, _ = self.repeat(
            lambda state: self.collect(state, "warm-up"),
            self._inside(start),
            self.schedule.warmup_rows,
        )
        return self.phases.after_warmup(self._outside(state, start))

    def start(self, key: Array) -> LoopState:
        """Return the state before the first step."""
        keys = reset_keys(key, self.phases.replay.num_envs)
        env_state, obs = jax.vmap(self.environment.reset)(keys)
        return self.phases.start(key, env_state, obs)

    def collect(self, state: LoopState, mode: Mode) -> tuple[LoopState, Metrics]:
        """Take one step in every environment."""
        action, extras = self.phases.decide(state, mode)
        step = jax.vmap(self.environment.step)
        env_state, obs, out = step(step_keys(state), state.env_state, action)
        return self.phases.take_in(state, mode, action, extras, env_state, obs, out)

    def block(self, state: LoopState) -> tuple[LoopState, Metrics, Sums]:
        """Collect, then learn; return the state, and the sums over collecting and learning."""
        phases, config = self.phases, self.phases.config
        state, played = self.repeat(lambda s: self.collect(s, "act"), state, config.learn_every)
        state, learned = self.repeat(phases.learn, state, config.updates)
        return self.after_block(state), played, learned

    def repeat(
        self, step: Callable[[LoopState], tuple[LoopState, Any]], state: LoopState, count: int
    ) -> tuple[LoopState, Any]:
        """Apply `step` `count` times; return the state, and the sums of the other results."""
        carry = Carry(state, self.differing)

        def body(joined: Any, _: None) -> Any:
            state, result = step(carry.separate(joined))
            return carry.join(state), result

        joined, results = jax.lax.scan(body, carry.join(state), length=count)
        return carry.separate(joined), jax.tree.map(lambda x: x.sum(axis=0), results)

    @functools.cached_property
    def differing(self) -> Flags | None:
        """Whether each leaf of the state differs between seeds.

        It is None if loops join no arrays: on CPU, or if the run is sharded over several devices.
        """
        if not self.packs or devices.current() is not None:
            return None

        def once(state: LoopState) -> LoopState:
            state = self.phases.after_warmup(state)
            state, _ = self.phases.learn(self.collect(state, "act")[0])
            return self.after_block(state)

        start = Traced(lambda key: self._inside(self.start(key)), a_key())
        return differing(start, Traced(once, start.outputs), from_outside=True)

    def after_block(self, state: LoopState) -> LoopState:
        """If due, measure the scale of rewards, and give the replay returns of an evaluation."""
        phases = self.phases
        state = phases.after_block(state)
        if not phases.evaluates_for_replay:
            return state

        def observe_return(state: LoopState) -> LoopState:
            return phases.observe_return(state, self.evaluate(state, observing_keys(state)[1])[0])

        due = phases.is_due(state.rows, phases.config.observe_every)
        return jax.lax.cond(due, observe_return, lambda state: state, state)

    def evaluate(self, state: LoopState, key: Array) -> tuple[Array, Array]:
        """Play greedy episodes; return undiscounted returns and lengths, `[N]`."""
        return evaluate(
            self.environment,
            functools.partial(self.phases.greedy, state.agent),
            functools.partial(self.phases.no_memory, state.agent),
            key,
            self.phases.config.eval_episodes,
        )

    def chunk(self, state: LoopState, blocks: Array) -> tuple[LoopState, Metrics]:
        """Run `blocks` blocks and an evaluation; return the state and the log point's metrics."""
        before, state = state, self._inside(state)
        block = Traced(self.block, state)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), block.outputs[1:])

        first = jnp.zeros((), jnp.int32), state, *zeros
        sums = [True] * len(jax.tree.leaves(zeros))
        carry = Carry(first, self.differing and [False, *self.differing, *sums])

        def body(joined: Any) -> Any:
            done, state, played, learned = carry.separate(joined)
            state, *more = block(state)
            sums = jax.tree.map(jnp.add, (played, learned), tuple(more))
            return carry.join((done + 1, state, *sums))

        joined = jax.lax.while_loop(
            lambda joined: carry.separate(joined)[0] < blocks, body, carry.join(first)
        )
        _, state, played, learned = carry.separate(joined)
        state = self._outside(state, before)
        returns, lengths = self.evaluate(state, evaluation_key(state))
        return self.phases.log_point(state, played, learned, returns, lengths)

    def _inside(self, state: LoopState) -> LoopState:
        """Return a state as loops carry it, with pairs of critics stacked if the loop packs."""
        return state._replace(agent=ensembles.stack_pairs(state.agent)) if self.packs else state

    def _outside(self, state: LoopState, like: LoopState) -> LoopState:
        """Return a state with the structure of `like`, the argument of `_inside`."""
        if not self.packs:
            return state
        return state._replace(agent=ensembles.split_pairs(state.agent, like.agent))


def make_train(
    environment: Environment,
    agent: Agent,
    replay: Replay,
    config: LoopConfig,
    mesh: Mesh | None = None,
    platform: str | None = None,
) -> Callable[[Array], tuple[LoopState, Metrics]]:
    """Make a whole training run as one pure function of a key.

    `jax.jit(jax.vmap(make_train(...)))(keys)` trains one seed per key. For arguments, see
    `make_program`.

    Returns:
      `train(key) -> (LoopState, metrics)`; metrics are `[L]` arrays, one entry per log point, with
      the agent steps under "step".

    Raises:
      ValueError: the config cannot run, or the run cannot be sharded over the devices.
    """
    program = make_program(environment, agent, replay, config, mesh, platform)

    def train(key: Array) -> tuple[LoopState, Metrics]:
        blocks = jnp.asarray(program.schedule.log_points, jnp.int32)
        state, metrics = jax.lax.scan(program.chunk, program.init(key), blocks)
        return state, {"step": jnp.asarray(program.schedule.steps, jnp.int32), **metrics}

    return train
