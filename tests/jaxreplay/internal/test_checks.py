"""Bounds and choices: accepted values, and error messages."""

import math

import jax
import jax.numpy as jnp
import pytest

from jaxreplay._internal.arguments import Bounds, check_choice
from tests.refusals import refused

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("bounds", "within", "beyond", "allowed", "inequality"),
    [
        (Bounds(above=0), [1e-9, 3], [0, -1, NAN], (), "x>0"),
        (Bounds(at_least=0), [0, 0.5], [-1e-9, NAN], (), "x>=0"),
        (Bounds(at_least=2), [2, 9], [1, NAN], ("2",), "x>=2"),
        (Bounds(above=2), [2.1], [2], ("2",), "x>2"),
        (Bounds(at_most=3), [3, -9], [3.1, NAN], ("3",), "x<=3"),
        (Bounds(below=3), [2.9], [3], ("3",), "x<3"),
        (Bounds(at_least=0, at_most=1), [0, 1], [-0.1, 1.1], ("[0, 1]",), "0<=x<=1"),
        (Bounds(above=0, below=1), [0.5], [0, 1], ("(0, 1)",), "0<x<1"),
        (Bounds(above=0, at_most=1), [1], [0, 2], ("(0, 1]",), "0<x<=1"),
        (Bounds(), [-5, 0, 5], [NAN], (), "x"),
        (Bounds(), [], [INF, -INF], (), "x"),
        (Bounds(above=0), [], [INF], (), "x>0"),
        (Bounds(above=0, finite=False), [INF], [-INF, NAN], (), "x>0"),
    ],
)
def test_bounds_accept_values_within_and_refuse_others(bounds, within, beyond, allowed, inequality):
    for value in within:
        bounds.check("alpha", value)
    for value in beyond:
        with refused("alpha", value, *allowed, "none"):
            bounds.check("alpha", value, ", or none")
    assert bounds.inequality("x") == inequality


def test_choices_refuse_other_values():
    check_choice("twin", "own", ("own", "max"))
    with refused("twin", "min", "own", "max"):
        check_choice("twin", "min", ("own", "max"))


def test_bounds_accept_traced_values():
    def halved(value):
        Bounds(above=0).check("value", value)
        return value / 2

    assert jax.jit(halved)(-1.0) == -0.5
    with refused("value", "-1.0"):
        halved(jnp.float32(-1.0))
