"""What a comparison concluded, judged again from its runs where these are there."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.report import judgements
from experiments.report.judgements import Judgements
from experiments.runs import manifest
from experiments.runs.arms import Arm, Question
from experiments.runs.results import alike
from experiments.runs.run_config import RunConfig
from experiments.statistics import verdicts
from experiments.studies import comparison


def rejudged(
    found: Judgements, arms: Mapping[str, Any], folder: Path
) -> tuple[Judgements, list[str]]:
    """Return the conclusions that the runs give, and a line about each arm that had others.

    Where the runs, or a method of somebody's own, are not here, those that were saved stay, and
    verdicts that their own numbers do not allow are named.

    Args:
      found: as they were saved.
      arms: of `source.Arm`, all ended, by label.
      folder: of the comparison.
    """
    path = folder / "verdicts.json"
    own = [now for other in (False, True) if (now := _judged(found, arms, folder, other))]
    for now in own:
        if _alike(now, found):
            return now, []
    if own:
        odd = [row.label for row in found.rows if not _alike_row(row, own[0])]
        which = ", ".join(odd) or "the question"
        return own[0], [f"{path} has other verdicts than its runs give ({which}): theirs are shown"]
    odd = [row.label for row in found.rows if not verdicts.follows(row.judgement, row.pairs)]
    lines = [f"{path} has verdicts that its numbers do not give: {', '.join(odd)}"] * bool(odd)
    return found, lines


def _judged(
    found: Judgements, arms: Mapping[str, Any], folder: Path, other_code: bool
) -> Judgements | None:
    """Return the conclusions that the runs give; None: they can't be judged here."""
    if any(arm.frame is None or not arm.config for arm in arms.values()):
        return None
    threshold = next(iter(arms.values())).summary["threshold"]
    try:
        question, methods = Question(**found.question), {}
        if (folder / manifest.MANIFEST).is_file():
            saved = manifest.read(folder)
            question, methods = saved.question, saved.methods
        every = {label: arm.config["loop"]["learn_every"] for label, arm in arms.items()}
        several = len(set(every.values())) > 1
        runs = {}
        for label, arm in arms.items():
            own = label.removesuffix(f"_every{every[label]}") if several else label
            config = RunConfig.from_json(arm.config)
            runs[label] = Arm(methods.get(label, own), every[label], config)
        frames = {label: arm.frame for label, arm in arms.items()}
        summaries = {label: arm.summary for label, arm in arms.items()}
        now = comparison.judge(question, runs, frames, summaries, threshold, other_code)
        plain = json.loads(json.dumps(now.to_json(question, runs)))
        return judgements.of(folder / "verdicts.json", plain)
    except (
        ValueError,
        TypeError,
        KeyError,
        ImportError,
    ):  # older code made it, or a module of one's own
        return None


def _alike(one: Judgements, other: Judgements) -> bool:
    """Return whether two conclusions are the same but for the last digits of numbers."""
    same = (one.baseline, one.question, one.primary["name"]) == (
        other.baseline, other.question, other.primary["name"],
    )  # fmt: skip
    same &= [row.label for row in one.rows] == [row.label for row in other.rows]
    return same and all(_alike_row(row, one) for row in other.rows)


def _alike_row(row: Any, among: Judgements) -> bool:
    """Return whether an arm came out as among other conclusions."""
    twin = next((own for own in among.rows if own.label == row.label), None)
    return twin is not None and all(
        alike(*(_numbers(getattr(each, part)) for each in (row, twin)))
        for part in ("judgement", "pairs")
    )


def _numbers(part: Any) -> dict[str, Any]:
    """Return an arm's conclusions without the words about them."""
    return {name: value for name, value in dataclasses.asdict(part).items() if name != "reason"}
