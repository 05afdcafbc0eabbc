"""Train one agent with one replay method: `python -m experiments.train --help`."""

import argparse
import sys
from collections.abc import Sequence

from experiments.analysis import tables
from experiments.cli import elsewhere
from experiments.cli.help import Guide
from experiments.cli.options import Parser, add_options, read_options
from experiments.cli.shared import (
    GROUPS,
    add_common,
    brought_names,
    check_resume,
    check_resumed,
    ended,
    given,
    names_parser,
    own_folder,
    own_module,
    print_list,
    replay_name,
)
from experiments.cli.used import check_used
from experiments.pages import page
from experiments.runs import compilation, manifest, presets, run_config
from experiments.runs.run import execute
from experiments.runs.run_config import PREFIXES, SECTIONS, RunConfig, defaults
from jaxreplay.methods import METHODS

HEADINGS = {
    "what runs": ("--agent", "--replay", "--env", "--preset", "--seeds", "--seed"),
    "how long, and how often it learns and is evaluated": (
        "--steps", "--warmup", "--learn-every", "--n-step", "--batch-size", "--capacity",
        "--eval-every", "--eval-episodes",
    ),
    "results": ("--out", "--resume", "--overwrite", "--wandb", "--compilation-cache"),
}  # fmt: skip
EXAMPLES = (
    "python -m experiments.train --agent dqn --replay per --env gymnax/CartPole-v1 --out runs/x",
    "python -m experiments.train --agent td3 --replay lap --replay.kappa 0.5 --env brax/ant",
    "python -m experiments.train --agent td3 --env brax/ant --help agent",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    first = names_parser()
    first.add_argument("--replay", type=replay_name, default=None)
    known, _ = first.parse_known_args(argv)
    if known.list:
        print_list(known.json)
        return 0
    parser = Parser(
        prog="python -m experiments.train", usage="%(prog)s [OPTION VALUE ...]",
        description="Train one agent with one replay method.",
    )  # fmt: skip

    def command() -> None:
        base = _base(known)
        args = _parse(parser, base, known, argv)
        config, output = given(args, base), read_options(args, manifest.read(args.resume).output)
        output.check_report()
        resume = args.resume is not None
        check_resume(args)
        check_used(args, [config])
        out = args.resume or args.out or own_folder(config.agent, config.replay, config.env)
        with compilation.kept(args.compilation_cache):
            summary = execute(
                config, out, output, resume=resume, overwrite=args.overwrite, devices=args.devices
            )
        print(tables.table([summary]))
        figure = f"  (figure: {out / 'learning_curve.png'})" if output.figures else ""
        print(f"results: {out}/{figure}")
        if output.report:
            print(page.write_run(out))

    return ended(parser, command)


def _base(known: argparse.Namespace) -> RunConfig:
    """Return the run before its options: the one to resume, or the names' defaults."""
    check_resumed(known)
    names = {"env": known.env, "agent": known.agent, "replay": known.replay}
    if known.resume is not None:
        saved = run_config.read(known.resume, "run to resume")
        for name, value in names.items():
            if value not in (None, getattr(saved, name)):
                raise ValueError(
                    f"the run in {known.resume} was made with {name} {getattr(saved, name)}, and "
                    f"this has {value}: use the same options, or another --out"
                )
        return saved
    brought = brought_names(known, known.env and [known.env], known.replay and [known.replay])
    return defaults(
        known.env or brought.env,
        known.agent or brought.agent,
        known.replay or brought.replay,
        known.preset,
    )


def _parse(
    parser: Parser, base: RunConfig, known: argparse.Namespace, argv: Sequence[str] | None
) -> argparse.Namespace:
    add_common(parser, base.env, known.preset)
    if known.resume is None:  # else agent and method are settled
        parser.elsewhere = elsewhere.of_agents() | elsewhere.of_replays()
    parser.group("run").add_argument(
        "--replay", type=replay_name, metavar="NAME",
        help=f"{', '.join(METHODS)}, {own_module('mypackage.mymethod')} "
        f"[default {presets.names(known.preset).replay}]",
    )  # fmt: skip
    for section in SECTIONS:
        group, about = GROUPS[section]
        add_options(parser, getattr(base, section), PREFIXES[section], group=group, about=about)
    group, about = GROUPS["output"]
    add_options(parser, manifest.read(known.resume).output, group=group, about=about)
    parser.guide = Guide(
        HEADINGS,
        {
            "agent": f"options of {base.agent}, and their defaults",
            "replay": f"options of {base.replay}, and theirs",
        },
        EXAMPLES,
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
