"""Methods, agents and environments in modules outside of this repository."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments import compare, study, sweep, train, watch
from experiments.cli.shared import labelled
from experiments.environments import registry as environments
from experiments.report import __main__ as report
from experiments.runs import outside, registry
from experiments.runs.run_config import defaults
from jaxreplay import Replay, Sampler, methods, testing
from jaxreplay.methods import METHODS, proportional, uniform
from jaxreplay.methods import _registry as replay_registry
from jaxreplay.option import Config
from tests.refusals import assert_names, refused

FOLDER = Path(__file__).parent / "outside"
NAME = "recent_errors"
TINY = [
    "--env", "gymnax/CartPole-v1", "--seeds", "1", "--steps", "300", "--warmup", "100",
    "--eval-every", "100", "--eval-episodes", "2", "--env.max-steps", "30", "--agent.hidden", "16",
    "--figures", "false", "--inspect", "0",
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


def test_custom_method_keeps_the_contract():
    assert outside.load_method(NAME)
    entry = METHODS[NAME]
    testing.check_method(entry.config(), entry.method)


def test_custom_method_with_an_array_of_its_own_keeps_the_contract():
    outside.load_method("seldom")
    testing.check_method(METHODS["seldom"].config(), METHODS["seldom"].method)


@pytest.mark.parametrize("seeds", [None, 3], ids=["alone", "vmapped"])
def test_custom_array_is_updated_in_place(seeds):
    outside.load_method("seldom")
    sampler = METHODS["seldom"].method(METHODS["seldom"].config()).sampler
    replay = Replay(sampler, capacity=4096, batch_size=32)

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
    outside.load_method("seldom")
    case = testing.Case(METHODS["seldom"].method(METHODS["seldom"].config()))
    state = case.full
    batch = case.sample(state, jax.random.key(0))
    state = case.replay.update(state, batch)
    drawn = np.bincount(np.asarray(batch.indices), minlength=state.sampler.counts.size)
    np.testing.assert_array_equal(state.sampler.counts, drawn)
    again = case.sample(state, jax.random.key(1))
    assert state.sampler.counts[again.indices].mean() < drawn[: int(state.ring.capacity)].mean()


def test_contract_holds_with_custom_transitions():
    images = np.zeros((4, 4, 2), np.uint8)
    example = testing.EXAMPLE._replace(obs=images, next_obs=images, action=np.zeros(3, np.float32))
    entry = METHODS["uniform"]
    testing.check_method(entry.config(), entry.method, example=example)


def test_custom_method_has_priorities_of_error_times_recency():
    outside.load_method(NAME)
    config = METHODS[NAME].config(alpha=1.0, half_life=0.5)
    case = testing.Case(METHODS[NAME].method(config))
    state = case.full
    batch = case.sample(state, jax.random.key(0))
    slots = jnp.arange(testing.BATCH)
    batch = batch._replace(indices=slots, version=state.ring.steps_added - 11 + slots // testing.E)
    state = case.replay.update(state, batch, td_error=jnp.full(testing.BATCH, -2.0))
    age = 11 - np.arange(testing.BATCH) // testing.E  # age in 12 rows; the half-life is 6
    leaves = state.sampler.tree.nodes[: testing.BATCH]
    np.testing.assert_allclose(leaves, 2.0 * 0.5 ** (age / 6), rtol=1e-5)


def test_custom_method_trains_and_resumes_where_named_again(tmp_path, capsys):
    out = tmp_path / "run"
    options = ["--replay", NAME, "--replay.half-life", "0.25", *TINY]
    assert train.main([*options, "--out", str(out)]) == 0
    saved = json.loads((out / "config.json").read_text())
    assert saved["replay"] == NAME and saved["replay_options"]["half_life"] == 0.25
    assert train.main(["--resume", str(out), "--replay", NAME]) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit):
        train.main([*options, "--replay.half-life", "0", "--out", str(tmp_path / "bad")])
    assert_names(capsys.readouterr().err, "--replay.half-life", "0.0")
    assert watch.main([str(out), "--replay", NAME, "--max-steps", "2"]) == 0


def test_run_folders_do_not_import_modules(tmp_path, capsys):
    config = defaults("gymnax/CartPole-v1", "dqn", "uniform").to_json() | {"replay": NAME}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SystemExit):
        train.main(["--resume", str(tmp_path)])
    assert_names(capsys.readouterr().err, tmp_path, f"--replay {NAME}")
    assert NAME not in sys.modules


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
        "--replays", "uniform", f"mine={NAME}", "--mine.alpha", "0.5", *TINY, "--seeds", "2",
        "--control", "false", "--report", "false",
    ]  # fmt: skip
    assert compare.main([*options, "--out", str(out)]) == 0
    assert set(pd.read_csv(out / "study.csv.gz")["replay"]) == {"uniform", "mine"}
    assert report.main([str(out), "--replay", NAME]) == 0
    page = (out / "report.html").read_text()
    assert f"experiments.study study.json --replay {NAME} --out" in page
    assert study.main([str(out / "study.json"), "--replay", NAME, "--dry-run"]) == 0


def test_comparisons_label_modules_by_their_last_name(tmp_path, monkeypatch):
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mine.py").write_text((FOLDER / f"{NAME}.py").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    assert labelled("mypackage.mine") == ("mine", "mypackage.mine")
    assert "mypackage.mine" in METHODS


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("recent_errers", ("uniform", "per", "rank")),
        ("mypackage.none", ("module",)),
        ("broken", ("ZeroDivisionError",)),
        ("leaving", ("SystemExit",)),
        ("lacking", ("not_there",)),
        ("dataclasses", ("uniform", "per", "rank")),
    ],
)
def test_invalid_methods_are_refused(text, parts, tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "lacking.py").write_text("import not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(SystemExit) as stop:
        train.main(["--replay", text])
    assert stop.value.code == 2
    assert_names(" ".join(capsys.readouterr().err.split()), "--replay", text, *parts)


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


AGENT = """
from agents.dqn import DQNConfig as config
from agents.dqn import dqn as agent
from experiments.training.config import ReplaySizes
from agents.types import Offers

ACTIONS, OFFERS = "discrete", Offers(frozenset({"td_error"}))
SIZES = ReplaySizes(batch_size=16)
"""


def test_agents_may_be_custom_modules(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_agent.py").write_text(AGENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert train.main(["--agent", "my_agent", *TINY, "--out", str(tmp_path / "run")]) == 0
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["agent"] == "my_agent" and saved["sizes"]["batch_size"] == 16
    capsys.readouterr()
    with pytest.raises(SystemExit):
        train.main(["--agent", "my_agent", "--replay", "ners"])
    assert_names(capsys.readouterr().err, "ners", "target", "my_agent")


TASKS = """
import jax.numpy as jnp
from agents.types import Discrete
from experiments.environments.episodes import make_episodic

def make(name, config):
    if name == "none":
        return None
    if name != "corridor":
        raise ValueError(f"there is no {name}: use corridor")
    def reset(key):
        return jnp.zeros((), jnp.int32), jnp.zeros(1)
    def step(key, place, action):
        place = place + jnp.where(action == 1, 1, 0)
        return place, place[None] / 5.0, jnp.where(place == 5, 1.0, 0.0), place == 5
    return make_episodic(name, reset, step, Discrete(2), config.max_steps or 20, config)
"""


def test_environments_may_be_custom_modules(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    out, options = tmp_path / "run", ["--agent", "dqn", "--env", "my_tasks/corridor", *TINY[2:]]
    assert train.main([*options, "--env.sticky", "0.1", "--out", str(out)]) == 0
    saved = json.loads((out / "config.json").read_text())
    assert (saved["env"], saved["env_options"]["sticky"]) == ("my_tasks/corridor", 0.1)
    assert environments.make("my_tasks/corridor").name == "my_tasks/corridor"
    assert train.main(["--resume", str(out), "--env", "my_tasks/corridor"]) == 0
    del environments._families["my_tasks"]
    del sys.modules["my_tasks"]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        train.main(["--resume", str(out)])
    assert_names(capsys.readouterr().err, out, "--env my_tasks/corridor")
    assert "my_tasks" not in sys.modules


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--env", "my_tasks/hall"], ("hall", "corridor")),
        (["--env", "my_tasks/none"], ("my_tasks.make", "NoneType", "make_episodic")),
        (["--env", "dataclasses/corridor"], ("dataclasses", "make", "gymnax")),
        (["--env", "my_task/corridor"], ("my_task/corridor", "gymnax")),
        (["--env", "my_tasks/corridor", "--agent", "sac"], ("sac", "continuous")),
    ],
)
def test_invalid_custom_environments_are_refused(words, parts, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        train.main(words)
    assert stop.value.code == 2
    assert_names(" ".join(capsys.readouterr().err.split()), *parts)


def test_check_method_names_the_broken_law():
    entry = METHODS["per"]

    class Wrong(proportional.Proportional):
        def probability(self, state, ring, slots, batch_size):
            return Sampler.probability(self, state, ring, slots, batch_size)

    def method(config):
        made = entry.method(config)
        return made._replace(sampler=Wrong(made.sampler.leaf, made.sampler.weight))

    with pytest.raises(AssertionError, match="draws_follow_the_probabilities"):
        testing.check_method(entry.config(alpha=1.0), method)


@pytest.mark.parametrize("initial", ["max", "td"])
def test_check_method_detects_priorities_from_signed_errors(initial):
    def leaf(feedback, slots, ring):
        return feedback["td_error"]

    def method(config):
        sampler = proportional.Proportional(leaf, initial=initial)
        return METHODS["per"].method()._replace(sampler=sampler)

    with refused("finite_feedback_of_either_sign_is_kept", error=AssertionError):
        testing.check_method(METHODS["uniform"].config(), method)


def test_check_method_names_the_law_that_raises():
    class Broken(uniform.Uniform):
        def update(self, state, ring, sample, **feedback):
            return 1 // 0

    def method(config):
        return METHODS["uniform"].method(config)._replace(sampler=Broken())

    with refused("ZeroDivisionError", error=AssertionError) as caught:
        testing.check_method(METHODS["uniform"].config(), method)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert any(law.__name__ in str(caught.value) for law in testing.CHECKS)


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
