"""Methods, agents and environments in modules outside of this repository."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments import compare, report, study, sweep, train, watch
from experiments.cli.shared import labelled
from experiments.environments import families as environments
from experiments.runs import outside, registry
from experiments.runs.run_config import defaults
from experiments.studies import store
from jaxreplay import Replay, methods, sum_tree, testing
from jaxreplay.methods import METHODS
from jaxreplay.methods import _registry as replay_registry
from jaxreplay.option import Config
from tests.experiments import tiny
from tests.refusals import assert_names, refused

FOLDER = Path(__file__).parent / "outside"
NAME = "recent_errors"
TASK = "corridor/corridor"
SHORT = [
    "--seeds", "1", "--steps", "300", "--warmup", "100", "--eval-every", "100",
    "--eval-episodes", "2", "--env.max-steps", "30", "--figures", "false", "--inspect", "0",
]  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    """Make custom modules importable, and undo their registrations afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    tables = (replay_registry._METHODS, registry._AGENTS, environments._families)
    copies = [dict(table) for table in tables]
    yield
    for held, before in zip(tables, copies, strict=True):
        held.clear()
        held.update(before)
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_custom_method_takes_at_most_thirty_lines():
    lines = (FOLDER / f"{NAME}.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 30


def entry_of(name):
    outside.load_method(name)
    return METHODS[name]


def test_custom_method_keeps_the_contract():
    entry = entry_of(NAME)
    testing.check_method(entry.config(), entry.method)


def test_custom_method_with_an_array_of_its_own_keeps_the_contract_for_any_transition():
    images, entry = np.zeros((4, 4, 2), np.uint8), entry_of("seldom")
    example = testing.EXAMPLE._replace(obs=images, next_obs=images, action=np.zeros(3, np.float32))
    testing.check_method(entry.config(), entry.method, example=example)


@pytest.mark.parametrize("seeds", [None, 3], ids=["alone", "vmapped"])
def test_custom_array_is_updated_in_place(seeds):
    replay = Replay(entry_of("seldom").method().sampler, capacity=4096, batch_size=32)

    def init(key):
        return replay.init(key, testing.EXAMPLE)

    def step(state, key):
        row = jax.tree.map(lambda x: jnp.asarray(x)[None], testing.EXAMPLE)
        state = replay.add(state, row)
        return replay.update(state, replay.sample(state, key))

    keys = jax.random.split(jax.random.key(0), seeds or 1)
    if seeds is None:
        testing.assert_in_place(step, jax.eval_shape(init, keys[0]), keys[0])
    else:
        testing.assert_in_place(jax.vmap(step), jax.eval_shape(jax.vmap(init), keys), keys)


def test_custom_array_counts_draws():
    case = testing.Case(entry_of("seldom").method())
    state = case.full
    batch = case.sample(state, jax.random.key(0))
    state = case.update(state, batch, {})
    drawn = np.bincount(np.asarray(batch.indices), minlength=state.sampler.counts.size)
    np.testing.assert_array_equal(state.sampler.counts, drawn)
    again = case.sample(state, jax.random.key(1))
    assert state.sampler.counts[again.indices].mean() < drawn[: int(state.ring.capacity)].mean()


def test_custom_method_has_priorities_of_error_times_recency():
    entry = entry_of(NAME)
    case = testing.Case(entry.method(entry.config(alpha=1.0, half_life=0.5)))
    state = case.full
    batch = case.sample(state, jax.random.key(0))
    slots = jnp.arange(testing.BATCH)
    batch = batch._replace(indices=slots, version=state.ring.steps_added - 11 + slots // testing.E)
    state = case.update(state, batch, {"td_error": jnp.full(testing.BATCH, -2.0)})
    age = 11 - np.arange(testing.BATCH) // testing.E  # age in 12 rows; the half-life is 6
    leaves = sum_tree.leaves(state.sampler.tree)[: testing.BATCH]
    np.testing.assert_allclose(leaves, 2.0 * 0.5 ** (age / 6), rtol=1e-5)


AGENT = """
from experiments.training.config import ReplaySizes
from linear_agent import ACTIONS, OFFERS, LinearConfig as config, agent

SIZES = ReplaySizes(batch_size=16)
"""
TASKS = """
import corridor
import numpy as np

def make(name, config):
    environment = corridor.make(name, config)
    return environment._replace(renderer=lambda: lambda state: np.zeros((8, 8, 3), np.uint8))
"""


def test_custom_modules_train_and_resume_where_named_again(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_agent.py").write_text(AGENT)
    (tmp_path / "my_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    named = ["--replay", NAME, "--agent", "my_agent", "--env", "my_tasks/corridor"]
    out = tmp_path / "run"
    options = [*named, *SHORT, "--replay.half-life", "0.25", "--env.sticky", "0.1"]
    assert train.main([*options, "--out", str(out)]) == 0
    (point,) = json.loads((out / "study.json").read_text())["points"].values()
    saved = point["config"]
    assert [saved[name] for name in ("replay", "agent", "env")] == named[1::2]
    assert saved["replay_options"]["half_life"] == 0.25 and saved["env_options"]["sticky"] == 0.1
    assert saved["sizes"]["batch_size"] == 16
    assert environments.make(named[-1]).name == named[-1]
    assert train.main(["--resume", str(out), *named]) == 0
    assert watch.main([str(out), *named, "--max-steps", "2"]) == 0


@pytest.mark.parametrize(("kind", "name"), [("replay", NAME), ("env", "corridor/corridor")])
def test_run_folders_do_not_import_modules(kind, name, tmp_path, capsys):
    study = tiny.study_of(defaults("walk/4", "dqn", "per"))
    store.begin(tmp_path, study, study.points(), {}).write()
    usual = {"replay": ('"replay": "per"', f'"replay": "{name}"'), "env": ("walk/4", name)}[kind]
    path = tmp_path / "study.json"
    path.write_text(path.read_text().replace(*usual))
    with pytest.raises(SystemExit):
        train.main(["--resume", str(tmp_path)])
    assert_names(capsys.readouterr().err, tmp_path, f"--{kind} {name}")
    assert name.partition("/")[0] not in sys.modules


def test_help_lists_and_comparisons_include_the_custom_method(tmp_path, capsys):
    with pytest.raises(SystemExit):
        train.main(["--replay", NAME, "--help", "all"])
    shown = capsys.readouterr().out
    assert "--replay.half-life" in shown and "mypackage.mymethod" in shown
    assert train.main(["--replay", NAME, "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "dqn" in listed["replays"][NAME]["agents"]
    assert NAME in listed["agents"]["dqn"]["replays"]
    out = tmp_path / "both"
    options = [
        "--replays", "uniform", f"mine={NAME}", "--mine.alpha", "0.5", "--agent", "linear_agent",
        "--env", TASK, *SHORT, "--seeds", "2", "--control", "false", "--report", "false",
    ]  # fmt: skip
    assert compare.main([*options, "--out", str(out)]) == 0
    assert set(pd.read_csv(out / "study.csv.gz")["replay"]) == {"uniform", "mine"}
    named = ["--replay", NAME, "--agent", "linear_agent", "--env", TASK]
    assert report.main([str(out), *named]) == 0
    page = (out / "report.html").read_text()
    again = re.search(r"experiments\.study study\.json ([^<]*) --out", page)[1]
    assert_names(again, *(f"{option} {name}" for option, name in zip(named[::2], named[1::2])))
    assert study.main([str(out / "study.json"), *named, "--dry-run"]) == 0


def test_comparisons_label_modules_by_their_last_name(tmp_path, monkeypatch):
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mine.py").write_text((FOLDER / f"{NAME}.py").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    assert labelled("mypackage.mine") == ("mine", "mypackage.mine")
    assert "mypackage.mine" in METHODS


@pytest.mark.parametrize(
    "words",
    [["--agent", "leaving"], ["--env", "gymnasium/leaving:Env-v0"],
     ["--agent", "quits", "--env", "gymnax/CartPole-v1"]],
)  # fmt: skip
@pytest.mark.parametrize("command", [train.main, compare.main, sweep.main])
def test_modules_that_exit_do_not_pass_for_success(words, command, tmp_path, monkeypatch, capsys):
    """Neither during import nor when its agent or environment is made."""
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "quits.py").write_text(
        "import sys\nfrom agents.dqn import DQNConfig as config\n"
        "from experiments.runs.registry import AGENTS\n"
        "ACTIONS, OFFERS = 'discrete', AGENTS['dqn'].offers\n"
        "def agent(*parts): sys.exit(0)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [f"{word}s" if word == "--env" and command is sweep.main else word for word in words]
    try:
        code = command([*words, "--out", str(tmp_path / "x")])
    except SystemExit as error:
        code = error.code
    said = capsys.readouterr().err
    module = "quits" if "quits" in words else "leaving"
    assert code in (1, 2) and module in said and "error: " in said
    assert not (tmp_path / "x").exists()


def test_modules_may_have_other_defaults_for_discrete_actions(tmp_path, monkeypatch):
    text = (
        "from jaxreplay.methods.lap import LAPConfig as config, method\nDISCRETE = {'kappa': 0.5}\n"
    )
    (tmp_path / "of_two_kinds.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert outside.load_method("of_two_kinds")
    kappas = [registry.replay_options(agent, "of_two_kinds").kappa for agent in ("dqn", "td3")]
    assert kappas == [0.5, 1.0]


def test_registering_another_method_under_a_name_is_refused():
    entry = METHODS["per"]
    methods.register("mine", entry.config, entry.method)
    methods.register("mine", entry.config, entry.method)
    with refused("mine", "replace=True"):
        methods.register("mine", METHODS["lap"].config, METHODS["lap"].method)
    with pytest.raises(TypeError):
        METHODS["yours"] = entry


def error_of(capsys, command, words):
    """Return the error of a command, after asserting that it is refused."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        command(words)
    assert stop.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--agent", "linear_agent", "--replay", "ners"], ("ners", "target", "linear_agent")),
        (["--env", "corridor/hall"], ("hall", "corridor")),
        (["--env", "nothing/none"], ("nothing.make", "NoneType", "make_episodic")),
        (["--env", "dataclasses/corridor"], ("dataclasses", "make", "gymnax")),
        (["--env", "corridors/corridor"], ("corridors/corridor", "gymnax")),
        (["--env", TASK, "--agent", "sac"], ("sac", "continuous")),
        (["--replay", "recent_errers"], ("--replay", "recent_errers", "uniform", "per", "rank")),
        (["--replay", "mypackage.none"], ("--replay", "mypackage.none", "module")),
        (["--replay", "broken"], ("--replay", "broken", "ZeroDivisionError")),
        (["--replay", "leaving"], ("--replay", "leaving", "SystemExit")),
        (["--replay", "lacking"], ("--replay", "lacking", "not_there")),
        (["--replay", "dataclasses"], ("--replay", "dataclasses", "uniform", "per", "rank")),
        (["--replay", NAME, "--replay.half-life", "0"], ("--replay.half-life", "0.0")),
    ],
)
def test_invalid_custom_modules_are_refused(words, parts, tmp_path, monkeypatch, capsys):
    for name, text in {
        "nothing": "def make(name, config): return None\n",
        "broken": "1 / 0\n",
        "lacking": "import not_there\n",
        "leaving": "import sys\nsys.exit(0)\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert_names(error_of(capsys, train.main, words), *parts)


def fails(case):
    raise AssertionError("7 is wrong")


def raises(case):
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("law", "parts"),
    [(fails, ("fails", "7")), (raises, ("raises", "ZeroDivisionError", "division"))],
)
def test_check_method_names_the_broken_law(law, parts, monkeypatch):
    monkeypatch.setattr(testing, "CHECKS", (lambda case: None, law))
    with refused(*parts, error=AssertionError) as caught:
        testing.check_method(METHODS["uniform"].config(), METHODS["uniform"].method)
    assert caught.value.__cause__ is not None


def test_check_config_rejects_undeclared_options():
    @dataclasses.dataclass(frozen=True)
    class Bare:
        alpha: float = 0.5

    with refused("Bare", "jaxreplay.option.Config", error=AssertionError):
        testing.check_config(Bare())

    @dataclasses.dataclass(frozen=True)
    class Undeclared(Config):
        alpha: float = 0.5

    with refused("alpha", "option(", error=AssertionError):
        testing.check_config(Undeclared())


def test_missing_fields_are_refused_by_init():
    sampler = METHODS["ero"].method().sampler
    replay = Replay(sampler, capacity=8, batch_size=2)
    with refused("reward", "Transition"):
        replay.init(jax.random.key(0), testing.EXAMPLE._replace(reward=None))


def test_built_in_methods_may_be_replaced_explicitly():
    config, method, *_ = METHODS["uniform"]
    with refused("per", "replace=True"):
        methods.register("per", config, method)
    methods.register("per", config, method, replace=True)
    assert METHODS["per"].config is config
