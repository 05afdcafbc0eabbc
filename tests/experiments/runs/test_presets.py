"""Presets: alternative defaults, which the command line shows, overrides and saves."""

import dataclasses
import json

import pytest

from experiments import compare, study, train
from experiments.runs import presets
from experiments.runs.presets import PRESETS
from experiments.runs.registry import AGENTS
from experiments.runs.run_config import PREFIXES, RunConfig, defaults
from experiments.studies import store
from jaxreplay.methods import METHODS
from tests.experiments import tiny
from tests.refusals import assert_names, refusal

CARTPOLE, PENDULUM = "gymnax/CartPole-v1", "gymnax/Pendulum-v1"
ENVIRONMENTS = {"discrete": "atari/Breakout", "continuous": PENDULUM}
ARMS = [
    (name, agent, replay)
    for name, preset in PRESETS.items()
    for agent in preset.agents
    for replay in preset.replays
]


def options_of(name, agent, replay):
    """Return the configuration of a preset, and all its options by name."""
    config = defaults(ENVIRONMENTS[AGENTS[agent].actions], agent, replay, name)
    return config, {
        f"{prefix}{option}": value
        for section, prefix in PREFIXES.items()
        for option, value in vars(getattr(config, section)).items()
    }


@pytest.mark.parametrize(("name", "agent", "replay"), ARMS)
def test_arms_of_presets_are_valid_and_saved(name, agent, replay):
    config, options = options_of(name, agent, replay)
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    preset = PRESETS[name]
    given = preset.loop | preset.sizes
    given |= {f"replay.{option}": value for option, value in preset.replays[replay].items()}
    agents = {**preset.agents[agent], **preset.agent_with.get(replay, {})}
    given |= {f"agent.{option}": value for option, value in agents.items()}
    assert {option: options[option] for option in given} == given


# fmt: off
VALUES = {  # from the papers, in agent steps of four frames and in updates
    ("canonical", "rainbow", "per"): {  # Hessel et al. 2018, Tab. 1
        "steps": 200_000_000 // 4, "warmup": 80_000 // 4, "n_step": 3, "learn_every": 4,
        "agent.target_every": 32_000 // 4 // 4, "agent.learning_rate": 0.00025 / 4,
        "replay.alpha": 0.5, "replay.beta": 0.4, "replay.beta_end": 1.0,
    },
    ("per_proportional", "dqn", "per"): {  # Schaul et al. 2016, Tab. 3
        "replay.alpha": 0.6, "replay.beta": 0.4, "replay.beta_end": 1.0,
        "agent.learning_rate": 0.00025 / 4, "agent.double": True,
    },
    ("per_rank", "dqn", "rank"): {"replay.alpha": 0.7, "replay.beta": 0.5},
    ("per_rank", "dqn", "uniform"): {"agent.learning_rate": 0.00025},
    ("lap_mujoco", "td3", "lap"): {  # Fujimoto et al. 2020, Tab. 6
        "replay.alpha": 0.4, "replay.kappa": 1.0, "batch_size": 256, "warmup": 25_000,
        "agent.policy_delay": 2, "agent.tau": 0.005,
    },
    ("pser", "dqn", "pser"): {  # Brittain et al. 2019, App. Tab. 2 to 4
        "replay.window": 5, "replay.rho": 0.4, "replay.eta": 0.7,
        "agent.epsilon_updates": 1_000_000 // 4, "agent.target_every": 10_000 // 4,
    },
    ("refer_racer", "racer", "refer"): {  # Novati & Koumoutsakos 2019, App. C and D
        "replay.clip": 4.0, "replay.anneal": 5e-7, "replay.target": 0.1, "capacity": 2**19,
    },
    ("ero", "ddpg", "ero"): {  # Zha et al. 2019, on OpenAI's baselines
        "steps": 500 * 20 * 100, "updates": 50, "agent.critic_weight_decay": 1e-2,
    },
    ("redq", "sac", "uniform"): {  # Chen et al. 2021, Tab. 1
        "updates": 20, "agent.critics": 10, "agent.target_subset": 2,
    },
}
# fmt: on


@pytest.mark.parametrize(("name", "agent", "replay"), VALUES)
def test_presets_have_values_of_their_papers(name, agent, replay):
    _, options = options_of(name, agent, replay)
    expected = VALUES[name, agent, replay]
    assert {option: options[option] for option in expected} == pytest.approx(expected)


def test_replay_options_apply_only_to_methods_with_all_of_them():
    for name in ("uniform", "per", "rank", "pser", "ero", "ners"):
        plain = METHODS[name].config()
        options = defaults(CARTPOLE, "rainbow", name, "canonical").replay_options
        changes = {"alpha": 0.5} if hasattr(plain, "alpha") else {}
        if hasattr(plain, "beta_end"):
            changes |= {"beta": 0.4, "beta_end": 1.0}
        assert options == dataclasses.replace(plain, **changes)
    # beta belongs to the schedule: methods with constant beta keep their default.
    assert defaults(CARTPOLE, "rainbow", "pser", "canonical").replay_options.beta == 0.5


REFUSALS = [
    (train, "--agent dqn --preset canonical",
     ("canonical", "dqn", "per_proportional", "per_rank", "lap_atari", "pser", "--agent rainbow",
      "--preset")),
    (compare, f"--agent td3 --env {PENDULUM} --preset data_efficient",
     ("data_efficient", "td3", "lap_mujoco", "ners_td3", "--agent rainbow")),
    (train, "--agent rainbow --preset canonicle", ("--preset", "canonicle", *PRESETS)),
    (train, f"--preset lap_atari --env {PENDULUM}",
     ("lap_atari", "discrete", PENDULUM, "--env atari/Breakout", "--preset")),
    (train, f"--preset lap_mujoco --env {CARTPOLE}",
     ("lap_mujoco", "continuous", CARTPOLE, "--env gymnasium/HalfCheetah-v5", "--preset")),
    (train, "--preset lap_mujoco --agent naf",
     ("lap_mujoco", "td3", "sac", "naf", "refer_naf", "--agent td3", "--preset")),
    (train, "--preset refer_racer --replay per", ("racer", "returns", "per", "refer")),
    (train, f"--preset lap_atari --env {CARTPOLE}", ("nature", "(4,)", "auto")),
    (train, f"--preset rlpd --env {PENDULUM}", ("rlpd", "--demos")),
]  # fmt: skip


@pytest.mark.parametrize(("command", "options", "parts"), REFUSALS)
def test_incompatible_presets_are_refused(command, options, parts, capsys, tmp_path):
    out = tmp_path / "out"
    assert_names(refusal(capsys, command.main, *options.split(), "--out", out), *parts)
    assert not out.exists()


@pytest.fixture
def executed(monkeypatch):
    """Return the configurations of runs without executing them."""
    configs = []
    monkeypatch.setattr(
        study, "_run", lambda asked, *_: configs.extend(own for own in asked.bases.values())
    )
    return configs


def test_presets_set_names_unless_given(executed):
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
    # Default methods of a comparison.
    assert presets.names(None).replays == ("uniform", "per", "lap", "pal")
    assert presets.names("canonical").replays == ("per", "uniform")


def test_given_options_override_presets(executed, tmp_path):
    given = [
        "--env", CARTPOLE, "--preset", "per_proportional", "--agent.network", "mlp",
        "--agent.hidden", "8", "--steps", "90000", "--out", str(tmp_path),
    ]  # fmt: skip
    preset = defaults(CARTPOLE, "dqn", "per", "per_proportional")
    expected = dataclasses.replace(
        preset,
        loop=dataclasses.replace(preset.loop, steps=90_000),
        agent_options=dataclasses.replace(preset.agent_options, network="mlp", hidden=(8,)),
        replay_options=dataclasses.replace(preset.replay_options, alpha=0.7),
    )
    train.main([*given, "--replay", "per", "--replay.alpha", "0.7"])
    compare.main([*given, "--replays", "x=per", "uniform", "--x.alpha", "0.7"])
    assert executed[:2] == [expected, dataclasses.replace(expected, seeds=10)]
    assert (executed[2].replay, executed[2].loop) == ("uniform", expected.loop)


def test_runs_resume_without_the_preset(executed, tmp_path, capsys):
    config = defaults(CARTPOLE, "rainbow", "per", "data_efficient")
    made = tiny.study_of(config)
    store.begin(tmp_path, made, made.points(), {}).write()
    train.main(["--resume", str(tmp_path)])
    assert executed == [config]
    capsys.readouterr()
    error = refusal(capsys, train.main, "--resume", str(tmp_path), "--preset", "data_efficient")
    assert_names(error, "--resume", "--preset")


def default_of(text, option):
    """Return the default of an option in a help text, with its source."""
    _, explained = f" {text}".split(f"\n  {option} ")
    return " ".join(explained.split()).partition("[default ")[2].partition("]")[0]


def test_help_shows_defaults_of_the_preset_with_its_source_only(capsys):
    with pytest.raises(SystemExit):
        words = "--agent rainbow --preset data_efficient --replays per --help all"
        compare.main(words.split())
    text = capsys.readouterr().out
    assert_names(text, "--preset NAME", "--list")
    assert default_of(text, "--n-step") == "20"
    assert default_of(text, "--per.alpha") == "0.5"  # the default of PER is 0.6
    assert default_of(text, "--per.beta") == "0.4; Schaul et al. 2016, Tab. 3"
    with pytest.raises(SystemExit):
        train.main(["--preset", "ners_td3", "--help"])
    text = capsys.readouterr().out
    for option, brought in (("agent", "td3"), ("env", "sparse_pendulum/Pendulum-v0")):
        assert default_of(text, f"--{option}") == brought


def test_list_names_presets(capsys):
    assert train.main(["--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["presets"]
    assert listed["canonical"]["agents"] == ["rainbow"] and set(listed) == set(PRESETS)
    assert listed["refer_naf"]["replays"] == ["refer", "uniform", "rank"]
