"""How a sweep is carried out and looked at, which decides no number, and how a search is made."""

import dataclasses
import re
from typing import Literal

from experiments.analysis.primary import PrimaryMetric, parse
from experiments.runs.registry import THRESHOLDS
from jaxreplay.option import Config, option

_MOST_DEVICES, _MOST_OF_A_CLUSTER = 256, 100_000
HERE = "here"
_ADDRESS = r"ray://[^\s:/]+(:\d{1,5})?|[^\s:/]+:\d{1,5}"


@dataclasses.dataclass(frozen=True)
class SweepOptions(Config):
    """How a sweep is carried out, and how its results are looked at."""

    primary: str = option(
        "auc",
        "metric that figures and tables show, and that a search goes by: auc, final, last_K of K "
        "evaluations, best, steps_to_threshold",
    )
    threshold: float | None = option(
        None,
        "return that counts as solved; none: the environment's own, if it has one",
        at_most=1e12,
    )
    on: str = option(
        HERE,
        "here: this machine; ray: the Ray cluster of RAY_ADDRESS or `ray start`, else one that is "
        "started here for the sweep; ray://HOST[:PORT] or HOST:PORT: that cluster",
    )
    devices: str = option(
        "auto", "over which runs are laid; auto: all there are, on CPU one for each core"
    )
    width: int | None = option(
        None,
        "runs that a device does at once; none: on CPU as many as experiments.train puts into a "
        "program, so that they are what it makes of them; elsewhere what the device holds",
        at_least=1,
    )
    memory: float | None = option(
        None, "GB that runs may take, over all devices; none: four fifths of what is free", above=0
    )
    keep: tuple[str, ...] | None = option(
        None, "metrics that the table keeps beside eval_return; none: all"
    )
    leave_state: float = option(
        300.0,
        "on a cluster, seconds after which a wave leaves its state at the next log point, to go on "
        "from where its node dies",
        at_least=0,
    )
    defaults: bool = option(
        False, "run every method without the grid's settings, too, where that is no point of it"
    )
    figures: bool = option(True, "draw the figures at the end")
    report: bool = option(
        True, "write report.html at the end, a page of 5 MB that shows it all and needs no network"
    )
    other_code: bool = option(
        False,
        "go on with results that another version of the code, or other settings of JAX, made; they "
        "then name both",
    )

    @property
    def device_count(self) -> int | None:
        """How many devices are asked for; None: all."""
        return None if self.devices == "auto" else int(self.devices)

    def check(self) -> None:
        """Refuse a number of devices that is none, and where no sweep can run."""
        if self.on not in (HERE, "ray") and not re.fullmatch(_ADDRESS, self.on):
            raise ValueError(f"on is '{self.on}': use here, ray, ray://HOST[:PORT] or HOST:PORT")
        if self.devices == "auto":
            return
        most = _MOST_DEVICES if self.on == HERE else _MOST_OF_A_CLUSTER
        if not self.devices.isdecimal() or not 1 <= int(self.devices) <= most:
            raise ValueError(
                f"devices is '{self.devices}': give how many to use, from 1 to {most:,}, or auto"
            )

    def metric(self, env: str) -> PrimaryMetric:
        """Return the metric that is shown of a task.

        Raises:
          ValueError: one line: there is none of this name, or the threshold is missing.
        """
        return parse(self.primary, threshold_of(env, self.threshold))


@dataclasses.dataclass(frozen=True)
class SearchOptions(Config):
    """How settings are searched for, instead of running every combination of a grid."""

    search: Literal["random", "optuna"] | None = option(
        None,
        "choose settings from --space: at random, or by Optuna's TPE from what has been tried; "
        "none: run the grid",
    )
    trials: int = option(
        64,
        "settings to try, of every method and task",
        at_least=1,
        at_most=100_000,
        needs=("search",),
    )
    at_once: int = option(
        8,
        "settings that are asked for at once, and run together: more of them keep more devices "
        "busy, fewer let each choice know more",
        at_least=1,
        needs=("search",),
    )
    fresh_seeds: int = option(
        10,
        "seeds after those that choose, for the best settings and the defaults: the result",
        at_least=1,
        needs=("search",),
    )


def threshold_of(env: str, asked: float | None) -> float | None:
    """Return the return that counts as solved: the one asked for, or the environment's own."""
    return THRESHOLDS.get(env) if asked is None else asked
