"""What a sweep shows: figures, and tables of methods at their best and of what they cost."""

from collections.abc import Sequence

import pandas as pd

from experiments.analysis import sensitivity, tuned
from experiments.analysis.files import write_bytes
from experiments.analysis.tables import markdown, number
from experiments.analysis.tuned import Estimate, Tuned
from experiments.sweeps.costs import by_method
from experiments.sweeps.options import SweepOptions
from experiments.sweeps.store import TABLE, Store


def conclude(store: Store, options: SweepOptions) -> str:
    """Write figures and tables of what a sweep has; return the text to print."""
    table = tuned.scores(store.frame, store.settings, options.metric)
    rows = tuned.tuned(
        table, lambda env: options.metric(env).higher_is_better, store.facts["base_points"]
    )
    metric = options.metric(str(table["env"].iloc[0]))
    how = (
        "The best point was chosen on every other seed, and is shown on the rest, as are the "
        "defaults."
        if tuned.has_choice(table)
        else "Every method has one point: there is nothing to choose, and all seeds are shown."
    )
    text = (
        f"{_best(rows)}\n"
        f"Scores: {metric.name} ({metric.help}), IQM over seeds [95 % interval]. {how}\n"
        f"{_diverged(table)}\n{costs(store)}"
    )
    write_bytes(store.folder / "sweep.md", text.encode())
    written = [store.folder / TABLE, store.folder / "sweep.md"]
    if options.figures:
        agents = ", ".join(sorted(set(store.frame["agent"])))
        path = store.folder / "sensitivity.png"
        if sensitivity.sensitivity(table, store.settings, options.metric, path, agents):
            written.append(path)
        methods = dict(zip(table["replay"], table["method"], strict=True))
        path = store.folder / "best.png"
        seeds = min(row.shown.seeds for row in rows)
        sensitivity.best(rows, methods, options.metric, path, agents, seeds)
        written.append(path)
    return f"\n{text}\nresults: {' '.join(map(str, written))}"


def _best(rows: Sequence[Tuned]) -> str:
    header = ["best point", "of", "on the seeds that chose it", "on the others", "by default"]
    cells = [
        [row.best, str(row.points), shown(row.chosen), shown(row.shown), shown(row.default)]
        for row in rows
    ]
    return markdown([header, *cells])


def shown(found: Estimate | None) -> str:
    """Return an estimate as tables show it."""
    if found is None:
        return "-"
    lost = f", {found.diverged} of {found.seeds} diverged" if found.diverged else ""
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]{lost}"


def _diverged(table: pd.DataFrame) -> str:
    lost = int((table["diverged"] > 0).sum())
    rule = "to choose, a seed that did counts as worse than any that did not"
    return f"{lost} of {len(table)} runs diverged: {rule}.\n" if lost else ""


def costs(store: Store) -> str:
    """Return what each method on each task took: runs, agent steps, gradient updates, time."""
    header = ["compute", "runs", "agent steps", "updates", "device seconds", "of these compiling"]
    cells = [
        [
            f"{env} {label}", f"{cost.runs:,}", f"{cost.steps:,}", f"{cost.updates:,}",
            f"{cost.seconds:,.0f}", f"{cost.compiling:,.0f}",
        ]
        for (env, label), cost in by_method(store).items()
    ]  # fmt: skip
    return markdown([header, *cells])
