"""The examples run and have the documented behaviour."""

import functools
import itertools
import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxreplay.saving import saved_size

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def loaded(name, long="", short=""):
    """Run an example as a module, with a text replaced."""
    path = EXAMPLES / f"{name}.py"
    code = path.read_text()
    assert long in code
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = str(path)
    exec(compile(code.replace(long, short) if long else code, path, "exec"), vars(module))
    return module


def test_loops_can_be_traced():
    """Slow tests run these loops."""
    example = loaded("dqn_in_one_file")
    train = jax.vmap(example.make_train(example.CONFIG))
    returns = jax.eval_shape(train, jax.random.split(jax.random.key(0), 2))
    assert returns.shape == (2, example.CONFIG["episodes"])
    example = loaded("gradient_variance")
    assert set(jax.eval_shape(example.run, 0)) == set(example.NAMES)


@pytest.mark.slow
def test_dqn_in_one_file_solves_the_task():
    example = loaded("dqn_in_one_file")
    train = jax.jit(jax.vmap(example.make_train(example.CONFIG)))
    returns = train(jax.random.split(jax.random.key(0), example.CONFIG["seeds"]))
    assert (returns.mean(axis=1) >= 475).all()  # of 500; a random policy reaches 22


def test_demonstrations_solve_the_task_and_make_a_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = loaded("demonstrations", "episodes=20", "episodes=2")
    episode = example.play(jax.random.key(1))
    assert episode.rewards.sum() == 1 and episode.terminations[-1]
    assert saved_size(example.FILE) > 2 * 80
    assert {point.config.sizes.demos for point in example.study.points()} == {
        None, str(example.FILE),
    }  # fmt: skip
    example.study.check()


def test_memory_makes_a_study_of_two_agents():
    study = loaded("memory").study
    study.check()
    agents = {point.label: point.config.agent for point in study.points()}
    assert agents.pop("dqn") == "dqn" and set(agents.values()) == {"r2d2"}
    starts = {
        p.label: getattr(p.config.agent_options, "stored_state", None) for p in study.points()
    }
    assert [name for name, stored in starts.items() if stored is False] == [
        "short_zero", "long_zero",
    ]  # fmt: skip


@pytest.fixture
def search(tmp_path, monkeypatch):
    pytest.importorskip("optuna", reason="the extra search brings Optuna")
    example = loaded("search")
    loop = {"steps": 200, "warmup": 100, "eval_every": 100, "eval_episodes": 1, "inspect": 0}
    sizes = {"OUT": tmp_path, "ENV": "walk/4", "LOOP": loop, "AT_ONCE": 2, "SEEDS": 1}
    for name, value in (sizes | {"BATCHES": 2, "FRESH_SEEDS": 4, "METHODS": ("per",)}).items():
        monkeypatch.setattr(example, name, value)
    small = functools.partial(example.Study.make, agent_options={"hidden": (8,)})
    monkeypatch.setattr(example, "Study", SimpleNamespace(make=small))
    return example


@pytest.mark.slow  # trains three studies; the next test runs the rest of the example
def test_searches_repeat_their_proposals_after_an_interruption(search, tmp_path):
    def read_axes(path):
        return json.loads(path.read_text())["study"]["axes"]

    best, paths = search.search("per"), [tmp_path / f"per_{n}" / "study.json" for n in (0, 1)]
    axes = list(map(read_axes, paths))
    (tmp_path / "per_1" / "study.csv.gz").unlink()  # as if killed during the second batch
    assert search.search("per") == best
    assert [read_axes(path) for path in paths] == axes and axes[0] != axes[1]


def test_searches_maximise_the_mean_score_and_compare_on_fresh_seeds(search, monkeypatch):
    studies = {}

    def score(config):
        diverges = config.agent_options.learning_rate > 1e-3
        return -np.inf if diverges else -abs(getattr(config.replay_options, "alpha", 0) - 0.3)

    def train(study, name):
        studies[name], points = study, study.points()
        runs = {"point": [p.id for p in points], "ranked": [score(p.config) for p in points]}
        verdicts = pd.DataFrame(columns=["arm", "wins", "losses", "verdict"])
        return SimpleNamespace(runs=pd.DataFrame(runs), verdicts=lambda: verdicts)

    monkeypatch.setattr(search, "train", train)
    monkeypatch.setattr(search, "BATCHES", 12)
    search.main()
    fresh = studies.pop("fresh")
    fresh.check()
    best = fresh.bases["walk/4", "per_best"]
    assert score(best) == max(score(p.config) for s in studies.values() for p in s.points()) > -0.1
    assert {label for _, label in fresh.bases} == {"uniform", "per", "per_best"}
    assert fresh.bases["walk/4", "per"].replay_options.alpha == 0.6  # the default
    searched = {config.seed + config.seeds for s in studies.values() for config in s.bases.values()}
    assert best.seed >= max(searched)


def test_variance_of_laber_agrees_with_an_enumeration_of_its_draws():
    example = loaded("gradient_variance")
    gradient, h, weights = (
        np.array([[1.0, 0], [2, 1], [0, -4]]),
        np.array([1.0, 3, 2]),
        np.ones(3) / 3,
    )
    whole, variance = gradient.mean(axis=0), 0.0
    for candidates in itertools.product(range(3), repeat=2):  # two candidates, one draw
        for i in candidates:
            drawn = h[i] / h[[*candidates]].sum()
            estimate = gradient[i] * h[[*candidates]].mean() / h[i]
            variance += drawn * ((estimate - whole) ** 2).sum() / 9
    square = (gradient**2).sum(axis=1)
    found = example.laber(square, h, weights, (whole**2).sum(), 2, 1)
    assert float(found) == pytest.approx(variance)


@pytest.mark.slow
def test_variance_of_every_sampler_is_at_least_the_bound(monkeypatch):
    example = loaded("gradient_variance")
    for name, value in {"FILL": 100, "EVERY": 40, "TIMES": 2}.items():
        monkeypatch.setattr(example, name, value)
    found = example.run(0)
    assert set(found) == set(example.NAMES)
    samplers = [found[name] for name in example.NAMES if not name.startswith("uniform")]
    assert all((value >= found["bound"]).all() for value in samplers)


def filled(add_batch_size, steps=30):
    example = loaded("flashbax_api")
    buffer = example.make_prioritised_flat_buffer(16, 4, 8, add_batch_size)
    state = buffer.init({"obs": jnp.zeros(2), "reward": jnp.float32(0)})
    ready = [bool(buffer.can_sample(state))]
    add = jax.jit(buffer.add)
    for number in range(steps):
        step = {"obs": np.full(2, number, np.float32), "reward": np.float32(number)}
        if add_batch_size:
            lanes = 1000.0 * np.arange(add_batch_size, dtype=np.float32)
            step = jax.tree.map(lambda x: x + lanes.reshape(-1, *(1,) * np.ndim(x)), step)
        state = add(state, step)
        ready.append(bool(buffer.can_sample(state)))
    return buffer, state, ready


@pytest.mark.parametrize("add_batch_size", [None, 2])
def test_flashbax_pairs_are_consecutive_steps(add_batch_size):
    buffer, state, ready = filled(add_batch_size)
    assert ready.index(True) == 4 // (add_batch_size or 1)
    drawn = jax.jit(buffer.sample)(state, jax.random.key(1))
    first, second = drawn.experience
    assert first["obs"].shape == (8, 2) and drawn.probabilities.shape == (8,)
    np.testing.assert_array_equal(second["reward"], first["reward"] + 1)
    np.testing.assert_array_equal(first["obs"][:, 0], first["reward"])


def test_flashbax_priorities_determine_the_draws():
    buffer, state, _ = filled(None)
    verbs = (buffer.add, buffer.sample, buffer.set_priorities)
    add, sample, set_priorities = map(jax.jit, verbs)
    drawn = sample(state, jax.random.key(0))
    high = float(drawn.experience.first["reward"][3])
    priorities = jnp.where(drawn.experience.first["reward"] == high, 1e6, 1e-3)
    state = set_priorities(state, drawn.indices, priorities)
    drawn = sample(state, jax.random.key(1))
    assert (np.asarray(drawn.experience.first["reward"]) == high).mean() > 0.9
    for number in range(16):  # overwrite everything: old indices become invalid
        step = {"obs": jnp.full(2, 100.0 + number), "reward": jnp.float32(100 + number)}
        state = add(state, step)
    after = set_priorities(state, drawn.indices, jnp.full(8, 1e9))
    np.testing.assert_array_equal(
        after.sampler.priorities.tree.nodes, state.sampler.priorities.tree.nodes
    )
