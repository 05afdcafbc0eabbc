"""Report of a search: the best settings of each method with fresh seeds, and the trials."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.figures import searched, sensitivity
from experiments.figures.drawing import to_matplotlib
from experiments.statistics import tuned
from experiments.statistics.tables import markdown, number
from experiments.statistics.tuned import Estimate, Tuned
from experiments.storage.files import write_bytes
from experiments.studies.grid import table_value
from experiments.studies.report import costs, format_estimate
from experiments.studies.search import best_of, score_of
from experiments.studies.store import Store, paths
from experiments.studies.study import Saved

_MOST_NAMED = 20  # failed trials to list
_QUANTILES = {"lowest": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "highest": 1.0}


class Result(NamedTuple):
    """Result of a search for one method on one task, with the scores `[seeds]` of fresh seeds."""

    env: str
    label: str
    best: str | None  # id of a point; None without a successful trial
    chosen: float | None  # its score on the seeds of the trials
    scores: np.ndarray  # scores of the best point
    defaults: np.ndarray  # scores of the default settings
    lost: np.ndarray  # `[seeds]` bool, diverged runs of the best point
    defaults_lost: np.ndarray  # `[seeds]` bool, diverged runs of the defaults


def trials(store: Store) -> pd.DataFrame:
    """Return a row for each trial of a search.

    Columns: env, replay, method, trial (its number), point, score (NaN if it failed), failed
    (the reason, or empty), and the settings.
    """
    rows = []
    for env, label, tuning in _studies(store):
        method = store.facts["points"][tuning["default"]]["method"]
        for at, trial in enumerate(tuning["trials"]):
            point = store.facts["points"].get(trial["point"], {"settings": {}})
            rows.append({
                "env": env, "replay": label, "method": method, "trial": at, "point": trial["point"],
                "score": math.nan if trial["score"] is None else trial["score"],
                "failed": trial["failed"] or "",
                **{name: table_value(value) for name, value in point["settings"].items()},
            })  # fmt: skip
    head = ["env", "replay", "method", "trial", "point", "score", "failed"]
    return pd.DataFrame(rows, columns=[*head, *store.settings])


def rescore(store: Store, study: Saved) -> list[str]:
    """Replace saved scores by those computed from the table; return lines on the differences.

    Failed trials remain failed, and a trial keeps its score if the table lacks some of its runs.
    """
    lines, seeds = [], store.facts["search"]["asked"]["seeds"]
    chosen = store.table[store.table["seed"].isin(seeds)]
    rows = dict(list(chosen.groupby("point")))
    for env, label, tuning in _studies(store):
        metric, odd = study.metric(env), []
        for at, trial in enumerate(tuning["trials"]):
            own = rows.get(trial["point"])
            if own is None or set(own["seed"]) != set(seeds) or trial["failed"]:
                continue
            score, why = score_of(own, metric)
            known = [math.nan if each is None else each for each in (score, trial["score"])]
            if not np.isclose(*known, rtol=1e-6, atol=1e-12, equal_nan=True):
                odd.append(at)
                trial |= {"score": score, "failed": why}
        best = best_of(tuning["trials"], metric.higher_is_better)
        if odd or best != tuning["best"]:
            what = f"other scores of trials {', '.join(map(str, odd))}" if odd else "another best"
            lines.append(
                f"{paths(store.folder)[1]} has {what} of {env} {label} than the table gives"
            )
            tuning["best"] = best
    return lines


def results(store: Store, study: Saved) -> list[Result]:
    """Return the result for every method on every task, with the scores of fresh seeds.

    Scores are NaN for seeds that have not finished.
    """
    fresh = store.facts["search"]["asked"]["fresh_seeds"]
    table = store.table
    ended = table[table["seed"].isin(fresh)]
    scores = tuned.scores(ended, store.settings, study.metric)

    def of(point: str, column: str) -> np.ndarray:
        if ended.empty:
            return np.full(len(fresh), math.nan)
        own = scores[scores["point"] == point].set_index("seed")[column]
        return own.reindex(fresh).to_numpy(np.float64)

    found = []
    for env, label, tuning in _studies(store):
        default, best = tuning["default"], tuning["best"]
        chosen = next((t["score"] for t in tuning["trials"] if t["point"] == best), None)
        points = (best or default, default)
        own = (of(point, "score") for point in points)
        lost = (of(point, "diverged") > 0 for point in points)
        found.append(Result(env, label, best, chosen, *own, *lost))
    return found


def tuned_rows(store: Store, study: Saved) -> list[Tuned]:
    """Return the best and default points of methods whose fresh seeds have all finished."""
    points = trials(store).groupby(["env", "replay"])["point"].nunique().to_dict()
    seeds = store.facts["search"]["asked"]["seeds"]
    found = []
    for row in results(store, study):
        if np.isnan(row.scores).any():
            continue
        unfinished = np.isnan(row.defaults).any()
        found.append(
            Tuned(
                row.env,
                row.label,
                points.get((row.env, row.label), 0),
                row.best or store.facts["base_points"][row.env][row.label],
                _chosen(store, study, row.best, seeds) if row.best else None,
                tuned.estimate(row.scores, int(row.lost.sum())),
                None if unfinished else tuned.estimate(row.defaults, int(row.defaults_lost.sum())),
            )
        )
    return found


def _chosen(store: Store, study: Saved, point: str, seeds: Sequence[int]) -> Estimate:
    """Return the score of a point on the seeds of the trials."""
    table = store.table
    own = table[(table["point"] == point) & table["seed"].isin(seeds)]
    return tuned.estimate(tuned.scores(own, store.settings, study.metric)["score"].to_numpy())


def compared(row: Result, study: Saved) -> str:
    """Return the numbers of fresh seeds on which the best settings win, lose and tie.

    The comparison is with the defaults. A diverged run ranks below all others.
    """
    higher = study.metric(row.env).higher_is_better
    own = tuned.ranked(row.scores, row.lost, higher)
    other = tuned.ranked(row.defaults, row.defaults_lost, higher)
    wins, losses = (own > other, own < other) if higher else (own < other, own > other)
    counts = [int(each.sum()) for each in (wins, losses, own == other)]
    return "/".join(map(str, counts))


def conclude(store: Store, study: Saved) -> str:
    """Write the figures and tables of a search; return the text to print."""
    found, tried = results(store, study), trials(store)
    asked = store.facts["search"]["asked"]
    metric = study.metric(found[0].env)
    text = (
        f"{_best(found, study)}\n"
        f"Scores: {metric.name} ({metric.help}), IQM over {len(asked['fresh_seeds'])} fresh seeds "
        f"[95 % interval]: none of them was used for selection. Better on: number of these "
        f"seeds on which the best settings beat, lose to and tie the defaults{_worst(found)}.\n\n"
        f"{_tried(tried, asked)}\n{_failed(tried)}{costs(store)}"
    )
    write_bytes(store.folder / "study.md", text.encode())
    written = [paths(store.folder)[0], store.folder / "study.md"]
    if study.options.figures:
        agents = ", ".join(sorted(set(store.table["agent"])))
        written += _figures(store, tried, study, agents)
    return f"\n{text}\nresults: {' '.join(map(str, written))}"


def _figures(store: Store, tried: pd.DataFrame, study: Saved, agents: str) -> list[Any]:
    written = []
    if tried["score"].notna().any():
        path = store.folder / "trials.png"
        to_matplotlib(searched.trials(tried, study.metric, agents), path)
        written.append(path)
        path = store.folder / "settings.png"
        drawn = searched.settings(tried, store.settings, linear(store), study.metric, agents)
        to_matplotlib(drawn, path)
        written.append(path)
    methods = dict(zip(store.table["replay"], store.table["method"], strict=True))
    path = store.folder / "best.png"
    seeds = len(store.facts["search"]["asked"]["fresh_seeds"])
    drawn = sensitivity.best(tuned_rows(store, study), methods, study.metric, agents, seeds)
    to_matplotlib(drawn, path)
    return [*written, path]


def linear(store: Store) -> set[str]:
    """Return the settings with a range on a linear scale."""
    spaces = store.facts["search"]["asked"]["space"]
    texts = [item for labels in spaces.values() for own in labels.values() for item in own.items()]
    return {name for name, text in texts if ":" in text and not text.endswith(":log")}


def _studies(store: Store) -> list[tuple[str, str, Any]]:
    studies = store.facts["search"].get("studies", {})  # empty before the first trials finish
    return [(env, label, own) for env, labels in studies.items() for label, own in labels.items()]


def _best(rows: Sequence[Result], study: Saved) -> str:
    header = ["best settings", "with fresh seeds", "by default", "better on"]
    cells = []
    for row in rows:
        name = row.best or f"{row.env} {row.label}"
        cells.append([
            name,
            _shown(row.scores, row.lost) if row.best else "-",
            _shown(row.defaults, row.defaults_lost),
            compared(row, study) if row.best else "-",
        ])  # fmt: skip
    return markdown([header, *cells])


def _worst(rows: Sequence[Result]) -> str:
    """Return a sentence on the rank of diverged runs, or "" if none diverged."""
    lost = any(row.lost.any() or row.defaults_lost.any() for row in rows)
    return "; a diverged run ranks below all others" if lost else ""


def _shown(scores: np.ndarray, lost: np.ndarray) -> str:
    missing = int(np.isnan(scores).sum())
    if missing:
        return f"{missing} of {len(scores)} seeds have no score"
    return format_estimate(tuned.estimate(scores, int(lost.sum())))


def spread(tried: pd.DataFrame) -> list[list[str]]:
    """Return a header, and a row with the trials and score quantiles of every method."""
    header = ["", "trials", "different", "failed", *_QUANTILES]
    cells = []
    for (env, label), own in tried.groupby(["env", "replay"], sort=False):
        scores = own["score"].dropna()
        places = [
            number(float(scores.quantile(q))) if len(scores) else "-" for q in _QUANTILES.values()
        ]
        counts = [len(own), own["point"].nunique(), int(own["score"].isna().sum())]
        cells.append([f"{env} {label}", *map(str, counts), *places])
    return [header, *cells]


def budget(asked: Mapping[str, Any]) -> str:
    """Return a sentence on the budget of the search."""
    how = "at random" if asked["search"] == "random" else f"by {asked['search']}"
    about = f"{asked['trials']} trials of each method {how}, with seeds "
    seeds = asked["seeds"]
    return about + (f"{seeds[0]} to {seeds[-1]}." if len(seeds) > 1 else f"{seeds[0]}.")


def _tried(tried: pd.DataFrame, asked: Any) -> str:
    (_, *header), *cells = spread(tried)
    table = markdown([["trials, on the seeds used for selection", *header], *cells])
    return f"{table}\nBudget: {budget(asked)}\n" if cells else ""


def _failed(tried: pd.DataFrame) -> str:
    lost = tried[tried["failed"] != ""].drop_duplicates("point")
    lines = [f"- {row.point}: {row.failed}" for row in lost.head(_MOST_NAMED).itertuples()]
    more = len(lost) - _MOST_NAMED
    rest = [f"- and {more} more, in study.json"] if more > 0 else []
    return "\n".join(["Failed:", "", *lines, *rest, "", ""]) if lines else ""
