"""What runs once is compiled by an option of XLA where it has it, and without it elsewhere."""

import jax
import jax.numpy as jnp
import pytest

from experiments.training import once


@pytest.fixture
def asked_anew():
    once._options.cache_clear()
    yield
    once._options.cache_clear()


def test_xla_has_the_option(asked_anew):
    assert jax.default_backend() != "cpu" or once._options() == once._OPTIONS


def test_an_xla_without_the_option_compiles_without_it(asked_anew, monkeypatch):
    monkeypatch.setattr(once, "_OPTIONS", {"xla_of_another_version": True})
    double = once.jit_once(lambda x: 2 * x, donate_argnums=0)
    given = jnp.arange(3.0)
    assert double(given).tolist() == [0, 2, 4] and given.is_deleted()
