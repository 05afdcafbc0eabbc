"""The command line of a benchmark: options from a dataclass, a file for the numbers."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from experiments.benchmarks import outputs
from experiments.cli.options import Parser, add_options, read_options
from jaxreplay.option import Config, option


@dataclasses.dataclass(frozen=True)
class TimedSettings(Config):
    """Options of every benchmark whose contenders take turns."""

    turns: int = option(7, "turns of each contender; times are medians over them", at_least=1)
    seconds: float = option(0.1, "approximate seconds of a turn", above=0)


Options = TypeVar("Options", bound=Config)


def read(
    name: str, description: str | None, options: Options, argv: Sequence[str] | None
) -> tuple[Options, Path | None]:
    """Return a benchmark's options and the file for its numbers.

    Errors end the process with one line.
    """
    parser = Parser(
        prog=f"python -m experiments.benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, options)
    outputs.add_out(parser)
    args = parser.parse_args(argv)
    try:
        return read_options(args, options), args.out
    except ValueError as error:
        parser.error(str(error))
