"""Train one agent with one replay method: `python -m experiments.train --help`."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import environments, registry, report, run_config
from experiments.config import OutputConfig
from experiments.options import Parser, add_options, one_of, read_options
from experiments.presets import PRESETS
from experiments.run import Stopped, execute
from experiments.run_config import SECTIONS, RunConfig, defaults
from jaxreplay.methods import METHODS

# Where each section of a RunConfig stands on the command line.
PREFIXES = {
    "loop": "", "sizes": "", "env_options": "env.", "agent_options": "agent.",
    "replay_options": "replay.",
}  # fmt: skip


def environment(text: str) -> str:
    """Read the name of an environment: an argparse `type`."""
    try:
        environments.check(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def names_parser() -> Parser:
    """Make the parser of what must be known before the other options exist."""
    parser = Parser(add_help=False)
    parser.add_argument("--agent", type=one_of("agent", registry.AGENTS), default=None)
    parser.add_argument("--env", type=environment, default=None)
    parser.add_argument("--preset", type=one_of("preset", PRESETS), default=None)
    parser.add_argument("--resume", type=Path, default=None)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser


def add_common(parser: Parser, env: str) -> None:
    """Add the options that `train` and `compare` share; `env` decides which of its there are."""
    parser.reasons = {
        f"--env.{option}".replace("_", "-"): f"{env} has no option '--env.{option}': it is for "
        f"{whose}: leave it out"
        for option, whose in environments.strangers(env).items()
    }
    parser.add_argument(
        "--agent", type=one_of("agent", registry.AGENTS), metavar="NAME",
        help=f"agent: {', '.join(registry.AGENTS)} [default dqn]",
    )  # fmt: skip
    parser.add_argument(
        "--env", type=environment, metavar="NAME",
        help="environment, such as gymnax/CartPole-v1, brax/ant or atari/Pong; --list names all "
        "[default gymnax/CartPole-v1]",
    )  # fmt: skip
    parser.add_argument(
        "--preset", type=one_of("preset", PRESETS), metavar="NAME",
        help="published settings as defaults, those shown below it; what is given explicitly wins: "
        f"{_presets()} [default none]",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, metavar="INT", help="seeds, vmapped [default 5]")
    parser.add_argument("--seed", type=int, metavar="INT", help="the first seed [default 0]")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results")
    parser.add_argument(
        "--resume", type=Path, metavar="DIR",
        help="go on with the run in DIR from its last checkpoint; other options must agree with it",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="discard a run that --out holds")
    parser.add_argument("--list", action="store_true", help="list what there is and what fits what")
    parser.add_argument("--json", action="store_true", help="with --list: as JSON")


def _presets() -> str:
    return "; ".join(f"{name}: {preset.about}" for name, preset in PRESETS.items())


def check_resumed(known: argparse.Namespace) -> None:
    """Refuse a preset for a run that goes on: its options are in its folder.

    Raises:
      ValueError: both were given.
    """
    if known.resume is not None and known.preset is not None:
        raise ValueError(
            f"--resume {known.resume} goes on with the options that it began with: leave out "
            "--preset"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    first = names_parser()
    first.add_argument("--replay", type=one_of("replay", METHODS), default=None)
    known, _ = first.parse_known_args(argv)
    if known.list:
        print_list(known.json)
        return 0
    parser = Parser(prog="python -m experiments.train", description=__doc__)
    try:
        base = _base(known)
        args = _parse(parser, base, argv)
        config, output = given(args, base), read_options(args, OutputConfig())
        resume = args.resume is not None
        if resume and args.out not in (None, args.resume):
            raise ValueError("--resume DIR goes on in DIR itself: leave out --out")
        out = args.resume or args.out or Path("runs") / f"{config.agent}-{config.replay}"
        summary = execute(config, out, output, resume=resume, overwrite=args.overwrite)
    except ValueError as error:
        parser.error(str(error))
    except Stopped as error:
        return stopped(error)
    print(report.table([summary]))
    print(f"results: {out}/  (figure: {out / 'learning_curve.png'})")
    return 0


def stopped(error: Stopped) -> int:
    """Say why a run ended before its end; return the exit code."""
    print(f"error: {error}" if error.__cause__ else str(error), file=sys.stderr)
    return 1 if error.__cause__ else 130  # as shells do for Ctrl-C


def given(
    args: argparse.Namespace, config: RunConfig, sections: Sequence[str] = SECTIONS
) -> RunConfig:
    """Return a RunConfig with everything replaced that the command line says."""
    parts = {s: read_options(args, getattr(config, s), PREFIXES[s]) for s in sections}
    for name in ("seeds", "seed"):
        if getattr(args, name) is not None:
            parts[name] = getattr(args, name)
    return dataclasses.replace(config, **parts)


def print_list(as_json: bool) -> None:
    """Print agents, replays, environments and presets with what fits what."""
    catalogue = registry.catalogue()
    if as_json:
        print(json.dumps(catalogue, indent=2))
        return
    for kind, entries in catalogue.items():
        print(f"{kind}:")
        for name, entry in entries.items():
            facts = ", ".join(
                f"{key}: {' '.join(value) if isinstance(value, list) else value}"
                for key, value in entry.items()
                if key != "environments" and value
            )
            print(f"  {name:<32} {facts}")


def _base(known: argparse.Namespace) -> RunConfig:
    """Return the run before its options: the one to resume, or the names' defaults."""
    check_resumed(known)
    names = {"env": known.env, "agent": known.agent, "replay": known.replay}
    if known.resume is not None:
        saved = run_config.read(known.resume, "run to resume")
        for name, value in names.items():
            if value not in (None, getattr(saved, name)):
                raise ValueError(
                    f"checkpoint in {known.resume} was made with {name}={getattr(saved, name)}, "
                    f"this run has {value}: use the same options, or another --out"
                )
        return saved
    return defaults(
        known.env or "gymnax/CartPole-v1",
        known.agent or "dqn",
        known.replay or "uniform",
        known.preset,
    )


def _parse(parser: Parser, base: RunConfig, argv: Sequence[str] | None) -> argparse.Namespace:
    add_common(parser, base.env)
    parser.add_argument(
        "--replay", type=one_of("replay", METHODS), metavar="NAME",
        help=f"replay method: {', '.join(METHODS)} [default uniform]",
    )  # fmt: skip
    for section in SECTIONS:
        add_options(parser, getattr(base, section), PREFIXES[section])
    add_options(parser, OutputConfig())
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
