"""List and run the papers' figures and tables; report our numbers beside theirs.

  python -m experiments.papers list --paper per
  python -m experiments.papers run per.fig1 lap.fig2 --size small
  python -m experiments.papers report per.fig1

Runs that two entries share are made once. Finished parts are kept, and the
same command continues after an interruption.
"""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.papers.__main__")

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments import environments
from experiments.cli.parser import Parser, one_of
from experiments.cli.shared import add_compilation_cache, add_devices, run_command
from experiments.environments.extras import lacking_extra
from experiments.files.disk import write_bytes
from experiments.papers import figures, running, summary
from experiments.papers.archive import Data
from experiments.papers.catalogue import ENTRIES, claims_about, of_papers
from experiments.papers.committed import COMMITTED
from experiments.papers.entry import PAPERS, SIZES, Entry, Experiment, Source
from experiments.papers.running import Places
from experiments.runs import compilation
from experiments.runs.log import escaped, say, show
from experiments.runs.rates import DAY, in_words
from experiments.studies.options import Where
from jaxreplay.saving import check_writable

_OUT = Path("runs/papers")  # default of --out


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(
        prog="python -m experiments.papers", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    functions = {"list": _list, "run": _run, "report": _report}
    for name, about in (
        ("list", "show id, cost, status, verdicts and claim of each entry"),
        ("run", "run missing parts, draw the figure, and report"),
        ("report", "show our numbers next to the paper's"),
    ):
        _add_options(commands.add_parser(name, help=about, description=about), name)
    args = parser.parse_args(argv)
    again = "give the same command again"
    return run_command(parser, lambda: functions[args.command](args), again)


def _add_options(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument(
        "ids", nargs="*", type=one_of("entry", ENTRIES), metavar="ID", default=[],
        help="ids of entries, such as per.fig1 (the command list shows them)",
    )  # fmt: skip
    parser.add_argument(
        "--paper", nargs="+", type=one_of("paper", PAPERS), default=[], metavar="PAPER",
        help=f"papers whose entries to take: {', '.join(PAPERS)}",
    )  # fmt: skip
    parser.add_argument(
        "--size", choices=SIZES, default="small",
        help="smoke: seconds, to see that an entry runs; small: as in the committed results; "
        "paper: as published [default small]",
    )  # fmt: skip
    if command == "run":
        _add_run(parser)
        return
    parser.add_argument(
        "--results", type=Path, default=COMMITTED, metavar="DIR",
        help="folder of the tables [default: the committed ones]",
    )  # fmt: skip
    if command == "report":
        parser.add_argument(
            "--all", action="store_true", help="list all claims with their verdicts instead"
        )
        parser.add_argument(
            "--write",
            type=Path,
            metavar="FILE",
            help="write the report to FILE instead of printing it",
        )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=_OUT, metavar="DIR",
        help=f"folder of the tables and figures [default {_OUT}]",
    )  # fmt: skip
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="repeat runs whose results are of another version of the code or of other settings, "
        "and replace files that this command did not write",
    )
    parser.add_argument(
        "--other-code", action="store_true",
        help="keep results of another version of the code, or of other settings of JAX",
    )  # fmt: skip
    parser.add_argument(
        "--yes", action="store_true", help="start even what takes more than a day on this machine"
    )
    parser.add_argument(
        "--hours", type=float, metavar="NUMBER",
        help="stop each experiment cleanly after NUMBER hours; the same command continues it",
    )  # fmt: skip
    add_devices(parser)
    add_compilation_cache(parser)


def _chosen(args: argparse.Namespace) -> list[Entry]:
    """Return the selected entries at the selected size."""
    if args.ids and args.paper:
        raise ValueError("entries and --paper are given: leave out one of them")
    if args.ids:
        return [ENTRIES[name].at(args.size) for name in args.ids]
    everything = getattr(args, "all", False) or (args.command == "list" and not args.paper)
    chosen = []
    for entry in of_papers(PAPERS if everything else args.paper):
        try:
            chosen.append(entry.at(args.size))
        except ValueError as error:
            say(f"left out: {error}")
    return chosen


def _list(args: argparse.Namespace) -> None:
    entries = _chosen(args)
    _check_results(args)
    read: dict[str, Data | None] = {}
    rows = [("id", "size", "cost", "status", "verdicts", "claim")]
    for entry in entries:
        name = entry.source.name if entry.source else ""
        if name not in read:
            read[name] = summary.read(entry, args.size, args.results)
        rows.append(summary.shown_in_list(entry, args.size, read[name]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        show("  ".join(cells).rstrip())


def _check_results(args: argparse.Namespace) -> None:
    if not args.results.is_dir():
        raise ValueError(
            f"{args.results} is no folder: name one that run --out made, or leave out --results"
        )


def _run(args: argparse.Namespace) -> None:
    entries = _chosen(args)
    if not entries:
        raise ValueError("nothing to run: name entries (list shows them), or --paper PAPER")
    for entry in [entry for entry in entries if entry.source is None]:
        say(f"{entry.id}: not to be had: {entry.missing}")
    asked = [
        (entry, entry.source)
        for entry in entries
        if entry.source is not None and _installed(entry, entry.source, args)
    ]
    if not asked:
        return
    devices = "auto" if args.devices is None else str(args.devices)
    where = Where(devices=devices, hours=args.hours, other_code=args.other_code)
    places = Places(args.out, args.overwrite, where, args.compilation_cache)
    left = {
        source.name: running.minutes_left(
            source, args.size, running.read_reusable(source, args.size, places)
        )
        for source in {source.name: source for _, source in asked}.values()
    }
    for entry, source in asked:
        if entry.layout is not None:
            path = figures.path_of(entry, args.size, args.out)
            running.check_figure(path, source.name, args.size, places)
    total = sum(left.values())
    if total > DAY and not args.yes:
        longest = max(left, key=left.__getitem__)
        raise ValueError(
            f"that would take about {in_words(total)} on this machine, {longest} alone "
            f"{in_words(left[longest])}: add --yes to start it, or choose --size small"
        )
    say(f"about {in_words(total)} for {', '.join(left)}")
    done: dict[str, Data] = {}
    for entry, source in asked:
        if source.name not in done:
            with compilation.cache_programs(args.compilation_cache):
                made = running.make(source, args.size, places, claims_about(source))
            if made is None:  # the time limit --hours is reached
                continue
            done[source.name] = made
        if entry.layout is not None:
            path = figures.path_of(entry, args.size, args.out)
            try:
                figures.draw(entry, args.size, done[source.name], path)
                show(f"{entry.id}: {path}")
            except figures.NothingToShow as error:
                say(f"{entry.id} has no figure: {error}")
        show(summary.one(entry, args.size, args.out, args.out))
    if args.out.resolve() != COMMITTED.resolve():
        say(f"list and report show these results with --results {args.out}")


def _installed(entry: Entry, source: Source, args: argparse.Namespace) -> bool:
    """Return whether the packages of an entry are installed; report missing ones.

    Raises:
      ValueError: a package is missing, and the command line names the entry.
    """
    reasons = []
    if isinstance(source, Experiment):
        reasons = [environments.missing(env) for env in source.sizes[args.size].envs]
    elif source.needs:
        reasons = [lacking_extra("it", {source.needs: "papers"})]
    for why in filter(None, reasons):
        if entry.id in args.ids:
            raise ValueError(f"{entry.id}: {why}")
        say(f"{entry.id} is left out: {why}")
        return False
    return True


def _report(args: argparse.Namespace) -> None:
    entries = _chosen(args)
    if not entries:
        raise ValueError("nothing to report: name entries (list shows them), --paper or --all")
    if args.all and (args.ids or args.paper):
        raise ValueError("--all reports every entry: leave out --all, or leave out ids and --paper")
    _check_results(args)
    base = args.write.parent if args.write else Path.cwd()
    if args.all:
        text = summary.everything(entries, args.size, args.results)
    else:
        text = summary.TITLE + "\n".join(
            summary.one(entry, args.size, args.results, base) for entry in entries
        )
    if args.write is None:
        show(text.removeprefix(summary.TITLE))
        return
    check_writable(args.write, "choose another --write")
    if args.write.exists() and not args.write.read_bytes().startswith(summary.TITLE.encode()):
        raise ValueError(f"{args.write} is no report of this command: choose another --write")
    if not args.write.parent.is_dir():
        raise ValueError(f"{args.write.parent} is no folder: make it, or choose another --write")
    write_bytes(args.write, escaped(text).encode())
