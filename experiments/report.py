"""Make one HTML page of runs or of a study: `python -m experiments.report --help`.

The page shows all results in the folders: verdicts, curves, replayed transitions, times and
configurations; for a study with settings, the best settings and the effect of each setting. The
page is one file without scripts. Runs may still be in progress.
"""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.report")

from collections.abc import Sequence
from pathlib import Path

from experiments.cli import shared
from experiments.cli.parser import Parser
from experiments.runs.log import show


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(prog="python -m experiments.report", description=__doc__)
    parser.add_argument(
        "runs", nargs="+", type=shared.labelled_folder, metavar="RUN",
        help="folder of a study (compare, sweep), or folders of runs, FOLDER or LABEL=FOLDER",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=shared.folder, metavar="FILE",
        help="page, an .html file [default RUN/report.html]",
    )  # fmt: skip
    parser.add_argument(
        "--title", type=shared.shown, help="title of the page [default: agent and environment]"
    )
    shared.add_own_modules(parser, several=True)
    parser.add_argument(
        "--other-code", action="store_true",
        help="accept runs of different versions of the code or settings of JAX",
    )  # fmt: skip
    args = parser.parse_args(argv)

    def command() -> None:
        from experiments.figures import page  # matplotlib takes half a second to import

        if args.out is None and len(args.runs) > 1:
            raise ValueError("several runs have no common folder: add --out FILE.html")
        out = args.out or args.runs[0][1] / page.NAME
        page.check_path(out)
        show(page.write(out, _render(args.runs, out, args.other_code, args.title)))

    return shared.run_command(parser, command, "give the same command again")


def write_page(folder: Path) -> str:
    """Write the page of a run or a study into its folder.

    Returns:
      One line to print, with the path or the reason why there is no page. Errors are not raised,
      so that they cannot stop a study.
    """
    from experiments.figures import page

    try:
        out = folder / page.NAME
        content = _render([(shared.shown(folder.name), folder)], out, other_code=True, title=None)
        return page.write(out, content)
    except ValueError as error:
        return f"report:  none: {error}"


def _render(
    runs: Sequence[tuple[str, Path]], out: Path, other_code: bool, title: str | None
) -> str:
    """Return the HTML of a page of a study, or of runs.

    Raises:
      ValueError: verdicts cannot be computed, although the earlier page in `out` has verdicts; or a
        study is given together with other folders.
    """
    from experiments.figures import page
    from experiments.studies import results, run_page, store, study_page

    for _, folder in runs:
        if not results.is_run(store.read(folder)):
            if len(runs) > 1:
                raise ValueError(
                    f"{folder} is a study, which has a page of its own: remove the other folders"
                )
            found = results.read(folder)
            if found.unjudged and page.has_section(out, "verdicts"):
                raise ValueError(
                    f"{found.unjudged}; {out} has verdicts and was not replaced: to write a page "
                    "without verdicts, give another --out"
                )
            return study_page.render(found, title)
    return run_page.render(run_page.read(shared.check_labels(runs), other_code), title)
