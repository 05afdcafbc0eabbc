"""Cycles of all methods and loops of agents on a GPU and a TPU: copies, branches, launches."""

import functools
import json

import pytest

from experiments.benchmarks import accelerators
from tests.compiled import cycles
from tests.documents import ROOT

ROWS = cycles.table()
# Each of the papers' methods, alone on both platforms and vmapped on a GPU.
QUICK = {
    f"{platform}/{method}/add-sample-update/{seeds}"
    for method in ("per", "lap", "pser", "ners", "refer")
    for platform, seeds in (("gpu", 1), ("tpu", 1), ("gpu", 4))
}
WRITTEN_WITH = json.loads(cycles.TABLE.read_text())["versions"]

BENCHMARK = ROOT / "experiments" / "results" / "benchmark_accelerators.json"
LOOPS = {
    f"{row['platform']}/{row['case']}": row
    for row in json.loads(BENCHMARK.read_text())["results"]
    if row["case"] in accelerators.LOOPS
}
QUICK_LOOPS = ("gpu/dqn/per",)


@functools.cache
def conditionals_on_cpu(method, order, seeds):
    return cycles.cost(method, order, seeds, None).conditionals


def test_the_table_has_rows_of_the_quick_tests():
    assert set(ROWS) >= QUICK and set(ROWS) <= set(cycles.NAMES)


# Methods with large copies in every cycle, by platform and whether seeds are vmapped; the page on
# accelerators says which arrays.
COPIED = {
    ("gpu", False): set(),
    ("gpu", True): set(),
    ("tpu", False): {"refer", "reaper"},
    ("tpu", True): {"refer", "reaper", "masked"},
}


def test_three_methods_are_copied():
    copied = {place: set() for place in COPIED}
    for name in (name for name, row in ROWS.items() if "copies" in row):
        platform, method, _, seeds = name.split("/")
        copied[platform, seeds != "1"].add(method)
    assert copied == COPIED


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ROWS],
)
def test_cycle_costs_what_the_table_says(name):
    platform, method, order, seeds = name.split("/")
    cost = cycles.cost(method, order, int(seeds), platform)
    row = ROWS[name]
    assert cost.copies <= row.get("copies", 0), str(cost)
    assert cost.conditionals <= conditionals_on_cpu(method, order, int(seeds)), str(cost)
    if cycles.versions() != WRITTEN_WITH:
        pytest.skip(f"launches are of {WRITTEN_WITH}, installed are {cycles.versions()}")
    assert cost.launches == pytest.approx(row["launches"], rel=0.1), (
        f"python -m tests.compiled.cycles {method} rewrites the table\n{cost}"
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK_LOOPS else pytest.mark.slow) for name in LOOPS],
)
def test_training_loop_costs_what_the_benchmark_says(name):
    platform, _, case = name.partition("/")
    cost = accelerators.loop_cost(accelerators.case_config(case, 1, 100_000), platform)
    row = LOOPS[name]
    assert cost.conditionals <= row["conditionals"] and cost.copies == 0, str(cost)
    assert cost.launches == pytest.approx(row["launches"], rel=0.1), str(cost)
