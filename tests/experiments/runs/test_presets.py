"""Presets: other defaults, which the command line shows, overrides and stores."""

import dataclasses
import itertools
import json
from unittest import mock

import pytest

from experiments import compare, study, train
from experiments.runs import presets, run
from experiments.runs.presets import PRESETS
from experiments.runs.registry import AGENTS
from experiments.runs.run_config import RunConfig, defaults
from experiments.statistics import tables
from jaxreplay.methods import METHODS
from tests.refusals import assert_names

CARTPOLE, PENDULUM = "gymnax/CartPole-v1", "gymnax/Pendulum-v1"


def refusal(capsys, command, *options):
    with pytest.raises(SystemExit) as exit_:
        command(list(options))
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error


@pytest.mark.parametrize("name", PRESETS)
def test_presets_set_options_that_there_are(name):
    preset = PRESETS[name]
    for agent, replay in itertools.product(preset.agents, preset.replays):
        env = CARTPOLE if AGENTS[agent].actions == "discrete" else PENDULUM
        config = defaults(env, agent, replay, name)
        assert config == presets.apply(name, defaults(env, agent, replay))
        assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    for line in (preset.about, *preset.differs):
        assert line and "\n" not in line
    assert all(sentence.endswith(".") for sentence in preset.differs)


def test_replay_options_are_set_where_the_method_has_them_all():
    for name in ("uniform", "per", "rank", "pser", "ero", "ners"):
        plain = METHODS[name].config()
        options = defaults(CARTPOLE, "rainbow", name, "canonical").replay_options
        changes = {"alpha": 0.5} if hasattr(plain, "alpha") else {}
        if hasattr(plain, "beta_end"):
            changes |= {"beta": 0.4, "beta_end": 1.0}
        assert options == dataclasses.replace(plain, **changes)
    # beta goes with the schedule; a method that holds it still keeps its own.
    assert defaults(CARTPOLE, "rainbow", "pser", "canonical").replay_options.beta == 0.5


def test_a_preset_of_another_agent_is_refused(capsys):
    error = refusal(capsys, train.main, "--agent", "dqn", "--preset", "canonical")
    others = ("per_proportional", "per_rank", "lap_atari", "pser")
    assert_names(error, "canonical", "dqn", *others, "--agent rainbow", "--preset")
    options = ("--agent", "td3", "--env", "gymnax/Pendulum-v1", "--preset", "data_efficient")
    error = refusal(capsys, compare.main, *options)
    assert_names(error, "data_efficient", "td3", "lap_mujoco", "ners_td3", "--agent rainbow")
    error = refusal(capsys, train.main, "--agent", "rainbow", "--preset", "canonicle")
    assert_names(error, "--preset", "canonicle", *PRESETS)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            ("--preset", "lap_atari", "--env", PENDULUM),
            ("lap_atari", "discrete", PENDULUM, "--env atari/Breakout", "--preset"),
        ),
        (
            ("--preset", "data_efficient", "--env", PENDULUM),
            ("data_efficient", "discrete", PENDULUM, "--env atari/MsPacman", "--preset"),
        ),
        (
            ("--preset", "lap_mujoco", "--env", CARTPOLE),
            ("lap_mujoco", "continuous", CARTPOLE, "--env gymnasium/HalfCheetah-v5", "--preset"),
        ),
        (
            ("--preset", "lap_mujoco", "--agent", "naf"),
            ("lap_mujoco", "td3", "sac", "naf", "refer_naf", "--agent td3", "--preset"),
        ),
        (("--preset", "refer_racer", "--replay", "per"), ("racer", "returns", "per", "refer")),
        (("--preset", "lap_atari", "--env", CARTPOLE), ("nature", "(4,)", "auto")),
    ],
)
def test_a_preset_that_does_not_fit_is_refused(options, parts, capsys, tmp_path):
    out = tmp_path / "out"
    assert_names(refusal(capsys, train.main, *options, "--out", str(out)), *parts)
    assert not out.exists()


@pytest.fixture
def executed(monkeypatch):
    """The configurations of runs, which do not run."""
    configs = []
    monkeypatch.setattr(run, "execute", lambda config, *_, **__: configs.append(config))
    monkeypatch.setattr(tables, "table", mock.Mock())
    monkeypatch.setattr(
        study, "_run", lambda asked, *_: configs.extend(own for own in asked.bases.values())
    )
    return configs


def test_a_preset_brings_names_unless_they_are_given(executed):
    for given, env, agent, replay in (
        (["--preset", "lap_atari"], "atari/Breakout", "dqn", "lap"),
        (["--preset", "lap_mujoco"], "gymnasium/HalfCheetah-v5", "td3", "lap"),
        (["--preset", "lap_mujoco", "--agent", "sac", "--env", PENDULUM], PENDULUM, "sac", "lap"),
        (["--preset", "per_rank", "--replay", "uniform"], "atari/Breakout", "dqn", "uniform"),
        (["--preset", "per_rank", "--replay", "ere"], "atari/Breakout", "dqn", "ere"),
        (["--preset", "ners_sac"], "sparse_pendulum/Pendulum-v0", "sac", "ners"),
        (["--preset", "refer_ppo"], "gymnasium/HalfCheetah-v5", "ppo", "latest"),
        ([], CARTPOLE, "dqn", "uniform"),
    ):
        train.main(given)
        assert executed.pop() == defaults(env, agent, replay, given[1] if given else None)
    assert defaults("atari/Pong", "dqn", "lap", "lap_atari").env_options.protocol == "lap"


def test_names_without_a_preset_are_the_commands_own():
    assert presets.names(None) == (CARTPOLE, "dqn", "uniform", ("uniform", "per", "lap", "pal"))
    brought = ("atari/Breakout", "rainbow", "per", ("per", "uniform"))
    assert presets.names("canonical") == brought
    assert presets.names("refer_racer").replays == ("refer",)


def test_options_that_are_given_win(executed, tmp_path):
    given = [
        "--env", CARTPOLE, "--agent", "rainbow", "--preset", "data_efficient",
        "--agent.network", "mlp",
        "--agent.hidden", "8", "--steps", "5000", "--out", str(tmp_path),
    ]  # fmt: skip
    preset = defaults(CARTPOLE, "rainbow", "per", "data_efficient")
    expected = dataclasses.replace(
        preset,
        loop=dataclasses.replace(preset.loop, steps=5000),
        agent_options=dataclasses.replace(preset.agent_options, network="mlp", hidden=(8,)),
        replay_options=dataclasses.replace(preset.replay_options, alpha=0.7),
    )
    train.main([*given, "--replay", "per", "--replay.alpha", "0.7"])
    compare.main([*given, "--replays", "x=per", "uniform", "--x.alpha", "0.7"])
    assert executed[:2] == [expected, expected]
    assert (executed[2].replay, executed[2].loop) == ("uniform", expected.loop)


def test_a_run_goes_on_without_the_preset(executed, tmp_path, capsys):
    config = defaults(CARTPOLE, "rainbow", "per", "data_efficient")
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    train.main(["--resume", str(tmp_path)])
    assert executed == [config]
    capsys.readouterr()
    error = refusal(capsys, train.main, "--resume", str(tmp_path), "--preset", "data_efficient")
    assert_names(error, "--resume", "--preset")


def default_of(text, option):
    """Return an option's default in a help text, with its source."""
    _, explained = f" {text}".split(f"\n  {option} ")
    return " ".join(explained.split()).partition("[default ")[2].partition("]")[0]


def test_help_shows_the_preset_s_defaults_and_no_source_of_others(capsys):
    for command, replay, prefix in (
        (train.main, "--replay", "--replay"),
        (compare.main, "--replays", "--per"),
    ):
        with pytest.raises(SystemExit) as exit_:
            names = ["--agent", "rainbow", "--preset", "data_efficient", replay, "per"]
            command([*names, "--help", "all"])
        assert exit_.value.code == 0
        text = capsys.readouterr().out
        assert_names(text, "--preset NAME", "--list")
        assert default_of(text, "--n-step") == "20"
        assert default_of(text, f"{prefix}.alpha") == "0.5"  # PER's own is 0.6, from its paper
        assert default_of(text, f"{prefix}.beta") == "0.4; Schaul et al. 2016, Tab. 3"


def test_help_shows_the_names_that_a_preset_brings(capsys):
    with pytest.raises(SystemExit):
        train.main(["--preset", "ners_td3", "--help"])
    text = capsys.readouterr().out
    assert default_of(text, "--agent") == "td3"
    assert default_of(text, "--env") == "sparse_pendulum/Pendulum-v0"
    assert default_of(text, "--replay") == "ners"


def test_list_names_presets(capsys):
    assert train.main(["--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["presets"]
    assert listed["canonical"]["agents"] == ["rainbow"] and set(listed) == set(PRESETS)
    assert listed["refer_naf"]["replays"] == ["refer", "uniform", "rank"]
    assert train.main(["--list"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, preset in PRESETS.items():
        assert f"{name}: {preset.about}" in text
        assert all(f" - {sentence}" in text for sentence in preset.differs)
