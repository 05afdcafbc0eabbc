"""Lists of names in columns."""

from experiments import environments
from experiments.cli.listing import WIDTH, listed
from experiments.runs import registry
from experiments.runs.presets import PRESETS
from jaxreplay.methods import METHODS
from tests.refusals import assert_names

TEXT = listed(registry.catalogue())
LINES = TEXT.splitlines()


def test_the_list_has_every_name():
    shown = [line for line in LINES if " -m pip install " not in line]  # has one line of any length
    assert max(map(len, shown)) <= WIDTH
    words = set(TEXT.replace(":", " ").split())
    assert {*registry.AGENTS, *METHODS, *environments.names(), *PRESETS} <= words


def test_agents_and_methods_that_fit_are_marked():
    blocks = [part.splitlines() for part in TEXT.split("\n\n")]
    agents, fits = ([line.split() for line in block[1:]] for block in blocks[:2])
    assert dict(agents[1:]) == {name: entry.actions for name, entry in registry.AGENTS.items()}
    assert fits[0] == ["replay", *registry.AGENTS]
    assert [row[0] for row in fits[1:]] == list(METHODS)
    for replay, *marks in fits[1:]:
        found = {name for name, mark in zip(fits[0][1:], marks, strict=True) if mark == "x"}
        assert found == {name for name in registry.AGENTS if registry.feeds(name, replay)}


def test_environments_are_below_their_kind():
    for name, kind in (
        ("gymnax/Pendulum-v1", ("gymnax", "continuous")),
        ("gymnax/CartPole-v1", ("gymnax", "discrete")),
        ("atari/Pong", ("atari", "discrete")),
    ):
        (block,) = [part for part in TEXT.split("\n\n") if name in part.split() and "--env" in
                    part.splitlines()[0]]  # fmt: skip
        assert_names(block.splitlines()[0], *kind)


def test_a_missing_package_is_named_once_for_a_family():
    """Its install command has a line of its own of any length, so that it can be copied."""
    command = f"{'/a long folder' * 10}/python -m pip install -e '.[x]'"
    catalogue = registry.catalogue()
    for entry in catalogue["environments"].values():
        entry["missing"] = None
    for name in ("gymnax/CartPole-v1", "gymnax/Acrobot-v1"):
        catalogue["environments"][name]["missing"] = f"{name} needs x: {command}"
    lines = listed(catalogue).splitlines()
    assert lines.count(command) == 1
    said = lines[lines.index(command) - 1]
    assert_names(said, "gymnax", "x")
    assert "gymnax/" not in said
