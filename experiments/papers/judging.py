"""Verdicts about the claims of an entry, from its table."""

import dataclasses
import math

import numpy as np
import pandas as pd

from experiments.papers.archive import Data, select_rows
from experiments.papers.entry import Claim, Computation, Entry, Exact, Experiment, SizeName
from experiments.statistics import verdicts
from experiments.statistics.claims import NotAsked, Outcome, Runs
from experiments.statistics.markdown import number
from experiments.statistics.verdicts import Verdict
from experiments.studies import judge, store

OTHER_QUESTION = "judged by another question than it was run for"
_MOST_SEEDS = 10_000  # largest number of seeds of a look


def judge_entry(entry: Entry, size: SizeName, data: Data) -> list[Verdict]:
    """Return the verdict about each claim of an entry, with p-values corrected over its claims.

    A claim about an arm that the size lacks is "not tested".
    """
    claims = [claim for claim in entry.claims if isinstance(claim, Claim)]
    if isinstance(entry.source, Experiment):
        answers = iter(_of_study(entry, entry.source, claims, size, data))
    else:
        answers = iter(_of_table(entry, claims, size, data))
    return [
        next(answers) if isinstance(claim, Claim) else _exact(claim, data.frame)
        for claim in entry.claims
    ]


def _of_study(
    entry: Entry, source: Experiment, claims: list[Claim], size: SizeName, data: Data
) -> list[Verdict]:
    """Return the verdicts about claims from the study of an experiment."""
    assert data.store is not None
    study = source.study(size, {entry.id: tuple(claims)})
    frames = judge.judged_frames(data.store, study)
    family = judge.family(study, claims, frames, data.store.made(), plan=True)
    then, most = data.store.study, study.question.most_seeds
    arms = {point.name for point in study.points()}
    now = store.asked(claim for claim in claims if {*claim.labels} <= arms)
    same = (
        store.asked(then.claims.get(entry.id, ())) == now
        and dataclasses.replace(then.question, most_seeds=most) == study.question
        and then.options.threshold == study.options.threshold
    )
    return [_with_remarks(verdict, same, study.max_seeds) for verdict in family]


def _with_remarks(verdict: Verdict, asked: bool, max_seeds: int) -> Verdict:
    """Return a verdict, with remarks if the study asked another question or stopped early.

    `asked` is whether the study asked the question that is judged.
    """
    if not verdict.looks:
        return verdict
    remarks = [] if asked else [OTHER_QUESTION]
    if verdict.verdict == "undecided" and verdict.seeds < max_seeds:
        remarks.append(f"stopped before the largest number of seeds, {max_seeds}")
    return dataclasses.replace(verdict, reason="; ".join([verdict.reason, *remarks]))


def _of_table(entry: Entry, claims: list[Claim], size: SizeName, data: Data) -> list[Verdict]:
    """Return the verdicts about claims from the table of a computation."""
    source = entry.source
    assert isinstance(source, Computation)
    looks = range(source.looks, _MOST_SEEDS, source.looks) if source.looks else None

    def pairs_of(claim: Claim) -> list[tuple[Runs, Runs]]:
        return [_pair(entry.id, source, claim, size, data)]

    return verdicts.judge(claims, pairs_of, looks)


def _pair(
    name: str, source: Computation, claim: Claim, size: SizeName, data: Data
) -> tuple[Runs, Runs]:
    """Return the values of a claim's arm and baseline from the table of a computation."""
    if missing := set(claim.where) - set(data.frame):
        raise ValueError(f"the table of {name} has no column {', '.join(sorted(missing))}")
    frame = select_rows(data.frame, claim.where)
    unit = f"in doublings of {source.unit}" if source.ratios else f"in {source.unit}"
    pair = []
    for label in (claim.arm, claim.baseline):
        rows = frame[frame["arm"] == label]
        if rows.empty:
            where = ", ".join(f"{name} {value}" for name, value in claim.where.items())
            reason = f"size {size} has no {label}" + f" where {where}" * bool(where)
            raise NotAsked(reason, absent=True)
        # Seeds that chose settings are no evidence about them.
        rows = rows[rows["seed"] >= source.options(size).get("searched", 0)]
        values = rows.set_index("seed")["value"].astype(float)
        if values.index.has_duplicates:
            raise ValueError(
                f"claim '{claim.says}': {name} has several values for one seed: name more columns "
                "in where, to select one value per seed"
            )
        values = (np.log2(values) if source.ratios else values).sort_index()
        pair.append(
            Runs(
                label=label, env=str(dict(claim.where)), code="+".join(data.codes()),
                values=values if source.higher_is_better else -values,
                unit=unit if source.unit else "",
            )
        )  # fmt: skip
    arm, baseline = pair
    if not source.looks:
        return arm, baseline
    # Some arms have more seeds than others: compare the seeds that both arms have.
    shared = arm.values.index.intersection(baseline.values.index)
    arm, baseline = (dataclasses.replace(runs, values=runs.values.loc[shared]) for runs in pair)
    return arm, baseline


def _exact(exact: Exact, frame: pd.DataFrame) -> Verdict:
    """Return the verdict about the equality of computed and expected numbers."""
    verdict, reason = _compare_exactly(exact, frame)
    claim = Claim(exact.says, "found", "expected")
    return Verdict(claim=claim, verdict=verdict, reason=reason, label=exact.says, method=exact.says)


def _compare_exactly(exact: Exact, frame: pd.DataFrame) -> tuple[Outcome, str]:
    rows = frame[frame["claim"] == exact.claim]
    if rows.empty:
        return "not tested", f"no row is about {exact.claim}"
    excess = (rows["found"] - rows["expected"]).abs() / rows["tolerance"]
    worst = rows.loc[excess.fillna(math.inf).idxmax()]
    off = int((~(excess <= 1)).sum())
    numbers = (
        f"{number(worst['found'])} beside {number(worst['expected'])}, "
        f"{abs(worst['found'] - worst['expected']):.2g} apart (tolerance {worst['tolerance']:.2g})"
    )
    if off:
        reason = f"{off} of {len(rows)} numbers differ, most of all {numbers}"
        return "disagrees", reason
    many = f"{len(rows)} numbers, the farthest " if len(rows) > 1 else ""
    return "agrees", f"{many}{numbers}"
