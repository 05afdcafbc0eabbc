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
from experiments.statistics import tuned
from experiments.statistics.bootstrap import stratified_interval
from experiments.statistics.markdown import span
from experiments.statistics.paired import probability_of_improvement
from experiments.statistics.tuned import Estimate
from experiments.studies import search_report
from experiments.studies.report import format_estimate
from experiments.studies.results import Results

_BEST, _DEFAULT = "at its best", "by default"
Scores = Mapping[str, np.ndarray]  # label -> [seeds, tasks]

_CHOSEN = (
    "The best of many points on the seeds that selected it is partly luck: every other seed "
    "selects, and the rest are shown"
)
_NO_CHOICE = "Every method has a single setting, which is shown on all seeds"


def best(results: Results) -> Section | None:
    """Return the section with every method's best and default settings, on held-out seeds.

    The result is None before these seeds have ended.
    """
    if not results.best:
        return None
    return _of_grid(results) if results.trials is None else _of_search(results)


def _of_grid(results: Results) -> Section:
    header = [
        "method", "best settings", "of points", "on the seeds that chose", "on the others",
        "by default, on the others",
    ]  # fmt: skip
    cells = [
        [
            _name(results, row.env, row.label), results.point_settings(row.best), str(row.points),
            *map(format_estimate, (row.chosen, row.shown, row.default)),
        ]
        for row in results.best
    ]  # fmt: skip
    seeds = span([row.shown.seeds for row in results.best])
    intro = (
        f"{_scored(results)} {_CHOSEN if tuned.has_choice(results.runs) else _NO_CHOICE} "
        f"({seeds} of them), with the "
        "defaults (hollow)."
    )
    if results.runs["diverged"].any():
        intro += " In the selection, a diverged seed ranks below all others."
    if any(row.default is None for row in results.best):
        intro += " Points without a default are not in the sweep: --defaults true adds them."
    return _at_their_best(results, [header, *cells], intro)


def _of_search(results: Results) -> Section:
    header = [
        "method", "best settings", "on the seeds that chose", "on fresh seeds",
        "by default, on fresh seeds", "wins/losses/ties",
    ]  # fmt: skip
    cells = []
    for env, labels in results.store.facts["base_points"].items():
        for label in labels:
            row, name = results.best_of(env, label), _name(results, env, label)
            if row is None:
                cells.append([name, "not all fresh seeds have ended", *["-"] * 4])
            elif not results.has_best(row):
                why = "every trial failed" if row.points else "none to choose"
                cells.append([name, why, "-", "-", format_estimate(row.shown), "-"])
            else:
                cells.append([
                    name, results.point_settings(row.best),
                    *map(format_estimate, (row.chosen, row.shown, row.default)),
                    "-" if row.default is None else results.against_default(row),
                ])  # fmt: skip
    fresh = results.asked["fresh_seeds"]
    intro = (
        f"{_scored(results)} The best of many settings on the seeds that selected it is partly "
        f"luck. So it runs again on {len(fresh)} fresh seed{'s' * (len(fresh) > 1)}, with the "
        "defaults (hollow); the last column counts the seeds on which it beats, loses to and ties "
        "the defaults."
    )
    if results.runs.loc[results.runs["seed"].isin(fresh), "diverged"].any():
        intro += " A diverged seed ranks below all others."
    return _at_their_best(results, [header, *cells], intro)


def tasks(results: Results) -> Section | None:
    """Return the section with the probability over all tasks that methods improve on the first."""
    if len(results.methods) < 2:
        return None
    points = results.store.facts["base_points"]
    best_points = {(row.env, row.label): row.best for row in results.best}
    defaults = {(env, label): point for env, own in points.items() for label, point in own.items()}
    scores = {_BEST: _scores(results, best_points), _DEFAULT: _scores(results, defaults)}
    first = next(iter(results.methods))
    scores = {kind: own for kind, own in scores.items() if first in own and len(own) > 1}
    if not scores:
        return None
    odds = {
        kind: {label: _odds(x, own[first], results) for label, x in own.items() if label != first}
        for kind, own in scores.items()
    }
    title, better = "Probability of improvement", f"P(better than {first})"
    labels = [label for label in results.methods if any(label in own for own in odds.values())]
    marks = [
        Interval(
            label, labels.index(label) + (0.13 if kind == _DEFAULT else -0.13), *each[:3],
            results.styles[label], hollow=kind == _DEFAULT, text=kind,
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
    several = len(results.envs) > 1
    intro = (
        f"The probability that a seed of a method has a better score than one of {first}, ties "
        "half: methods at their best against its best, and by default (hollow) against its "
        "default, on the seeds that selected nothing, with 95 % bootstrap intervals"
    )
    if several:
        intro += ", stratified over tasks. Methods that are not on every task are left out"
    intro += "."
    if results.runs["diverged"].any():
        intro += " A diverged seed ranks below all others."
    blocks = [Table([["method", "", better], *cells]), plots.block([panel], styles=results.styles)]
    return Section("tasks", "Over all tasks" if several else title, intro, blocks)


def against_settings(results: Results) -> Section | None:
    """Return the section with scores against every setting with more than one value, by task."""
    drawn = sensitivity.sensitivity(results.runs, results.store.settings, results.study.metric, "")
    if drawn is None:
        return None
    intro = (
        f"{results.metric.name} against each setting, over all seeds: IQM with 95 % bootstrap "
        "intervals. Every choice of the other settings is a line; where these are many, a method "
        "is one line, averaged over them. A level band is a method without the setting. A cross is "
        "a point with diverged seeds: their scores are in it, but select nothing."
    )
    return Section("settings-swept", "Sensitivity to settings", intro, _by_setting(drawn, results))


def trials(results: Results) -> Section | None:
    """Return the section with the score of every trial, the best so far, and score quantiles."""
    if results.trials is None or results.trials.empty:
        return None
    header, *cells = search_report.spread(results.trials)
    several = len(results.envs) > 1
    rows = [[name if several else name.partition(" ")[2], *rest] for name, *rest in cells]
    blocks: list[Any] = [Table([header, *rows])]
    if not (scored := _scored_trials(results)).empty:
        drawn = searched.trials(scored, results.study.metric, "", results.point_settings)
        blocks.append(plots.block(drawn.panels))
    if lines := search_report.failures(results.trials):
        blocks.append(Lines([f"Failed: {line}" for line in lines]))
    budget = search_report.budget(results.asked)
    intro = (
        f"{budget} A dot is the score of a trial, the IQM over these seeds; the line is the best "
        "so far."
    )
    return Section("trials", "Trials", intro, blocks)


def searched_settings(results: Results) -> Section | None:
    """Return the section with the score of every trial against each setting, by task."""
    if results.trials is None:
        return None
    drawn = searched.settings(
        _scored_trials(results), results.settings, search_report.linear(results.asked),
        results.study.metric, "", results.point_settings,
    )  # fmt: skip
    if not any(drawn.panels):
        return None
    intro = (
        "Every trial's score against each of its settings, on the seeds that select; each "
        "method's best is ringed. All settings vary at once, so that one of them explains only a "
        "part of the spread."
    )
    return Section("settings-swept", "Scores against settings", intro, _by_setting(drawn, results))


def _name(results: Results, env: str, label: str) -> str:
    return f"{env} {label}" if len(results.envs) > 1 else label


def _scored(results: Results) -> str:
    metric = results.metric
    better = "higher" if metric.higher_is_better else "lower"
    about = f"{metric.name} ({metric.help}; {better} is better)"
    return f"Scores: {about}, IQM over seeds [95 % bootstrap interval]."


def _at_their_best(results: Results, cells: list[list[str]], intro: str) -> Section:
    """Return a section with a table, and plots of best (filled) and default (hollow) settings."""
    metric, described = results.study.metric, results.point_settings
    figure = sensitivity.best(results.best, results.methods, metric, "", 0, described)
    drawn = plots.block(figure.panels, styles=results.styles)
    return Section("best", "At their best, and by default", intro, [Table(cells), drawn])


def _scores(results: Results, points: Mapping[tuple[str, str], str]) -> Scores:
    """Return ranked scores `[seeds, tasks]` of the methods that have these points on every task.

    Scores are those of held-out seeds, and infinitely bad for seeds that diverged.
    """
    found = {}
    for label in results.methods:
        columns = []
        for env in results.envs:
            row, point = results.best_of(env, label), points.get((env, label))
            own = results.runs[results.runs["point"] == point].sort_values("seed")
            values = own[own["seed"].isin(results.unseen(env))]["ranked"].to_numpy(np.float64)
            columns.append(values if row is not None and len(values) == row.shown.seeds else [])
        if all(len(column) for column in columns) and len({len(each) for each in columns}) == 1:
            found[label] = np.stack(columns, axis=-1)
    return found


def _odds(own: np.ndarray, first: np.ndarray, results: Results) -> Estimate:
    sign = 1.0 if results.metric.higher_is_better else -1.0
    arms = [sign * own, sign * first]
    low, high = stratified_interval(arms, probability_of_improvement)
    return Estimate(float(probability_of_improvement(*arms)), float(low), float(high), len(own))


def _by_setting(drawn: Figure, results: Results) -> list[Plots]:
    """Return the panels of a figure, with a block for each setting if there are several tasks."""
    panels = [panel for panel in drawn.panels if panel is not None]
    if len(results.envs) == 1:
        return [plots.block([replace(panel, title=panel.x.label) for panel in panels])]
    names = dict.fromkeys(panel.x.label for panel in panels)
    return [plots.block([p for p in panels if p.x.label == name], name) for name in names]


def _scored_trials(results: Results) -> pd.DataFrame:
    """Return the trials of the tasks that have any score."""
    assert results.trials is not None
    envs = results.trials.loc[results.trials["score"].notna(), "env"]
    return results.trials[results.trials["env"].isin(set(envs))]
