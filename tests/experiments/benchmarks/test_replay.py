"""Benchmarks of replay libraries and training: every buffer samples correctly, commands run.

Sizes are too small to measure speed; times are only required to be positive.
"""

import importlib.util
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks import calls, methods, peers, replay, training
from experiments.benchmarks.peers import ALPHA, BETA, OBS, ORDERS, Buffer, Rows, row
from experiments.benchmarks.peers import endless_episode as episode
from experiments.installation.commands import install
from tests.refusals import assert_names, refusal

FAST = ["--turns", "2", "--seconds", "0.002"]
CAPACITY, BATCH = 64, 32


class Drawn(NamedTuple):
    """The contents of a batch as NumPy arrays."""

    indices: np.ndarray
    rows: Rows
    weights: np.ndarray


def drawn(name, batch):
    """Return the contents of a batch of a library."""
    if name == "cpprb":  # reuses the arrays for the next batch
        rows = Rows(**{field: np.array(batch[field]) for field in Rows._fields})
        rows = rows._replace(reward=rows.reward[:, 0], discount=rows.discount[:, 0])
        return Drawn(np.array(batch["indexes"]), rows, np.array(batch["weights"]))
    rows = Rows(*(np.asarray(getattr(batch.transition, field)) for field in Rows._fields))
    return Drawn(np.asarray(batch.indices), rows, np.asarray(batch.weights))


def every_peer():
    """Return a test case per library, skipped if its package is missing."""
    cases = []
    for source in peers.SOURCES:
        found = peers.find([source])
        for reason in found.missing.values():
            cases.append(pytest.param(None, id=source, marks=pytest.mark.skip(reason)))
        cases += [pytest.param(peer, id=peer.name) for peer in found.peers]
    return cases


def buffer_of(peer):
    made = peer.make(CAPACITY, BATCH)
    return made if isinstance(made, Buffer) else calls.Called(made)


@pytest.mark.parametrize("peer", every_peer())
def test_every_replay_library_returns_stored_transitions(peer):
    rng = np.random.default_rng(0)
    rows, more = episode(rng, CAPACITY), episode(rng, 10, first=CAPACITY)
    buffer = buffer_of(peer)
    buffer.fill(rows)
    for number in range(10):
        buffer.add(row(more, number))
    buffer.wait()
    written = [np.concatenate(pair) for pair in zip(rows, more, strict=True)]
    seen = set()
    for _ in range(40):
        batch = drawn(peer.name, buffer.sample())
        assert batch.rows.obs.shape == (BATCH, OBS)
        which = np.asarray(batch.rows.reward).astype(int)
        for number, (have, want) in enumerate(zip(batch.rows, written, strict=True)):
            joint = which != CAPACITY - 1  # next_obs differs at the boundary of two episodes
            held = joint if number == 4 else slice(None)
            np.testing.assert_array_equal(have[held], want[which][held])
        seen |= set(which.tolist())
    newest = {CAPACITY + 9}  # has no next observation yet if observations are stored once
    assert seen | newest == set(range(10, CAPACITY + 10))  # the oldest ten were overwritten


@pytest.mark.parametrize("peer", every_peer())
def test_prioritised_libraries_sample_in_proportion_to_priority(peer):
    if not peer.prioritised:
        pytest.skip("uniform")
    buffer = buffer_of(peer)
    buffer.fill(episode(np.random.default_rng(0), CAPACITY))
    td = 1.0 + np.arange(CAPACITY, dtype=np.float32) % 4  # by slot
    for _ in range(30):  # until every slot has been drawn and has its priority
        batch = buffer.sample()
        buffer.update(batch, buffer.errors(td[drawn(peer.name, batch).indices]))
    batches = [drawn(peer.name, buffer.sample()) for _ in range(150)]
    indices = np.concatenate([batch.indices for batch in batches])
    share = np.bincount(indices % 4, minlength=4) / indices.size
    # flashbax never draws the newest of the 64 transitions, which has the largest priority here.
    expected = np.arange(1.0, 5.0) ** ALPHA / (np.arange(1.0, 5.0) ** ALPHA).sum()
    np.testing.assert_allclose(share, expected, atol=0.03)
    weights = np.concatenate([batch.weights for batch in batches])
    likely, rare = weights[indices % 4 == 3].mean(), weights[indices % 4 == 0].mean()
    assert likely / rare == pytest.approx(4.0 ** (-ALPHA * BETA), rel=0.02)


def test_fused_call_equals_separate_calls_of_each_function():
    (peer,) = [peer for peer in peers.find(["ours"]).peers if peer.prioritised]
    rng = np.random.default_rng(0)
    rows = episode(rng, CAPACITY + 5)
    apart, source = buffer_of(peer), buffer_of(peer)
    for buffer in (apart, source):
        buffer.fill(jax.tree.map(lambda x: x[:CAPACITY], rows))
    together = calls.OneCall(source)
    batch = apart.sample()
    for number in range(CAPACITY, CAPACITY + 5):
        errors = jnp.asarray(rng.standard_normal(BATCH, np.float32))
        apart.update(batch, errors)
        apart.add(row(rows, number))
        batch = apart.sample()
        one = together.run(row(rows, number), errors)
        jax.tree.map(np.testing.assert_array_equal, one, batch)
    np.testing.assert_array_equal(together.state.ring.words, apart.state.ring.words)
    np.testing.assert_array_equal(together.state.sampler.tree.nodes, apart.state.sampler.tree.nodes)


def test_replay_command_measures_every_mode_and_lists_missing_libraries(
    tmp_path, capsys, monkeypatch
):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "flashbax" else real(name, *rest),
    )
    out = tmp_path / "new" / "replay.json"
    argv = ["--capacities", "100", "--batch-sizes", "16", "--seeds", "2", "--out", str(out)]
    argv += ["--peers", "ours", "flashbax", "--order", ORDERS[1]]
    assert replay.main([*argv, *FAST]) == 0
    content = json.loads(out.read_text())
    assert {"processor", "cores", "device", "jax", "python"} <= content["machine"].keys()
    assert content["missing"] == ["flashbax"]
    results = content["results"]
    assert list(dict.fromkeys(r["mode"] for r in results)) == list(replay.MODES)
    assert all(len(r["us"]) == 2 and min(r["us"]) > 0 and r["median_us"] > 0 for r in results)
    assert {r["peer"] for r in results} == {"jaxreplay per", "jaxreplay uniform"}
    assert all(r["ratio_to_ours"] == 1 for r in results)
    assert {r["large_copies"] for r in results if r["mode"] in ("scan", "vmapped")} == {0}
    printed = capsys.readouterr().out
    assert "| jaxreplay per " in printed
    assert_names(printed, "vmapped", "flashbax", install("bench"))


def test_failing_libraries_are_listed_with_the_reason(monkeypatch):
    def broken(name):
        raise ImportError("undefined\n  symbol")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(importlib, "import_module", broken)
    found = peers.find(["flashbax"])
    assert found.peers == ()
    assert_names(found.missing["flashbax"], "undefined symbol")


@pytest.mark.parametrize(
    ("command", "argv", "parts"),
    [
        (replay, ["--capacities", "10", "--batch-sizes", "32"], ("batch_sizes", "32", "10")),
        (replay, ["--turns", "0"], ("--turns", "0")),
        (replay, ["--seconds", "0"], ("--seconds", "0.0")),
        (replay, ["--modes", "scam"], ("--modes", "scam", "scan")),
        (replay, ["--peers", "flashback"], ("--peers", "flashback", "flashbax")),
        (methods, ["--batch-size", "32", "--capacity", "8"], ("batch_size", "32", "8")),
    ],
)
def test_commands_reject_options_in_one_line(command, argv, parts, capsys):
    assert_names(refusal(capsys, command.main, *argv), *parts)


def test_methods_command_runs(tmp_path, capsys):
    out = tmp_path / "methods.json"
    argv = ["--capacity", "64", "--batch-size", "8", "--methods", "per", "uniform", *FAST]
    assert methods.main([*argv, "--out", str(out)]) == 0
    results = json.loads(out.read_text())["results"]
    assert [one["method"] for one in results] == ["per", "uniform"] and results[0]["ratio"] == 1
    assert "| per " in capsys.readouterr().out


@pytest.mark.slow  # compiles the same programs as the other benchmarks
def test_training_command_runs(tmp_path, capsys):
    out = tmp_path / "training.json"
    argv = ["--cases", "dqn", "--replays", "uniform", "per", "--seeds", "1", "--capacity", "300"]
    assert training.main([*argv, *FAST, "--out", str(out)]) == 0
    content = json.loads(out.read_text())
    uniform, per = content["results"]
    assert (uniform["loop"], per["loop"]) == ("uniform", "per")
    for result in (uniform, per):
        assert len(result["us"]) == 2
        assert min(*result["us"], result["steps_per_second"]) > 0 and result["large_copies"] == 0
    assert per["to_ours"] > 0 and uniform["to_ours"] == 1
    assert_names(capsys.readouterr().out, "uniform", "per", "dqn", "steps_per_second")


def test_capacities_below_the_batch_are_rejected_before_compilation(capsys):
    assert_names(refusal(capsys, training.main, "--capacity", "100"), "capacity", "100", "256")
