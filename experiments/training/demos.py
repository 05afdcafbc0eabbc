"""Runs that learn from a saved replay: a share of every batch (RLPD), or all of it (offline)."""

import dataclasses
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Continuous, Discrete
from jaxreplay import ring as ring_
from jaxreplay import saving
from jaxreplay.mixing import Mixed, MixedState, mix
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.storage import Transitions
from jaxreplay.types import Array, Sample, Tree


class TransitionSpec(NamedTuple):
    """The properties of a task that the transitions of a file must share."""

    action_space: Discrete | Continuous
    gamma: float
    n_step: int


@dataclasses.dataclass(frozen=True)
class Demonstrated(Mixed):
    """A mixture of replays, the second of which has the transitions of a file."""

    path: str = ""
    task: TransitionSpec | None = None

    def init(self, key: Array, example: Tree, second: ReplayState | None = None) -> MixedState:
        """Return the initial state, with the file's transitions unless `second` is given."""
        if second is None:
            second = _loaded(self.second, self.path, self.task, example)
        return super().init(key, example, second=second)


@dataclasses.dataclass(frozen=True)
class Recorded(Replay):
    """A replay with the transitions of a file, to which no others are added."""

    path: str = ""
    task: TransitionSpec | None = None

    def init(self, key: Array, example: Tree) -> ReplayState:
        """Return the state with the file's transitions, which is the same for all keys."""
        del key
        plain = Replay(
            self.sampler,
            capacity=self.capacity,
            batch_size=self.batch_size,
            num_envs=self.num_envs,
            storage=self.storage,
        )
        return _loaded(plain, self.path, self.task, example)

    def add(self, state: ReplayState, transition: Tree, **feedback: Array) -> ReplayState:
        """Return `state` unchanged."""
        del transition, feedback
        return state


def _loaded(replay: Replay, path: str, task: TransitionSpec | None, example: Tree) -> ReplayState:
    """Return the state of a replay with the transitions of a file, which is read during tracing.

    Warns if discounts, n-step or the range of actions seem to differ from the task's.

    Raises:
      ValueError: If the file does not fit, or has actions that the task lacks.
    """
    space = task and task.action_space
    actions = range(space.n) if isinstance(space, Discrete) else None
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), example)
    with jax.ensure_compile_time_eval():
        state = saving.load_rows(replay, path, blank, jax.random.key(0), actions)
        for line in differences(ring_.contents(state.ring), task) if task else ():
            warnings.warn(f"--demos {path} has {line}", stacklevel=2)
    return state


def differences(t: Any, task: TransitionSpec) -> list[str]:
    """Return descriptions of how transitions `[n, ...]` seem to differ from those of a task."""
    found, discount = [], np.asarray(t.discount)
    going_on, expected = discount[discount > 0], task.gamma**task.n_step
    # Only at the ends of episodes do transitions have fewer steps, and larger discounts.
    if going_on.size and not np.isclose(going_on.min(), expected, rtol=1e-4):
        found.append(
            f"discounts from {going_on.min():.6g} to {going_on.max():.6g}, and --gamma "
            f"{task.gamma} with --n-step {task.n_step} gives {expected:.6g}: use the values with "
            "which the file was made"
        )
    action = np.asarray(t.action)
    if isinstance(task.action_space, Continuous) and (np.abs(action) > 1 + 1e-4).any():
        found.append(
            f"actions from {action.min():.6g} to {action.max():.6g}, and agents have actions in "
            "[-1, 1]: rescale the actions of the file"
        )
    return found


def with_demos(
    replay: Replay, path: str, share: float, task: TransitionSpec | None = None
) -> Demonstrated | Recorded:
    """Return a replay that draws a share of each batch from a file, with the same sampler.

    Args:
      replay: replay of the agent's own experience.
      path: file written by `jaxreplay.save`, with transitions of the same task and agent.
      share: share of the file in each batch; 1 stores none of the agent's own experience.
      task: properties to compare with the transitions when they are loaded; None compares only
        their fields.

    Raises:
      ValueError: If the file, the storage or the sampler does not fit.
    """
    if replay.storage != Transitions():
        raise ValueError("--demos needs complete transitions: leave out --frame-stack or --demos")
    sampler = replay.sampler
    alone, requires = share == 1, sampler.requires
    fits = not requires.new_steps if alone else not sampler.provides
    if not fits or requires.all_new or requires.feedback_of_new:
        raise ValueError(
            "--demos needs a replay method that draws single stored transitions, and needs only "
            "feedback on them: leave out --demos, or use another --replay, such as uniform or per"
        )
    size = saving.saved_size(path)
    if size == 0:
        raise ValueError(f"--demos {path} has no transitions: choose another file")
    if alone:
        capacity = size - size % replay.num_envs
        if capacity < replay.batch_size:
            raise ValueError(
                f"--demos {path} has {size} transitions, fewer than a batch of "
                f"{replay.batch_size}: use a smaller --batch-size, or another file"
            )
        return Recorded(
            sampler,
            capacity=capacity,
            batch_size=replay.batch_size,
            num_envs=replay.num_envs,
            path=path,
            task=task,
        )
    stored = Replay(sampler, capacity=size, batch_size=min(size, replay.batch_size))
    both = mix(replay, stored, share, replay.batch_size, read_only=True)
    return Demonstrated(both.first, both.second, True, path, task)


def own_part(replay: Any, state: Any, batch: Sample | None = None) -> tuple[Replay, Any, Any]:
    """Return the replay of the agent's own experience, its state, and its part of a batch."""
    if not isinstance(replay, Mixed):
        return replay, state, batch
    own = None if state is None else state.first
    return replay.first, own, None if batch is None else replay.split(batch)[0]
