"""The training loop for environments on the host.

It calls the phases of the compiled loop, jitted, for all seeds together (arrays have a leading
`[S]`). While the environments step on the host, the device computes the gradient updates that are
due. A block of the compiled loop collects before it learns. Here, collecting and learning run
concurrently, so that the transitions of the current step are not yet in the replay when the updates
sample from it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from agents.types import Agent
from experiments.environments.host import EnvironmentFailed, HostEnvironment
from experiments.environments.types import EnvironmentSpec, TimeStep
from experiments.training.config import LoopConfig
from experiments.training.drivers import CutShort, Driver
from experiments.training.evaluation import play_out, python_while
from experiments.training.host_phases import HostPhases
from experiments.training.phases import make_phases
from experiments.training.schedule import schedule
from experiments.training.seeds import keys_of, with_axis
from experiments.training.state import LoopState, Metrics, Sums
from jaxreplay.replay import Replay
from jaxreplay.types import Tree

MakeHost = Callable[[int, bool], HostEnvironment]  # (num_envs, training) -> a batch of num_envs


class Batches:
    """One batch of environments per seed, stepped together; arrays have a leading `[S]`.

    Attributes:
      when: the current step, for error messages.
    """

    def __init__(self, make: MakeHost, seeds: Sequence[int], num_envs: int, training: bool) -> None:
        self._batches = [make(num_envs, training) for _ in seeds]
        self._seeds = list(seeds)
        self.when = ""

    def reset(self, *purpose: int) -> Tree:
        """Reset every batch with a seed derived from the run's seed and `purpose`."""
        words = [np.random.SeedSequence([s, *purpose]).generate_state(1)[0] for s in self._seeds]
        seeds = [int(word) >> 1 for word in words]
        return _stacked(self._each(lambda batch, seed: batch.reset(seed), seeds))

    def send(self, actions: Any) -> None:
        """Start a step with actions `[S, E, ...]`."""
        self._each(lambda batch, action: batch.send(action), np.asarray(actions))

    def receive(self) -> tuple[Tree, TimeStep]:
        """Return the next observations `[S, E, ...]` and the step `[S, E]`."""
        return _stacked(self._each(lambda batch, _: batch.receive(), self._seeds))

    def close(self) -> None:
        """Close all batches."""
        for batch in self._batches:
            batch.close()

    def _each(self, call: Callable[[HostEnvironment, Any], Any], args: Iterable[Any]) -> list[Any]:
        """Call a function with every batch and its argument; errors name the seed and the step."""
        results = []
        for seed, batch, arg in zip(self._seeds, self._batches, args, strict=True):
            try:
                results.append(call(batch, arg))
            except EnvironmentFailed as error:
                raise EnvironmentFailed(f"seed {seed}, {self.when}: {error}") from error
        return results


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *x: np.stack(x), *trees)


class Since(NamedTuple):
    """Sums since the last log point, saved by a run that stops between two log points."""

    played: Metrics  # over training episodes
    learned: Sums  # over gradient updates


class HostDriver(Driver):
    """A driver of runs whose environments step on the host.

    Attributes:
      device: the jitted phases.
      playing: the training environments; None before the run begins.
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
        """Make the driver of one run per seed, for environments with the spec `environment`.

        `make` is called when the run begins. For other arguments and errors, see
        `loop.make_program`.
        """
        phases = make_phases(environment.action_space, agent, replay, config)
        super().__init__(schedule(config, replay.num_envs))
        self._make, self._phases, self._config, self._seeds = make, phases, config, list(seeds)
        self.device = HostPhases(phases, environment, len(self._seeds))
        self.axes = self.device.axes
        self._nothing = Since(self.device.nothing_played, self.device.nothing_learned)
        self._after_collecting = replay.requires.all_new  # updates use the transitions of the block
        self.playing: Batches | None = None
        self._testing: Batches | None = None
        self._rows = 0  # agent steps in each environment so far

    def init(self) -> LoopState:
        state = self.device.start(keys_of(self._seeds), self._reset(0))
        played = self.device.nothing_played
        for _ in range(self.schedule.warmup_rows):
            if self.stop():
                raise CutShort(None, 0)
            action, extras = self.device.decide(state, "warm-up")
            self.playing.send(action)
            obs, out = self._receive()
            state, played = self.device.take_in(state, played, action, extras, obs, out)
        return self.device.after_warmup(state)._replace(since=self._nothing)

    def like(self) -> LoopState:
        obs = with_axis(self.device.like.obs, len(self._seeds))
        state = jax.eval_shape(self.device.start, keys_of(self._seeds), obs)
        return state._replace(since=self._nothing)

    def resume(self, state: LoopState) -> LoopState:
        """Return the state to continue from; the episodes that were running count as truncated."""
        since, state = state.since, state._replace(since=())
        state = self.device.cut_off(state, self._reset(int(state.rows)))
        return state._replace(since=since)

    def chunk(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics]:
        state = self.blocks(state, blocks)
        since, state = state.since, state._replace(since=())

        def check() -> None:
            if self.stop():
                raise CutShort(state._replace(since=since), int(blocks))

        evaluated = self._evaluate(state, check)
        state, metrics = self.device.log_point(state, *since, *evaluated)
        return state._replace(since=self._nothing), metrics

    def blocks(self, state: LoopState, blocks: int) -> LoopState:
        """Run `blocks` blocks; return the state, with their sums added to `since`.

        The argument `state` is donated.
        """
        device, config = self.device, self._config
        (played, learned), state = state.since, state._replace(since=())
        action, extras = device.decide(state, "act")
        for block in range(int(blocks)):
            if self.stop():
                raise CutShort(state._replace(since=Since(played, learned)), block)
            for row in range(config.learn_every):
                self.playing.send(action)
                for _ in range(self._updates_during(row)):
                    state, learned = device.learn(state, learned)
                obs, out = self._receive()
                state, played, action, extras = device.advance(
                    state, played, action, extras, obs, out
                )
            for _ in range(config.updates if self._after_collecting else 0):
                state, learned = device.learn(state, learned)
            if config.scale_rewards:
                state = device.after_block(state)
            if self._phases.evaluates_for_replay and self._phases.is_due(
                self._rows, config.observe_every
            ):
                state = device.observe_return(state, self._evaluate(state)[0])
            if self._after_collecting:
                action, extras = device.decide(state, "act")
        return state._replace(since=Since(played, learned))

    def close(self) -> None:
        """Close the environments."""
        for batches in (self.playing, self._testing):
            if batches is not None:
                batches.close()

    def _evaluate(
        self, state: LoopState, check: Callable[[], None] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Play whole greedy episodes; return undiscounted returns and lengths, `[S, N]`.

        `check` is called before each step of an evaluation at a log point; None means that the
        evaluation is for the replay.
        """
        rows, for_replay = int(state.rows), check is None
        self._testing.when = f"evaluation at {self._agent_step(rows)}"

        def step(playing: Any, time: np.int32) -> tuple[Any, TimeStep]:
            if check is not None:
                check()
            action, memory = self.device.greedy(state, playing[0], time, for_replay, playing[1])
            self._testing.send(action)
            obs, out = self._testing.receive()
            return (obs, memory), out

        shape = (len(self._seeds), self._config.eval_episodes)
        obs = self._testing.reset(rows, 2 if for_replay else 1)
        start = obs, self.device.no_memory(obs)
        return play_out(step, start, shape, python_while)

    def _updates_during(self, row: int) -> int:
        """Return the number of a block's gradient updates during its `row`-th step."""
        if self._after_collecting:
            return 0
        updates, rows = self._config.updates, self._config.learn_every
        return (row + 1) * updates // rows - row * updates // rows

    def _receive(self) -> tuple[Tree, TimeStep]:
        """Receive a step of the training environments, and count it."""
        self._rows += 1
        self.playing.when = self._agent_step(self._rows)
        return self.playing.receive()

    def _reset(self, rows: int) -> Tree:
        num_envs, episodes = self._phases.replay.num_envs, self._config.eval_episodes
        if self.playing is None:
            self.playing = Batches(self._make, self._seeds, num_envs, True)
            self._testing = Batches(self._make, self._seeds, episodes, False)
        self._rows = rows
        self.playing.when = self._agent_step(rows)
        return self.playing.reset(rows, 0)

    def _agent_step(self, rows: int) -> str:
        return f"agent step {rows * self._phases.replay.num_envs:,}"
