"""PSER's printed Atari scores, and what follows from them (Brittain et al. 2019, Tab. 1 and 5)."""

import math

import numpy as np
import pandas as pd

from experiments.papers.entry import Computation, Request
from experiments.statistics import aggregates
from experiments.statistics.atari_scores import SCORES

_SOURCES = ("experiments/papers/pser_scores.py", "experiments/statistics/a*.py")


def atari_table(request: Request) -> pd.DataFrame:
    """Return Tab. 1 recomputed from Tab. 5, beside what the paper prints."""
    random, human, per, pser = (
        np.array([getattr(row, name) for row in SCORES.values()])
        for name in ("random", "human", "per", "pser")
    )
    rows = []
    for name, scores, printed in (("PER", per, (88, 607)), ("PSER", pser, (109, 832))):
        share = 100 * aggregates.normalised(scores, random, human)
        for what, value, expected in zip(
            ("median", "mean"), (np.median(share), share.mean()), printed, strict=True
        ):
            rows.append(
                {"claim": "tab1", "arm": name, "what": what, "found": value,
                 "expected": float(expected), "tolerance": 0.5 + 1e-9}
            )  # fmt: skip
    return pd.DataFrame(rows)


def atari_changes(request: Request) -> pd.DataFrame:
    """Return the percent change of PSER over PER in every game of Tab. 5 (Eq. 38)."""
    rows = [
        {"arm": game, "env": "PSER over PER", "seed": 0, "value": 100 * (row.pser - row.per)
         / abs(row.per) if row.per else math.nan}
        for game, row in sorted(SCORES.items())
    ]  # fmt: skip
    return pd.DataFrame(rows)


def atari_scores(request: Request) -> pd.DataFrame:
    """Return Tab. 5 as it is printed."""
    rows = [{"game": game, **row._asdict()} for game, row in sorted(SCORES.items())]
    return pd.DataFrame(rows)


TABLE = Computation("pser_atari_table", atari_table, {"smoke": {}}, _SOURCES, minutes=0.01)
CHANGES = Computation("pser_atari_changes", atari_changes, {"smoke": {}}, _SOURCES, minutes=0.01)
SCORED = Computation("pser_atari_scores", atari_scores, {"smoke": {}}, _SOURCES, minutes=0.01)
