"""What fits what, and how the rest is refused."""

import re

import pytest

from agents.types import Continuous, Discrete
from experiments import train
from experiments.runs import registry
from experiments.runs.registry import AGENTS, check_fit
from jaxreplay import methods
from jaxreplay.methods import METHODS, refer
from tests.refusals import refused


def test_every_method_of_errors_fits_every_agent_with_a_scalar_error():
    for agent, environment in (("dqn", "gymnax/CartPole-v1"), ("td3", "gymnax/Pendulum-v1")):
        for replay in METHODS:
            if replay not in ("refer", "latest", "her"):
                check_fit(agent, replay, environment)


def test_hindsight_fits_tasks_with_goals_only():
    check_fit("dqn", "her", "goals/BitFlip-15")
    check_fit("td3", "her", "goals/PointReach")
    for agent, environment, other in (
        ("dqn", "gymnax/CartPole-v1", "goals/BitFlip-15"),
        ("sac", "gymnasium/Hopper-v5", "goals/PointReach"),
    ):
        with refused("her", environment, other):
            check_fit(agent, "her", environment)


@pytest.mark.parametrize("agent", ["td3", "dqn"])
def test_methods_that_need_a_density_refuse_agents_without_one(agent):
    environment = "gymnax/CartPole-v1" if agent == "dqn" else "gymnax/Pendulum-v1"
    with refused("refer", "log_ratio", agent):
        check_fit(agent, "refer", environment)
    space = Discrete(2) if agent == "dqn" else Continuous(1)
    with refused(agent.upper(), "log_ratio"):
        AGENTS[agent].make(AGENTS[agent].config(), space, refer.method().objective)


def test_on_policy_agents_and_their_replay_want_one_another():
    check_fit("ppo", "latest", "gymnax/Pendulum-v1")
    with refused("ppo", "refer", "latest"):
        check_fit("ppo", "refer", "gymnax/Pendulum-v1")
    with refused("latest", "sac", "windows"):
        check_fit("sac", "latest", "gymnax/Pendulum-v1")


def test_agents_that_need_returns_refuse_methods_without():
    with refused("racer", "returns", "per", "refer"):
        check_fit("racer", "per", "gymnax/Pendulum-v1")
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
    assert METHODS[replay].config() == METHODS[replay].defaults("continuous")
    for names, kappa in (((), "0.01"), (("--agent", "td3", "--env", "gymnax/Pendulum-v1"), "1.0")):
        with pytest.raises(SystemExit):
            train.main([*names, "--replay", replay, "--help", "replay"])
        text = " ".join(capsys.readouterr().out.split())
        explained = text.rpartition("--replay.kappa ")[2]
        assert explained.partition("[default ")[2].startswith(kappa)


def test_all_other_methods_have_one_default_for_both():
    for name, entry in METHODS.items():
        if name not in ("lap", "pal"):
            assert entry.defaults("discrete") == entry.defaults("continuous")


@pytest.mark.parametrize(
    ("discrete", "parts"),
    [
        ({"kapa": 0.01}, ("LAPConfig", "kapa")),
        ({"kappa": 0.0}, ("kappa", "0.0")),
        (0.01, ("LAPConfig", "0.01")),
    ],
)
def test_defaults_that_there_cannot_be_are_refused(discrete, parts):
    entry = METHODS["lap"]
    with refused(*parts):
        methods.register("other_lap", entry.config, entry.method, discrete)
    assert "other_lap" not in METHODS


@pytest.mark.parametrize("name", ["", 3, None, "two words", "-x", "a=b", "a,b", "a\n", "\x1b[31m"])
def test_names_that_no_command_line_could_have_are_refused(name):
    entry, agent = METHODS["per"], registry.AGENTS["dqn"]
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        methods.register(name, entry.config, entry.method)
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        registry.register_agent(name, agent)
    assert name not in METHODS and name not in registry.AGENTS


@pytest.mark.parametrize(
    "changes",
    [{"make": None}, {"actions": "both"}, {"offers": 3}, {"loop": {}}, {"sizes": None}],
    ids=lambda changes: next(iter(changes)),
)
def test_entries_that_make_nothing_are_refused(changes):
    with pytest.raises(ValueError, match="odd"):
        registry.register_agent("odd", registry.AGENTS["dqn"]._replace(**changes))
    with pytest.raises(ValueError, match="odd"):
        registry.register_agent("odd", METHODS["per"])
    with pytest.raises(ValueError, match="odd"):
        methods.register("odd", METHODS["per"].config, 3)
    with refused("replace", "no", "true", "false"):
        methods.register("odd", METHODS["per"].config, METHODS["per"].method, replace="no")
    assert "odd" not in METHODS and "odd" not in registry.AGENTS


@pytest.mark.parametrize("replay", ["lap", "pal"])
def test_methods_that_are_a_loss_of_a_scalar_error_need_one(replay):
    others = ("uniform", "per", "rank", "pser", "ere", "ero", "ners")
    with refused(replay, "rainbow", *others):
        check_fit("rainbow", replay, "gymnax/CartPole-v1")


def test_the_catalogue_says_so_too():
    listed = registry.catalogue()
    assert "rainbow" not in listed["replays"]["lap"]["agents"]
    assert listed["agents"]["rainbow"]["replays"] == [
        "uniform", "per", "rank", "pser", "ere", "ero", "ners", "windows", "her",
    ]  # fmt: skip
    assert listed["replays"]["ners"]["needs"] == ["target", "td_error"]


def test_actions_that_do_not_fit_are_refused():
    with refused("sac", "continuous", "gymnax/CartPole-v1"):
        check_fit("sac", "per", "gymnax/CartPole-v1")
