"""Options: what a declaration says, and what the base of all configs makes of it."""

import dataclasses
import inspect
import re
from typing import Literal

import pytest

from jaxreplay import methods
from jaxreplay.methods import METHODS
from jaxreplay.methods.lap import LAPConfig
from jaxreplay.methods.per import PERConfig
from jaxreplay.option import Config, check_class, option, options_of, override


@dataclasses.dataclass(frozen=True)
class Shared(Config):
    beta: float = option(0.4, "exponent", "Tab. 3", at_least=0, at_most=1)
    loss: Literal["mse", "l1"] = option("mse", "loss")


@dataclasses.dataclass(frozen=True)
class Method(Shared):
    beta: float = override(Shared, "beta", 0.5, "Tab. 4")
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


def test_what_is_declared_is_known_of_every_option():
    found = {entry.name: entry for entry in options_of(Method)}
    names = ["beta", "loss", "clip", "hidden", "inputs", "form", "double", "least", "turns"]
    assert list(found) == names
    assert found["loss"].choices == ("mse", "l1") and found["loss"].kind is str
    assert found["form"].choices == ("dg", "sg")
    assert (found["clip"].kind, found["clip"].optional) == (float, True)
    assert (found["hidden"].kind, found["hidden"].many) == (int, True)
    inputs = found["inputs"]
    assert (inputs.choices, inputs.many, inputs.optional) == (("obs", "time"), True, True)


def test_another_default_keeps_what_the_base_says():
    (base, *_), (own, *_) = options_of(Shared), options_of(Method)
    assert (own.default, own.source) == (0.5, "Tab. 4")
    assert own._replace(default=0.4, source="Tab. 3") == base
    assert (Shared().beta, Method().beta) == (0.4, 0.5)


def test_what_is_allowed_is_taken():
    Method(beta=0.0, loss="l1", clip=float("inf"), hidden=(1,), inputs=("time",), form="sg")
    Method(least=-1e6, turns=1 - 2**31)
    assert Method() == Method(beta=0.5) and hash(Method()) == hash(Method())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 1.5}, "beta is 1.5: it must lie in [0, 1]"),
        ({"beta": float("nan")}, "beta is nan: it must lie in [0, 1]"),
        ({"beta": None}, "beta is none: it needs a value"),
        ({"clip": 0.0}, "clip is 0.0: it must be positive, or none"),
        ({"loss": "l2"}, "loss is 'l2': use one of mse, l1"),
        ({"form": "cubic"}, "form is 'cubic': use one of dg, sg"),
        ({"hidden": ()}, "hidden is empty: give one or more"),
        ({"hidden": 8}, "hidden is 8: give a tuple, such as (8,)"),
        ({"hidden": (4, 2.5)}, "hidden is 2.5: it must be a whole number"),
        ({"clip": "far"}, "clip is 'far': it must be a number, or none"),
        ({"beta": True}, "beta is True: it must be a number"),
        ({"least": 2e6}, "least is 2000000.0: it must be at most 1,000,000 in size"),
        ({"least": -1e9}, "least is -1000000000.0: it must be at most 1,000,000 in size"),
        ({"turns": -(2**31)}, "turns is -2147483648: it must be at most 2,147,483,647 in size"),
        ({"double": 1}, "double is 1: it must be true or false"),
        ({"hidden": (4, 0)}, "hidden is 0: it must be at least 1"),
        ({"inputs": ()}, "inputs is empty: give one or more of obs, time, or none"),
        ({"inputs": ("obs", "age")}, "inputs is 'age': use one of obs, time, or none"),
        ({"loss": "l1"}, "loss l1 needs a clip"),
        ({"loss": "l1", "beta": -1}, "beta is -1: it must lie in [0, 1]"),  # alone comes first
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError) as refused:
        Method(**options)
    assert str(refused.value) == message
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(Method(), **options)


@dataclasses.dataclass(frozen=True)
class Open(Config):
    rate: float


@pytest.mark.parametrize(
    ("config", "message"),
    [(int, "int is no config"), (3, "3 is no config"), (Open, "option 'rate' of Open")],
)
def test_what_cannot_be_the_config_of_a_method_is_refused(config, message):
    check_class(Method)
    with pytest.raises(ValueError, match=message):
        check_class(config)


@pytest.mark.parametrize("name", [*METHODS, "sequences"])
def test_the_config_of_another_method_is_refused(name):
    module = getattr(methods, name)
    given = {"lap": LAPConfig(), "per": PERConfig(), "dict": {"alpha": 0.5}, "none": None}
    makers = [getattr(module, x, None) for x in ("sampler", "method", "objective")]
    for make in makers:
        if make is None or "config" not in inspect.signature(make).parameters:
            continue
        wanted = type(inspect.signature(make).parameters["config"].default)
        for config in [*given.values(), wanted]:
            if isinstance(config, wanted):
                continue
            kind = config if isinstance(config, type) else type(config)
            for call in (lambda: make(config), lambda: make(config=config)):
                with pytest.raises(ValueError, match=f"{kind.__name__}: .*{wanted.__name__}"):
                    call()
        make(wanted())
