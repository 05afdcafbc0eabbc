"""cpprb: a replay buffer on the host with segment trees in C++."""

import cpprb
import numpy as np

from experiments.benchmarks.peers import ACTION, ALPHA, BETA, EPSILON, OBS, Buffer, Peer, Rows


class _Buffer(Buffer):
    def __init__(self, capacity: int, batch_size: int) -> None:
        shapes = {"obs": OBS, "action": ACTION, "reward": 1, "discount": 1, "next_obs": OBS}
        self._buffer = cpprb.PrioritizedReplayBuffer(
            capacity, {name: {"shape": shape} for name, shape in shapes.items()}, alpha=ALPHA,
            eps=EPSILON,
        )  # fmt: skip
        self._batch_size = batch_size

    def fill(self, rows: Rows) -> None:
        self._buffer.add(**rows._asdict())

    def add(self, row: Rows) -> None:
        self._buffer.add(**row._asdict())

    def sample(self) -> dict[str, np.ndarray]:
        return self._buffer.sample(self._batch_size, beta=BETA)

    def update(self, batch: dict[str, np.ndarray], errors: np.ndarray) -> None:
        self._buffer.update_priorities(batch["indexes"], np.abs(errors))


def peers() -> tuple[Peer, ...]:
    """Return the prioritised buffer."""
    return (Peer("cpprb", prioritised=True, make=_Buffer),)
