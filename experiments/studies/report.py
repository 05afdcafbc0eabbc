"""Report of a sweep: figures, and tables of the best settings and of the costs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from experiments.figures import judged, sensitivity
from experiments.figures.curves import learning_curves
from experiments.figures.drawing import to_matplotlib
from experiments.figures.panels import own_metrics, replayed
from experiments.figures.solved import sentences, solved
from experiments.figures.style import plain
from experiments.statistics import tuned
from experiments.statistics.tables import markdown, number
from experiments.statistics.tuned import Estimate, Tuned
from experiments.statistics.verdicts import CONTROL
from experiments.storage.files import write_bytes
from experiments.studies import looks
from experiments.studies.costs import by_method
from experiments.studies.judge import Findings
from experiments.studies.store import Store, paths
from experiments.studies.study import Study

_MOST_GROUPS = 6  # largest number of groups with figures of learning curves


def conclude(store: Store, study: Study, findings: Findings | None) -> str:
    """Write the tables and figures of a study; return the text to print."""
    if study.search.search is not None:
        from experiments.studies import search_report

        return search_report.conclude(store, study)
    parts, written = [], [paths(store.folder)[0], store.folder / "study.md"]
    if findings is not None and findings.rows:
        parts.append(_compared(store, study, findings, written))
    table = store.table[store.table["replay"] != CONTROL]
    scored = tuned.scores(table, store.settings, study.metric)
    if tuned.has_choice(scored) or not parts:
        parts.append(_settings(store, study, scored, written))
    parts.append(costs(store))
    text = "\n".join(parts)
    write_bytes(store.folder / "study.md", text.encode())
    return f"\n{text}\nresults: {' '.join(map(str, written))}"


def _compared(store: Store, study: Study, findings: Findings, written: list[Path]) -> str:
    """Draw the figures of the comparison; return its sentences and tables."""
    out, members = store.folder, findings.members
    methods = {name: member.point.config.replay for name, member in members.items()}
    metric = study.metric(study.envs[0])
    frames = store.frames()
    named = {name: frames[member.point.id] for name, member in members.items()}
    lines = []
    for place, (group, names) in enumerate(findings.groups.items(), 1):
        rows = [row for row in findings.rows if row.group == group]
        env = members[names[0]].point.env
        lines += sentences(rows, methods, study.metric(env), names[0], env)
        config = members[names[0]].point.config
        title = plain(f"{config.agent} on {env}, {group.removeprefix(f'{env}, ')}")
        suffix = f"_{place}" if len(findings.groups) > 1 else ""
        if study.options.figures:
            written += _curves(
                {name: named[name] for name in names}, study, env, suffix, out, title
            )
        if not study.metric(env).higher_is_better:
            written.append(out / f"solved{suffix}.png")
            values = {name: findings.values[name] for name in names}
            steps = int(named[names[0]]["step"].max())
            solved(values, rows, methods, names[0], written[-1], title, steps)
    written.append(out / "verdicts.png")
    title = plain(f"{', '.join(study.envs)}: seed by seed")
    judged.forest(findings.rows, methods, metric, study.baseline, written[-1], title)
    if findings.looks:
        written.append(out / "looks.png")
        looks.draw(study, findings, written[-1])
    return (
        "\n".join(lines)
        + f"\n\nPrimary metric: {metric.name} ({metric.help}), seed by seed, against "
        f"{study.baseline}.\n\n{judged.table(findings.rows, metric)}\n"
        f"{judged.reasons(findings.rows)}"
    )


def _curves(
    frames: Mapping[str, pd.DataFrame], study: Study, env: str, suffix: str, out: Path, title: str
) -> list[Path]:
    """Draw the learning curves, the replayed transitions and the metrics of the methods."""
    written = [out / f"learning_curves{suffix}.png"]
    named = {plain(name): frame for name, frame in frames.items()}
    learning_curves(named, written[0], title, study.options.threshold_of(env))
    for name, draw in (("replayed", replayed), ("own_metrics", own_metrics)):
        path = out / f"{name}{suffix}.png"
        if draw(named, path, title):
            written.append(path)
    return written


def _settings(store: Store, study: Study, table: pd.DataFrame, written: list[Path]) -> str:
    """Draw the scores against the settings; return the table of the best settings."""
    rows = tuned.tuned(
        table, lambda env: study.metric(env).higher_is_better, store.facts["base_points"]
    )
    metric = study.metric(str(table["env"].iloc[0]))
    how = (
        "The best point was selected on every other seed. The last two columns show the other "
        "seeds."
        if tuned.has_choice(table)
        else "Every method has a single point, and the scores include all seeds."
    )
    if study.options.figures:
        agents = ", ".join(sorted(set(store.table["agent"])))
        path = store.folder / "sensitivity.png"
        drawn = sensitivity.sensitivity(table, store.settings, study.metric, agents)
        if drawn is not None:
            to_matplotlib(drawn, path)
            written.append(path)
        methods = dict(zip(table["replay"], table["method"], strict=True))
        path = store.folder / "best.png"
        seeds = min(row.shown.seeds for row in rows)
        to_matplotlib(sensitivity.best(rows, methods, study.metric, agents, seeds), path)
        written.append(path)
    return (
        f"{_best(rows)}\n"
        f"Scores: {metric.name} ({metric.help}), IQM over seeds [95 % interval]. {how}\n"
        f"{_diverged(table)}"
    )


def _best(rows: Sequence[Tuned]) -> str:
    header = ["best point", "of", "on the seeds that selected it", "on the others", "by default"]
    cells = [
        [row.best, str(row.points), shown(row.chosen), shown(row.shown), shown(row.default)]
        for row in rows
    ]
    return markdown([header, *cells])


def shown(found: Estimate | None) -> str:
    """Return an estimate in the format of the tables."""
    if found is None:
        return "-"
    lost = f", {found.diverged} of {found.seeds} diverged" if found.diverged else ""
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]{lost}"


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
