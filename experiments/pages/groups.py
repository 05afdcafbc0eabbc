"""Arms that are shown together: all of them, or those that learn equally often."""

from typing import Any, NamedTuple

from experiments.analysis.judged import Judged
from experiments.pages import plots
from experiments.pages.plots import Style
from experiments.pages.source import Arm, Source


class Group(NamedTuple):
    """Arms that share plots, by the short label that plots give them, the baseline first."""

    title: str  # what they share; "": there is one group only
    arms: dict[str, Arm]
    styles: dict[str, Style]
    rows: list[Judged]  # conclusions about them, with short labels

    def having(self, *columns: str) -> dict[str, Arm]:
        """Return the arms whose metrics have one of these columns, in the order of drawing."""
        return {
            label: self.arms[label]
            for label in plots.in_order(self.styles)
            if (frame := self.arms[label].frame) is not None
            and any(column in frame and frame[column].notna().any() for column in columns)
        }


def groups(source: Source) -> list[Group]:
    """Return the groups of a source's arms, one for each cadence of learning."""
    cadences = {label: _cadence(arm.config) for label, arm in source.arms.items()}
    several = len(set(cadences.values())) > 1 and all(
        label.endswith(f"_every{every}") for label, every in cadences.items()
    )
    if not several:
        return [_group("", source, {label: label for label in source.arms})]
    found = []
    for every in dict.fromkeys(cadences.values()):
        own = [label for label, each in cadences.items() if each == every]
        short = {label: label.removesuffix(f"_every{every}") for label in own}
        found.append(_group(f"learn_every {every}", source, short))
    return found


def _cadence(config: dict[str, Any]) -> Any:
    return config.get("loop", {}).get("learn_every")


def _group(title: str, source: Source, short: dict[str, str]) -> Group:
    rows = source.judgements.rows if source.judgements else []
    own = [row for row in rows if row.label in short]
    if own:
        base = own[0].judgement.baseline
        short = {label: short[label] for label in dict.fromkeys([base, *short])}
        title = own[0].group if title else ""
    arms = {name: source.arms[label] for label, name in short.items()}
    styles = plots.styles({name: arm.replay for name, arm in arms.items()})
    return Group(title, arms, styles, [row._replace(label=short[row.label]) for row in own])
