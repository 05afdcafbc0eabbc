"""Scores of every run of a study, and of every method with its best and its default settings."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.statistics.bootstrap import bootstrap_interval, iqm
from experiments.statistics.primary import PrimaryMetric


class Estimate(NamedTuple):
    """An interquartile mean over seeds, with the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    seeds: int
    diverged: int = 0  # number of diverged seeds, whose scores are included


class Tuned(NamedTuple):
    """Best and default point (settings) of a method on a task, with their scores."""

    env: str
    label: str
    points: int  # number of candidates
    best: str  # id of the best point, or of the default point if no trial succeeded
    # Optimistic score of the best point, on the seeds that selected it; None if there was nothing
    # to choose, or if the table of a search lacks these runs.
    chosen: Estimate | None
    shown: Estimate  # score of the best point on the held-out seeds
    default: Estimate | None  # score of the default point on these seeds; None if it was not run


def swept(table: pd.DataFrame, settings: Sequence[str]) -> list[str]:
    """Return the settings that have more than one value."""
    return [name for name in settings if table[name].dropna().nunique() > 1]


def scores(
    frame: pd.DataFrame, settings: Sequence[str], metric: Callable[[str], PrimaryMetric]
) -> pd.DataFrame:
    """Return the scores of a study, with a row for each run.

    The score of a run that never reached the threshold is the agent step of its last evaluation, a
    lower bound. Runs without a score count as diverged.

    Args:
      frame: metrics with columns point, env, replay, method, the settings, seed, step, eval_return
        and diverged.
      settings: names of the columns of settings.
      metric: returns the primary metric of a task.

    Returns:
      A table with columns point, env, replay, method, the settings, seed, score, diverged, and
      ranked, the score for comparisons: infinitely bad for a run that diverged or never reached
      the threshold, as in `counts.count_pairs`.
    """
    rows = []
    for point, own in frame.groupby("point", sort=False):
        first = own.iloc[0]
        primary = metric(str(first["env"]))
        values = primary(own[["seed", "step", "eval_return"]])
        lost = (own.groupby("seed")["diverged"].max() > 0) | values.isna()
        worst = -np.inf if primary.higher_is_better else np.inf
        compared = values.where(~lost & np.isfinite(values), worst)
        values = values.replace(np.inf, float(own["step"].max()))
        facts = {name: first[name] for name in ("env", "replay", "method", *settings)}
        for seed, value, rank in zip(values.index, values, compared, strict=True):
            rows.append({
                "point": point, **facts, "seed": seed, "score": value, "diverged": int(lost[seed]),
                "ranked": rank,
            })  # fmt: skip
    return pd.DataFrame(rows)


def estimate(values: Sequence[float] | np.ndarray, diverged: int = 0) -> Estimate:
    """Return the interquartile mean of scores `[seeds]`, with its interval."""
    low, high = bootstrap_interval(values)
    return Estimate(float(iqm(values)), float(low), float(high), len(values), diverged)


def has_choice(table: pd.DataFrame) -> bool:
    """Return whether any method has several points (settings) on a task, in a table of `scores`."""
    return bool((table.groupby(["env", "replay"])["point"].nunique() > 1).any())


def unseen(seeds: Sequence[int], choice: bool) -> list[int]:
    """Return the held-out seeds: every second one of the sorted `seeds`.

    Return all if there is a single seed, or if there is no `choice` between points (settings).
    """
    return list(seeds[1::2] or seeds) if choice else list(seeds)


def tuning_curve(
    table: pd.DataFrame,
    higher_is_better: Callable[[str], bool],
    base_points: Mapping[str, Mapping[str, str]],
) -> list[Tuned]:
    """Select every method's best point (settings) on half of the seeds; score it on the other half.

    The score of the best of many points is biased on the seeds that selected it, and unbiased on
    held-out seeds. A single seed is used for both, and all seeds are used for scores if no method
    has several points. Seeds that diverged or never reached the threshold rank below all others.
    Ties are broken by the number of diverged seeds, then by the score of the seeds that did not
    diverge, then by order.

    Args:
      table: from `scores`.
      higher_is_better: returns the direction of a task's metric.
      base_points: task -> label -> id of the point without the sweep's settings.

    Returns:
      The result of every method on every task.
    """
    found, choice = [], has_choice(table)
    for (env, label), own in table.groupby(["env", "replay"], sort=False):
        env, label = str(env), str(label)
        seeds = sorted(own["seed"].unique())
        on, shown = seeds[::2], unseen(seeds, choice)
        by_point = {
            str(point): rows.set_index("seed")
            for point, rows in own.groupby("point", sort=False)
            if set(rows["seed"]) == set(seeds)  # an unfinished study may lack seeds
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
                estimate_of(by_point[best].loc[on]) if choice else None,
                estimate_of(by_point[best].loc[shown]),
                estimate_of(by_point[default].loc[shown]) if default in by_point else None,
            )
        )  # fmt: skip
    return found


def _merit(rows: pd.DataFrame, sign: int) -> tuple[float, int, float]:
    """Return a point's sort key: ranked score, minus diverged seeds, score of the other seeds."""
    sound = rows.loc[rows["diverged"] == 0, "score"]
    others = sign * float(iqm(sound)) if len(sound) else -np.inf
    return sign * float(iqm(rows["ranked"])), -int(rows["diverged"].sum()), others


def estimate_of(rows: pd.DataFrame) -> Estimate:
    """Return the interquartile mean of the scores of some runs, which are rows of `scores`."""
    return estimate(rows["score"].to_numpy(), int(rows["diverged"].sum()))
