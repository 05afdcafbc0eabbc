"""One batch of environments on the host per seed, stepped together."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from experiments.environments.host import EnvironmentFailed, HostEnvironment
from experiments.environments.types import TimeStep

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

    def reset(self, *purpose: int) -> np.ndarray:
        """Reset every batch with a seed of its own, made of its run's and the purpose."""
        seeds = [_derived(seed, *purpose) for seed in self._seeds]
        return np.stack(self._each(lambda batch, seed: batch.reset(seed), seeds))

    def send(self, actions: Any) -> None:
        """Start a step with actions `[S, E, ...]`."""
        self._each(lambda batch, action: batch.send(action), np.asarray(actions))

    def receive(self) -> tuple[np.ndarray, TimeStep]:
        """Return what came of it: observations `[S, E, ...]` to act on, and the step `[S, E]`."""
        obs, steps = zip(*self._each(lambda batch, _: batch.receive(), self._seeds), strict=True)
        return np.stack(obs), TimeStep(*map(np.stack, zip(*steps, strict=True)))

    def close(self) -> None:
        """Close all batches."""
        for batch in self._batches:
            batch.close()

    def _each(self, call: Callable[[HostEnvironment, Any], Any], args: Iterable[Any]) -> list[Any]:
        """Call with every batch; what fails says of which run it is."""
        results = []
        for seed, batch, arg in zip(self._seeds, self._batches, args, strict=True):
            try:
                results.append(call(batch, arg))
            except EnvironmentFailed as error:
                raise EnvironmentFailed(f"seed {seed}, {self.when}: {error}") from error
        return results


def _derived(seed: int, *purpose: int) -> int:
    """Return a seed for one purpose of the run of `seed`."""
    return int(np.random.SeedSequence([seed, *purpose]).generate_state(1)[0]) >> 1
