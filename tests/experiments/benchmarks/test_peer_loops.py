"""Training loops of other projects: what stands in for parts of them, and how they are timed.

The loops themselves run where the projects are: rejax if it is installed, and either where a
variable, REJAX or PUREJAXRL, names a checkout. No time is asserted but that it is positive.
"""

import importlib.util
import os
from importlib import metadata
from pathlib import Path

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks import peer_loops
from experiments.benchmarks.peer_loops import Missing, Setting, SingleDone, Variant
from experiments.benchmarks.peer_loops import purejaxrl as of_purejaxrl
from experiments.benchmarks.peer_loops.versions import version_of
from tests.refusals import refused

TINY = Setting("dqn", "CartPole-v1", 8, (4, 4), 64, learning_rate=1e-3, tau=0.01)


@pytest.mark.parametrize("name", peer_loops.NAMES)
def test_a_loop_runs_where_its_project_is(name):
    folder = os.environ.get(name.upper())
    try:
        found, version = peer_loops.variants(name, None if folder is None else Path(folder), TINY)
    except Missing as error:
        pytest.skip(str(error))
    assert version and name in found
    for variant in found.values():
        whole = peer_loops.whole(variant, 2, 4, TINY)
        assert whole.run(4) > 0 and whole.seconds > 0 and "while(" in whole.text


@pytest.mark.parametrize(
    ("name", "agent", "parts"),
    [
        ("purejaxrl", "dqn", ("purejaxrl/dqn.py", "luchris429/purejaxrl")),
        ("rejax", "sac", ("rejax/__init__.py", "keraJLi/rejax")),
    ],
)
def test_a_folder_without_the_project_is_named(name, agent, parts, tmp_path):
    with refused(tmp_path, *parts, error=Missing):
        peer_loops.variants(name, tmp_path, TINY._replace(agent=agent))


def test_what_is_not_given_is_missing(monkeypatch):
    with refused("luchris429/purejaxrl", "--purejaxrl", error=Missing):
        peer_loops.variants("purejaxrl", None, TINY)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    with refused("keraJLi/rejax", "--rejax", error=Missing):
        peer_loops.variants("rejax", None, TINY)


def test_a_project_that_fails_is_missing(tmp_path):
    if importlib.util.find_spec("flashbax") is None:
        pytest.skip("flashbax is not installed, and missed first")
    (tmp_path / "purejaxrl").mkdir()
    (tmp_path / "purejaxrl" / "dqn.py").write_text("import wandb\nfrom jax import nothing_at_all")
    with refused("nothing_at_all", error=Missing):
        peer_loops.variants("purejaxrl", tmp_path, TINY)


def test_a_project_without_the_agent_has_no_loops():
    assert of_purejaxrl.variants(None, TINY._replace(agent="sac")) == {}


def test_a_loop_is_timed_without_what_comes_before_learning():
    lengths = []

    def make(steps, before):
        lengths.append((steps, before))

        def train(key):
            return jax.lax.fori_loop(0, steps, lambda i, x: x + jax.random.normal(key), 0.0)

        return train

    whole = peer_loops.whole(Variant(make), seeds=3, steps=20, setting=TINY)
    assert lengths == [(8, 8), (28, 8)]
    assert whole.seconds > 0 and whole.run(40) > 0


def test_episodes_end_in_one_way():
    env, params = gymnax.make("CartPole-v1")
    params = params.replace(max_steps_in_episode=3)
    single = SingleDone(env)
    key = jax.random.key(0)
    _, state = single.reset(key, params)
    ends = []
    for _ in range(3):
        obs, state, reward, done, info = single.step(key, state, 0, params)
        ends.append(bool(done))
    assert ends == [False, False, True]  # by the time limit
    assert obs.shape == (4,) and reward == 1 and info
    assert single.action_space(params).n == 2


def test_our_replay_behind_another_interface_returns_what_was_written():
    capacity = 8
    buffer = of_purejaxrl._make_buffer(capacity, capacity, add_batch_size=1)

    def step(number, ends=False):
        full = jnp.full((1,), float(number))
        return of_purejaxrl._Step(full[:, None], jnp.array([number]), full, jnp.array([ends]))

    state = buffer.init(jax.tree.map(lambda x: x[0], step(0)))
    add = jax.jit(buffer.add)
    for number in range(1, 13):
        state = add(state, step(number, ends=number % 5 == 0))
    assert buffer.can_sample(state)
    keys = jax.random.split(jax.random.key(0), 8)
    pair = jax.tree.map(
        jnp.concatenate, jax.vmap(lambda key: buffer.sample(state, key))(keys)
    ).experience
    numbers = np.asarray(pair.first.reward)
    # The latest step waits for its next observation, and the oldest ones were overwritten.
    assert set(numbers) == set(range(4, 12))
    np.testing.assert_array_equal(pair.first.obs[:, 0], numbers)
    np.testing.assert_array_equal(pair.first.action, numbers)
    np.testing.assert_array_equal(pair.second.obs[:, 0], numbers + 1)
    np.testing.assert_array_equal(pair.first.done, numbers % 5 == 0)


def test_names_of_a_module_change_for_a_while():
    import types

    module = types.SimpleNamespace(jax=jax, other=1)
    with of_purejaxrl._replaced(module, jax=of_purejaxrl._With(jax, tree_map=jax.tree.map)):
        assert module.jax.tree_map is jax.tree.map and module.jax.numpy is jnp
    assert module.jax is jax


def test_versions_tell_sources_apart(tmp_path):
    (tmp_path / "peer").mkdir()
    source = tmp_path / "peer" / "a.py"
    told = []
    for text in ("x = 1", "x = 2", "x = 1"):
        source.write_text(text)
        told.append(version_of("peer", tmp_path))
    assert told[0] == told[2] != told[1] and told[0].startswith("sources ")
    assert version_of("jax", None) == metadata.version("jax")
