"""Sections of pages on returns and metrics during training, for runs and studies alike."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from experiments.figures import page
from experiments.figures.curves import curve_panels, seeds_of, statistic
from experiments.figures.drawing import Panel
from experiments.figures.page import NARROW, WIDE, Section
from experiments.figures.panels import (
    QUANTILES,
    STORED,
    metric_panels,
    priority_panels,
    replayed_panels,
)
from experiments.figures.style import FAINT, Styles, styles_of
from experiments.statistics.verdicts import Verdict


class ArmGroup(NamedTuple):
    """Arms that share figures, by their short labels; the baseline comes first."""

    title: str  # task and common settings; "" for a single group
    env: str
    methods: dict[str, str]  # replay method of each label
    frames: dict[str, pd.DataFrame]  # metrics by label
    threshold: float | None  # return that counts as solved
    rows: Sequence[Verdict] = ()  # arms with their verdicts
    values: Mapping[str, pd.Series] = {}  # [seeds] of the primary metric by label

    @property
    def styles(self) -> Styles:
        """Style of each label."""
        return styles_of(self.methods)

    @property
    def steps(self) -> int:
        """Agent steps of the longest run."""
        return max(int(frame["step"].max()) for frame in self.frames.values())


def training(groups: Sequence[ArmGroup]) -> list[Section | None]:
    """Return the sections of learning curves, replayed transitions, priorities and metrics."""
    replayed = (
        "Means over seeds. Solid: of all updates between two log points. Dotted and thin: of the "
        "stored transitions, drawn uniformly at the log point. The dashed line is the gate: an arm "
        "that uses more of the buffer behaved like uniform replay."
    )
    priorities = (
        "Of the stored transitions, means over seeds: the band is the middle four fifths, the "
        "line the median, dashes the mean, dots the largest."
    )
    means, quantiles = "Means over seeds.", [f"replay/{name}" for name in QUANTILES]
    stored = {"stored": {"color": FAINT, **STORED}}
    return [
        _curves(groups),
        _drawn(
            groups, lambda group: replayed_panels(group.frames, group.styles), "replayed",
            "Replayed and stored transitions", replayed, stored,
        ),
        _drawn(
            groups, lambda group: priority_panels(group.frames, group.styles), "priorities",
            "Priorities", priorities,
        ),
        _drawn(
            groups, lambda own: metric_panels(own.frames, own.methods, ("replay/",), quantiles),
            "method", "Metrics of the replay methods",
            f"{means} A dashed line is the gate of learned samplers.",
        ),
        _drawn(
            groups, lambda group: metric_panels(group.frames, group.methods, ("agent/",)), "agent",
            "Metrics of the agent", means,
        ),
    ]  # fmt: skip


def _curves(groups: Sequence[ArmGroup]) -> Section | None:
    """Return the section of learning curves; many arms are also compared with the first one."""
    blocks, seeds = [], set()
    for group in groups:
        frames = {k: v for k, v in group.frames.items() if v["eval_return"].notna().any()}
        if frames:
            seeds |= set(seeds_of(frames))
            together, *pairs = curve_panels(frames, group.styles, group.threshold)
            blocks.append(page.panels([together], group.title, group.styles, WIDE))
            if pairs:
                blocks.append(page.panels(pairs))
    if not blocks:
        return None
    middle = statistic(sorted(seeds))
    intro = f"{middle[:1].upper()}{middle[1:]}, of greedy evaluations at every log point."
    goals = {group.threshold for group in groups}
    if len(goals) == 1 and (goal := goals.pop()) is not None:
        intro += f" The dashed line is the return that counts as solved, {goal:g}."
    return Section("curves", "Learning curves", intro, blocks)


def _drawn(
    groups: Sequence[ArmGroup],
    draw: Callable[[ArmGroup], list[Panel]],
    name: str,
    title: str,
    intro: str,
    more: Styles | None = None,
) -> Section | None:
    """Return a section with a block of panels for each group, or None without any panel."""
    drawn = [(group, draw(group)) for group in groups]
    blocks = [
        page.panels(panels, group.title, {**group.styles, **(more or {})}, NARROW)
        for group, panels in drawn
        if panels
    ]
    return Section(name, title, intro, blocks) if blocks else None
