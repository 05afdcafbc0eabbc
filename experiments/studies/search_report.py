"""What a search shows: the best settings of each method with fresh seeds, and what was tried."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.analysis import searched, sensitivity, tuned
from experiments.analysis.files import write_bytes
from experiments.analysis.tables import markdown, number
from experiments.analysis.tuned import Estimate, Tuned
from experiments.runs.results import alike
from experiments.studies.report import costs, shown
from experiments.studies.search import scored
from experiments.studies.store import Store, paths
from experiments.studies.study import Saved, Study

_MOST_NAMED = 20  # trials that failed
_QUANTILES = {"lowest": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "highest": 1.0}


class Result(NamedTuple):
    """What a search found for one method on one task; scores `[seeds]` are those of fresh seeds."""

    env: str
    label: str
    best: str | None  # a point's id; None: every trial failed, or there was none
    chosen: float | None  # its score on the seeds that chose it
    scores: np.ndarray  # of the best
    defaults: np.ndarray  # of the method by default
    lost: np.ndarray  # whether the best diverged
    defaults_lost: np.ndarray  # and the method by default


def trials(store: Store) -> pd.DataFrame:
    """Return a row for each trial of a search.

    Columns: env, replay, method, trial (its number), point, score (NaN where it failed), failed
    (why, or empty), and the settings.
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
                **{name: _plain(value) for name, value in point["settings"].items()},
            })  # fmt: skip
    head = ["env", "replay", "method", "trial", "point", "score", "failed"]
    return pd.DataFrame(rows, columns=[*head, *store.settings])


def rescore(store: Store, study: Study | Saved) -> list[str]:
    """Put the scores that the table gives in place of saved ones; return lines about others.

    A trial that failed stays so, and one whose runs are not all in the table keeps its score.
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
            score, why = scored(own, metric)
            if not alike(score, trial["score"]):
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


def best_of(trials: Sequence[Mapping[str, Any]], higher_is_better: bool) -> str | None:
    """Return the point with the best score, the first of these; None: all failed."""
    sign = 1 if higher_is_better else -1
    known = [trial for trial in trials if trial["score"] is not None]
    best = max(known, key=lambda trial: sign * trial["score"], default=None)
    return best and best["point"]


def results(store: Store, study: Study | Saved) -> list[Result]:
    """Return what was found for every method on every task, by the scores of fresh seeds.

    Scores are NaN for seeds that have not ended.
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


def tuned_rows(store: Store, study: Study | Saved) -> list[Tuned]:
    """Return methods at their best and by default, as far as all fresh seeds have ended."""
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


def _chosen(store: Store, study: Study | Saved, point: str, seeds: Sequence[int]) -> Estimate:
    """Return the score of a point on the seeds that chose it."""
    table = store.table
    own = table[(table["point"] == point) & table["seed"].isin(seeds)]
    return tuned.estimate(tuned.scores(own, store.settings, study.metric)["score"].to_numpy())


def compared(row: Result, study: Study | Saved) -> str:
    """Return on how many fresh seeds the best settings beat the defaults, lost and tied.

    A seed that diverged is worse than any that did not.
    """
    higher = study.metric(row.env).higher_is_better
    own = tuned.ranked(row.scores, row.lost, higher)
    other = tuned.ranked(row.defaults, row.defaults_lost, higher)
    wins, losses = (own > other, own < other) if higher else (own < other, own > other)
    counts = [int(each.sum()) for each in (wins, losses, own == other)]
    return "/".join(map(str, counts))


def conclude(store: Store, study: Study | Saved) -> str:
    """Write figures and tables of what a search found; return the text to print."""
    found, tried = results(store, study), trials(store)
    asked = store.facts["search"]["asked"]
    metric = study.metric(found[0].env)
    text = (
        f"{_best(found, study)}\n"
        f"Scores: {metric.name} ({metric.help}), IQM over {len(asked['fresh_seeds'])} fresh seeds "
        f"[95 % interval]: none of them was used to choose. Better on: of these seeds, those on "
        f"which the best settings beat the defaults, lost, tied{_worst(found)}.\n\n"
        f"{_tried(tried, asked)}\n{_failed(tried)}{costs(store)}"
    )
    write_bytes(store.folder / "study.md", text.encode())
    written = [paths(store.folder)[0], store.folder / "study.md"]
    if study.options.figures:
        agents = ", ".join(sorted(set(store.table["agent"])))
        written += _figures(store, tried, study, agents)
    return f"\n{text}\nresults: {' '.join(map(str, written))}"


def _figures(store: Store, tried: pd.DataFrame, study: Study | Saved, agents: str) -> list[Any]:
    written = []
    if tried["score"].notna().any():
        path = store.folder / "trials.png"
        searched.trials(tried, study.metric, path, agents)
        written.append(path)
        path = store.folder / "settings.png"
        searched.settings(tried, store.settings, linear(store), study.metric, path, agents)
        written.append(path)
    methods = dict(zip(store.table["replay"], store.table["method"], strict=True))
    path = store.folder / "best.png"
    seeds = len(store.facts["search"]["asked"]["fresh_seeds"])
    sensitivity.best(tuned_rows(store, study), methods, study.metric, path, agents, seeds)
    return [*written, path]


def linear(store: Store) -> set[str]:
    """Return the settings that are chosen from a range with a linear scale."""
    spaces = store.facts["search"]["asked"]["space"]
    texts = [item for labels in spaces.values() for own in labels.values() for item in own.items()]
    return {name for name, text in texts if ":" in text and not text.endswith(":log")}


def _studies(store: Store) -> list[tuple[str, str, Any]]:
    studies = store.facts["search"].get("studies", {})  # none before the first trials have ended
    return [(env, label, own) for env, labels in studies.items() for label, own in labels.items()]


def _best(rows: Sequence[Result], study: Study | Saved) -> str:
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
    """Return the rule for fresh seeds that diverged; "": none did."""
    lost = any(row.lost.any() or row.defaults_lost.any() for row in rows)
    return "; one that diverged is worse than any that did not" if lost else ""


def _shown(scores: np.ndarray, lost: np.ndarray) -> str:
    missing = int(np.isnan(scores).sum())
    if missing:
        return f"{missing} of {len(scores)} seeds have no score"
    return shown(tuned.estimate(scores, int(lost.sum())))


def spread(tried: pd.DataFrame) -> list[list[str]]:
    """Return a header, and for every method its trials and how their scores are spread."""
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
    """Return in a sentence how much was to be tried."""
    how = "at random" if asked["search"] == "random" else f"by {asked['search']}"
    about = f"{asked['trials']} trials of each method {how}, with seeds "
    seeds = asked["seeds"]
    return about + (f"{seeds[0]} to {seeds[-1]}." if len(seeds) > 1 else f"{seeds[0]}.")


def _tried(tried: pd.DataFrame, asked: Any) -> str:
    (_, *header), *cells = spread(tried)
    table = markdown([["tried, on the seeds that choose", *header], *cells])
    return f"{table}\nBudget: {budget(asked)}\n" if cells else ""


def _failed(tried: pd.DataFrame) -> str:
    lost = tried[tried["failed"] != ""].drop_duplicates("point")
    lines = [f"- {row.point}: {row.failed}" for row in lost.head(_MOST_NAMED).itertuples()]
    more = len(lost) - _MOST_NAMED
    rest = [f"- and {more} more, in study.json"] if more > 0 else []
    return "\n".join(["Failed:", "", *lines, *rest, "", ""]) if lines else ""


def _plain(value: Any) -> Any:
    """Return a setting as a table of settings has it."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value).lower()
