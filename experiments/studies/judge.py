"""The judge of a study: every arm against its baseline, seed by seed.

A fixed design tests once, with all seeds (`analysis.verdicts`). A sequential design looks at the
arms after every batch of seeds (`analysis.decisions`): an arm that is decided, or that the gate
stops, trains no further seeds.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from experiments.analysis import decisions, paired, statistics, verdicts
from experiments.analysis.decisions import Counts, Decision
from experiments.analysis.judged import Judged
from experiments.analysis.paired import Pairs
from experiments.analysis.primary import PrimaryMetric
from experiments.analysis.verdicts import CONTROL, Facts, Judgement
from experiments.runs.arms import replays_per_transition
from experiments.runs.judging import facts_of, replay_ratio
from experiments.studies.grid import Place, Point, shown_value
from experiments.studies.options import Question
from experiments.studies.study import Study

_PLANNED = 12  # undecided arms for which the seeds still needed are simulated
_CADENCE = Place("loop", "learn_every")


class Member(NamedTuple):
    """A point of the study and the point that it is compared with."""

    name: str  # unique in the study, such as "per_every4"
    point: Point
    baseline: str  # name of the baseline's point in the same group
    group: str  # task and shared settings in words, such as the replay ratio
    method: str  # label, with the settings that the baseline does not have


class Findings(NamedTuple):
    """Results of a study.

    Attributes:
      rows: every compared arm, baselines excepted.
      values: `[seeds]` of the primary metric, by name.
      members: all points that are compared or baselines, by name.
      decisions: decision of every arm in a sequential design, by name.
      looks: counts of every arm at every look, by name.
      undecided: names of the arms that need more seeds in a sequential design.
    """

    rows: list[Judged]
    values: dict[str, pd.Series]
    members: dict[str, Member]
    decisions: dict[str, Decision]
    looks: dict[str, list[Counts]]
    undecided: tuple[str, ...] = ()

    @property
    def groups(self) -> dict[str, list[str]]:
        """Names of the members of every group; the baseline comes first."""
        found: dict[str, list[str]] = {}
        for name, member in self.members.items():
            own = found.setdefault(member.group, [])
            own.insert(0, name) if member.baseline == name else own.append(name)
        return found

    def to_json(self, study: Study) -> dict[str, Any]:
        """Return the results as plain values."""
        metric = study.metric(study.envs[0])
        names = ("name", "help", "unit", "higher_is_better")
        return {
            "question": dataclasses.asdict(study.question),
            "primary": {name: getattr(metric, name) for name in names},
            "baseline": study.baseline,
            "arms": {row.label: self._row(row) for row in self.rows},
            "values": {
                label: [float(x) if math.isfinite(x) else None for x in values]
                for label, values in self.values.items()
            },
            "looks": {
                label: [[counts.seeds, *counts] for counts in looks]
                for label, looks in self.looks.items()
            },
        }

    def _row(self, row: Judged) -> dict[str, Any]:
        member = self.members[row.label]
        config = member.point.config
        return {
            "env": config.env,
            "method": row.method,
            "group": row.group,
            "learn_every": config.loop.learn_every,
            "replays_per_transition": replays_per_transition(config),
            **dataclasses.asdict(row.judgement),
            "pairs": dataclasses.asdict(row.pairs),
        }


def members_of(study: Study, points: Sequence[Point]) -> dict[str, Member]:
    """Return the points that can be compared with a baseline, by name.

    The baseline of a point has the same task and the same values of all settings that it shares
    with the point. Points without exactly one such baseline are left out.
    """
    several = len(study.envs) > 1
    cadences = len({point.config.loop.learn_every for point in points}) > 1
    bases = [point for point in points if point.label == study.baseline]
    found: dict[str, Member] = {}
    for point in points:
        own = [base for base in bases if _shares(base, point)]
        if len(own) != 1:
            continue
        (base,) = own
        group = replay_ratio(base.config)
        extra = [
            f"{place.name} {shown_value(value)}"
            for place, value in base.settings.items()
            if place != _CADENCE
        ]
        parts = [*([base.env] if several else []), group, *extra]
        found[name_of(point, several, cadences)] = Member(
            name_of(point, several, cadences),
            point,
            name_of(base, several, cadences),
            ", ".join(parts),
            _with_settings(point, [p for p in point.settings if p not in base.settings]),
        )
    return found


def name_of(point: Point, several_tasks: bool, several_cadences: bool) -> str:
    """Return a short name that is unique in the study, such as "per_every4" or "per alpha=0.4"."""
    name = point.label
    if several_cadences:
        name += f"_every{point.config.loop.learn_every}"
    settings = [
        f"{place.name}={shown_value(value)}"
        for place, value in point.settings.items()
        if place != _CADENCE
    ]
    return " ".join([*([point.env] if several_tasks else []), name, *settings])


def judge(
    study: Study,
    frames: Mapping[str, pd.DataFrame],
    made: Mapping[str, Mapping[str, Any]],
    other_code: bool = False,
    plan: bool = True,
) -> Findings:
    """Compare every arm with its baseline.

    P-values are corrected over all tested arms of the study (Holm). A seed that diverged is worse
    than any that did not.

    Args:
      study: the study.
      frames: metrics by id of the point, with columns seed, step and eval_return; points without
        finished runs may be missing.
      made: "code", the version of the code, and "train_seconds" of every point, by id.
      other_code: whether results of different versions of the code may be compared.
      plan: whether to estimate the seeds that undecided arms still need.
    """
    members = {
        name: member
        for name, member in members_of(study, study.points()).items()
        if member.point.id in frames
    }
    members = {name: own for name, own in members.items() if own.baseline in members}
    metrics = {env: study.metric(env) for env in study.envs}
    values = {}
    for name, member in members.items():
        frame = frames[member.point.id]
        values[name] = metrics[member.point.env](frame).sort_index()
        values[name][statistics.diverged(frame)] = math.nan
    arms = {name: own for name, own in members.items() if own.baseline != name}
    look = _fixed if not study.question.until_decided else _sequential
    return look(_Asked(study, members, arms, values, metrics, frames, made, other_code, plan))


class _Asked(NamedTuple):
    study: Study
    members: Mapping[str, Member]
    arms: Mapping[str, Member]  # members that are not baselines
    values: dict[str, pd.Series]  # [seeds] of the primary metric
    metrics: Mapping[str, PrimaryMetric]  # by task
    frames: Mapping[str, pd.DataFrame]
    made: Mapping[str, Mapping[str, Any]]
    other_code: bool
    plan: bool

    def facts(self, name: str, seeds: int | None = None) -> Facts:
        """Return the gate's facts of a member, from its first seeds only if `seeds` is given."""
        point = self.members[name].point
        frame = self.frames[point.id]
        if seeds is not None:
            frame = frame[frame["seed"] < point.config.seed + seeds]
        made = self.made[point.id]
        code = "" if self.other_code else str(made.get("code", ""))
        return facts_of(name, point.config, frame, code, made.get("train_seconds"))

    def pairs(self, name: str, seeds: int | None = None) -> Pairs:
        """Return a member and its baseline seed by seed; the k-th with the k-th for a control."""
        arm = self.arms[name]
        own, base = self.values[name], self.values[arm.baseline]
        seeds = min(len(own), len(base)) if seeds is None else seeds
        higher = self.metrics[arm.point.env].higher_is_better
        if arm.point.label != CONTROL:
            own, base = paired.aligned({"arm": own[:seeds], "baseline": base[:seeds]}).values()
        return paired.compare_pairs(own[:seeds], base[:seeds], higher)

    def is_claim(self, name: str) -> bool:
        """Whether an arm's p-value is one of those that are corrected: the control's is not."""
        return self.arms[name].point.label != CONTROL


def _fixed(asked: _Asked) -> Findings:
    """Test every arm once, with all seeds."""
    ungated = asked.study.question.ungated
    facts = {name: asked.facts(name) for name in asked.members}
    pairs = {name: asked.pairs(name) for name in asked.arms}
    tested = [
        name
        for name in asked.arms
        if asked.is_claim(name) and (ungated is not None or verdicts.untested(facts[name]) is None)
    ]
    corrected = paired.holm({name: pairs[name].p_value for name in tested})
    rows = []
    for name, arm in asked.arms.items():
        own = dataclasses.replace(pairs[name], p_holm=corrected.get(name))
        found = verdicts.judge(facts[name], facts[arm.baseline], own, ungated=ungated)
        rows.append(Judged(name, arm.method, arm.group, own, found))
    return Findings(rows, asked.values, dict(asked.members), {}, {})


def _sequential(asked: _Asked) -> Findings:
    """Decide every arm at the first look that can."""
    study, question = asked.study, asked.study.question
    looks = {}
    for name, arm in asked.arms.items():
        higher = asked.metrics[arm.point.env].higher_is_better
        own, base = (asked.values[each].to_numpy(float) for each in (name, arm.baseline))
        looks[name] = decisions.count_looks(own, base, study.looks, higher)
    claims = {name: counts for name, counts in looks.items() if asked.is_claim(name)}
    planned = asked.plan and len(claims) <= _PLANNED
    decided = decisions.decide(claims, verdicts.ALPHA, question.margin, plan=planned)
    for name in looks.keys() - claims.keys():  # controls
        decided |= decisions.decide(
            {name: looks[name]}, verdicts.ALPHA, question.margin, plan=False
        )
    rows, undecided = [], []
    for name, arm in asked.arms.items():
        seeds = decided[name].seeds
        pairs = asked.pairs(name, seeds)
        facts, base = asked.facts(name, seeds), asked.facts(arm.baseline, seeds)
        found = _decided(facts, base, pairs, decided[name], question)
        if asked.is_claim(name):
            pairs = dataclasses.replace(pairs, p_holm=decided[name].p_value)
        rows.append(Judged(name, arm.method, arm.group, pairs, found))
        if found.verdict == "undecided" and asked.is_claim(name):
            undecided.append(name)
    members = dict(asked.members)
    return Findings(rows, asked.values, members, decided, looks, tuple(undecided))


def _decided(
    arm: Facts, base: Facts, pairs: Pairs, decision: Decision, question: Question
) -> Judgement:
    """Return the verdict of a sequential comparison about the claim that the arm is better."""
    stopped = verdicts.without_numbers(arm, base, pairs.seeds, question.ungated)
    if stopped is not None:
        return verdicts.judgement(arm, base, pairs.seeds, *stopped, ungated=question.ungated)
    low, high = decision.interval
    verdict = decisions.answer("better", decision.verdict, decision.interval, question.margin)
    counts = decision.counts
    reason = (
        f"{counts.wins} wins, {counts.losses} losses, {counts.ties} ties after {decision.seeds} "
        f"seeds; probability of improvement {decision.mu:.3g} [{low:.3g}, {high:.3g}], anytime "
        f"p = {decision.p_value:.2g} (Holm)"
    )
    if verdict == "undecided" and decision.expected is not None:
        reason += f"; about {decision.expected - decision.seeds:,} more seeds to decide"
    return verdicts.judgement(
        arm, base, decision.seeds, verdict, reason, quantity="improvement",
        interval=decision.interval, boundary=0.5, p_value=decision.p_value,
        ungated=question.ungated,
    )  # fmt: skip


def next_look(study: Study, findings: Findings | None) -> tuple[int, list[str]] | None:
    """Return the next number of seeds and the ids of the points that need them, or None at the end.

    Args:
      study: a sequential study.
      findings: results of the latest look, or None before the first.
    """
    points = study.points()
    if findings is None:
        return study.looks[0], [point.id for point in points]
    if not findings.undecided:
        return None
    seen = min(findings.looks[name][-1].seeds for name in findings.undecided)
    later = [seeds for seeds in study.looks if seeds > seen]
    if not later:
        return None
    needed = {findings.members[name].point.id for name in findings.undecided}
    bases = {findings.members[name].baseline for name in findings.undecided}
    needed |= {findings.members[name].point.id for name in bases}
    for member in findings.members.values():
        if member.point.label == CONTROL and member.baseline in bases:
            needed.add(member.point.id)
    return later[0], [point.id for point in points if point.id in needed]


def _shares(base: Point, point: Point) -> bool:
    """Return whether a baseline has the task and the shared settings of a point."""
    both = base.settings.keys() & point.settings.keys()
    return base.env == point.env and all(base.settings[p] == point.settings[p] for p in both)


def _with_settings(point: Point, places: Sequence[Place]) -> str:
    """Return the label of a point with some of its settings."""
    settings = [f"{place.name}={shown_value(point.settings[place])}" for place in places]
    return " ".join([point.label, *settings])
