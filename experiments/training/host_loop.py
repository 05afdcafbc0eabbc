"""The training loop for environments that live on the host.

It drives the same phases as the compiled loop, jitted, for all seeds at once (`[S]` leads). While
the environments move on the host, the device takes the gradient updates that are due. A block of
the compiled loop collects first and learns then; here both run side by side, so that updates see
what was stored before the environments' latest step.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from agents.types import Agent
from experiments.environments.types import Array, EnvironmentSpec, TimeStep
from experiments.training import host_store
from experiments.training.batches import Batches, MakeHost
from experiments.training.config import LoopConfig, remarks
from experiments.training.evaluation import play_out, python_while
from experiments.training.host_phases import HostPhases
from experiments.training.phases import make_phases
from experiments.training.schedule import schedule
from experiments.training.seeds import CutShort, keys_of, with_axis
from experiments.training.state import LoopState, Metrics, Sums
from jaxreplay.replay import Replay


class Since(NamedTuple):
    """What a run that stops between two log points has to go on with."""

    played: Metrics  # sums over training episodes since the last log point
    learned: Sums  # over gradient updates
    owed: np.ndarray  # [] bool, whether the replay is yet to be told of an evaluation that was due


class HostRun:
    """A `seeds.Run` of several seeds with environments on the host.

    Attributes:
      schedule: log points and counts.
      remarks: what the user should know before it runs.
      layout: empty: one device.
      axes: a LoopState of 0 where a leaf has a seed axis, and None where all seeds share it.
      device: what is jitted.
      playing: the environments; None before the run begins.
    """

    def __init__(
        self,
        make: MakeHost,
        environment: EnvironmentSpec,
        agent: Agent,
        replay: Replay,
        config: LoopConfig,
        seeds: Sequence[int],
    ) -> None:
        """Make the run; environments are made when it begins.

        Args:
          make: makes a batch of environments, for training or for evaluation.
          environment: what they are like.
          agent: made with the objective of the replay's method.
          replay: made with the sampler of the same method.
          config: lengths and cadences.
          seeds: one per run.

        Raises:
          ValueError: the config cannot run.
        """
        self._make, self._replay, self._config, self._seeds = make, replay, config, list(seeds)
        phases = make_phases(environment.action_space, agent, replay, config)
        self.schedule = schedule(config, replay.num_envs)
        self.device = HostPhases(phases, environment, len(self._seeds))
        self.axes, self.layout = self.device.axes, ""
        self.remarks = remarks(replay, environment.name, environment.max_steps)
        self._nothing = Since(self.device.nothing_played, self.device.nothing_learned, _SETTLED)
        self._store = self._empty_store()
        self._at_once = replay.requires.all_new  # batches of just what the block collected
        self._evaluates = phases.evaluates_for_replay
        self.playing: Batches | None = None
        self._testing: Batches | None = None
        self._rows = 0  # agent steps in each environment so far
        self.stops_anywhere = True
        self.stop: Callable[[], bool] = lambda: False

    def init(self) -> LoopState:
        """Reset the environments and run the warm-up."""
        state = self.device.start(self._keys(), self._reset(0))
        self._store = self._empty_store()
        played = self.device.nothing_played
        for _ in range(self.schedule.warmup_rows):
            if self.stop():
                raise CutShort(None, 0)
            action, extras = self.device.decide(state, "warm-up")
            self.playing.send(action)
            obs, out = self._receive()
            state, played = self.device.take_in(state, "warm-up", played, action, extras, obs, out)
            self._keep(state)
        return self._whole(self.device.after_warmup(state))

    def like(self) -> LoopState:
        """Return shapes and dtypes of a state, to load a saved one."""
        obs = with_axis(self.device.like.obs, len(self._seeds))
        state = jax.eval_shape(self.device.start, self._keys(), obs)
        store = self._empty_store()
        return state._replace(since=self._nothing, host=() if store is None else store.kept)

    def resume(self, state: LoopState) -> LoopState:
        """Go on from a saved state; the episodes that ran then are cut off, as by a time limit."""
        if self._store is not None:
            self._store.kept = state.host
        bare, since = state._replace(host=(), since=()), state.since
        return self._whole(self.device.cut_off(bare, self._reset(int(state.rows))), since)

    def to_save(self, state: LoopState) -> LoopState:
        """Return the state as it is."""
        return state

    def chunk(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics]:
        """Run `blocks` blocks and an evaluation; the state is donated. Metrics are `[S]`."""
        state = self.blocks(state, blocks)
        since, state = state.since, state._replace(host=(), since=())
        returns, lengths = self._evaluate(state, since, int(blocks), for_replay=False)
        given = () if self._store is None else self._store.read(self.device.looked_at(state))
        sums = since.played, since.learned
        state, metrics = self.device.log_point(state, *sums, returns, lengths, given)
        return self._whole(state), metrics

    def blocks(self, state: LoopState, blocks: int) -> LoopState:
        """Run `blocks` blocks; return the state with sums over them. The argument is donated."""
        device, config = self.device, self._config
        (played, learned, owed), state = state.since, state._replace(host=(), since=())
        if owed:
            state = self._tell(state, played, learned, 0)
        action, extras = device.decide(state, "act")
        for block in range(int(blocks)):
            if self.stop():
                raise CutShort(self._whole(state, Since(played, learned, _SETTLED)), block)
            for row in range(config.learn_every):
                self.playing.send(action)
                for _ in range(self._updates_beside(row)):
                    state, learned = self._learn(state, learned)
                obs, out = self._receive()
                state, played, action, extras = device.advance(
                    state, played, action, extras, obs, out
                )
                self._keep(state)
            for _ in range(config.updates if self._at_once else 0):
                state, learned = self._learn(state, learned)
            if config.scale_rewards:
                state = device.after_block(state)
            if self._evaluates and self.device.is_due(self._rows):
                state = self._tell(state, played, learned, block + 1)
            if self._at_once:
                action, extras = device.decide(state, "act")
        return self._whole(state, Since(played, learned, _SETTLED))

    def close(self) -> None:
        """Close the environments."""
        for batches in (self.playing, self._testing):
            if batches is not None:
                batches.close()

    def _tell(self, state: LoopState, played: Metrics, learned: Sums, blocks: int) -> LoopState:
        """Evaluate for the replay, and tell it the returns."""
        owing = Since(played, learned, np.asarray(True))
        returns, _ = self._evaluate(state, owing, blocks, for_replay=True)
        return self.device.observe(state, returns)

    def _evaluate(
        self, state: LoopState, since: Since, blocks: int, for_replay: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Play whole episodes greedily; return undiscounted returns and lengths, `[S, N]`."""
        rows = int(state.rows)
        self._testing.when = f"evaluation at agent step {rows * self._replay.num_envs:,}"

        def step(obs: np.ndarray, time: np.int32) -> tuple[np.ndarray, TimeStep]:
            if self.stop():
                raise CutShort(self._whole(state, since), blocks)
            self._testing.send(self.device.greedy(state, obs, time, for_replay))
            return self._testing.receive()

        shape = (len(self._seeds), self._config.eval_episodes)
        start = self._testing.reset(rows, 2 if for_replay else 1)
        return play_out(step, start, shape, python_while)

    def _learn(self, state: LoopState, learned: Sums) -> tuple[LoopState, Sums]:
        if self._store is None:
            return self.device.learn(state, learned)
        batch = self.device.sample(state)
        return self.device.learn_from(state, learned, batch, self._store.read(batch))

    def _updates_beside(self, row: int) -> int:
        """Return how many of a block's gradient updates go with its `row`-th step."""
        if self._at_once:
            return 0
        updates, rows = self._config.updates, self._config.learn_every
        return (row + 1) * updates // rows - row * updates // rows

    def _receive(self) -> tuple[np.ndarray, TimeStep]:
        """Receive a step of the environments; show it to what the host keeps."""
        self._rows += 1
        self.playing.when = f"agent step {self._rows * self._replay.num_envs:,}"
        obs, out = self.playing.receive()
        if self._store is not None:
            self._store.step(self._obs, out.final_obs, self._first)
            self._obs, self._first = obs, out.terminated | out.truncated
        return obs, out

    def _whole(self, state: LoopState, since: Since | None = None) -> LoopState:
        """Return the state with what the host keeps of it and the sums since the last log point."""
        host = () if self._store is None else self._store.kept
        return state._replace(host=host, since=self._nothing if since is None else since)

    def _keep(self, state: LoopState) -> None:
        """Keep on the host what left the device with the latest row."""
        if self._store is not None:
            self._store.add(state.replay.ring)

    def _empty_store(self) -> host_store.Store | None:
        return host_store.store_of(self.device.like.replay.ring, len(self._seeds))

    def _reset(self, rows: int) -> np.ndarray:
        if self.playing is None:
            num_envs, episodes = self._replay.num_envs, self._config.eval_episodes
            self.playing = Batches(self._make, self._seeds, num_envs, True)
            self._testing = Batches(self._make, self._seeds, episodes, False)
        self._rows = rows
        self.playing.when = f"agent step {rows * self._replay.num_envs:,}"
        self._obs = self.playing.reset(rows, 0)
        self._first = np.ones(self._obs.shape[:2], bool)
        return self._obs

    def _keys(self) -> Array:
        return keys_of(self._seeds)


_SETTLED = np.asarray(False)  # nothing is owed
