"""TorchRL: its prioritised replay buffer of tensordicts, with trees in C++, on the CPU.

PyTorch gets one thread: batches are small, and on shared cores waiting for a second thread costs
milliseconds.
"""

import logging
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

from experiments.benchmarks.peers.types import ALPHA, BETA, EPSILON, Drawn, Peer, Rows


class _Buffer:
    def __init__(self, capacity: int, batch_size: int) -> None:
        self._buffer = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA,
            beta=BETA,
            eps=EPSILON,
            storage=LazyTensorStorage(capacity),
            batch_size=batch_size,
        )

    def fill(self, rows: Rows) -> None:
        fields = {name: torch.as_tensor(field) for name, field in rows._asdict().items()}
        self._buffer.extend(TensorDict(fields, batch_size=[len(rows.reward)]))

    def add(self, row: Rows) -> None:
        fields = {name: torch.as_tensor(field) for name, field in row._asdict().items()}
        self._buffer.add(TensorDict(fields, batch_size=[]))

    def sample(self) -> Any:
        return self._buffer.sample()

    def update(self, batch: Any, errors: torch.Tensor) -> None:
        batch["td_error"] = errors.abs()
        self._buffer.update_tensordict_priority(batch)

    def errors(self, td_error: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(td_error)

    def drawn(self, batch: Any) -> Drawn:
        rows = Rows(*(batch[name].numpy() for name in Rows._fields))
        return Drawn(batch["index"].numpy().reshape(-1), rows, batch["priority_weight"].numpy())

    def wait(self) -> None:
        pass


def peers() -> tuple[Peer, ...]:
    """Return the prioritised buffer.

    Raises:
      RuntimeError: its compiled trees do not fit the installed PyTorch.
    """
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    _Buffer(2, 1)
    return (Peer("torchrl", prioritised=True, buffer=_Buffer),)
