"""The head of a page: title, facts about the runs, and warnings."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.report.source import Arm, Source
from experiments.report.swept import Swept
from experiments.statistics import statistics
from experiments.statistics.verdicts import FEWEST_SEEDS


class Head(NamedTuple):
    """The head of a page."""

    title: str
    facts: Sequence[tuple[str, str]]
    warnings: Sequence[str]


def of_runs(source: Source, title: str | None) -> Head:
    """Return the head of a page; the default title names agent and environment."""
    arms = source.arms
    facts = [("agent", source.agent), ("environment", source.env)]
    if len(arms) > 1:
        facts.append(("arms", ", ".join(arms)))
    else:
        facts.append(("replay", ", ".join(arm.replay for arm in arms.values())))
    facts.append(("seeds", span([_seeds(arm) for arm in arms.values()])))
    ends = [arm.summary["final_step"] if arm.summary else arm.progress[0] for arm in arms.values()]
    facts.append(("agent steps", span(ends)))
    return Head(title or _title(source), facts, _warnings(source))


def _warnings(source: Source) -> list[str]:
    """Return warnings about the results, one per line."""
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
    for label, arm in source.arms.items():
        if seeds := _diverged(arm):
            listed = ", ".join(map(str, seeds))
            lines.append(f"{label} diverged with seed{'s' * (len(seeds) > 1)} {listed}.")
    codes = dict.fromkeys(arm.code for arm in source.arms.values() if arm.code)
    if len(codes) > 1 or any("+" in code for code in codes):
        made = "Several versions of the code or settings of JAX made these results"
        lines.append(f"{made}: {', '.join(codes)}.")
    return lines


def of_study(swept: Swept, title: str | None) -> Head:
    """Return the head of a page; the default title names agents and tasks."""
    frame = swept.store.frame
    agents = ", ".join(dict.fromkeys(map(str, frame["agent"])))
    points = swept.store.facts["points"].values()
    facts = [
        ("agent", agents),
        ("environments" if len(swept.envs) > 1 else "environment", ", ".join(swept.envs)),
        ("replay", ", ".join(swept.methods)),
        *([("settings", ", ".join(swept.settings))] if swept.settings else []),
        ("runs", f"{len(swept.table):,} ({len(points):,} point{'s' * (len(points) != 1)})"),
        ("seeds", _seeds_of_study(swept)),
        ("agent steps", span(frame.groupby("point")["step"].max().tolist())),
        ("primary metric", swept.metric.name),
    ]
    verb = "swept " if swept.has_choice else ""
    if swept.tried is not None:
        verb = "searched "
        facts.insert(3, ("search", swept.store.facts["search"]["asked"]["search"]))
    return Head(
        title or f"{agents} {verb}on {', '.join(swept.envs)}", facts, _warnings_of_study(swept)
    )


def _warnings_of_study(swept: Swept) -> list[str]:
    """Return warnings about the results, one per line."""
    lines = list(swept.remarks)
    failed, ended = len(swept.store.facts["failed"]), len(swept.table)
    if swept.tried is not None:
        lines += _unfinished_search(swept)
    elif ended < swept.asked:
        lines.append(f"{ended:,} of {swept.asked:,} runs have ended.")
    if swept.findings and (undecided := len(swept.findings.undecided)):
        most = swept.study.question.most_seeds
        if max(swept.seeds) < most:
            lines.append(f"{undecided} undecided: up to {most:,} seeds follow with --resume.")
    if failed:
        lines.append(f"{failed} run{'s' * (failed > 1)} failed.")
    if lost := int((swept.table["diverged"] > 0).sum()):
        lines.append(f"{lost} run{'s' * (lost > 1)} diverged.")
    rows = swept.findings.rows if swept.findings else []
    for verdict in ("pilot", "not tested", "not comparable"):
        if labels := [row.label for row in rows if row.judgement.verdict == verdict]:
            lines.append(f"{verdict.capitalize()}: {', '.join(labels)} (reasons below).")
    if reasons := dict.fromkeys(row.judgement.ungated for row in rows if row.judgement.ungated):
        lines.append(f"Judged without the gate: {', '.join(reasons)}.")
    fewest = min((row.shown.seeds for row in swept.rows), default=0)
    if swept.has_choice and fewest < FEWEST_SEEDS and (swept.rows or swept.tried is None):
        lines.append(
            f"Best settings are shown on {fewest} seed{'s' * (fewest != 1)}: differences between "
            f"methods need a comparison of at least {FEWEST_SEEDS}, with settings fixed before it "
            "runs."
        )
    if "+" in swept.code:
        lines.append(
            f"Several versions of the code or settings of JAX made these results: {swept.code}."
        )
    return lines


def _seeds_of_study(swept: Swept) -> str:
    if swept.tried is None:
        return span(swept.seeds)
    asked = swept.store.facts["search"]["asked"]
    return f"{len(asked['seeds']):,} that choose, {len(asked['fresh_seeds']):,} fresh"


def _unfinished_search(swept: Swept) -> list[str]:
    """Return a line for each unfinished part of a search."""
    asked = swept.store.facts["search"]["asked"]
    lines = []
    for env, labels in asked["space"].items():
        for label, space in labels.items():
            own = swept.tried[(swept.tried["env"] == env) & (swept.tried["replay"] == label)]
            if space and len(own) < asked["trials"]:
                lines.append(
                    f"{env} {label}: {len(own):,} of {asked['trials']:,} trials have ended."
                )
            elif swept.row(env, label) is None:
                lines.append(f"{env} {label}: not all fresh seeds have ended.")
    return lines


def _title(source: Source) -> str:
    if len(source.arms) == 1:
        (arm,) = source.arms.values()
        return f"{source.agent} with {arm.replay} replay on {source.env}"
    return f"{source.agent} on {source.env}"


def _seeds(arm: Arm) -> int:
    if arm.summary is not None:
        return len(arm.summary["seeds"])
    return int(arm.config.get("seeds", 0) if arm.frame is None else arm.frame["seed"].nunique())


def span(numbers: Sequence[int]) -> str:
    """Return the range of some numbers in words."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _diverged(arm: Arm) -> list[int]:
    if arm.summary is not None:
        return list(arm.summary.get("diverged", ()))
    return [] if arm.frame is None else statistics.diverged_seeds(arm.frame)
