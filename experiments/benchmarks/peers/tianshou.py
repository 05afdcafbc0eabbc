"""Tianshou: a replay buffer on the host with a segment tree in numba.

It keeps whether an episode terminated, not the discount.
"""

from typing import Any

import numpy as np
from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

from experiments.benchmarks.peers.types import ALPHA, BETA, Drawn, Peer, Rows


class _Buffer:
    def __init__(self, capacity: int, batch_size: int) -> None:
        self._buffer = PrioritizedReplayBuffer(capacity, alpha=ALPHA, beta=BETA)
        self._batch_size = batch_size

    def fill(self, rows: Rows) -> None:
        no = np.zeros(len(rows.reward), bool)
        over = rows.discount == 0
        plain = ReplayBuffer.from_data(
            rows.obs, rows.action, rows.reward, over, no, over, rows.next_obs
        )
        self._buffer.update(plain)

    def add(self, row: Rows) -> None:
        self._buffer.add(
            Batch(
                obs=row.obs,
                act=row.action,
                rew=row.reward,
                terminated=row.discount == 0,
                truncated=False,
                obs_next=row.next_obs,
                info={},
            )
        )

    def sample(self) -> tuple[Any, np.ndarray]:
        return self._buffer.sample(self._batch_size)

    def update(self, batch: tuple[Any, np.ndarray], errors: np.ndarray) -> None:
        self._buffer.update_weight(batch[1], errors)

    def errors(self, td_error: np.ndarray) -> np.ndarray:
        return td_error

    def drawn(self, batch: tuple[Any, np.ndarray]) -> Drawn:
        content, indices = batch
        discount = np.where(content.terminated, 0.0, 0.99).astype(np.float32)
        rows = Rows(content.obs, content.act, content.rew, discount, content.obs_next)
        return Drawn(indices, rows, content.weight)

    def wait(self) -> None:
        pass


def peers() -> tuple[Peer, ...]:
    """Return the prioritised buffer of one environment."""
    return (Peer("tianshou", prioritised=True, buffer=_Buffer),)
