"""The HTML page of a study: verdicts, best settings, training, costs and configuration."""

import shlex
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.figures import judged, page, sensitivity, solved
from experiments.figures.page import NARROW, WIDE, Head, Section
from experiments.figures.sections import ArmGroup, training
from experiments.figures.style import Styles, styles_of
from experiments.runs import outside, run_config
from experiments.statistics import tuned
from experiments.statistics.bootstrap import stratified_interval
from experiments.statistics.counts import FEWEST_SEEDS
from experiments.statistics.gate import FEWEST_UPDATES, UNIFORM_BUFFER
from experiments.statistics.markdown import span, with_interval
from experiments.statistics.paired import probability_of_improvement
from experiments.studies.conclusion import (
    best_cells,
    cost_cells,
    leads_panel,
    verdict_cells,
)
from experiments.studies.results import Results

_MOST_NAMED = 20  # largest number of runs to list


def render(results: Results, title: str | None = None) -> str:
    """Return the HTML of the page; the default title names agents and tasks."""
    groups = results.compared_groups()
    tuning = results.has_choice or results.findings is None
    return page.render(
        _head(results, title),
        [
            _verdicts(results),
            _comparison(results, groups),
            *([_best(results), _tasks(results), _sensitivity(results)] if tuning else []),
            *training(results.default_groups() if tuning else groups),
            _costs(results),
            _failures(results),
            _configuration(results),
        ],
    )


def shared_options(
    configs: Mapping[str, Mapping[str, Any]],
) -> tuple[list[list[str]], list[list[str]]]:
    """Return the options that all configurations share, and the options that differ.

    Both results are rows of texts, without a header. A row has the name of an option and its value
    if all share the option, and otherwise its name and the value of each label in `configs`.
    """
    texts = {
        label: {f"--{k}".replace("_", "-"): v for k, v in run_config.option_texts(own).items()}
        for label, own in configs.items()
    }
    names = dict.fromkeys(name for own in texts.values() for name in own)
    rows = [[name, *(own.get(name, "-") for own in texts.values())] for name in names]
    common = [row[:2] for row in rows if len(set(row[1:])) == 1]
    return common, [row for row in rows if len(set(row[1:])) > 1]


def _head(results: Results, title: str | None) -> Head:
    frame, points = results.store.frame, results.store.facts["points"]
    agents = ", ".join(dict.fromkeys(map(str, frame["agent"])))
    facts = [
        ("agent", agents),
        ("environments" if len(results.envs) > 1 else "environment", ", ".join(results.envs)),
        ("replay", ", ".join(results.methods)),
        *([("settings", ", ".join(results.settings))] if results.settings else []),
        (
            "runs",
            f"{len(results.store.ended()):,} ({len(points):,} point{'s' * (len(points) != 1)})",
        ),
        ("seeds", span(_seeds_of_points(results))),
        ("agent steps", span(frame.groupby("point")["step"].max().tolist())),
        ("primary metric", results.metric.name),
    ]
    verb = "swept " if results.has_choice else ""
    return Head(title or f"{agents} {verb}on {', '.join(results.envs)}", facts, _warnings(results))


def _warnings(results: Results) -> list[str]:
    """Return warnings about the results, one per line."""
    lines = [results.unjudged] if results.unjudged else []
    points, failed = results.store.facts["points"].values(), len(results.store.facts["failed"])
    wanted, ended = sum(point["config"]["seeds"] for point in points), len(results.store.ended())
    if ended < wanted:  # up to the first look in a sequential study
        lines.append(f"{ended:,} of {wanted:,} runs have ended.")
    if results.findings and (undecided := len(results.findings.undecided)):
        most = results.study.question.most_seeds
        if max(_seeds_of_points(results)) < most:
            lines.append(f"Undecided: {undecided}; --resume adds seeds, up to {most:,} in total.")
    if failed:
        lines.append(f"{failed} run{'s' * (failed > 1)} failed.")
    if lost := int((results.runs["diverged"] > 0).sum()):
        lines.append(f"{lost} run{'s' * (lost > 1)} diverged.")
    rows = results.findings.rows if results.findings else []
    for verdict in ("pilot", "not tested", "not comparable"):
        if labels := [row.label for row in rows if row.verdict == verdict]:
            lines.append(f"{verdict.capitalize()}: {', '.join(labels)} (reasons below).")
    if reasons := dict.fromkeys(row.ungated for row in rows if row.ungated):
        lines.append(f"Untested arms are judged, too (--ungated): {', '.join(reasons)}.")
    fewest = min((row.shown.seeds for row in results.best), default=0)
    if results.has_choice and fewest < FEWEST_SEEDS:
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


def _seeds_of_points(results: Results) -> list[int]:
    return results.runs.groupby("point")["seed"].nunique().tolist()


def _verdicts(results: Results) -> Section | None:
    """Return the section with the verdicts, or None if nothing was compared."""
    if (shown := verdict_cells(results)) is None:
        return None
    cells, reasons = shown
    metric = results.metric
    what = "The claims of the study compare two arms, seed by seed."
    if not (results.findings and results.findings.claims):
        what = (
            f"Every arm is compared with {results.study.baseline}, seed by seed; positive "
            "differences are better for the arm."
        )
    intro = (
        f"Primary metric, fixed before anything ran: {metric.name} ({metric.help}). {what} A "
        f"prioritised arm is tested if it used at most {UNIFORM_BUFFER:g} of the buffer (this does "
        "not apply to batches of differently drawn parts), and a learned sampler if its network "
        f"was updated {FEWEST_UPDATES} times."
    )
    return Section("verdicts", "Verdicts", intro, [page.table(cells), page.bullets(reasons)])


def _comparison(results: Results, groups: list[ArmGroup]) -> Section | None:
    """Return the section with wins, differences of all seeds, and seeds that solved the task."""
    blocks = [_compared(group.title, group.rows, group.styles) for group in groups if group.rows]
    if results.findings and (claims := results.findings.claimed):
        methods = {name: m.point.config.replay for name, m in results.findings.members.items()}
        replays = {m.point.name: m.point.config.replay for m in results.findings.members.values()}
        named = {
            row["claim"]: replays.get(row["arm"], row["arm"]) for row in results.findings.claims
        }
        blocks = [_compared("", claims, styles_of(methods | named))]
    if not blocks:
        return None
    for group in groups:
        if not results.study.metric(group.env).higher_is_better:
            styles = solved.solved_styles(group.values, group.rows, group.methods)
            panel = partial(
                solved.draw_solved, values=group.values, styles=styles, rows=group.rows,
                steps=group.steps, title="Seeds that have solved the task",
            )  # fmt: skip
            blocks.append(page.panels([panel], group.title, styles, WIDE))
    if (panel := leads_panel(results)) is not None:
        blocks.append(page.panels([panel], "Seeds until decided", size=WIDE))
    intro = "Positive differences are better for the arm; hollow arms were not tested."
    return Section("compared", "Arms and baseline", intro, blocks)


def _compared(title: str, rows: Any, styles: Styles) -> str:
    """Return the HTML of panels of wins and, if there are any, of differences, seed by seed."""
    base = rows[0].claim.baseline if title else "the other arm"
    wins, size = judged.improvement_label(rows, base), _height(len(rows))
    how_often = partial(judged.draw_improvement, label=wins, title="Wins, seed by seed")
    by = f"better than {base} by: seeds, IQM [95 %]"
    how_much = partial(judged.draw_differences, label=by, title="Differences, seed by seed")
    drawn = [how_often, how_much] if judged.has_differences(rows) else [how_often]
    return page.panels([partial(own, rows=rows, styles=styles) for own in drawn], title, size=size)


def _best(results: Results) -> Section | None:
    """Return the section with every method's best and default settings, on held-out seeds."""
    if not results.best:
        return None
    intro = (
        f"Scores: {results.metric.name} ({results.metric.help}), IQM over seeds [95 % bootstrap "
        "interval]; hollow: by default. The best of many points on the seeds that selected it is "
        "partly luck: half of the seeds select, and the other half is shown."
    )
    if not tuned.has_choice(results.runs):
        intro += " Here every method has a single setting, which is shown on all seeds."
    if results.runs["diverged"].any():
        intro += " In the selection, a diverged seed ranks below all others."
    if any(row.default is None for row in results.best):
        intro += " Points without a default are not in the sweep: --defaults true adds them."
    drawn = sensitivity.best_panels(results.best, results.methods, results.study.metric)
    figures = page.panels([*drawn.values()], size=_height(len(results.methods)))
    blocks = [page.table(best_cells(results)), figures]
    return Section("best", "At their best, and by default", intro, blocks)


def _tasks(results: Results) -> Section | None:
    """Return the section on how probably each method beats the first method, over all tasks."""
    first, points = next(iter(results.methods)), results.store.facts["base_points"]
    best = {(row.env, row.label): row.best for row in results.best}
    default = {(env, label): point for env, own in points.items() for label, point in own.items()}
    cells = []
    for kind, chosen in (("at its best", best), ("by default", default)):
        scores = _scores(results, chosen)
        if (base := scores.pop(first, None)) is not None:
            cells += [[label, kind, _odds(own, base)] for label, own in scores.items()]
    if not cells:
        return None
    intro = (
        f"The probability that a seed of a method has a better score than one of {first}, ties "
        "half: methods at their best against its best, and by default against its default, on the "
        "seeds that selected nothing, with 95 % bootstrap intervals, stratified over tasks. "
        "Methods that are not on every task are left out, and a diverged seed ranks below all "
        "others."
    )
    table = page.table([["method", "", f"P(better than {first})"], *cells])
    return Section("tasks", "Probability of improvement", intro, [table])


def _sensitivity(results: Results) -> Section | None:
    """Return the section with scores against every setting with more than one value, by task."""
    rows = sensitivity.sensitivity_panels(
        results.runs, results.store.settings, results.study.metric
    )
    if not rows:
        return None
    intro = (
        f"{results.metric.name} against each setting, over all seeds: IQM with 95 % bootstrap "
        "intervals. Every choice of the other settings is a line; where these are many, a method "
        "is one line, averaged over them. A level band is a method without the setting. A cross is "
        "a point with diverged seeds: their scores are in it, but select nothing."
    )
    size = (5.2, 3.8)
    if len(results.envs) == 1:
        blocks = [page.panels([panel for row in rows.values() for panel in row], size=size)]
    else:
        blocks = [page.panels(row, name, size=size) for name, row in rows.items()]
    return Section("settings-swept", "Sensitivity to settings", intro, blocks)


def _scores(results: Results, points: Mapping[tuple[str, str], str]) -> dict[str, np.ndarray]:
    """Return scores `[seeds, tasks]` by label, for methods with a point in `points` on every task.

    Higher is better. Scores are from held-out seeds; seeds that diverged have -inf.
    """
    sign = 1.0 if results.metric.higher_is_better else -1.0
    shown = {(row.env, row.label): row.shown.seeds for row in results.best}
    scores = {}
    for label in results.methods:
        columns = []
        for env in results.envs:
            rows = results.runs[results.runs["point"] == points.get((env, label))]
            rows = rows[rows["seed"].isin(results.unseen(env))].sort_values("seed")
            values = sign * rows["ranked"].to_numpy(np.float64)
            columns.append(values if len(values) == shown.get((env, label)) else [])
        if all(len(column) for column in columns) and len(set(map(len, columns))) == 1:
            scores[label] = np.stack(columns, axis=-1)
    return scores


def _odds(scores: np.ndarray, base: np.ndarray) -> str:
    arms = [scores, base]
    low, high = stratified_interval(arms, probability_of_improvement)
    return with_interval(float(probability_of_improvement(*arms)), (float(low), float(high)))


def _costs(results: Results) -> Section:
    intro = (
        "Seconds are those of one device, shared between the runs of a program. Compilation is "
        "their wait for the training loop to be compiled or loaded."
    )
    return Section("time", "Compute", intro, [page.table(cost_cells(results.store))])


def _failures(results: Results) -> Section | None:
    """Return the section with failed and diverged runs, or None if there are none."""
    lines = [f"Failed: {name}: {why}" for name, why in results.store.facts["failed"].items()]
    lost = results.runs[results.runs["diverged"] > 0]
    lines += [f"Diverged: {row.point}, seed {row.seed}" for row in lost.itertuples()]
    if len(lines) > _MOST_NAMED:
        lines = [*lines[:_MOST_NAMED], f"and {len(lines) - _MOST_NAMED} more"]
    intro = "Diverged runs are among the scores and rank below all others; failed runs are not."
    return Section("failures", "Failures", intro, [page.bullets(lines)]) if lines else None


def _configuration(results: Results) -> Section:
    """Return the section with the common configuration, versions, and the study's command."""
    facts = results.store.facts
    versions = [str(facts["versions"].get(key, "-")) for key in ("device", "python", "jax")]
    configs = {name: point["config"] for name, point in facts["points"].items()}
    names = [(kind, own[kind]) for own in configs.values() for kind in ("env", "agent", "replay")]
    outsiders = [each for each in dict.fromkeys(names) if outside.is_outside(*each)]
    words = [word for kind, name in outsiders for word in (f"--{kind}", name)]
    command = ["python", "-m", "experiments.study", "study.json", *words, "--out", "runs/again"]
    common, _ = shared_options(configs)
    blocks = [
        page.table([["device", "Python", "jax", "code"], [*versions, results.code]]),
        page.table([["option", "value"], *common], "Common to all runs", folded=True),
        page.code(shlex.join(command)),
    ]
    intro = (
        "In the folder of the study, the last line repeats it, with the version of the code named "
        "here."
    )
    return Section("settings", "Configuration", intro, blocks)


def _height(rows: int) -> tuple[float, float]:
    """Return the width and height, in inches, of a panel with this number of rows."""
    return NARROW[0], max(2.4, 1.2 + 0.4 * rows)
