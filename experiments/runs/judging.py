"""What the arms of a comparison showed: paired numbers and verdicts, each arm at every cadence."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from experiments.analysis import paired, primary, statistics, verdicts
from experiments.analysis.judged import Judged
from experiments.analysis.paired import Pairs
from experiments.runs import arms as arms_
from experiments.runs.arms import CONTROL, Arm, Question
from experiments.runs.run_config import RunConfig


class Findings(NamedTuple):
    """What a comparison found."""

    metric: primary.PrimaryMetric
    baseline: str  # the method's label
    rows: list[Judged]
    values: dict[str, pd.Series]  # [seeds] of the metric, by label
    groups: dict[str, dict[str, str]]  # what arms share -> their labels -> suffix of files

    def to_json(self, question: Question, arms: Mapping[str, Arm]) -> dict[str, Any]:
        """Return it all as plain values."""
        return {
            "question": dataclasses.asdict(question),
            "primary": {
                name: getattr(self.metric, name)
                for name in ("name", "help", "unit", "higher_is_better")
            },
            "baseline": self.baseline,
            "arms": {
                row.label: {
                    "learn_every": arms[row.label].every,
                    "replays_per_transition": arms_.replays_per_transition(arms[row.label].config),
                    **dataclasses.asdict(row.judgement),
                    "pairs": dataclasses.asdict(row.pairs),
                }
                for row in self.rows
            },
            "values": {
                label: [float(x) if math.isfinite(x) else None for x in values]
                for label, values in self.values.items()
            },
        }


def judge(
    question: Question,
    arms: Mapping[str, Arm],
    frames: Mapping[str, pd.DataFrame],
    summaries: Mapping[str, Mapping[str, Any]],
    threshold: float | None,
    other_code: bool = False,
) -> Findings:
    """Hold every arm against the baseline at its cadence.

    P-values are corrected over all arms of all cadences that were tested (Holm). A seed that
    diverged is worse than any that did not.

    Args:
      question: what was asked before anything ran.
      arms: by label.
      frames: their metrics.
      summaries: the content of their `summary.json`.
      threshold: the return that counts as solved, if there is one.
      other_code: the user joins results of several versions of the code.
    """
    metric = primary.parse(question.primary, threshold)
    methods = {arm.method: arm.config for arm in arms.values() if arm.method != CONTROL}
    baseline = arms_.baseline_of(question, methods)
    values = {label: metric(frames[label]) for label in arms}
    for label, frame in frames.items():
        values[label][statistics.diverged(frame)] = math.nan
    facts = {
        label: facts_of(
            label,
            arm.config,
            frames[label],
            "" if other_code else summaries[label]["versions"].get("code", ""),
            summaries[label]["train_seconds"],
        )
        for label, arm in arms.items()
    }

    def tested(label: str) -> bool:
        if arms[label].method == CONTROL:
            return False  # it makes no claim
        return question.ungated is not None or verdicts.untested(facts[label]) is None

    found, groups = {}, {}
    cadences = list(dict.fromkeys(arm.every for arm in arms.values()))
    for every in cadences:
        group = {label: arm for label, arm in arms.items() if arm.every == every}
        shared = replay_ratio(next(iter(group.values())).config)
        (base,) = (label for label, arm in group.items() if arm.method == baseline)
        suffix = f"_every{every}" if len(cadences) > 1 else ""
        groups[shared] = dict.fromkeys([base, *group], suffix)
        pairs = _pairs(group, base, values, metric.higher_is_better)
        found |= {label: (base, shared, own) for label, own in pairs.items()}
    claims = {label: own.p_value for label, (*_, own) in found.items() if tested(label)}
    corrected = paired.holm(claims)
    rows = []
    for label, (base, shared, pairs) in found.items():
        pairs = dataclasses.replace(pairs, p_holm=corrected.get(label))
        judgement = verdicts.judge(facts[label], facts[base], pairs, ungated=question.ungated)
        rows.append(Judged(label, arms[label].method, shared, pairs, judgement))
    return Findings(metric, baseline, rows, values, groups)


def replay_ratio(config: RunConfig) -> str:
    """Return how often a run learns, and how often it replays a transition, in words."""
    steps = config.loop.learn_every * config.sizes.num_envs / config.loop.updates
    ratio = arms_.replays_per_transition(config)
    return f"{steps:g} agent step{'s' * (steps != 1)} per update, {ratio:g} replays per transition"


def _pairs(
    group: Mapping[str, Arm],
    base: str,
    values: Mapping[str, pd.Series],
    higher_is_better: bool,
) -> dict[str, Pairs]:
    """Compare the arms of a cadence with their baseline."""
    claimed = {label: values[label] for label, arm in group.items() if arm.method != CONTROL}
    found = paired.compare_arms(paired.aligned(claimed), base, higher_is_better)
    for label, arm in group.items():
        if arm.method == CONTROL:  # its seeds are others: the k-th beside the k-th
            own, other = (values[each].sort_index().to_numpy() for each in (label, base))
            found[label] = paired.compare_pairs(own, other, higher_is_better)
    return found


def facts_of(
    label: str, config: RunConfig, frame: pd.DataFrame, code: str, train_seconds: float | None
) -> verdicts.Facts:
    """Return the facts that the gate needs about an arm.

    Args:
      label: name of the arm.
      config: its configuration.
      frame: its metrics.
      code: version of the code that made them; "" compares with any version.
      train_seconds: compute of all seeds together, if known.
    """
    updates = frame.get("replay/sampler_updates")
    learns = arms_.learns(config)
    return verdicts.Facts(
        label=label,
        env=config.env,
        code=code,
        settings=arms_.settings(config),
        seeds=tuple(sorted(int(seed) for seed in frame["seed"].unique())),
        prioritises=not arms_.draws_evenly(config),
        learned=learns,
        effective_buffer=verdicts.mean_after(
            frame, "replayed/effective_buffer", config.loop.warmup
        ),
        sampler_updates=None
        if updates is None or not learns
        else float(frame.assign(n=updates).groupby("seed")["n"].max().mean()),
        train_seconds=train_seconds,
    )
