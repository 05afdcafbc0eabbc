"""Commands in README and docs/ parse, and their options, targets and extras exist."""

import importlib
import json
import re
import shutil
import sys
import tomllib

import pytest

from experiments import study, train
from experiments.cli.options import Parser
from experiments.environments import registry as environments
from experiments.environments.registry import FAMILIES
from experiments.runs import registry, run, run_config
from experiments.runs.registry import AGENTS
from experiments.runs.run_config import OutputConfig
from experiments.studies.options import Question
from experiments.training.config import LoopConfig, ReplaySizes
from jaxreplay.methods import METHODS
from jaxreplay.methods import _registry as replay_registry
from jaxreplay.option import options_of
from tests import documents
from tests.documents import CONTRIBUTING, PAGES, README, ROOT

WRITTEN = {"README.md": README, "CONTRIBUTING.md": CONTRIBUTING, **PAGES}
RUNS = ("runs/x", "runs/cheetah/seeds_0")  # resumed by pages
BENCHMARKS = ("replay", "training", "methods", "compiling", "commits")
LABELS = ("ners_star", "without", "refer", "per", "rank")  # labels of arms, which replace "replay"


class Parsed(BaseException):
    """Raised after a command has parsed its arguments."""


def ends(*args, **kwargs):
    raise Parsed


@pytest.fixture
def only_parse(monkeypatch):
    """Stop every command after it has parsed its arguments."""
    read = Parser.parse_args
    configuring = ("experiments.train", "experiments.compare")  # these also check values

    def parse_args(self, *args, **kwargs):
        parsed = read(self, *args, **kwargs)
        return parsed if self.prog.split()[-1] in configuring else ends()

    monkeypatch.setattr(Parser, "parse_args", parse_args)
    monkeypatch.setattr(run, "execute", ends)
    monkeypatch.setattr(study, "_run", ends)


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """Create the modules and folders in examples: a method, an agent, tasks and runs."""
    package = tmp_path / "mypackage"
    package.mkdir()
    outside = {"recent_errors": "mymethod", "linear_agent": "myagent", "corridor": "mytasks"}
    for name, copy in outside.items():
        shutil.copy(ROOT / f"tests/contract/outside/{name}.py", package / f"{copy}.py")
    config = run_config.defaults("gymnax/CartPole-v1", "dqn", "per").to_json()
    for name in RUNS:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tables = (replay_registry._METHODS, registry._AGENTS, environments._families)
    copies = [dict(table) for table in tables]
    forget_package()  # another test may have imported a package of this name
    yield
    for held, before in zip(tables, copies, strict=True):
        held.clear()
        held.update(before)
    forget_package()


def forget_package():
    for name in [name for name in sys.modules if name.startswith("mypackage")]:
        del sys.modules[name]


def lines_of(program: str) -> list[tuple[str, list[str]]]:
    """Return the pages with calls of a program, and the words of these calls."""
    return [
        (name, words)
        for name, path in WRITTEN.items()
        for words in documents.commands(path)
        if words[0] == program
    ]


def main_of(module: str):
    command = importlib.import_module(module)
    package = not hasattr(command, "main")
    return importlib.import_module(f"{module}.__main__").main if package else command.main


def test_commands_in_pages_parse(examples, only_parse, capsys):
    lines = [(name, words[2:]) for name, words in lines_of("python") if words[1] == "-m"]
    assert len(lines) > 30
    for name, (module, *options) in lines:
        assert module.startswith("experiments."), f"{name}: {module}"
        try:
            code = main_of(module)(options)
            assert code == 0 and "--list" in options, f"{name}: {module} {options}"
        except Parsed:
            continue
        except SystemExit:
            pytest.fail(f"{name}: {module} {options}: {capsys.readouterr().err}")


@pytest.mark.parametrize("wrong", [["--replay.alfa", "0.4"], ["--replay.alpha", "-1"]])
def test_parser_rejects_wrong_options(wrong, only_parse, capsys):
    with pytest.raises(SystemExit):
        train.main(["--agent", "dqn", "--replay", "per", *wrong])
    assert "alpha" in capsys.readouterr().err


def test_make_targets_in_pages_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    spans = [span for path in WRITTEN.values() for span in documents.code_spans(path)]
    named = {words[1] for _, words in lines_of("make")}
    named |= {span.split()[1] for span in spans if re.fullmatch(r"make [a-z-]+", span)}
    assert {"run", "test", "docs"} <= named <= targets


def test_extras_in_pages_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    for name, path in WRITTEN.items():
        for found in re.findall(r"(?:jaxreplay|'\.)\[([a-z0-9_,]+)\]", path.read_text()):
            assert set(found.split(",")) <= extras, f"{name}: {found}"
    start = PAGES["start.md"].read_text()
    rows = re.search(r"\| extra \|.*\n\| --- .*\n((?:\|.*\n)+)", start)[1]
    first_cells = "".join(row.split("|")[1] for row in rows.splitlines())
    listed = set(re.findall(r"`([a-z0-9]+)`", first_cells))
    assert listed and listed <= extras


def options_of_configs() -> set[str]:
    """Return the options of all configs."""
    configs = {"": [LoopConfig, ReplaySizes, OutputConfig, Question]}
    configs["replay."] = [method.config for method in METHODS.values()]
    configs["agent."] = [agent.config for agent in AGENTS.values()]
    configs["env."] = [family.config for family in FAMILIES.values()]
    return {
        f"--{prefix}{entry.name}".replace("_", "-")
        for prefix, several in configs.items()
        for config in several
        for entry in options_of(config)
    }


def options_of_commands(capsys) -> set[str]:
    """Return the options in the help of all commands."""
    names = ("train", "compare", "sweep", "plot", "report", "watch")
    names += tuple(f"benchmarks.{name}" for name in BENCHMARKS)
    lines = [[name] for name in names]
    lines += [["papers", each] for each in ("list", "run", "report")]
    for name, *words in lines:
        with pytest.raises(SystemExit):
            shown = ["all"] if name in ("train", "compare", "sweep") else []
            main_of(f"experiments.{name}")([*words, "--help", *shown])
    return {"--help"} | set(
        re.findall(r"^ +(?:-h, )?(--[a-z][a-z.-]+)", capsys.readouterr().out, re.MULTILINE)
    )


def test_options_in_sentences_exist(capsys):
    known = options_of_configs() | options_of_commands(capsys) | {"--signal"}  # option of Slurm
    known |= {"--replay.half-life"}  # option of the custom method
    known |= {"--head"}  # option of Ray
    arms = re.compile(f"--({'|'.join(LABELS)})\\.")
    checked = 0
    for name, path in WRITTEN.items():
        for span in documents.code_spans(path):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z_.-]*[a-z]", span):
                plain = arms.sub("--replay.", option).replace("_", "-")
                assert plain in known, f"{name}: {option} in `{span}`"
                checked += 1
    assert checked > 100
