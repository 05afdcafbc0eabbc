"""The section of verdicts: whether each arm was tested, and what came out, seed by seed."""

from collections.abc import Sequence

from experiments.figures import judged
from experiments.figures.judged import Judged
from experiments.report import judgements, plots
from experiments.report.blocks import Lines, Plot, Plots, Section, Table
from experiments.report.groups import Group
from experiments.report.judgements import Judgements
from experiments.report.source import Source
from experiments.report.swept import Swept
from experiments.statistics import verdicts
from experiments.storage import files


def section(source: Source, groups: Sequence[Group]) -> Section | None:
    """Return the verdicts with the numbers that they rest on, as `verdicts.json` has them."""
    found = source.judgements
    if len(source.arms) < 2:
        return None
    if found is None:
        return Section("verdicts", "Verdicts", _none(source), [])
    name, unit = found.primary["name"], found.primary["unit"]
    blocks = [
        Table(judged.cells(found.rows, unit)),
        Lines([f"{row.label}: {row.judgement.reason}" for row in found.rows]),
    ]
    for group in groups:
        blocks.append(Plots(_plots(group, found), plots.legend(group.styles), group.title))
    intro = (
        f"Primary metric, named before anything ran: {name} ({found.primary['help']}). Every arm "
        f"is held against {found.baseline}, seed by seed; positive differences are better for the "
        f"arm. An arm is tested if it used at most {verdicts.UNIFORM_BUFFER:g} of the buffer, and "
        f"a learned sampler if its network was updated {verdicts.FEWEST_UPDATES} times; "
        "hollow arms were not."
    )
    return Section("verdicts", "Verdicts", intro, blocks)


def of_study(swept: Swept) -> Section | None:
    """Return the verdicts of a study, as `verdicts.json` has them, or None if it has none."""
    path = swept.store.folder / "verdicts.json"
    if not path.is_file():
        return None
    try:
        found = judgements.of(path, files.read_json(path))
    except files.Unreadable as error:
        raise ValueError(f"{path} is damaged ({error}): restore it") from error
    blocks = [
        Table(judged.cells(found.rows, str(found.primary["unit"]))),
        Lines([f"{row.label}: {row.judgement.reason}" for row in found.rows]),
    ]
    intro = (
        f"Primary metric, fixed before anything ran: {found.primary['name']} "
        f"({found.primary['help']}). Every arm is compared with {found.baseline}, seed by seed."
    )
    return Section("verdicts", "Verdicts", intro, blocks)


def _none(source: Source) -> str:
    if not source.comparison:
        return (
            "None: these runs were not compared by a metric named beforehand. "
            "python -m experiments.compare does that."
        )
    if any(arm.summary is None for arm in source.arms.values()):
        return "None yet: they are computed when all arms have ended."
    return "None: this comparison was made before comparisons had verdicts."


def _plots(group: Group, found: Judgements) -> list[Plot]:
    base = found.baseline
    drawn = [_improvement(group, base)]
    if any(row.pairs.differences for row in group.rows):
        drawn.append(_differences(group, base, found.primary["unit"]))
    return drawn


def _improvement(group: Group, baseline: str) -> Plot:
    """Return the probability that each arm is better; hollow: not tested."""
    traces = []
    for place, row in enumerate(group.rows):
        low, high = row.pairs.improvement_interval
        middle = row.pairs.improvement
        hollow = {"color": "#ffffff"} if row.judgement.verdict == "not tested" else {}
        traces.append(_interval(group, row, place, middle, low, high, hollow, ".3f"))
    axis = {"range": [-0.03, 1.03]}
    shapes = [plots.threshold(0.5, upright=True)]
    label = f"P(better than {baseline}), paired by seed"
    layout = plots.layout(label, "", xaxis=axis, yaxis=_names(group), shapes=shapes)
    return plots.plot("Probability of improvement", traces, layout, _height(group))


def _differences(group: Group, baseline: str, unit: str) -> Plot:
    """Return every seed's difference from the baseline, with IQM and interval."""
    traces = []
    for place, row in enumerate(group.rows):
        if row.pairs.differences is None:
            continue  # a seed never reached the threshold, or diverged
        style, each = group.styles[row.label], row.pairs.differences
        hover = "pair %{customdata}: %{x:.4~g}"
        marker = {"opacity": 0.45, "size": 7}
        count = {"customdata": list(range(1, len(each) + 1))}
        traces.append(
            plots.points(
                row.label, each, [place + 0.22] * len(each), style, hover, marker=marker, **count
            )
        )
        if row.pairs.iqm is not None and row.pairs.iqm_interval is not None:
            hollow = {"color": "#ffffff"} if row.judgement.verdict == "not tested" else {}
            low, high = row.pairs.iqm_interval
            traces.append(
                _interval(group, row, place - 0.12, row.pairs.iqm, low, high, hollow, ".4~g")
            )
    shapes = [plots.threshold(0.0, upright=True)]
    label = f"better than {baseline} by ({unit})"
    layout = plots.layout(label, "", xaxis={"tickformat": "~s"}, yaxis=_names(group), shapes=shapes)
    return plots.plot("Differences, seed by seed", traces, layout, _height(group))


def _interval(
    group: Group,
    row: Judged,
    place: float,
    middle: float,
    low: float,
    high: float,
    hollow: dict[str, str],
    digits: str,
) -> plots.Trace:
    style = group.styles[row.label]
    colour = style["color"]
    ends = f"[%{{customdata[0]:{digits}}}, %{{customdata[1]:{digits}}}]"
    verdict = plots.shown(row.judgement.verdict)
    return plots.points(
        row.label,
        [middle],
        [place],
        style,
        f"%{{x:{digits}}} {ends}, {verdict}",
        marker={"size": 10, "line": {"color": colour, "width": 2}} | hollow,
        customdata=[[low, high]],
        error_x={
            "type": "data", "symmetric": False, "array": [high - middle],
            "arrayminus": [middle - low], "color": colour, "thickness": 2, "width": 0,
        },
    )  # fmt: skip


def _names(group: Group) -> dict[str, object]:
    return {
        "tickvals": list(range(len(group.rows))),
        "ticktext": [plots.shown(row.label) for row in group.rows],
        "tickmode": "array",
        "range": [len(group.rows) - 0.4, -0.6],
        "showgrid": False,
    }


def _height(group: Group) -> int:
    return max(270, 115 + 34 * len(group.rows))
