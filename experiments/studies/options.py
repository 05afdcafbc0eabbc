"""Options of a study: its question, its outputs, and where it runs."""

import dataclasses
import re
from pathlib import Path
from typing import Literal

from experiments.runs.registry import GOOD_RETURNS, THRESHOLDS
from experiments.statistics.counts import FEWEST_SEEDS, MARGIN
from jaxreplay.option import Config, option

HERE = "here"
Cache = Path | Literal["off"] | None  # folder of compiled programs
_MOST_DEVICES, _MOST_OF_A_CLUSTER = 256, 100_000
_ADDRESS = r"ray://[^\s:/]+(:\d{1,5})?|[^\s:/]+:\d{1,5}"


@dataclasses.dataclass(frozen=True)
class Question(Config):
    """The question of a study, which is fixed before anything runs."""

    primary: str = option(
        "auc",
        "metric that decides: auc, final, last_K (mean of last K evaluations), best or "
        "steps_to_threshold",
    )
    baseline: str | None = option(
        None,
        "label of the baseline; none: the first arm with uniform replay, or else uniform draws",
    )
    control: bool = option(
        True,
        "also compare the baseline with itself on other seeds, which should come out undecided",
    )
    ungated: str | None = option(
        None,
        "judge also arms that do not test their method, for this reason, which the results record; "
        "none: do not judge these arms",
    )
    until_decided: bool = option(
        False,
        "add --seeds seeds at a time until a test that is valid at every look (interim analysis) "
        "decides every arm; false: test once, at --seeds seeds",
    )
    most_seeds: int = option(
        256,
        "number of seeds at which undecided arms stop",
        at_least=FEWEST_SEEDS,
        needs=("until_decided",),
    )
    margin: float = option(
        MARGIN,
        "an arm makes no difference if its paired probability of improvement is within this margin "
        "of 1/2; it is at least as good if it wins a share above 1/2 minus this margin of the "
        "pairs that do not tie",
        above=0,
        below=0.5,
    )

    def check(self) -> None:
        """Raise ValueError if `ungated` is given without a reason."""
        if self.ungated is not None and len(self.ungated.split()) < 2:
            raise ValueError(
                "ungated gives no reason in words: write why arms that do not test their method "
                "are judged, or leave ungated out"
            )


@dataclasses.dataclass(frozen=True)
class StudyOptions(Config):
    """Outputs of a study, and the number of runs in a call of a compiled program."""

    threshold: float | None = option(
        None,
        "return at which a task counts as solved; none: the environment's own, if any. An arm "
        "counts as not tested if agents get less than a tenth of the way to this return",
        at_most=1e12,
    )
    keep: tuple[str, ...] | None = option(
        None, "metrics that the table of results keeps besides eval_return; none: all"
    )
    digits: int = option(
        9,
        "significant digits of the metrics in the table of results besides eval_return; nine "
        "distinguish all float32 numbers",
        at_least=3,
        at_most=9,
    )
    thin: int = option(
        1,
        "keep only every n-th log point in the table of results, where n is this number, and every "
        "evaluation that differs from the evaluation before it",
        at_least=1,
    )
    width: int | None = option(
        None,
        "number of runs that one call of a compiled program trains; none: on CPU, as many as "
        "experiments.train uses for this number of seeds, so that results are the same; on "
        "accelerators, as many as fit",
        at_least=1,
    )
    defaults: bool = option(False, "also run every method without the settings of the grid")
    together: bool = option(
        False,
        "combine only the n-th values of all settings, instead of running every combination",
    )
    figures: bool = option(True, "draw the figures")
    report: bool = option(True, "write report.html at the end, a page with all results")

    def threshold_of(self, env: str) -> float | None:
        """Return the return that counts as solved on a task, or None."""
        return THRESHOLDS.get(env) if self.threshold is None else self.threshold

    def good_return_of(self, env: str) -> float | None:
        """Return the return of a good agent on a task: the threshold, a known return, or None."""
        threshold = self.threshold_of(env)
        return GOOD_RETURNS.get(env) if threshold is None else threshold


@dataclasses.dataclass(frozen=True)
class Where(Config):
    """Place and limits of a study's execution, which do not affect its numbers."""

    on: str = option(
        HERE,
        "here: this machine; ray: the Ray cluster of RAY_ADDRESS or `ray start`, or else a new "
        "local one; ray://HOST[:PORT] or HOST:PORT: that cluster",
    )
    devices: str = option("auto", "number of devices to use; auto: all, on CPU one for each core")
    memory: float | None = option(
        None,
        "GB of memory that all runs together may use; none: four fifths of the free memory",
        above=0,
    )
    checkpoint_every: float = option(
        60.0,
        "seconds between two checkpoints, from which --resume continues; large checkpoints are "
        "written less often, so that writing takes at most a twentieth of the time",
        at_least=0,
    )
    hours: float | None = option(
        None, "stop cleanly after so many hours; --resume continues", above=0
    )
    other_code: bool = option(
        False,
        "continue results of another version of the code or other settings of JAX; the results "
        "then name both",
    )

    @property
    def device_count(self) -> int | None:
        """Number of devices, or None for all."""
        return None if self.devices == "auto" else int(self.devices)

    def check(self) -> None:
        """Validate the address and the number of devices."""
        if self.on not in (HERE, "ray") and not re.fullmatch(_ADDRESS, self.on):
            raise ValueError(f"on is '{self.on}': use here, ray, ray://HOST[:PORT] or HOST:PORT")
        if self.devices == "auto":
            return
        most = _MOST_DEVICES if self.on == HERE else _MOST_OF_A_CLUSTER
        if not self.devices.isdecimal() or not 1 <= int(self.devices) <= most:
            raise ValueError(
                f"devices is '{self.devices}': use a number from 1 to {most:,}, or auto"
            )


@dataclasses.dataclass(frozen=True)
class RunOutput(Config):
    """Outputs of a single run while it trains; with --resume, these options must be repeated."""

    tensorboard: bool = option(True, "write TensorBoard events; repeat this option with --resume")
    wandb: bool = option(
        False,
        "log to Weights & Biases (WANDB_MODE=offline works); repeat this option with --resume",
    )
    stop_on_divergence: bool = option(
        False, "end a run if, between two log points, no loss or no gradient of a seed was finite"
    )
