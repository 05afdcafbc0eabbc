"""The command line of benchmarks that take sizes, a device, and a file to write to."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.benchmarks import devices, outputs
from experiments.cli.options import Parser, one_of


def read_sizes(
    name: str,
    description: str | None,
    wanted: Mapping[str, tuple[int, str]],
    argv: Sequence[str] | None,
) -> tuple[dict[str, int], Path | None]:
    """Read a benchmark's sizes and where to write its numbers, and choose its device.

    On an error it exits with one line.

    Args:
      name: of the benchmark's module.
      description: what `--help` says of it.
      wanted: default and meaning of each size, by name; capacity and batch_size among them.
      argv: the command line; None: that of this process.
    """
    parser = Parser(prog=f"python -m experiments.benchmarks.{name}", description=description)
    for size, (default, meaning) in wanted.items():
        parser.add_argument(
            f"--{size.replace('_', '-')}", type=int, default=default, metavar="INT",
            help=f"{meaning} [default {default}]",
        )  # fmt: skip
    outputs.add_out(parser)
    add_device(parser)
    args = parser.parse_args(argv)
    sizes = {size: getattr(args, size) for size in wanted}
    for size, value in sizes.items():
        if value < 1:
            parser.error(f"{size} is {value}: it must be at least 1")
    if sizes["batch_size"] > sizes["capacity"]:
        parser.error(
            f"batch_size {sizes['batch_size']} is larger than the capacity {sizes['capacity']}"
        )
    use_device(parser, args.device)
    return sizes, args.out


def add_device(parser: Parser) -> None:
    """Add the option `--device`."""
    parser.add_argument(
        "--device",
        type=_device,
        metavar="{" + ",".join(devices.DEVICES) + "}|none",
        help=f"{devices.HELP} [default none]",
    )


def _device(text: str) -> str | None:
    return None if text == "none" else one_of("device", (*devices.DEVICES, "none"))(text)


def use_device(parser: Parser, name: str | None) -> None:
    """Let JAX run on it, or exit with one line."""
    try:
        devices.use(name)
    except ValueError as error:
        parser.error(str(error))
