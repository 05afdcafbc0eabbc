"""Sizes of compiled programs: growth compared with the committed table, and large copies."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks import compiling
from experiments.benchmarks.compiling import operations
from experiments.benchmarks.training import CASES, functions_of, run_config
from jaxreplay.testing import large_copies

TABLE = Path(__file__).parents[3] / "experiments" / "results" / "benchmark_compiling.json"
MARGIN = 0.03


def test_operations_are_counted():
    double = jax.jit(lambda x: x + x)
    text = jax.jit(lambda x: double(x * x) + double(x)).lower(jnp.ones(3)).as_text()
    assert operations(text) == 3  # the function counts once


@pytest.mark.parametrize("replay", ["uniform", "per"])
def test_programs_have_no_more_operations_than_in_the_table(replay):
    table = json.loads(TABLE.read_text())
    if table["machine"]["jax"] != jax.__version__ or jax.default_backend() != "cpu":
        pytest.skip(f"the table is of jax {table['machine']['jax']} on CPU")
    written = {
        one["program"]: one["operations"]
        for one in table["results"]
        if (one["case"], one["replay"], one["seeds"]) == ("dqn", replay, 1)
    }
    functions = functions_of(run_config(CASES["dqn"], replay, 1, table["settings"]["capacity"]))
    assert functions.keys() == written.keys()
    for name, (function, inputs) in functions.items():
        count = operations(function.lower(*inputs).as_text())
        assert count <= (1 + MARGIN) * written[name], (
            f"{name} has grown from {written[name]:,} to {count:,} operations: reduce them, or "
            f"replace {TABLE.name} (experiments/results/README.md has the command)"
        )


@pytest.mark.slow
def test_compile_benchmark_command_runs(tmp_path):
    out = tmp_path / "numbers.json"
    argv = ["--cases", "dqn", "--replays", "uniform", "--seeds", "1", "--out", str(out)]
    assert compiling.main(argv) == 0
    results = json.loads(out.read_text())["results"]
    assert [one["program"] for one in results] == ["warm-up", "training"]
    assert all(one["compiling"] > 0 and one["instructions"] > 100 for one in results)


def test_instructions_are_counted():
    def program(x):
        return jax.lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ x) + i, x)

    size = compiling.compile_for(jax.jit(program), jnp.ones((32, 32)))
    assert size["loops"] == 1
    assert size["instructions"] > size["fusions"] + size["loops"]


def test_large_copies_are_found_in_all_computations_of_a_loop():
    text = """
%fused (p: f32[40000]) -> f32[40000] {
  ROOT %copy.1 = f32[40000]{0} copy(%p)
}
%branch (p: f32[40000]) -> f32[40000] {
  ROOT %copy.2 = f32[40000]{0} copy(%p)
}
%loop (p: (f32[40000])) -> (f32[40000]) {
  %a = f32[40000]{0} fusion(%x), kind=kLoop, calls=%fused
  %b = f32[40000]{0} conditional(%c, %x, %y), branch_computations={%other, %branch}
  %copy.4 = f32[5000,8]{1,0} copy(%d)
  %copy.5 = f32[256,43]{1,0} copy(%e)
}
ENTRY %main (p: f32[40000]) -> f32[40000] {
  %copy.6 = f32[40000]{0} copy(%p)
  %w = (f32[40000]) while(%t), condition=%until, body=%loop
}
"""
    names = [line.split()[0].strip("%") for line in large_copies(text, 40_000, children=8)]
    assert [name for name in names if name != "ROOT"] == ["copy.4"]
    assert len(names) == 3  # plus those of the fusion and the branch
    assert len(large_copies(text, 40_000)) == 2
