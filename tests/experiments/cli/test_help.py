"""Helps that fit a screen or two, and all options where all are asked for."""

import argparse
import re
import shlex

import pytest

from experiments import compare, plot, report, sweep, train, watch
from experiments.cli.help import LINES, WIDTH, Guide
from experiments.cli.options import Parser
from experiments.papers import __main__ as papers
from experiments.runs import presets, registry
from experiments.runs.registry import AGENTS, feeds
from jaxreplay.methods import METHODS
from jaxreplay.option import options_of
from tests.refusals import assert_names

ENVS = {"discrete": "gymnax/CartPole-v1", "continuous": "gymnax/Pendulum-v1"}
PAIRS = [(agent, replay) for agent in AGENTS for replay in METHODS if feeds(agent, replay)]
MANY = ["ners", "rank", "per", "a=pser", "b=per", "lap", "pal", "ero"]
OTHERS = [
    (watch.main, []), (plot.main, []), (report.main, []),
    (papers.main, []), (papers.main, ["run"]), (papers.main, ["list"]),
]  # fmt: skip


def shown(capsys, main, *words: str) -> list[str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    return capsys.readouterr().out.splitlines()


def names_of(agent: str) -> list[str]:
    return ["--agent", agent, "--env", ENVS[AGENTS[agent].actions]]


@pytest.mark.parametrize("agent", AGENTS)
def test_help_is_short_for_every_agent_and_method(agent, capsys):
    for replay in (replay for of, replay in PAIRS if of == agent):
        for main, option in ((train.main, "--replay"), (compare.main, "--replays")):
            lines = shown(capsys, main, *names_of(agent), option, replay, "--help")
            assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH
            text = "\n".join(lines)
            assert_names(text, agent, "--help GROUP", f"python -m {main.__module__}")
            assert "--agent." in text


def test_help_is_short_for_many_arms(capsys):
    lines = shown(capsys, compare.main, *names_of("td3"), "--replays", *MANY, "--help")
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH


def test_help_of_a_sweep_is_short(capsys):
    for words in ([], ["--agent", "td3", "--envs", ENVS["continuous"], "--replays", *MANY]):
        lines = shown(capsys, sweep.main, *words, "--help")
        assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH
        assert "--space" in "\n".join(lines) and "python -m experiments.sweep" in "\n".join(lines)


def test_help_of_a_search_has_what_it_chooses_from(capsys):
    lines = shown(capsys, sweep.main, "--help", "search")
    assert {"--search", "--space", "--trials"} <= {line.split()[0] for line in lines if line}


@pytest.mark.parametrize(("main", "words"), OTHERS)
def test_other_helps_are_short_too(main, words, capsys):
    lines = shown(capsys, main, *words, "--help")
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH
    assert shown(capsys, main, *words, "--help", "all") == lines
    assert "GROUP" not in "\n".join(lines) and "[-h]" in "\n".join(lines)


@pytest.mark.parametrize(
    ("main", "option"), [(train.main, "--replay"), (compare.main, "--replays")]
)
def test_every_option_is_in_the_whole_help_and_in_its_group(main, option, capsys, monkeypatch):
    used = []
    show = Parser.show_help
    monkeypatch.setattr(
        Parser, "show_help", lambda self, what: (used.append(self), show(self, what))
    )
    names = [*names_of("rainbow"), option, "ners", "--help"]
    whole = shown(capsys, main, *names, "all")
    assert max(map(len, whole)) <= WIDTH
    options = {line.split()[0] for line in whole if line.startswith("  --")}
    assert options == set(used[0]._option_string_actions) - {"-h", "--help"}
    of_groups = set()
    for group in used[0].groups:
        lines = shown(capsys, main, *names, group)
        assert max(map(len, lines)) <= WIDTH
        of_groups |= {line.split()[0] for line in lines if line.startswith("  --")}
    assert of_groups == options


def test_values_are_shown_with_what_they_are_named_after(capsys):
    lines = shown(capsys, train.main, "--replay", "per", "--replay.alpha", "0.3", "--help")
    assert "--replay.alpha 0.6" in " ".join(lines)  # the default, not what was given
    text = " ".join(shown(capsys, train.main, "--replay", "ners", "--help", "replay"))
    assert_names(text, "--replay.features NAME [NAME ...]", "td_error", "q_value")


def test_an_unknown_group_is_refused_with_the_nearest(capsys):
    for main, words, parts in (
        (train.main, ["--help", "agnet"], ("--help", "agnet", "agent")),
        (watch.main, ["--help", "x"], ("--help", "x", "all")),
    ):
        with pytest.raises(SystemExit) as refused:
            main(words)
        said = capsys.readouterr()
        assert refused.value.code == 2 and said.out == "" and said.err.count("\n") == 1
        assert_names(said.err, *parts)


@pytest.mark.parametrize("example", train.EXAMPLES)
def test_examples_of_train_are_understood(example, monkeypatch, capsys):
    ran = []

    def execute(config, *_, **__):
        ran.append(config)
        raise KeyboardInterrupt  # nothing has to be trained to see that it was understood

    monkeypatch.setattr(train, "execute", execute)
    words = shlex.split(example)
    assert words[:3] == ["python", "-m", "experiments.train"]
    if "--help" in words:
        assert shown(capsys, train.main, *words[3:])
        return
    assert train.main(words[3:]) == 130
    assert [config.replay for config in ran] == [words[words.index("--replay") + 1]]


@pytest.mark.parametrize("example", compare.EXAMPLES)
def test_examples_of_compare_are_understood(example, monkeypatch):
    ran = []

    def run_all(question, runs, *_):
        ran.extend(runs)
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "_run_all", run_all)
    words = shlex.split(example)
    assert words[:3] == ["python", "-m", "experiments.compare"]
    assert compare.main(words[3:]) == 130
    assert len(ran) >= 3


def test_examples_of_the_others_name_their_options():
    for parser in (watch._parser(), plot._parser()):
        words = shlex.split(parser.epilog[parser.epilog.index("python -m") :])
        assert words[:3] == parser.prog.split()
        parser.parse_args(words[3:])


def test_what_does_not_fit_is_counted(capsys):
    parser = Parser(prog="p", usage="p", description="About.")
    parser.group("agent").add_argument("--out", help="folder")
    parser.groups["agent"].defaults.extend(f"--agent.option-{number} 1" for number in range(400))
    parser.guide = Guide({"results": ("--out",)}, {"agent": "options"}, ())
    lines = shown(capsys, lambda words: parser.parse_args(words), "--help")
    assert len(lines) == LINES
    row = " ".join(lines)
    shown_here = row.count("--agent.option")
    assert shown_here > 0 and str(400 - shown_here) in re.findall(r"(?<!-)\b\d+\b", row)


def test_a_group_is_made_once():
    parser = Parser()
    assert isinstance(parser.group("x"), argparse._ArgumentGroup)
    assert parser.group("x") is parser.group("x") and list(parser.groups) == ["x"]


@pytest.mark.parametrize("name", AGENTS)
def test_help_of_any_agent_needs_no_other_name(name, capsys):
    for main in (train.main, compare.main, sweep.main):
        assert len(shown(capsys, main, "--help", "--agent", name)) <= LINES
        lines = shown(capsys, main, "--help", "agent", "--agent", name)
        assert lines[0].startswith("agent") and any("--agent." in line for line in lines)


@pytest.mark.parametrize("name", METHODS)
def test_help_of_any_method_needs_no_other_name(name, capsys):
    fields = options_of(METHODS[name].config)
    for main, option, group in (
        (train.main, "--replay", "replay"), (compare.main, "--replays", name),
        (sweep.main, "--replays", name),
    ):  # fmt: skip
        text = " ".join(shown(capsys, main, "--help", group, option, name))
        assert all(f"--{group}.{field.name.replace('_', '-')} " in text for field in fields)


def test_help_of_names_that_do_not_fit_says_so(capsys):
    with pytest.raises(SystemExit) as refused:
        train.main(["--help", "--agent", "td3", "--env", "gymnax/CartPole-v1"])
    assert refused.value.code == 2
    error = capsys.readouterr().err
    assert_names(error, "td3", "continuous", "gymnax/CartPole-v1", "--env", "gymnax/Pendulum-v1")


def test_help_keeps_the_usual_names_where_they_fit():
    assert registry.fitting_names(None, None, None, None) == presets.names(None)
    assert registry.fitting_names(None, None, None, ["per"]).agent == "dqn"
    assert registry.fitting_names(None, ["gymnax/Pendulum-v1"], None, None).agent == "td3"


def test_help_of_an_agent_and_a_method_that_do_not_fit_names_what_the_agent_lacks(capsys):
    with pytest.raises(SystemExit):
        train.main(["--help", "--agent", "td3", "--replay", "refer"])
    error = capsys.readouterr().err
    assert_names(error, "td3", "refer", "log_ratio")
    assert "CartPole" not in error
