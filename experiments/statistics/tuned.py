"""Scores of a study: one for each run, and each method at its best and by default."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from experiments.statistics.bootstrap import bootstrap_interval, iqm
from experiments.statistics.primary import PrimaryMetric


class Estimate(NamedTuple):
    """An interquartile mean over seeds, with the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    seeds: int
    diverged: int = 0  # of these seeds; their scores are in the mean


class Tuned(NamedTuple):
    """A method on a task: its best point, and its default."""

    env: str
    label: str
    points: int  # number of candidates
    best: str  # the point's id
    chosen: Estimate | None  # on the seeds that selected it, optimistic; None without a choice
    shown: Estimate  # on the other seeds
    default: Estimate | None  # on these, too; None if the study lacks that point


def scores(
    frame: pd.DataFrame, settings: Sequence[str], metric: Callable[[str], PrimaryMetric]
) -> pd.DataFrame:
    """Return one row for each run.

    Columns: point, env, replay, method, the settings, seed, score, diverged, and ranked, the score
    in comparisons (see `ranked`). The score of a run that never reached a threshold is the agent
    step of its last evaluation, a lower bound. A run without a score diverged.

    The frame has columns point, env, replay, method, the settings, seed, step, eval_return and
    diverged; `metric` is that of a task.
    """
    rows = []
    for point, own in frame.groupby("point", sort=False):
        first = own.iloc[0]
        primary = metric(str(first["env"]))
        values = primary(own[["seed", "step", "eval_return"]])
        values = values.replace(np.inf, float(own["step"].max()))
        lost = (own.groupby("seed")["diverged"].max() > 0) | values.isna()
        compared = ranked(values, lost, primary.higher_is_better)
        facts = {name: first[name] for name in ("env", "replay", "method", *settings)}
        for seed, value, rank in zip(values.index, values, compared, strict=True):
            rows.append({
                "point": point, **facts, "seed": seed, "score": value, "diverged": int(lost[seed]),
                "ranked": rank,
            })  # fmt: skip
    return pd.DataFrame(rows)


def ranked(values: ArrayLike, lost: ArrayLike, higher_is_better: bool) -> np.ndarray:
    """Return scores `[seeds]` for comparisons, where a diverged seed ranks below all others."""
    worst = -np.inf if higher_is_better else np.inf
    return np.where(np.asarray(lost), worst, np.asarray(values, np.float64))


def estimate(values: Sequence[float] | np.ndarray, diverged: int = 0) -> Estimate:
    """Return the interquartile mean of scores `[seeds]`, with its interval."""
    low, high = bootstrap_interval(values)
    return Estimate(float(iqm(values)), float(low), float(high), len(values), diverged)


def has_choice(table: pd.DataFrame) -> bool:
    """Return whether a method has more than one point on a task; `table` is of `scores`."""
    return bool((table.groupby(["env", "replay"])["point"].nunique() > 1).any())


def unseen(seeds: Sequence[int], choice: bool) -> list[int]:
    """Return those of the sorted seeds that show the best points and do not select them."""
    return list(seeds[1::2] or seeds) if choice else list(seeds)


def tuning_curve(
    table: pd.DataFrame,
    higher_is_better: Callable[[str], bool],
    base_points: Mapping[str, Mapping[str, str]],
) -> list[Tuned]:
    """Select every method's best point on half of the seeds, and score it on the others.

    The best of many points on the seeds that selected it is partly luck; on other seeds it is not.
    A single seed is used for both, and all seeds are shown if no method has more than one point.
    Diverged seeds rank below all others (`ranked`). Between equal points, fewer diverged seeds
    decide, then the score of the other seeds, then the order.

    Args:
      table: of `scores`.
      higher_is_better: of a task.
      base_points: task -> label -> the id of its point without the sweep's settings.
    """
    found, choice = [], has_choice(table)
    for (env, label), own in table.groupby(["env", "replay"], sort=False):
        env, label = str(env), str(label)
        seeds = sorted(own["seed"].unique())
        on, shown = seeds[::2], unseen(seeds, choice)
        by_point = {
            str(point): rows.set_index("seed")
            for point, rows in own.groupby("point", sort=False)
            if set(rows["seed"]) == set(seeds)  # a study may be unfinished
        }
        if not by_point:
            continue
        sign = 1 if higher_is_better(env) else -1
        merits = {point: _merit(rows.loc[on], sign) for point, rows in by_point.items()}
        best = max(merits, key=merits.__getitem__)
        default = base_points.get(env, {}).get(label)
        found.append(
            Tuned(
                env, label, len(by_point), best,
                _of(by_point[best].loc[on]) if choice else None,
                _of(by_point[best].loc[shown]),
                _of(by_point[default].loc[shown]) if default in by_point else None,
            )
        )  # fmt: skip
    return found


def _merit(rows: pd.DataFrame, sign: int) -> tuple[float, int, float]:
    """Return the score of a point, minus its diverged seeds, and the score of the others."""
    sound = rows.loc[rows["diverged"] == 0, "score"]
    others = sign * float(iqm(sound)) if len(sound) else -np.inf
    return sign * float(iqm(rows["ranked"])), -int(rows["diverged"].sum()), others


def _of(rows: pd.DataFrame) -> Estimate:
    return estimate(rows["score"].to_numpy(), int(rows["diverged"].sum()))
