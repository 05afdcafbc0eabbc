"""What a run writes besides its metrics."""

import dataclasses
import importlib.util

from jaxreplay.option import option


@dataclasses.dataclass(frozen=True)
class OutputConfig:
    """What a run writes; no result depends on it."""

    checkpoint_every: int = option(10, "log points between two checkpoints")
    tensorboard: bool = option(True, "write TensorBoard events")
    wandb: bool = option(False, "log to Weights & Biases (WANDB_MODE=offline works)")
    threshold: float | None = option(
        None, "return that counts as solved; none: the environment's own, if it has one"
    )

    def __post_init__(self) -> None:
        if self.checkpoint_every < 1:
            raise ValueError(f"checkpoint_every is {self.checkpoint_every}: it must be at least 1")
        if self.wandb and importlib.util.find_spec("wandb") is None:
            raise ValueError(
                "Weights & Biases is not installed: pip install wandb, or leave out --wandb"
            )
