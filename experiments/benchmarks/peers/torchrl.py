"""TorchRL: its prioritised replay buffer of tensordicts, with trees in C++, on the CPU.

PyTorch uses one thread: batches are small, and on shared cores waiting for a second thread takes
milliseconds.
"""

import logging
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

from experiments.benchmarks.peers import ALPHA, BETA, EPSILON, Buffer, Peer, Rows


class _Buffer(Buffer):
    def __init__(self, capacity: int, batch_size: int) -> None:
        self._buffer = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA, beta=BETA, eps=EPSILON, storage=LazyTensorStorage(capacity),
            batch_size=batch_size,
        )  # fmt: skip

    def fill(self, rows: Rows) -> None:
        self._buffer.extend(_tensors(rows, [len(rows.reward)]))

    def add(self, row: Rows) -> None:
        self._buffer.add(_tensors(row, []))

    def sample(self) -> Any:
        return self._buffer.sample()

    def update(self, batch: Any, errors: torch.Tensor) -> None:
        batch["td_error"] = errors.abs()
        self._buffer.update_tensordict_priority(batch)

    def errors(self, td_error: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(td_error)


def _tensors(rows: Rows, shape: list[int]) -> TensorDict:
    fields = {name: torch.as_tensor(field) for name, field in rows._asdict().items()}
    return TensorDict(fields, batch_size=shape)


def peers() -> tuple[Peer, ...]:
    """Return the prioritised buffer.

    Raises:
      RuntimeError: its compiled trees are incompatible with the installed PyTorch.
    """
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    _Buffer(2, 1)
    return (Peer("torchrl", prioritised=True, make=_Buffer),)
