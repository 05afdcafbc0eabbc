"""Primary metrics: one number per seed that decides a comparison, chosen before the runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from experiments.statistics.summaries import curves, steps_to

if TYPE_CHECKING:  # its import takes half a second, which `--help` does not need
    import pandas as pd


@dataclass(frozen=True)
class PrimaryMetric:
    """A metric with one number per seed."""

    name: str
    help: str
    unit: str
    higher_is_better: bool
    of_curve: Callable[[np.ndarray, np.ndarray], float]  # (agent steps, returns) -> value
    better: str  # in sentences: a seed "solved walk/10 sooner" or "had a higher auc"
    worse: str
    evaluations: int = 1  # smallest number of evaluations that it needs

    def __call__(self, frame: pd.DataFrame) -> pd.Series:
        """Return values indexed by seed, from metrics with columns seed, step and eval_return.

        Values are NaN for seeds that diverged, and infinite for seeds that never reached the
        threshold.

        Raises:
          ValueError: there are too few evaluations.
        """
        table = curves(frame)
        self.check(len(table))
        steps = table.index.to_numpy(np.float64)
        values = [self.of_curve(steps, returns) for returns in table.to_numpy(np.float64).T]
        import pandas as pd

        return pd.Series(values, index=table.columns)

    def check(self, evaluations: int) -> None:
        """Check that a number of evaluations suffices for the metric.

        Raises:
          ValueError: there are too few evaluations.
        """
        if evaluations < self.evaluations:
            needed = f"{self.evaluations} evaluation{'s' * (self.evaluations > 1)}"
            raise ValueError(
                f"'{self.name}' needs {needed}, and there are {evaluations}: evaluate more often, "
                "train for more steps, or name another metric"
            )

    def did(self, task: str) -> str:
        """Return the verb before `better` or `worse` in a sentence about a task."""
        return "had" if self.higher_is_better else f"solved {task}"

    def label(self, between: str = " ") -> str:
        """Return the label of an axis with this metric; `between` separates name and unit."""
        better = "higher" if self.higher_is_better else "lower"
        return f"{self.name}{between}({self.unit}, {better} is better)"


def parse(name: str, threshold: float | None = None) -> PrimaryMetric:
    """Return a primary metric by name: final, last_K, auc, best or steps_to_threshold.

    Args:
      name: name of the metric; K is a number of evaluations, as in `last_10`.
      threshold: return that counts as solved, for `steps_to_threshold`.

    Raises:
      ValueError: no metric has this name, or the threshold is missing.
    """
    if name == "steps_to_threshold":
        return _steps_to(threshold)
    if match := re.fullmatch(r"last_([1-9]\d*)", name):
        return _last(int(match[1]))
    if name not in _PLAIN:
        raise ValueError(
            f"'{name}' is not a primary metric: choose {', '.join(_PLAIN)}, steps_to_threshold or "
            "last_K with K evaluations, such as last_10"
        )
    return _PLAIN[name]


def area(steps: np.ndarray, returns: np.ndarray) -> float:
    """Return the area under a learning curve, divided by its length in agent steps.

    The trapezoidal rule gives the mean return between the first and the last evaluation, for any
    spacing of evaluations.
    """
    if len(steps) == 1:
        return float(returns[0])
    return float(np.trapezoid(returns, steps) / (steps[-1] - steps[0]))


def _of_return(name: str, help: str, of_curve: Callable[..., float]) -> PrimaryMetric:
    return PrimaryMetric(
        name, help, "return", True, of_curve, f"a higher {name}", f"a lower {name}"
    )


_PLAIN = {
    metric.name: metric
    for metric in (
        _of_return("final", "the last evaluation", lambda steps, returns: float(returns[-1])),
        _of_return("auc", "area under the curve over its length, a mean return", area),
        _of_return(
            "best",
            "the best evaluation, as of the best agent found in training; it favours noisy curves",
            lambda steps, returns: float(returns.max()),
        ),
    )
}


def _last(count: int) -> PrimaryMetric:
    def mean(steps: np.ndarray, returns: np.ndarray) -> float:
        return float(returns[-count:].mean())

    metric = _of_return(f"last_{count}", f"mean of the last {count} evaluations", mean)
    return replace(metric, evaluations=count)


def _steps_to(threshold: float | None) -> PrimaryMetric:
    if threshold is None:
        raise ValueError(
            "steps_to_threshold needs a return that counts as solved: give a threshold, or choose "
            "final, auc or last_K"
        )

    def first(steps: np.ndarray, returns: np.ndarray) -> float:
        reached = steps_to(threshold, steps, returns)
        return math.inf if reached is None else float(reached)

    return PrimaryMetric(
        "steps_to_threshold",
        f"agent steps until an evaluation returns {threshold:g}, infinite if none does",
        "agent steps",
        False,
        first,
        "sooner",
        "later",
    )
