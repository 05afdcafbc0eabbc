"""The judge of a comparison whose arms are runs in folders of their own."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from experiments.figures.judged import Judged
from experiments.runs import arms as arms_
from experiments.runs.arms import Arm, Question
from experiments.runs.judging import facts_of, replay_ratio
from experiments.statistics import primary
from experiments.statistics.verdicts import CONTROL, Facts
from experiments.studies import claims
from experiments.studies.claims import Asked, Claim, Side


class Findings(NamedTuple):
    """Results of a comparison."""

    metric: primary.PrimaryMetric
    baseline: str  # label of its method
    rows: list[Judged]
    values: dict[str, pd.Series]  # [seeds] of the metric, by label
    groups: dict[str, dict[str, str]]  # shared settings -> labels -> suffix of files

    def to_json(self, question: Question, arms: Mapping[str, Arm]) -> dict[str, Any]:
        """Return the results as plain values."""
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
    """Compare every arm with the baseline at the same replay ratio, with all seeds.

    P-values are corrected over all arms that were tested (Holm). A seed that diverged is worse than
    any that did not.

    Args:
      question: question of the comparison.
      arms: arms by label.
      frames: their metrics.
      summaries: content of their `summary.json`.
      threshold: return that counts as solved, if there is one.
      other_code: whether results of different versions of the code may be compared.
    """
    metric = primary.parse(question.primary, threshold)
    methods = {arm.method: arm.config for arm in arms.values() if arm.method != CONTROL}
    baseline = arms_.baseline_of(question, methods)

    def side(label: str) -> Side:
        config, summary = arms[label].config, summaries[label]
        code = "" if other_code else summary["versions"].get("code", "")
        seconds = summary["train_seconds"]

        @functools.cache
        def facts(seeds: int | None) -> Facts:
            del seeds  # a fixed design has no looks
            return facts_of(label, config, frames[label], code, seconds)

        values = claims.values_of(frames[label], question.primary, threshold, config.loop.warmup)
        return Side(facts, values)

    sides = {label: side(label) for label in arms}
    asked, shared, groups = {}, {}, {}
    cadences = list(dict.fromkeys(arm.every for arm in arms.values()))
    for every in cadences:
        group = {label: arm for label, arm in arms.items() if arm.every == every}
        name = replay_ratio(next(iter(group.values())).config)
        (base,) = (label for label, arm in group.items() if arm.method == baseline)
        groups[name] = dict.fromkeys([base, *group], f"_every{every}" * (len(cadences) > 1))
        for label, arm in group.items():
            if label != base:
                control = arm.method == CONTROL
                pair = [(sides[label], sides[base])]
                claim = Claim("", label, base)
                asked[label] = Asked(claim, pair, apart=control, corrects=not control)
                shared[label] = name
    found = claims.fixed(asked, question.ungated)
    rows = [
        Judged(label, arms[label].method, shared[label], own.pairs, own.judgement)
        for label, own in found.items()
    ]
    sign = 1 if metric.higher_is_better else -1
    values = {label: own.values * sign for label, own in sides.items()}
    return Findings(metric, baseline, rows, values, groups)
