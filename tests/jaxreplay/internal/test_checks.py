"""Bounds: what lies within, and how they are told."""

import math

import jax
import jax.numpy as jnp
import pytest

from jaxreplay._internal.checks import Bounds, check_choice

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("bounds", "within", "beyond", "demand", "inequality"),
    [
        (Bounds(above=0), [1e-9, 3], [0, -1, NAN], "it must be positive", "x>0"),
        (Bounds(at_least=0), [0, 0.5], [-1e-9, NAN], "it must not be negative", "x>=0"),
        (Bounds(at_least=2), [2, 9], [1, NAN], "it must be at least 2", "x>=2"),
        (Bounds(above=2), [2.1], [2], "it must be above 2", "x>2"),
        (Bounds(at_most=3), [3, -9], [3.1, NAN], "it must be at most 3", "x<=3"),
        (Bounds(below=3), [2.9], [3], "it must be below 3", "x<3"),
        (Bounds(at_least=0, at_most=1), [0, 1], [-0.1, 1.1], "it must lie in [0, 1]", "0<=x<=1"),
        (Bounds(above=0, below=1), [0.5], [0, 1], "it must lie in (0, 1)", "0<x<1"),
        (Bounds(above=0, at_most=1), [1], [0, 2], "it must lie in (0, 1]", "0<x<=1"),
        (Bounds(), [-5, 0, 5], [NAN], "it must be a number", "x"),
        (Bounds(), [], [INF, -INF], "it must be finite", "x"),
        (Bounds(above=0), [], [INF], "it must be finite", "x>0"),
        (Bounds(above=0, finite=False), [INF], [-INF, NAN], "it must be positive", "x>0"),
    ],
)
def test_bounds(bounds, within, beyond, demand, inequality):
    for value in within:
        bounds.check("alpha", value)
    for value in beyond:
        with pytest.raises(ValueError) as refused:
            bounds.check("alpha", value, ", or none")
        assert str(refused.value) == f"alpha is {value}: {demand}, or none"
    assert bounds.inequality("x") == inequality


def test_choices():
    check_choice("twin", "own", ("own", "max"))
    with pytest.raises(ValueError, match=r"^twin is 'min': use one of own, max$"):
        check_choice("twin", "min", ("own", "max"))


def test_what_is_not_known_yet_is_left_to_who_calls_the_program():
    def halved(value):
        Bounds(above=0).check("value", value)
        return value / 2

    assert jax.jit(halved)(-1.0) == -0.5
    with pytest.raises(ValueError, match="value is -1"):
        halved(jnp.float32(-1.0))
