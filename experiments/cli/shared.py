"""Options, checks and error handling that several commands share."""

import argparse
import dataclasses
import os
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

from experiments import environments
from experiments.cli import process
from experiments.cli.parser import Ended, Parser, one_of, read_options, unknown
from experiments.runs import compilation, interrupt, outside, presets, registry
from experiments.runs.interrupt import Stopped
from experiments.runs.log import say
from experiments.runs.presets import PRESETS, Names
from experiments.runs.run_config import PREFIXES, SECTIONS, RunConfig
from jaxreplay.methods import METHODS

_MOST_DEVICES = 256

# Name and description of the group of each section in `--help`.
GROUPS = {
    "loop": ("training", "length, and frequency of updates and evaluations"),
    "sizes": ("sizes", "batch and replay sizes"),
    "env_options": ("env", "the environment"),
    "agent_options": ("agent", "the agent"),
    "replay_options": ("replay", "the replay method"),
    "output": ("output", "files besides metrics; these options change no number"),
}


def environment(text: str) -> str:
    """Parse the name of an environment, perhaps `module/Name` (argparse `type`)."""

    def known(name: str) -> bool:
        outside.load_environment(name)
        return environments.check(name) or True

    return _accepted(text, known)


def agent_name(text: str) -> str:
    """Parse the name of an agent, or of a module that defines one (argparse `type`)."""
    return _accepted(text, outside.load_agent, "agent", registry.AGENTS)


def replay_name(text: str) -> str:
    """Parse the name of a replay method, or of a module that defines one (argparse `type`)."""
    return _accepted(text, outside.load_method, "replay", METHODS)


def add_own_modules(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add `--env`, `--agent` and `--replay`, which import the user's own modules.

    A folder of results only names such modules. With `several`, each option may be given several
    times.
    """
    action = "append" if several else "store"
    for name, kind in (("env", environment), ("agent", agent_name), ("replay", replay_name)):
        parser.add_argument(
            f"--{name}", type=kind, metavar="NAME", action=action,
            help=f"{name} of the results, if it is in your own module; imports the module",
        )  # fmt: skip


def _accepted(
    text: str, load: Callable[[str], bool], kind: str = "", known: Iterable[str] = ()
) -> str:
    try:
        found = load(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not found and "." in text:
        raise argparse.ArgumentTypeError(f"unknown {kind} '{text}': there is no such module here")
    if not found:
        raise argparse.ArgumentTypeError(unknown(kind, text, known))
    return text


def labelled(text: str) -> tuple[str, str]:
    """Parse `METHOD` or `LABEL=METHOD` as label and method (argparse `type`).

    The default label is the name of the method, or the last part of its module's name.
    """
    label, equals, name = text.rpartition("=")
    name = replay_name(name)
    label = label if equals else name.rpartition(".")[2]
    if label in ("agent", "env", "replay"):
        raise argparse.ArgumentTypeError(
            f"'{label}' cannot be a label, because --{label} is an option: use another label"
        )
    if not re.fullmatch(r"[A-Za-z]\w*", label):  # also a folder's name
        raise argparse.ArgumentTypeError(
            f"'{label}' is not a label: use letters, digits and underscores, a letter first"
        )
    return label, name


def check_labels(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return labels and values as a dict; raise ValueError if a label is given twice."""
    labels = [label for label, _ in pairs]
    for label, value in pairs:
        if labels.count(label) > 1:
            raise ValueError(f"'{label}' is given twice: label one, as in other={value}")
    return dict(pairs)


def folder(text: str) -> Path:
    """Parse the name of a folder or file (argparse `type`)."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty: use a name such as runs/x")
    return Path(text)


def labelled_folder(text: str) -> tuple[str, Path]:
    """Parse `FOLDER`, labelled by its name, or `LABEL=FOLDER` (argparse `type`)."""
    label, equals, path = text.rpartition("=")
    if not path.strip() or (equals and not label.strip()):
        raise argparse.ArgumentTypeError("empty name: use FOLDER or LABEL=FOLDER, as in x=runs/x")
    return shown(label or Path(path).name), Path(path)


def shown(text: str) -> str:
    """Return a word of the command line for figures and pages (argparse `type`).

    Bytes that are not text in the locale become question marks, because fonts lack them.
    """
    return os.fsencode(text).decode(errors="replace")


def own_folder(*parts: str) -> Path:
    """Return the default folder of results: `runs/` and the parts of a name, joined by dashes."""
    return Path("runs") / re.sub(r"[^\w.-]+", "-", "-".join(parts))


def names_parser(several: bool = False) -> Parser:
    """Return a parser of the options that decide which other options exist.

    The value of `--help` is None if `--help` is not given.
    """
    parser = Parser(add_help=False)
    add_common(parser, several=several)
    parser.add_argument("-h", "--help", nargs="?", const="")
    return parser


def default_names(
    known: argparse.Namespace, envs: Sequence[str] | None, replays: Sequence[str] | None
) -> Names:
    """Return the default names; for `--help`, they fit the names on the command line."""
    if known.help is None:
        return presets.names(known.preset)
    return registry.fitting_names(known.preset, envs, known.agent, replays)


def add_common(
    parser: Parser,
    preset: str | None = None,
    several: bool = False,
    out: Path | str = "runs/AGENT-REPLAY-ENV",
    seeds: str = "5",
) -> None:
    """Add the options of a run to a parser.

    Args:
      parser: parser to extend.
      preset: preset whose names the help shows as defaults.
      several: whether several replay methods and environments may be named, as in a study.
      out: default folder of results, for the help.
      seeds: default number of seeds in words, for the help.
    """
    default, group = presets.names(preset), parser.group("run", "what to run, and where to")
    own = "a module of your own, such as mypackage.my"
    envs = f"such as gymnax/CartPole-v1 or brax/ant; --list shows all [default {default.env}]"
    replays = f"METHOD or LABEL=METHOD; --list shows all [default {' '.join(default.replays)}]"
    replay = f"{', '.join(METHODS)}, or {own}method [default {default.replay}]"
    many = ("replays", labelled, "NAME", replays), ("envs", environment, "NAME", envs)
    one = ("replay", replay_name, "NAME", replay), ("env", environment, "NAME", envs)
    for name, kind, metavar, text in (
        ("agent", agent_name, "NAME",
         f"{', '.join(registry.AGENTS)}, or {own}agent [default {default.agent}]"),
        *(many if several else one),
        ("preset", one_of("preset", PRESETS), "NAME", "a paper's defaults, also of agent, method "
         "and task; explicit options take precedence; --list describes presets [default none]"),
        ("seeds", int, "INT", f"number of seeds [default {seeds}]"),
        ("seed", int, "INT", "first seed [default 0]"),
        ("out", folder, "DIR", f"folder of results [default {out}]"),
        ("resume", folder, "DIR", "continue in DIR; other options must match"),
    ):  # fmt: skip
        flags = ["--envs", "--env"] if name == "envs" else [f"--{name}"]
        nargs = "+" if name in ("replays", "envs") else None
        group.add_argument(*flags, type=kind, nargs=nargs, metavar=metavar, help=text)
    for name, text in (
        ("overwrite", "discard the results in --out"),
        ("list", "list all names, and the agents that each method fits"),
        ("json", "with --list: as JSON"),
    ):
        group.add_argument(f"--{name}", action="store_true", help=text)
    add_compilation_cache(group)


def add_devices(parser: Any) -> None:
    """Add `--devices`, which is None for `auto`, to a parser or a group."""
    parser.add_argument(
        "--devices", type=_devices, metavar="N|auto",
        help="number of cores or accelerators that share the seeds; on CPU, the number does not "
        "change results "
        "[default auto: all]",
    )  # fmt: skip


def _devices(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_DEVICES:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a number from 1 to {_MOST_DEVICES}, or auto"
        )
    return int(text)


def add_compilation_cache(parser: Any) -> None:
    """Add `--compilation-cache` to a parser or a group."""
    parser.add_argument(
        "--compilation-cache", metavar="DIR|off",
        type=lambda text: compilation.OFF if text == compilation.OFF else folder(text),
        help="folder of compiled programs for later runs [default your cache folder]",
    )  # fmt: skip


def check_listed(known: argparse.Namespace) -> None:
    """Raise ValueError for `--json` without `--list`."""
    if known.json and not known.list:
        raise ValueError("--json is the format of --list: add --list, or remove --json")


def check_resumed(known: argparse.Namespace) -> None:
    """Raise ValueError for a preset of a resumed run, and for `--json` without `--list`."""
    check_listed(known)
    if known.resume is not None and known.preset is not None:
        raise ValueError(f"--resume {known.resume} goes on with its own options: remove --preset")


def check_resume(args: argparse.Namespace) -> None:
    """Raise ValueError for options that contradict `--resume`."""
    if args.resume is not None and args.out not in (None, args.resume):
        raise ValueError("--resume DIR writes to DIR itself: remove --out")
    if args.resume is not None and args.overwrite:
        raise ValueError(
            "--overwrite would discard the results that --resume continues: remove one"
        )


def check_used(args: argparse.Namespace, configs: Iterable[RunConfig]) -> None:
    """Raise ValueError for an option that is given although none of the runs uses it."""
    runs = list(configs)
    for name, (where, is_used) in _USED.items():
        if name in vars(args) and not any(map(is_used, runs)):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} has an effect only {where}: remove it")


def learns_from_evaluations(config: RunConfig) -> bool:
    """Return whether the replay method of a run learns from returns of evaluations."""
    method = METHODS[config.replay].method(config.replay_options)
    return method.sampler.requires.episode_returns == "evaluation"


def _stacks_frames(config: RunConfig) -> bool:
    own = config.sizes.frame_stack
    return bool(own) or (own is None and hasattr(config.env_options, "stack"))


_USED: dict[str, tuple[str, Callable[[RunConfig], bool]]] = {
    "eval_epsilon": (
        "for discrete actions", lambda config: registry.AGENTS[config.agent].actions == "discrete"
    ),
    "frame_spare": ("with stacked frames (--frame-stack)", _stacks_frames),
    "observe_every": ("with a method that learns from evaluations (ners)", learns_from_evaluations),
}  # fmt: skip


def read_config(
    args: argparse.Namespace, config: RunConfig, sections: Sequence[str] = SECTIONS
) -> RunConfig:
    """Return a RunConfig with the values from the command line."""
    parts = {s: read_options(args, getattr(config, s), PREFIXES[s]) for s in sections}
    for name in ("seeds", "seed"):
        if getattr(args, name) is not None:
            parts[name] = getattr(args, name)
    return dataclasses.replace(config, **parts)


def run_command(
    parser: Parser, command: Callable[[], None], again: str = "go on with --resume"
) -> int:
    """Run a command and report errors in one line.

    Args:
      parser: reports invalid input, with exit code 2.
      command: function that runs the command.
      again: how to continue after an error of the operating system, such as a full disk; the end of
        the message.

    Returns:
      The exit code.
    """
    try:
        with interrupt.terminable():
            command()
        return 0
    except Ended:
        raise
    except SystemExit as error:  # from a module of the user
        frame = traceback.extract_tb(error.__traceback__)[-1]
        call = f"sys.exit({error.code!r}) in {frame.filename}, line {frame.lineno}"
        message = f"{call} ended the command: raise an error there instead"
    except ValueError as error:
        parser.error(str(error))
    except Stopped as error:
        say(f"error: {error}" if error.__cause__ else str(error))
        return error.exit_code
    except KeyboardInterrupt as error:
        say(process.STOPPED)
        return interrupt.exit_code(error)
    except jax.errors.JaxRuntimeError as error:
        if not (message := compilation.out_of_memory(error)):
            raise
    except OSError as error:
        if isinstance(error, BrokenPipeError) and process.discard_unread():
            return 1
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}{error.strerror or error}: fix this, and {again}"
    say(f"error: {message}")
    return 1
