"""README and docs/: commands parse, Python runs, links resolve, numbers are those of results."""

import functools
import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments import compare, study
from experiments.cli.parser import Parser
from experiments.environments import families as environments
from experiments.environments.families import FAMILIES
from experiments.papers import committed
from experiments.runs import registry
from experiments.runs.registry import AGENTS
from experiments.statistics.claims import mean_after
from experiments.studies import store
from experiments.studies.options import Question, RunOutput, StudyOptions, Where
from experiments.training.config import LoopConfig, ReplaySizes
from jaxreplay.methods import METHODS
from jaxreplay.methods import _registry as replay_registry
from jaxreplay.option import options_of
from tests import documents
from tests.documents import CONTRIBUTING, PAGES, README, ROOT

WRITTEN = {"README.md": README, "CONTRIBUTING.md": CONTRIBUTING, **PAGES}
RESULTS = ROOT / "experiments" / "results"
COMMANDS = ("train", "compare", "sweep", "plot", "report", "watch", "microscope",
            "benchmarks.replay", "benchmarks.training", "benchmarks.accelerators",
            "benchmarks.commits", "papers list", "papers run", "papers report")  # fmt: skip
LABELS = ("ners_star", "without", "refer", "per", "rank")  # labels of arms, which replace "replay"

# Commands


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
    monkeypatch.setattr(study, "_run", ends)
    monkeypatch.setattr(store, "read", ends)  # of a study that a page resumes


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in a temporary folder with links to the examples and the committed results."""
    for name in ("docs/examples", "experiments/results"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def examples(elsewhere, tmp_path, monkeypatch):
    """Create the modules and folders in examples: a method, an agent and tasks."""
    package = tmp_path / "mypackage"
    package.mkdir()
    outside = {"recent_errors": "mymethod", "linear_agent": "myagent", "corridor": "mytasks"}
    for name, copy in outside.items():
        shutil.copy(ROOT / f"tests/contract/outside/{name}.py", package / f"{copy}.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    tables = (replay_registry._METHODS, registry._AGENTS, environments._families)
    copies = [dict(table) for table in tables]
    forget_package()  # another test may have imported a package of this name
    yield
    for table, before in zip(tables, copies, strict=True):
        table.clear()
        table.update(before)
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


def commands_of_results() -> list[tuple[str, list[str]]]:
    """Return the commands of committed results that have no abbreviated parts."""
    spans = [shlex.split(span) for span in documents.code_spans(RESULTS / "README.md")]
    spans = [words[words.index("python") :] for words in spans if "python" in words]
    return [
        ("results", words)
        for words in spans
        if words[1] == "-m" and not any(re.fullmatch("[A-Z]+", word) for word in words)
    ]


def main_of(module: str):
    command = importlib.import_module(module)
    package = not hasattr(command, "main")
    return importlib.import_module(f"{module}.__main__").main if package else command.main


def test_commands_in_pages_parse(examples, only_parse, capsys):
    Path("demonstrations.safetensors").touch()  # or the example of a study would record them
    lines = [(name, words) for name, words in lines_of("python") if words[1] == "-m"]
    assert len(lines) > 30 and len(commands_of_results()) > 15
    for name, (_, _, module, *options) in lines + commands_of_results():
        assert module.startswith("experiments."), f"{name}: {module}"
        try:
            code = main_of(module)(options)
            assert code == 0 and "--list" in options, f"{name}: {module} {options}"
        except Parsed:
            continue
        except SystemExit:
            pytest.fail(f"{name}: {module} {options}: {capsys.readouterr().err}")


def test_make_targets_in_pages_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    spans = [span for path in WRITTEN.values() for span in documents.code_spans(path)]
    named = {words[1] for _, words in lines_of("make")}
    named |= {span.split()[1] for span in spans if re.fullmatch(r"make [a-z-]+", span)}
    assert {"run", "test", "docs"} <= named <= targets


def test_extras_in_pages_and_messages_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    for name, path in WRITTEN.items():
        for found in re.findall(r"(?:jaxreplay|'\.)\[([a-z0-9_,-]+)\]", path.read_text()):
            assert set(found.split(",")) <= extras, f"{name}: {found}"
    rows = re.search(r"\| extra \|.*\n\| --- .*\n((?:\|.*\n)+)", PAGES["start.md"].read_text())[1]
    listed = re.findall(r"`([a-z0-9-]+)`", "".join(row.split("|")[1] for row in rows.splitlines()))
    assert listed and set(listed) <= extras
    families = [(family, name) for family in FAMILIES.values() for name in family.actions]
    assert {extra for family, name in families for extra in family.needs(name).values()} <= extras


def options_of_configs() -> set[str]:
    """Return the options of all configs."""
    configs = {"": [LoopConfig, ReplaySizes, Question, RunOutput, StudyOptions, Where]}
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
    for name, *words in (command.split() for command in COMMANDS):
        shown = ["all"] if name in ("train", "compare", "sweep") else []
        with pytest.raises(SystemExit):
            main_of(f"experiments.{name}")([*words, "--help", *shown])
    return {"--help"} | set(
        re.findall(r"^ +(?:-h, )?(--[a-z][a-z.-]+)", capsys.readouterr().out, re.MULTILINE)
    )


def test_options_in_sentences_exist(capsys):
    known = options_of_configs() | options_of_commands(capsys)
    known |= {"--signal", "--head", "--replay.half-life"}  # of Slurm, Ray and the custom method
    arms = re.compile(f"--({'|'.join(LABELS)})\\.")
    checked = 0
    for name, path in WRITTEN.items():
        for span in documents.code_spans(path):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z_.-]*[a-z]", span):
                plain = arms.sub("--replay.", option).replace("_", "-")
                assert plain in known, f"{name}: {option} in `{span}`"
                checked += 1
    assert checked > 100


# Python


def run_page(path: Path, slow: bool) -> None:
    """Run the blocks of a page in one namespace, with fewer steps and slots."""
    names: dict = {"__name__": "page"}
    for block in documents.python(path):
        if block.mark in ("", "slow" * slow):
            documents.run(block.text, names)


def pages(slow: bool) -> list[str]:
    """Return the names of pages that have Python blocks with this mark."""
    marks = {name: {block.mark for block in documents.python(path)} for name, path in PAGES.items()}
    return sorted(name for name in marks if "slow" * slow in marks[name])


# Their code depends on no values, so that it is only traced.
TRACED = ("how_to/mix_replays.md", "methods/refresh.md", "methods/her.md")


@pytest.mark.parametrize("name", pages(slow=False))
def test_python_of_pages_runs(name, elsewhere):
    run = functools.partial(run_page, PAGES[name], slow=False)
    jax.eval_shape(run) if name in TRACED else run()


@pytest.mark.slow
@pytest.mark.parametrize("name", pages(slow=True))
def test_python_of_pages_runs_with_slow_blocks(name, elsewhere):
    run_page(PAGES[name], slow=True)


def test_loop_of_the_readme_can_be_traced():
    (block,) = documents.python(README)
    assert len([line for line in block.text.splitlines() if "import" not in line]) <= 12
    before, _, _ = block.text.partition("state, metrics = train(")
    names = {}
    exec(before, names)
    metrics = jax.eval_shape(names["train"], jax.random.split(jax.random.key(0), 4))[1]
    assert metrics["eval_return"].shape == (4, 5)


@pytest.mark.slow
def test_loop_of_the_readme_solves_its_task():
    (block,) = documents.python(README)
    names = {}
    exec(compile(block.text, "<README>", "exec"), names)
    assert names["metrics"]["eval_return"][:, -1].tolist() == [500.0] * 4


# Links, and the site


def anchors(path: Path) -> set[str]:
    """Return the anchors of headings, as GitHub and the site name them."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_links_between_files_resolve():
    checked = 0
    for name, path in WRITTEN.items():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text()):
            if "://" in target or target.startswith("mailto:"):
                continue
            file = (path.parent / target).resolve() if target else path
            generated = (ROOT / "docs" / "results", ROOT / "docs" / "api")  # by the site
            assert file.exists() or file.parent in generated, f"{name}: {target}"
            if (
                anchor
                and file.suffix == ".md"
                and file.exists()
                and "include}" not in (file.read_text())
                and file.parent not in generated
            ):
                assert anchor in anchors(file), f"{name}: {target}#{anchor}"
            checked += 1
    assert checked > 300


def test_every_method_agent_and_family_is_documented():
    for folder, entries in (("methods", METHODS), ("agents", AGENTS)):
        for name, entry in entries.items():
            config = f"{entry.config.__module__}:{entry.config.__name__}"
            assert f"{{options}} {config}\n" in PAGES[f"{folder}/{name}.md"].read_text()
    assert all(f"`{family}/" in PAGES["environments.md"].read_text() for family in FAMILIES)


@pytest.mark.slow  # a minute; the workflow builds the site as well
def test_site_builds_without_warnings_and_loads_no_external_files(tmp_path):
    pytest.importorskip("furo", reason="pip install '.[docs]'")
    site, command = tmp_path / "site", [sys.executable, "-m", "sphinx", "-q", "-W"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    built = subprocess.run(
        [*command, "-d", tmp_path / "trees", ROOT / "docs", site], env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    loading = re.compile(r"<(?:script|img|iframe|source|video|link)\b[^>]*\b(?:src|href)=\"(\S+)\"")
    external = re.compile(r"([a-z]+:)?//")
    pages = [page.read_text() for page in site.rglob("*.html")]
    found = [address for page in pages for address in loading.findall(page)]
    assert len(found) > 500 and not [address for address in found if external.match(address)]
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(\s*|@import\s+)['\"]?([a-z]+:)?//", style.read_text()), style
    page = (site / "methods" / "per.html").read_text()
    assert "<math" in page and "--replay.beta-updates" in page


# Numbers of the first command

SEEDS = (0, 1000, 2000)


def judged(seed: int) -> dict:
    """Return the arms of the first command, for 128 seeds starting at `seed`."""
    file = RESULTS / "quickstart" / f"seeds_{seed}" / "verdicts.json"
    return json.loads(file.read_text())["arms"]


def test_counts_in_pages_are_those_of_the_committed_runs():
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGES["start.md"].read_text(), re.MULTILINE))
    shown = iter(re.findall(r"\d+", README.read_text().partition("](experiments/results/")[0]))
    for label in ("per", "rank", "lap", "pser", "control"):
        expected = [
            "{0}/{2}/{1} {verdict}".format(*arm["counts"], **arm)  # wins, losses, ties
            for arm in (judged(seed)[label] for seed in SEEDS)
        ]
        assert [cell.strip() for cell in rows[label].split("|")] == expected
        wins, _, losses = judged(0)[label]["counts"]
        assert str(wins) in shown and str(losses) in shown  # in this order


def test_effective_buffers_in_the_readme_are_those_of_the_committed_runs():
    rows = re.findall(r"^\| ([^|]+) \|.*\| ([./\d]+) \|$", README.read_text(), re.MULTILINE)
    shown = {task: list(map(float, cell.split("/"))) for task, cell in rows}
    tasks = {"walk/10": "all.walk", "DeepSea": "all.deepsea"}
    for (task, name), (every, ratio) in itertools.product(
        tasks.items(), ((16, 2), (4, 8), (1, 32))
    ):
        if (task, ratio) == ("walk/10", 2):  # the first command
            arms = judged(0)
            own = [arms[label]["effective_buffer"] for label in ("per", "rank", "lap", "pser")]
            own.insert(3, 1.0)  # PAL is not among them
        else:
            frame = committed.load(name).frame
            labels = [f"{label}_every{every}" for label in ("per", "rank", "lap", "pal", "pser")]
            own = [
                mean_after(frame[frame["arm"] == label], "replayed/effective_buffer", 1_000)
                for label in labels
            ]
        np.testing.assert_allclose(shown[f"{task}, {ratio}"], own, atol=6e-3)


@pytest.mark.slow
def test_first_command_has_the_same_verdicts_on_this_machine(tmp_path):
    """Numbers depend on processors and seeds, but the verdicts of PER and the control do not."""
    walk = re.search(r"^WALK := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    words = walk.replace("\\\n", " ").partition("--replays")[0].split()
    options = ["--seed", "5000", "--figures", "false", "--report", "false"]
    out = ["--out", str(tmp_path / "walk")]
    assert compare.main([*words, "--replays", "uniform", "per", *options, *out]) == 0
    arms = json.loads((tmp_path / "walk" / "verdicts.json").read_text())["arms"]
    assert arms["per"]["verdict"] == "better"
    assert arms["control"]["verdict"] in ("undecided", "no difference")
