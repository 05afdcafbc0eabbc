"""Sections of a sweep's page: methods at their best and by default, on each task and over tasks."""

from collections.abc import Callable, Mapping

import numpy as np

from experiments.analysis import aggregates, tuned
from experiments.analysis.bootstrap import stratified_interval
from experiments.analysis.paired import probability_of_improvement
from experiments.analysis.tuned import Estimate
from experiments.pages import plots
from experiments.pages.blocks import Plot, Plots, Section, Table
from experiments.pages.swept import Swept
from experiments.studies.report import shown

_BEST, _DEFAULT = "at its best", "by default"
_WHITE = {"color": "#ffffff"}
Scores = Mapping[str, np.ndarray]  # [seeds, tasks] by label

_CHOSEN = (
    "The best of many points on the seeds that it was chosen on is partly luck: it is chosen on "
    "every other seed and shown on the rest"
)
_NO_CHOICE = "Every method has one point: there is nothing to choose, and it is shown on all seeds"


def best(swept: Swept) -> Section | None:
    """Return every method's best point on every task, on seeds that had no say in choosing it."""
    if not swept.rows:
        return None
    header = [
        "method", "best settings", "of points", "on the seeds that chose", "on the others",
        "by default, on the others",
    ]  # fmt: skip
    several = len(swept.envs) > 1
    cells = []
    for row in swept.rows:
        name = f"{row.env} {row.label}" if several else row.label
        chosen = swept.point_settings(row.best)
        scores = [shown(each) for each in (row.chosen, row.shown, row.default)]
        cells.append([name, chosen, str(row.points), *scores])
    blocks = [Table([header, *cells]), drawn(swept)]
    metric = swept.metric
    better = "higher" if metric.higher_is_better else "lower"
    seeds = sorted({row.shown.seeds for row in swept.rows})
    intro = (
        f"Scores: {metric.name} ({metric.help}; {better} is better), IQM over seeds [95 % "
        f"bootstrap interval]. {_CHOSEN if tuned.has_choice(swept.table) else _NO_CHOICE} "
        f"({' to '.join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))} of them), where the "
        "defaults (hollow) are shown, too."
    )
    if swept.table["diverged"].any():
        intro += " To choose, a seed that diverged counts as worse than any that did not."
    if any(row.default is None for row in swept.rows):
        intro += " Without a default, that point is not in the sweep: --defaults true adds it."
    return Section("best", "At their best, and by default", intro, blocks)


def drawn(swept: Swept) -> Plots:
    """Return a plot for each task: a row for each method, filled at its best, hollow by default."""
    return Plots([_of_task(swept, env) for env in swept.envs], plots.legend(swept.styles))


def tasks(swept: Swept) -> Section | None:
    """Return the probability that methods improve on the first, and of several tasks the mean."""
    if len(swept.methods) < 2:
        return None
    scores = {_BEST: _scores(swept, _best_of), _DEFAULT: _scores(swept, _default_of)}
    first = next(iter(swept.methods))
    scores = {kind: own for kind, own in scores.items() if first in own and len(own) > 1}
    if not scores:
        return None
    header, cells = ["method", "", f"P(better than {first})"], []
    several = len(swept.envs) > 1
    figures = [_improvement(swept, scores, first)]
    if several:
        header.append("scaled score")
        figures.append(_aggregated(swept, scores))
    for kind, own in scores.items():
        scaled = _scaled(swept, scores)[kind] if several else {}
        for label, values in own.items():
            odds = "-" if label == first else shown(_odds(values, own[first], swept))
            row = [label, kind, odds]
            cells.append([*row, shown(_iqm(scaled[label]))] if several else row)
    intro = (
        f"How probable it is that a seed of a method has a better score than one of {first}, ties "
        "half, methods at their best beside its best and by default (hollow) beside its default, "
        "on the seeds that chose nothing, with 95 % bootstrap intervals"
    )
    if several:
        intro += (
            ", stratified over tasks. Scaled scores are IQMs over all seeds and tasks: on each "
            "task, 0 is the worst and 1 the best score of any seed of what is shown here, so they "
            "mean nothing elsewhere. Methods that are not on every task are left out."
        )
    else:
        intro += "."
    if swept.table["diverged"].any():
        intro += " A seed that diverged is worse than any that did not, and scaled to 0."
    title = "Over all tasks" if several else "Probability of improvement"
    legend = plots.legend(swept.styles)
    blocks = [Table([header, *cells]), Plots(figures, legend)]
    return Section("tasks", title, intro, blocks)


def _of_task(swept: Swept, env: str) -> Plot:
    labels = [label for label in swept.methods if swept.row(env, label) is not None]
    rows = []
    for place, label in enumerate(labels):
        row = swept.row(env, label)
        if row is None:
            continue
        chosen = swept.point_settings(row.best)
        rows.append(_interval(swept, label, place - 0.13, row.shown, chosen))
        if row.default is not None:
            rows.append(_interval(swept, label, place + 0.13, row.default, _DEFAULT, hollow=True))
    metric = swept.study.metric(env)
    ends = [abs(end) for row in swept.rows if row.env == env for end in row.shown[1:3]]
    axis = {"tickformat": plots.ticks(ends)}
    layout = plots.layout(f"{metric.name} ({metric.unit})", "", xaxis=axis, yaxis=_names(labels))
    return plots.plot(env, rows, layout, _height(labels))


def _improvement(swept: Swept, scores: Mapping[str, Scores], first: str) -> Plot:
    labels = [label for label in swept.methods if label != first]
    rows = [
        _interval(
            swept, label, labels.index(label) + (0.13 if kind == _DEFAULT else -0.13),
            _odds(values, own[first], swept), kind, hollow=kind == _DEFAULT, digits=".3f",
        )
        for kind, own in scores.items()
        for label, values in own.items()
        if label != first
    ]  # fmt: skip
    layout = plots.layout(
        f"P(better than {first})", "", xaxis={"range": [-0.03, 1.03]}, yaxis=_names(labels),
        shapes=[plots.threshold(0.5, upright=True)],
    )  # fmt: skip
    return plots.plot("Probability of improvement", rows, layout, _height(labels))


def _aggregated(swept: Swept, scores: Mapping[str, Scores]) -> Plot:
    labels = list(swept.methods)
    rows = [
        _interval(
            swept, label, labels.index(label) + (0.13 if kind == _DEFAULT else -0.13),
            _iqm(values), kind, hollow=kind == _DEFAULT, digits=".3f",
        )
        for kind, own in _scaled(swept, scores).items()
        for label, values in own.items()
    ]  # fmt: skip
    layout = plots.layout("scaled score, IQM", "", yaxis=_names(labels))
    return plots.plot("Scaled scores over all tasks", rows, layout, _height(labels))


def _interval(
    swept: Swept,
    label: str,
    place: float,
    found: Estimate,
    about: str,
    *,
    hollow: bool = False,
    digits: str = ".4~g",
) -> plots.Trace:
    style = swept.styles[label]
    colour = style["color"]
    ends = f"[%{{customdata[0]:{digits}}}, %{{customdata[1]:{digits}}}]"
    return plots.points(
        label, [found.value], [place], style,
        f"%{{x:{digits}}} {ends}, {plots.shown(about)}",
        marker={"size": 10, "line": {"color": colour, "width": 2}} | (_WHITE if hollow else {}),
        customdata=[[found.low, found.high]],
        error_x={
            "type": "data", "symmetric": False, "array": [found.high - found.value],
            "arrayminus": [found.value - found.low], "color": colour, "thickness": 2, "width": 0,
        },
    )  # fmt: skip


def _names(labels: list[str]) -> dict[str, object]:
    return {
        "tickvals": list(range(len(labels))), "ticktext": [plots.shown(each) for each in labels],
        "tickmode": "array", "range": [len(labels) - 0.4, -0.6], "showgrid": False,
    }  # fmt: skip


def _height(labels: list[str]) -> int:
    return max(240, 115 + 44 * len(labels))


def _best_of(swept: Swept, env: str, label: str) -> str | None:
    row = swept.row(env, label)
    return None if row is None else row.best


def _default_of(swept: Swept, env: str, label: str) -> str | None:
    return swept.store.facts["base_points"].get(env, {}).get(label)


def _scores(swept: Swept, point_of: Callable[[Swept, str, str], str | None]) -> Scores:
    """Return scores [seeds, tasks] of the methods that have this point on every task.

    Of the seeds on which best points are shown: those that chose have flattered them. As they are
    compared: infinitely bad where a seed diverged.
    """
    found = {}
    for label in swept.methods:
        columns = []
        for env in swept.envs:
            row, point = swept.row(env, label), point_of(swept, env, label)
            own = swept.table[swept.table["point"] == point].sort_values("seed")
            values = own[own["seed"].isin(swept.unseen(env))]["ranked"].to_numpy(np.float64)
            columns.append(values if row is not None and len(values) == row.shown.seeds else [])
        if all(len(column) for column in columns) and len({len(each) for each in columns}) == 1:
            found[label] = np.stack(columns, axis=-1)
    return found


def _scaled(swept: Swept, scores: Mapping[str, Scores]) -> dict[str, dict[str, np.ndarray]]:
    """Return scores scaled to [0, 1] per task, within all that is shown; 1 is best.

    0 is the worst of those that did not diverge, and any that did.
    """
    sign = 1.0 if swept.metric.higher_is_better else -1.0
    flat = {f"{kind} {label}": sign * x for kind, own in scores.items() for label, x in own.items()}
    together = np.concatenate(list(flat.values()))
    worst = np.where(np.isinf(together), np.inf, together).min(axis=0)
    worst = np.where(np.isinf(worst), 0.0, worst)  # of a task on which all diverged
    scaled = aggregates.min_max({name: np.maximum(x, worst) for name, x in flat.items()})
    return {
        kind: {label: scaled[f"{kind} {label}"] for label in own} for kind, own in scores.items()
    }


def _iqm(scores: np.ndarray) -> Estimate:
    low, high = stratified_interval([scores], aggregates.iqm_of_runs)
    return Estimate(float(aggregates.iqm_of_runs(scores)), float(low), float(high), len(scores))


def _odds(own: np.ndarray, first: np.ndarray, swept: Swept) -> Estimate:
    sign = 1.0 if swept.metric.higher_is_better else -1.0
    arms = [sign * own, sign * first]
    low, high = stratified_interval(arms, probability_of_improvement)
    return Estimate(float(probability_of_improvement(*arms)), float(low), float(high), len(own))
