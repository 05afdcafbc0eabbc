"""Our numbers beside the papers', as Markdown."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from experiments.analysis.bootstrap import bootstrap_interval, iqm
from experiments.analysis.statistics import curves
from experiments.analysis.tables import markdown, number
from experiments.papers import rates, tables, verdict
from experiments.papers.entry import PAPERS, Entry
from experiments.papers.experiment import Experiment, SizeName
from experiments.papers.figures import path_of
from experiments.papers.running import missing, stale, version_of
from experiments.papers.tables import Data
from experiments.papers.verdict import Finding
from experiments.runs.log import say
from experiments.runs.rates import in_words

_LAST = 5  # evaluations of which our numbers are means, where a paper has tables of final scores


def read(entry: Entry, size: SizeName, results: Path) -> Data | None:
    """Return the table of an entry; None: there is none, or it is damaged, which is said."""
    if entry.source is None:
        return None
    try:
        return tables.read(results, entry.source.name, size)
    except tables.Damaged as error:
        say(f"{error}: it counts as not there; run makes it anew")
        return None


def status(entry: Entry, size: SizeName, data: Data | None) -> str:
    """Return how far an entry has come: not to be had, to do, other settings, begun, done."""
    if entry.source is None:
        return "not to be had"
    if data is None:
        return "to do"
    if stale(entry.source, size, data, other_code=True):
        return "other settings"
    if isinstance(entry.source, Experiment) and missing(entry.source, size, data):
        return "begun"
    return "done"


def found(entry: Entry, size: SizeName, data: Data | None) -> list[Finding]:
    """Return what an entry's claims come to; none, as long as its table is not whole."""
    return verdict.findings(entry, size, data) if status(entry, size, data) == "done" else []


def claims(
    entry: Entry, size: SizeName, data: Data | None, findings: list[Finding]
) -> list[list[str]]:
    """Return a row for each claim of an entry: what it says, the entry, verdict, why."""
    if findings:
        return [[each.says, entry.id, each.verdict, each.reason] for each in findings]
    state = status(entry, size, data)
    return [[claim.says, entry.id, state, "-"] for claim in entry.claims]


def one(entry: Entry, size: SizeName, results: Path, base: Path) -> str:
    """Return the report of one entry.

    Args:
      entry: which.
      size: of its table.
      results: the folder of its table and figure.
      base: the folder that links start from.
    """
    data = read(entry, size, results)
    return _one(entry, size, results, base, data, found(entry, size, data))


def _one(
    entry: Entry,
    size: SizeName,
    results: Path,
    base: Path,
    data: Data | None,
    findings: list[Finding],
) -> str:
    lines = [f"### {entry.id}: {entry.shows}", ""]
    if entry.missing:
        lines += [f"Not to be had: {entry.missing}", ""]
    state = status(entry, size, data)
    if state == "done":
        assert data is not None and entry.source is not None
        lines += _claims(findings)
        figure = path_of(entry, size, results)
        if entry.layout is not None and figure.exists():
            lines += [f"![{entry.id}]({os.path.relpath(figure, base)})", ""]
        if isinstance(entry.source, Experiment):
            lines += [_scores(entry, size, data), ""]
        elif entry.layout is None and not entry.claims:
            lines += _numbers(data)
        notes = list(entry.note)
        if isinstance(entry.source, Experiment) and entry.source.sizes[size].note:
            notes.insert(0, entry.source.sizes[size].note)
        lines += [*(f"- {sentence}" for sentence in notes), ""] if notes else []
        lines += [_repeat(entry, size, data), ""]
    elif entry.source is not None:
        lines += [f"Not run yet at this size ({state}).", ""]
        lines += [f"- Claim: {claim.says}" for claim in entry.claims] + [""]
    if entry.reported:
        lines += ["What the paper reports:", "", markdown(entry.reported)]
    if entry.lost:
        lines += [f"Of the paper: {entry.lost}", ""]
    if not entry.comparable:
        lines += ["Numbers are not comparable with the paper's, whose tasks ran on another "
                  "simulator, emulator or scale; the order of methods is.", ""]  # fmt: skip
    return "\n".join(lines)


def everything(entries: Iterable[Entry], size: SizeName, results: Path, base: Path) -> str:
    """Return the report of all entries: first the table of claims, then each paper's."""
    entries = list(entries)
    loaded = {entry.source.name: read(entry, size, results) for entry in entries if entry.source}
    rows, parts = [[*CLAIM_COLUMNS]], []
    for paper, title in PAPERS.items():
        own = [entry for entry in entries if entry.paper == paper]
        parts += [f"## {title}", ""] if own else []
        for entry in own:
            data = loaded[entry.source.name] if entry.source else None
            findings = found(entry, size, data)
            parts.append(_one(entry, size, results, base, data, findings))
            rows += claims(entry, size, data, findings)
    waiting = ("begun", "to do", "other settings", "not to be had")
    rows[1:] = sorted(rows[1:], key=lambda row: row[2] in waiting)  # what has come out comes first
    counts = pd.Series([row[2] for row in rows[1:]]).value_counts()
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    top = [TITLE.rstrip(), "", _HEAD, "", f"**Claims: {summary}.**", "", _plain_table(rows)]
    return "\n".join([*top, *parts]).rstrip() + "\n"


CLAIM_COLUMNS = ("claim", "entry", "verdict", "why")
TITLE = "# Results\n\n"  # of every report that is written
_HEAD = """\
Written by `python -m experiments.papers report --all --write RESULTS.md` from the tables in \
`experiments/results/papers`, and checked against them by the tests. Claims were written down \
before they were run. A verdict is computed: *agrees* and *disagrees* if the 95 % interval lies \
on one side (corrected over an entry's claims), *undecided* if it holds both, *not tested* if a \
method behaved like uniform replay, *pilot* with fewer than ten seeds. Sizes are small, \
minutes to a few hours an experiment on one CPU core, so that a claim can hold at the paper's size \
and fail here; what was changed stands with each entry."""


def _plain_table(rows: list[list[str]]) -> str:
    """Return a table of words, not padded: cells are long."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in rows[0]) + " |", *lines[1:], ""])


def _claims(findings: list[Finding]) -> list[str]:
    lines = []
    for each in findings:
        pairs = each.pairs
        numbers = ""
        if pairs is not None:
            low, high = pairs.improvement_interval
            numbers = (
                f" {pairs.wins} wins, {pairs.losses} losses, {pairs.ties} ties; P(better) "
                f"{number(pairs.improvement)} [{number(low)}, {number(high)}]."
            )
        lines.append(f"- **{each.verdict}**: {each.says} ({each.reason}.{numbers})")
    return [*lines, ""] if lines else []


def _scores(entry: Entry, size: SizeName, data: Data) -> str:
    """Return a table of our final scores: means of the last evaluations, and what was replayed."""
    source = entry.source
    assert isinstance(source, Experiment)
    header = ["task", "arm", f"return, last {_LAST}: IQM [95 %]", "effective buffer"]
    rows = [[*header, "sampler updates", *(f"mean {name}" for name in entry.columns)]]
    for env in source.runs(size):
        for label, frame in data.frames(env).items():
            if entry.arms and label not in entry.arms:
                continue
            last = curves(frame).iloc[-_LAST:].mean().to_numpy()
            low, high = bootstrap_interval(last) if len(last) > 1 else (last[0], last[0])
            shown = f"{number(float(iqm(last)))} [{number(float(low))}, {number(float(high))}]"
            replayed = _mean(frame, "replayed/effective_buffer")
            means = (_mean(frame, name) for name in entry.columns)
            updates = _last(frame, "replay/sampler_updates")
            rows.append([env, label, shown, replayed, updates, *means])
    return markdown(rows)


def _numbers(data: Data) -> list[str]:
    """Return a computed table, folded."""
    rows = [[_cell(value) for value in row] for row in data.frame.itertuples(index=False)]
    shown = markdown([list(data.frame.columns), *rows])
    return ["<details><summary>The table</summary>", "", shown, "</details>", ""]


def _cell(value: object) -> str:
    return number(float(value)) if isinstance(value, (int, float)) else str(value)


def _mean(frame: pd.DataFrame, column: str) -> str:
    return number(float(frame[column].mean())) if column in frame else "-"


def _last(frame: pd.DataFrame, column: str) -> str:
    if column not in frame:
        return "-"
    return number(float(frame.groupby("seed")[column].max().mean()))


def _repeat(entry: Entry, size: SizeName, data: Data) -> str:
    """Return how to repeat an entry."""
    source = entry.source
    assert source is not None
    took = rates.minutes(source, size, data)
    took = in_words(took)
    made = next(iter(_made(data)))["versions"]
    code = "+".join(data.codes())
    return (
        f"`python -m experiments.papers run {entry.id} --size {size}`: {took} of training on one "
        f"core; code {code}; jax {made['jax']}, Python {made['python']}."
    )


def _made(data: Data) -> list[Mapping]:
    return [data.made] if data.made else [r for runs in data.runs.values() for r in runs.values()]


def shown_in_list(entry: Entry, size: SizeName, data: Data | None) -> tuple[str, ...]:
    """Return an entry's cells in a list: id, claim, cost, status, verdicts."""
    source = entry.source
    cost = rates.minutes(source, size, data or Data())
    claim = entry.claims[0].says if entry.claims else entry.shows
    findings = [each.verdict for each in found(entry, size, data)]
    shown = ", ".join(f"{findings.count(each)} {each}" for each in dict.fromkeys(findings))
    shown_cost = "-" if source is None else in_words(cost)
    state = status(entry, size, data)
    if data is not None and source is not None and data.codes() != (version_of(source),):
        state += ", by older code"
    return entry.id, claim, shown_cost, state, shown or "-"
