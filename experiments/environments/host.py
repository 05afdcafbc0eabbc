"""Batches of environments on the host, with one interface: NumPy in, NumPy out.

A step has two halves: between `send` and `receive`, the environments step while the device learns.
"""

import abc
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from agents.types import Continuous, Discrete
from experiments.environments.types import EnvironmentSpec, TimeStep
from jaxreplay.types import Tree

Array = np.ndarray


class EnvironmentFailed(Exception):
    """Raised if an environment fails or returns a non-finite number; the message has details."""


class OneFailed(Exception):
    """Raised if one environment of a batch fails.

    Args:
      index: index of the environment in the batch.
      reason: the error in one line.
    """

    def __init__(self, index: Any, reason: str = "") -> None:
        # A worker process passes on `type(error)(error)`, not the error itself.
        if isinstance(index, OneFailed):
            index, reason = index.index, index.reason
        super().__init__(index, reason)
        self.index, self.reason = index, reason


class HostEnvironment(abc.ABC):
    """A batch of E environments that reset themselves in the step that ends an episode.

    Steps are `TimeStep`s of NumPy arrays `[E]`. Actions are `[E]` integers of a `Discrete` space,
    or `[E, A]` floats in [-1, 1] of a `Continuous` one, which the adapter clips and scales to the
    environment's bounds. Actions and results are copied, so that subclasses may reuse arrays.

    Attributes:
      name: full name, such as gymnasium/Hopper-v5.
      num_envs: E.
      action_space: action space of each environment.
      max_steps: agent steps after which an episode is truncated.
      obs: shape and dtype of one environment's observation, or a tree of shapes and dtypes if it
        has several arrays.
      frame_stack: frames stacked in an observation, newest last; 0 for no stack.

    Subclasses for each family implement the abstract methods.
    """

    frame_stack = 0

    def __init__(
        self,
        name: str,
        num_envs: int,
        action_space: Discrete | Continuous,
        max_steps: int,
        obs: Tree,
    ) -> None:
        self.name, self.num_envs = name, num_envs
        self.action_space, self.max_steps, self.obs = action_space, max_steps, obs
        self._seed: int | None = None  # seed of the last reset
        self._steps = 0  # steps of each environment since the last reset
        self._moving = False  # whether a step is in progress, between send and receive

    @property
    def spec(self) -> EnvironmentSpec:
        """The spec of each environment."""
        return EnvironmentSpec(
            self.name, self.obs, self.action_space, self.max_steps, self.frame_stack
        )

    def reset(self, seed: int) -> Tree:
        """Start an episode in every environment, with a seed for each derived from `seed`.

        The current step, if any, is discarded.

        Returns:
          Observations `[E, ...]`, an array or a tree of arrays with the structure of `obs`.

        Raises:
          EnvironmentFailed: an environment raised an error, or its observation is not finite.
        """
        if self._moving:
            self.receive()
        self._seed, self._steps = seed, 0
        obs = map_arrays(np.array, self._guard(self._reset, environment_seeds(seed, self.num_envs)))
        self._check_finite("observation", obs)
        return obs

    def send(self, actions: Any) -> None:
        """Start a step with `actions`, `[E]` or `[E, A]`, without waiting for it.

        Raises:
          RuntimeError: before the first reset, or during a step.
          ValueError: the actions have another shape, or are outside the space.
          EnvironmentFailed: the actions are not finite, or an environment raised an error.
        """
        actions = self._read(actions)
        self._guard(self._send, actions)
        self._moving = True

    def receive(self) -> tuple[Tree, TimeStep]:
        """Wait for the step that `send` started.

        Returns:
          The observations `[E, ...]` for the next actions, after the reset where an episode ended;
          and the step itself.

        Raises:
          RuntimeError: before `send`.
          EnvironmentFailed: an environment raised an error, or returned an observation or reward
            that is not finite.
        """
        if not self._moving:
            raise RuntimeError(f"{self.name}: receive() without a send() before it")
        self._moving = False
        obs, step = self._guard(self._receive)
        obs, step = map_arrays(np.array, obs), TimeStep(*(map_arrays(np.array, x) for x in step))
        self._check_finite("reward", step.reward)
        self._check_finite("observation", step.final_obs)
        self._check_finite("observation", obs)
        return obs, step

    def step(self, actions: Any) -> tuple[Tree, TimeStep]:
        """Take one step: `send`, then `receive`."""
        self.send(actions)
        return self.receive()

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
    def _reset(self, seeds: list[int]) -> Tree: ...

    @abc.abstractmethod
    def _send(self, actions: Array) -> None: ...

    @abc.abstractmethod
    def _receive(self) -> tuple[Tree, TimeStep]: ...

    def _read(self, actions: Any) -> Array:
        """Return actions as an array of the space's shape and kind, and count the step."""
        if self._seed is None:
            raise RuntimeError(f"{self.name}: reset(seed) must come before the first step")
        if self._moving:
            raise RuntimeError(f"{self.name}: a step has started: receive() it first")
        discrete = isinstance(self.action_space, Discrete)
        actions = np.array(actions, np.int64 if discrete else np.float32)
        shape = (self.num_envs,) if discrete else (self.num_envs, self.action_space.size)
        if actions.shape != shape:
            raise ValueError(
                f"{self.name} needs actions of shape {list(shape)}, not {list(actions.shape)}"
            )
        if discrete and not ((actions >= 0) & (actions < self.action_space.n)).all():
            raise ValueError(
                f"{self.name} has actions 0 to {self.action_space.n - 1}, but was given {actions}"
            )
        self._steps += 1
        if not discrete:
            self._check_finite("action", actions, "received")
        return actions

    def _check_finite(self, kind: str, values: Tree, verb: str = "returned") -> None:
        """Raise EnvironmentFailed for the first environment whose `values` are not all finite."""
        for part in [values] if isinstance(values, Array) else jax.tree.leaves(values):
            if part.dtype.kind != "f" or np.isfinite(part).all():
                continue
            ok = np.isfinite(part).reshape(self.num_envs, -1).all(axis=1)
            article = "an" if kind[0] in "aeiou" else "a"
            bad = int(np.argmin(ok))
            raise EnvironmentFailed(self._where(bad, f"{verb} {article} {kind} that is not finite"))

    def _guard(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the environments; turn all errors into EnvironmentFailed."""
        try:
            return call(*args)
        except OneFailed as error:
            raise EnvironmentFailed(self._where(error.index, error.reason)) from (
                error.__cause__ or error
            )
        except (Exception, SystemExit) as error:
            raise EnvironmentFailed(self._where(None, describe_error(error))) from error

    def _where(self, index: int | None, reason: str) -> str:
        which = f"environment {index}" if index is not None else f"one of {self.num_envs}"
        since = f"step {self._steps} since its reset with seed {self._seed}"
        return f"{self.name} ({which}, {since}) {reason}"


def map_arrays(function: Callable[..., Any], obs: Tree, *others: Tree) -> Tree:
    """Return `jax.tree.map(function, obs, *others)`, with a fast path for single arrays."""
    if isinstance(obs, Array):
        return function(obs, *others)
    return jax.tree.map(function, obs, *others)


def environment_seeds(seed: int, num_envs: int) -> list[int]:
    """Return the seed of each environment of a batch.

    Batches with neighbouring seeds have no seed of an environment in common.
    """
    # 31 bits: the emulator's seeds are signed.
    return [int(x) >> 1 for x in np.random.SeedSequence(seed).generate_state(num_envs)]


def describe_error(error: BaseException) -> str:
    """Describe an error in one line."""
    return " ".join(f"raised {type(error).__name__}: {error}".split())
