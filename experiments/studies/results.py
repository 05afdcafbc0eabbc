"""Results of a study: its runs, with their scores, the best settings and the verdicts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from experiments.files import disk, tables
from experiments.runs.run_config import shown_value
from experiments.statistics import summaries, tuned
from experiments.statistics.claims import CONTROL
from experiments.statistics.primary import PrimaryMetric
from experiments.statistics.tuned import Tuned
from experiments.studies import grid, judge, store
from experiments.studies.definition import Saved
from experiments.studies.judge import Findings
from experiments.studies.store import Store

if TYPE_CHECKING:  # matplotlib takes half a second to import, which runs need at their end only
    from experiments.figures.sections import ArmGroup

_TIMES = ("seconds", "compiling")


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
        """Scores of all runs except the control's, in the format of `tuned.scores`."""
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
        return tuned.swept(self.runs, self.store.settings)

    def unseen(self, env: str) -> list[int]:
        """Return the held-out seeds, on which the best points of a task are scored."""
        seeds = sorted(self.runs.loc[self.runs["env"] == env, "seed"].unique())
        return tuned.unseen(seeds, tuned.has_choice(self.runs))

    def compared_groups(self) -> list[ArmGroup]:
        """Return the compared arms with their baseline, verdicts and metrics, by group."""
        from experiments.figures.sections import ArmGroup

        if self.findings is None:
            return []
        members, values, groups = self.findings.members, self.findings.values, []
        frames = self.store.frames()
        for title, names in self.findings.groups.items():
            points = {members[name].method: members[name].point for name in names}
            env = next(iter(points.values())).env
            groups.append(
                ArmGroup(
                    title, env,
                    {label: point.config.replay for label, point in points.items()},
                    {label: frames[point.id] for label, point in points.items()},
                    self.study.options.threshold_of(env),
                    [
                        dataclasses.replace(row, label=row.method)
                        for row in self.findings.rows
                        if row.group == title
                    ],
                    {members[name].method: values[name] for name in names if name in values},
                )
            )  # fmt: skip
        return groups

    def default_groups(self) -> list[ArmGroup]:
        """Return the methods with default settings and their metrics, by task."""
        from experiments.figures.sections import ArmGroup

        groups, all_frames = [], self.store.frames()
        for env, points in self.store.facts["base_points"].items():
            frames = {k: all_frames[point] for k, point in points.items() if point in all_frames}
            methods = {label: self.methods.get(label, label) for label in frames}
            if frames:
                title = f"{env}: default settings" if len(self.envs) > 1 else "Default settings"
                goal = self.study.options.threshold_of(env)
                groups.append(ArmGroup(title, env, methods, frames, goal))
        return groups

    def point_settings(self, point: str) -> str:
        """Return, in words, a point's values of the settings that vary within the study."""
        settings = self.store.facts["points"][point]["settings"]
        own = {name: value for name, value in settings.items() if name in self.settings}
        return ", ".join(f"{name} {shown_value(value)}" for name, value in own.items()) or "-"


class Run(NamedTuple):
    """The results of a single run, which may be unfinished.

    Attributes:
      folder: folder of the run.
      config: configuration of the run, as nested plain values.
      versions: device, and versions of Python, jax and the code.
      frame: metrics of the seeds that have ended or, before that, of all log points so far.
      summary: statistics of the last evaluations, and speed; None before the run has ended.
      threshold: return that counts as solved, or None.
    """

    folder: Path
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    frame: pd.DataFrame
    summary: Mapping[str, Any] | None
    threshold: float | None

    @property
    def replay(self) -> str:
        """Name of the replay method."""
        return self.config["replay"]

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return self.frame["seed"].nunique()


def is_run(results: Store) -> bool:
    """Return whether a store holds a single run."""
    return len(results.facts["points"]) == 1


def run_of(results: Store) -> Run:
    """Return the run of a store.

    Raises:
      ValueError: there are several runs, or there is no log point yet.
    """
    if not is_run(results):
        raise ValueError(f"{results.folder} has a study of several runs: give the folder of a run")
    ((name, point),) = results.facts["points"].items()
    config, goal = point["config"], results.study.options.threshold_of(point["env"])
    versions = {**results.facts["versions"], "code": "+".join(point["code"])}
    frame = results.frames().get(name)
    if frame is None:
        frame = _so_far(results.folder / "metrics.csv")
        return Run(results.folder, config, versions, frame, None, goal)
    seconds, compiling = (sum(cost[key] for cost in results.facts["costs"]) for key in _TIMES)
    steps = frame["step"].max() * frame["seed"].nunique()
    summary = {
        "env": point["env"], "agent": config["agent"], "replay": config["replay"],
        **summaries.summarise(frame, goal),
        "steps_per_second": steps / max(seconds - compiling, 1e-9),
        "train_seconds": seconds, "compiling": compiling,
    }  # fmt: skip
    return Run(results.folder, config, versions, frame, summary, goal)


def _so_far(path: Path) -> pd.DataFrame:
    """Read the metrics of an unfinished run up to the last log point that all seeds have."""
    content = disk.read_bytes(path) if path.is_file() else b""
    complete = content[: content.rfind(b"\n") + 1]
    if complete.count(b"\n") < 2:
        raise ValueError(f"{path.parent} holds no log point yet: wait for the first")
    frame = tables.parse(path, complete, ("seed", "step", "eval_return"))
    rows = frame.groupby("step")["seed"].transform("size")
    return frame[rows == frame["seed"].nunique()]


def read(folder: Path) -> Results:
    """Read the results in a folder.

    Verdicts are computed from the table of runs. They are left out if an arm has a method of
    another package that has not been imported, or if a saved value is invalid.

    Raises:
      ValueError: a file is damaged, no run has ended yet, or the runs lack the primary metric.
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
