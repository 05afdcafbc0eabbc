"""Run a study until its question is answered: `python -m experiments.study FILE`.

A study trains arms (replay methods with options) on tasks, with settings and seeds, and compares
every arm with a baseline, seed by seed. FILE is one of three: a TOML file with the options of
`experiments.sweep`, a Python file that defines `study = Study.make(...)`, or the study.json of
earlier results, to run the same study again.
"""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.study")

import argparse
import dataclasses
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments import environments
from experiments.cli import shared, toml
from experiments.cli.help import Guide
from experiments.cli.parser import Parser, add_options, read_options
from experiments.environments.extras import lacking_extra
from experiments.files.disk import read_json
from experiments.runs import presets
from experiments.runs.log import show
from experiments.runs.run_config import PREFIXES, RunConfig, defaults
from experiments.studies import grid
from experiments.studies.definition import BATCH, Study, from_json
from experiments.studies.grid import Axis
from experiments.studies.options import Question, RunOutput, StudyOptions, Where
from jaxreplay.option import options_of

_SECTIONS = ("loop", "sizes", "env_options", "agent_options")
_OF_SEVERAL = ("width", "defaults", "together", "on", "keep", "thin", "digits")  # not of one run
_DRY_RUN = "report the plan, and the seeds still needed"


class Front(NamedTuple):
    """The texts, defaults and options that differ between the commands that run studies."""

    prog: str
    about: str
    headings: Mapping[str, Sequence[str]]
    examples: Sequence[str]
    question: Question
    out: str  # default folder in runs/, a template with {agent}, {replay} and {env}
    seeds: int = 5  # default number of seeds
    single: bool = False  # whether the study is a single run
    options: StudyOptions = StudyOptions()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(prog="python -m experiments.study", description=__doc__)
    parser.add_argument(
        "file", metavar="FILE", help=".py or .toml file, or a study.json of results"
    )
    parser.add_argument(
        "--out", type=shared.folder, metavar="DIR", help="folder for results [default runs/FILE]"
    )
    parser.add_argument("--resume", type=shared.folder, metavar="DIR", help="continue in DIR")
    parser.add_argument("--overwrite", action="store_true", help="discard a study in --out")
    parser.add_argument("--dry-run", action="store_true", help=_DRY_RUN)
    shared.add_own_modules(parser, several=True)
    add_options(parser, Where, group="where", about="place and limits")
    shared.add_compilation_cache(parser)
    args, rest = parser.parse_known_args(words)
    path = Path(args.file)
    if path.suffix not in (".py", ".toml", ".json") or args.file.startswith("-"):
        parser.error(f"{path} is not a study: pass a .py or .toml file, or a study.json of results")
    if path.suffix == ".toml" and args.resume is not None:
        parser.error(
            f"the study in {args.resume} continues with its own options, not with those of {path}: "
            f"use python -m experiments.sweep --resume {args.resume}"
        )
    if path.suffix == ".toml":
        words.remove(args.file)
        out = path.stem.replace("{", "{{").replace("}", "}}")
        return command(_FRONT._replace(out=out), ["--file", args.file, *words])
    if rest:
        parser.error(f"unknown option '{rest[0]}': leave it out, since the file defines the study")

    def run() -> None:
        study = _of_json(path) if path.suffix == ".json" else _of_python(path)
        out = args.resume or args.out or Path("runs") / path.stem
        _run(study, out, args, read_options(args, Where()))

    return shared.run_command(parser, run)


def command(front: Front, argv: Sequence[str]) -> int:
    """Run a command whose options define a study; return its exit code."""
    parser = Parser(prog=front.prog, usage="%(prog)s [OPTION VALUE ...]", description=front.about)

    def run() -> None:
        named = _names_parser(front).parse_known_args(argv)[0]
        if named.list:
            from experiments.cli import listing

            listing.print_list(named.json)
            return
        file = _of_file(named)
        names = _names_parser(front)
        names = names.parse_known_args(argv, file.values(names, toml.NAMES))[0]
        if front.single:  # the names of a run, as those of a study
            names.envs = names.env and [names.env]
            names.replays = names.replay and [shared.labelled(names.replay)]
        before = None
        if named.resume is not None:
            from experiments.studies import store

            before = store.read(named.resume).study.validated(named.resume)
        bases = _bases(names, front) if before is None else _same_names(names, before)
        args = _parse(parser, front, bases, argv, names.preset, before, file)
        study = _study(args, bases, front, before)
        for config in study.bases.values():
            presets.check_demos(names.preset, config)
        out = args.resume or args.out or _default_folder(front, bases)
        output = read_options(args, RunOutput()) if front.single else None
        _run(study, out, args, read_options(args, Where()), output)

    return shared.run_command(parser, run)


def _default_folder(front: Front, bases: Mapping[tuple[str, str], RunConfig]) -> Path:
    config = next(iter(bases.values()))
    names = {"agent": config.agent, "replay": config.replay, "env": config.env}
    return shared.own_folder(front.out.format(**names))


def _run(
    study: Study,
    out: Path,
    args: argparse.Namespace,
    where: Where,
    output: RunOutput | None = None,
) -> None:
    from experiments.studies import runner  # figures and engines take seconds to import

    lacks = lacking_extra("--wandb true", {"wandb": "wandb"})
    if output is not None and output.wandb and lacks:
        raise ValueError(f"{lacks}, or use --wandb false")
    results = runner.run(
        study, out, resume=args.resume is not None, overwrite=args.overwrite, where=where,
        cache=args.compilation_cache, dry_run=args.dry_run, output=output,
    )  # fmt: skip
    if results is not None and study.options.report:
        from experiments import report

        show(report.write_page(out))


def _of_json(path: Path) -> Study:
    """Return the study that a `study.json` describes."""
    saved = read_json(path)
    if not isinstance(saved, dict) or "study" not in saved:
        raise ValueError(f"{path} does not describe a study: pass the path of a study.json")
    return from_json(saved["study"]).validated(path.parent)


def _of_python(path: Path) -> Study:
    """Return the study that a Python file defines."""
    if not path.is_file():  # runpy would also run a folder
        raise ValueError(f"{path} is not a file: pass the path of a file")
    try:
        found = runpy.run_path(str(path)).get("study")
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror}): pass another file") from None
    if not isinstance(found, Study):
        raise ValueError(f"{path} does not define a study: add study = Study.make(...)")
    return found


def _of_file(named: argparse.Namespace) -> toml.Options:
    """Return the options of the TOML file that the command line names, if any."""
    if named.file is None:
        return toml.Options(Path(), [])
    if named.resume is not None:
        raise ValueError(
            f"--resume {named.resume} continues with its own options: leave out --file"
        )
    return toml.read(named.file)


def _study(
    args: argparse.Namespace,
    bases: Mapping[tuple[str, str], RunConfig],
    front: Front,
    before: Study | None,
) -> Study:
    """Return the study that the options define; omitted options are those of the resumed study."""
    question, options = front.question, front.options
    if before is not None:
        question, options = before.question, before.options
    question, options = read_options(args, question), read_options(args, options)
    axes = list(args.grid)
    every = vars(args).pop("learn_every", None)  # a list where the option takes several values
    if isinstance(every, list) and len(every) > 1:
        axes.append(Axis("learn_every", tuple(map(str, every))))
    elif every is not None:
        args.learn_every = every[0] if isinstance(every, list) else every
    if before is not None and not axes:
        axes = list(before.axes)
    found = {}
    for (env, label), base in bases.items():
        config = shared.read_config(args, base, _SECTIONS)
        prefix = PREFIXES["replay_options"] if front.single else f"{label}."
        own = read_options(args, base.replay_options, prefix)
        if before is None and args.seeds is None:
            seeds = BATCH if question.until_decided else front.seeds
            config = dataclasses.replace(config, seeds=seeds)
        found[env, label] = dataclasses.replace(config, replay_options=own)
    shared.check_used(args, found.values())
    if not options.defaults:
        grid.check_fixed(axes, found, vars(args).keys())
    if axes:
        grid.check_names(axes, found)
    study = Study(found, tuple(axes), question, options)
    if front.question.control and not study.compares:
        raise ValueError(
            "the study has one arm and no control, so there is nothing to compare: add another "
            "arm, or use python -m experiments.train"
        )
    return study


def _same_names(names: argparse.Namespace, before: Study) -> Mapping[tuple[str, str], RunConfig]:
    """Return the arms of the study to resume; raise ValueError if the options name other arms."""
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
                f"{names.resume} has {option} {' '.join(sorted(made))}: leave out --{option}, or "
                "choose another --out"
            )
    return before.bases


def _names_parser(front: Front) -> Parser:
    parser = shared.names_parser(several=not front.single)
    parser.add_argument("--file", type=Path, default=None)
    return parser


def _bases(names: argparse.Namespace, front: Front) -> dict[tuple[str, str], RunConfig]:
    """Return the default configuration of every arm, by task and label."""
    shared.check_listed(names)
    methods = names.replays and [replay for _, replay in names.replays]
    brought = shared.default_names(names, names.envs, methods)
    usual = [brought.replay] if front.single else brought.replays
    replays = names.replays or [shared.labelled(name) for name in usual]
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
    parser: Parser,
    front: Front,
    bases: Mapping[tuple[str, str], RunConfig],
    argv: Sequence[str],
    preset: str | None,
    before: Study | None,
    file: toml.Options,
) -> argparse.Namespace:
    out = _default_folder(front, bases)
    first = next(iter(bases.values()))
    seeds = f"{front.seeds}; with --until-decided true, {BATCH} at a time"
    if front.single:
        out = "runs/" + front.out.format(agent="AGENT", replay="REPLAY", env="ENV")
        seeds = str(front.seeds)
    shared.add_common(parser, preset, several=not front.single, out=out, seeds=seeds)
    add = parser.group("run").add_argument
    question, options = front.question, front.options
    if before is not None:
        question, options = before.question, before.options
    without = _OF_SEVERAL if front.single else ()
    add(
        "--file",
        type=Path,
        metavar="FILE",
        help="TOML file with options; the command line overrides them",
    )
    add("--dry-run", action="store_true", help=_DRY_RUN)
    if front.single:
        parser.set_defaults(grid=[])
        add_options(parser, RunOutput, group="output", about="results besides the tables")
        _add_foreign(parser, first)
    else:
        add(
            "--grid", nargs="+", type=grid.read_axis, metavar="NAME=VALUE,VALUE", default=[],
            help="settings and their values, such as replay.alpha=0.4,0.6",
        )  # fmt: skip
        add_options(parser, question, group="question", about="fixed before anything runs")
        for entry in options_of(RunOutput):
            name = f"--{entry.name.replace('_', '-')}"
            parser.reasons[name] = f"{name} is an option of experiments.train: remove it"
        parser.reasons["--metric"] = "--metric is called --primary here: use --primary final"
    about = "results besides the tables"
    add_options(parser, options, group="output", about=about, without=without)
    about = "place and limits; no number depends on them"
    add_options(parser, Where, group="where", about=about, without=without)
    for section in _SECTIONS:
        config, prefix = getattr(first, section), PREFIXES[section]
        group, about = shared.GROUPS[section]
        several = () if front.single else ("learn_every",)
        add_options(parser, config, prefix, several=several, group=group, about=about)
    named = {"agent": f"options of {first.agent}, and their defaults"}
    for label, base in {label: base for (_, label), base in bases.items()}.items():
        prefix = "replay" if front.single else label
        add_options(parser, base.replay_options, f"{prefix}.", about=f"replay method {base.replay}")
        called = "" if label == base.replay else f", called {label} here"
        named[prefix] = f"options of {base.replay}{called}"
    parser.guide = Guide(front.headings, named, front.examples)
    args = parser.parse_args(argv, file.values(parser))
    shared.check_resume(args)
    return args


def _add_foreign(parser: Parser, config: RunConfig) -> None:
    """Add the reasons why options of other families of environments are refused."""
    for option, family in environments.foreign_options(config.env).items():
        name = f"--env.{option}".replace("_", "-")
        parser.reasons[name] = f"{config.env} has no {name}, an option of {family}: remove it"


_FRONT = Front(
    "python -m experiments.study",
    __doc__,
    {
        "what runs": ("--agent", "--replays", "--envs", "--grid", "--seeds", "--steps"),
        "the question": ("--primary", "--baseline", "--until-decided", "--most-seeds"),
        "results": ("--out", "--resume", "--overwrite", "--dry-run"),
    },
    ("python -m experiments.study study.toml --out runs/s",),
    Question(),
    "study",
)
