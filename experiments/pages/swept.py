"""What the page of a sweep is made from: its table, its facts, and scores computed from these."""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.analysis import sensitivity, tuned
from experiments.analysis.primary import PrimaryMetric
from experiments.analysis.tuned import Tuned
from experiments.pages import plots
from experiments.runs import checksums
from experiments.studies import search_report, store
from experiments.studies.store import Store
from experiments.studies.study import Saved, Study


class Swept(NamedTuple):
    """A sweep, as far as it has come."""

    store: Store
    study: Study | Saved
    table: pd.DataFrame  # of `tuned.scores`
    rows: list[Tuned]
    tried: pd.DataFrame | None = None  # of `search_report.trials`; None: a grid
    remarks: tuple[str, ...] = ()  # what is not as it was written, a line each

    @property
    def code(self) -> str:
        """Versions of the code that made the results."""
        points = self.store.facts["points"].values()
        return "+".join(dict.fromkeys(code for point in points for code in point["code"]))

    @property
    def envs(self) -> list[str]:
        """Its tasks."""
        return list(dict.fromkeys(self.table["env"]))

    @property
    def methods(self) -> dict[str, str]:
        """The replay method behind each label, in the order of the sweep."""
        return dict(zip(self.table["replay"], self.table["method"], strict=True))

    @property
    def styles(self) -> dict[str, plots.Style]:
        """The style of each label."""
        return plots.styles(self.methods)

    @property
    def metric(self) -> PrimaryMetric:
        """What scores are; of several tasks, thresholds may differ."""
        return self.study.metric(self.envs[0])

    @property
    def settings(self) -> list[str]:
        """The settings that have more than one value."""
        return sensitivity.swept(self.table, self.store.settings)

    @property
    def asked(self) -> int:
        """How many runs the whole sweep has."""
        return sum(point["config"]["seeds"] for point in self.store.facts["points"].values())

    def unseen(self, env: str) -> list[int]:
        """Return the seeds of a task on which best points are shown: they chose nothing."""
        if self.tried is not None:
            return self.store.facts["search"]["asked"]["fresh_seeds"]
        seeds = sorted(self.table.loc[self.table["env"] == env, "seed"].unique())
        return tuned.unseen(seeds, tuned.has_choice(self.table))

    def point_settings(self, point: str) -> str:
        """Return in words the settings of a point that vary."""
        settings = self.store.facts["points"][point]["settings"]
        own = {name: value for name, value in settings.items() if name in self.settings}
        return ", ".join(f"{name} {_value(value)}" for name, value in own.items()) or "-"

    def row(self, env: str, label: str) -> Tuned | None:
        """Return what was found of a method on a task; None: no point has all seeds yet."""
        return next((row for row in self.rows if (row.env, row.label) == (env, label)), None)


def read(folder: Path) -> Swept:
    """Read a sweep's folder.

    Raises:
      ValueError: one line: a file is damaged, or no run has ended yet.
    """
    found = store.read(folder)
    return of(found, found.study)


def of(found: Store, study: Study | Saved) -> Swept:
    """Return the scores of a sweep.

    Raises:
      ValueError: one line: no run has ended yet, or the runs lack the metric.
    """
    if found.frame.empty:
        raise ValueError(f"{found.folder} holds no run that has ended: wait for the first")
    table = tuned.scores(found.frame, found.settings, study.metric)
    remarks = checksums.differing(found.folder)
    if any(cost[name] < 0 for cost in found.facts["costs"] for name in ("seconds", "compiling")):
        remarks.append(f"{store.paths(found.folder)[1]} has negative times")
    if "search" in found.facts:
        remarks += search_report.rescore(found, study)
        rows, tried = search_report.tuned_rows(found, study), search_report.trials(found)
        return Swept(found, study, table, rows, tried, tuple(remarks))
    rows = tuned.tuned(
        table, lambda env: study.metric(env).higher_is_better, found.facts["base_points"]
    )
    return Swept(found, study, table, rows, remarks=tuple(remarks))


def is_sweep(folder: Path) -> bool:
    """Tell whether a folder is a sweep's."""
    return store.paths(folder)[1].is_file()


def _value(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else f"{value}"
