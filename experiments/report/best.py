"""Sections of a study: best and default settings of methods, and scores against settings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from experiments.figures import elements, searched, sensitivity
from experiments.figures.elements import Axis, Figure, Interval, Panel, Rule
from experiments.report import plots
from experiments.report.blocks import Lines, Plots, Section, Table
from experiments.report.swept import Swept
from experiments.statistics import tuned
from experiments.statistics.bootstrap import stratified_interval
from experiments.statistics.paired import probability_of_improvement
from experiments.statistics.tuned import Estimate
from experiments.studies import search_report
from experiments.studies.report import format_estimate

_BEST, _DEFAULT = "at its best", "by default"
_MOST_NAMED = 20  # largest number of failed trials to list
Scores = Mapping[str, np.ndarray]  # label -> [seeds, tasks]

_CHOSEN = (
    "The best of many points on the seeds that selected it is partly luck: every other seed "
    "selects, and the rest are shown"
)
_NO_CHOICE = "Every method has a single setting, which is shown on all seeds"


def best(swept: Swept) -> Section | None:
    """Return the section with every method's best point on every task, scored on held-out seeds."""
    if not swept.rows:
        return None
    header = [
        "method", "best settings", "of points", "on the seeds that chose", "on the others",
        "by default, on the others",
    ]  # fmt: skip
    cells = [
        [
            _name(swept, row.env, row.label), swept.point_settings(row.best), str(row.points),
            *map(format_estimate, (row.chosen, row.shown, row.default)),
        ]
        for row in swept.rows
    ]  # fmt: skip
    seeds = sorted({row.shown.seeds for row in swept.rows})
    intro = (
        f"{_scored(swept)} {_CHOSEN if tuned.has_choice(swept.table) else _NO_CHOICE} "
        f"({' to '.join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))} of them), with the "
        "defaults (hollow)."
    )
    if swept.table["diverged"].any():
        intro += " In the selection, a diverged seed ranks below all others."
    if any(row.default is None for row in swept.rows):
        intro += " Points without a default are not in the sweep: --defaults true adds them."
    return _at_their_best(swept, [header, *cells], intro)


def of_search(swept: Swept) -> Section | None:
    """Return the section with best and default settings, or None before fresh seeds have ended."""
    if not swept.rows:
        return None
    header = [
        "method", "best settings", "on the seeds that chose", "on fresh seeds",
        "by default, on fresh seeds", "wins/losses/ties",
    ]  # fmt: skip
    cells = []
    results = search_report.results(swept.store, swept.study)
    for found in results:
        row = swept.row(found.env, found.label)
        cells.append([_name(swept, found.env, found.label)])
        if found.best is None or row is None:
            default = "-" if row is None else format_estimate(row.shown)
            cells[-1] += [_why_none(swept, found), "-", "-", default, "-"]
            continue
        complete = not np.isnan(found.defaults).any()
        cells[-1] += [
            swept.point_settings(found.best),
            *map(format_estimate, (row.chosen, row.shown, row.default)),
            search_report.compared(found, swept.study) if complete else "-",
        ]  # fmt: skip
    fresh = len(swept.store.facts["search"]["asked"]["fresh_seeds"])
    intro = (
        f"{_scored(swept)} The best of many settings on the seeds that selected it is partly luck. "
        f"So it runs again on {fresh} fresh seed{'s' * (fresh > 1)}, with the defaults (hollow); "
        "the last column counts the seeds on which it beats, loses to and ties the defaults."
    )
    if any(each.lost.any() or each.defaults_lost.any() for each in results):
        intro += " A diverged seed ranks below all others."
    return _at_their_best(swept, [header, *cells], intro)


def tasks(swept: Swept) -> Section | None:
    """Return the section with the probability over all tasks that methods improve on the first."""
    if len(swept.methods) < 2:
        return None
    points = swept.store.facts["base_points"]
    best_points = {(row.env, row.label): row.best for row in swept.rows}
    defaults = {(env, label): point for env, own in points.items() for label, point in own.items()}
    scores = {_BEST: _scores(swept, best_points), _DEFAULT: _scores(swept, defaults)}
    first = next(iter(swept.methods))
    scores = {kind: own for kind, own in scores.items() if first in own and len(own) > 1}
    if not scores:
        return None
    odds = {
        kind: {label: _odds(x, own[first], swept) for label, x in own.items() if label != first}
        for kind, own in scores.items()
    }
    title, better = "Probability of improvement", f"P(better than {first})"
    labels = [label for label in swept.methods if any(label in own for own in odds.values())]
    marks = [
        Interval(
            label, labels.index(label) + (0.13 if kind == _DEFAULT else -0.13), *each[:3],
            swept.styles[label], hollow=kind == _DEFAULT, text=kind,
        )
        for kind, own in odds.items()
        for label, each in own.items()
    ]  # fmt: skip
    panel = Panel(
        title, Axis(better, limits=(-0.03, 1.03)), elements.rows(labels), marks,
        [Rule(0.5, upright=True)], height=max(240, 115 + 44 * len(labels)),
    )  # fmt: skip
    cells = [
        [label, kind, format_estimate(found)]
        for kind, own in odds.items()
        for label, found in own.items()
    ]
    several = len(swept.envs) > 1
    intro = (
        f"The probability that a seed of a method has a better score than one of {first}, ties "
        "half: methods at their best against its best, and by default (hollow) against its "
        "default, on the seeds that selected nothing, with 95 % bootstrap intervals"
    )
    if several:
        intro += ", stratified over tasks. Methods that are not on every task are left out"
    intro += "."
    if swept.table["diverged"].any():
        intro += " A diverged seed ranks below all others."
    blocks = [Table([["method", "", better], *cells]), plots.block([panel], styles=swept.styles)]
    return Section("tasks", "Over all tasks" if several else title, intro, blocks)


def against_settings(swept: Swept) -> Section | None:
    """Return the section with scores against every setting with more than one value, by task."""
    drawn = sensitivity.sensitivity(swept.table, swept.store.settings, swept.study.metric, "")
    if drawn is None:
        return None
    intro = (
        f"{swept.metric.name} against each setting, over all seeds: IQM with 95 % bootstrap "
        "intervals. Every choice of the other settings is a line; where these are many, a method "
        "is one line, averaged over them. A level band is a method without the setting. A cross is "
        "a point with diverged seeds: their scores are in it, but select nothing."
    )
    return Section("settings-swept", "Sensitivity to settings", intro, _by_setting(drawn, swept))


def trials(swept: Swept) -> Section | None:
    """Return the section with the score of every trial, the best so far, and score quantiles."""
    if swept.tried is None or swept.tried.empty:
        return None
    header, *cells = search_report.spread(swept.tried)
    several = len(swept.envs) > 1
    rows = [[name if several else name.partition(" ")[2], *rest] for name, *rest in cells]
    blocks: list[Any] = [Table([header, *rows])]
    if not (scored := _scored_trials(swept)).empty:
        drawn = searched.trials(scored, swept.study.metric, "", swept.point_settings)
        blocks.append(plots.block(drawn.panels))
    lost = swept.tried[swept.tried["failed"] != ""].drop_duplicates("point")
    lines = [f"{row.point}: {row.failed}" for row in lost.itertuples()]
    if len(lines) > _MOST_NAMED:
        lines = [*lines[:_MOST_NAMED], f"and {len(lines) - _MOST_NAMED} more, in study.json"]
    if lines:
        blocks.append(Lines([f"Failed: {line}" for line in lines]))
    budget = search_report.budget(swept.store.facts["search"]["asked"])
    intro = (
        f"{budget} A dot is the score of a trial, the IQM over these seeds; the line is the best "
        "so far."
    )
    return Section("trials", "Trials", intro, blocks)


def searched_settings(swept: Swept) -> Section | None:
    """Return the section with the score of every trial against each setting, by task."""
    if swept.tried is None:
        return None
    drawn = searched.settings(
        _scored_trials(swept), swept.settings, search_report.linear(swept.store),
        swept.study.metric, "", swept.point_settings,
    )  # fmt: skip
    if not any(drawn.panels):
        return None
    intro = (
        "Every trial's score against each of its settings, on the seeds that select; each "
        "method's best is ringed. All settings vary at once, so that one of them explains only a "
        "part of the spread."
    )
    return Section("settings-swept", "Scores against settings", intro, _by_setting(drawn, swept))


def _name(swept: Swept, env: str, label: str) -> str:
    return f"{env} {label}" if len(swept.envs) > 1 else label


def _scored(swept: Swept) -> str:
    metric = swept.metric
    better = "higher" if metric.higher_is_better else "lower"
    about = f"{metric.name} ({metric.help}; {better} is better)"
    return f"Scores: {about}, IQM over seeds [95 % bootstrap interval]."


def _at_their_best(swept: Swept, cells: list[list[str]], intro: str) -> Section:
    """Return a section with a table, and plots of best (filled) and default (hollow) settings."""
    metric, described = swept.study.metric, swept.point_settings
    figure = sensitivity.best(swept.rows, swept.methods, metric, "", 0, described)
    drawn = plots.block(figure.panels, styles=swept.styles)
    return Section("best", "At their best, and by default", intro, [Table(cells), drawn])


def _why_none(swept: Swept, found: search_report.Result) -> str:
    """Return the reason why a method has no best settings."""
    if found.best is not None or swept.tried is None:
        return "not all fresh seeds have ended"
    tried = swept.tried
    own = tried[(tried["env"] == found.env) & (tried["replay"] == found.label)]
    return "none to choose" if own.empty else "every trial failed"


def _scores(swept: Swept, points: Mapping[tuple[str, str], str]) -> Scores:
    """Return ranked scores `[seeds, tasks]` of the methods that have these points on every task.

    Scores are those of held-out seeds, and infinitely bad for seeds that diverged.
    """
    found = {}
    for label in swept.methods:
        columns = []
        for env in swept.envs:
            row, point = swept.row(env, label), points.get((env, label))
            own = swept.table[swept.table["point"] == point].sort_values("seed")
            values = own[own["seed"].isin(swept.unseen(env))]["ranked"].to_numpy(np.float64)
            columns.append(values if row is not None and len(values) == row.shown.seeds else [])
        if all(len(column) for column in columns) and len({len(each) for each in columns}) == 1:
            found[label] = np.stack(columns, axis=-1)
    return found


def _odds(own: np.ndarray, first: np.ndarray, swept: Swept) -> Estimate:
    sign = 1.0 if swept.metric.higher_is_better else -1.0
    arms = [sign * own, sign * first]
    low, high = stratified_interval(arms, probability_of_improvement)
    return Estimate(float(probability_of_improvement(*arms)), float(low), float(high), len(own))


def _by_setting(drawn: Figure, swept: Swept) -> list[Plots]:
    """Return the panels of a figure, with a block for each setting if there are several tasks."""
    panels = [panel for panel in drawn.panels if panel is not None]
    if len(swept.envs) == 1:
        return [plots.block([replace(panel, title=panel.x.label) for panel in panels])]
    names = dict.fromkeys(panel.x.label for panel in panels)
    return [plots.block([p for p in panels if p.x.label == name], name) for name in names]


def _scored_trials(swept: Swept) -> pd.DataFrame:
    """Return the trials of the tasks that have any score."""
    assert swept.tried is not None
    envs = swept.tried.loc[swept.tried["score"].notna(), "env"]
    return swept.tried[swept.tried["env"].isin(set(envs))]
