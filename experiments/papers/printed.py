"""Numbers and claims that papers print, statistics of these numbers, and tables of presets."""

import ast
import csv
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.papers.entry import Claim, Computation, Entry, Exact, Request
from experiments.runs.presets import PRESETS

_FOLDER = Path(__file__).with_name("printed")
_SOURCES = ("experiments/papers/printed.py", "experiments/papers/printed/pser_*.csv")


def printed(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the cells of a paper's table in `printed/NAME.csv`, header first."""
    with (_FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return tuple(map(tuple, csv.reader(file)))


def claims() -> dict[str, tuple[Claim, ...]]:
    """Return the claims in `printed/claims.csv` by id of the entry.

    Each row of the file is a claim, and an empty cell stands for the default of the field of
    `Claim`. An example in column `where` is "kind=final;n=16", and one in column `beside` is
    "per_every4/uniform_every4".
    """
    found: dict[str, tuple[Claim, ...]] = {}
    header, *rows = printed("claims")
    for row in rows:
        own: dict[str, Any] = {name: cell for name, cell in zip(header, row, strict=True) if cell}
        entry = own.pop("entry")
        own["least"] = float(own.get("least", 0))
        own["across"] = "across" in own
        own["beside"] = tuple(own["beside"].split("/")) if "beside" in own else ()
        pairs = [each.partition("=") for each in own.pop("where", "").split(";") if each]
        own["where"] = {name: _read(text) for name, _, text in pairs}
        found[entry] = (*found.get(entry, ()), Claim(**own))
    return found


def stated(entry: Entry, claim: Claim | Exact) -> str:
    """Return the commit that stated a claim, and whether it was stated before the runs.

    `printed/stated.csv` has a commit for each entry. Claims with commits of their own are named by
    arm and baseline (`per/uniform`), or by the name of an exact claim. A claim was stated "before"
    its runs; "informed" if an earlier version of the comparison was known; "after" them; or
    "unclear" if the history does not show it.

    Returns:
      The commit, with a remark; or "not recorded".
    """
    name = claim.claim if isinstance(claim, Exact) else f"{claim.arm}/{claim.baseline}"
    row = _stated().get((entry.id, name)) or _stated().get((entry.id, ""))
    if row is None:
        return "not recorded"
    commit, order = row
    return commit if order == "before" else f"{order} ({commit})"


@functools.cache
def _stated() -> Mapping[tuple[str, str], tuple[str, str]]:
    _, *rows = printed("stated")
    return {(entry, claim): (commit, order) for entry, claim, commit, order in rows}


def _read(text: str) -> Any:
    """Return a text as a number if it is one, and otherwise unchanged."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def atari_scores(request: Request) -> pd.DataFrame:
    """Return Tab. 5 of Brittain et al. 2019: scores of random play, a human, PER and PSER.

    Rows are the games with a human score (200 million frames, no-op starts), by their names in the
    Arcade Learning Environment.
    """
    return pd.read_csv(_FOLDER / "pser_tab5.csv")


def atari_table(request: Request) -> pd.DataFrame:
    """Return Tab. 1 of Brittain et al. 2019, recomputed from Tab. 5 and as printed.

    Returns:
      Rows with columns claim, arm, what ("median" or "mean"), found, expected and tolerance, in
      percent of human scores.
    """
    scores, rows = atari_scores(request), []
    for arm, expected in (("per", (88, 607)), ("pser", (109, 832))):
        share = 100 * (scores[arm] - scores["random"]) / (scores["human"] - scores["random"]).abs()
        for what, value in zip(("median", "mean"), expected, strict=True):
            rows.append(
                {"claim": "tab1", "arm": arm.upper(), "what": what, "found": share.agg(what),
                 "expected": float(value), "tolerance": 0.5 + 1e-9}
            )  # fmt: skip
    return pd.DataFrame(rows)


def atari_changes(request: Request) -> pd.DataFrame:
    """Return the change from PER to PSER in percent in every game of Tab. 5 (Eq. 38)."""
    scores = atari_scores(request)
    per = scores["per"].where(scores["per"] != 0, np.nan)
    change = 100 * (scores["pser"] - per) / per.abs()
    about = {"arm": scores["game"], "env": "PSER over PER", "seed": 0}
    return pd.DataFrame({**about, "value": change})


def options_of_presets(request: Request) -> pd.DataFrame:
    """Return the options of presets, one per row: columns preset, section, option and value."""
    rows = []
    for name in request.options["presets"]:
        preset = PRESETS[name]
        sections: dict[str, Any] = {
            **{f"agent {agent}": values for agent, values in preset.agents.items()},
            "loop": preset.loop,
            "sizes": preset.sizes,
            "environment": preset.environment,
        }
        for replay, options in preset.replays.items():
            sections[f"replay {replay}"] = options
            sections[f"agent with {replay}"] = preset.agent_with.get(replay, {})
        rows += [
            {"preset": name, "section": section, "option": option, "value": str(value)}
            for section, values in sections.items()
            if not request.options["parts"] or section.startswith(tuple(request.options["parts"]))
            for option, value in values.items()
        ]
    return pd.DataFrame(rows)


def settings(name: str, *presets: str, parts: tuple[str, ...] = ()) -> Computation:
    """Return the computation of a table of presets, which tests compare with the papers.

    The table has the sections whose names begin with one of `parts`, by default all.
    """
    return Computation(
        f"settings_{name}", options_of_presets, {"presets": presets, "parts": parts},
        sources=("experiments/papers/printed.py", "experiments/runs/presets.*"),
    )  # fmt: skip


TABLE, CHANGES, SCORED = (
    Computation(f"pser_atari_{name}", function, {}, sources=_SOURCES)
    for name, function in (
        ("table", atari_table), ("changes", atari_changes), ("scores", atari_scores)
    )
)  # fmt: skip
