"""Reports in Markdown: our numbers and verdicts next to the numbers of the papers."""

import operator
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.papers import archive, judging, score_tables
from experiments.papers.archive import Data
from experiments.papers.catalogue import ENTRIES, of_papers
from experiments.papers.entry import PAPERS, Claim, Entry, Experiment, SizeName
from experiments.papers.figures import path_of
from experiments.papers.printed import stated
from experiments.papers.running import minutes, missing, stale
from experiments.runs.log import say
from experiments.runs.rates import in_words
from experiments.statistics.counts import ALPHA, benjamini_hochberg
from experiments.statistics.markdown import markdown
from experiments.statistics.verdicts import Verdict

_FEW = 3  # largest number of claims about absent arms that are listed one by one
_LONG = 12  # largest number of rows of a table that is not folded


def read(entry: Entry, size: SizeName, results: Path) -> Data | None:
    """Return the table of an entry, or None if it is missing or, with a warning, unreadable."""
    if entry.source is None:
        return None
    try:
        return archive.read(results, entry.source.name, size)
    except ValueError as error:  # damaged, or written by a later version
        say(f"{error}: the table is treated as missing")
    return None


def status(entry: Entry, size: SizeName, data: Data | None) -> str:
    """Return the state of the work on an entry.

    It is "not to be had" (no source), "to do", "other settings", "begun" or "done".
    """
    if entry.source is None:
        return "not to be had"
    if data is None:
        return "to do"
    if stale(entry.source, size, data, other_code=True):
        return "other settings"
    if isinstance(entry.source, Experiment) and missing(entry.source, size, data):
        return "begun"
    return "done"


def findings_of(entry: Entry, size: SizeName, data: Data | None) -> list[Verdict]:
    """Return the verdicts about an entry's claims, or [] if its table is incomplete."""
    return judging.judge_entry(entry, size, data) if status(entry, size, data) == "done" else []


def claims(entry: Entry, size: SizeName, data: Data | None) -> list[list[str]]:
    """Return one row per claim of an entry, with the columns `CLAIM_COLUMNS`.

    A sweep (see `Entry.swept`) has a single row with the number of claims per verdict. Without a
    complete table, column verdict has the status of the entry.
    """
    return _rows(entry, size, data, findings_of(entry, size, data))


def _rows(
    entry: Entry, size: SizeName, data: Data | None, findings: Sequence[Verdict]
) -> list[list[str]]:
    if findings and entry.swept:
        counts = Counter(each.verdict for each in findings)
        shown = ", ".join(f"{counts[name]} {name}" for name in _ORDER if counts[name])
        why = f"{len(findings)} settings: {shown}"
        return [[entry.swept, entry.id, "sweep", stated(entry, entry.claims[0]), why]]
    if findings:
        return [
            [own.label, entry.id, own.verdict, stated(entry, claim), _numbers_of(own)]
            for claim, own in zip(entry.claims, findings, strict=True)
        ]
    state = status(entry, size, data)
    return [[claim.says, entry.id, state, stated(entry, claim), "-"] for claim in entry.claims]


def _numbers_of(finding: Verdict) -> str:
    """Return the reason for a verdict, without the verdict at its beginning."""
    own = finding.reason.removeprefix(finding.verdict)
    if own == finding.reason:
        return own
    return own.replace("(", "", 1).replace(")", "", 1).lstrip(": ")


def one(
    entry: Entry,
    size: SizeName,
    results: Path,
    base: Path,
    above: dict[Any, str] | None = None,
) -> str:
    """Return the report of one entry.

    Args:
      entry: the entry.
      size: size of its experiment.
      results: folder of the tables and figures.
      base: folder of the report; links are relative to it.
      above: table -> id of the entry that shows it, for earlier entries on the same page. A table
        that is in `above` becomes a reference; a new one is added to `above`.
    """
    data = read(entry, size, results)
    lines = [f"### {entry.id}: {entry.shows}", ""]
    if entry.missing:
        lines += [f"Not to be had: {entry.missing}", ""]
    state = status(entry, size, data)
    if state == "done":
        assert data is not None and entry.source is not None
        lines += _claims(judging.judge_entry(entry, size, data))
        figure = path_of(entry, size, results)
        if entry.layout is not None and figure.exists():
            lines += [f"![{entry.id}]({os.path.relpath(figure, base)})", ""]
        lines += _numbers(entry, size, data, {} if above is None else above)
        if entry.ours is not None:
            lines += [markdown(entry.ours(data))]
        notes = list(entry.note)
        if isinstance(entry.source, Experiment):
            notes.insert(0, score_tables.conditions(entry, size, data))
            if entry.source.sizes[size].note:
                notes.insert(1, entry.source.sizes[size].note)
        lines += [*(f"- {sentence}" for sentence in notes), ""] if notes else []
        lines += [_repeat(entry, size, data), ""]
    elif entry.source is not None:
        lines += [f"Not run yet at this size ({state}).", ""]
        lines += [f"- Claim: {claim.says}" for claim in entry.claims] + [""]
    if entry.reported:
        lines += ["What the paper reports:", "", markdown(entry.reported)]
    if entry.lost:
        lines += [f"Not in our copy of the paper: {entry.lost}", ""]
    if not entry.comparable:
        lines += ["Numbers are not comparable with the paper's, whose tasks ran on another "
                  "simulator, emulator or scale; the order of methods is.", ""]  # fmt: skip
    return "\n".join(lines)


def everything(entries: Iterable[Entry], size: SizeName, results: Path) -> str:
    """Return a Markdown page with all claims and their verdicts, in one table per paper."""
    entries, parts, counts, families = list(entries), [], [], []
    for paper, title in PAPERS.items():
        rows = []
        for entry in [each for each in entries if each.paper == paper]:
            data = read(entry, size, results)
            families.append(findings_of(entry, size, data))
            rows += _rows(entry, size, data, families[-1])
        if rows:
            rows.sort(key=lambda row: row[2] in _WAITING)
            counts.append([_short(title), [row[2] for row in rows if row[2] != "sweep"]])
            linked = _folded([[says, _link(name, size), *rest] for says, name, *rest in rows])
            parts += [f"## {title}", "", _plain_table([[*CLAIM_COLUMNS], *linked])]
    top = [TITLE.rstrip(), "", _HEAD, "", _errors(families), "", _counted(counts), _DROPPED, ""]
    return "\n".join([*top, *parts]).rstrip() + "\n"


def _folded(rows: list[list[str]]) -> list[list[str]]:
    """Return rows of claims; one row replaces several about methods that drew almost uniformly."""
    found = [_ALIKE.search(row[4]) if row[2] == "not tested" else None for row in rows]
    if (count := sum(map(bool, found))) <= _FEW:
        return rows
    shares = sorted(match[1] for match in found if match and match[1])
    why = "their networks had too few updates"
    if shares:
        why = f"effective buffers of {shares[0]} to {shares[-1]}, where uniform replay has 1"
    entries = dict.fromkeys(row[1] for row, match in zip(rows, found, strict=True) if match)
    folded = [
        f"{count} claims about methods that drew almost uniformly", ", ".join(entries),
        "not tested", "-", why,
    ]  # fmt: skip
    return [*(row for row, match in zip(rows, found, strict=True) if not match), folded]


def _errors(families: Sequence[Sequence[Verdict]]) -> str:
    """Return sentences on the number of false verdicts to expect among all claims."""
    tested = [
        [own for own in family if own.looks and own.verdict not in _UNTESTED] for family in families
    ]
    tested = [family for family in tested if family]
    every = [own for family in tested for own in family]
    kept = benjamini_hochberg([own.raw for own in every])
    differ = [own.verdict in ("agrees", "disagrees") for own in every]
    survive = sum(map(operator.and_, differ, kept))
    return (
        f"P-values are corrected within the family of an entry's claims (Holm, at {ALPHA:g}): the "
        f"{len(tested)} families allow {ALPHA * len(tested):.2g} false verdicts on this page. Of "
        f"{sum(differ)} tested claims that agree or disagree, {survive} are also significant by "
        f"the procedure of Benjamini and Hochberg over all {len(every)} tested claims, at a false "
        f"discovery rate of {ALPHA:g}."
    )


def _link(name: str, size: SizeName) -> str:
    """Return the id of an entry as a link to its figure, if it has one."""
    if ENTRIES[name].layout is None:
        return name
    return f"[{name}]({FIGURES}/{name}.{size}.png)"


def _anchor(name: str) -> str:
    return name.replace(".", "-").lower()


def page(paper: str, size: SizeName, results: Path, base: Path) -> str:
    """Return the page of a paper's entries, with links relative to the folder `base`."""
    parts, above = [f"# {PAPERS[paper]}", ""], {}
    for entry in of_papers([paper]):
        parts += [f"({_anchor(entry.id)})=", "", one(entry, size, results, base, above)]
    return "\n".join(parts).replace("\n### ", "\n## ").rstrip() + "\n"


def _short(title: str) -> str:
    """Return authors and year of a paper."""
    return title.partition(": ")[0] if ": " in title else re.split(r"(?<=\d{4}), ", title)[0]


def _counted(counts: list[Any]) -> str:
    """Return a table of the number of claims per verdict, one row per paper."""
    every = [each for _, own in counts for each in own]
    order = [name for name in (*_ORDER, *_WAITING) if name in every]
    rows = [["claims", *order]]
    rows += [[title, *(str(own.count(name)) for name in order)] for title, own in counts]
    return markdown(rows)


CLAIM_COLUMNS = ("claim", "entry", "verdict", "pre-registered", "why")
_ALIKE = re.compile(r"behaved like uniform\)?: (?:effective buffer ([0-9.]+))?")
FIGURES = "experiments/results/papers"  # of the committed results
TITLE = "# Results\n\n"  # first line of every report file
_ORDER = (
    "agrees", "disagrees", "no difference", "undecided", "not tested", "not comparable", "pilot",
)  # fmt: skip
_UNTESTED = ("not tested", "not comparable", "pilot")
_WAITING = ("begun", "to do", "other settings", "not to be had")
_HEAD = """\
`python -m experiments.papers report --all --write RESULTS.md` writes this page from the tables in \
`experiments/results/papers`, and the tests compare it with them; `python -m experiments.papers \
report ID` shows an entry with settings and numbers. Seeds are paired: a win is a seed on which \
the arm is better than its baseline. Studies that add seeds until a claim is decided report an \
anytime-valid p-value and the paired probability of improvement, in which a tie counts half; \
estimates after stopping early are biased away from one half. Studies with a fixed number of seeds \
report the exact sign test of the pairs that do not tie. Each interval states its level, which is \
higher than 95 % where the claims of an entry share it; the p-value decides, so an interval at \
that level may contain one half. *No difference*: the paired probability of improvement is within \
0.1 of one half, also without the ties. *At least as good*: the arm wins more than 0.4 of the \
pairs that do not tie, or more than half with the margin that the claim names. *Not tested*: the \
method behaved like uniform replay (a paper's claims of this kind share a row), agents hardly \
learned (where a good return of the task is known), or all values are the same. *Pilot*: fewer \
than ten seeds. *Undecided* claims state the seeds that would decide with a probability of 80 %: \
further ones, or those of a new study that adds seeds until decided.

Column *pre-registered* names the commit that stated a claim, if it came before the first commit \
with results that could show it. *Informed*: an earlier version of the comparison, with other \
seeds or settings, was known. *After*: such results were committed before. *Unclear*: stated and \
run in one commit, or with runs that had begun. Tasks are small, minutes to hours on one CPU core: \
a claim can fail here and hold at the size of the paper."""
_DROPPED = """
Claims that left this page after their results were seen: PPO learns better than ACER (disagreed, \
0/10/0; now PPO makes too few updates in such runs), RACER learns better than PPO in 25 000 steps \
(agreed, 10/0/0; moved to 400 000 steps), PER and rank-based PER use a smaller share of the buffer \
on MinAtar (both agreed, 30/0/0), PSER against PER at n = 16 (undecided, a duplicate), and PAL on \
the walk and on DeepSea (six, all undecided)."""


def _plain_table(rows: list[list[str]]) -> str:
    """Return a Markdown table without padding, because cells are long."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in rows[0]) + " |", *lines[1:], ""])


def _claims(findings: list[Verdict]) -> list[str]:
    lines = []
    absent = [each for each in findings if each.absent]
    for each in findings:
        if each.absent and len(absent) > _FEW:
            continue
        lines.append(f"- **{each.verdict}**: {each.label} ({_numbers_of(each)})")
    if len(absent) > _FEW:
        lines.append(f"- **not tested**: {len(absent)} claims about what this size does not have")
    return [*lines, ""] if lines else []


def _numbers(entry: Entry, size: SizeName, data: Data, above: dict[Any, str]) -> list[str]:
    """Return the table of an entry's numbers, or a reference to the same table above."""
    source = entry.source
    if isinstance(source, Experiment):
        cells = score_tables.of_runs(entry, size, data)
    elif any(isinstance(claim, Claim) for claim in entry.claims):
        cells = score_tables.of_claims(entry, data)
    elif entry.claims:
        cells = score_tables.exact(entry, data)
        if len(cells) > _LONG:
            return []  # verdicts contain the largest difference
    elif entry.layout is None:
        cells = score_tables.whole(data.frame)
    else:
        return []
    if len(cells) < 2:
        return []  # only a header: the size lacks the compared arms
    assert source is not None
    place = above.setdefault((source.name, *map(tuple, cells)), entry.id)
    if place != entry.id:
        return [f"The numbers stand with {place}.", ""]
    shown = markdown(cells)
    if len(cells) <= _LONG:
        return [shown]
    return ["<details><summary>The numbers</summary>", "", shown, "</details>", ""]


def _repeat(entry: Entry, size: SizeName, data: Data) -> str:
    """Return the command that repeats an entry, with its duration and versions."""
    source = entry.source
    assert source is not None
    took = in_words(minutes(source, size, data))
    made = data.facts()[0]["versions"]
    code = "+".join(data.codes())
    return (
        f"`python -m experiments.papers run {entry.id} --size {size}`: {took} when it was run, "
        f"mostly on one core, for all entries of {source.name}; code {code}; jax {made['jax']}, "
        f"Python {made['python']}."
    )


def shown_in_list(entry: Entry, size: SizeName, data: Data | None) -> tuple[str, ...]:
    """Return the row of an entry in the list: id, size, cost, status, verdicts, claim."""
    source = entry.source
    cost = "-" if source is None else in_words(minutes(source, size, data or Data()))
    claim = entry.claims[0].says if entry.claims else entry.shows
    counts = Counter(each.verdict for each in findings_of(entry, size, data))
    shown = ", ".join(f"{count} {verdict_}" for verdict_, count in counts.items())
    return entry.id, size, cost, status(entry, size, data), shown or "-", claim
