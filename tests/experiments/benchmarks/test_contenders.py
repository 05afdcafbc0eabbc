"""Replays and training loops that are timed; sizes are too small to measure speed."""

import importlib.util
import json

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks import peers, replay, training
from experiments.benchmarks.replay import FLASHBAX, Cycles, make_inputs, make_replay
from tests.refusals import assert_names, refusal

FAST = ["--turns", "2", "--seconds", "0.002"]
CAPACITY, BATCH = 64, 32
LIBRARIES = ("per", "uniform", *FLASHBAX)


def filled(name):
    """Return a contender's replay with CAPACITY + 10 transitions, and these transitions."""
    if name in FLASHBAX:
        pytest.importorskip("flashbax")
    made, rows = make_replay(name, CAPACITY, BATCH), make_inputs(BATCH).rows
    state = made.init(jax.random.key(0), jax.tree.map(lambda x: x[0, 0], rows))
    for number in range(CAPACITY + 10):
        state = jax.jit(made.add)(state, jax.tree.map(lambda x: x[number], rows))
    return made, state, jax.tree.map(lambda x: np.asarray(x[:, 0]), rows)


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_library_samples_the_newest_transitions(name):
    made, state, rows = filled(name)
    sample, seen = jax.jit(made.sample), set()
    for key in jax.random.split(jax.random.key(1), 40):
        batch = sample(state, key).transition
        number = np.asarray(batch.reward).astype(int)  # rewards count the transitions
        for field in ("obs", "action", "discount", "next_obs"):
            np.testing.assert_array_equal(getattr(batch, field), getattr(rows, field)[number])
        seen |= set(number.tolist())
    newest = CAPACITY + 9  # has no next observation yet if observations are stored once
    assert seen | {newest} == set(range(10, CAPACITY + 10))


@pytest.mark.parametrize("name", ["per", "flashbax"])
def test_prioritised_libraries_have_the_same_probabilities_and_weights(name):
    made, state, _ = filled(name)
    update, sample = jax.jit(made.update), jax.jit(made.sample)
    td_error = 1.0 + np.arange(CAPACITY, dtype=np.float32) % 4  # by slot
    draws = []
    for key in jax.random.split(jax.random.key(1), 180):
        batch = sample(state, key)
        state = update(state, batch, td_error=jnp.asarray(td_error)[batch.indices])
        draws.append((np.asarray(batch.indices) % 4, np.asarray(batch.weights)))
    group, weights = map(np.concatenate, zip(*draws[30:]))  # every slot has its priority by then
    expected = np.arange(1.0, 5.0) ** 0.6
    np.testing.assert_allclose(
        np.bincount(group) / group.size, expected / expected.sum(), atol=0.03
    )
    ratio = weights[group == 3].mean() / weights[group == 0].mean()
    assert ratio == pytest.approx(4.0 ** (-0.6 * 0.4), rel=0.02)


def test_replay_command_measures_cycles_in_place(tmp_path, capsys):
    out = tmp_path / "new" / "replay.json"
    argv = ["--capacities", "4096", "--batch-sizes", "16", "--orders", replay.ORDERS[1]]
    assert replay.main([*argv, *FAST, "--out", str(out)]) == 0
    content = json.loads(out.read_text())
    rows = content["results"]
    assert [row["contender"] for row in rows] == ["per", "uniform"]
    assert {row["order"] for row in rows} == {replay.ORDERS[1]}
    assert all(len(row["us"]) == 2 and min(row["us"]) > 0 for row in rows)
    assert all(row["large_copies"] == 0 for row in rows) and rows[0]["ratio"] == 1
    assert "| uniform " in capsys.readouterr().out


def test_cycles_follow_the_order_continue_and_differ_between_seeds():
    for order in replay.ORDERS:
        cycles = Cycles(make_replay("per", 100, 16), order, 3)
        assert cycles.run(3) > 0 and cycles.run(4) > 0
        state, seen = cycles._carry
        assert state.ring.steps_added.tolist() == [100 + 7] * 3 and len(set(seen.tolist())) == 3


@pytest.mark.parametrize(
    ("command", "argv", "parts"),
    [
        (replay, ["--capacities", "10", "--batch-sizes", "32"], ("batch_sizes", "32", "10")),
        (replay, ["--turns", "0"], ("--turns", "0")),
        (replay, ["--seconds", "0"], ("--seconds", "0.0")),
        (replay, ["--contenders", "unifrom"], ("--contenders", "unifrom", "uniform")),
        (training, ["--capacity", "100"], ("capacity", "100", "256")),
        (training, ["--purejaxrl", "/nope"], ("--purejaxrl", "/nope/purejaxrl/dqn.py")),
    ],
)
def test_commands_reject_options_in_one_line(command, argv, parts, capsys):
    assert_names(refusal(capsys, command.main, *argv), *parts)


@pytest.mark.parametrize(
    ("command", "argv", "package"),
    [
        (replay, ["--contenders", "per", "flashbax"], "flashbax"),
        (training, ["--rejax", "true"], "rejax"),
    ],
)
def test_missing_peers_are_named_with_their_extra(command, argv, package, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert_names(refusal(capsys, command.main, *argv), package, "[bench]")


@pytest.mark.slow  # compiles whole training loops
def test_training_command_runs(tmp_path):
    out = tmp_path / "training.json"
    argv = ["--cases", "dqn", "--replays", "uniform", "per", "--seeds", "2", "--capacity", "300"]
    argv += ["--rejax", "true"] if importlib.util.find_spec("rejax") else []
    assert training.main([*argv, *FAST, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["results"]
    assert [row["loop"] for row in rows][:2] == ["uniform", "per"] and rows[0]["ratio"] == 1
    for row in rows:
        assert len(row["us"]) == 2 and min(*row["us"], row["steps_per_second"]) > 0


def test_time_before_learning_is_subtracted():
    config = training.run_config(training.CASES["dqn"], "uniform", 2, 300)
    lengths = []

    def make(steps, before):
        lengths.append((steps, before))

        def train(key):
            return jax.lax.fori_loop(0, steps, lambda i, x: x + jax.random.normal(key), 0.0)

        return train

    run = peers.loop(make, config, steps=19)  # an even number of steps
    assert lengths == [(128, 128), (148, 128)] and run(40) > 0


def test_both_ends_of_an_episode_are_one_flag():
    env, params = gymnax.make("CartPole-v1")
    params = params.replace(max_steps_in_episode=3)
    single, key = peers.SingleDone(env), jax.random.key(0)
    _, state = single.reset(key, params)
    ends = []
    for _ in range(3):
        obs, state, reward, done, info = single.step(key, state, 0, params)
        ends.append(bool(done))
    assert ends == [False, False, True]  # by the time limit
    assert obs.shape == (4,) and reward == 1 and single.action_space(params).n == 2
