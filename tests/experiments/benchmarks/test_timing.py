"""Contenders take turns, whose lengths are determined by measurements."""

import pytest

from experiments.benchmarks import timing


def test_turns_alternate_and_ratios_are_taken_within_turns():
    order = []

    def run_of(name, seconds):
        def run(count):
            order.append(name)
            return count * seconds

        return run

    runs = {"a": run_of("a", 1e-3), "b": run_of("b", 2e-3)}
    times = timing.compare(runs, 3, 1e-3, {"a": "c", "b": "a"})
    assert order[-6:] == ["a", "b", "b", "a", "a", "b"]
    assert times["a"].us == pytest.approx([1e3] * 3) and times["a"].ratio is None
    assert times["b"].median_us == pytest.approx(2e3) and times["b"].ratio == pytest.approx(2)
    assert timing.ratio([1, 20, 3], [1, 10, 1]) == 2


def test_a_fixed_number_of_cycles_is_not_changed():
    counts = []
    timing.take_turns({"a": lambda count: counts.append(count) or 1.0}, 2, 0.1, {"a": 7})
    assert counts == [7, 7]


def test_cycles_are_chosen_for_the_duration_of_a_turn():
    assert timing.cycles_for(lambda count: count * 1e-4, 0.1) == pytest.approx(1000, rel=0.01)
    assert timing.cycles_for(lambda count: 5.0, 0.1) == 1
    assert timing.cycles_for(lambda count: 0.0, 0.1) == 1_000_000


def test_compilation_in_the_second_call_does_not_change_the_cycles():
    compiling = iter([5.0, 0.5])
    assert timing.cycles_for(lambda count: next(compiling, count * 1e-4), 0.1) == 1000
