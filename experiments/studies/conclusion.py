"""The end of a study: its tables in `study.md`, and its figures as PNG."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.figures import judged, sensitivity
from experiments.figures.drawing import Panel, write_grid
from experiments.figures.panels import during_training
from experiments.figures.solved import sentences, write_solved
from experiments.figures.style import plain, styles_of
from experiments.files.disk import write_bytes
from experiments.runs.log import waiting
from experiments.statistics import summaries, tuned
from experiments.statistics.claims import CONTROL
from experiments.statistics.counts import ALPHA, count_pairs
from experiments.statistics.markdown import markdown, with_interval
from experiments.statistics.markdown import table as summary_table
from experiments.statistics.tuned import Estimate
from experiments.studies.costs import Cost, by_method
from experiments.studies.definition import Study
from experiments.studies.judge import Findings, judged_frames
from experiments.studies.results import Results, is_run, run_of
from experiments.studies.store import Store, paths

_MOST_GROUPS = 6  # largest number of groups with figures of learning curves


def conclude(results: Results) -> str:
    """Write the tables and figures of a study; return the text to print."""
    store, study, findings = results.store, results.study, results.findings
    if is_run(store):
        return _conclude_run(results)
    shown, tables, pictures = [], [], []
    if findings is not None and (findings.rows or findings.claims):
        assert isinstance(study, Study)  # only a validated study has findings
        shown.append(_sentences(study, findings))
        pictures += _draw_comparison(results, study, findings)
        tables.append(_compared(results, study, findings))
    if results.has_choice or not shown:
        shown.append(_best_settings(results, pictures))
    parts = [*shown, *tables, markdown(cost_cells(store))]
    path = store.folder / "study.md"
    write_bytes(path, "\n".join(parts).encode())
    lines = "\n         ".join(map(str, pictures))
    return f"\n{chr(10).join(shown)}\npicture: {lines}\ntables:  {path} {paths(store.folder)[0]}"


def _conclude_run(results: Results) -> str:
    """Draw the figures of a run; return its table and the path of the results."""
    folder, run = results.store.folder, run_of(results.store)
    text = summary_table([run.summary or {}])
    if not results.study.options.figures:
        return f"{text}\nresults: {folder}/"
    title = f"{run.config['agent']} with {run.replay} replay on {run.config['env']}"
    frames, methods = {run.replay: run.frame}, {run.replay: run.replay}
    with waiting("drawing the figures"):
        during_training(frames, methods, folder, title, run.threshold, curves="learning_curve")
    return f"{text}\nresults: {folder}/  (figure: {folder / 'learning_curve.png'})"


def _sentences(study: Study, findings: Findings) -> str:
    """Return the verdicts in sentences."""
    if findings.claims:
        return "\n".join(map(_of_claim, findings.claims)) + "\n"
    members = findings.members
    methods = {own.point.label: own.point.config.replay for own in members.values()}
    lines = []
    for env in study.envs:
        rows = [row for row in findings.rows if members[row.label].point.env == env]
        lines += sentences(rows, methods, study.metric(env), study.baseline, env)
    return "\n".join(lines) + "\n"


def _of_claim(row: Mapping[str, Any]) -> str:
    counts = f" ({row['wins']}/{row['losses']}/{row['ties']})" if "wins" in row else ""
    return f"{row['claim']}: {row['verdict']}{counts}"


def _draw_comparison(results: Results, study: Study, findings: Findings) -> list[Path]:
    """Draw the figures of the verdicts and of training; return the paths of the main figures."""
    out, written, groups = results.store.folder, [], results.compared_groups()
    for place, group in enumerate(groups, 1):
        suffix, env = f"_{place}" if len(groups) > 1 else "", group.env
        settings = group.title.removeprefix(f"{env}, ")
        if study.options.figures and place <= _MOST_GROUPS:
            title = plain(f"{results.agents} on {env}, {settings}")
            during_training(group.frames, group.methods, out, title, group.threshold, suffix)
        if not study.metric(env).higher_is_better:
            written.append(out / f"solved{suffix}.png")
            baseline, steps = next(iter(group.methods)), group.steps
            title = f"{env}: {results.agents}, {settings}"
            write_solved(
                group.values, group.rows, group.methods, baseline, written[-1], title, steps
            )
    if findings.rows:
        forest = out / "verdicts.png"
        title = plain(f"{', '.join(study.envs)}: seed by seed")
        methods = {name: own.point.config.replay for name, own in findings.members.items()}
        metric = study.metric(study.envs[0])
        judged.forest(findings.rows, methods, metric, study.baseline, forest, title)
        written += [] if written else [forest]
    if (panel := leads_panel(results)) is not None:
        written.append(out / "looks.png")
        title = f"against {study.baseline}, {', '.join(study.envs)}"
        write_grid(written[-1], title, [panel], (8.6, 4.6))
    return written


def leads_panel(results: Results) -> Panel | None:
    """Return a panel of wins minus losses after every seed, or None.

    It is None unless the study is sequential and has verdicts about arms.
    """
    study, findings = results.study, results.findings
    if findings is None or not (study.question.until_decided and findings.rows):
        return None
    leads, decided = {}, []
    for verdict in findings.rows:
        name, seeds = verdict.label, verdict.seeds
        member = findings.members[name]
        higher = study.metric(member.point.env).higher_is_better
        arm, base = (findings.values[key].to_numpy(float) for key in (name, member.baseline))
        counts = [count_pairs(arm[:n], base[:n], higher) for n in range(seeds + 1)]
        leads[name] = [own.wins - own.losses for own in counts]
        decided += [name] if verdict.verdict != "undecided" else []
    members = {name: findings.members[name] for name in leads}
    claims = sum(member.point.label != CONTROL for member in members.values())
    styles = styles_of({name: member.point.config.replay for name, member in members.items()})
    return partial(
        judged.draw_leads, leads=leads, decided=decided, styles=styles,
        alpha=ALPHA / max(claims, 1),
    )  # fmt: skip


def verdict_cells(results: Results) -> tuple[list[list[str]], list[str]] | None:
    """Return the table of verdicts, and a line for each with its reason; None without verdicts."""
    findings = results.findings
    if findings is None or not (findings.rows or findings.claims):
        return None
    if findings.claims:
        reasons = [f"{row['claim']}: {row['reason']}" for row in findings.claims]
        return judged.claim_cells(findings.claims), reasons
    reasons = [f"{row.label}: {row.reason}" for row in findings.rows]
    return judged.cells(findings.rows, results.metric.unit), reasons


def _compared(results: Results, study: Study, findings: Findings) -> str:
    """Return the tables of final returns and of verdicts."""
    metric, frames = study.metric(study.envs[0]), judged_frames(results.store, study)
    rows = []
    for name, member in findings.members.items():
        goal = study.options.threshold_of(member.point.env)
        summary = summaries.summarise(frames[member.point.id], goal)
        rows.append({**summary, "replay": name})
    summary, more = summary_table(rows, "arm"), ""
    seeds = max((need.seeds for need in findings.undecided.values()), default=study.max_seeds)
    if seeds < study.max_seeds:
        more = f"Stopped after {seeds} of at most {study.max_seeds} seeds.\n\n"
    question = f"{more}Primary metric: {metric.name} ({metric.help}), seed by seed"
    question += "" if findings.claims else f", against {study.baseline}"
    cells, reasons = verdict_cells(results) or ([], [])
    lines = [f"- {reason}" for reason in reasons]
    return "\n".join([summary, f"{question}.\n", markdown(cells), *lines, ""])


def _best_settings(results: Results, written: list[Path]) -> str:
    """Draw the scores against the settings; return the table of the best settings."""
    study, metric = results.study, results.metric
    how = (
        "Half of the seeds, every second one, selected the best point. The last two columns show "
        "the other half."
        if tuned.has_choice(results.runs)
        else "Every method has a single point, and the scores include all seeds."
    )
    if study.options.figures:
        written += _draw_settings(results)
    return (
        f"{markdown(best_cells(results))}\n"
        f"Scores: {metric.name} ({metric.help}), IQM over seeds [95 % interval]. {how}\n"
        f"{_diverged(results.runs)}"
    )


def _draw_settings(results: Results) -> list[Path]:
    """Draw the scores against each setting, and the methods with best and default settings."""
    metric, runs, written, envs = results.study.metric, results.runs, [], len(results.envs)
    if rows := sensitivity.sensitivity_panels(runs, results.store.settings, metric):
        written.append(results.store.folder / "sensitivity.png")
        write_grid(
            written[-1], f"{results.agents}: each setting, IQM over seeds with 95 % intervals",
            [panel for row in rows.values() for panel in row],
            (0.6 + 6.0 * envs, 0.6 + 3.7 * len(rows)), columns=envs,
            seeds=int(runs.groupby("point")["seed"].nunique().min()),
        )  # fmt: skip
    panels = sensitivity.best_panels(results.best, results.methods, metric)
    written.append(results.store.folder / "best.png")
    write_grid(
        written[-1], f"{results.agents}: at their best, and by default (hollow)",
        [*panels.values()], (2.2 + 4.2 * len(panels), 1.4 + 0.5 * len(results.methods)),
        columns=len(panels), seeds=min(row.shown.seeds for row in results.best),
    )  # fmt: skip
    return written


def best_cells(results: Results) -> list[list[str]]:
    """Return a table of the best settings of every method, and their scores."""
    header = [
        "method", "best settings", "of", "on the seeds that selected them", "on the others",
        "by default",
    ]  # fmt: skip
    several = len(results.envs) > 1
    return [header] + [
        [
            f"{row.env} {row.label}" if several else row.label,
            results.point_settings(row.best),
            str(row.points),
            *map(format_estimate, (row.chosen, row.shown, row.default)),
        ]
        for row in results.best
    ]


def format_estimate(estimate: Estimate | None) -> str:
    """Return an estimate in the format of the tables."""
    if estimate is None:
        return "-"
    lost = f", {estimate.diverged} of {estimate.seeds} diverged" if estimate.diverged else ""
    return f"{with_interval(estimate.value, (estimate.low, estimate.high))}{lost}"


def _diverged(table: pd.DataFrame) -> str:
    lost = int((table["diverged"] > 0).sum())
    rule = "in the selection, a diverged run ranks below all others"
    return f"{lost} of {len(table)} runs diverged: {rule}.\n" if lost else ""


def cost_cells(store: Store) -> list[list[str]]:
    """Return a table of the runs, agent steps, updates and time of each method on each task."""
    costs = by_method(store)
    total = Cost(*(sum(parts) for parts in zip(*costs.values(), strict=True)))
    header = ["compute", "runs", "agent steps", "updates", "device seconds", "of these compiling"]
    named = {f"{env} {label}": cost for (env, label), cost in costs.items()}
    return [header] + [
        [
            name, f"{cost.runs:,}", f"{cost.steps:,}", f"{cost.updates:,}",
            f"{cost.seconds:,.0f}", f"{cost.compiling:,.0f}",
        ]
        for name, cost in {**named, "all": total}.items()
    ]  # fmt: skip
