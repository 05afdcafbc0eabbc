"""Tianshou: a replay buffer on the host with a segment tree in numba.

It stores whether an episode terminated instead of the discount.
"""

from typing import Any

import numpy as np
from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

from experiments.benchmarks.peers.types import ALPHA, BETA, Buffer, Peer, Rows


class _Buffer(Buffer):
    def __init__(self, capacity: int, batch_size: int) -> None:
        self._buffer = PrioritizedReplayBuffer(capacity, alpha=ALPHA, beta=BETA)
        self._batch_size = batch_size

    def fill(self, rows: Rows) -> None:
        no = np.zeros(len(rows.reward), bool)
        over = rows.discount == 0
        fields = (rows.obs, rows.action, rows.reward, over, no, over, rows.next_obs)
        self._buffer.update(ReplayBuffer.from_data(*fields))

    def add(self, row: Rows) -> None:
        batch = Batch(
            obs=row.obs, act=row.action, rew=row.reward, terminated=row.discount == 0,
            truncated=False, obs_next=row.next_obs, info={},
        )  # fmt: skip
        self._buffer.add(batch)

    def sample(self) -> tuple[Any, np.ndarray]:
        return self._buffer.sample(self._batch_size)

    def update(self, batch: tuple[Any, np.ndarray], errors: np.ndarray) -> None:
        self._buffer.update_weight(batch[1], errors)


def peers() -> tuple[Peer, ...]:
    """Return the prioritised buffer of one environment."""
    return (Peer("tianshou", prioritised=True, make=_Buffer),)
