"""Results of a study: its runs, with their scores, the best settings and the verdicts."""

import dataclasses
import functools
from pathlib import Path

import pandas as pd

from experiments.figures import sensitivity
from experiments.figures.sections import Group
from experiments.runs.run_config import shown_value
from experiments.statistics import tuned
from experiments.statistics.primary import PrimaryMetric
from experiments.statistics.tuned import Tuned
from experiments.statistics.verdicts import CONTROL
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
      findings: verdicts; None for studies that compare nothing.
      unjudged: reason why there are no verdicts, or "".
    """

    store: Store
    study: Saved
    findings: Findings | None = None
    unjudged: str = ""

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
                "arm": row.label, "group": row.group, "seeds": row.judgement.seeds,
                **row.judgement.counts._asdict(),
                "estimate": row.judgement.estimate, "interval": row.judgement.interval,
                "p": row.judgement.p_value, "verdict": row.judgement.verdict,
                "reason": row.judgement.reason,
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
        return tuned.tuning_curve(
            self.runs,
            lambda env: self.study.metric(env).higher_is_better,
            self.store.facts["base_points"],
        )

    def best_of(self, env: str, label: str) -> Tuned | None:
        """Return the result of a method on a task, or None before its runs have ended."""
        return next((row for row in self.best if (row.env, row.label) == (env, label)), None)

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
    def metric(self) -> PrimaryMetric:
        """Primary metric on the first task; the thresholds of other tasks may differ."""
        return self.study.metric(self.envs[0])

    @property
    def has_choice(self) -> bool:
        """Whether there are settings to choose from; replay ratios do not count."""
        settings = [axis for axis in self.study.axes if axis.name != grid.LEARN_EVERY.name]
        return bool(settings)

    @functools.cached_property
    def settings(self) -> list[str]:
        """Settings with more than one value."""
        return sensitivity.swept(self.runs, self.store.settings)

    def unseen(self, env: str) -> list[int]:
        """Return the held-out seeds that score the best points of a task."""
        seeds = sorted(self.runs.loc[self.runs["env"] == env, "seed"].unique())
        return tuned.unseen(seeds, tuned.has_choice(self.runs))

    def compared_groups(self) -> list[Group]:
        """Return the compared arms with their baseline, verdicts and metrics, by group."""
        if self.findings is None:
            return []
        members, values, groups = self.findings.members, self.findings.values, []
        frames = self.store.frames()
        for title, names in self.findings.groups.items():
            points = {members[name].method: members[name].point for name in names}
            env = next(iter(points.values())).env
            groups.append(
                Group(
                    title, env,
                    {label: point.config.replay for label, point in points.items()},
                    {label: frames[point.id] for label, point in points.items()},
                    self.study.options.threshold_of(env),
                    [r._replace(label=r.method) for r in self.findings.rows if r.group == title],
                    {members[name].method: values[name] for name in names if name in values},
                )
            )  # fmt: skip
        return groups

    def default_groups(self) -> list[Group]:
        """Return the methods with default settings and their metrics, by task."""
        groups, all_frames = [], self.store.frames()
        for env, points in self.store.facts["base_points"].items():
            frames = {k: all_frames[point] for k, point in points.items() if point in all_frames}
            methods = {label: self.methods.get(label, label) for label in frames}
            if frames:
                title = f"{env}: default settings" if len(self.envs) > 1 else "Default settings"
                goal = self.study.options.threshold_of(env)
                groups.append(Group(title, env, methods, frames, goal))
        return groups

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
    package that has not been imported.

    Raises:
      ValueError: a file is damaged, no run has ended yet, or the runs lack the metric.
    """
    found = store.read(folder)
    if found.frame.empty:
        raise ValueError(f"{folder} holds no run that has ended: wait for the first")
    try:
        study = found.study.validated(folder)
        study.points()  # values of settings may be out of bounds
    except ValueError as error:
        return Results(found, found.study, None, f"no verdicts can be computed: {error}")
    return Results(found, study, judge.findings_of(found, study, other_code=True))
