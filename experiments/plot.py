"""Plot finished runs of any agents and methods together: `python -m experiments.plot --help`."""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.plot")

from collections.abc import Sequence

from experiments.cli import shared
from experiments.cli.parser import Parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)

    def command() -> None:
        from experiments.figures.panels import during_training  # imports matplotlib
        from experiments.files.disk import write_bytes, write_json
        from experiments.runs.log import escaped, show
        from experiments.statistics.markdown import table
        from experiments.studies import folders, run_page

        arms = run_page.read(shared.check_labels(args.runs), args.other_code)
        for arm in arms.values():
            if arm.summary is None:
                raise ValueError(
                    f"the run in {arm.folder} has not ended: finish it with --resume {arm.folder}"
                )
        folders.prepare(args.out, "plot", overwrite=args.overwrite)
        frames = {label: arm.frame for label, arm in arms.items()}
        methods = {label: arm.replay for label, arm in arms.items()}
        title, goal = args.title or run_page.title_of(arms), run_page.threshold_of(arms)
        summaries = {label: arm.summary or {} for label, arm in arms.items()}
        write_json(args.out / folders.MARKS["plot"], summaries)
        written = during_training(frames, methods, args.out, title, goal)
        rows = [{**summary, "replay": label} for label, summary in summaries.items()]
        text = escaped(table(rows, "run"))
        write_bytes(args.out / "comparison.md", text.encode())
        figures = "\n         ".join(map(str, written))
        show(f"\n{text}\ntable:   {args.out / 'comparison.md'}\nfigures: {figures}")

    return shared.run_command(parser, command, "give the same command again")


def _parser() -> Parser:
    parser = Parser(
        prog="python -m experiments.plot", description=__doc__,
        epilog="Example: python -m experiments.plot racer=runs/a ppo=runs/b --out runs/c",
    )  # fmt: skip
    parser.add_argument(
        "runs", nargs="+", type=shared.labelled_folder, metavar="LABEL=FOLDER",
        help="folders of finished runs, with labels for the figures [default: the folder's name]",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=shared.folder, required=True, help="folder of the figures and the table"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the plot in --out")
    parser.add_argument(
        "--title", type=shared.shown, help="title of the figures [default: agents and environments]"
    )
    parser.add_argument(
        "--other-code", action="store_true",
        help="accept runs of different versions of the code or settings of JAX",
    )  # fmt: skip
    return parser
