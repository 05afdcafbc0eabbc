"""Train one agent with one replay method: `python -m experiments.train --help`."""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.train")

import argparse
from collections.abc import Sequence

from experiments import environments
from experiments.cli import shared
from experiments.cli.help import Guide
from experiments.cli.options import Parser, add_options, read_options
from experiments.runs import compilation, presets, run_config
from experiments.runs.log import show
from experiments.runs.run_config import PREFIXES, SECTIONS, OutputConfig, RunConfig, defaults

HEADINGS = {
    "what to run": ("--agent", "--replay", "--env", "--preset", "--seeds", "--seed"),
    "length, and frequency of updates and evaluations": (
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
    """Run the command and return its exit code."""
    parser = Parser(
        prog="python -m experiments.train", usage="%(prog)s [OPTION VALUE ...]",
        description="Train one agent with one replay method.",
    )  # fmt: skip
    known, _ = shared.names_parser().parse_known_args(argv)

    def command() -> None:
        if known.list:
            from experiments.cli.listing import print_list

            print_list(known.json)
            return
        base = _base(known)
        saved = _saved_output(known)
        args = _parse(parser, base, saved, known, argv)
        config, output = shared.read_config(args, base), read_options(args, saved)
        output.check_packages()
        shared.check_resume(args)
        shared.check_used(args, [config])
        presets.check_demos(known.preset, config)
        _run(config, output, args)

    return shared.run_command(parser, command)


def _run(config: RunConfig, output: OutputConfig, args: argparse.Namespace) -> None:
    """Train a run, and print a table of its results."""
    from experiments.runs.run import execute
    from experiments.statistics import markdown  # slow imports, which `--help` does not need

    out = args.resume or args.out or shared.own_folder(config.agent, config.replay, config.env)
    resume = args.resume is not None
    with compilation.cache_programs(args.compilation_cache):
        summary = execute(
            config, out, output, resume=resume, overwrite=args.overwrite, devices=args.devices
        )
    show(markdown.table([summary]))
    figure = f"  (figure: {out / 'learning_curve.png'})" if output.figures else ""
    show(f"results: {out}/{figure}")
    if output.report:
        from experiments.report import page

        show(page.write_run(out))


def _base(known: argparse.Namespace) -> RunConfig:
    """Return the configuration of the run to resume, or the default one for the names."""
    shared.check_resumed(known)
    names = {"env": known.env, "agent": known.agent, "replay": known.replay}
    if known.resume is None:
        envs, replays = (names[name] and [names[name]] for name in ("env", "replay"))
        default = shared.default_names(known, envs, replays)
        chosen = [names[name] or getattr(default, name) for name in names]
        return defaults(*chosen, preset=known.preset)
    saved = run_config.read(known.resume, "run to resume")
    for name, value in names.items():
        if value not in (None, own := getattr(saved, name)):
            raise ValueError(
                f"the run in {known.resume} has {name} {own}, not {value}: remove --{name}, or "
                "choose another --out"
            )
    return saved


def _saved_output(known: argparse.Namespace) -> OutputConfig:
    if known.resume is None:
        return OutputConfig()
    from experiments.runs import manifest  # imports pandas

    return manifest.read(known.resume).output


def _parse(
    parser: Parser,
    base: RunConfig,
    output: OutputConfig,
    known: argparse.Namespace,
    argv: Sequence[str] | None,
) -> argparse.Namespace:
    shared.add_common(parser, known.preset)
    shared.add_devices(parser.group("run"))
    for option, family in environments.foreign_options(base.env).items():
        name = f"--env.{option}".replace("_", "-")
        parser.reasons[name] = f"{base.env} has no {name}, only {family} has: remove it"
    sections = {name: (getattr(base, name), PREFIXES[name]) for name in SECTIONS}
    for name, (options, prefix) in (sections | {"output": (output, "")}).items():
        group, about = shared.GROUPS[name]
        add_options(parser, options, prefix, group=group, about=about)
    named = {
        name: f"options of {getattr(base, name)}, and defaults" for name in ("agent", "replay")
    }
    parser.guide = Guide(HEADINGS, named, EXAMPLES)
    return parser.parse_args(argv)
