"""What a comparison concluded, read back from its `verdicts.json` and never computed again."""

import dataclasses
import json
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple

from experiments.analysis.judged import Judged
from experiments.analysis.paired import Pairs
from experiments.analysis.verdicts import Judgement


class Judgements(NamedTuple):
    """The conclusions of a comparison."""

    question: dict[str, Any]
    primary: dict[str, Any]  # name, help, unit, higher_is_better
    baseline: str  # label of its method
    rows: list[Judged]  # every arm beside its baseline


def read(path: Path, labels: Container[str]) -> Judgements | None:
    """Read what `experiments.runs.judging` found; None: there is no such file.

    Args:
      path: of `verdicts.json`.
      labels: of the comparison's runs.

    Raises:
      ValueError: one line: the file is damaged, or of another comparison.
    """
    if not path.is_file():
        return None
    try:
        saved = json.loads(path.read_text())
        rows = [_row(label, arm) for label, arm in saved["arms"].items()]
        found = Judgements(dict(saved["question"]), dict(saved["primary"]), saved["baseline"], rows)
        for key in ("name", "help", "unit"):
            found.primary[key] + ""
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        shown = " ".join(str(error).split())
        raise ValueError(f"{path} is damaged ({shown}): restore it") from error
    for row in found.rows:
        for label in (row.label, row.judgement.baseline):
            if label not in labels:
                raise ValueError(f"{path} judges {label}, which is no run of this comparison")
    return found


def _row(label: str, saved: dict[str, Any]) -> Judged:
    """Return an arm as it was judged."""
    judgement = _filled(Judgement, saved)
    ratio, every = float(saved["replays_per_transition"]), int(saved["learn_every"])
    shared = f"learn_every {every}, {ratio:g} replays per transition"
    suffix = f"_every{every}"
    pairs = _filled(Pairs, saved["pairs"])
    row = Judged(label, label.removesuffix(suffix), shared, pairs, judgement)
    return row


def _filled(kind: type, saved: dict[str, Any]) -> Any:
    """Return an instance of a dataclass from saved values; further ones are other things'."""
    return kind(**{field.name: saved[field.name] for field in dataclasses.fields(kind)})
