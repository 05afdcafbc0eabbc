"""The papers' figures and tables: list, run, and lay our numbers next to theirs.

  python -m experiments.papers list --paper per
  python -m experiments.papers run per.fig1 lap.fig2 --size small
  python -m experiments.papers report per.fig1

Runs that two entries share are made once. Finished parts are kept, and the
same command continues an interrupted one.
"""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.papers.__main__")

import argparse
import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments import environments
from experiments.cli.options import Parser, one_of
from experiments.cli.shared import add_compilation_cache, add_devices, ended
from experiments.installation.commands import install
from experiments.papers import figures, rates, report, running
from experiments.papers.entry import PAPERS, Computation, Entry
from experiments.papers.experiment import SIZES, Experiment
from experiments.papers.registry import ENTRIES, claims_about, of_papers
from experiments.papers.results import COMMITTED
from experiments.papers.running import Places
from experiments.papers.tables import Data
from experiments.runs import compilation
from experiments.runs.log import say, show
from experiments.runs.rates import DAY, in_words
from experiments.storage.files import write_bytes
from jaxreplay.saving import check_writable

_OUT = Path("runs/papers")  # unless another folder is named


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(
        prog="python -m experiments.papers", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name, (about, add, _) in _COMMANDS.items():
        add(commands.add_parser(name, help=about, description=about))
    args = parser.parse_args(argv)
    again = "give the same command again"
    return ended(parser, lambda: _COMMANDS[args.command][2](args), again)


def _entries(parser: argparse.ArgumentParser, nargs: str) -> None:
    parser.add_argument(
        "ids", nargs=nargs, type=one_of("entry", ENTRIES), metavar="ID", default=[],
        help="entries, such as per.fig1 (list shows them)",
    )  # fmt: skip
    parser.add_argument(
        "--paper", nargs="+", type=_paper, default=[], metavar="PAPER",
        help=f"all entries of {', '.join(PAPERS)}",
    )  # fmt: skip
    parser.add_argument(
        "--size", choices=SIZES, default="small",
        help="smoke: seconds, to see that it runs; small: what is committed; paper: as published "
        "[default small]",
    )  # fmt: skip


def _paper(text: str) -> str:
    if text in ENTRIES:
        raise argparse.ArgumentTypeError("name entries or papers, not both")
    return one_of("paper", PAPERS)(text)


def _add_list(parser: argparse.ArgumentParser) -> None:
    _entries(parser, "*")
    _add_results(parser)


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, default=COMMITTED, metavar="DIR",
        help="folder of the tables [default: the committed ones]",
    )  # fmt: skip


def _add_report(parser: argparse.ArgumentParser) -> None:
    _entries(parser, "*")
    _add_results(parser)
    parser.add_argument("--all", action="store_true", help="all entries, the table of claims first")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write it there instead of printing it"
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    _entries(parser, "*")
    parser.add_argument(
        "--seeds", type=int, metavar="INT", help="seeds of every arm [default: the size's]"
    )
    parser.add_argument(
        "--out", type=Path, default=_OUT, metavar="DIR",
        help=f"folder of the tables and figures [default {_OUT}]",
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=Path, default=None, metavar="DIR",
        help="folder of finished parts of unfinished computations [default OUT/runs]",
    )  # fmt: skip
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="repeat results of another version of the code or other settings, and replace files "
        "of others",
    )
    parser.add_argument(
        "--other-code", action="store_true",
        help="keep results of another version of the code, or other settings of JAX",
    )  # fmt: skip
    parser.add_argument(
        "--yes", action="store_true", help="also start work of more than a day on this machine"
    )
    parser.add_argument(
        "--hours", type=float, metavar="NUMBER",
        help="stop each experiment cleanly after so many hours; the same command continues",
    )  # fmt: skip
    add_devices(parser)
    add_compilation_cache(parser)


def _chosen(args: argparse.Namespace) -> list[Entry]:
    """Return the entries that are asked for, as they are at the size that is."""
    if args.ids and args.paper:
        raise ValueError("name entries or papers, not both")
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
    rows = [("id", "claim", "size", "cost", "status", "verdicts")]
    read: dict[str, Data | None] = {}
    older = 0
    for entry in entries:
        name = entry.source.name if entry.source else ""
        if name not in read:
            read[name] = report.read(entry, args.size, args.results)
        rows.append(report.shown_in_list(entry, args.size, read[name]))
        older += report.made_by_older_code(entry, read[name])
    widths = [max(len(row[place]) for row in rows) for place in (0, 2, 3, 4, 5)]
    for name, claim, size, cost, status, verdicts in rows:
        print(
            f"{name:<{widths[0]}}  {size:<{widths[1]}}  {cost:>{widths[2]}}  "
            f"{status:<{widths[3]}}  {verdicts:<{widths[4]}}  {claim}".rstrip()
        )
    if older:
        verb = "is" if older == 1 else "are"
        say(f"{older} of these {verb} by older code: {_renewing(args)} makes one again")


def _renewing(args: argparse.Namespace) -> str:
    """Return the command that makes an entry of a list again, in the folder that the list shows."""
    shown = args.results
    with contextlib.suppress(ValueError):  # lies elsewhere
        shown = shown.relative_to(Path.cwd())
    runs = f" --runs {_OUT}" * _is_committed(args.results)  # folders of runs are not committed
    return f"run ID --size {args.size} --overwrite --out {shown}{runs}"


def _is_committed(folder: Path) -> bool:
    return folder.resolve() == COMMITTED.resolve()


def _check_results(args: argparse.Namespace) -> None:
    if not args.results.is_dir():
        raise ValueError(
            f"{args.results} is no folder: run --out makes one, or leave out --results"
        )


def _run(args: argparse.Namespace) -> None:
    entries = _chosen(args)
    if not entries:
        raise ValueError("nothing to run: name entries (list shows them), or --paper PAPER")
    for entry in [entry for entry in entries if entry.source is None]:
        say(f"{entry.id}: not to be had: {entry.missing}")
    made_of = {
        entry.id: _with_seeds(entry.source, args)
        for entry in entries
        if entry.source is not None and _installed(entry, args)
    }
    if not made_of:
        return
    sources = {source.name: source for source in made_of.values()}
    runs = args.runs or args.out / "runs"
    places = Places(
        args.out, runs, args.other_code, args.overwrite, args.devices, args.compilation_cache,
        args.hours,
    )  # fmt: skip
    known = {name: running.kept(source, args.size, places) for name, source in sources.items()}
    for entry in [entry for entry in entries if entry.id in made_of and entry.layout is not None]:
        path = figures.path_of(entry, args.size, args.out)
        running.check_figure(path, made_of[entry.id].name, args.size, places)
    left = {name: rates.left(source, args.size, known[name]) for name, source in sources.items()}
    total = sum(left.values())
    if total > DAY and not args.yes:
        longest = max(left, key=left.__getitem__)
        raise ValueError(
            f"that would take about {in_words(total)} on this machine, {longest} alone "
            f"{in_words(left[longest])}: add --yes to start it, or choose --size small"
        )
    say(f"about {in_words(total)} for {', '.join(sources)}")
    done: dict[str, Data] = {}
    for entry in entries:
        if entry.id not in made_of:
            continue
        source = made_of[entry.id]
        if source.name not in done:
            with compilation.kept(args.compilation_cache):
                made = running.make(source, args.size, places, claims_about(source))
            if made is None:  # the hours are over
                continue
            done[source.name] = made
        if entry.layout is not None:
            path = figures.path_of(entry, args.size, args.out)
            shown = dataclasses.replace(entry, source=source)
            try:
                figures.draw(shown, args.size, done[source.name], path)
                show(f"{entry.id}: {path}")
            except figures.NothingToShow as error:
                say(f"{entry.id} has no figure: {error}")
        show(report.one(dataclasses.replace(entry, source=source), args.size, args.out, args.out))
    if not _is_committed(args.out):
        say(f"list and report show these with --results {args.out}")


def _installed(entry: Entry, args: argparse.Namespace) -> bool:
    """Return whether the packages of an entry are installed; report missing ones.

    Raises:
      ValueError: it is not, and the entry was asked for by name.
    """
    source = entry.source
    reasons = []
    if isinstance(source, Experiment):
        reasons = [environments.missing(env) for env in source.sizes[args.size].envs]
    elif source is not None and source.needs and importlib.util.find_spec(source.needs) is None:
        reasons = [f"it needs {source.needs}: {install('papers')}"]
    for why in filter(None, reasons):
        if entry.id in args.ids:
            raise ValueError(f"{entry.id}: {why}")
        say(f"{entry.id} is left out: {why}")
        return False
    return True


def _with_seeds(
    source: Experiment | Computation, args: argparse.Namespace
) -> Experiment | Computation:
    """Return a source with the seeds that are asked for."""
    if args.seeds is None:
        return source
    if args.seeds < 2:
        raise ValueError(f"seeds is {args.seeds}: an interval needs 2, a verdict 10")
    if isinstance(source, Computation):
        options = source.options(args.size)
        if "seeds" not in options:
            raise ValueError(
                f"{source.name} has no seeds: leave out --seeds, or name other entries"
            )
        sizes = {**source.sizes, args.size: {**options, "seeds": args.seeds}}
        minutes = source.minutes * args.seeds / options["seeds"]
        return dataclasses.replace(source, sizes=sizes, minutes=minutes)
    size = dataclasses.replace(source.sizes[args.size], seeds=args.seeds, most_seeds=0)
    return dataclasses.replace(source, sizes={**source.sizes, args.size: size})


def _report(args: argparse.Namespace) -> None:
    entries = _chosen(args)
    if not entries:
        raise ValueError("nothing to report: name entries (list shows them), --paper or --all")
    if args.all and (args.ids or args.paper):
        raise ValueError("--all is every entry: leave out ids and --paper, or --all")
    _check_results(args)
    base = args.write.parent if args.write else Path.cwd()
    if args.all:
        text = report.everything(entries, args.size, args.results)
    else:
        text = report.TITLE + "\n".join(
            report.one(entry, args.size, args.results, base) for entry in entries
        )
    if args.write is None:
        print(text.removeprefix(report.TITLE))
        return
    check_writable(args.write, "choose another --write")
    if args.write.exists() and not args.write.read_bytes().startswith(report.TITLE.encode()):
        raise ValueError(f"{args.write} is no report of ours: choose another --write")
    if not args.write.parent.is_dir():
        raise ValueError(f"{args.write.parent} is no folder: make it, or choose another --write")
    write_bytes(args.write, text.encode())


_Command = tuple[
    str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], None]
]
_COMMANDS: dict[str, _Command] = {
    "list": ("show id, cost, status, verdicts and claim of each entry", _add_list, _list),
    "run": ("run missing parts, draw the figure, and report", _add_run, _run),
    "report": ("lay our numbers next to the paper's", _add_report, _report),
}
