"""Compatibility of agents, methods and tasks, and registration of new ones."""

import re

import pytest

from agents.types import Continuous, Discrete
from experiments import train
from experiments.runs import registry
from experiments.runs.registry import AGENTS, check_fit
from jaxreplay import methods
from jaxreplay.methods import METHODS, refer
from tests.refusals import refused

CARTPOLE, PENDULUM = "gymnax/CartPole-v1", "gymnax/Pendulum-v1"
OF_SCALARS = ("uniform", "per", "rank", "pser", "ere", "ero", "ners")


def test_td_error_methods_fit_every_agent_with_a_scalar_error():
    for agent, environment in (("dqn", CARTPOLE), ("td3", PENDULUM)):
        for replay in METHODS:
            special = ("refer", "latest", "her", "sequences", "slices", "uper")
            if replay not in special and (agent, replay) != ("td3", "eper"):
                check_fit(agent, replay, environment)
    check_fit("ppo", "latest", PENDULUM)
    check_fit("pqn", "latest", CARTPOLE)


def test_hindsight_fits_tasks_with_goals_only():
    check_fit("dqn", "her", "goals/BitFlip-15")
    check_fit("td3", "her", "goals/PointReach")
    for agent, environment, other in (
        ("dqn", CARTPOLE, "goals/BitFlip-15"),
        ("sac", "gymnasium/Hopper-v5", "goals/PointReach"),
    ):
        with refused("her", environment, other):
            check_fit(agent, "her", environment)


@pytest.mark.parametrize(
    ("agent", "replay", "environment", "parts"),
    [
        ("dqn", "refer", CARTPOLE, ("refer", "log_ratio", "dqn")),
        ("td3", "refer", PENDULUM, ("refer", "log_ratio", "td3")),
        ("ppo", "refer", PENDULUM, ("ppo", "refer", "latest")),
        ("pqn", "per", CARTPOLE, ("pqn", "per", "latest")),
        ("sac", "latest", PENDULUM, ("latest", "sac", "windows")),
        ("racer", "per", PENDULUM, ("racer", "returns", "per", "refer")),
        ("rainbow", "lap", CARTPOLE, ("lap", "rainbow", *OF_SCALARS)),
        ("rainbow", "pal", CARTPOLE, ("pal", "rainbow", *OF_SCALARS)),
        ("sac", "per", CARTPOLE, ("sac", "continuous", CARTPOLE)),
    ],
)
def test_what_does_not_fit_is_refused(agent, replay, environment, parts):
    with refused(*parts):
        check_fit(agent, replay, environment)


def test_objectives_and_returns_are_validated_on_construction():
    for agent, space in (("dqn", Discrete(2)), ("td3", Continuous(1))):
        with refused(agent.upper(), "log_ratio"):
            AGENTS[agent].make(AGENTS[agent].config(), space, refer.method().objective)
    assert registry.replay_options("racer", "refer").returns
    assert not registry.replay_options("ddpg", "refer").returns
    with refused("racer", "returns", "refer"):
        registry.check_made("racer", "refer", refer.method(refer.ReFERConfig(returns=False)))


@pytest.mark.parametrize("replay", ["lap", "pal"])
def test_defaults_follow_the_kind_of_actions(replay, capsys):
    """Fujimoto et al. 2020, Tab. 6 and 7."""
    for agent, expected in (("dqn", (0.6, 0.01)), ("td3", (0.4, 1.0)), ("sac", (0.4, 1.0))):
        options = registry.replay_options(agent, replay)
        assert (options.alpha, options.kappa) == expected
    for name in METHODS.keys() - {"lap", "pal", "faded", "la3p", "sil"}:
        assert METHODS[name].defaults("discrete") == METHODS[name].defaults("continuous")
    assert METHODS[replay].config() == METHODS[replay].defaults("continuous")
    for names, kappa in (((), "0.01"), (("--agent", "td3", "--env", PENDULUM), "1.0")):
        with pytest.raises(SystemExit):
            train.main([*names, "--replay", replay, "--help", "replay"])
        text = " ".join(capsys.readouterr().out.split())
        explained = text.rpartition("--replay.kappa ")[2]
        assert explained.partition("[default ")[2].startswith(kappa)


@pytest.mark.parametrize("name", ["", 3, None, "two words", "-x", "a=b", "a,b", "a\n", "\x1b[31m"])
def test_invalid_names_are_refused(name):
    entry, agent = METHODS["per"], registry.AGENTS["dqn"]
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        methods.register(name, entry.config, entry.method)
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        registry.register_agent(name, agent)
    assert name not in METHODS and name not in registry.AGENTS


def test_invalid_entries_are_refused():
    agent, entry = registry.AGENTS["dqn"], METHODS["per"]
    for changes in ({"make": None}, {"actions": "both"}, {"offers": 3}, {"loop": {}}, {"sizes": 3}):
        with refused("odd"):
            registry.register_agent("odd", agent._replace(**changes))
    with refused("odd"):
        registry.register_agent("odd", entry)
    with refused("odd"):
        methods.register("odd", entry.config, 3)
    with refused("replace", "no", "true", "false"):
        methods.register("odd", entry.config, entry.method, replace="no")
    for discrete, parts in (
        ({"kapa": 0.01}, ("LAPConfig", "kapa")), ({"kappa": 0.0}, ("kappa", "0.0")),
        (0.01, ("LAPConfig", "0.01")),
    ):  # fmt: skip
        with refused(*parts):
            methods.register("odd", METHODS["lap"].config, METHODS["lap"].method, discrete)
    assert "odd" not in METHODS and "odd" not in registry.AGENTS


def test_catalogue_lists_compatible_names():
    listed = registry.catalogue()
    assert "rainbow" not in listed["replays"]["lap"]["agents"]
    assert {*OF_SCALARS, "her"} <= set(listed["agents"]["rainbow"]["replays"])
    assert listed["replays"]["ners"]["needs"] == ["target", "td_error"]
    assert "brax/ant" in listed["agents"]["td3"]["environments"]
    assert "brax/ant" not in listed["agents"]["dqn"]["environments"]
