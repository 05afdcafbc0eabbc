"""Short help that fits on a page, and full help that explains every option."""

import re
import shlex

import pytest

from experiments import compare, plot, report, study, sweep, train, watch
from experiments.cli.help import LINES, WIDTH, Guide
from experiments.cli.parser import Parser
from experiments.papers import __main__ as papers
from experiments.runs import registry, run
from experiments.runs.registry import AGENTS, feeds
from jaxreplay.methods import METHODS
from jaxreplay.option import options_of
from tests.refusals import assert_names, refusal

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


def page(capsys, main, *words: str) -> str:
    lines = shown(capsys, main, *words, "--help")
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH
    return "\n".join(lines)


def names_of(agent: str, replay: str = "uniform") -> list[str]:
    envs = ENVS if registry.suits(replay, ENVS["discrete"]) else registry.GOAL_EXAMPLES
    return ["--agent", agent, "--env", envs[AGENTS[agent].actions]]


@pytest.mark.parametrize("agent", AGENTS)
def test_help_fits_on_a_page_for_every_agent_and_method(agent, capsys):
    for replay in (replay for of, replay in PAIRS if of == agent):
        for main, option in ((train.main, "--replay"), (compare.main, "--replays")):
            text = page(capsys, main, *names_of(agent, replay), option, replay)
            assert_names(text, agent, "--help GROUP", f"python -m {main.__module__}")
            assert "--agent." in text


def test_help_of_many_arms_fits_on_a_page(capsys):
    page(capsys, compare.main, *names_of("td3"), "--replays", *MANY)
    for words in ([], ["--agent", "td3", "--envs", ENVS["continuous"], "--replays", *MANY]):
        assert_names(page(capsys, sweep.main, *words), "--space", "python -m experiments.sweep")
    search = shown(capsys, sweep.main, "--help", "search")
    assert {"--search", "--space", "--trials"} <= {line.split()[0] for line in search if line}


@pytest.mark.parametrize(("main", "words"), OTHERS)
def test_commands_with_few_options_have_one_help(main, words, capsys):
    text = page(capsys, main, *words)
    assert shown(capsys, main, *words, "--help", "all") == text.splitlines()
    assert "GROUP" not in text and "[-h]" in text


@pytest.mark.parametrize(
    ("main", "option"), [(train.main, "--replay"), (compare.main, "--replays")]
)
def test_full_help_and_group_help_contain_every_option(main, option, capsys, monkeypatch):
    used = []
    show = Parser.show_help
    monkeypatch.setattr(
        Parser, "show_help", lambda self, name: (used.append(self), show(self, name))
    )
    names = [*names_of("rainbow"), option, "ners", "--help"]
    whole = shown(capsys, main, *names, "all")
    assert max(map(len, whole)) <= WIDTH
    options = {line.split()[0] for line in whole if line.startswith("  --")}
    named = {action.option_strings[0] for action in used[0]._option_string_actions.values()}
    assert options == named - {"-h"}
    groups = [shown(capsys, main, *names, group) for group in used[0].groups]
    lines = [line for group in groups for line in group]
    assert {line.split()[0] for line in lines if line.startswith("  --")} == options


def test_help_shows_defaults_choices_and_sources(capsys):
    lines = shown(capsys, train.main, "--replay", "per", "--replay.alpha", "0.3", "--help")
    assert "--replay.alpha 0.6" in " ".join(lines)  # the default, not the given value
    text = " ".join(shown(capsys, train.main, "--replay", "ners", "--help", "replay"))
    assert_names(text, "--replay.features NAME [NAME ...]", "td_error", "q_value")
    text = " ".join(" ".join(shown(capsys, train.main, "--replay", "per", "--help", "all")).split())
    assert "--replay.alpha" in text and "[default 0.6; Schaul et al. 2016, Tab. 3]" in text


def test_an_unknown_group_is_refused_with_a_suggestion(capsys):
    assert_names(refusal(capsys, train.main, "--help", "agnet"), "--help", "agnet", "agent")


@pytest.mark.parametrize("example", train.EXAMPLES)
def test_examples_of_train_are_valid(example, monkeypatch, capsys):
    configs = []

    def execute(config, *_, **__):
        configs.append(config)
        raise KeyboardInterrupt  # after parsing the options

    monkeypatch.setattr(run, "execute", execute)
    words = shlex.split(example)
    assert words[:3] == ["python", "-m", "experiments.train"]
    if "--help" in words:
        assert shown(capsys, train.main, *words[3:])
        return
    assert train.main(words[3:]) == 130
    assert [config.replay for config in configs] == [words[words.index("--replay") + 1]]


@pytest.mark.parametrize("example", compare.FRONT.examples)
def test_examples_of_compare_are_valid(example, monkeypatch):
    studies = []
    monkeypatch.setattr(study, "_run", lambda asked, *_: studies.append(asked))
    words = shlex.split(example)
    assert words[:3] == ["python", "-m", "experiments.compare"]
    assert compare.main(words[3:]) == 0
    (asked,) = studies
    assert asked.question.control and len(asked.points()) >= 3


def test_examples_of_other_commands_are_valid():
    for parser in (watch._parser(), plot._parser()):
        words = shlex.split(parser.epilog[parser.epilog.index("python -m") :])
        assert words[:3] == parser.prog.split()
        parser.parse_args(words[3:])


def test_short_help_omits_defaults_that_exceed_a_page(capsys):
    parser = Parser(prog="p", usage="p", description="About.")
    parser.group("agent").add_argument("--out", help="folder")
    parser.groups["agent"].defaults.extend(f"--agent.option-{number} 1" for number in range(400))
    parser.guide = Guide({"results": ("--out",)}, {"agent": "options"}, ())
    lines = shown(capsys, lambda words: parser.parse_args(words), "--help")
    assert len(lines) == LINES
    assert 0 < " ".join(lines).count("--agent.option") < 400
    assert any(re.search(r"\.\.\. .*--help agent", line) for line in lines)


@pytest.mark.parametrize("name", AGENTS)
def test_help_of_an_agent_selects_a_compatible_method_and_task(name, capsys):
    for main in (train.main, compare.main, sweep.main):
        page(capsys, main, "--agent", name)
        lines = shown(capsys, main, "--help", "agent", "--agent", name)
        assert lines[0].startswith("agent") and any("--agent." in line for line in lines)


@pytest.mark.parametrize("name", METHODS)
def test_help_of_a_method_selects_a_compatible_agent_and_task(name, capsys):
    fields = options_of(METHODS[name].config)
    for main, option, group in (
        (train.main, "--replay", "replay"), (compare.main, "--replays", name),
        (sweep.main, "--replays", name),
    ):  # fmt: skip
        text = " ".join(shown(capsys, main, "--help", group, option, name))
        assert all(f"--{group}.{field.name.replace('_', '-')} " in text for field in fields)


def test_help_rejects_incompatible_names(capsys):
    error = refusal(capsys, train.main, "--help", "--agent", "td3", "--replay", "refer")
    assert_names(error, "td3", "refer", "log_ratio")
