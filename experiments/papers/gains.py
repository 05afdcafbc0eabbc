"""What the papers' tables over many games hold: mean and median gains, and games won.

A gain of an arm over a baseline in a game is (x - y) / |y| of their final scores, means over seeds
and over the last five evaluations. How soon a baseline is reached is asked of its last evaluation.
Frames have columns env, arm, seed, step and eval_return.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.papers.tables import Data
from experiments.statistics.tables import number

_LAST = 5  # evaluations
_KEYS = ["arm", "env", "seed"]

Pair = tuple[str, str]  # an arm, and what it is compared with


def mean_and_median(data: Data, pairs: Mapping[str, Pair]) -> list[list[str]]:
    """Return mean and median gain, a row for each pair that ran (LAP, Tab. 2).

    Over the games that both of a pair have.
    """
    rows = [["ours", "mean gain", "median gain", "games in which it is higher"]]
    ran = set(data.frame["arm"])
    for name, (arm, baseline) in pairs.items():
        if not {arm, baseline} <= ran:
            continue
        gains = _of_games(data.frame, arm, baseline)
        won = f"{int((gains > 0).sum())} of {len(gains)}"
        rows.append([name, f"{gains.mean():.2f} %", f"{np.median(gains):.2f} %", won])
    return rows


def until_baseline(data: Data, arms: Sequence[str], baseline: str) -> list[list[str]]:
    """Return how soon arms reach the score of the baseline's last evaluation (PER, Fig. 4).

    The share of training, the median over games of the median over seeds. Arms that have not run
    are left out, and so are games without the baseline.
    """
    shares = shares_until(data.frame, baseline)
    arms = [arm for arm in arms if arm in set(shares["arm"])]
    rows = [["ours: training until the baseline's final score, median over games", *arms]]
    cells = []
    for arm in arms:
        own = shares[shares["arm"] == arm].groupby("env")["value"].median()
        cells.append(f"{number(float(own.median()))} %")
    return [*rows, ["of the mean score", *cells]]


def of_seeds(frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return each seed's gain over the same seed of the baseline, in percent.

    Over the baseline's mean over seeds, |y|: a seed's own can be next to nothing.

    Returns:
      Columns arm, env, seed, value, in the frame's order, without the baseline.
    """
    final = _final(frame)
    base, own = final[baseline], final.drop(baseline, level="arm")
    beside = base.reindex(own.index.droplevel("arm")).to_numpy()
    means = base.groupby(level="env").mean().abs()
    scale = means.reindex(own.index.get_level_values("env")).to_numpy()
    return (100 * (own - beside) / scale).rename("value").reset_index()


def _of_games(frame: pd.DataFrame, arm: str, baseline: str) -> np.ndarray:
    """Return [games] gains of means over seeds, in percent."""
    means = _final(frame).groupby(level=["arm", "env"]).mean()
    both = pd.concat({"own": means.loc[arm], "base": means.loc[baseline]}, axis=1, join="inner")
    return (100 * (both["own"] - both["base"]) / both["base"].abs()).to_numpy(float)


def _final(frame: pd.DataFrame) -> pd.Series:
    """Return the mean over the last evaluations by arm, env and seed."""
    returns = frame.sort_values("step", kind="stable").set_index(_KEYS)["eval_return"]
    return returns.groupby(level=_KEYS, sort=False).apply(lambda own: own.tail(_LAST).mean())


def shares_until(frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return after which percentage of training each seed reaches the baseline's last score.

    The level is the mean over the baseline's seeds of the last evaluation; a seed that does not
    reach it within training counts as 100. Games without the baseline are left out.

    Returns:
      Columns env, arm, seed, value.
    """
    rows = []
    for env, own in frame.groupby("env", sort=False):
        last = own["step"].max()
        final = own[(own["arm"] == baseline) & (own["step"] == last)]
        if final.empty:
            continue
        level = final["eval_return"].mean()
        for (arm, seed), run in own.groupby(["arm", "seed"], sort=False):
            hits = run.loc[run["eval_return"] >= level, "step"]
            share = 100 * (hits.min() if len(hits) else last) / last
            rows.append((env, arm, seed, share))
    return pd.DataFrame(rows, columns=["env", "arm", "seed", "value"])
