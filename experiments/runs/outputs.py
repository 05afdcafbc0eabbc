"""What a run writes besides its metrics."""

import dataclasses

from experiments.installation import commands
from jaxreplay.option import Config, option


@dataclasses.dataclass(frozen=True)
class OutputConfig(Config):
    """What a run writes; no result depends on it."""

    checkpoint_every: int = option(10, "log points between two checkpoints", at_least=1)
    tensorboard: bool = option(True, "write TensorBoard events")
    figures: bool = option(
        True, "draw a run's figures at its end; a comparison's own are always drawn"
    )
    report: bool = option(
        False, "write report.html at the end, a page of 5 MB that shows it all and needs no network"
    )
    wandb: bool = option(False, "log to Weights & Biases (WANDB_MODE=offline works)")
    threshold: float | None = option(
        None,
        "return that counts as solved; none: the environment's own, if it has one",
        at_most=1e12,
    )
    stop_on_divergence: bool = option(
        False, "end a run when between two log points no loss or gradient of a seed was finite"
    )

    other_code: bool = option(
        False,
        "go on with results that another version of the code, or other settings of JAX, made; they "
        "then name both",
    )

    def check(self) -> None:
        """Refuse a log whose package is missing."""
        self._check_package("wandb", "wandb")

    def check_report(self) -> None:
        """Refuse a page that cannot be made here; folders that asked for one stay readable.

        Raises:
          ValueError: one line: plotly is missing.
        """
        self._check_package("report", "plotly")

    def _check_package(self, option_: str, module: str) -> None:
        lacks = commands.missing(f"--{option_} true", {module: option_})
        if getattr(self, option_) and lacks:
            raise ValueError(f"{lacks}, or use --{option_} false")
