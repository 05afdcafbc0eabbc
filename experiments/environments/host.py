"""Batches of environments that live on the host, behind one interface: NumPy in, NumPy out.

They cannot be compiled, so a step is split in two: between `send` and `receive` the environments
step on their own while the device learns.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from agents.types import Continuous, Discrete
from experiments.environments.types import EnvironmentSpec

Array = np.ndarray


class EnvironmentFailed(Exception):
    """An environment raised or returned a non-finite number; the message says which, and when."""


class LaneFailed(Exception):
    """One environment of a batch failed.

    Args:
      lane: its index.
      what: what went wrong, in one line.
    """

    def __init__(self, lane: Any, what: str = "") -> None:
        # A worker process passes on `type(error)(error)`, not the error itself.
        if isinstance(lane, LaneFailed):
            lane, what = lane.lane, lane.what
        super().__init__(lane, what)
        self.lane, self.what = lane, what


class HostStep(NamedTuple):
    """What one step of all environments returned, before any reset."""

    reward: Array  # [E] float32
    terminated: Array  # [E] bool, the task ended: nothing to bootstrap from
    truncated: Array  # [E] bool, a time limit cut the episode: bootstrap from final_obs
    final_obs: Array  # [E, ...] the true observation after the action, never one after reset


class HostEnvironment(abc.ABC):
    """A batch of E environments that reset themselves in the step that ends an episode.

    At most one of `terminated` and `truncated` is set; termination wins. Actions are `[E]` integers
    of a `Discrete` space, or `[E, A]` floats in [-1, 1] of a `Continuous` one, which the adapter
    clips and scales to the environment's bounds, once. Arrays that are returned are never written
    to again, and actions that are given are not written to: both are copied here, so that families
    may reuse their arrays from step to step.

    Attributes:
      name: full name, such as gymnasium/Hopper-v5.
      num_envs: E.
      action_space: that of each environment.
      max_steps: agent steps after which an episode is truncated.
      obs: shape and dtype of one environment's observation.
      frame_stack: frames stacked in an observation, newest last; 0: observations are not stacks.

    Families implement the abstract methods; `_step` may be overridden.
    """

    frame_stack = 0

    def __init__(
        self,
        name: str,
        num_envs: int,
        action_space: Discrete | Continuous,
        max_steps: int,
        obs: jax.ShapeDtypeStruct,
    ) -> None:
        self.name = name
        self.num_envs = num_envs
        self.action_space = action_space
        self.max_steps = max_steps
        self.obs = obs
        self._seed: int | None = None  # of the last reset
        self._steps = 0  # of each environment since then
        self._moving = False  # between send and receive

    @property
    def spec(self) -> EnvironmentSpec:
        """What a run has to know of each of the environments."""
        return EnvironmentSpec(
            self.name, self.obs, self.action_space, self.max_steps, self.frame_stack
        )

    def reset(self, seed: int) -> Array:
        """Seed every environment with a seed of its own and start an episode in each.

        A step that is under way is discarded.

        Returns:
          Observations `[E, ...]`.

        Raises:
          EnvironmentFailed: one of them raised, or its observation is not finite.
        """
        if self._moving:
            self.receive()
        self._seed, self._steps = seed, 0
        obs = np.array(self._guard(self._reset, lane_seeds(seed, self.num_envs)))
        self._check_finite("observation", obs)
        return obs

    def send(self, actions: Any) -> None:
        """Start a step with `actions`, `[E]` or `[E, A]`; do not wait for it.

        Raises:
          RuntimeError: there was no reset, or a step is under way already.
          ValueError: the actions have another shape, or lie outside the space.
          EnvironmentFailed: the actions are not finite, or the environments cannot be reached.
        """
        actions = self._read(actions)
        self._guard(self._send, actions)
        self._moving = True

    def receive(self) -> tuple[Array, HostStep]:
        """Wait for the step that `send` started.

        Returns:
          The observations `[E, ...]` to act on, after the reset where an episode ended; and the
          step itself.

        Raises:
          RuntimeError: no step is under way.
          EnvironmentFailed: an environment raised, or returned an observation or reward that is
            not finite.
        """
        if not self._moving:
            raise RuntimeError(f"{self.name}: receive() without a send() before it")
        self._moving = False
        return self._checked(self._guard(self._receive))

    def step(self, actions: Any) -> tuple[Array, HostStep]:
        """Take one step: `send` and `receive` in one."""
        return self._checked(self._guard(self._step, self._read(actions)))

    def render(self) -> Array:
        """Return a picture `[H, W, 3]` uint8 of the first environment.

        Raises:
          ValueError: the batch was not made with `render=True`, or cannot be rendered.
        """
        raise ValueError(f"{self.name} cannot be rendered")

    @abc.abstractmethod
    def close(self) -> None:
        """Free the environments' resources; may be called more than once."""

    @abc.abstractmethod
    def _reset(self, seeds: list[int]) -> Array: ...

    @abc.abstractmethod
    def _send(self, actions: Array) -> None: ...

    @abc.abstractmethod
    def _receive(self) -> tuple[Array, HostStep]: ...

    def _step(self, actions: Array) -> tuple[Array, HostStep]:
        self._send(actions)
        return self._receive()

    def _read(self, actions: Any) -> Array:
        """Return actions as an array of the space's shape and kind, and count the step."""
        if self._seed is None:
            raise RuntimeError(f"{self.name}: reset(seed) must come before the first step")
        if self._moving:
            raise RuntimeError(f"{self.name}: a step is under way: receive() it first")
        discrete = isinstance(self.action_space, Discrete)
        actions = np.array(actions, np.int64 if discrete else np.float32)
        shape = (self.num_envs,) if discrete else (self.num_envs, self.action_space.size)
        if actions.shape != shape:
            raise ValueError(f"{self.name} wants actions {list(shape)}, not {list(actions.shape)}")
        if discrete and not ((actions >= 0) & (actions < self.action_space.n)).all():
            raise ValueError(f"{self.name} has actions 0 to {self.action_space.n - 1}: {actions}")
        self._steps += 1
        if not discrete:
            self._check_finite("action", actions, "received")
        return actions

    def _checked(self, result: tuple[Array, HostStep]) -> tuple[Array, HostStep]:
        obs, step = np.array(result[0]), HostStep(*map(np.array, result[1]))
        self._check_finite("reward", step.reward)
        self._check_finite("observation", step.final_obs)
        self._check_finite("observation", obs)
        return obs, step

    def _check_finite(self, what: str, values: Array, verb: str = "returned") -> None:
        """Raise for the first environment whose `values` `[E, ...]` are not all finite."""
        if values.dtype.kind != "f" or np.isfinite(values).all():
            return
        ok = np.isfinite(values).reshape(self.num_envs, -1).all(axis=1)
        article = "an" if what[0] in "aeiou" else "a"
        bad = int(np.argmin(ok))
        raise EnvironmentFailed(self._where(bad, f"{verb} {article} {what} that is not finite"))

    def _guard(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call into the environments; turn whatever they raise into one line that says where."""
        try:
            return call(*args)
        except LaneFailed as error:
            raise EnvironmentFailed(self._where(error.lane, error.what)) from (
                error.__cause__ or error
            )
        except (Exception, SystemExit) as error:
            raise EnvironmentFailed(self._where(None, raised(error))) from error

    def _where(self, lane: int | None, what: str) -> str:
        which = f"environment {lane}" if lane is not None else f"one of {self.num_envs}"
        since = f"step {self._steps} since its reset with seed {self._seed}"
        return f"{self.name} ({which}, {since}) {what}"


def lane_seeds(seed: int, num_envs: int) -> list[int]:
    """Return a seed for each of the environments that a run's `seed` stands for.

    Runs with neighbouring seeds share none (as seed, seed + 1, ... would), so they are independent.
    """
    # 31 bits: the emulator's seeds are signed.
    return [int(x) >> 1 for x in np.random.SeedSequence(seed).generate_state(num_envs)]


def raised(error: BaseException) -> str:
    """Say in one line what was raised."""
    return " ".join(f"raised {type(error).__name__}: {error}".split())
