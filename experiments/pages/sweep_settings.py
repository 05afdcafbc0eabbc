"""The section of a sweep's page that shows the score against every setting."""

from collections.abc import Sequence

import numpy as np

from experiments.analysis import sensitivity
from experiments.analysis.axes import logarithmic
from experiments.analysis.sensitivity import Line
from experiments.analysis.tuned import estimate
from experiments.pages import plots
from experiments.pages.blocks import Plot, Plots, Section
from experiments.pages.swept import Swept


def section(swept: Swept) -> Section | None:
    """Return the score against every setting that varies, a plot for each task."""
    blocks = []
    for name in swept.settings:
        others = [other for other in swept.settings if other != name]
        drawn, styles = [], {}
        for env in swept.envs:
            lines = sensitivity.lines(swept.table[swept.table["env"] == env], name, others)
            if any(line.values for line in lines):
                own = sensitivity.styles(lines)
                styles |= own
                drawn.append(_panel(swept, env, name, lines, own))
        if drawn:
            blocks.append(Plots(drawn, plots.legend(styles), name))
    if not blocks:
        return None
    intro = (
        f"{swept.metric.name} against each setting, over all seeds: IQM with 95 % bootstrap "
        "intervals. Every choice of the other settings is a line; where these are many, a method "
        "is one line, averaged over them. A level band is a method without the setting. A cross is "
        "a point of which seeds diverged: their scores are in it, and choose nothing."
    )
    return Section("settings-swept", "Sensitivity to settings", intro, blocks)


def _panel(
    swept: Swept, env: str, name: str, lines: Sequence[Line], styles: dict[str, plots.Style]
) -> Plot:
    every = sensitivity.values(lines)
    numeric = all(isinstance(value, (int, float)) for value in every)
    place = {value: float(value) if numeric else float(at) for at, value in enumerate(every)}
    log = numeric and logarithmic(every)
    ends = [min(place.values()), max(place.values())]
    traces = []
    for line in lines:
        style, points = styles[line.label], [estimate(scores) for scores in line.scores]
        low, middle, high = (
            np.array([getattr(point, end) for point in points]) for end in ("low", "value", "high")
        )
        if not line.values:
            level = np.ones(2)
            traces.append(plots.band(line.label, ends, low[0] * level, high[0] * level, style))
            traces.append(plots.line(line.label, ends, middle[0] * level, style))
            without = f"%{{y:.4~g}}, without it{sensitivity.lost_in(line, 0)}"
            traces[-1]["hovertemplate"] = without
            continue
        trace = plots.line(line.label, [place[value] for value in line.values], middle, style)
        traces.append(
            trace
            | {
                "mode": "lines+markers",
                "marker": {
                    "color": style["color"],
                    "size": [10 if lost else 6 for lost in line.diverged],
                    "symbol": ["x" if lost else "circle" for lost in line.diverged],
                },
                "text": [
                    f"{sensitivity.value_text(value)}{sensitivity.lost_in(line, at)}"
                    for at, value in enumerate(line.values)
                ],
                "customdata": np.stack([low, high], axis=-1).tolist(),
                "hovertemplate": "%{text}: %{y:.4~g} [%{customdata[0]:.4~g}, "
                "%{customdata[1]:.4~g}]",
                "error_y": {
                    "type": "data", "symmetric": False, "array": (high - middle).tolist(),
                    "arrayminus": (middle - low).tolist(), "color": style["color"],
                    "thickness": 1, "width": 3,
                },
            }
        )  # fmt: skip
    axis = {
        "tickvals": list(place.values()), "tickmode": "array",
        "ticktext": [plots.shown(sensitivity.value_text(value)) for value in every],
    } | ({"type": "log"} if log else {})  # fmt: skip
    metric = swept.study.metric(env)
    layout = plots.layout(name, f"{metric.name} ({metric.unit})", xaxis=axis)
    return plots.plot(env, traces, layout, 320)
