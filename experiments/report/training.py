"""Sections on verdicts, and on returns and metrics during training."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.figures import curves as learning
from experiments.figures import judged, panels
from experiments.figures.elements import Axis, Key, Line, Panel, Points, Style, Styles
from experiments.figures.style import FAINT, styles_of
from experiments.report import plots
from experiments.report.blocks import Lines, Plots, Section, Table
from experiments.report.source import Source
from experiments.statistics import markdown, statistics
from experiments.statistics.gate import FEWEST_UPDATES, UNIFORM_BUFFER
from experiments.statistics.verdicts import Verdict
from experiments.studies.results import Results
from experiments.studies.study import Study

_SPREAD = 0.5  # width of an arm's points, relative to the distance between two arms
_STORED = Key("", {"color": FAINT, "linestyle": ":", "linewidth": 1.0})
Summaries = Mapping[str, Mapping[str, Any]]  # label -> summary of a run


class Group(NamedTuple):
    """Arms that share plots, by their short labels; the baseline comes first."""

    title: str  # common settings; "" for a single group
    methods: dict[str, str]  # replay method of each label
    threshold: float | None  # return that counts as solved
    frames: dict[str, pd.DataFrame]  # metrics by label

    @property
    def styles(self) -> dict[str, Style]:
        """Style of each label."""
        return dict(styles_of(self.methods))


def group_of_runs(source: Source) -> Group:
    """Return all runs as one group."""
    methods = {label: arm.replay for label, arm in source.arms.items()}
    frames = {label: arm.frame for label, arm in source.arms.items()}
    return Group("", methods, source.threshold, frames)


def groups_of_study(results: Results) -> list[Group]:
    """Return the arms of a study, with a group for each baseline.

    For studies without baselines, each task is a group of the methods with default settings.
    """
    frames, found = results.store.frames(), []
    if results.findings is not None and not results.has_choice:
        members = results.findings.members
        for title, names in results.findings.groups.items():
            points = {members[name].method: members[name].point for name in names}
            env = next(iter(points.values())).env
            own = {label: frames[point.id] for label, point in points.items()}
            methods = {label: point.config.replay for label, point in points.items()}
            goal = results.study.options.threshold_of(env)
            found.append(Group(title, methods, goal, own))
        return found
    for env, points in results.store.facts["base_points"].items():
        own = {label: frames[point] for label, point in points.items() if point in frames}
        methods = {label: results.methods.get(label, label) for label in own}
        if own:
            title = f"{env}: default settings" if len(results.envs) > 1 else "Default settings"
            goal = results.study.options.threshold_of(env)
            found.append(Group(title, methods, goal, own))
    return found


def summaries(source: Source) -> dict[str, dict[str, Any]]:
    """Return summaries by label, computed from the metrics so far for unfinished runs."""
    goal, found = source.threshold, {}
    for label, arm in source.arms.items():
        if arm.summary is not None:
            found[label] = arm.summary
        elif not statistics.curves(arm.frame).empty:
            found[label] = statistics.summarise(arm.frame, goal) | {"steps_per_second": None}
    return found


def curves(groups: Sequence[Group]) -> Section | None:
    """Return the section of learning curves; many arms are also compared with the first one."""
    blocks, seeds = [], set()
    for group in groups:
        frames = {k: v for k, v in group.frames.items() if v["eval_return"].notna().any()}
        if not frames:
            continue
        seeds |= set(learning.seeds_of(frames))
        title = "All arms" if len(frames) > 1 else ""
        every = learning.together(frames, group.methods, group.threshold, title)
        drawn = [replace(every, height=420, wide=True)]
        if len(frames) > learning.CROWD:
            first = next(iter(frames))
            drawn += [
                replace(panel, title=f"{panel.title} and {first}")
                for panel in learning.beside_first(frames, group.methods, group.threshold)
            ]
        blocks.append(plots.block(drawn, group.title, group.styles))
    middle = learning.statistic(sorted(seeds)) if seeds else ""
    intro = f"{middle[:1].upper()}{middle[1:]}, of greedy evaluations at every log point."
    goals = {group.threshold for group in groups}
    if len(goals) == 1 and (goal := goals.pop()) is not None:
        intro += f" The dashed line is the return that counts as solved, {goal:g}."
    return _section("curves", "Learning curves", intro, blocks)


def scores(styles: Styles, rows: Summaries, unfinished: bool = False) -> Section | None:
    """Return the section with every arm's last evaluation: seeds, IQM and interval."""
    if not rows:
        return None
    shown = markdown.cells([{**row, "replay": label} for label, row in rows.items()])
    shown[0][0] = "arm"
    drawn = plots.block([_last(rows, styles)], "", styles)
    intro = "The last greedy evaluation of every seed."
    if unfinished:
        intro += " For unfinished arms, the last so far."
    return Section("scores", "Final scores", intro, [Table(shown), drawn, _of_every_seed(rows)])


def verdicts(results: Results) -> Section | None:
    """Return the section with the verdicts of a study, or None if nothing was compared."""
    found, metric, study = results.findings, results.metric, results.study
    if found is None or not (found.rows or found.claims):
        return None
    assert isinstance(study, Study)  # only a validated study has findings
    if found.claims:
        shown = Table(judged.claim_cells(found.claims))
        reasons = [f"{row['claim']}: {row['reason']}" for row in found.claims]
        what = "The claims of the study compare two arms, seed by seed."
    else:
        shown = Table(judged.cells(found.rows, metric.unit))
        reasons = [f"{row.label}: {row.reason}" for row in found.rows]
        what = (
            f"Every arm is compared with {study.baseline}, seed by seed; positive differences are "
            "better for the arm."
        )
    blocks = [shown, Lines(reasons)]
    intro = (
        f"Primary metric, fixed before anything ran: {metric.name} ({metric.help}). {what} A "
        f"prioritised arm is tested if it used at most {UNIFORM_BUFFER:g} of the buffer (this does "
        "not apply to batches of differently drawn parts), and a learned sampler if its network "
        f"was updated {FEWEST_UPDATES} times."
    )
    return Section("verdicts", "Verdicts", intro, blocks)


def comparison(results: Results) -> Section | None:
    """Return the section with probabilities of improvement, and the differences of all seeds.

    Each baseline has a block.
    """
    found = results.findings
    if found is None or not (found.rows or found.claimed):
        return None
    groups: dict[str, list[Verdict]] = {}
    for row in found.rows or found.claimed:
        groups.setdefault(row.group, []).append(row)
    points = [member.point for member in found.members.values()]
    replays = {point.name: point.config.replay for point in points}
    methods = {row["claim"]: replays.get(row["arm"], row["arm"]) for row in found.claims}
    methods |= {name: own.point.config.replay for name, own in found.members.items()}
    blocks = []
    for title, own in groups.items():
        styles = styles_of({row.method: methods[row.label] for row in own})
        rows = [dataclasses.replace(row, label=row.method) for row in own]
        base = "the other arm" if found.claimed else own[0].claim.baseline
        better, by = f"{own[0].quantity}, against {base}", f"better than {base} by"
        drawn = [
            judged.improvement(rows, styles, better, "Wins, seed by seed"),
            judged.differences(rows, styles, by, "Differences, seed by seed"),
        ]
        blocks.append(plots.block(drawn, title, styles))
    intro = "Positive differences are better for the arm; hollow arms were not tested."
    return _section("compared", "Arms and baseline", intro, blocks)


def metrics(groups: Sequence[Group]) -> list[Section | None]:
    """Return the sections on replayed transitions, priorities, and metrics of method and agent."""
    inspected = (
        "Means over seeds. Solid: of all updates between two log points. Dotted and thin: of the "
        "stored transitions, drawn uniformly at the log point. The dashed line is the gate: an arm "
        "that uses more of the buffer behaved like uniform replay."
    )
    quantiles = (
        "Of the stored transitions, means over seeds: the band is the middle four fifths, the "
        "line the median, dashes the mean, dots the largest."
    )
    means = "Means over seeds. A dashed line is the gate of learned samplers."
    priorities = [f"replay/{name}" for name in panels.QUANTILES]
    return [
        _drawn(
            groups, lambda own: panels.replayed_panels(own.frames, own.methods), "replayed",
            "Replayed and stored transitions", inspected, [_STORED],
        ),
        _drawn(
            groups, lambda own: panels.priority_panels(own.frames, own.methods), "priorities",
            "Priorities", quantiles,
        ),
        _drawn(
            groups,
            lambda own: panels.metric_panels(own.frames, own.methods, ("replay/",), priorities),
            "method", "Metrics of the replay methods", means,
        ),
        _drawn(
            groups, lambda own: panels.metric_panels(own.frames, own.methods, ("agent/",)),
            "agent", "Metrics of the agent", "Means over seeds.",
        ),
    ]  # fmt: skip


def _drawn(
    groups: Sequence[Group],
    draw: Callable[[Group], list[Panel]],
    name: str,
    title: str,
    intro: str,
    more: Sequence[Key] = (),
) -> Section | None:
    found = [(group, draw(group)) for group in groups]
    blocks = [plots.block(own, group.title, group.styles, more) for group, own in found if own]
    return _section(name, title, intro, blocks)


def _section(name: str, title: str, intro: str, blocks: Sequence[Plots]) -> Section | None:
    return Section(name, title, intro, blocks) if blocks else None


def _last(rows: Summaries, styles: Styles) -> Panel:
    """Return a panel with the last evaluation of every seed, by arm."""
    marks: list[Points | Line] = []
    for place, (label, row) in enumerate(rows.items()):
        style, returns = styles[label], row["final_return"]
        middle = (len(returns) - 1) / 2
        x = [place + _SPREAD * (at - middle) / max(len(returns), 2) for at in range(len(returns))]
        y = [np.nan if value is None else value for value in returns]
        texts = [f"seed {seed}: {value:.4g}" for seed, value in zip(row["seeds"], y, strict=True)]
        marks.append(Points(label, x, y, style, texts))
        if row["final_iqm"] is not None and None not in row["final_interval"]:
            low, high = (np.array([end]) for end in row["final_interval"])
            own = {"bars": True, "texts": ["IQM"]}
            marks.append(Line(label, [place], [row["final_iqm"]], style, low, high, **own))
    names = tuple(enumerate(rows))
    x = Axis("arm", limits=(-0.6, len(names) - 0.4), ticks=names)
    wide = len(names) > 2
    title = "Last evaluation of every seed"
    return Panel(title, x, Axis("return (greedy evaluation)"), marks, height=340, wide=wide)


def _of_every_seed(rows: Summaries) -> Table:
    seeds = sorted({int(seed) for row in rows.values() for seed in row["seeds"]})
    own = [dict(zip(row["seeds"], row["final_return"], strict=True)) for row in rows.values()]
    cells = [["seed", *rows]]
    cells += [[str(seed), *(markdown.number(each.get(seed)) for each in own)] for seed in seeds]
    return Table(cells, "Every seed in numbers", folded=True)
