"""Statistics that papers report over many games: gains, and training until a baseline's score.

The gain of an arm over a baseline in a game is (x - y) / |y|, where x and y are their final scores:
means over seeds and the last five evaluations. The score to reach is the baseline's score at its
last evaluation. Frames have columns env, arm, seed, step and eval_return.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.papers.archive import Data
from experiments.statistics.markdown import number

_LAST = 5  # number of evaluations in a final score
_KEYS = ["arm", "env", "seed"]

Pair = tuple[str, str]  # arm and baseline


def mean_and_median(data: Data, pairs: Mapping[str, Pair]) -> list[list[str]]:
    """Return mean and median gain in percent, one row per pair, header first (LAP, Tab. 2).

    Statistics are over the games that both arms of a pair have. Pairs without runs are left out.
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
    """Return the share of training until arms reach the baseline's last score (PER, Fig. 4).

    The share is in percent, the median over games of the median over seeds. Arms without runs and
    games without the baseline are left out. The header is the first row.
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
    """Return the gain of each seed over the same seed of the baseline, in percent.

    The gain is 100 (x - b) / |m| for the seed's score x, the baseline's score b with this seed, and
    the baseline's mean m over seeds, because b can be close to zero.

    Returns:
      A frame with columns arm, env, seed and value, in the order of `frame`, without the baseline.
    """
    final = _final(frame)
    base, own = final[baseline], final.drop(baseline, level="arm")
    beside = base.reindex(own.index.droplevel("arm")).to_numpy()
    means = base.groupby(level="env").mean().abs()
    scale = means.reindex(own.index.get_level_values("env")).to_numpy()
    return (100 * (own - beside) / scale).rename("value").reset_index()


def _of_games(frame: pd.DataFrame, arm: str, baseline: str) -> np.ndarray:
    """Return the gains `[games]` of means over seeds, in percent."""
    means = _final(frame).groupby(level=["arm", "env"]).mean()
    both = pd.concat({"own": means.loc[arm], "base": means.loc[baseline]}, axis=1, join="inner")
    return (100 * (both["own"] - both["base"]) / both["base"].abs()).to_numpy(float)


def _final(frame: pd.DataFrame) -> pd.Series:
    """Return the mean over the last evaluations, indexed by arm, env and seed."""
    returns = frame.sort_values("step", kind="stable").set_index(_KEYS)["eval_return"]
    return returns.groupby(level=_KEYS, sort=False).apply(lambda own: own.tail(_LAST).mean())


def shares_until(frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return the percentage of training after which each seed reaches the baseline's last score.

    The baseline's last score is the mean over its seeds of the last evaluation. The value is 100
    for a seed that does not reach it. Games without the baseline are left out.

    Returns:
      A frame with columns env, arm, seed and value.
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
