"""The interface of a replay buffer in the benchmark, whoever wrote it.

Shapes: `B` rows of a batch, `C` slots.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxreplay.replay import Replay

OBS, ACTION = 17, 6  # a locomotion task's sizes
ALPHA, BETA, EPSILON = 0.6, 0.4, 1e-6  # of every prioritised buffer (Schaul et al. 2016)


class Rows(NamedTuple):
    """Transitions as NumPy arrays, float32; fields are `[n, ...]`, or `[...]` for a single row."""

    obs: np.ndarray  # [n, OBS]
    action: np.ndarray  # [n, ACTION]
    reward: np.ndarray  # [n]
    discount: np.ndarray  # [n]
    next_obs: np.ndarray  # [n, OBS]


class Drawn(NamedTuple):
    """The contents of a batch, as NumPy arrays."""

    indices: np.ndarray  # [B] slots; -1 from uniform buffers that do not return them
    rows: Rows  # [B, ...]
    weights: np.ndarray  # [B] importance weights, up to a factor


class Buffer(Protocol):
    """A replay buffer that Python drives; capacity and batch size were fixed when it was made.

    TD errors are passed as `errors` returned them, and batches as `sample` returned them, so that
    nothing but the buffer is timed.
    """

    def fill(self, rows: Rows) -> None:
        """Store as many rows `[C, ...]` as there are slots."""

    def add(self, row: Rows) -> None:
        """Store one row `[...]`."""

    def sample(self) -> Any:
        """Draw a batch and read its rows."""

    def update(self, batch: Any, errors: Any) -> None:
        """Give the rows of a batch new priorities."""

    def errors(self, td_error: np.ndarray) -> Any:
        """Return TD errors `[B]` float32 as a user of this buffer has them after learning."""

    def drawn(self, batch: Any) -> Drawn:
        """Return the contents of a batch."""

    def wait(self) -> None:
        """Return once all work asked for is done."""


class CompiledBuffer(Buffer, Protocol):
    """A buffer that also runs many cycles in one compiled call, without Python in between."""

    def run(self, verb: str, count: int) -> None:
        """Run "add", "sample", "update" or a whole cycle (in either order) `count` times."""


class Peer(NamedTuple):
    """A contender in the benchmark; exactly one of `replay`, `buffer` and `compiled` is not None.

    Each of them is a function of capacity and batch size.
    """

    name: str
    prioritised: bool
    replay: Callable[[int, int], Replay] | None = None  # pure functions: every mode
    buffer: Callable[[int, int], Buffer] | None = None  # on the host: driven from Python
    compiled: Callable[[int, int], CompiledBuffer] | None = None  # a loop without a framework


def endless_episode(rng: np.random.Generator, count: int, first: int = 0) -> Rows:
    """Return `count` successive rows of one episode that never ends.

    Every reward is the row's number, from `first` on, so that a row is known by its reward.
    Buffers that store observations once find the next one in the following row.
    """
    obs = rng.standard_normal((count + 1, OBS), np.float32)
    return Rows(
        obs=obs[:-1],
        action=rng.uniform(-1, 1, (count, ACTION)).astype(np.float32),
        reward=np.arange(first, first + count, dtype=np.float32),
        discount=np.full(count, 0.99, np.float32),
        next_obs=obs[1:],
    )


def row(rows: Rows, number: int) -> Rows:
    """Return one of the rows, fields `[...]`."""
    return Rows(*(field[number] for field in rows))
