"""What a sweep's `sweep.json` has to hold before anything is made of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis import kinds
from experiments.analysis.stored import Damaged

KEYS = ("env", "replay", "agent", "method")  # columns of the table before the settings

_POINT = kinds.record({
    "env": kinds.text, "replay": kinds.text, "method": kinds.text,
    "settings": kinds.named(kinds.anything),
    "config": kinds.record({
        "env": kinds.text, "agent": kinds.text, "replay": kinds.text,
        "seed": kinds.whole, "seeds": kinds.whole,
        "loop": kinds.named(kinds.anything), "sizes": kinds.record({"num_envs": kinds.whole}),
    }),
})  # fmt: skip
_COST = kinds.record({
    "runs": kinds.named(kinds.many(kinds.whole)), "seconds": kinds.number,
    "compiling": kinds.number,
})  # fmt: skip
_STUDY = kinds.record({
    "default": kinds.text, "best": kinds.optional(kinds.text),
    "trials": kinds.listed(kinds.record({
        "point": kinds.text, "score": kinds.optional(kinds.number),
        "failed": kinds.optional(kinds.text),
    })),
})  # fmt: skip
_ASKED = {
    "search": kinds.text, "space": kinds.named(kinds.named(kinds.named(kinds.text))),
    "trials": kinds.whole, "seeds": kinds.many(kinds.whole), "fresh_seeds": kinds.many(kinds.whole),
}  # fmt: skip
_FACTS = {
    "crc32": kinds.listed(kinds.whole), "command": kinds.listed(kinds.text), "code": kinds.text,
    "versions": kinds.named(kinds.text), "settings": kinds.listed(kinds.text),
    "columns": kinds.listed(kinds.text), "base_points": kinds.named(kinds.named(kinds.text)),
    "points": kinds.named(_POINT), "costs": kinds.listed(_COST),
    "failed": kinds.named(kinds.text),
    "search?": kinds.record({
        "asked": kinds.record(_ASKED), "studies?": kinds.named(kinds.named(_STUDY)),
    }),
}  # fmt: skip


def check(path: Path, facts: Mapping[str, Any]) -> None:
    """Refuse facts that lack a field, have one of the wrong kind, or name a point that is missing.

    Raises:
      Damaged: one line that names the field.
    """
    try:
        kinds.check(str(path), facts, _FACTS)
    except ValueError as error:
        raise Damaged(str(error)) from None
    found = facts.get("search", {}).get("studies", {})
    studies = [(env, label, study) for env, own in found.items() for label, study in own.items()]
    named = {
        "costs": [point for cost in facts["costs"] for point in cost["runs"]],
        "base_points": [point for own in facts["base_points"].values() for point in own.values()],
        "studies": [study[name] for *_, study in studies for name in ("default", "best")],
    }
    for field, points in named.items():
        _check_known(path, facts, field, [point for point in points if point is not None])
    for env, label, _ in studies:
        if label not in facts["base_points"].get(env, {}):
            raise Damaged(f"{path} is damaged (base_points lack {label} on {env}): restore it")


def check_table(path: Path, table: pd.DataFrame, facts: Mapping[str, Any]) -> None:
    """Refuse a table that lacks a column, or has rows of a point that is not there.

    Raises:
      Damaged: one line that names the column or the point.
    """
    for name in ("point", *KEYS, *facts["settings"], "seed", "step", "eval_return", "diverged"):
        if name not in table:
            raise Damaged(f"{path} is damaged (it lacks column {name}): restore it")
    _check_known(path, facts, "point", table["point"].unique())


def _check_known(path: Path, facts: Mapping[str, Any], field: str, points: Any) -> None:
    unknown = [point for point in points if point not in facts["points"]]
    if unknown:
        raise Damaged(f"{path} is damaged ({field} names {unknown[0]!r}, no point): restore it")
