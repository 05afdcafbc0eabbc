"""A spinner while programs are compiled, on a terminal alone."""

import jax
import jax.numpy as jnp
import pytest

from experiments.runs.waiting import waiting


def compiles() -> None:
    with waiting("per: compiling the loop", "per: training"):
        jax.jit(lambda x: x + 1)(jnp.ones(3))
        print("a result")


def test_it_says_what_is_waited_for(monkeypatch, capsys):
    for name in ("TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.setenv(name, "1")
    compiles()
    said = capsys.readouterr()
    assert "per: compiling the loop 0:00:00" in said.err  # the first picture
    assert "per: training 0:00:0" in said.err  # the last, when JAX has compiled
    assert said.out == "a result\n"


def test_without_a_terminal_nothing_is_shown(capsys):
    compiles()
    assert capsys.readouterr() == ("a result\n", "")


def test_what_goes_wrong_meanwhile_goes_on(monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with pytest.raises(ValueError, match="gone"), waiting("x"):
        raise ValueError("gone")
    with waiting("x"):  # the one before has ended
        pass
