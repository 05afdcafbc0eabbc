"""The README's Python examples run as they stand (with fewer steps)."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_training_example_is_short_and_runs(capsys):
    block = next(block for block in BLOCKS if "make_train" in block)
    assert len(block.strip().splitlines()) < 20
    assert "50_000" in block
    names = {}
    exec(block.replace("50_000", "2_000"), names)
    assert names["metrics"]["eval_return"].shape == (5, 1)
    assert "2000" in capsys.readouterr().out


def test_replay_example_runs_in_a_loop_of_ones_own():
    block = next(block for block in BLOCKS if "replay.init" in block)
    names = {}
    exec(block.replace("2**20", "2**10"), names)
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

    exec(next(block for block in BLOCKS if "def turn" in block), names)
    state, following = names["turn"](state, batch, jnp.zeros(256), rows, jax.random.key(1))
    assert int(state.ring.rows_added) == 2
    assert following.transition.obs.shape == (256, 17)
