"""The head of a page: title, facts about the runs, and warnings."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.report.source import Arm, Source
from experiments.statistics import statistics
from experiments.statistics.counts import FEWEST_SEEDS
from experiments.statistics.markdown import span
from experiments.studies.results import Results


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
    ends = [arm.summary["final_step"] if arm.summary else arm.steps for arm in arms.values()]
    facts.append(("agent steps", span(ends)))
    return Head(title or _title(source), facts, _warnings(source))


def _warnings(source: Source) -> list[str]:
    """Return warnings about the results, one per line."""
    lines = list(source.remarks)
    for label, arm in source.arms.items():
        if arm.summary is None:
            so_far, whole = arm.steps, arm.config["loop"]["steps"]
            lines.append(f"{label} has not ended: {so_far:,} of {whole:,} agent steps so far.")
    fewest = min(map(_seeds, source.arms.values()))
    if len(source.arms) > 1 and fewest < FEWEST_SEEDS:
        lines.append(f"Pilot: a verdict takes {FEWEST_SEEDS} seeds, and these are {fewest}.")
    for label, arm in source.arms.items():
        if seeds := statistics.diverged_seeds(arm.frame):
            listed = ", ".join(map(str, seeds))
            lines.append(f"{label} diverged with seed{'s' * (len(seeds) > 1)} {listed}.")
    codes = dict.fromkeys(arm.code for arm in source.arms.values() if arm.code)
    if len(codes) > 1 or any("+" in code for code in codes):
        made = "Several versions of the code or settings of JAX made these results"
        lines.append(f"{made}: {', '.join(codes)}.")
    return lines


def of_study(results: Results, title: str | None) -> Head:
    """Return the head of a page; the default title names agents and tasks."""
    frame = results.store.frame
    agents = ", ".join(dict.fromkeys(map(str, frame["agent"])))
    points = results.store.facts["points"].values()
    facts = [
        ("agent", agents),
        ("environments" if len(results.envs) > 1 else "environment", ", ".join(results.envs)),
        ("replay", ", ".join(results.methods)),
        *([("settings", ", ".join(results.settings))] if results.settings else []),
        ("runs", f"{len(results.runs):,} ({len(points):,} point{'s' * (len(points) != 1)})"),
        ("seeds", _seeds_of_study(results)),
        ("agent steps", span(frame.groupby("point")["step"].max().tolist())),
        ("primary metric", results.metric.name),
    ]
    verb = "swept " if results.has_choice else ""
    if results.trials is not None:
        verb = "searched "
        facts.insert(3, ("search", results.asked["search"]))
    return Head(
        title or f"{agents} {verb}on {', '.join(results.envs)}", facts, _warnings_of_study(results)
    )


def _warnings_of_study(results: Results) -> list[str]:
    """Return warnings about the results, one per line."""
    lines = list(results.remarks)
    failed, ended = len(results.store.facts["failed"]), len(results.runs)
    if results.trials is not None:
        lines += _unfinished_search(results)
    else:  # up to the first look in a sequential study
        wanted = sum(point["config"]["seeds"] for point in results.store.facts["points"].values())
        if ended < wanted:
            lines.append(f"{ended:,} of {wanted:,} runs have ended.")
    if results.findings and (undecided := len(results.findings.undecided)):
        most = results.study.question.most_seeds
        if max(_seeds_of_points(results)) < most:
            lines.append(f"{undecided} undecided: up to {most:,} seeds follow with --resume.")
    if failed:
        lines.append(f"{failed} run{'s' * (failed > 1)} failed.")
    if lost := int((results.runs["diverged"] > 0).sum()):
        lines.append(f"{lost} run{'s' * (lost > 1)} diverged.")
    rows = results.findings.rows if results.findings else []
    for verdict in ("pilot", "not tested", "not comparable"):
        if labels := [row.label for row in rows if row.verdict == verdict]:
            lines.append(f"{verdict.capitalize()}: {', '.join(labels)} (reasons below).")
    if reasons := dict.fromkeys(row.ungated for row in rows if row.ungated):
        lines.append(f"Judged without the gate: {', '.join(reasons)}.")
    fewest = min((row.shown.seeds for row in results.best), default=0)
    if results.has_choice and fewest < FEWEST_SEEDS and (results.best or results.trials is None):
        lines.append(
            f"Best settings are shown on {fewest} seed{'s' * (fewest != 1)}: differences between "
            f"methods need a comparison of at least {FEWEST_SEEDS}, with settings fixed before it "
            "runs."
        )
    if "+" in results.code:
        lines.append(
            f"Several versions of the code or settings of JAX made these results: {results.code}."
        )
    return lines


def _seeds_of_study(results: Results) -> str:
    if results.trials is None:
        return span(_seeds_of_points(results))
    asked = results.asked
    return f"{len(asked['seeds']):,} that choose, {len(asked['fresh_seeds']):,} fresh"


def _seeds_of_points(results: Results) -> list[int]:
    return results.runs.groupby("point")["seed"].nunique().tolist()


def _unfinished_search(results: Results) -> list[str]:
    """Return a line for each unfinished part of a search."""
    asked = results.asked
    lines = []
    for env, labels in asked["space"].items():
        for label, space in labels.items():
            own = results.trials[
                (results.trials["env"] == env) & (results.trials["replay"] == label)
            ]
            if space and len(own) < asked["trials"]:
                lines.append(
                    f"{env} {label}: {len(own):,} of {asked['trials']:,} trials have ended."
                )
            elif results.best_of(env, label) is None:
                lines.append(f"{env} {label}: not all fresh seeds have ended.")
    return lines


def _title(source: Source) -> str:
    if len(source.arms) == 1:
        (arm,) = source.arms.values()
        return f"{source.agent} with {arm.replay} replay on {source.env}"
    return f"{source.agent} on {source.env}"


def _seeds(arm: Arm) -> int:
    return arm.frame["seed"].nunique()
