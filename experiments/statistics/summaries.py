"""Statistics of a run: curves, steps to a threshold, and the summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from experiments.statistics.bootstrap import bootstrap_interval, iqm

if TYPE_CHECKING:  # its import takes half a second, which `--help` does not need
    import pandas as pd


def steps_to(threshold: float, steps: ArrayLike, returns: ArrayLike) -> int | None:
    """Return the agent steps of the first log point with return >= threshold, or None."""
    hits = np.flatnonzero(np.asarray(returns) >= threshold)
    return int(np.asarray(steps)[hits[0]]) if hits.size else None


def curves(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table of returns: a column per seed, a row per log point at which a seed has one.

    If the frame lacks a log point of a seed, as in studies with the option `thin`, the table has
    the seed's return at the log point before.
    """
    # NaN in the frame is a return, of a seed that diverged; a missing row is not.
    present = frame.assign(eval_return=frame["eval_return"].fillna(-math.inf))
    table = present.pivot(index="step", columns="seed", values="eval_return").sort_index()
    table = table[(table > -math.inf).any(axis=1)]
    return table.ffill().replace(-math.inf, math.nan)


def summarise(frame: pd.DataFrame, threshold: float | None = None) -> dict:
    """Return a summary of a run as a JSON-able dict, with None for numbers that are not finite.

    Args:
      frame: metrics with columns seed, step (agent steps) and eval_return.
      threshold: return that counts as solved, or None.

    Returns:
      A dict with `seeds` and `final_step`; `final_return` per seed, with `final_iqm` and
      `final_interval` (95 % bootstrap); `mean_return` per seed (the mean over log points, which is
      the normalized area under the curve if they are evenly spaced) and `mean_return_iqm`;
      `threshold`; `diverged`, the list of diverged seeds; `steps_to_threshold` per seed; `reached`,
      the number of seeds that reached the threshold; and `median_steps_to_threshold`, where seeds
      that never reached it count as infinite (None if the median is infinite).
    """
    table = curves(frame)
    if table.empty:
        raise ValueError("metrics hold no evaluation: nothing to summarise, train for more steps")
    final, mean = table.iloc[-1].to_numpy(), table.to_numpy().mean(axis=0)
    summary = {
        "seeds": [int(seed) for seed in table.columns],
        "final_step": int(table.index[-1]),
        "final_return": _numbers(final),
        "final_iqm": _number(iqm(final)),
        "final_interval": _numbers(bootstrap_interval(final)),
        "mean_return": _numbers(mean),
        "mean_return_iqm": _number(iqm(mean)),
        "threshold": threshold,
        "diverged": diverged_seeds(frame),
    }
    if threshold is not None:
        first = [steps_to(threshold, table.index, table[seed]) for seed in table.columns]
        middle = median([math.inf if steps is None else steps for steps in first])
        summary["steps_to_threshold"] = first
        summary["reached"] = sum(steps is not None for steps in first)
        summary["median_steps_to_threshold"] = None if math.isinf(middle) else int(middle)
    return summary


def diverged_seeds(frame: pd.DataFrame) -> list[int]:
    """Return the seeds that diverged.

    A seed has diverged if, in at least one interval between two log points, no loss was finite, no
    gradient norm was finite, or all updates were skipped.

    Args:
      frame: metrics with columns seed and, if available, `agent/loss` and `agent/grad_norm`, means
        over finite values (NaN if there are none), and `agent/skipped`, the share of skipped
        updates. If there is a column `diverged` (1 for diverged seeds), it is used instead.
    """
    if "diverged" in frame:
        return sorted(int(seed) for seed in frame.loc[frame["diverged"] > 0, "seed"].unique())
    means = [name for name in ("agent/loss", "agent/grad_norm") if name in frame]
    lost = frame[means].isna().any(axis=1)
    if "agent/skipped" in frame:
        lost |= frame["agent/skipped"] >= 1.0
    return sorted(int(seed) for seed in frame.loc[lost, "seed"].unique())


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _numbers(values: Sequence[float] | np.ndarray) -> list[float | None]:
    return [_number(value) for value in values]
