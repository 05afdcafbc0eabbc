"""Sections of a study: methods at their best and by default, on each task and over tasks."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from experiments.analysis import aggregates, figures, sensitivity, tuned
from experiments.analysis.bootstrap import stratified_interval
from experiments.analysis.figures import Axis, Interval, Panel, Rule
from experiments.analysis.paired import probability_of_improvement
from experiments.analysis.tuned import Estimate
from experiments.pages import plots
from experiments.pages.blocks import Plots, Section, Table
from experiments.pages.swept import Swept
from experiments.studies import search_report
from experiments.studies.report import shown

_BEST, _DEFAULT = "at its best", "by default"
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
    blocks = [Table([header, *cells]), _drawn(swept)]
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


def of_search(swept: Swept) -> Section | None:
    """Return every method's best settings and its defaults; None: no fresh seed has ended."""
    if not swept.rows:
        return None
    header = [
        "method", "best settings", "on the seeds that chose", "on fresh seeds",
        "by default, on fresh seeds", "wins/losses/ties",
    ]  # fmt: skip
    several = len(swept.envs) > 1
    cells = []
    results = search_report.results(swept.store, swept.study)
    for found in results:
        row = swept.row(found.env, found.label)
        cells.append([f"{found.env} {found.label}" if several else found.label])
        if found.best is None or row is None:
            default = "-" if row is None else shown(row.shown)
            cells[-1] += [_why_none(swept, found), "-", "-", default, "-"]
            continue
        complete = not np.isnan(found.defaults).any()
        cells[-1] += [
            swept.point_settings(found.best), shown(row.chosen), shown(row.shown),
            shown(row.default), search_report.compared(found, swept.study) if complete else "-",
        ]  # fmt: skip
    metric = swept.metric
    better = "higher" if metric.higher_is_better else "lower"
    asked = swept.store.facts["search"]["asked"]
    fresh = len(asked["fresh_seeds"])
    intro = (
        f"Scores: {metric.name} ({metric.help}; {better} is better), IQM over seeds [95 % "
        "bootstrap interval]. The best of many settings on the seeds that chose it is partly luck. "
        f"So it runs again on {fresh} fresh seed{'s' * (fresh > 1)}, beside the defaults (hollow); "
        "on how many of these it beats them, loses and ties stands at the end."
    )
    blocks = [Table([header, *cells]), _drawn(swept)]
    if any(each.lost.any() or each.defaults_lost.any() for each in results):
        intro += " A seed that diverged is worse than any that did not."
    return Section("best", "At their best, and by default", intro, blocks)


def _drawn(swept: Swept) -> Plots:
    """Return a plot for each task: a row for each method, filled at its best, hollow by default."""
    rows = {env: [row for row in swept.rows if row.env == env] for env in swept.envs}
    panels = [
        sensitivity.best_panel(own, swept.styles, swept.study.metric(env), swept.point_settings)
        for env, own in rows.items()
        if own
    ]
    return plots.block(panels, styles=swept.styles)


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
    odds = {
        kind: {k: _odds(x, own[first], swept) for k, x in own.items() if k != first}
        for kind, own in scores.items()
    }
    x, half = Axis(f"P(better than {first})", limits=(-0.03, 1.03)), [Rule(0.5, upright=True)]
    panels = [_rows(swept, odds, x, "Probability of improvement", half)]
    means: dict[str, dict[str, Estimate]] = {}
    if several:
        header.append("scaled score")
        scaled = _scaled(swept, scores)
        means = {kind: {k: _iqm(x) for k, x in own.items()} for kind, own in scaled.items()}
        title = "Scaled scores over all tasks"
        panels.append(_rows(swept, means, Axis("scaled score, IQM"), title))
    for kind, own in scores.items():
        for label in own:
            row = [label, kind, shown(odds[kind].get(label))]
            cells.append([*row, shown(means[kind][label])] if several else row)
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
    blocks = [Table([header, *cells]), plots.block(panels, styles=swept.styles)]
    return Section("tasks", title, intro, blocks)


def _rows(
    swept: Swept,
    found: Mapping[str, Mapping[str, Estimate]],
    x: Axis,
    title: str,
    rules: Sequence[Rule] = (),
) -> Panel:
    """Return a panel of estimates: a row for each method, filled at its best, hollow by default."""
    every = {label for own in found.values() for label in own}
    labels = [label for label in swept.methods if label in every]
    marks = [
        Interval(
            label, labels.index(label) + (0.13 if kind == _DEFAULT else -0.13), *each[:3],
            swept.styles[label], hollow=kind == _DEFAULT, text=kind,
        )
        for kind, own in found.items()
        for label, each in own.items()
    ]  # fmt: skip
    height = max(240, 115 + 44 * len(labels))
    return Panel(title, x, figures.rows(labels), marks, rules, height=height)


def _why_none(swept: Swept, found: search_report.Result) -> str:
    """Return why a method has no best settings to show."""
    if found.best is not None:
        return "not all fresh seeds have ended"
    tried = swept.tried
    own = tried[(tried["env"] == found.env) & (tried["replay"] == found.label)]
    return "none to choose" if own.empty else "every trial failed"


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
