"""The training loop for environments that live on the host.

It drives the same steps as the compiled loop, jitted, for all seeds at once (`[S]` leads). While
the environments move on the host, the device takes the gradient steps that are due. A block of the
compiled loop collects first and learns then; here both run side by side, so that gradient steps
see what was stored before the environments' latest step.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.environments.host import EnvironmentFailed, HostEnvironment
from experiments.environments.types import Array, Environment, TimeStep
from experiments.training import host_frames
from experiments.training.config import LoopConfig
from experiments.training.host_frames import HostFrames
from experiments.training.loop import Program
from experiments.training.seeds import CutShort, make_sweep, seed_axes
from experiments.training.steps import LoopState, Metrics, Steps, Sums
from jaxreplay import ring as ring_
from jaxreplay.n_step import Window
from jaxreplay.types import Replay

MakeHost = Callable[[int, bool], HostEnvironment]  # (num_envs, training) -> a batch


class Batches:
    """One batch of environments per seed, stepped together; arrays get a leading `[S]`.

    Attributes:
      when: what an error message says of the moment.
    """

    def __init__(self, make: MakeHost, seeds: Sequence[int], num_envs: int, training: bool) -> None:
        self._batches = [make(num_envs, training) for _ in seeds]
        self._seeds = list(seeds)
        self.when = ""

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Reset every batch with a seed of its own."""
        return np.stack(self._each(lambda batch, seed: batch.reset(seed), seeds))

    def send(self, actions: Any) -> None:
        """Start a step with actions `[S, E, ...]`."""
        self._each(lambda batch, action: batch.send(action), np.asarray(actions))

    def receive(self) -> tuple[np.ndarray, TimeStep]:
        """Return what came of it."""
        obs, steps = zip(*self._each(lambda batch, _: batch.receive(), self._seeds), strict=True)
        return np.stack(obs), TimeStep(*map(np.stack, zip(*steps, strict=True)))

    def _each(self, call: Callable[[HostEnvironment, Any], Any], args: Iterable[Any]) -> list[Any]:
        """Call with every batch; what fails says of which run it is."""
        results = []
        for seed, batch, arg in zip(self._seeds, self._batches, args, strict=True):
            try:
                results.append(call(batch, arg))
            except EnvironmentFailed as error:
                raise EnvironmentFailed(f"seed {seed}, {self.when}: {error}") from error
        return results

    def close(self) -> None:
        """Close all batches."""
        for batch in self._batches:
            batch.close()


class HostRun:
    """A `sweep.Run` of several seeds with environments on the host.

    Attributes:
      schedule: log points and counts.
      notes: what the user should know before it runs.
      device: what is jitted.
      playing: the environments; None before the run begins.
    """

    def __init__(
        self,
        make: MakeHost,
        program: Program,
        steps: Steps,
        seeds: Sequence[int],
        replay: Replay,
        config: LoopConfig,
        frames_on_host: bool = False,
    ) -> None:
        """Make the run; environments are made when it begins.

        Args:
          make: makes a batch of environments, for training or for evaluation.
          program: of the environments' `stand_in`; it is not run. Its replay keeps frames on the
            device in any case.
          steps: made for the same agent, replay and config.
          seeds: one per run.
          replay: the replay.
          config: lengths and cadences.
          frames_on_host: the replay was made so, and the run keeps its frames.
        """
        self._make, self._seeds, self._config = make, list(seeds), config
        self._program = program
        self.device = _Jitted(program, steps, len(seeds), frames_on_host)
        self._frames = self.device.like.replay.ring.frames if frames_on_host else None
        self._held: HostFrames | tuple[()] = ()
        self._at_once = replay.requires.all_new  # batches of just what the block collected
        self._block_ends = config.scale_rewards or replay.requires.episode_returns == "training"
        self._num_envs = replay.num_envs
        self.playing: Batches | None = None
        self._testing: Batches | None = None
        self._rows = 0  # steps of each environment so far
        self.schedule, self.notes = program.schedule, program.notes
        self.stops_anywhere, self.stop = True, lambda: False

    def init(self) -> LoopState:
        """Reset the environments and run the warm-up."""
        keys = jax.vmap(jax.random.key)(jnp.asarray(self._seeds))
        state = self.device.start(keys, self._reset(0))
        if self._frames:
            self._held = host_frames.empty(self._frames, len(self._seeds))
        played = self.device.nothing_played
        for row in range(self.schedule.warmup_rows):
            if self.stop():
                raise CutShort(None, 0)
            how = "fill" if row < self._config.n_step - 1 else "random"
            action, extras = self.device.decide[how](state)
            self.playing.send(action)
            obs, out = self._receive()
            state, played = self.device.take_in[how](state, played, action, extras, obs, out)
        return self._whole(self.device.warmed_up(state))

    def like(self) -> LoopState:
        """Return shapes and dtypes of a state, to load a saved one."""
        keys = jax.vmap(jax.random.key)(jnp.asarray(self._seeds))
        state = jax.eval_shape(make_sweep(self._program).init, keys)
        if self._frames:
            state = _without_pixels(state)
            state = state._replace(env_state=host_frames.empty(self._frames, len(self._seeds)))
        return state

    def resume(self, state: LoopState) -> LoopState:
        """Go on from a saved state; the episodes that ran then are cut off, as by a time limit."""
        self._held, state = state.env_state, state._replace(env_state=())
        return self._whole(self.device.cut_off(state, self._reset(int(state.rows))))

    def chunk(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics]:
        """Run `blocks` blocks and an evaluation; the state is donated. Metrics are `[S]`."""
        state, played, learned = self.blocks(state, blocks)
        state = state._replace(env_state=())
        returns, lengths = self._evaluate(state, int(blocks))
        state, metrics = self.device.log_point(state, played, learned, returns, lengths)
        return self._whole(state), metrics

    def blocks(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics, Sums]:
        """Run `blocks` blocks; return the state, which is donated, and sums over them."""
        steps, config = self.device, self._config
        state = state._replace(env_state=())
        played, learned = steps.nothing_played, steps.nothing_learned
        action, extras = steps.decide["act"](state)
        for block in range(int(blocks)):
            if self.stop():
                raise CutShort(self._whole(state), block)
            for row in range(config.learn_every):
                self.playing.send(action)
                for _ in range(self._work(row)):
                    state, learned = self._learn(state, learned)
                obs, out = self._receive()
                state, played, action, extras = steps.advance(
                    state, played, action, extras, obs, out
                )
            for _ in range(config.updates if self._at_once else 0):
                state, learned = self._learn(state, learned)
            if self._block_ends:
                state = steps.block_over(state)
            if self._at_once:
                action, extras = steps.decide["act"](state)
        return self._whole(state), played, learned

    def close(self) -> None:
        """Close the environments."""
        for batches in (self.playing, self._testing):
            if batches is not None:
                batches.close()

    def _learn(self, state: LoopState, learned: Sums) -> tuple[LoopState, Sums]:
        if not self._frames:
            return self.device.learn(state, learned)
        state, batch = self.device.sample(state)
        batch = host_frames.read(self._held, self._frames, batch)
        return self.device.learn_from(state, learned, batch)

    def _receive(self) -> tuple[np.ndarray, TimeStep]:
        """Receive a step of the environments; keep its frames if that is the host's task."""
        self._rows += 1
        self.playing.when = f"agent step {self._rows * self._num_envs:,}"
        obs, out = self.playing.receive()
        if self._frames:
            self._held = host_frames.write(
                self._held, self._frames, self._obs, out.final_obs, self._first
            )
            self._obs, self._first = obs, out.terminated | out.truncated
        return obs, out

    def _whole(self, state: LoopState) -> LoopState:
        """Return the state with what the host keeps of it."""
        return state._replace(env_state=self._held)

    def _work(self, row: int) -> int:
        """Return how many of a block's gradient steps go with its `row`-th step."""
        if self._at_once:
            return 0
        updates, rows = self._config.updates, self._config.learn_every
        return (row + 1) * updates // rows - row * updates // rows

    def _reset(self, rows: int) -> np.ndarray:
        if self.playing is None:
            self.playing = Batches(self._make, self._seeds, self._num_envs, True)
            self._testing = Batches(self._make, self._seeds, self._config.eval_episodes, False)
        self._rows = rows
        self.playing.when = f"agent step {rows * self._num_envs:,}"
        self._obs = self.playing.reset([_seed(seed, rows, 0) for seed in self._seeds])
        self._first = np.ones(self._obs.shape[:2], bool)
        return self._obs

    def _evaluate(self, state: LoopState, blocks: int) -> tuple[np.ndarray, np.ndarray]:
        """Play whole episodes greedily; return undiscounted returns and lengths, `[S, N]`."""
        rows = int(state.rows)
        self._testing.when = f"evaluation at agent step {rows * self._num_envs:,}"
        obs = self._testing.reset([_seed(seed, rows, 1) for seed in self._seeds])
        returns = np.zeros((len(self._seeds), self._config.eval_episodes), np.float32)
        lengths, done, time = returns.astype(np.int32), returns > 0, np.int32(0)
        while not done.all():
            if self.stop():
                raise CutShort(self._whole(state), blocks)
            self._testing.send(self.device.greedy(state, obs, time))
            obs, out = self._testing.receive()
            time += 1
            returns += np.where(done, 0.0, out.reward)
            lengths += ~done
            done |= out.terminated | out.truncated
        return returns, lengths


class _Jitted:
    """Steps, jitted and vmapped over seeds; states are donated, but for `decide` and `greedy`."""

    def __init__(self, program: Program, steps: Steps, seeds: int, frames_on_host: bool) -> None:
        axes = seed_axes(program)
        self.like = jax.eval_shape(program.init, jax.random.key(0))
        if frames_on_host:
            axes, self.like = map(_without_pixels, (axes, self.like))

        def take_in(how, state, played, action, extras, obs, out):
            state, finished = steps.take_in(state, how, action, extras, (), obs, out)
            return state, jax.tree.map(jnp.add, played, finished)

        def advance(*args):
            state, played = take_in("act", *args)
            return state, played, *steps.decide(state, "act")

        def learn(state, learned):
            state, more = steps.learn(state)
            return state, jax.tree.map(jnp.add, learned, more)

        def learn_from(state, learned, batch):
            state, more = steps.learn_from(state, batch)
            return state, jax.tree.map(jnp.add, learned, more)

        def sums(state):
            if not frames_on_host:
                return steps.learn(state)[1]
            state, batch = steps.sample(state)
            return steps.learn_from(state, host_frames.unread(state.replay.ring.frames, batch))[1]

        def greedy(state, obs, time):
            key = jax.random.fold_in(state.keys.evaluate, state.rows)
            return steps.greedy(state, obs, jax.random.fold_in(key, time))

        def over_seeds(function, others, out_axes, donate=True):
            mapped = jax.vmap(function, (axes, *[0] * others), out_axes)
            return jax.jit(mapped, donate_argnums=0 if donate else ())

        def kinds(function, others, out_axes, donate=True):
            return {
                how: over_seeds(functools.partial(function, how), others, out_axes, donate)
                for how in ("fill", "random", "act")
            }

        self.start = jax.jit(jax.vmap(lambda key, obs: steps.start(key, (), obs), 0, axes))
        self.decide = kinds(lambda how, state: steps.decide(state, how), 0, 0, donate=False)
        self.take_in = kinds(take_in, 5, (axes, 0))
        self.advance = over_seeds(advance, 5, (axes, 0, 0, 0))
        self.learn = over_seeds(learn, 1, (axes, 0))
        self.sample = over_seeds(steps.sample, 0, (axes, 0))
        self.learn_from = over_seeds(learn_from, 2, (axes, 0))
        self.greedy = jax.jit(jax.vmap(greedy, (axes, 0, None)))
        self.warmed_up = over_seeds(steps.warmed_up, 0, axes)
        self.block_over = over_seeds(steps.block_over, 0, axes)
        self.log_point = over_seeds(steps.log_point, 4, (axes, 0))
        self.cut_off = over_seeds(_cut_off, 1, axes)
        shapes = jax.eval_shape(sums, self.like)
        self.nothing_learned = jax.tree.map(lambda x: jnp.zeros((seeds, *x.shape)), shapes)
        self.nothing_played = dict.fromkeys(("returns", "episodes"), jnp.zeros(seeds))


def stand_in(make: MakeHost) -> Environment:
    """Return a compiled environment with the shapes of one on the host, and noise for contents.

    It is never run: from it JAX learns the shapes of a run's state, and what of it differs between
    seeds.
    """
    with contextlib.closing(make(1, True)) as probe:
        batch = probe

    def see(key: Array) -> Array:
        if jnp.issubdtype(batch.obs.dtype, jnp.floating):
            return jax.random.normal(key, batch.obs.shape, batch.obs.dtype)
        return jax.random.bits(key, batch.obs.shape, jnp.uint32).astype(batch.obs.dtype)

    def step(key: Array, state: tuple[()], action: Array) -> tuple[tuple[()], Array, TimeStep]:
        del action
        flag = jax.random.bernoulli(key)
        return state, see(key), TimeStep(jax.random.normal(key), flag, flag, see(key))

    return Environment(
        batch.name, lambda key: ((), see(key)), step, batch.action_space, batch.max_steps,
        batch.frame_stack,
    )  # fmt: skip


def _without_pixels(state: LoopState) -> LoopState:
    ring = state.replay.ring.replace(pixels=())
    return state._replace(replay=state.replay._replace(ring=ring))


def _cut_off(state: LoopState, obs: Array) -> LoopState:
    """Return a state that goes on from `obs` `[E, ...]`, after resets that it did not see."""
    steps, pushes = state.window
    newest = (pushes - 1) % len(steps.truncated)
    # The latest step bootstraps from its true next observation, and returns end there.
    truncated = steps.truncated.at[newest].set(~steps.terminated[newest])
    replay = state.replay
    if len(steps.truncated) == 1:  # nothing waits in the window: the ring has the latest step
        replay = replay._replace(ring=ring_.end_episodes(replay.ring))
    return state._replace(
        replay=replay,
        obs=obs,
        window=Window(steps._replace(truncated=truncated), pushes),
        episodes=jax.tree.map(jnp.zeros_like, state.episodes),
        extras=jax.tree.map(jnp.zeros_like, state.extras),
    )


def _seed(seed: int, *purpose: int) -> int:
    """Return a seed for one purpose of the run of `seed`."""
    return int(np.random.SeedSequence([seed, *purpose]).generate_state(1)[0]) >> 1
