"""Options: declarations, and configs made of them."""

import dataclasses
from typing import Literal

import pytest

from jaxreplay.methods import METHODS
from jaxreplay.option import Config, Declaration, check_class, option, options_of
from tests.refusals import refused

BETA = Declaration("exponent", "Tab. 3", at_least=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class Method(Config):
    beta: float = option(0.5, BETA, "Tab. 4")
    loss: Literal["mse", "l1"] = option("mse", "loss")
    clip: float | None = option(None, "limit", above=0, finite=False)
    hidden: tuple[int, ...] = option((8, 8), "sizes", at_least=1)
    inputs: tuple[Literal["obs", "time"], ...] | None = option(None, "what is seen")
    form: str = option("dg", "of the advantage", choices=("dg", "sg"))
    double: bool = option(True, "two")
    least: float = option(-1.0, "may be of either sign")
    turns: int = option(0, "the same, in whole numbers")
    internal: int = -3

    def check(self) -> None:
        if self.loss == "l1" and self.clip is None:
            raise ValueError("loss l1 needs a clip")


def test_options_of_lists_choices_types_and_defaults():
    found = {entry.name: entry for entry in options_of(Method)}
    names = ["beta", "loss", "clip", "hidden", "inputs", "form", "double", "least", "turns"]
    assert list(found) == names
    assert found["loss"].choices == ("mse", "l1") and found["loss"].kind is str
    assert found["form"].choices == ("dg", "sg")
    assert (found["clip"].kind, found["clip"].optional) == (float, True)
    assert (found["hidden"].kind, found["hidden"].many) == (int, True)
    inputs = found["inputs"]
    assert (inputs.choices, inputs.many, inputs.optional) == (("obs", "time"), True, True)


def test_a_shared_declaration_keeps_its_help_and_bounds():
    (beta, *_) = options_of(Method)
    assert (beta.default, beta.source, beta.help) == (0.5, "Tab. 4", "exponent")
    assert (beta.bounds.at_least, beta.bounds.at_most) == (0, 1)


def test_allowed_values_are_accepted():
    Method(beta=0.0, loss="l1", clip=float("inf"), hidden=(1,), inputs=("time",), form="sg")
    Method(least=-1e6, turns=1 - 2**31)
    assert Method() == Method(beta=0.5) and hash(Method()) == hash(Method())


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"beta": 1.5}, ("beta", "1.5", "[0, 1]")),
        ({"beta": float("nan")}, ("beta", "nan")),
        ({"beta": None}, ("beta",)),
        ({"clip": 0.0}, ("clip", "0.0", "none")),
        ({"loss": "l2"}, ("loss", "l2", "mse", "l1")),
        ({"form": "cubic"}, ("form", "cubic", "dg", "sg")),
        ({"hidden": ()}, ("hidden",)),
        ({"hidden": 8}, ("hidden", "8", "(8,)")),
        ({"hidden": (4, 2.5)}, ("hidden", "2.5")),
        ({"clip": "far"}, ("clip", "far", "none")),
        ({"beta": True}, ("beta", "True")),
        ({"least": 2e6}, ("least", "2000000.0", "1,000,000")),
        ({"least": -1e9}, ("least", "-1000000000.0", "1,000,000")),
        ({"turns": -(2**31)}, ("turns", "-2147483648", "2,147,483,647")),
        ({"double": 1}, ("double", "1")),
        ({"hidden": (4, 0)}, ("hidden", "0")),
        ({"inputs": ()}, ("inputs", "obs", "time", "none")),
        ({"inputs": ("obs", "age")}, ("inputs", "age", "obs", "time", "none")),
        ({"loss": "l1"}, ("loss", "l1", "clip")),
        ({"loss": "l1", "beta": -1}, ("beta", "-1", "[0, 1]")),  # `beta` is checked alone first
    ],
)
def test_values_out_of_range_are_refused(options, parts):
    with refused(*parts):
        Method(**options)
    with refused(*parts):
        dataclasses.replace(Method(), **options)


@dataclasses.dataclass(frozen=True)
class Scheduled(Config):
    rise: int | None = option(None, "steps", at_least=1, whole_run=True)
    fall: int | None = option(None, "steps", at_least=1, whole_run=True)
    limit: int | None = option(None, "steps, of something else", at_least=1)


def test_for_run_fills_open_horizons_with_the_steps_of_the_run():
    assert Scheduled().for_run(50) == Scheduled(rise=50, fall=50)
    assert Scheduled(fall=7).for_run(50) == Scheduled(rise=50, fall=7)
    assert Scheduled(fall=7).for_run(50).for_run(90) == Scheduled(rise=50, fall=7)
    assert Method().for_run(50) == Method()
    with refused("rise", "0"):
        Scheduled().for_run(0)


def test_for_run_fills_the_schedules_of_methods():
    found = {name: entry.config().for_run(50) for name, entry in METHODS.items()}
    filled = {
        name: {x for x, value in dataclasses.asdict(config).items() if value == 50}
        for name, config in found.items()
    }
    expected = {
        "per": {"beta_updates"}, "ners": {"beta_updates"}, "ere": {"eta_updates"},
        "rank": {"alpha_updates", "beta_updates"}, "relo": {"beta_updates"},
        "eper": {"beta_updates"}, "uper": {"beta_updates"},
        **{name: {"over_updates"} for name in ("her", "slices", "cer", "masked", "sil")},
        **{name: {"over_updates"} for name in ("refresh", "fresh")},
    }  # fmt: skip
    assert filled == {name: expected.get(name, set()) for name in METHODS}


@dataclasses.dataclass(frozen=True)
class Open(Config):
    rate: float


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (int, ("int", "jaxreplay.option.Config")),
        (3, ("3", "jaxreplay.option.Config")),
        (Open, ("rate", "Open")),
    ],
)
def test_check_class_refuses_other_objects_and_options_without_a_default(config, parts):
    check_class(Method)
    with refused(*parts):
        check_class(config)
