"""Whole training loops are timed: ours, and those of other projects.

Loops of other projects run where an environment variable, PUREJAXRL or REJAX, names a checkout.
"""

import json
import os
from pathlib import Path

import gymnax
import jax
import pytest

from experiments.benchmarks import peer_loops, training
from experiments.benchmarks.peer_loops import SingleDone, Variant, purejaxrl
from experiments.benchmarks.training_loops import CASES, run_config
from tests.experiments.benchmarks.test_replay import FAST
from tests.refusals import assert_names, refusal, refused

TINY = run_config(CASES["dqn"]._replace(batch_size=8, hidden=(4, 4)), "uniform", 2, 64)


def test_training_command(tmp_path, capsys):
    out = tmp_path / "training.json"
    argv = ["--cases", "dqn", "--replays", "uniform", "per", "--seeds", "1", "--capacity", "300"]
    assert training.main([*argv, *FAST, "--out", str(out)]) == 0
    content = json.loads(out.read_text())
    uniform, per = content["results"]
    assert (uniform["loop"], per["loop"]) == ("uniform", "per")
    for result in (uniform, per):
        assert len(result["us"]) == 2
        assert min(*result["us"], result["steps_per_second"], result["compile_seconds"]) > 0
        assert result["instructions"] > 0 and result["large_copies"] == 0
    assert per["to_ours"] > 0 and uniform["to_ours"] == 1
    assert_names(capsys.readouterr().out, "uniform", "per", "dqn", "steps_per_second")


@pytest.mark.slow
def test_loops_are_timed_as_runs_distribute_them(tmp_path):
    out = tmp_path / "training.json"
    argv = ["--cases", "dqn", "--replays", "uniform", "--seeds", "4", "--capacity", "300"]
    assert training.main([*argv, "--distributed", "true", *FAST, "--out", str(out)]) == 0
    together, distributed = json.loads(out.read_text())["results"]
    assert distributed["loop"] == "uniform, distributed" and together["compile_seconds"] > 0
    assert distributed["steps_per_second"] > 0 and distributed["compile_seconds"] is None


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--capacity", "100"], ("capacity", "100", "256")),
        (["--purejaxrl", "/nope"], ("purejaxrl", "/nope", "purejaxrl/dqn.py")),
        (["--rejax", "/nope"], ("rejax", "/nope", "rejax/__init__.py")),
    ],
)
def test_training_command_rejects_options_before_anything_is_compiled(argv, parts, capsys):
    assert_names(refusal(capsys, training.main, *argv), *parts)


@pytest.mark.parametrize("name", peer_loops.FILES)
def test_loops_of_other_projects(name):
    folder = Path(os.environ.get(name.upper(), "/nowhere"))
    try:
        peer_loops.check(name, folder)
    except ValueError as error:
        pytest.skip(str(error))
    loops = peer_loops.compiled(name, folder, TINY, 4)
    assert len(loops) == 2 and name in loops and peer_loops.version(folder)
    for loop in loops.values():
        assert loop.run(4) > 0 and loop.compiling and loop.size.loops
    instructions = {loop.size.instructions for loop in loops.values()}
    assert len(instructions) == 2  # the replaced part has an effect


def test_a_missing_package_of_a_project_is_named(tmp_path, monkeypatch):
    (tmp_path / "src" / "rejax").mkdir(parents=True)
    (tmp_path / "src" / "rejax" / "__init__.py").touch()
    monkeypatch.setattr(peer_loops.importlib.util, "find_spec", lambda name, *rest: None)
    with refused("rejax", "distrax"):
        peer_loops.check("rejax", tmp_path)
    assert "unknown" in peer_loops.version(tmp_path)


def test_a_project_without_the_agent_has_no_loops():
    config = run_config(CASES["sac"], "uniform", 1, 300)
    assert purejaxrl.variants(Path("/nowhere"), config) == {}


def test_time_before_learning_is_subtracted():
    lengths = []

    def make(steps, before):
        lengths.append((steps, before))

        def train(key):
            return jax.lax.fori_loop(0, steps, lambda i, x: x + jax.random.normal(key), 0.0)

        return train

    loop = peer_loops.whole(Variant(make), TINY, steps=20)
    assert lengths == [(8, 8), (28, 8)]
    assert loop.compiling and loop.compiling > 0 and loop.run(40) > 0 and loop.steps == 20


def test_both_ends_of_an_episode_are_one_flag():
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
