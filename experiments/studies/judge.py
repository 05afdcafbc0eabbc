"""Judgement of a study: verdicts about its claims, from paired seeds.

A study without claims compares each arm with its baseline. In a sequential study, an arm trains
further seeds while a claim about it is undecided.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from experiments.figures.judged import Judged
from experiments.runs.run_config import shown_value
from experiments.statistics import primary
from experiments.statistics.counts import Counts
from experiments.statistics.verdicts import CONTROL, Facts
from experiments.studies import claims as claims_
from experiments.studies.claims import Absent, Asked, Claim, Found, NotAsked, Side
from experiments.studies.facts import facts_of, replay_ratio, replays_per_transition
from experiments.studies.grid import LEARN_EVERY, Point
from experiments.studies.store import Store
from experiments.studies.study import Study

_FEWEST = 2  # seeds of a comparison
_PLANNED = 12  # claims for which the seeds still needed are simulated after each look


class Member(NamedTuple):
    """A point of the study and the point that it is compared with."""

    name: str  # unique in the study, such as "per_every4"
    point: Point
    baseline: str  # name of the baseline's point in the same group
    group: str  # task and shared settings in words, such as the replay ratio
    method: str  # label, with the settings that the baseline does not have


class Need(NamedTuple):
    """An undecided claim."""

    says: str  # claim in words, or name of the arm
    points: tuple[str, ...]  # ids of the points that need more seeds
    seeds: int  # number of seeds at the latest look
    expected: int | None  # number of seeds for a decision with 80 % probability, if estimated


class Findings(NamedTuple):
    """Results of a study, by names that are unique in it."""

    found: Mapping[str, Found]  # every arm against its baseline; none if the study has claims
    values: dict[str, pd.Series]  # [seeds] of the primary metric
    members: dict[str, Member]  # all points that are compared or baselines
    undecided: Mapping[str, Need]  # claims that need more seeds in a sequential design
    # Family, claim, and its verdict or the reason for having none.
    answers: Sequence[tuple[str, Claim, Found | NotAsked]] = ()

    @property
    def rows(self) -> list[Judged]:
        """Every arm compared with its baseline."""
        named = [(self.members[name], found) for name, found in self.found.items()]
        return [
            Judged(own.name, own.method, own.group, found.pairs, found.judgement)
            for own, found in named
        ]

    @property
    def looks(self) -> dict[str, list[Counts]]:
        """Counts of every arm at every look, by name."""
        return {name: list(found.looks) for name, found in self.found.items()}

    @property
    def claims(self) -> list[dict[str, Any]]:
        """A row for every claim, with its words, counts, verdict and reason."""
        return [_row(*each) for each in self.answers]

    @property
    def claimed(self) -> list[Judged]:
        """The claims that could be judged; labels are their words, and the group is ""."""
        return [
            Judged(claim.says, claim.says, "", found.pairs, found.judgement)
            for _, claim, found in self.answers
            if isinstance(found, Found)
        ]

    @property
    def groups(self) -> dict[str, list[str]]:
        """Names of the members of every group, with the baseline first."""
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
            **({"claims": self.claims} if self.answers else {}),
            "question": dataclasses.asdict(study.question),
            "primary": {name: getattr(metric, name) for name in names},
            "baseline": study.baseline,
            "arms": {row.label: self._row(row) for row in self.rows},
            "values": {
                label: [float(x) if math.isfinite(x) else None for x in values]
                for label, values in self.values.items()
            },
            "looks": {
                label: [[counts.pairs, *counts] for counts in looks]
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

    def name_of(point: Point) -> str:
        return f"{point.env} {point.name}" if len(study.envs) > 1 else point.name

    def shared(base: Point, point: Point) -> bool:
        both = base.settings.keys() & point.settings.keys()
        return base.env == point.env and all(base.settings[p] == point.settings[p] for p in both)

    bases = [point for point in points if point.label == study.baseline]
    found: dict[str, Member] = {}
    for point in points:
        own = [base for base in bases if shared(base, point)]
        if len(own) != 1:
            continue
        (base,) = own
        group = [base.env] * (len(study.envs) > 1) + [replay_ratio(base.config)]
        for place, value in base.settings.items():
            if place != LEARN_EVERY:
                group.append(f"{place.name} {shown_value(value)}")
        rest = {
            place: value for place, value in point.settings.items() if place not in base.settings
        }
        label = " ".join([point.label, *(f"{p.name}={shown_value(v)}" for p, v in rest.items())])
        name = name_of(point)
        found[name] = Member(name, point, name_of(base), ", ".join(group), label)
    return found


def judge(
    study: Study,
    frames: Mapping[str, pd.DataFrame],
    made: Mapping[str, Mapping[str, Any]],
    other_code: bool = False,
    plan: bool = True,
) -> Findings:
    """Judge the claims of the study; without claims, compare every arm with its baseline.

    P-values are corrected over the claims of each family, or over all tested arms (Holm). A seed
    that diverged is worse than any that did not.

    Args:
      study: the study.
      frames: metrics by id of the point, with columns seed, step and eval_return; points without
        finished runs may be missing.
      made: as returned by `Store.made`.
      other_code: whether results of different versions of the code may be compared.
      plan: whether to estimate the seeds that undecided arms still need.
    """
    results = _Results(study, study.points(), frames, made, other_code)
    members = {
        name: member
        for name, member in members_of(study, results.points).items()
        if member.point.id in frames
    }
    members = {name: own for name, own in members.items() if own.baseline in members}
    sides = {name: results.side(own.point, study.question.primary) for name, own in members.items()}
    signs = {env: 1 if study.metric(env).higher_is_better else -1 for env in study.envs}
    values = {name: sides[name].values * signs[own.point.env] for name, own in members.items()}
    needs: dict[str, Need] = {}
    if study.claims:
        answers: list[tuple[str, Claim, Found | NotAsked]] = []
        for name, claims in study.claims.items():
            verdicts, undecided = _family(results, claims, plan and len(claims) <= _PLANNED)
            answers += [(name, *each) for each in zip(claims, verdicts, strict=True)]
            needs |= {
                f"{name} {at}": need._replace(says=f"{name}: {need.says}")
                for at, need in undecided.items()
            }
        return Findings({}, values, members, needs, answers)
    asked = {
        name: Asked(
            Claim(name, name, own.baseline),
            [(sides[name], sides[own.baseline])],
            apart=own.point.label == CONTROL,
        )
        for name, own in members.items()
        if own.baseline != name and len(sides[name].values) >= _FEWEST
    }
    found = _judge(study, asked, plan and len(asked) <= _PLANNED)
    for name, own in asked.items():
        if not own.apart:
            both = members[name], members[members[name].baseline]
            needs |= _undecided(name, name, found[name], [member.point for member in both])
    return Findings(found, values, members, needs)


def family(
    study: Study,
    claims: Sequence[Claim],
    frames: Mapping[str, pd.DataFrame],
    made: Mapping[str, Mapping[str, Any]],
    other_code: bool = False,
    plan: bool = True,
) -> list[Found | NotAsked]:
    """Judge a family of claims, with p-values corrected over the family (Holm); see `judge`.

    Returns:
      The verdict of each claim, or the reason why it cannot be judged.
    """
    return _family(_Results(study, study.points(), frames, made, other_code), claims, plan)[0]


def _family(
    results: "_Results", claims: Sequence[Claim], plan: bool
) -> tuple[list[Found | NotAsked], dict[str, Need]]:
    """Return the verdicts of a family of claims, and the undecided ones by their places."""
    question, looks = results.study.question, _looks(results.study)
    found, needs = claims_.judge_family(
        claims, results.ask, lambda asked: looks, margin=question.margin,
        ungated=question.ungated, plan=plan,
    ), {}  # fmt: skip
    for at, (claim, own) in enumerate(zip(claims, found, strict=True)):
        if isinstance(own, Found):
            both = [point for points in results.pairs(claim) for point in points]
            points = [point for point in both if point.env not in own.left_out]
            needs |= _undecided(str(at), claim.says, own, points)
    return found, needs


def _row(family: str, claim: Claim, found: Found | NotAsked) -> dict[str, Any]:
    """Return a claim with its verdict as plain values."""
    row = {"family": family, "claim": claim.says, "arm": claim.arm, "baseline": claim.baseline}
    if isinstance(found, NotAsked):
        return row | {"verdict": found.verdict, "reason": str(found)}
    own = found.judgement
    return row | {
        "seeds": own.seeds, **own.counts._asdict(), "interval": own.interval, "p": own.p_value,
        "verdict": own.verdict, "reason": own.reason,
    }  # fmt: skip


def _looks(study: Study) -> list[int] | None:
    """Return the looks of a sequential study, or None for a single test."""
    return study.looks if study.question.until_decided else None


def _judge(study: Study, asked: Mapping[str, Asked], plan: bool) -> dict[str, Found]:
    question = study.question
    return claims_.judge(asked, _looks(study), question.margin, question.ungated, plan)


def _undecided(name: str, says: str, found: Found, points: Sequence[Point]) -> dict[str, Need]:
    """Return a claim about points by its name if further seeds can decide it."""
    judgement = found.judgement
    if judgement.verdict not in ("undecided", "pilot"):
        return {}
    ids = tuple(point.id for point in points)
    return {name: Need(says, ids, judgement.seeds, judgement.expected)}


def findings_of(results: Store, study: Study, other_code: bool = False) -> Findings | None:
    """Return the verdicts that the table of a study gives, or None if nothing is compared."""
    if not study.compares:
        return None
    frames = judged_frames(results, study)
    if not frames:
        return None
    return judge(study, frames, results.made(), other_code)


def judged_frames(results: Store, study: Study) -> dict[str, pd.DataFrame]:
    """Return the metrics of the points that can be judged, by id, up to a common look."""
    frames, found = results.frames(), {}
    for point in study.points():
        if point.id not in frames:
            continue
        frame = frames[point.id]
        seeds, start, complete = set(frame["seed"].unique()), point.config.seed, 0
        while start + complete in seeds:
            complete += 1
        if reached := [look for look in study.looks if look <= complete]:
            found[point.id] = frame[frame["seed"] < start + reached[-1]]
    return found


class _Results(NamedTuple):
    """The results of a study, from which claims take their numbers."""

    study: Study
    points: Sequence[Point]
    frames: Mapping[str, pd.DataFrame]
    made: Mapping[str, Mapping[str, Any]]
    other_code: bool

    def side(self, point: Point, metric: str, across: bool = False) -> Side:
        """Return the numbers of a point.

        Raises:
          NotAsked: If its runs do not have the metric.
        """
        frame, made = self.frames[point.id], self.made[point.id]
        code = "" if self.other_code else str(made.get("code", ""))
        config, label = point.config, point.name

        @functools.cache
        def facts(seeds: int | None) -> Facts:
            own = frame if seeds is None else frame[frame["seed"] < config.seed + seeds]
            good = self.study.options.good_return_of(point.env)
            found = facts_of(label, config, own, code, made.get("train_seconds"), good)
            if across:
                found = dataclasses.replace(found, settings={})
            if metric == "mean:replayed/effective_buffer":  # the claim is about the gate itself
                found = dataclasses.replace(found, prioritises=False, learned=False, progress=None)
            return found

        threshold = self.study.options.threshold_of(point.env)
        lost_is_worst = self.study.question.until_decided
        values = claims_.values_of(frame, metric, threshold, config.loop.warmup, lost_is_worst)
        return Side(facts, claims_.round_values(values))

    def pairs(self, claim: Claim) -> list[tuple[Point, Point]]:
        """Return the points of arm and baseline on every task of a claim.

        Raises:
          Absent: If an arm or a task was not run.
        """
        by_name = {(point.env, point.name): point for point in self.points}
        envs = [env for env in self.study.envs if claim.where.get("env", env) == env]
        for env, label in ((env, each) for env in envs for each in (claim.arm, claim.baseline)):
            point = by_name.get((env, label))
            if point is None or point.id not in self.frames:
                raise Absent(f"there is no arm {label} on {env}")
        if not envs:
            raise Absent(f"there is no task {claim.where.get('env')}")
        return [(by_name[env, claim.arm], by_name[env, claim.baseline]) for env in envs]

    def ask(self, claim: Claim) -> Asked:
        """Return a claim with its numbers.

        Raises:
          NotAsked: If there are no such runs, or they do not have the metric.
        """
        name, both = claim.primary or self.study.question.primary, self.pairs(claim)
        sides = [
            (self.side(arm, name, claim.across), self.side(base, name, claim.across))
            for arm, base in both
        ]
        unit = ""
        if not name.startswith(claims_.MEAN):
            unit = f"in {primary.parse(name, threshold=0.0).unit}"
        return Asked(claim, sides, unit, apart=CONTROL in {point.label for point in both[0]})


def next_look(
    study: Study, findings: Findings | None, failed: Collection[str] = ()
) -> tuple[int, list[str]] | None:
    """Return the next number of seeds and the ids of the points that need them, or None at the end.

    Args:
      study: a sequential study.
      findings: results of the latest look, or None before the first.
      failed: ids of points with failed runs; claims about them get no further seeds.
    """
    points = study.points()
    if findings is None:
        return study.looks[0], [point.id for point in points]
    needs = [need for need in findings.undecided.values() if not {*need.points} & {*failed}]
    if not needs:
        return None
    seen = min(need.seeds for need in needs)
    later = [seeds for seeds in study.looks if seeds > seen]
    if not later:
        return None
    needed = {point for need in needs for point in need.points}
    for member in findings.members.values():
        base = findings.members[member.baseline].point
        if member.point.label == CONTROL and base.id in needed:
            needed.add(member.point.id)
    return later[0], [point.id for point in points if point.id in needed]
