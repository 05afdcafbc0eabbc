"""The README is short, and its Python examples run as they stand (with fewer steps)."""

import re

import jax
import jax.numpy as jnp

from tests import documents
from tests.documents import README

BLOCKS = [block.text for block in documents.python(README)]


def test_it_is_short_and_shows_python_early():
    lines = README.read_text().splitlines()
    assert len(lines) <= 250
    assert lines.index("```python") < 60


def test_its_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)", README.read_text())
    assert len(targets) > 50
    missing = [target for target in targets if not (README.parent / target).exists()]
    assert not missing


def test_training_example_is_short_and_runs(capsys):
    block = next(block for block in BLOCKS if "make_train" in block)
    assert len(block.strip().splitlines()) < 20
    assert "50_000" in block
    names = {}
    documents.run(block, names)
    assert names["metrics"]["eval_return"].shape == (5, 1)
    assert "2000" in capsys.readouterr().out


def test_replay_example_runs_in_a_loop_of_ones_own():
    block = next(block for block in BLOCKS if "replay.init" in block)
    names = {}
    documents.run(block, names)
    replay, state, example = names["replay"], names["state"], names["example"]
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (8, *x.shape)), example)

    @jax.jit
    def step(state, key):
        state = replay.add(state, rows)
        state, batch = replay.sample(state, key)
        return replay.update(state, batch, td_error=jnp.ones(256)), batch

    state, batch = step(state, jax.random.key(0))
    assert batch.transition.obs.shape == (256, 17)
    assert int(state.dropped) == 0
