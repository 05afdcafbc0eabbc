"""Arms that share plots: runs, or the methods of a task."""

from typing import Any, NamedTuple

import pandas as pd

from experiments.figures.elements import Style
from experiments.figures.style import styles_of
from experiments.report.source import Source
from experiments.report.swept import Swept
from experiments.statistics import statistics


class Group(NamedTuple):
    """Arms that share plots, by their short labels, the baseline first."""

    title: str  # their common settings; "" for a single group
    methods: dict[str, str]  # the replay method behind each label
    threshold: float | None  # the return that counts as solved
    frames: dict[str, pd.DataFrame]  # metrics, as far as they exist

    @property
    def styles(self) -> dict[str, Style]:
        """The style of every label."""
        return dict(styles_of(self.methods))


def of_runs(source: Source) -> Group:
    """Return the group of all runs."""
    methods = {label: arm.replay for label, arm in source.arms.items()}
    frames = {label: arm.frame for label, arm in source.arms.items() if arm.frame is not None}
    return Group("", methods, _threshold(source), frames)


def of_study(swept: Swept) -> list[Group]:
    """Return the arms of a study, a group for each baseline, or for each task without baselines.

    Without baselines, these are the methods with their default settings.
    """
    frames, found = swept.store.frames(), []
    if swept.findings is not None and not swept.has_choice:
        members = swept.findings.members
        for title, names in swept.findings.groups.items():
            points = {members[name].method: members[name].point for name in names}
            env = next(iter(points.values())).env
            own = {label: frames[point.id] for label, point in points.items()}
            methods = {label: point.config.replay for label, point in points.items()}
            goal = swept.study.options.threshold_of(env)
            found.append(Group(title, methods, goal, own))
        return found
    for env, points in swept.store.facts["base_points"].items():
        own = {label: frames[point] for label, point in points.items() if point in frames}
        methods = {label: swept.methods.get(label, label) for label in own}
        if own:
            title = f"{env}: default settings" if len(swept.envs) > 1 else "Default settings"
            goal = swept.study.options.threshold_of(env)
            found.append(Group(title, methods, goal, own))
    return found


def last(source: Source) -> dict[str, dict[str, Any]]:
    """Return the summaries of arms by label; of unfinished ones, from the metrics so far."""
    goal, found = _threshold(source), {}
    for label, arm in source.arms.items():
        if arm.summary is not None:
            found[label] = arm.summary
        elif arm.frame is not None and not statistics.curves(arm.frame).empty:
            found[label] = statistics.summarise(arm.frame, goal) | {"steps_per_second": None}
    return found


def _threshold(source: Source) -> float | None:
    """Return the return that counts as solved, if the finished arms have the same."""
    goals = {arm.summary["threshold"] for arm in source.arms.values() if arm.summary}
    return goals.pop() if len(goals) == 1 else None
