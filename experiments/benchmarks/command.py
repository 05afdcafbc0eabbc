"""The command line of a benchmark: options from a dataclass, the device, a file for the numbers."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import jax

from experiments.benchmarks import outputs
from experiments.cli.options import Parser, add_options, read_options
from experiments.installation.accelerator import describe
from jaxreplay.option import Config, option


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    """Options of every benchmark."""

    device: str | None = option(None, "device; none: JAX's choice", choices=("cpu", "gpu", "tpu"))


@dataclasses.dataclass(frozen=True)
class TimedSettings(Settings):
    """Options of every benchmark whose contenders take turns."""

    turns: int = option(7, "turns of each contender; times are medians over them", at_least=1)
    seconds: float = option(0.1, "approximate seconds of a turn", above=0)


Options = TypeVar("Options", bound=Settings)


def read(
    name: str, description: str | None, options: Options, argv: Sequence[str] | None
) -> tuple[Options, Path | None]:
    """Return a benchmark's options and the file for its numbers; select its device.

    Errors end the process with one line.

    Args:
      name: module of the benchmark.
      description: text for `--help`.
      options: default options.
      argv: the command line; None: the one of this process.
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
        settings = read_options(args, options)
        _select(settings.device)
    except ValueError as error:
        parser.error(str(error))
    return settings, args.out


def _select(device: str | None) -> None:
    """Make JAX use a kind of device.

    Raises:
      ValueError: JAX has no such device here.
    """
    if device is None:
        return
    before = jax.config.jax_platforms
    # For a GPU or TPU, JAX selects one of its installed plugins.
    jax.config.update("jax_platforms", "cpu" if device == "cpu" else "")
    try:
        found = jax.default_backend()
    except RuntimeError as error:
        raise ValueError(f"device {device}: {' '.join(str(error).split())}") from None
    if found != device:
        jax.config.update("jax_platforms", before)
        raise ValueError(
            f"device is {device}: JAX finds none here ({describe(jax.local_devices())}); "
            "choose another, or install JAX for it"
        )
