"""A replay whose slots tests fill, update and draw one by one, with compiled functions."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from jaxreplay import Replay, Transition, sum_tree
from jaxreplay.sampler import Sampler
from jaxreplay.types import Sample

EXAMPLE = Transition(reward=np.float32(0), first=np.zeros((), bool), last=np.zeros((), bool))
FUNCTIONS = ("init", "add", "update", "probability", "metrics", "end_episodes", "observe_return")


@functools.cache
def compiled(sampler: Sampler, capacity: int, batch_size: int, num_envs: int) -> SimpleNamespace:
    """Return the compiled functions of a replay, which equal samplers share.

    `many` draws one batch for each key.
    """
    replay = Replay(sampler, capacity=capacity, batch_size=batch_size, num_envs=num_envs)
    functions = {name: jax.jit(getattr(replay, name)) for name in FUNCTIONS}
    sample = jax.jit(replay.sample, static_argnames="batch_size")
    many = jax.jit(jax.vmap(replay.sample, (None, 0, None)), static_argnums=2)
    return SimpleNamespace(replay=replay, sample=sample, many=many, **functions)


class Slots:
    """A replay and its state, which `add` and `update` change."""

    def __init__(
        self, sampler: Sampler, capacity: int, batch_size: int | None = None, num_envs: int = 1,
        example: Transition = EXAMPLE, count: int = 0, base: Sampler | None = None,
        shared: str = "init add",
    ) -> None:  # fmt: skip
        """Add `count` steps.

        `base` is a sampler for which the functions `shared` are equal, so that many samplers
        compile them once.
        """
        self.capacity, self.num_envs, self.example = capacity, num_envs, example
        sizes = capacity, batch_size or capacity, num_envs
        self.run = compiled(sampler, *sizes)
        if base is not None:
            equal = {name: getattr(compiled(base, *sizes), name) for name in shared.split()}
            self.run = SimpleNamespace(**vars(self.run) | equal)
        self.state: Any = self.run.init(jax.random.key(0), example)
        self.time = 0  # number of steps added
        self.add(count)

    def add(self, count: int = 1, feedback: dict[str, Any] | None = None, **fields: Any) -> "Slots":
        """Add `count` equal steps; fields and feedback have one value, or one per environment."""

        def spread(x: Any, like: Any) -> np.ndarray:
            return np.broadcast_to(np.asarray(x, like.dtype), (self.num_envs, *like.shape))

        row = self.example._replace(**{name: np.asarray(x) for name, x in fields.items()})
        row = jax.tree.map(spread, row, self.example)
        told = {name: spread(x, np.float32(0)) for name, x in (feedback or {}).items()}
        for _ in range(count):
            self.state = self.run.add(self.state, row, **told)
        self.time += count
        return self

    def versions(self, slots: Any) -> np.ndarray:
        """Return the versions of the transitions in `slots` `[n]`, `[n]` int32."""
        rows = self.run.replay.slots // self.num_envs
        age = (self.time - 1 - np.asarray(slots) // self.num_envs) % rows
        return np.asarray(self.time - age, np.int32)

    def update(
        self, slots: Any, late: int = 0, batch: Sample | None = None, **feedback: Any
    ) -> "Slots":
        """Update `slots` `[n]` with feedback, as if they had been drawn in `batch`, if given.

        The first `late` of them count as overwritten.
        """
        stale = (np.arange(len(slots)) < late) * (self.run.replay.slots // self.num_envs)
        indices, version = np.int32(slots), np.int32(self.versions(slots) - stale)
        if batch is None:
            batch = Sample(indices, None, np.ones(len(slots), np.float32), version)
        batch = batch._replace(indices=indices, version=version)
        told = {name: np.float32(values) for name, values in feedback.items()}
        self.state = self.run.update(self.state, batch, **told)
        return self

    def put(self, **changes: Any) -> "Slots":
        """Replace fields of the sampler's state."""
        self.state = self.state._replace(sampler=self.state.sampler._replace(**changes))
        return self

    def sample(self, seed: int = 0, batch_size: int | None = None) -> Sample:
        """Return a batch as NumPy arrays."""
        batch = self.run.sample(self.state, jax.random.key(seed), batch_size=batch_size)
        return jax.tree.map(np.asarray, batch)

    def draws(self, count: int, batch_size: int | None = None, seed: int = 1) -> Sample:
        """Return `count` batches `[count, B]` as NumPy arrays."""
        keys = jax.random.split(jax.random.key(seed), count)
        return jax.tree.map(np.asarray, self.run.many(self.state, keys, batch_size))

    def probability(self) -> np.ndarray:
        """Return the probabilities of all slots, `[C]` float64."""
        slots = np.arange(self.run.replay.slots, dtype=np.int32)
        return np.asarray(self.run.probability(self.state, slots), np.float64)

    def metric(self, name: str) -> float:
        """Return a metric of the replay."""
        return float(self.run.metrics(self.state)[name])

    def leaves(self) -> np.ndarray:
        """Return the leaves of the sampler's tree of priorities, `[C]` float64."""
        inner = getattr(self.state.sampler, "priorities", self.state.sampler)
        sum_tree.check_valid(inner.tree)
        return np.asarray(sum_tree.leaves(jax.device_get(inner.tree)), np.float64)
