"""The head of a page: what it shows, how far that has come, and what to be careful about."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.analysis import statistics
from experiments.analysis.verdicts import FEWEST_SEEDS
from experiments.pages.source import Arm, Source


class Head(NamedTuple):
    """The head of a page."""

    title: str
    facts: Sequence[tuple[str, str]]
    warnings: Sequence[str]


def head(source: Source, title: str | None) -> Head:
    """Return the head of a page; without a title it is named after agent and environment."""
    arms = source.arms
    facts = [("agent", source.agent), ("environment", source.env)]
    if len(arms) > 1:
        facts.append(("arms", ", ".join(arms)))
    else:
        facts.append(("replay", ", ".join(arm.replay for arm in arms.values())))
    facts.append(("seeds", span([_seeds(arm) for arm in arms.values()])))
    facts.append(("agent steps", _steps(list(arms.values()))))
    if source.judgements:
        facts.append(("primary metric", source.judgements.primary["name"]))
    elif source.question:
        facts.append(("primary metric", str(source.question["primary"])))
    return Head(title or _title(source), facts, warnings(source))


def warnings(source: Source) -> list[str]:
    """Return what a reader must know before believing the numbers, a line each."""
    lines = list(source.remarks)
    for label, arm in source.arms.items():
        if arm.summary is None and arm.frame is None:
            lines.append(f"{label} has not come to its first log point.")
        elif arm.summary is None:
            so_far, whole = arm.progress
            of = "" if whole is None else f" of {whole:,}"
            lines.append(f"{label} has not ended: {so_far:,}{of} agent steps so far.")
    fewest = min(map(_seeds, source.arms.values()))
    if len(source.arms) > 1 and fewest < FEWEST_SEEDS:
        lines.append(f"Pilot: a verdict takes {FEWEST_SEEDS} seeds, and these are {fewest}.")
    rows = source.judgements.rows if source.judgements else []
    for verdict in ("not tested", "not comparable"):
        if labels := [row.label for row in rows if row.judgement.verdict == verdict]:
            lines.append(f"{verdict.capitalize()}: {', '.join(labels)} (reasons below).")
    if reasons := dict.fromkeys(row.judgement.ungated for row in rows if row.judgement.ungated):
        lines.append(f"Judged without the gate: {', '.join(reasons)}.")
    for label, arm in source.arms.items():
        if seeds := _diverged(arm):
            lines.append(f"{label} diverged with seed{'s' * (len(seeds) > 1)} {_listed(seeds)}.")
    codes = dict.fromkeys(arm.code for arm in source.arms.values() if arm.code)
    if len(codes) > 1 or any("+" in code for code in codes):
        made = "Several versions of the code or settings of JAX made these results"
        lines.append(f"{made}: {', '.join(codes)}.")
    return lines


def _title(source: Source) -> str:
    if len(source.arms) == 1 and not source.comparison:
        (arm,) = source.arms.values()
        return f"{source.agent} with {arm.replay} replay on {source.env}"
    return f"{source.agent} on {source.env}"


def _seeds(arm: Arm) -> int:
    if arm.summary is not None:
        return len(arm.summary["seeds"])
    return int(arm.config.get("seeds", 0) if arm.frame is None else arm.frame["seed"].nunique())


def _steps(arms: Sequence[Arm]) -> str:
    ends = [arm.summary["final_step"] if arm.summary else arm.progress[0] for arm in arms]
    return span(ends)


def span(numbers: Sequence[int]) -> str:
    """Return the smallest and largest of some numbers in words."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _diverged(arm: Arm) -> list[int]:
    if arm.summary is not None:
        return list(arm.summary.get("diverged", ()))
    return [] if arm.frame is None else statistics.diverged(arm.frame)


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
