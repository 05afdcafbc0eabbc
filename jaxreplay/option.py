"""Hyperparameters as dataclass fields that know their meaning and source."""

import dataclasses
from typing import Any


def option(default: Any, help: str, source: str = "", choices: tuple[str, ...] = ()) -> Any:
    """Declare one hyperparameter of a frozen config dataclass.

    Args:
      default: its default value.
      help: one line that says what it is, with units.
      source: where the default comes from (paper, table), if from anywhere.
      choices: the values allowed, for options that name one of several.
    """
    metadata = {"help": help, "source": source, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)
