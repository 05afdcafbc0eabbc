"""Report of a study: figures, and tables of the best settings and of the costs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.figures import judged, sensitivity
from experiments.figures.drawing import to_matplotlib
from experiments.figures.elements import Axis, Figure, Line, Panel, Points, Rule
from experiments.figures.panels import during_training
from experiments.figures.solved import draw_solved, sentences
from experiments.figures.style import FAINT, plain, styles_of
from experiments.statistics import statistics, tuned
from experiments.statistics.claims import CONTROL
from experiments.statistics.counts import ALPHA, Counts, count_pairs, log_sign_capital
from experiments.statistics.markdown import markdown, with_interval
from experiments.statistics.markdown import table as summary_table
from experiments.statistics.tuned import Estimate, Tuned
from experiments.storage.files import write_bytes
from experiments.studies.costs import by_method
from experiments.studies.judge import Findings, judged_frames
from experiments.studies.results import Results
from experiments.studies.store import Store, paths
from experiments.studies.study import Study

_MOST_GROUPS = 6  # largest number of groups with figures of learning curves


def conclude(results: Results) -> str:
    """Write the tables and figures of a study; return the text to print."""
    store, study, findings = results.store, results.study, results.findings
    shown, tables, pictures = [], [], []
    if findings is not None and (findings.rows or findings.claims):
        assert isinstance(study, Study)  # only a validated study has findings
        shown.append(_sentences(study, findings))
        pictures += _draw_comparison(store, study, findings)
        tables.append(_compared(store, study, findings))
    if results.has_choice or not shown:
        shown.append(_best_settings(results, pictures))
    parts = [*shown, *tables, costs(store)]
    path = store.folder / "study.md"
    write_bytes(path, "\n".join(parts).encode())
    lines = "\n         ".join(map(str, pictures))
    return f"\n{chr(10).join(shown)}\npicture: {lines}\ntables:  {path} {paths(store.folder)[0]}"


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


def _draw_comparison(store: Store, study: Study, findings: Findings) -> list[Path]:
    """Draw the figures of the verdicts and of training; return the main ones."""
    out, members, metric = store.folder, findings.members, study.metric(study.envs[0])
    methods = {name: own.point.config.replay for name, own in members.items()}
    frames, written = store.frames(), []
    for place, (group, names) in enumerate(findings.groups.items(), 1):
        env, config = members[names[0]].point.env, members[names[0]].point.config
        title = plain(f"{config.agent} on {env}, {group.removeprefix(f'{env}, ')}")
        suffix = f"_{place}" if len(findings.groups) > 1 else ""
        short = {name: members[name].method for name in names}
        own = {short[name]: methods[name] for name in names}
        if study.options.figures and place <= _MOST_GROUPS:
            curves = {short[name]: frames[members[name].point.id] for name in names}
            goal = study.options.threshold_of(env)
            during_training(curves, own, out, title, goal, suffix)
        if not study.metric(env).higher_is_better:
            written.append(out / f"solved{suffix}.png")
            rows = [
                dataclasses.replace(row, label=row.method)
                for row in findings.rows
                if row.group == group
            ]
            values = {short[name]: findings.values[name] for name in names}
            steps = int(frames[members[names[0]].point.id]["step"].max())
            title = f"{env}: {config.agent}, {group.removeprefix(f'{env}, ')}"
            draw_solved(values, rows, own, short[names[0]], written[-1], title, steps)
    if findings.rows:
        forest = out / "verdicts.png"
        title = plain(f"{', '.join(study.envs)}: seed by seed")
        judged.forest(findings.rows, methods, metric, study.baseline, forest, title)
        written += [] if written else [forest]
    if study.question.until_decided and findings.rows:
        written.append(out / "looks.png")
        to_matplotlib(_looks(study, findings), written[-1])
    return written


def _looks(study: Study, findings: Findings) -> Figure:
    """Return wins minus losses after every seed, with markers at looks that decided.

    Dashed lines are the boundary at level alpha / arms for pairs without ties. An arm beyond it is
    better or worse for any results of the other arms. Ties and Holm's method only narrow it.
    """
    verdicts = {row.label: row for row in findings.rows}
    arms = {name: own for name, own in findings.members.items() if name in verdicts}
    styles = styles_of({name: member.point.config.replay for name, member in arms.items()})
    marks, most = [], 2
    for name, member in arms.items():
        higher = study.metric(member.point.env).higher_is_better
        seeds = verdicts[name].seeds
        own, base = (
            findings.values[each].to_numpy(float)[:seeds] for each in (name, member.baseline)
        )
        counts = [count_pairs(own[:n], base[:n], higher) for n in range(seeds + 1)]
        lead = [each.wins - each.losses for each in counts]
        marks.append(Line(name, range(seeds + 1), lead, styles[name], steps=True))
        if verdicts[name].verdict != "undecided":
            marks.append(Points(name, [seeds], lead[-1:], styles[name], opacity=1.0, named=False))
        most = max(most, seeds)
    claims = sum(member.point.label != CONTROL for member in arms.values())
    x = np.arange(1, most + 1)
    edge = np.array([_boundary(n, ALPHA / max(claims, 1)) for n in x], float)
    dashed = {"color": FAINT, "linestyle": "--", "linewidth": 1.0}
    marks += [Line("", x, sign * edge, dashed, named=False) for sign in (1, -1)]
    panel = Panel("", Axis("seeds", whole=True), Axis("wins minus losses"), marks, [Rule(0.0)])
    title = f"against {study.baseline}, {', '.join(study.envs)}"
    return Figure(title, [panel], (8.6, 4.2), legend="beside")


def _boundary(seeds: int, alpha: float) -> float:
    """Return the least wins minus losses that reject mu = 1/2 after `seeds` pairs, or NaN."""
    for lead in range(seeds % 2, seeds + 1, 2):
        wins = (seeds + lead) // 2
        if log_sign_capital(Counts(wins, 0, seeds - wins)) >= -math.log(alpha):
            return lead
    return math.nan


def _compared(store: Store, study: Study, findings: Findings) -> str:
    """Return the tables of final returns and of verdicts."""
    metric, frames = study.metric(study.envs[0]), judged_frames(store, study)
    rows = []
    for name, member in findings.members.items():
        goal = study.options.threshold_of(member.point.env)
        summary = statistics.summarise(frames[member.point.id], goal)
        rows.append({**summary, "replay": name})
    summary, more = summary_table(rows, "arm"), ""
    seeds = max((need.seeds for need in findings.undecided.values()), default=study.max_seeds)
    if seeds < study.max_seeds:
        more = f"Stopped after {seeds} of at most {study.max_seeds} seeds.\n\n"
    question = f"{more}Primary metric: {metric.name} ({metric.help}), seed by seed"
    if findings.claims:
        cells = judged.claim_cells(findings.claims)
        reasons = [f"- {row['claim']}: {row['reason']}" for row in findings.claims]
    else:
        question += f", against {study.baseline}"
        cells = judged.cells(findings.rows, metric.unit)
        reasons = [f"- {row.label}: {row.reason}" for row in findings.rows]
    return "\n".join([summary, f"{question}.\n", markdown(cells), *reasons, ""])


def _best_settings(results: Results, written: list[Path]) -> str:
    """Draw the scores against the settings; return the table of the best settings."""
    store, study, table, rows = results.store, results.study, results.runs, results.best
    metric = results.metric
    how = (
        "The best point was selected on every other seed. The last two columns show the other "
        "seeds."
        if tuned.has_choice(table)
        else "Every method has a single point, and the scores include all seeds."
    )
    if study.options.figures:
        path = store.folder / "sensitivity.png"
        drawn = sensitivity.sensitivity(table, store.settings, study.metric, results.agents)
        if drawn is not None:
            to_matplotlib(drawn, path)
            written.append(path)
        path = store.folder / "best.png"
        seeds = min(row.shown.seeds for row in rows)
        drawn = sensitivity.best(rows, results.methods, study.metric, results.agents, seeds)
        to_matplotlib(drawn, path)
        written.append(path)
    return (
        f"{_best(rows)}\n"
        f"Scores: {metric.name} ({metric.help}), IQM over seeds [95 % interval]. {how}\n"
        f"{_diverged(table)}"
    )


def _best(rows: Sequence[Tuned]) -> str:
    header = ["best point", "of", "on the seeds that selected it", "on the others", "by default"]
    cells = [
        [
            row.best,
            str(row.points),
            format_estimate(row.chosen),
            format_estimate(row.shown),
            format_estimate(row.default),
        ]
        for row in rows
    ]
    return markdown([header, *cells])


def format_estimate(found: Estimate | None) -> str:
    """Return an estimate in the format of the tables."""
    if found is None:
        return "-"
    lost = f", {found.diverged} of {found.seeds} diverged" if found.diverged else ""
    return f"{with_interval(found.value, (found.low, found.high))}{lost}"


def _diverged(table: pd.DataFrame) -> str:
    lost = int((table["diverged"] > 0).sum())
    rule = "in the selection, a diverged run ranks below all others"
    return f"{lost} of {len(table)} runs diverged: {rule}.\n" if lost else ""


def costs(store: Store) -> str:
    """Return a table of the runs, agent steps, updates and time of each method on each task."""
    header = ["compute", "runs", "agent steps", "updates", "device seconds", "of these compiling"]
    cells = [
        [
            f"{env} {label}", f"{cost.runs:,}", f"{cost.steps:,}", f"{cost.updates:,}",
            f"{cost.seconds:,.0f}", f"{cost.compiling:,.0f}",
        ]
        for (env, label), cost in by_method(store).items()
    ]  # fmt: skip
    return markdown([header, *cells])
