"""Tables of our numbers: final scores, primary metrics, and numbers that claims compare."""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from experiments.papers.archive import Data, select_rows
from experiments.papers.entry import Claim, Computation, Entry, Exact, Experiment, SizeName
from experiments.runs.registry import THRESHOLDS
from experiments.statistics import claims, primary
from experiments.statistics.bootstrap import bootstrap_interval, iqm
from experiments.statistics.markdown import number, span
from experiments.statistics.summaries import curves
from experiments.studies.facts import replay_ratio

Cells = list[list[str]]  # rows of a table, header first

_LAST = 5  # number of evaluations in a final score, as in the papers' tables


def conditions(entry: Entry, size: SizeName, data: Data) -> str:
    """Return a sentence with seeds, agent steps, batch size and replay ratio of an entry."""
    source = entry.source
    assert isinstance(source, Experiment)
    configs = [
        arm.config
        for arms in source.points(size).values()
        for label, arm in arms.items()
        if not entry.arms or label in entry.arms
    ]
    steps = _each(f"{config.loop.steps:_}".replace("_", " ") for config in configs)
    batches = _each(str(config.sizes.batch_size) for config in configs)
    ratios = _each(replay_ratio(config) for config in configs)
    seeds = span([
        frame["seed"].nunique()
        for env in source.points(size)
        for label, frame in data.frames(env).items()
        if not entry.arms or label in entry.arms
    ])  # fmt: skip
    most = f" (at most {source.sizes[size].most_seeds})" if source.sizes[size].most_seeds else ""
    return f"{seeds} seeds{most}, {steps} agent steps, batches of {batches}; {ratios}."


def _each(values: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(values))


def of_runs(entry: Entry, size: SizeName, data: Data) -> Cells:
    """Return final scores, primary metrics of the claims, and replay statistics of each arm."""
    source = entry.source
    assert isinstance(source, Experiment)
    asked = dict.fromkeys(
        claim.primary or source.question.primary
        for claim in entry.claims
        if isinstance(claim, Claim)
    )
    deciding = [name for name in asked if name != f"last_{_LAST}"]
    tables = {env: data.frames(env) for env in source.points(size)}
    lengths = [len(curves(frame)) for frames in tables.values() for frame in frames.values()]
    count = min([_LAST, *lengths])
    header = ["task", "arm", f"return, last {count} evaluations: IQM [95 %]"]
    header += [f"{_named(name)}: IQM [95 %]" for name in deciding]
    header += ["effective buffer", "updates of its network", *(f"mean {n}" for n in entry.columns)]
    rows = []
    for env, arms in source.points(size).items():
        for label, frame in tables[env].items():
            if entry.arms and label not in entry.arms:
                continue
            last = curves(frame).iloc[-count:].mean().to_numpy()
            cells = [estimate(last)]
            for name in deciding:
                try:
                    threshold = THRESHOLDS.get(env)
                    warmup = arms[label].config.loop.warmup
                    values = claims.values_of(frame, name, threshold, warmup)
                    cells.append(estimate(_as_it_is(values.to_numpy(float), name)))
                except claims.NotAsked:
                    cells.append("-")
            means = [_mean(frame, name) for name in entry.columns]
            replayed = _mean(frame, "replayed/effective_buffer")
            rows.append([env, label, *cells, replayed, _updates(frame), *means])
    return _without_empty([header, *rows])


def of_claims(entry: Entry, data: Data) -> Cells:
    """Return a table of the numbers that an entry's claims compare; without claims, its header."""
    source = entry.source
    assert isinstance(source, Computation)
    sides = {
        (tuple(claim.where.items()), label): None
        for claim in entry.claims
        if isinstance(claim, Claim)
        for label in (claim.arm, claim.baseline)
    }
    rows = [["of", "arm", f"{source.unit or 'value'}: IQM [95 %]"]]
    for where, label in sides:
        chosen = select_rows(data.frame, dict(where))
        values = chosen.loc[chosen["arm"] == label, "value"].to_numpy(float)
        if len(values):
            shown = ", ".join(f"{name} {value}" for name, value in where if name != "kind")
            rows.append([shown, label, estimate(values)])
    return rows


def exact(entry: Entry, data: Data) -> Cells:
    """Return the rows of the table that exact claims are about."""
    names = [claim.claim for claim in entry.claims if isinstance(claim, Exact)]
    return whole(data.frame[data.frame["claim"].isin(names)])


def whole(frame: pd.DataFrame) -> Cells:
    """Return the cells of a table without its empty columns."""
    frame = frame.dropna(axis=1, how="all")
    rows = [
        [number(float(x)) if isinstance(x, (int, float)) else str(x) for x in row]
        for row in frame.itertuples(index=False)
    ]
    return [list(map(str, frame.columns)), *rows]


def estimate(values: np.ndarray) -> str:
    """Return the IQM of values `[S]` over seeds with its 95 % bootstrap interval.

    If some seeds have no finite value, return their number and the median instead.
    """
    finite = values[np.isfinite(values)]
    if len(finite) < len(values):
        shown = f"{len(values) - len(finite)} of {len(values)} seeds without a number"
        return f"{shown}, median {number(_median(values))}"
    low, high = bootstrap_interval(finite) if len(finite) > 1 else (finite[0], finite[0])
    return f"{number(float(iqm(finite)))} [{number(float(low))}, {number(float(high))}]"


def _median(values: np.ndarray) -> float | None:
    """Return the median, counting missing values as infinite, or None if it is infinite."""
    median = float(np.median(np.where(np.isfinite(values), values, math.inf)))
    return median if math.isfinite(median) else None


def _as_it_is(values: np.ndarray, name: str) -> np.ndarray:
    """Return values of metric `name` with its sign; verdicts negate metrics if lower is better."""
    if name.startswith(claims.MEAN):
        return values
    return values if primary.parse(name, threshold=0.0).higher_is_better else -values


def _named(name: str) -> str:
    names = {"auc": "mean of all evaluations", "steps_to_threshold": "agent steps until solved"}
    return names.get(name, name.replace(claims.MEAN, "mean ").replace("_", " "))


def _without_empty(rows: Cells) -> Cells:
    """Return rows without the columns in which no row has a number."""
    kept = [place for place in range(len(rows[0])) if any(row[place] != "-" for row in rows[1:])]
    return [[row[place] for place in kept] for row in rows]


def _mean(frame: pd.DataFrame, column: str) -> str:
    return number(float(frame[column].mean())) if column in frame else "-"


def _updates(frame: pd.DataFrame) -> str:
    column = "replay/sampler_updates"
    if column not in frame:
        return "-"
    return number(float(frame.groupby("seed")[column].max().mean()))
