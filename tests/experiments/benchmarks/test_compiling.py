"""No program grows unseen: what JAX hands to XLA is held to the committed table."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks import hlo
from experiments.benchmarks.compiled import functions_of
from experiments.benchmarks.training_loops import CASES, run_config
from experiments.runs.assembly import assemble
from experiments.training.loop import make_program

TABLE = Path(__file__).parents[3] / "experiments" / "results" / "benchmark_compiling.json"
MARGIN = 0.03


def test_operations_are_counted():
    double = jax.jit(lambda x: x + x)
    text = jax.jit(lambda x: double(x * x) + double(x)).lower(jnp.ones(3)).as_text()
    assert hlo.operations(text) == 3  # of a function once


@pytest.mark.parametrize("replay", ["uniform", "per"])
def test_programs_have_no_more_operations_than_the_table_says(replay):
    table = json.loads(TABLE.read_text())
    if table["machine"]["jax"] != jax.__version__ or jax.default_backend() != "cpu":
        pytest.skip(f"the table is of jax {table['machine']['jax']} on CPU")
    written = {
        one["program"]: one["operations"]
        for one in table["results"]
        if (one["case"], one["replay"], one["seeds"]) == ("dqn", replay, 1)
    }
    config = run_config(CASES["dqn"], replay, 1, table["settings"]["capacity"])
    parts = assemble(config)
    program = make_program(parts.environment, parts.agent, parts.replay, config.loop)
    functions = functions_of(program, 1)
    assert functions.keys() == written.keys()
    for name, (function, inputs) in functions.items():
        count = hlo.operations(function.lower(*inputs).as_text())
        assert count <= (1 + MARGIN) * written[name], (
            f"{name} has grown from {written[name]:,} to {count:,} operations: make it smaller, or "
            f"write {TABLE.name} anew (experiments/results/README.md has the command)"
        )
