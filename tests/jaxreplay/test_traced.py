"""Options that are inputs of a compiled program."""

import jax
import pytest

from jaxreplay.methods import per
from jaxreplay.traced import cached, is_traced, is_zero


def test_traced_options_are_found_in_dataclasses_and_are_not_known_to_be_zero():
    found = []

    @jax.jit
    def trace(alpha):
        sampler = per.sampler(per.PERConfig(alpha=alpha))
        found.extend([is_zero(alpha), is_traced(alpha), is_traced((1, sampler))])
        return alpha

    trace(0.0)
    assert found == [False, True, True]
    assert is_zero(0) and is_zero(0.0) and not is_zero(0.1)
    assert not is_traced(0.0) and not is_traced(per.sampler())


def test_results_of_traced_options_are_not_cached():
    calls = []

    @cached
    def doubled(option):
        calls.append(option)
        return 2 * option

    assert [doubled(2), doubled(2), float(jax.jit(doubled)(3.0))] == [4, 4, 6.0]
    assert len(calls) == 2
    with pytest.raises(TypeError):  # of other arguments that can't be hashed
        doubled([1])
    assert len(calls) == 2
