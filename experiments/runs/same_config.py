"""What two configurations differ in, by the names that options have on the command line."""

import json
import os
from typing import Any

from experiments.runs.renamed import up_to_date
from experiments.runs.run_config import PREFIXES


def check(saved: dict, now: dict, folder: str | os.PathLike) -> None:
    """Refuse to continue a run with other options than it was begun with.

    Args:
      saved: the nested, JSON-able configuration that the run has.
      now: the one to go on with.
      folder: the run's, for the message.

    Raises:
      ValueError: the two differ; names the first such option, and both values.
    """
    before, after = _options(saved), _options(now)
    for name in differing(saved, now):
        was = f"was made with {name} {before[name]}" if name in before else f"has no {name}"
        wants = f"this has {after[name]}" if name in after else "this lacks it"
        raise ValueError(
            f"the run in {folder} {was}, and {wants}: use the same options, or another --out"
        )


def differing(saved: dict, now: dict) -> list[str]:
    """Return the names of the options that two nested, JSON-able configurations differ in."""
    before, after = _options(saved), _options(now)
    names = [*before, *(name for name in after if name not in before)]
    both = before.keys() & after.keys()
    return [name for name in names if name not in both or before[name] != after[name]]


def _options(config: dict) -> dict[str, str]:
    """Return a configuration's options as on the command line, such as "agent.tau": "0.005"."""
    plain = up_to_date(json.loads(json.dumps(config)))
    flat: dict[str, str] = {}
    for name, value in plain.items():
        if name in PREFIXES and isinstance(value, dict):
            flat |= {PREFIXES[name] + field: _shown(each) for field, each in value.items()}
        else:
            flat[name] = _shown(value)
    return flat


def _shown(value: Any) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, list):
        return " ".join(map(_shown, value)) or "''"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return str(value)
