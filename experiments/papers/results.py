"""The tables of entries, for notebooks and reports."""

from pathlib import Path

import pandas as pd

from experiments.papers import report, tables
from experiments.papers.entry import SizeName
from experiments.papers.registry import ENTRIES, of_papers
from experiments.papers.tables import Data

COMMITTED = Path(__file__).parents[1] / "results" / "papers"


def load(name: str, size: SizeName = "small", folder: Path = COMMITTED) -> Data:
    """Return the numbers behind an entry.

    Raises:
      ValueError: one line: there is no such entry or table, or it is damaged.
    """
    if name not in ENTRIES:
        raise ValueError(f"no entry is called '{name}': python -m experiments.papers list")
    source = ENTRIES[name].source
    if source is None:
        raise ValueError(f"{name} is not to be had: {ENTRIES[name].missing}")
    data = tables.read(folder, source.name, size)
    if data is None:
        raise ValueError(
            f"{name} has not been run at size {size} in {folder}: python -m experiments.papers run "
            f"{name} --size {size} --out {folder}"
        )
    return data


def claims(paper: str, size: SizeName = "small", folder: Path = COMMITTED) -> pd.DataFrame:
    """Return what a paper's claims come to: columns claim, entry, verdict and why, a row for each.

    The paper "all" is no paper's.
    """
    rows = []
    for entry in of_papers([paper]):
        if entry.claims:
            rows += report.claims(entry, size, report.read(entry, size, folder))
    return pd.DataFrame(rows, columns=list(report.CLAIM_COLUMNS))
