"""The data of a study's page: its table, its facts, and scores computed from them."""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.figures import sensitivity
from experiments.figures.elements import Style
from experiments.figures.style import styles_of
from experiments.runs import manifest
from experiments.statistics import tuned
from experiments.statistics.primary import PrimaryMetric
from experiments.statistics.tuned import Tuned
from experiments.statistics.verdicts import CONTROL
from experiments.studies import grid, judge, search_report, store
from experiments.studies.judge import Findings
from experiments.studies.store import Store
from experiments.studies.study import Saved


class Swept(NamedTuple):
    """A study with the runs that have finished."""

    store: Store
    study: Saved
    table: pd.DataFrame  # from `tuned.scores`
    rows: list[Tuned]
    tried: pd.DataFrame | None = None  # from `search_report.trials`, for a search
    findings: Findings | None = None  # verdicts; None if no arms are compared
    remarks: tuple[str, ...] = ()  # notes on edited files, one per line

    @property
    def code(self) -> str:
        """Versions of the code that produced the results."""
        points = self.store.facts["points"].values()
        return "+".join(dict.fromkeys(code for point in points for code in point["code"]))

    @property
    def envs(self) -> list[str]:
        """Names of the tasks."""
        return list(dict.fromkeys(self.table["env"]))

    @property
    def methods(self) -> dict[str, str]:
        """Replay method of each label, in the order of the sweep."""
        return dict(zip(self.table["replay"], self.table["method"], strict=True))

    @property
    def styles(self) -> dict[str, Style]:
        """Style of each label."""
        return dict(styles_of(self.methods))

    @property
    def metric(self) -> PrimaryMetric:
        """Primary metric on the first task; the thresholds of other tasks may differ."""
        return self.study.metric(self.envs[0])

    @property
    def has_choice(self) -> bool:
        """Whether there are settings to choose from; replay ratios do not count."""
        return self.tried is not None or grid.has_settings(self.study.axes)

    @property
    def settings(self) -> list[str]:
        """Settings with more than one value."""
        return sensitivity.swept(self.table, self.store.settings)

    @property
    def asked(self) -> int:
        """Number of runs of the study, or up to the first look for a sequential study."""
        return sum(point["config"]["seeds"] for point in self.store.facts["points"].values())

    @property
    def seeds(self) -> list[int]:
        """Distinct numbers of seeds of the points so far, sorted."""
        return sorted(set(self.table.groupby("point")["seed"].nunique()))

    def unseen(self, env: str) -> list[int]:
        """Return the held-out seeds that score the best points of a task."""
        if self.tried is not None:
            return self.store.facts["search"]["asked"]["fresh_seeds"]
        seeds = sorted(self.table.loc[self.table["env"] == env, "seed"].unique())
        return tuned.unseen(seeds, tuned.has_choice(self.table))

    def point_settings(self, point: str) -> str:
        """Return the varying settings of a point in words."""
        settings = self.store.facts["points"][point]["settings"]
        own = {name: value for name, value in settings.items() if name in self.settings}
        return ", ".join(f"{name} {_value(value)}" for name, value in own.items()) or "-"

    def row(self, env: str, label: str) -> Tuned | None:
        """Return the result of a method on a task, or None before a point has all seeds."""
        return next((row for row in self.rows if (row.env, row.label) == (env, label)), None)


def read(folder: Path) -> Swept:
    """Read a study's folder.

    Verdicts are computed from the table. They are left out if an arm has a method of another
    package that has not been imported.

    Raises:
      ValueError: a file is damaged, or no run has ended yet.
    """
    found = store.read(folder)
    try:
        study = found.study.validated(folder)
    except ValueError as error:
        shown = of(found, found.study)
        return shown._replace(remarks=(*shown.remarks, f"no verdicts can be computed: {error}"))
    return of(found, study, judge.findings_of(found, study, other_code=True))


def of(found: Store, study: Saved, findings: Findings | None = None) -> Swept:
    """Return the data of a study's page.

    Raises:
      ValueError: no run has ended yet, or the runs lack the metric.
    """
    if found.frame.empty:
        raise ValueError(f"{found.folder} holds no run that has ended: wait for the first")
    frame = found.frame[found.frame["replay"] != CONTROL]
    table = tuned.scores(frame, found.settings, study.metric)
    remarks = manifest.differing(found.folder)
    if any(cost[name] < 0 for cost in found.facts["costs"] for name in ("seconds", "compiling")):
        remarks.append(f"{store.paths(found.folder)[1]} has negative times")
    if "search" in found.facts:
        remarks += search_report.rescore(found, study)
        rows, tried = search_report.tuned_rows(found, study), search_report.trials(found)
        return Swept(found, study, table, rows, tried, None, tuple(remarks))
    rows = tuned.tuning_curve(
        table, lambda env: study.metric(env).higher_is_better, found.facts["base_points"]
    )
    return Swept(found, study, table, rows, None, findings, tuple(remarks))


def is_study(folder: Path) -> bool:
    """Return whether a folder contains a study."""
    return store.paths(folder)[1].is_file()


def _value(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else f"{value}"
