"""What a comparison concluded, read back from its `verdicts.json`."""

import dataclasses
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple

from experiments.figures.judged import Judged
from experiments.statistics.paired import Pairs
from experiments.statistics.verdicts import Judgement
from experiments.storage import files, kinds


class Judgements(NamedTuple):
    """The conclusions of a comparison."""

    question: dict[str, Any]
    primary: dict[str, Any]  # name, help, unit, higher_is_better
    baseline: str  # label of its method
    rows: list[Judged]  # every arm next to its baseline


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
        found = of(path, files.read_json(path))
    except files.Unreadable as error:
        raise ValueError(f"{path} is damaged ({error}): restore it") from error
    for row in found.rows:
        for label in (row.label, row.judgement.baseline):
            if label not in labels:
                raise ValueError(f"{path} judges {label}, which is no run of this comparison")
    return found


def of(path: Path, saved: Any) -> Judgements:
    """Return the conclusions that a file has.

    Raises:
      ValueError: one line: a field is missing or of the wrong kind.
    """
    _check(path, saved)
    rows = [_row(label, arm) for label, arm in saved["arms"].items()]
    return Judgements(dict(saved["question"]), dict(saved["primary"]), saved["baseline"], rows)


_MAYBE, _INTERVAL = kinds.optional(kinds.number), kinds.many(kinds.number, 2)
_TOP = {
    "question": kinds.named(kinds.anything), "primary": kinds.named(kinds.anything),
    "baseline": kinds.text, "arms": kinds.named(kinds.named(kinds.anything)),
}  # fmt: skip
_PRIMARY = {"name": kinds.text, "help": kinds.text, "unit": kinds.text}
_QUESTION = {"primary": kinds.text, "ungated?": kinds.optional(kinds.text)}
_ARM = {
    "learn_every": kinds.whole, "replays_per_transition": kinds.number, "arm": kinds.text,
    "baseline": kinds.text, "claim": kinds.text, "verdict": kinds.text, "reason": kinds.text,
    "seeds": kinds.whole, "quantity": kinds.optional(kinds.text),
    "interval": kinds.optional(_INTERVAL), "boundary": _MAYBE, "p_value": _MAYBE,
    "effective_buffer": _MAYBE, "sampler_updates": _MAYBE, "train_seconds": _MAYBE,
    "ungated": kinds.optional(kinds.text), "pairs": kinds.named(kinds.anything),
}  # fmt: skip
_PAIRS = {
    "seeds": kinds.whole, "differences": kinds.optional(kinds.many(kinds.number)), "mean": _MAYBE,
    "mean_interval": kinds.optional(_INTERVAL), "iqm": _MAYBE,
    "iqm_interval": kinds.optional(_INTERVAL), "wins": kinds.whole, "losses": kinds.whole,
    "ties": kinds.whole, "improvement": kinds.number, "improvement_interval": _INTERVAL,
    "unpaired_improvement": kinds.number, "unpaired_improvement_interval": _INTERVAL,
    "p_value": kinds.number, "p_holm": _MAYBE,
}  # fmt: skip


def _check(path: Path, saved: Any) -> None:
    if not isinstance(saved, dict):
        raise ValueError(f"{path} is damaged (no JSON object): restore it")
    kinds.check(str(path), saved, _TOP)
    kinds.check(f"{path}, primary,", saved["primary"], _PRIMARY)
    kinds.check(f"{path}, question,", saved["question"], _QUESTION)
    for label, arm in saved["arms"].items():
        kinds.check(f"{path}, {label},", arm, _ARM)
        kinds.check(f"{path}, {label}, pairs,", arm["pairs"], _PAIRS)


def _row(label: str, saved: dict[str, Any]) -> Judged:
    """Return an arm as it was judged."""
    judgement = _filled(Judgement, saved)
    ratio, every = float(saved["replays_per_transition"]), int(saved["learn_every"])
    shared = f"learn_every {every}, {ratio:g} replays per transition"
    suffix = f"_every{every}"
    pairs = _filled(Pairs, saved["pairs"])
    method = str(saved.get("method", label.removesuffix(suffix)))
    return Judged(label, method, str(saved.get("group", shared)), pairs, judgement)


def _filled(kind: type, saved: dict[str, Any]) -> Any:
    """Return an instance of a dataclass from saved values; further ones are other things'."""
    return kind(**{field.name: saved[field.name] for field in dataclasses.fields(kind)})
