"""Results of a study: its runs, with their scores, the best settings and the verdicts."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.figures import sensitivity
from experiments.figures.elements import Style
from experiments.figures.style import styles_of
from experiments.runs import manifest
from experiments.runs.run_config import shown_value
from experiments.statistics import tuned
from experiments.statistics.claims import CONTROL
from experiments.statistics.primary import PrimaryMetric
from experiments.statistics.tuned import Estimate, Tuned
from experiments.studies import grid, judge, store
from experiments.studies.judge import Findings
from experiments.studies.store import Store
from experiments.studies.study import Saved


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of a study, which may be unfinished.

    Attributes:
      store: table of the runs that have ended, and facts about them.
      study: the study.
      findings: verdicts; None for a search, and for studies that compare nothing.
      remarks: notes on edited files, one per line.
    """

    store: Store
    study: Saved
    findings: Findings | None = None
    remarks: tuple[str, ...] = ()

    def table(self) -> pd.DataFrame:
        """Return one row per run and log point, with columns for arms, settings and metrics."""
        return self.store.table

    def verdicts(self) -> pd.DataFrame:
        """Return one row per compared arm: counts, interval, p-value, verdict and reason.

        A study with claims has one row per claim instead.
        """
        if self.findings is not None and self.findings.claims:
            return pd.DataFrame(self.findings.claims)
        rows = self.findings.rows if self.findings else []
        return pd.DataFrame([
            {
                "arm": row.label, "group": row.group, "seeds": row.seeds,
                **row.counts._asdict(),
                "estimate": row.estimate, "interval": row.interval,
                "p": row.p_value, "verdict": row.verdict,
                "reason": row.reason,
            }
            for row in rows
        ])  # fmt: skip

    def scores(self) -> dict[str, dict[str, list[float]]]:
        """Return the primary metric of every seed as task -> arm -> values, similar to rliable."""
        found: dict[str, dict[str, list[float]]] = {}
        for name, values in (self.findings.values if self.findings else {}).items():
            member = self.findings.members[name]  # pyright: ignore[reportOptionalMemberAccess]
            found.setdefault(member.point.env, {})[name] = values.tolist()
        return found

    @functools.cached_property
    def runs(self) -> pd.DataFrame:
        """Scores of all runs except those of the control, as `tuned.scores` returns them."""
        table = self.store.table
        table = table[table["replay"] != CONTROL]
        return tuned.scores(table, self.store.settings, self.study.metric)

    @functools.cached_property
    def best(self) -> list[Tuned]:
        """Best and default settings of every method on every task, if their runs have ended."""
        if "search" in self.store.facts:
            return self._searched()
        return tuned.tuning_curve(
            self.runs,
            lambda env: self.study.metric(env).higher_is_better,
            self.store.facts["base_points"],
        )

    def best_of(self, env: str, label: str) -> Tuned | None:
        """Return the result of a method on a task, or None before its runs have ended."""
        return next((row for row in self.best if (row.env, row.label) == (env, label)), None)

    @functools.cached_property
    def trials(self) -> pd.DataFrame | None:
        """A row for each trial of a search; None for other studies.

        Columns: env, replay, method, trial (its number), point, score (NaN if it failed), failed
        (the reason, or empty), and the settings.
        """
        if "search" not in self.store.facts:
            return None
        rows, points = [], self.store.facts["points"]
        for env, label, own in _studies(self.store):
            method = points[own["default"]]["method"]
            for at, trial in enumerate(own["trials"]):
                settings = points.get(trial["point"], {"settings": {}})["settings"]
                rows.append({
                    "env": env, "replay": label, "method": method, "trial": at,
                    "point": trial["point"],
                    "score": math.nan if trial["score"] is None else trial["score"],
                    "failed": trial["failed"] or "",
                    **{name: grid.table_value(value) for name, value in settings.items()},
                })  # fmt: skip
        head = ["env", "replay", "method", "trial", "point", "score", "failed"]
        return pd.DataFrame(rows, columns=[*head, *self.store.settings])

    def has_best(self, row: Tuned) -> bool:
        """Return whether a trial of a search has a score, whose runs the table may lack."""
        assert self.trials is not None
        points = self.trials.loc[self.trials["score"].notna(), "point"]
        return row.best in set(points)

    def _searched(self) -> list[Tuned]:
        """Return the results of a search for the methods whose fresh seeds have all ended."""
        asked, found = self.asked, []
        ended = {point: own.set_index("seed") for point, own in self.runs.groupby("point")}

        def estimate(point: str, seeds: list[int]) -> Estimate | None:
            if point not in ended or not set(seeds) <= set(ended[point].index):
                return None
            return tuned.estimate_of(ended[point].loc[seeds])

        for env, label, own in _studies(self.store):
            best, default = own["best"], own["default"]
            if (shown := estimate(best or default, asked["fresh_seeds"])) is not None:
                points = len({trial["point"] for trial in own["trials"]})
                chosen = estimate(best, asked["seeds"]) if best else None
                usual = estimate(default, asked["fresh_seeds"])
                found.append(Tuned(env, label, points, best or default, chosen, shown, usual))
        return found

    @property
    def asked(self) -> dict[str, Any]:
        """All choices that determine the trials of a search; KeyError for other studies."""
        return self.store.facts["search"]["asked"]

    def against_default(self, row: Tuned) -> str:
        """Return the numbers of held-out seeds on which the best point wins, loses and ties.

        The comparison is with the default point. A diverged run ranks below all others.
        """
        default = self.store.facts["base_points"][row.env][row.label]
        seeds, points = self.unseen(row.env), self.runs.set_index("point")
        own, other = (
            points.loc[[point]].set_index("seed")["ranked"].loc[seeds]
            for point in (row.best, default)
        )
        better, worse = int((own > other).sum()), int((own < other).sum())
        if not self.study.metric(row.env).higher_is_better:
            better, worse = worse, better
        return f"{better}/{worse}/{len(seeds) - better - worse}"

    @property
    def code(self) -> str:
        """Versions of the code that produced the results."""
        points = self.store.facts["points"].values()
        return "+".join(dict.fromkeys(code for point in points for code in point["code"]))

    @property
    def agents(self) -> str:
        """Names of the agents."""
        return ", ".join(sorted(set(self.store.table["agent"])))

    @property
    def envs(self) -> list[str]:
        """Names of the tasks."""
        return list(dict.fromkeys(self.runs["env"]))

    @property
    def methods(self) -> dict[str, str]:
        """Replay method of each label, in the order of the study."""
        return dict(zip(self.runs["replay"], self.runs["method"], strict=True))

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
        settings = [axis for axis in self.study.axes if axis.name != grid.LEARN_EVERY.name]
        return self.trials is not None or bool(settings)

    @functools.cached_property
    def settings(self) -> list[str]:
        """Settings with more than one value."""
        return sensitivity.swept(self.runs, self.store.settings)

    def unseen(self, env: str) -> list[int]:
        """Return the held-out seeds that score the best points of a task."""
        if self.trials is not None:
            return self.asked["fresh_seeds"]
        seeds = sorted(self.runs.loc[self.runs["env"] == env, "seed"].unique())
        return tuned.unseen(seeds, tuned.has_choice(self.runs))

    def point_settings(self, point: str) -> str:
        """Return the varying settings of a point in words."""
        settings = self.store.facts["points"][point]["settings"]
        own = {name: value for name, value in settings.items() if name in self.settings}
        return ", ".join(f"{name} {shown_value(value)}" for name, value in own.items()) or "-"


def is_study(folder: Path) -> bool:
    """Return whether a folder contains a study."""
    return store.paths(folder)[1].is_file()


def read(folder: Path) -> Results:
    """Read the results in a folder.

    Verdicts are computed from the table. They are left out if an arm has a method of another
    package that has not been imported. Edited files have remarks.

    Raises:
      ValueError: a file is damaged, no run has ended yet, or the runs lack the metric.
    """
    found = store.read(folder)
    if found.frame.empty:
        raise ValueError(f"{folder} holds no run that has ended: wait for the first")
    remarks = manifest.differing(folder)
    try:
        study = found.study.validated(folder)
        study.points()  # values of settings may be out of bounds
    except ValueError as error:
        remarks.append(f"no verdicts can be computed: {error}")
        return Results(found, found.study, None, tuple(remarks))
    findings = judge.findings_of(found, study, other_code=True)
    return Results(found, study, findings, tuple(remarks))


def _studies(results: Store) -> list[tuple[str, str, Any]]:
    """Return task, label, and the saved search of every method; [] if there is no search."""
    studies = results.facts.get("search", {}).get("studies", {})  # empty before the first trials
    return [(env, label, own) for env, labels in studies.items() for label, own in labels.items()]
