"""What a sweep's table says: a score for each run, and each method at its best and by default."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from experiments.analysis.bootstrap import bootstrap_interval, iqm
from experiments.analysis.primary import PrimaryMetric


class Estimate(NamedTuple):
    """An interquartile mean over seeds, with the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    seeds: int
    diverged: int = 0  # of these seeds; their scores are in the mean as they are


class Tuned(NamedTuple):
    """A method on a task: its best point, and its default."""

    env: str
    label: str
    points: int  # that it was chosen from
    best: str  # the point's id
    chosen: Estimate | None  # on the seeds that chose it: it flatters; None: nothing to choose
    shown: Estimate  # on the other seeds
    default: Estimate | None  # on these, too; None: the sweep lacks that point


def scores(
    frame: pd.DataFrame, settings: Sequence[str], metric: Callable[[str], PrimaryMetric]
) -> pd.DataFrame:
    """Return one row for each run.

    Columns: point, env, replay, method, the settings, seed, score, diverged, and ranked, the score
    as it is compared (see `ranked`). A run that never reached a threshold has the steps of its last
    evaluation for a score, the least that it can have needed. One without a score diverged.

    Args:
      frame: columns point, env, replay, method, the settings, seed, step, eval_return, diverged.
      settings: columns.
      metric: of a task.
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
    """Return scores `[seeds]` as they are compared: a seed that diverged is worse than any other.

    What an agent returned before it diverged, or by luck afterwards, says nothing for its settings.
    """
    worst = -np.inf if higher_is_better else np.inf
    return np.where(np.asarray(lost), worst, np.asarray(values, np.float64))


def estimate(values: Sequence[float] | np.ndarray, diverged: int = 0) -> Estimate:
    """Return the interquartile mean of scores `[seeds]`, with its interval.

    Args:
      values: scores.
      diverged: how many of the seeds did.
    """
    low, high = bootstrap_interval(values)
    return Estimate(float(iqm(values)), float(low), float(high), len(values), diverged)


def has_choice(table: pd.DataFrame) -> bool:
    """Tell whether a method has more than one point on a task; `table` is of `scores`."""
    return bool((table.groupby(["env", "replay"])["point"].nunique() > 1).any())


def unseen(seeds: Sequence[int], choice: bool) -> list[int]:
    """Return the seeds that best points are shown on, of sorted ones: they chose nothing."""
    return list(seeds[1::2] or seeds) if choice else list(seeds)


def tuned(
    table: pd.DataFrame,
    higher_is_better: Callable[[str], bool],
    base_points: Mapping[str, Mapping[str, str]],
) -> list[Tuned]:
    """Choose every method's best point on half of the seeds, and show it on the others.

    The best of many points on the seeds it was chosen on is partly luck; on seeds that had no say
    it is not. With one seed, there is nothing to choose with: that seed is used for both. Where no
    method has more than one point there is nothing to choose, and all seeds are shown. Seeds that
    diverged choose as the worst there is (`ranked`), which of three choosing seeds makes a point
    with a single one the worst; of equal points, those with fewer are better, then those whose
    other seeds score better, then the first.

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
            if set(rows["seed"]) == set(seeds)  # half of a sweep may be there
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
    """Return what a point is chosen by: more is better, and what is behind decides between equals.

    These are its score, how few seeds diverged, and the score of those that did not.
    """
    sound = rows.loc[rows["diverged"] == 0, "score"]
    among_them = sign * float(iqm(sound)) if len(sound) else -np.inf
    return sign * float(iqm(rows["ranked"])), -int(rows["diverged"].sum()), among_them


def _of(rows: pd.DataFrame) -> Estimate:
    return estimate(rows["score"].to_numpy(), int(rows["diverged"].sum()))
