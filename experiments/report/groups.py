"""Arms in common plots: all of them, or those with the same number of agent steps per update."""

from typing import Any, NamedTuple

import pandas as pd

from experiments.figures.elements import Style
from experiments.figures.judged import Judged
from experiments.figures.style import styles_of
from experiments.report import judgements
from experiments.report.source import Source
from experiments.report.swept import Swept
from experiments.statistics import statistics
from experiments.storage import files


class Group(NamedTuple):
    """Arms that share plots, by their short labels, the baseline first."""

    title: str  # their common settings; "" for a single group
    methods: dict[str, str]  # the replay method behind each label
    threshold: float | None  # the return that counts as solved
    frames: dict[str, pd.DataFrame]  # metrics, as far as they exist
    summaries: dict[str, dict[str, Any]]
    timing: dict[str, pd.DataFrame]
    rows: tuple[Judged, ...]  # conclusions about them, with short labels

    @property
    def styles(self) -> dict[str, Style]:
        """The style of every label."""
        return dict(styles_of(self.methods))


def groups(source: Source) -> list[Group]:
    """Return the groups of a source's arms, one for each number of agent steps per update."""
    cadences = {label: _cadence(arm.config) for label, arm in source.arms.items()}
    several = len(set(cadences.values())) > 1 and all(
        label.endswith(f"_every{every}") for label, every in cadences.items()
    )
    if not several:
        return [_group("", source, {label: label for label in source.arms})]
    found = []
    for every in dict.fromkeys(cadences.values()):
        own = [label for label, each in cadences.items() if each == every]
        short = {label: label.removesuffix(f"_every{every}") for label in own}
        found.append(_group(f"learn_every {every}", source, short))
    return found


def of_study(swept: Swept) -> list[Group]:
    """Return the methods of a study with their default settings, a group for each task."""
    frames, found = swept.store.frames(), []
    for env, points in swept.store.facts["base_points"].items():
        own = {label: frames[point] for label, point in points.items() if point in frames}
        methods = {label: swept.methods.get(label, label) for label in own}
        if own:
            title = f"{env}: default settings" if len(swept.envs) > 1 else "Default settings"
            goal = swept.study.options.threshold_of(env)
            found.append(Group(title, methods, goal, own, {}, {}, ()))
    return found


def judged(swept: Swept) -> list[Group]:
    """Return the compared arms of a study with their verdicts, a group for each baseline.

    Raises:
      ValueError: one line: the file of verdicts is damaged.
    """
    path = swept.store.folder / "verdicts.json"
    found: dict[str, list[Judged]] = {}
    for row in judgements.of(path, files.read_json(path)).rows if path.is_file() else ():
        found.setdefault(row.group, []).append(row)
    return [
        Group(
            title, {row.label: _method(swept, row) for row in rows}, None, {}, {}, {}, tuple(rows)
        )
        for title, rows in found.items()
    ]


def _method(swept: Swept, row: Judged) -> str:
    label = row.method.partition(" ")[0]  # settings follow
    return swept.methods.get(label, label)


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


def _cadence(config: dict[str, Any]) -> Any:
    return config.get("loop", {}).get("learn_every")


def _group(title: str, source: Source, short: dict[str, str]) -> Group:
    rows = source.judgements.rows if source.judgements else []
    own = [row for row in rows if row.label in short]
    if own:
        base = own[0].judgement.baseline
        short = {label: short[label] for label in dict.fromkeys([base, *short])}
        title = own[0].group if title else ""
    arms = {name: source.arms[label] for label, name in short.items()}
    summaries = last(source)
    return Group(
        title,
        {name: arm.replay for name, arm in arms.items()},
        _threshold(source),
        {name: arm.frame for name, arm in arms.items() if arm.frame is not None},
        {name: summaries[label] for label, name in short.items() if label in summaries},
        {name: arm.timing for name, arm in arms.items() if arm.timing is not None},
        tuple(row._replace(label=short[row.label]) for row in own),
    )
