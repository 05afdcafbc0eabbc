"""Plot finished runs of any agents and methods together: `python -m experiments.plot --help`."""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.plot")

from collections.abc import Sequence

from experiments.cli import shared
from experiments.cli.options import Parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)

    def command() -> None:
        from experiments.figures.panels import during_training  # imports matplotlib
        from experiments.runs import folder, manifest, results
        from experiments.runs.log import say
        from experiments.statistics.tables import table
        from experiments.storage.files import write_bytes, write_json

        runs = shared.check_labels(args.runs)
        summaries = {label: results.read_summary(path) for label, path in runs.items()}
        made = {label: results.origin_of(summary) for label, summary in summaries.items()}
        results.check_alike(made, args.other_code)
        frames = {
            label: results.read_metrics(path, summaries[label]) for label, path in runs.items()
        }
        for label, path in runs.items():
            times = results.read_times(path / "timing.csv")
            summaries[label] = results.recompute(summaries[label], frames[label], times)
            for remark in manifest.differing(path):
                say(remark)
        folder.prepare(args.out, "plot", overwrite=args.overwrite)
        every = list(summaries.values())
        thresholds = {summary["threshold"] for summary in every}
        threshold = thresholds.pop() if len(thresholds) == 1 else None
        agents, envs = (
            ", ".join(dict.fromkeys(summary[key] for summary in every)) for key in ("agent", "env")
        )
        title = args.title or f"{agents} on {envs}"
        methods = {label: summary["replay"] for label, summary in summaries.items()}
        written = during_training(frames, methods, args.out, title, threshold)
        write_json(args.out / "summary.json", summaries)
        rows = [{**summary, "replay": label} for label, summary in summaries.items()]
        text = table(rows, "run")
        write_bytes(args.out / "comparison.md", text.encode())
        figures = "\n         ".join(map(str, written))
        print(f"\n{text}\ntable:   {args.out / 'comparison.md'}\nfigures: {figures}")

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
    parser.add_argument("--title", help="title of the figures [default: agents and environments]")
    parser.add_argument(
        "--other-code", action="store_true",
        help="accept runs of different versions of the code or settings of JAX",
    )  # fmt: skip
    return parser
