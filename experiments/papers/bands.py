"""Lines and bands over seeds: the papers' aggregates, and ours."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from experiments.statistics.bootstrap import bootstrap_interval, iqm

Band = tuple[np.ndarray, np.ndarray, np.ndarray]  # line, and both ends of what is around it: [x]


def _around(middle: np.ndarray, spread: np.ndarray) -> Band:
    return middle, middle - spread, middle + spread


def _spread(values: np.ndarray) -> np.ndarray:
    return values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])


def _percentiles(low: float, high: float) -> Callable[[np.ndarray], Band]:
    def band(values: np.ndarray) -> Band:
        return (np.median(values, axis=0), *np.percentile(values, [low, high], axis=0))

    return band


def _interval(values: np.ndarray) -> Band:
    """Return the mean and its 95 % interval, 1.96 standard errors."""
    return _around(values.mean(axis=0), 1.96 * _spread(values) / np.sqrt(len(values)))


def _ours(values: np.ndarray) -> Band:
    middle = iqm(values)
    return (middle, *bootstrap_interval(values)) if len(values) > 1 else (middle, middle, middle)


OURS = "IQM, 95 % bootstrap interval"
# What a paper's line and band are, by name.
AGGREGATES: Mapping[str, Callable[[np.ndarray], Band]] = MappingProxyType(
    {
        "mean, std": lambda values: _around(values.mean(axis=0), _spread(values)),
        "mean, 95 % interval": _interval,
        "mean, 20 to 80 %": lambda values: (
            values.mean(axis=0), *np.percentile(values, [20, 80], axis=0)
        ),
        "median, range": _percentiles(0, 100),
        "median, quartiles": _percentiles(25, 75),
        "median, 20 to 80 %": _percentiles(20, 80),
        OURS: _ours,
    }
)  # fmt: skip
