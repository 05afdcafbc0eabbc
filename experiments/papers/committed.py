"""Tables and claims of entries, for notebooks and reports."""

from pathlib import Path

import pandas as pd

from experiments.papers import archive, summary
from experiments.papers.archive import Data
from experiments.papers.catalogue import ENTRIES, of_papers
from experiments.papers.entry import SizeName

COMMITTED = Path(__file__).parents[1] / "results" / "papers"


def load(name: str, size: SizeName = "small", folder: Path = COMMITTED) -> Data:
    """Return the table of an entry.

    Args:
      name: id of the entry, such as "per.fig1".
      size: size of its experiment.
      folder: folder of the tables, by default the committed ones.

    Raises:
      ValueError: the entry is unknown or cannot be reproduced, or its table is missing or damaged.
    """
    if name not in ENTRIES:
        raise ValueError(f"no entry is called '{name}': see python -m experiments.papers list")
    source = ENTRIES[name].source
    if source is None:
        raise ValueError(f"{name} cannot be reproduced: {ENTRIES[name].missing}")
    data = archive.read(folder, source.name, size)
    if data is None:
        raise ValueError(
            f"{name} has not been run at size {size} in {folder}: use python -m experiments.papers "
            f"run {name} --size {size} --out {folder}"
        )
    return data


def claims(paper: str, size: SizeName = "small", folder: Path = COMMITTED) -> pd.DataFrame:
    """Return the verdicts about a paper's claims.

    Args:
      paper: key of PAPERS; "all" has the claims that belong to no paper.
      size: size of the experiments.
      folder: folder of the tables, by default the committed ones.

    Returns:
      One row per claim, with columns claim, entry, verdict, pre-registered and why; all claims of a
      sweep share a row.
    """
    rows = []
    for entry in of_papers([paper]):
        if entry.claims:
            rows += summary.claims(entry, size, summary.read(entry, size, folder))
    return pd.DataFrame(rows, columns=list(summary.CLAIM_COLUMNS))
