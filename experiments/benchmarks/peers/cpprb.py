"""cpprb: a replay buffer on the host with segment trees in C++."""

from typing import Any

import cpprb
import numpy as np

from experiments.benchmarks.peers import types
from experiments.benchmarks.peers.types import ALPHA, BETA, EPSILON, Drawn, Peer, Rows


class _Buffer:
    def __init__(self, capacity: int, batch_size: int) -> None:
        obs, action = types.OBS, types.ACTION
        shapes = {"obs": obs, "action": action, "reward": 1, "discount": 1, "next_obs": obs}
        self._buffer = cpprb.PrioritizedReplayBuffer(
            capacity,
            {name: {"shape": shape} for name, shape in shapes.items()},
            alpha=ALPHA,
            eps=EPSILON,
        )
        self._batch_size = batch_size

    def fill(self, rows: Rows) -> None:
        self._buffer.add(**rows._asdict())

    def add(self, row: Rows) -> None:
        self._buffer.add(
            obs=row.obs,
            action=row.action,
            reward=row.reward,
            discount=row.discount,
            next_obs=row.next_obs,
        )

    def sample(self) -> dict[str, np.ndarray]:
        return self._buffer.sample(self._batch_size, beta=BETA)

    def update(self, batch: dict[str, np.ndarray], errors: np.ndarray) -> None:
        self._buffer.update_priorities(batch["indexes"], np.abs(errors))

    def errors(self, td_error: np.ndarray) -> np.ndarray:
        return td_error

    def drawn(self, batch: dict[str, Any]) -> Drawn:
        rows = Rows(**{name: batch[name] for name in Rows._fields})
        rows = rows._replace(reward=rows.reward[:, 0], discount=rows.discount[:, 0])
        # The next batch is written to the same arrays.
        return Drawn(np.array(batch["indexes"]), rows, np.array(batch["weights"]))

    def wait(self) -> None:
        pass


def peers() -> tuple[Peer, ...]:
    """Return the prioritised buffer."""
    return (Peer("cpprb", prioritised=True, buffer=_Buffer),)
