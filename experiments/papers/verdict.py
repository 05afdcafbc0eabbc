"""Verdicts about the claims of an entry, from its table."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.papers.entry import Claim, Computation, Entry, Exact, Experiment, SizeName
from experiments.papers.tables import Data
from experiments.statistics.decisions import Verdict
from experiments.statistics.tables import number
from experiments.statistics.verdicts import Facts, Judgement
from experiments.studies import claims as claims_
from experiments.studies import judge, store
from experiments.studies.claims import Absent, Asked, Found, NotAsked, Side, TooFew

OTHER_QUESTION = "judged by another question than it was run for"


class Finding(NamedTuple):
    """Verdict about a claim."""

    says: str
    verdict: Verdict
    reason: str  # in words, with numbers
    judgement: Judgement | None = None  # None for exact claims and claims without numbers
    absent: bool = False  # whether the size lacks the arm or the task


def findings(entry: Entry, size: SizeName, data: Data) -> list[Finding]:
    """Return the verdict about each claim of an entry, with p-values corrected over its claims.

    A claim about an arm that the size lacks is "not tested".
    """
    asked = [claim for claim in entry.claims if isinstance(claim, Claim)]
    if isinstance(entry.source, Experiment):
        judged = iter(_of_study(entry, entry.source, asked, size, data))
    else:
        judged = iter(_of_table(entry, asked, size, data))
    return [
        _finding(claim, next(judged)) if isinstance(claim, Claim) else _exact(claim, data.frame)
        for claim in entry.claims
    ]


def _finding(claim: Claim, found: Found | NotAsked) -> Finding:
    if isinstance(found, NotAsked):
        absent = isinstance(found, Absent)
        return Finding(claim.says, found.verdict, str(found), absent=absent)
    own = found.judgement
    return Finding(claim.says, own.verdict, own.reason, own)


def _of_study(
    entry: Entry, source: Experiment, claims: list[Claim], size: SizeName, data: Data
) -> list[Found | NotAsked]:
    """Return the verdicts about claims from the study of an experiment."""
    assert data.store is not None
    study = source.study(size, {entry.id: tuple(claims)})
    frames = judge.judged_frames(data.store, study)
    found = judge.family(study, claims, frames, data.store.made(), plan=True)
    then, most = data.store.study, study.question.most_seeds
    arms = {point.name for point in study.points()}
    now = store.asked(claim for claim in claims if {claim.arm, claim.baseline} <= arms)
    same = (
        store.asked(then.claims.get(entry.id, ())) == now
        and dataclasses.replace(then.question, most_seeds=most) == study.question
        and then.options.threshold == study.options.threshold
    )
    return [_with_remarks(own, same, study.max_seeds) for own in found]


def _with_remarks(found: Found | NotAsked, asked: bool, max_seeds: int) -> Found | NotAsked:
    """Return a verdict with remarks on a question of after the runs, and on an early stop."""
    if isinstance(found, NotAsked):
        return found
    own, remarks = found.judgement, [] if asked else [OTHER_QUESTION]
    if own.verdict == "undecided" and own.seeds < max_seeds:
        remarks.append(f"stopped before the largest number of seeds, {max_seeds}")
    reason = "; ".join([own.reason, *remarks])
    return found._replace(judgement=dataclasses.replace(own, reason=reason))


def _of_table(
    entry: Entry, claims: list[Claim], size: SizeName, data: Data
) -> list[Found | NotAsked]:
    """Return the verdicts about claims from the table of a computation."""
    source = entry.source
    assert isinstance(source, Computation)
    unit = f"in doublings of {source.unit}" if source.ratios else f"in {source.unit}"

    def ask(claim: Claim) -> Asked:
        both = [_sides(entry.id, source, claim, size, data)]
        if (seeds := len(both[0][0].values)) < source.looks:
            raise TooFew(f"pilot: {seeds} seeds, fewer than the {source.looks} of a look")
        return Asked(claim, both, unit if source.unit else "")

    def looks_of(asked: Sequence[Asked]) -> list[int] | None:
        counts = {len(own.sides[0][0].values) for own in asked}
        if not source.looks or not counts:
            return None
        return sorted({*range(source.looks, max(counts), source.looks), *counts})

    return claims_.judge_family(claims, ask, looks_of)


def _sides(
    name: str, source: Computation, claim: Claim, size: SizeName, data: Data
) -> tuple[Side, Side]:
    """Return the values of arm and baseline of a claim in a computed table."""
    if missing := set(claim.where) - set(data.frame):
        raise ValueError(f"the table of {name} has no column {', '.join(sorted(missing))}")
    frame = select_rows(data.frame, claim.where)
    code, where = "+".join(data.codes()), str(dict(claim.where))
    both = []
    for label in (claim.arm, claim.baseline):
        own = frame[frame["arm"] == label]
        if own.empty:
            rows = ", ".join(f"{name} {value}" for name, value in claim.where.items())
            raise Absent(f"size {size} has no {label}" + f" where {rows}" * bool(rows))
        # Seeds that chose settings are no evidence about them.
        own = own[own["seed"] >= source.options(size).get("searched", 0)]
        values = own.set_index("seed")["value"].astype(float)
        if values.index.has_duplicates:
            raise ValueError(f"'{claim.says}': {name} has several numbers of a seed: name more")
        values = (np.log2(values) if source.ratios else values).sort_index()

        def facts(seeds: int | None, label: str = label, index: Any = values.index) -> Facts:
            return Facts(label, where, code, {}, tuple(index[:seeds]))

        both.append(Side(facts, values if source.higher_is_better else -values))
    if source.looks:  # more seeds of some arms: compare those that both arms have
        shared = both[0].values.index.intersection(both[1].values.index)
        both = [each._replace(values=each.values.loc[shared]) for each in both]
    return both[0], both[1]


def _exact(claim: Exact, frame: pd.DataFrame) -> Finding:
    rows = frame[frame["claim"] == claim.claim]
    if rows.empty:
        return Finding(claim.says, "not tested", f"no row is about {claim.claim}")
    excess = (rows["found"] - rows["expected"]).abs() / rows["tolerance"]
    worst = rows.loc[excess.fillna(math.inf).idxmax()]
    off = int((~(excess <= 1)).sum())
    numbers = (
        f"{number(worst['found'])} beside {number(worst['expected'])}, "
        f"{abs(worst['found'] - worst['expected']):.2g} apart (tolerance {worst['tolerance']:.2g})"
    )
    if off:
        reason = f"{off} of {len(rows)} numbers differ, most of all {numbers}"
        return Finding(claim.says, "disagrees", reason)
    many = f"{len(rows)} numbers, the farthest " if len(rows) > 1 else ""
    return Finding(claim.says, "agrees", f"{many}{numbers}")


def select_rows(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows in which columns have the values in `where`."""
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return frame
