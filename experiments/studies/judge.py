"""Verdicts about claims or arms of a study, and the seeds that undecided ones still need.

A study without claims compares each arm with its baseline. In a sequential study, an arm trains
further seeds while a claim about it is undecided. `statistics.verdicts` judges the claims.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from experiments.runs.run_config import shown_value
from experiments.statistics import primary, verdicts
from experiments.statistics.claims import (
    CONTROL,
    MEAN,
    Claim,
    NotAsked,
    Runs,
    contrast,
    round_values,
    values_of,
)
from experiments.statistics.verdicts import Verdict
from experiments.studies import facts
from experiments.studies.definition import Study
from experiments.studies.grid import LEARN_EVERY, Point
from experiments.studies.store import Store

_FEWEST = 2  # fewest seeds of a comparison
_PLANNED = 12  # claims for which the seeds still needed are simulated after each look


class Member(NamedTuple):
    """A configuration of the study and the baseline that it is compared with."""

    name: str  # unique in the study, such as "per_every4"
    point: Point
    baseline: str  # name of the baseline's point in the same group
    group: str  # task and shared settings in words, such as the replay ratio
    method: str  # label, with the settings that the baseline does not have


class Findings(NamedTuple):
    """Verdicts of a study."""

    rows: Sequence[Verdict]  # every arm against its baseline; none if the study has claims
    values: dict[str, pd.Series]  # [seeds] of the primary metric, by name of the member
    members: dict[str, Member]  # all points that are compared or baselines, by name
    families: Mapping[str, Sequence[Verdict]]  # verdicts about the claims of every family

    @property
    def claims(self) -> list[dict[str, Any]]:
        """A row for every claim, with its words, counts, verdict and reason."""
        return [
            _row(family, verdict)
            for family, answers in self.families.items()
            for verdict in answers
        ]

    @property
    def claimed(self) -> list[Verdict]:
        """The verdicts about the claims for which there are results."""
        answers = (verdict for family in self.families.values() for verdict in family)
        return [verdict for verdict in answers if verdict.looks]

    @property
    def undecided(self) -> dict[str, Verdict]:
        """Verdicts, except the control's, that further seeds can decide in a sequential design."""
        arms = {
            verdict.label: verdict
            for verdict in self.rows
            if verdict.needs_seeds and self.members[verdict.label].point.label != CONTROL
        }
        claims = {
            f"{family} {place}": dataclasses.replace(verdict, label=f"{family}: {verdict.label}")
            for family, answers in self.families.items()
            for place, verdict in enumerate(answers)
            if verdict.needs_seeds
        }
        return arms | claims

    @property
    def groups(self) -> dict[str, list[str]]:
        """Names of the members of every group, with the baseline first."""
        groups: dict[str, list[str]] = {}
        for name, member in self.members.items():
            names = groups.setdefault(member.group, [])
            names.insert(0, name) if member.baseline == name else names.append(name)
        return groups

    def to_json(self, study: Study) -> dict[str, Any]:
        """Return the results as plain values."""
        metric = study.metric(study.envs[0])
        names = ("name", "help", "unit", "higher_is_better")
        return {
            **({"claims": self.claims} if self.families else {}),
            "question": dataclasses.asdict(study.question),
            "primary": {name: getattr(metric, name) for name in names},
            "baseline": study.baseline,
            "arms": {verdict.label: self._arm(verdict) for verdict in self.rows},
            "values": {
                name: [float(x) if math.isfinite(x) else None for x in values]
                for name, values in self.values.items()
            },
            "looks": {
                verdict.label: [[counts.pairs, *counts] for counts in verdict.looks]
                for verdict in self.rows
            },
        }

    def _arm(self, verdict: Verdict) -> dict[str, Any]:
        config = self.members[verdict.label].point.config
        return {
            "env": config.env,
            "method": verdict.method,
            "group": verdict.group,
            "learn_every": config.loop.learn_every,
            "replays_per_transition": facts.replays_per_transition(config),
            **verdict.to_json(),
        }


def _row(family: str, verdict: Verdict) -> dict[str, Any]:
    """Return a claim with its verdict as plain values."""
    claim = verdict.claim
    row = {"family": family, "claim": claim.says, "arm": claim.arm, "baseline": claim.baseline}
    row |= {"beside": list(claim.beside)} if claim.beside else {}
    numbers = {
        "seeds": verdict.seeds, **verdict.counts._asdict(), "interval": verdict.interval,
        "p": verdict.p_value,
    }  # fmt: skip
    answer = {"verdict": verdict.verdict, "reason": verdict.reason}
    return row | (numbers if verdict.looks else {}) | answer


def members_of(study: Study, points: Sequence[Point]) -> dict[str, Member]:
    """Return the points that can be compared with a baseline, by name.

    The baseline of a point has the same task and the same values of all settings that it shares
    with the point. Points without exactly one such baseline are left out.
    """

    def name_of(point: Point) -> str:
        return f"{point.env} {point.name}" if len(study.envs) > 1 else point.name

    def is_baseline(base: Point, point: Point) -> bool:
        shared = base.settings.keys() & point.settings.keys()
        return base.env == point.env and all(base.settings[p] == point.settings[p] for p in shared)

    bases = [point for point in points if point.label == study.baseline]
    members: dict[str, Member] = {}
    for point in points:
        matching = [base for base in bases if is_baseline(base, point)]
        if len(matching) != 1:
            continue
        (base,) = matching
        group = [base.env] * (len(study.envs) > 1) + [facts.replay_ratio(base.config)]
        for place, value in base.settings.items():
            if place != LEARN_EVERY:
                group.append(f"{place.name} {shown_value(value)}")
        rest = {
            place: value for place, value in point.settings.items() if place not in base.settings
        }
        label = " ".join([point.label, *(f"{p.name}={shown_value(v)}" for p, v in rest.items())])
        name = name_of(point)
        members[name] = Member(name, point, name_of(base), ", ".join(group), label)
    return members


def judge(
    study: Study,
    frames: Mapping[str, pd.DataFrame],
    made: Mapping[str, Mapping[str, Any]],
    other_code: bool = False,
    plan: bool = True,
) -> Findings:
    """Judge the claims of the study; without claims, compare every arm with its baseline.

    P-values are corrected over the claims of each family, or over all tested arms (Holm). A seed
    that diverged is worse than any seed that did not diverge.

    Args:
      study: the study.
      frames: metrics by id of the point, with columns seed, step and eval_return; points without
        finished runs may be missing.
      made: as returned by `Store.made`.
      other_code: whether results of different versions of the code may be compared.
      plan: whether to estimate the seeds that undecided arms still need.
    """
    results = _Results(study, frames, made, other_code)
    members = {
        name: member
        for name, member in members_of(study, study.points()).items()
        if member.point.id in frames
    }
    members = {name: member for name, member in members.items() if member.baseline in members}
    runs = {
        name: results.runs_of(member.point, study.question.primary)
        for name, member in members.items()
    }
    signs = {env: 1 if study.metric(env).higher_is_better else -1 for env in study.envs}
    values = {name: of_point.values * signs[of_point.env] for name, of_point in runs.items()}
    if study.claims:
        families = {
            name: results.judge(claims, results.pairs_of, plan and len(claims) <= _PLANNED)
            for name, claims in study.claims.items()
        }
        return Findings([], values, members, families)
    arms = [
        member
        for name, member in members.items()
        if member.baseline != name and len(runs[name].values) >= _FEWEST
    ]
    claims = [
        Claim(arm.name, arm.point.name, members[arm.baseline].point.name, direction="either")
        for arm in arms
    ]
    pairs = {arm.name: [(runs[arm.name], runs[arm.baseline])] for arm in arms}
    answers = results.judge(claims, lambda claim: pairs[claim.says], plan and len(arms) <= _PLANNED)
    rows = [
        dataclasses.replace(verdict, method=arm.method, group=arm.group)
        for arm, verdict in zip(arms, answers, strict=True)
    ]
    return Findings(rows, values, members, {})


def family(
    study: Study,
    claims: Sequence[Claim],
    frames: Mapping[str, pd.DataFrame],
    made: Mapping[str, Mapping[str, Any]],
    other_code: bool = False,
    plan: bool = True,
) -> list[Verdict]:
    """Judge a family of claims, with p-values corrected over the family (Holm); see `judge`."""
    results = _Results(study, frames, made, other_code)
    return results.judge(claims, results.pairs_of, plan)


class _Results:
    """The results of a study, from which claims take their runs."""

    def __init__(
        self,
        study: Study,
        frames: Mapping[str, pd.DataFrame],
        made: Mapping[str, Mapping[str, Any]],
        other_code: bool,
    ) -> None:
        self._study, self._frames, self._made, self._other_code = study, frames, made, other_code
        self._points = {(point.env, point.name): point for point in study.points()}
        self._runs: dict[tuple[str, str, bool], Runs] = {}  # claims share runs

    def judge(
        self, claims: Sequence[Claim], pairs_of: Callable[[Claim], verdicts.Pairs], plan: bool
    ) -> list[Verdict]:
        """Return the verdicts about a family of claims, with the options of the study's question.

        With `plan`, the seeds that undecided claims still need are estimated.
        """
        question = self._study.question
        looks = self._study.looks if question.until_decided else None
        return verdicts.judge(claims, pairs_of, looks, question.margin, question.ungated, plan)

    def pairs_of(self, claim: Claim) -> list[tuple[Runs, Runs]]:
        """Return the runs of arm and baseline on every task of a claim.

        Raises:
          NotAsked: an arm or a task was not run, or the runs do not have the metric.
        """
        metric = claim.primary or self._study.question.primary
        envs = [env for env in self._study.envs if claim.where.get("env", env) == env]
        if not envs:
            raise NotAsked(f"there is no task {claim.where.get('env')}", absent=True)
        places = [(env, label) for env in envs for label in claim.labels]
        for env, label in places:
            if (env, label) not in self._points or self._points[env, label].id not in self._frames:
                raise NotAsked(f"there is no arm {label} on {env}", absent=True)
        runs = [self.runs_of(self._points[place], metric, claim.across) for place in places]
        pairs = list(zip(runs[::2], runs[1::2], strict=True))
        if not claim.beside:
            return pairs
        end = None
        if metric == "steps_to_threshold":
            end = max(float(self._frames[run.id]["step"].max()) for run in runs)
        return [contrast(pairs[k : k + 2], end) for k in range(0, len(pairs), 2)]

    def runs_of(self, point: Point, metric: str, across: bool = False) -> Runs:
        """Return the runs of a point with their values of a metric.

        With `across`, runs do not contain the settings that arms must otherwise share, so that arms
        with different settings can be compared.

        Raises:
          NotAsked: the runs do not have the metric.
        """
        key = point.id, metric, across
        if key not in self._runs:
            self._runs[key] = self._make_runs(point, metric, across)
        return self._runs[key]

    def _make_runs(self, point: Point, metric: str, across: bool) -> Runs:
        frame, made, config = self._frames[point.id], self._made[point.id], point.config
        options, env, warmup = self._study.options, point.env, config.loop.warmup
        # A claim about the effective buffer tests what the gate checks: these checks are left out.
        gated = metric != f"{MEAN}replayed/effective_buffer"
        unit = "" if metric.startswith(MEAN) else primary.parse(metric, threshold=0.0).unit
        return Runs(
            label=point.name, env=env, id=point.id, metrics=frame, warmup=warmup,
            values=round_values(values_of(frame, metric, options.threshold_of(env), warmup)),
            unit=f"in {unit}" if unit else "",
            code="" if self._other_code else str(made.get("code", "")),
            settings={} if across else facts.shared_settings(config),
            good_return=options.good_return_of(env) if gated else None,
            prioritises=gated and facts.prioritises(config),
            learned=gated and facts.learns_from(config) is not None,
            train_seconds=made.get("train_seconds"), is_control=point.label == CONTROL,
        )  # fmt: skip


def findings_of(results: Store, study: Study, other_code: bool = False) -> Findings | None:
    """Return the verdicts that the table of a study gives, or None if nothing is compared."""
    if not study.compares:
        return None
    frames = judged_frames(results, study)
    if not frames:
        return None
    return judge(study, frames, results.made(), other_code)


def judged_frames(results: Store, study: Study) -> dict[str, pd.DataFrame]:
    """Return the metrics of the points that can be judged, by id of the point.

    The metrics include the seeds up to the point's latest look (interim analysis).
    """
    frames, judged = results.frames(), {}
    for point in study.points():
        if point.id not in frames:
            continue
        frame = frames[point.id]
        seeds, start, complete = set(frame["seed"].unique()), point.config.seed, 0
        while start + complete in seeds:
            complete += 1
        if reached := [look for look in study.looks if look <= complete]:
            judged[point.id] = frame[frame["seed"] < start + reached[-1]]
    return judged


def next_look(
    study: Study, findings: Findings | None, failed: Collection[str] = ()
) -> tuple[int, list[str]] | None:
    """Return the number of seeds of the next look (interim analysis), and the points it needs.

    Args:
      study: a sequential study.
      findings: results of the latest look, or None before the first.
      failed: ids of points with failed runs; claims about them get no further seeds.

    Returns:
      The number of seeds and the ids of the points that need them, or None if there is no next
      look.
    """
    points = study.points()
    if findings is None:
        return study.looks[0], [point.id for point in points]
    undecided = [
        verdict for verdict in findings.undecided.values() if not {*verdict.runs} & {*failed}
    ]
    if not undecided:
        return None
    seen = min(verdict.seeds for verdict in undecided)
    later = [seeds for seeds in study.looks if seeds > seen]
    if not later:
        return None
    needed = {run for verdict in undecided for run in verdict.runs}
    for member in findings.members.values():
        base = findings.members[member.baseline].point
        if member.point.label == CONTROL and base.id in needed:
            needed.add(member.point.id)
    return later[0], [point.id for point in points if point.id in needed]
