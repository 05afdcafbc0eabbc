"""Sweep methods, settings, tasks and seeds: `python -m experiments.sweep --help`.

`--grid replay.alpha=0.2,0.4 agent.learning_rate=1e-4,3e-4` runs every combination: settings are
named as on the command line, `replay.NAME` for every method that has it, `LABEL.NAME` for one
method alone. Seeds and all settings that allow it share one compiled program. `--search random` or
`optuna` chooses settings from `--space replay.alpha=0:1 agent.learning_rate=1e-5:1e-2:log` instead.
`--file sweep.toml` reads the same names from a file, grid and space from tables [grid] and [space].
"""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.sweep")

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.cli import shared, toml
from experiments.cli.help import Guide
from experiments.cli.listing import print_list
from experiments.cli.options import Parser, add_options, one_of, read_options
from experiments.pages import page, swept
from experiments.runs import folder, lock, presets, registry
from experiments.runs.log import say
from experiments.runs.run_config import PREFIXES, RunConfig, defaults
from experiments.sweeps import (
    engines,
    grid,
    plan,
    programs,
    report,
    search,
    search_report,
    store,
    study,
)
from experiments.sweeps.options import HERE, SearchOptions, SweepOptions
from experiments.sweeps.study import Study
from experiments.training.schedule import schedule

HEADINGS = {
    "what runs": (
        "--agent", "--replays", "--envs", "--grid", "--seeds", "--steps", "--eval-every",
    ),
    "a search instead of a grid": ("--search", "--space", "--trials", "--fresh-seeds"),
    "how it is carried out, and looked at": ("--dry-run", "--on", "--devices", "--primary"),
    "results": ("--out", "--resume", "--overwrite"),
}  # fmt: skip
EXAMPLES = (
    "python -m experiments.sweep --agent dqn --replays uniform per --seeds 10 "
    "--grid replay.alpha=0.2,0.4,0.6 --out runs/s",
    "python -m experiments.sweep --agent dqn --replays per lap --search random "
    "--space replay.alpha=0:1 agent.learning_rate=1e-5:1e-2:log --out runs/t",
    "python -m experiments.sweep --file sweep.toml --dry-run",
)

_SECTIONS = ("loop", "sizes", "env_options", "agent_options")
_NOT_KEPT = ("--file", "--out", "--resume", "--overwrite", "--dry-run", "--on", "--devices",
             "--leave-state", "--other-code", "--compilation-cache")  # fmt: skip
_MANY = 500  # points: to check more takes seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(
        prog="python -m experiments.sweep", usage="%(prog)s [OPTION VALUE ...]",
        description=__doc__.replace(": `python -m experiments.sweep --help`", ""),
    )  # fmt: skip

    def command() -> None:
        named = _names_parser().parse_known_args(words)[0]
        if named.list:
            print_list(named.json)
            return
        told = [*_of_file(named), *words]
        names, before = _names_parser().parse_known_args(told)[0], _before(named)
        bases = _bases(names) if before is None else _same_names(names, before)
        args = _parse(parser, bases, told)
        now = _asked(args, bases, before)
        _check_kind(args, now)
        (_sweep if now.how.search is None else _search)(args, now, _kept(told))

    return shared.ended(parser, command)


def _sweep(args: argparse.Namespace, now: Study, command: Sequence[str]) -> None:
    """Check every point of a grid, say what there is to do, and do it."""
    bases, axes, options, _ = now
    for env in dict.fromkeys(env for env, _ in bases):
        options.metric(env)
    if not options.defaults:
        grid.check_fixed(axes, bases, vars(args).keys())
    points = grid.expand(axes, bases, options.defaults)
    out, resume = _claimed(args)
    for remark in grid.lacking(axes, bases):
        say(remark)
    if len(points) > _MANY:
        say(f"checking {plan.count(len(points), 'point')}")
    parts = plan.check(points)
    for point in points:
        log_points = schedule(point.config.loop, point.config.sizes.num_envs).log_points
        options.metric(point.env).check(len(log_points))
    keep, base_points = options.keep or (), grid.base_points(points, bases)
    with contextlib.ExitStack() as stack:
        if not args.dry_run:
            stack.enter_context(lock.held(out))
        if resume:
            results = store.resumed(out, points, keep, options.other_code)
        else:
            results = store.begin(out, points, command, keep, base_points, study=now.to_json())
        lanes = results.missing(points)
        engine = stack.enter_context(engines.opened(options, args.compilation_cache))
        groups = programs.grouped(points, {point.id for point, _ in lanes})
        programs.check_kept(keep, groups)
        todo = plan.make(groups, parts, lanes, engine.devices, options)
        remarks = dict.fromkeys(each for group in groups for each in group.program.remarks)
        for line in (*remarks, *todo.describe()):
            say(line)
        if args.dry_run:
            _say_taken(out, resume, args.overwrite)
            return
        folder.claim_sweep(out, resume=resume, overwrite=args.overwrite)
        if lanes:
            results.write()
            engine.carry_out(todo, results)
        print(report.conclude(results, options))
        if options.report:
            print(page.write_sweep(swept.of(results, options)))


def _search(args: argparse.Namespace, now: Study, command: Sequence[str]) -> None:
    """Check a search, say what there is to do, and do it."""
    bases, axes, options, how = now
    for (env, _), base in bases.items():
        log_points = schedule(base.loop, base.sizes.num_envs).log_points
        options.metric(env).check(len(log_points))
    out, resume = _claimed(args)
    for remark in grid.lacking(axes, bases, "searched without it"):
        say(remark)
    keep = options.keep or ()
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(engines.opened(options, args.compilation_cache))
        found = search.prepare(axes, bases, how, options, engine.devices)
        if not args.dry_run:
            stack.enter_context(lock.held(out))
        if resume:
            results = store.resumed(out, found.defaults, keep, options.other_code, found.asked)
        else:
            results = store.begin(
                out, found.defaults, command, keep, found.base_points, found.asked, now.to_json()
            )
        lines = found.describe()
        programs.check_kept(keep, found.shelf.grouped(found.defaults))
        for line in lines:
            say(line)
        if resume:
            say(f"{plan.count(len(results.ended()), 'run')} of these have ended")
        if args.dry_run:
            _say_taken(out, resume, args.overwrite)
            return
        folder.claim_sweep(out, resume=resume, overwrite=args.overwrite)
        results.write()
        search.carry_out(found, results, engine)
        print(search_report.conclude(results, options))
        if options.report:
            print(page.write_sweep(swept.of(results, options)))


def _claimed(args: argparse.Namespace) -> tuple[Path, bool]:
    """Return the folder of the results, which may be used, and whether to resume what it holds."""
    out, resume = args.resume or args.out or Path("runs/sweep"), args.resume is not None
    folder.check_claim_sweep(out, resume=resume, overwrite=args.overwrite or args.dry_run)
    return out, resume


def _say_taken(out: Path, resume: bool, overwrite: bool) -> None:
    """Say after a dry run why its sweep could not begin, if so."""
    try:
        folder.check_claim_sweep(out, resume=resume, overwrite=overwrite)
    except ValueError as error:
        say(f"without --dry-run this is refused: {error}")


def _check_kind(args: argparse.Namespace, now: Study) -> None:
    """Refuse what is for a grid in a search, and the other way round; and options of a cluster.

    Raises:
      ValueError: one line: it says which to leave out, or what is missing.
    """
    if now.how.search is None and args.space:
        raise ValueError("--space is what a search chooses from: add --search random or optuna")
    if now.how.search is not None and "defaults" in vars(args):
        raise ValueError("--defaults is for a grid, a search runs them anyway: leave it out")
    if "leave_state" in vars(args) and getattr(args, "on", HERE) == HERE:
        raise ValueError("--leave-state is for a cluster: add --on, or leave it out")
    if now.how.search is not None and args.grid:
        raise ValueError(
            "--search chooses settings from --space, and --grid lists all of them: leave one out"
        )
    if now.how.search is not None and not now.axes:
        raise ValueError(
            "--search needs settings to choose from: add --space, as in --space replay.alpha=0:1"
        )


def _of_file(named: argparse.Namespace) -> list[str]:
    """Return the words of the command's file.

    Raises:
      ValueError: it can't be read, or names what only a command line may name.
    """
    if named.file is None:
        return []
    if named.resume is not None:
        raise ValueError(f"--resume {named.resume} goes on with its own options: leave out --file")
    return toml.words_of(named.file)


def _before(named: argparse.Namespace) -> Study | None:
    """Return the study of the sweep to resume; None: there is none."""
    if named.resume is None:
        return None
    return study.of(store.read(named.resume))


def _same_names(names: argparse.Namespace, before: Study) -> dict[tuple[str, str], RunConfig]:
    """Return the methods of the sweep to resume, which have to be those that are named.

    Raises:
      ValueError: one line: others are.
    """
    shared.check_resumed(names)
    configs = before.bases.values()
    replays = {f"{label}={config.replay}" for (_, label), config in before.bases.items()}
    for option, given, made in (
        ("agent", names.agent and {names.agent}, {config.agent for config in configs}),
        ("replays", names.replays and set(map("=".join, names.replays)), replays),
        ("envs", names.envs and set(names.envs), {env for env, _ in before.bases}),
    ):
        if given not in (None, made):
            raise ValueError(
                f"the sweep in {names.resume} was made with {option} {' '.join(sorted(made))}: "
                f"leave out --{option}, or choose another --out"
            )
    return before.bases


def _asked(
    args: argparse.Namespace,
    bases: Mapping[tuple[str, str], RunConfig],
    before: Study | None,
) -> Study:
    """Return what is asked for: what the command line gives, and the rest as it was before."""
    options, how = (before.options, before.how) if before else (SweepOptions(), SearchOptions())
    options, how = read_options(args, options), read_options(args, how)
    axes = args.space if how.search else args.grid
    if before is not None and not (args.grid or args.space):
        axes = before.axes
    return Study(_configured(bases, args), axes, options, how)


def _kept(words: Sequence[str]) -> list[str]:
    """Return the words of a command that say what is swept, not where and on what."""
    kept, skip = [], False
    for word in words:
        if word.startswith("--"):
            skip = word.partition("=")[0].replace("_", "-") in _NOT_KEPT
        if not skip:
            kept.append(word)
    return kept


def _names_parser() -> Parser:
    parser = Parser(add_help=False)
    shared.add_help_asked(parser)
    parser.add_argument("--file", type=Path, default=None)
    parser.add_argument("--resume", type=shared.folder, default=None)
    _add_names(parser, presets.names(None))
    return parser


def _add_names(parser: Parser, brought: Any) -> None:
    """Add the options that decide which other options exist."""
    add = parser.group("run", "what runs, and where its results go").add_argument
    add(
        "--agent", type=shared.agent_name, metavar="NAME", default=None,
        help=f"{', '.join(registry.AGENTS)}, {shared.own_module('mypackage.myagent')} "
        f"[default {brought.agent}]",
    )  # fmt: skip
    add(
        "--replays", nargs="+", type=shared.labelled, metavar="NAME", default=None,
        help="replay methods, or LABEL=METHOD; --list names all; "
        f"{shared.own_module('mypackage.mymethod')} [default {' '.join(brought.replays)}]",
    )  # fmt: skip
    add(
        "--envs",
        nargs="+",
        type=shared.environment,
        metavar="NAME",
        default=None,
        help=f"environments that compile; --list names all [default {brought.env}]",
    )
    add(
        "--preset",
        type=one_of("preset", presets.PRESETS),
        metavar="NAME",
        default=None,
        help="published settings as defaults; explicit names and options win [default none]",
    )
    add("--list", action="store_true", help="list names, and what fits together")
    add("--json", action="store_true", help="with --list: as JSON")


def _bases(names: argparse.Namespace) -> dict[tuple[str, str], RunConfig]:
    """Return the runs by task and label, before options."""
    shared.check_listed(names)
    methods = names.replays and [replay for _, replay in names.replays]
    brought = shared.brought_names(names, names.envs, methods)
    replays = names.replays or [shared.labelled(name) for name in brought.replays]
    envs = names.envs or [brought.env]
    shared.check_labels(replays)
    for env in envs:
        if envs.count(env) > 1:
            raise ValueError(f"environment {env} is named twice: leave one out")
    agent = names.agent or brought.agent
    return {
        (env, label): defaults(env, agent, replay, names.preset)
        for env in envs
        for label, replay in replays
    }


def _parse(
    parser: Parser, bases: Mapping[tuple[str, str], RunConfig], words: Sequence[str]
) -> argparse.Namespace:
    _add_names(parser, presets.names(_names_parser().parse_known_args(words)[0].preset))
    add = parser.group("run").add_argument
    add(
        "--grid", nargs="+", type=grid.read_axis, metavar="NAME=VALUE,VALUE", default=[],
        help="settings to sweep, such as replay.alpha=0.4,0.6",
    )  # fmt: skip
    add("--file", type=Path, metavar="FILE", help="read options from a TOML file; these win")
    add("--seeds", type=int, metavar="INT", help="seeds of every point [default 5]")
    add("--seed", type=int, metavar="INT", help="the first seed [default 0]")
    add("--out", type=shared.folder, metavar="DIR", help="folder for results [default runs/sweep]")
    add("--resume", type=shared.folder, metavar="DIR", help="run what the sweep in DIR lacks")
    add("--overwrite", action="store_true", help="discard a sweep that --out holds")
    add("--dry-run", action="store_true", help="say what there is to do, and do nothing")
    shared.add_compilation_cache(parser.group("run"))
    add_options(parser, SweepOptions, group="sweep", about="how it is carried out and looked at")
    add_options(parser, SearchOptions, group="search", about="settings chosen, instead of a grid")
    parser.group("search").add_argument(
        "--space", nargs="+", type=grid.read_axis, metavar="NAME=LOW:HIGH", default=[],
        help="what --search chooses settings from: LOW:HIGH, LOW:HIGH:log, or as in --grid, such "
        "as replay.alpha=0:1 agent.learning_rate=1e-5:1e-2:log",
    )  # fmt: skip
    parser.reasons["--metric"] = (
        "--metric is called --primary here, as everywhere: --primary final; over seeds a sweep "
        "takes its interquartile mean"
    )
    first = next(iter(bases.values()))
    for section in _SECTIONS:
        options, prefix = getattr(first, section), PREFIXES[section]
        group, about = shared.GROUPS[section]
        add_options(parser, options, prefix, group=group, about=about)
    named = {"agent": f"options of {first.agent}, and their defaults"}
    for label, base in {label: base for (_, label), base in bases.items()}.items():
        add_options(parser, base.replay_options, f"{label}.", about=f"replay method {base.replay}")
        named[label] = f"options of {base.replay}, which --grid may name as replay.NAME"
    parser.guide = Guide(HEADINGS, named, EXAMPLES)
    args = parser.parse_args(words)
    shared.check_resume(args)
    return args


def _configured(
    bases: Mapping[tuple[str, str], RunConfig], args: argparse.Namespace
) -> dict[tuple[str, str], RunConfig]:
    """Return the runs with the options that were given, each for those tasks that have it."""
    found = {}
    for (env, label), base in bases.items():
        config = shared.given(args, base, _SECTIONS)
        own = read_options(args, base.replay_options, f"{label}.")
        found[env, label] = dataclasses.replace(config, replay_options=own)
    shared.check_used(args, found.values())
    return found
