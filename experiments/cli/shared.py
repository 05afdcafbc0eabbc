"""What the commands that train share: options, and the messages they end with."""

import argparse
import dataclasses
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import jax

from experiments import environments
from experiments.cli import endings
from experiments.cli.listing import listed
from experiments.cli.options import Ended, Parser, one_of, read_options, unknown
from experiments.runs import compilation, interrupt, manifest, outside, presets, registry
from experiments.runs.presets import PRESETS, Names
from experiments.runs.run import Stopped
from experiments.runs.run_config import PREFIXES, SECTIONS, RunConfig
from jaxreplay.methods import METHODS

_MOST_DEVICES = 256

# The groups that `--help` calls them: name, and what it says of them.
GROUPS = {
    "loop": ("training", "how long and how often it learns and is evaluated"),
    "sizes": ("sizes", "of batches and of what is remembered"),
    "env_options": ("env", "the environment"),
    "agent_options": ("agent", "the agent"),
    "replay_options": ("replay", "the replay method"),
    "output": ("output", "what is written besides metrics; no number depends on it"),
}


def environment(text: str) -> str:
    """Read the name of an environment: an argparse `type`."""
    try:
        environments.check(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def agent_name(text: str) -> str:
    """Read the name of an agent, or of a module that holds one: an argparse `type`."""
    return _named("agent", text, outside.load_agent, registry.AGENTS)


def replay_name(text: str) -> str:
    """Read the name of a replay method, or of a module that holds one: an argparse `type`."""
    return _named("replay", text, outside.load_method, METHODS)


def labelled(text: str) -> tuple[str, str]:
    """Read `METHOD` or `LABEL=METHOD`, an argparse `type`; return label and method.

    A method's label is its name, or the last part of its module's.
    """
    label, equals, name = text.rpartition("=")
    name = replay_name(name)
    label = label if equals else name.rpartition(".")[2]  # of a module, its own name
    if label in ("agent", "env", "replay"):
        raise argparse.ArgumentTypeError(f"'{label}' is taken by other options: use another label")
    if not re.fullmatch(manifest.LABEL, label):
        raise argparse.ArgumentTypeError(
            f"'{label}' is no label: use letters, digits and underscores, a letter first"
        )
    return label, name


def check_labels(replays: Sequence[tuple[str, str]]) -> None:
    """Refuse a label that is given twice; `replays` are labels and methods.

    Raises:
      ValueError: one line that says how to tell the two apart.
    """
    known: dict[str, str] = {}
    for label, replay in replays:
        if known.get(label, replay) != replay:
            raise ValueError(f"label '{label}' stands for two methods: use LABEL=METHOD")
        if label in known:
            raise ValueError(
                f"'{label}' is named twice: leave one out, or give it another label, as in "
                f"other={replay}"
            )
        known[label] = replay


def _named(kind: str, text: str, load: Callable[[str], bool], known: Iterable[str]) -> str:
    try:
        found = load(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not found and "." in text:
        raise argparse.ArgumentTypeError(
            f"unknown {kind} '{text}': no module of that name can be imported from here"
        )
    if not found:
        raise argparse.ArgumentTypeError(unknown(kind, text, known))
    return text


def folder(text: str) -> Path:
    """Read a folder's name: an argparse `type`."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the folder's name is empty: give one, such as runs/x")
    return Path(text)


def own_folder(*parts: str) -> Path:
    """Return the folder of results that have not been given one: its name tells what runs."""
    return Path("runs") / re.sub(r"[^\w.-]+", "-", "-".join(parts))


def own_module(example: str) -> str:
    """Return what helps say about names that are modules."""
    return f"or a module of your own, such as {example}"


def names_parser() -> Parser:
    """Make the parser of the options that decide which other options exist."""
    parser = Parser(add_help=False)
    parser.add_argument("--agent", type=agent_name, default=None)
    parser.add_argument("--env", type=environment, default=None)
    parser.add_argument("--preset", type=one_of("preset", PRESETS), default=None)
    parser.add_argument("--resume", type=folder, default=None)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", action="store_true")
    add_help_asked(parser)
    return parser


def add_help_asked(parser: Parser) -> None:
    """Add what tells that help was asked for, to a parser that does not show it."""
    parser.add_argument("-h", "--help", nargs="?", const="", default=None)


def brought_names(
    known: argparse.Namespace, envs: Sequence[str] | None, replays: Sequence[str] | None
) -> Names:
    """Return names in place of those that were not given; help gets such as fit those that were.

    Args:
      known: with agent, preset and help.
      envs: that were given; None: none was.
      replays: methods, the same.
    """
    if known.help is None:
        return presets.names(known.preset)
    return registry.fitting_names(known.preset, envs, known.agent, replays)


def add_common(
    parser: Parser, env: str, preset: str | None = None, *, own: str = "AGENT-REPLAY-ENV"
) -> None:
    """Add the options that `train` and `compare` share; say which `--env.` options `env` lacks.

    Args:
      parser: gets the options.
      env: the run's environment.
      preset: the one that was named; its names are then the defaults that the help shows.
      own: the folder of results that have not been given one, in runs.
    """
    brought = presets.names(preset)
    parser.reasons = {
        f"--env.{option}".replace("_", "-"): f"{env} has no option '--env.{option}': it is for "
        f"{whose}: leave it out"
        for option, whose in environments.foreign_options(env).items()
    }
    parser.reasons["--frames-on-host"] = (
        "--frames-on-host is now --replay-on host, for any environment: use that"
    )
    names = parser.group("run", "what runs, and where its results go")
    names.add_argument(
        "--agent", type=agent_name, metavar="NAME",
        help=f"{', '.join(registry.AGENTS)}, {own_module('mypackage.myagent')} "
        f"[default {brought.agent}]",
    )  # fmt: skip
    names.add_argument(
        "--env", type=environment, metavar="NAME",
        help="such as gymnax/CartPole-v1, brax/ant or atari/Pong; --list names all "
        f"[default {brought.env}]",
    )  # fmt: skip
    names.add_argument(
        "--preset", type=one_of("preset", PRESETS), metavar="NAME",
        help="a paper's settings as defaults, of names too; what you give beside it wins; --list "
        "describes them [default none]",
    )  # fmt: skip
    names.add_argument("--seeds", type=int, metavar="INT", help="seeds, vmapped [default 5]")
    names.add_argument("--seed", type=int, metavar="INT", help="the first seed [default 0]")
    names.add_argument(
        "--out", type=folder, metavar="DIR",
        help=f"folder for the results [default runs/{own}]",
    )  # fmt: skip
    names.add_argument(
        "--resume", type=folder, metavar="DIR",
        help="continue the run in DIR from its last checkpoint; other options must match it",
    )  # fmt: skip
    names.add_argument("--overwrite", action="store_true", help="discard a run that --out holds")
    names.add_argument("--list", action="store_true", help="list names, and what fits together")
    names.add_argument("--json", action="store_true", help="with --list: as JSON")
    add_devices(names)
    add_compilation_cache(names)


def add_devices(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the option that says over how many cores or accelerators seeds go; auto is None."""
    parser.add_argument(
        "--devices", type=_devices, metavar="N|auto", default=None,
        help="cores or accelerators that seeds go over; on CPU numbers are the same with any "
        "[default auto: all]",
    )  # fmt: skip


def _devices(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_DEVICES:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no number of devices: give 1 to {_MOST_DEVICES}, or auto"
        )
    return int(text)


def add_compilation_cache(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the option that says where compiled programs are kept."""
    parser.add_argument(
        "--compilation-cache", type=_cache, metavar="DIR|off",
        help="where compiled programs are kept for the next start [default your cache folder]",
    )  # fmt: skip


def _cache(text: str) -> Path | Literal["off"]:
    return compilation.OFF if text == compilation.OFF else folder(text)


def check_listed(known: argparse.Namespace) -> None:
    """Refuse a form for a list that nobody has asked for.

    Raises:
      ValueError: `--json` was given, and not `--list`.
    """
    if known.json and not known.list:
        raise ValueError("--json is the form of --list: add that, or leave it out")


def check_resumed(known: argparse.Namespace) -> None:
    """Refuse a preset for a resumed run, whose options are in its folder, and `--json` alone.

    Raises:
      ValueError: both, or that, were given.
    """
    check_listed(known)
    if known.resume is not None and known.preset is not None:
        raise ValueError(
            f"--resume {known.resume} continues with its original options: leave out --preset"
        )


def check_resume(args: argparse.Namespace) -> None:
    """Refuse what contradicts `--resume`.

    Raises:
      ValueError: another folder to write to, or that the run is to be discarded.
    """
    if args.resume is None:
        return
    if args.out not in (None, args.resume):
        raise ValueError("--resume DIR goes on in DIR itself: leave out --out")
    if args.overwrite:
        raise ValueError("--resume goes on with what --overwrite would discard: leave one out")


_LESS = "use a smaller capacity, batch or network, or fewer seeds, --eval-episodes or --inspect"


def ended(parser: Parser, command: Callable[[], None], again: str = "go on with --resume") -> int:
    """Run a command to its end, whichever that is; say in one line what kept it from another.

    Args:
      parser: says that the input is bad.
      command: raises what kept it.
      again: what to do once a full disk, or the like, is mended.

    Returns:
      The exit code; bad input exits with 2.
    """
    try:
        with interrupt.terminable():
            command()
    except Ended:
        raise
    except SystemExit as error:  # of a module of the user's: it must not pass for success
        where = traceback.extract_tb(error.__traceback__)[-1]
        called = f"sys.exit({error.code!r}) in {where.filename}, line {where.lineno}"
        print(f"error: {called} ended the command: raise an error there instead", file=sys.stderr)
        return 1
    except ValueError as error:
        parser.error(str(error))
    except Stopped as error:
        print(f"error: {error}" if error.__cause__ else str(error), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        print(endings.STOPPED, file=sys.stderr)
        return interrupt.exit_code(error)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        line = str(error).partition("\n")[0].partition("RESOURCE_EXHAUSTED: ")[2]
        print(f"error: the device has no memory left ({line}): {_LESS}", file=sys.stderr)
        return 1
    except OSError as error:
        if isinstance(error, BrokenPipeError) and endings.is_cut_off():
            return endings.CUT_OFF
        where = f"{error.filename}: " if error.filename else ""
        what = f"{where}{error.strerror or error}"
        print(f"error: {what}: mend that, and {again}", file=sys.stderr)
        return 1
    return 0


def given(
    args: argparse.Namespace, config: RunConfig, sections: Sequence[str] = SECTIONS
) -> RunConfig:
    """Return a RunConfig with the values that were given on the command line."""
    parts = {s: read_options(args, getattr(config, s), PREFIXES[s]) for s in sections}
    for name in ("seeds", "seed"):
        if getattr(args, name) is not None:
            parts[name] = getattr(args, name)
    return dataclasses.replace(config, **parts)


def print_list(as_json: bool) -> None:
    """Print agents, replays, environments and presets, and what fits together."""
    catalogue = registry.catalogue()
    print(json.dumps(catalogue, indent=2) if as_json else listed(catalogue))
