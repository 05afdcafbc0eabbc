"""Compare replay methods with one agent in one environment: `python -m experiments.compare --help`.

Every method is a run of its own in a folder below `--out`; one figure and one table join them.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import report
from experiments.config import OutputConfig
from experiments.options import Parser, add_options, one_of, read_options
from experiments.run import (
    RunConfig,
    build,
    check_claim,
    claim,
    defaults,
    execute,
    threshold_of,
    write_json,
)
from experiments.train import PREFIXES, add_common, given, names_parser, print_list, read_config
from jaxreplay.methods import METHODS

_SHARED = ("loop", "sizes", "env_options", "agent_options")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    first = names_parser()
    first.add_argument("--replays", nargs="+", type=one_of("replay", METHODS), default=None)
    known, _ = first.parse_known_args(argv)
    if known.list:
        print_list(known.json)
        return 0
    parser = Parser(prog="python -m experiments.compare", description=__doc__)
    try:
        bases = _bases(known)
        args = _parse(parser, bases, argv)
        configs = [_configured(base, args) for base in bases]
        output = read_options(args, OutputConfig())
        if known.resume is not None and args.out not in (None, known.resume):
            raise ValueError("--resume DIR goes on in DIR itself: leave out --out")
        out = known.resume or args.out or Path("runs") / f"compare-{configs[0].agent}"
        summaries = _run_all(configs, out, output, known.resume is not None, args.overwrite)
    except ValueError as error:
        parser.error(str(error))
    conclude(configs, summaries, out, output)
    return 0


def conclude(
    configs: Sequence[RunConfig],
    summaries: Sequence[dict[str, Any]],
    out: Path,
    output: OutputConfig,
) -> None:
    """Write and print the joint table, and draw the joint figure."""
    frames = {config.replay: pd.read_csv(out / config.replay / "metrics.csv") for config in configs}
    config = configs[0]
    figure = out / "learning_curves.png"
    title = f"{config.agent} on {config.env}"
    report.learning_curves(frames, figure, title, threshold_of(config, output))
    table = report.table(summaries)
    (out / "comparison.md").write_text(table)
    write_json(out / "summary.json", {summary["replay"]: summary for summary in summaries})
    print(f"\n{table}\ntable:  {out / 'comparison.md'}\nfigure: {figure}")


def _bases(known: argparse.Namespace) -> list[RunConfig]:
    """Return the runs before their options: those to resume, or the names' defaults."""
    if known.resume is None:
        replays = known.replays or ["uniform", "per", "lap", "pal"]
        env, agent = known.env or "gymnax/CartPole-v1", known.agent or "dqn"
        return [defaults(env, agent, replay) for replay in dict.fromkeys(replays)]
    if not known.resume.is_dir():
        raise ValueError(f"{known.resume} is not a folder: give the folder of a comparison")
    folders = [known.resume / replay for replay in METHODS]
    found = [read_config(folder) for folder in folders if (folder / "config.json").exists()]
    if not found:
        raise ValueError(f"{known.resume} holds no comparison to resume")
    return found


def _parse(
    parser: Parser, bases: Sequence[RunConfig], argv: Sequence[str] | None
) -> argparse.Namespace:
    add_common(parser)
    parser.add_argument(
        "--replays", nargs="+", type=one_of("replay", METHODS), metavar="NAME",
        help=f"replay methods, of {', '.join(METHODS)} [default uniform per lap pal]",
    )  # fmt: skip
    for section in _SHARED:
        add_options(parser, getattr(bases[0], section), PREFIXES[section])
    for base in bases:
        add_options(parser, base.replay_options, f"{base.replay}.")
    add_options(parser, OutputConfig())
    return parser.parse_args(argv)


def _configured(base: RunConfig, args: argparse.Namespace) -> RunConfig:
    config = given(args, base, _SHARED)
    options = read_options(args, base.replay_options, f"{base.replay}.")
    return dataclasses.replace(config, replay_options=options)


def _run_all(
    configs: Sequence[RunConfig], out: Path, output: OutputConfig, resume: bool, overwrite: bool
) -> list[dict[str, Any]]:
    # Everything is checked, and every folder claimed, before the first run trains.
    for config in configs:
        build(config)
        check_claim(out / config.replay, config, resume=resume, overwrite=overwrite)
    for config in configs:
        claim(out / config.replay, config, resume=resume, overwrite=overwrite)
    return [execute(config, out / config.replay, output, resume=True) for config in configs]


if __name__ == "__main__":
    sys.exit(main())
