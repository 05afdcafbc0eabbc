"""Contenders take turns, of a length that is found by trying."""

import pytest

from experiments.benchmarks import timing


def test_turns_alternate_and_ratios_are_taken_turn_by_turn():
    order = []

    def run_of(name, seconds):
        def run(count):
            order.append(name)
            return count * seconds

        return run

    times = timing.take_turns({"a": run_of("a", 1e-3), "b": run_of("b", 2e-3)}, 3, 1e-3)
    assert order[-6:] == ["a", "b", "b", "a", "a", "b"]
    assert times["a"] == pytest.approx([1e3] * 3)
    assert timing.ratio(times["b"], times["a"]) == pytest.approx(2)
    assert timing.ratio([1, 20, 3], [1, 10, 1]) == 2


def test_cycles_are_chosen_so_that_a_turn_takes_its_time():
    assert timing.cycles_for(lambda count: count * 1e-4, 0.1) == pytest.approx(1000, rel=0.01)
    assert timing.cycles_for(lambda count: 5.0, 0.1) == 1
    assert timing.cycles_for(lambda count: 0.0, 0.1) == 1_000_000


def test_what_compiles_at_its_second_call_too_gets_as_many_cycles():
    compiling = iter([5.0, 0.5])
    assert timing.cycles_for(lambda count: next(compiling, count * 1e-4), 0.1) == 1000
