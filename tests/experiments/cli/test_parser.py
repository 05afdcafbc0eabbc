"""Options and lists of names on the command line."""

import dataclasses
import re
from typing import Any, Literal

import pytest

from experiments import environments
from experiments.cli.listing import WIDTH, format_catalogue
from experiments.cli.parser import Parser, add_options, one_of, read_options, unknown
from experiments.runs import registry
from experiments.runs.presets import PRESETS
from jaxreplay.methods import METHODS
from jaxreplay.option import Config as Checked
from jaxreplay.option import option
from tests.refusals import assert_names, refused


@dataclasses.dataclass(frozen=True)
class Config:
    alpha: float = option(0.6, "priority exponent", "Schaul et al. 2016, Table 3")
    beta_steps: int = option(1000, "agent steps, 100 % linear")
    double: bool = option(True, "double targets")
    hidden: tuple[int, ...] = option((256, 256), "units per layer")
    norm: Literal["batch", "buffer"] = option("batch", "which maximum")
    limit: int | None = option(None, "agent steps")
    rates: tuple[float, ...] | None = option(None, "rates")
    beta: float = option(0.4, "exponent", at_least=0, at_most=1)
    clock: Literal["run", "episode"] | None = option(None, "which clock")
    inputs: tuple[Literal["obs", "time"], ...] = option(("obs",), "what is seen")
    internal: int = 3


def parse(*words: str, prefix: str = "replay.", start: Any = Config()) -> Any:
    parser = Parser()
    add_options(parser, start, prefix)
    return read_options(parser.parse_args(words), start, prefix)


def refusal(capsys, *words: str) -> str:
    parser = Parser()
    parser.add_argument("--agent", type=one_of("agent", ["dqn", "td3"]))
    parser.add_argument("--dry-run", action="store_true")
    add_options(parser, Config, "replay.")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    output = capsys.readouterr()
    assert ended.value.code == 2
    assert output.out == ""
    assert output.err.startswith("error: ") and output.err.count("\n") == 1
    return output.err


@dataclasses.dataclass(frozen=True)
class Paired(Checked):
    """Options that have an effect only together with others."""

    search: str | None = option(None, "how")
    fixed: bool = option(False, "or so")
    trials: int = option(3, "how often", needs=("search", "fixed"))


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        ((), False), (("--p.trials", "3"), True), (("--p.trials", "3", "--p.fixed", "false"), True),
        (("--p.trials", "4", "--p.fixed", "true"), False),
        (("--p.search", "x", "--p.trials", "4"), False), (("--p.search", "x"), False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("start", [Paired(), Paired(search="x")])
def test_an_option_without_effect_is_refused(words, idle, start):
    parser = Parser()
    add_options(parser, start, "p.")
    given = parser.parse_args(list(words))
    if idle and start.search is None:
        with refused("--p.trials", "--p.search", "--p.fixed"):
            read_options(given, start, "p.")
    else:
        assert read_options(given, start, "p.").trials in (3, 4)


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--replay.alpha 0.4", "alpha", 0.4),
        ("--replay.alpha=-1e-3", "alpha", -1e-3),
        ("--replay.alpha -1e-3", "alpha", -1e-3),
        ("--replay.alpha -.5", "alpha", -0.5),
        ("--replay.beta-steps 1e6", "beta_steps", 1_000_000),
        ("--replay.beta_steps 20_000", "beta_steps", 20_000),
        ("--replay.beta_steps=-7", "beta_steps", -7),
        ("--replay.double false", "double", False),
        ("--replay.double True", "double", True),
        ("--replay.hidden 64 32", "hidden", (64, 32)),
        ("--replay.hidden 64,32", "hidden", (64, 32)),
        ("--replay.hidden=", "hidden", ()),
        ("--replay.norm buffer", "norm", "buffer"),
        ("--replay.limit 5", "limit", 5),
        ("--replay.limit none", "limit", None),
        ("--replay.rates .5 -1e-2", "rates", (0.5, -0.01)),
        ("--replay.rates none", "rates", None),
        ("--replay.clock run", "clock", "run"),
        ("--replay.clock none", "clock", None),
        ("--replay.inputs time,obs", "inputs", ("time", "obs")),
    ],
)
def test_values_are_read_by_the_type_of_their_field(words, field, value):
    start = Config(limit=1, rates=(1.0,), clock="episode")
    assert parse(start=start) == start
    read = parse(*words.split(" "), start=start)
    assert read == dataclasses.replace(start, **{field: value})
    assert type(getattr(read, field)) is type(value)


def test_options_of_two_prefixes_are_separate():
    assert parse("--beta-steps", "5", prefix="") == Config(beta_steps=5)
    parser = Parser()
    add_options(parser, Config, "replay.")
    add_options(parser, Config, "agent.")
    read = parser.parse_args(["--agent.alpha", "2"])
    assert read_options(read, Config(), "replay.") == Config()
    assert read_options(read, Config(), "agent.") == Config(alpha=2.0)


def test_help_shows_meaning_default_and_source():
    parser = Parser()
    add_options(parser, Config(), "replay.")
    text = " ".join(parser.format_help().split())
    assert "priority exponent [default 0.6; Schaul et al. 2016, Table 3]" in text
    assert "agent steps, 100 % linear [default 1000]" in text
    assert "units per layer [default 256 256]" in text
    assert "double targets [default true]" in text
    for shown in (
        "--replay.limit INT|none", "--replay.clock {run,episode}|none",
        "--replay.inputs {obs,time} [{obs,time} ...]",
        "--replay.beta 0<=FLOAT<=1 exponent [default 0.4]",
    ):  # fmt: skip
        assert shown in text
    assert "internal" not in text
    parser = Parser()
    add_options(parser, Config(alpha=0.25), "replay.")  # differs from the value of the source
    assert "priority exponent [default 0.25]" in " ".join(parser.format_help().split())


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--replay.alhpa 3", ("--replay.alhpa", "--replay.alpha")),
        ("--replay.alhpa=3", ("--replay.alhpa", "--replay.alpha")),
        ("--replay.alph 3", ("--replay.alph", "--replay.alpha")),
        ("--agent dqm", ("--agent", "dqm", "dqn", "td3")),
        ("--replay.norm bufer", ("--replay.norm", "bufer", "buffer")),
        ("--replay.alpha x", ("--replay.alpha", "x")),
        ("--replay.alpha nan", ("--replay.alpha", "nan")),
        ("--replay.beta-steps 1.5", ("--replay.beta-steps", "1.5")),
        ("--replay.beta-steps 1e30", ("--replay.beta-steps", "1e30")),
        ("--replay.beta-steps inf", ("--replay.beta-steps", "inf")),
        ("--replay.hidden 3 x", ("--replay.hidden", "x")),
        ("--replay.rates x none", ("--replay.rates", "x")),
        ("--replay.double yes", ("--replay.double", "yes", "true", "false")),
        ("--replay.alpha", ("--replay.alpha",)),
        ("stray", ("stray",)),
    ],
)
def test_bad_input_is_refused_in_one_line_with_code_2(capsys, words, parts):
    assert_names(refusal(capsys, *words.split(" ")), *parts)


def test_unknown_names_get_a_suggestion_and_short_lists_of_choices():
    message = unknown("replay", "perr", ["uniform", "per", "lap"])
    assert_names(message, "replay", "perr", "uniform", "per", "lap")
    assert len(re.findall(r"\bper\b", message)) == 2  # suggestion and list of names
    names = [f"per.fig{number}" for number in range(50)]
    message = unknown("entry", "per.figg7", names)
    assert_names(message, "entry", "per.figg7", "per.fig7")
    assert not [name for name in names if name in message.replace("per.fig7", "")]
    assert_names(unknown("entry", "xyz", names), "entry", "xyz", *names)


@dataclasses.dataclass(frozen=True)
class Together(Checked):
    beta: float = option(0.4, "exponent", at_least=0, at_most=1)
    beta_end: float = option(1.0, "exponent at the end", at_least=0)

    def check(self) -> None:
        if self.beta_end < self.beta:
            raise ValueError("beta_end is below beta")


def test_values_out_of_bounds_and_invalid_combinations_name_their_group():
    with refused("--replay.beta", "1.5", "0", "1"):
        parse("--replay.beta", "1.5", start=Together())
    with refused("--per.beta-end", "-1.0"):
        parse("--per.beta-end", "-1", prefix="per.", start=Together())
    with refused("per", "beta_end is below beta"):
        parse("--per.beta-end", "0.1", prefix="per.", start=Together())
    with pytest.raises(ValueError, match=r"^beta_end is below beta"):
        parse("--beta-end", "0.1", prefix="", start=Together())


def test_unsupported_option_types_raise_a_type_error():
    @dataclasses.dataclass
    class Odd:
        table: dict = option(None, "a table")

    with pytest.raises(TypeError, match="table"):
        add_options(Parser(), Odd)


def test_an_option_without_its_group_gets_a_suggestion(capsys):
    assert_names(refusal(capsys, "--alpa", "1"), "--alpa", "--replay.alpha")
    assert_names(refusal(capsys, "--agent.beta-step", "1"), "--replay.beta-steps")
    assert_names(refusal(capsys, "--dry"), "--dry", "--dry-run")
    # Similar only in the name of the group or in the dashes.
    for word in ("--zzz", "--replay.alone", "--json", "--reply", "--dr"):
        others = refusal(capsys, word, "1").replace(word, "")
        assert set(re.findall(r"--[\w.-]+", others)) <= {"--help"}, word


# Lists of names

TEXT = format_catalogue(registry.catalogue())
LINES = TEXT.splitlines()


def test_list_command_shows_every_name():
    shown = [line for line in LINES if " -m pip install " not in line]  # has one line of any length
    assert max(map(len, shown)) <= WIDTH
    words = set(TEXT.replace(":", " ").split())
    assert {*registry.AGENTS, *METHODS, *environments.names(), *PRESETS} <= words


def test_list_command_marks_compatible_agents_and_methods():
    blocks = [part.splitlines() for part in TEXT.split("\n\n")]
    agents, fits = ([line.split() for line in block[1:]] for block in blocks[:2])
    assert dict(agents[1:]) == {name: entry.actions for name, entry in registry.AGENTS.items()}
    assert fits[0] == ["replay", *registry.AGENTS]
    assert [row[0] for row in fits[1:]] == list(METHODS)
    for replay, *marks in fits[1:]:
        found = {name for name, mark in zip(fits[0][1:], marks, strict=True) if mark == "x"}
        assert found == {name for name in registry.AGENTS if registry.feeds(name, replay)}


def test_missing_packages_are_named_once_per_family():
    """Install commands are on one line of any length, so that they can be copied."""
    command = f"{'/a long folder' * 10}/python -m pip install -e '.[x]'"
    catalogue = registry.catalogue()
    for entry in catalogue["environments"].values():
        entry["missing"] = None
    for name in ("gymnax/CartPole-v1", "gymnax/Acrobot-v1"):
        catalogue["environments"][name]["missing"] = f"{name} needs x: {command}"
    lines = format_catalogue(catalogue).splitlines()
    assert lines.count(command) == 1
    said = lines[lines.index(command) - 1]
    assert_names(said, "gymnax", "x")
    assert "gymnax/" not in said
