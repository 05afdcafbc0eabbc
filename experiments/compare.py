"""Compare replay methods with one agent in one environment: `python -m experiments.compare --help`.

Every method is a separate run in a folder below `--out`; figures and tables show them together, and
say of each arm whether it was tested: seed by seed, by the metric that `--primary` names before
anything runs. A method may appear several times under different labels: `--replays ners
ners_star=ners --ners_star.reward training`. Several values of `--learn-every` put the replay ratio
on an axis.
"""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.compare")

import argparse
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.cli.help import Guide
from experiments.cli.listing import print_list
from experiments.cli.options import Parser, add_options, read_options
from experiments.cli.shared import (
    GROUPS,
    add_common,
    brought_names,
    check_labels,
    check_resume,
    check_resumed,
    check_used,
    ended,
    given,
    labelled,
    names_parser,
    own_folder,
    own_module,
)
from experiments.figures import joint
from experiments.installation.commands import missing
from experiments.report import page
from experiments.runs import (
    arms,
    checksums,
    compilation,
    folder,
    log,
    manifest,
    presets,
    run_config,
)
from experiments.runs.arms import Arm, Question
from experiments.runs.folder import check_claim_comparison, claim_comparison
from experiments.runs.log import waiting
from experiments.runs.manifest import is_run
from experiments.runs.results import threshold_of
from experiments.runs.run import execute, prepare
from experiments.runs.run_config import PREFIXES, OutputConfig, RunConfig, defaults
from experiments.studies import comparison
from jaxreplay.methods import METHODS

HEADINGS = {
    "what runs": ("--agent", "--replays", "--env", "--preset", "--seeds"),
    "what is asked": ("--primary", "--control"),
    "how long, and how often it learns and is evaluated": (
        "--steps", "--warmup", "--learn-every", "--batch-size", "--eval-every",
    ),
    "results": ("--out", "--resume", "--overwrite", "--compilation-cache"),
}  # fmt: skip
EXAMPLES = (
    "python -m experiments.compare --agent dqn --env gymnax/CartPole-v1 --seeds 10 "
    "--replays uniform per lap --out runs/y",
    "python -m experiments.compare --replays per soft=per --soft.alpha 0.3 --learn-every 1 4",
)

_SHARED = ("loop", "sizes", "env_options", "agent_options")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    first = names_parser()
    first.add_argument("--replays", nargs="+", type=labelled, default=None)
    known, _ = first.parse_known_args(argv)
    if known.list:
        print_list(known.json)
        return 0
    parser = Parser(
        prog="python -m experiments.compare", usage="%(prog)s [OPTION VALUE ...]",
        description=__doc__.replace(": `python -m experiments.compare --help`", ""),
    )  # fmt: skip

    def command() -> None:
        bases = _bases(known)
        asked = manifest.read(known.resume).question
        args = _parse(parser, bases, asked, known, argv)
        cadences = vars(args).pop("learn_every", None) or _cadences(known.resume)
        for every in cadences:
            if cadences.count(every) > 1:
                raise ValueError(f"--learn-every names {every} twice: leave one out")
        bases = {label: _configured(label, base, args) for label, base in bases.items()}
        output = _output(args, known.resume)
        question = _question(args, asked, known.resume)
        check_resume(args)
        check_used(args, bases.values())
        threshold = threshold_of(_first(bases), output)
        arms.check(question, bases, threshold)
        runs = arms.expand(question, bases, cadences)
        if known.resume is not None and set(runs) != set(manifest.runs_of(known.resume)):
            raise ValueError(f"the comparison in {known.resume} has other runs: leave out options")
        remarks = arms.check_expanded(question, runs, threshold)
        first = _first(bases)
        out = known.resume or args.out or own_folder("compare", first.agent, first.env)
        resume = known.resume is not None
        with compilation.kept(args.compilation_cache):
            for remark in remarks:
                log.say(remark)
            summaries = _run_all(question, runs, out, output, resume, args.overwrite, args.devices)
        conclude(question, runs, summaries, out, output)

    return ended(parser, command)


def conclude(
    question: Question,
    runs: Mapping[str, Arm],
    summaries: Mapping[str, dict[str, Any]],
    out: Path,
    output: OutputConfig,
) -> None:
    """Write and print the joint tables, and plot the joint figures."""
    config = next(iter(runs.values())).config
    frames = {label: pd.read_csv(out / label / "metrics.csv") for label in runs}
    threshold = threshold_of(config, output)
    allowed = output.other_code
    found = comparison.judge(question, runs, frames, summaries, threshold, allowed)
    checksums.write_json(out / "verdicts.json", found.to_json(question, runs))
    title = f"{config.agent} on {config.env}"
    with waiting("drawing the comparison"):
        shown = joint.comparison(
            found.rows, found.values, found.metric, found.baseline, found.groups, frames, summaries,
            out, title, threshold,
        )  # fmt: skip
    checksums.note(out, {"summary.json": [checksums.of((out / "summary.json").read_bytes())]})
    print(shown)
    if output.report:
        print(page.write_comparison(out))


def _first(configs: Mapping[str, RunConfig]) -> RunConfig:
    return next(iter(configs.values()))


def _cadences(resume: Path | None) -> list[int]:
    """Return the values of `learn_every` of the comparison to resume; []: those of the defaults."""
    if resume is None:
        return []
    saved = manifest.runs_of(resume).values()
    return list(dict.fromkeys(config["loop"]["learn_every"] for config in saved))


def _saved_output(resume: Path | None) -> OutputConfig:
    """Return the outputs of the comparison to resume, or the defaults: a page where it can be."""
    if resume is not None:
        return manifest.read(resume).output
    return OutputConfig(report=not missing("a report", {"plotly": "report"}))


def _output(args: argparse.Namespace, resume: Path | None) -> OutputConfig:
    """Return the outputs; the threshold of a comparison that has begun is fixed."""
    saved = _saved_output(resume)
    output = read_options(args, saved)
    output.check_report()
    if resume is not None and output.threshold != saved.threshold:
        raise ValueError(
            f"the comparison in {resume} was made with threshold {saved.threshold}: leave out "
            "--threshold, or choose another --out"
        )
    return output


def _question(args: argparse.Namespace, asked: Question, resume: Path | None) -> Question:
    """Return the question; that of a comparison that has begun is fixed."""
    question = read_options(args, asked)
    for name, value in dataclasses.asdict(asked).items():
        if resume is not None and getattr(question, name) != value:
            raise ValueError(
                f"the comparison in {resume} was made with {name} {value}: what decides it is "
                f"named before it runs: leave out --{name}, or choose another --out"
            )
    return question


def _bases(known: argparse.Namespace) -> dict[str, RunConfig]:
    """Return the runs by label, before options: those to resume, or defaults for the names."""
    check_resumed(known)
    if known.resume is None:
        methods = known.replays and [replay for _, replay in known.replays]
        brought = brought_names(known, known.env and [known.env], methods)
        replays = known.replays or [labelled(name) for name in brought.replays]
        env, agent = known.env or brought.env, known.agent or brought.agent
        check_labels(replays)
        return {label: defaults(env, agent, replay, known.preset) for label, replay in replays}
    if not known.resume.is_dir():
        raise ValueError(f"{known.resume} is not a folder: give the folder of a comparison")
    saved = manifest.runs_of(known.resume)
    if not saved:
        raise ValueError(f"{known.resume} holds no comparison to resume")
    bases = {
        method: run_config.from_folder(saved[label], known.resume)
        for method, label in manifest.methods_of(known.resume).items()
    }
    replays = {label: base.replay for label, base in bases.items()}
    for name in ("env", "agent"):
        made = getattr(_first(bases), name)
        if getattr(known, name) not in (None, made):
            raise ValueError(
                f"the comparison in {known.resume} was made with {name} {made}: leave "
                f"out --{name}, or choose another --out"
            )
    if known.replays is not None and dict(known.replays) != replays:
        raise ValueError(
            f"the comparison in {known.resume} has {', '.join(replays)}: leave out "
            "--replays, or choose another --out"
        )
    return bases


def _parse(
    parser: Parser,
    bases: Mapping[str, RunConfig],
    asked: Question,
    known: argparse.Namespace,
    argv: Sequence[str] | None,
) -> argparse.Namespace:
    add_common(parser, _first(bases).env, known.preset, own="compare-AGENT-ENV")
    brought = " ".join(presets.names(known.preset).replays)
    parser.group("run").add_argument(
        "--replays", nargs="+", type=labelled, metavar="NAME",
        help=f"or LABEL=METHOD, of {', '.join(METHODS)}, "
        f"{own_module('mypackage.mymethod')} [default {brought}]",
    )  # fmt: skip
    add_options(parser, asked, group="question", about="what is asked, before anything runs")
    for section in _SHARED:
        options, prefix = getattr(_first(bases), section), PREFIXES[section]
        group, about = GROUPS[section]
        add_options(parser, options, prefix, several=("learn_every",), group=group, about=about)
    for label, base in bases.items():
        add_options(parser, base.replay_options, f"{label}.", about=f"replay method {base.replay}")
    group, about = GROUPS["output"]
    add_options(parser, _saved_output(known.resume), group=group, about=about)
    parser.guide = Guide(HEADINGS, _named(bases), EXAMPLES)
    return parser.parse_args(argv)


def _named(bases: Mapping[str, RunConfig]) -> dict[str, str]:
    """Return what help says of the options of the agent and of each arm."""
    named = {"agent": f"options of {_first(bases).agent}, and their defaults"}
    for label, base in bases.items():
        called = "" if label == base.replay else f", called {label} here"
        named[label] = f"options of {base.replay}{called}"
    return named


def _configured(label: str, base: RunConfig, args: argparse.Namespace) -> RunConfig:
    config = given(args, base, _SHARED)
    options = read_options(args, base.replay_options, f"{label}.")
    return dataclasses.replace(config, replay_options=options)


def _run_all(
    question: Question,
    runs: Mapping[str, Arm],
    out: Path,
    output: OutputConfig,
    resume: bool,
    overwrite: bool,
    devices: int | None,
) -> dict[str, dict[str, Any]]:
    configs = {label: arm.config for label, arm in runs.items()}
    check_claim_comparison(out, configs, resume=resume, overwrite=overwrite)
    if resume:
        folder.check_code([out / label for label in configs], output.other_code)
    with contextlib.ExitStack() as stack:
        if was_there := out.is_dir():  # else it is made only for what can run
            stack.enter_context(folder.held(out))
        # Everything is checked, and every folder claimed, before the first run trains.
        prepared = {
            label: prepare(
                config,
                out / label,
                resume=resume and is_run(out / label),
                overwrite=overwrite,
                devices=devices,
            )
            for label, config in configs.items()
        }
        if not was_there:
            stack.enter_context(folder.held(out))
        with contextlib.ExitStack() as claims:  # nobody is at work on a run that is discarded
            for below in sorted({*configs, *manifest.read(out).runs}):
                if (out / below).is_dir() and not (out / below).is_symlink():
                    claims.enter_context(folder.held(out / below))
            claim_comparison(out, question, runs, output, resume=resume, overwrite=overwrite)
        return {
            label: execute(
                config, out / label, output, resume=True, label=label, resume_folder=out,
                prepared=prepared.pop(label),  # and forget its compiled program when it has ended
            )
            for label, config in configs.items()
        }  # fmt: skip
