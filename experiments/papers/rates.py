"""How long the runs of a table take: measured, or estimated."""

from experiments.papers.entry import Computation
from experiments.papers.experiment import Experiment, SizeName
from experiments.papers.running import missing
from experiments.papers.tables import Data
from experiments.runs import rates
from experiments.runs.run_config import RunConfig


def minutes(source: Experiment | Computation | None, size: SizeName, data: Data) -> float:
    """Return about how many minutes a table takes from nothing.

    Runs that are in `data` took what they took, most of them on one core; the others are estimated
    for one.
    """
    if source is None:
        return 0.0
    if isinstance(source, Computation):
        measured = data.made.get("seconds")
        scale = {"smoke": 0.05, "small": 1.0, "paper": 1.0}[size]
        return measured / 60 if measured is not None else source.minutes * scale
    seconds = sum(run["train_seconds"] for runs in data.runs.values() for run in runs.values())
    return (seconds + sum(_seconds(config) for *_, config in missing(source, size, data))) / 60


def left(source: Experiment | Computation | None, size: SizeName, data: Data) -> float:
    """Return about how many minutes what is missing of a table takes."""
    if source is None or (isinstance(source, Computation) and data.made):
        return 0.0
    if isinstance(source, Computation):
        return minutes(source, size, data)
    return sum(_seconds(config) for *_, config in missing(source, size, data)) / 60


def _seconds(config: RunConfig) -> float:
    return rates.COMPILING + rates.seconds(config)
