"""The benchmarks of speed run, at sizes too small to say anything about speed.

No time is asserted but that it is positive.
"""

import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments.benchmarks import (
    compiling,
    figure,
    frames,
    gemm,
    loops,
    measure,
    methods,
    outputs,
    peers,
    replay,
    rows,
)
from experiments.benchmarks.dispatched import Dispatched, DispatchedNumpy, DispatchedPacked
from experiments.benchmarks.growth import memory
from experiments.benchmarks.peers.types import ALPHA, BETA, endless_episode, row
from experiments.benchmarks.tables import table
from experiments.installation.commands import install, install_package
from experiments.runs.results import versions
from jaxreplay.loops import packed
from tests.refusals import assert_names

FAST = ["--turns", "2", "--seconds", "0.002"]
CAPACITY, BATCH = 64, 32


def installed(module):
    source = next(source for source in peers.SOURCES if source.module == module)
    return source.package is None or importlib.util.find_spec(source.package) is not None


def adapters():
    """Return a test case per peer, or one that is skipped for a package that is missing."""
    cases = []
    for source in peers.SOURCES:
        found = peers.find([source.module])
        for why in found.missing.values():
            cases.append(pytest.param(None, id=source.module, marks=pytest.mark.skip(why)))
        cases += [pytest.param(peer, id=peer.name) for peer in found.peers]
    return cases


def buffer_of(peer, capacity=CAPACITY, batch_size=BATCH):
    if peer.replay is not None:
        return Dispatched(peer.replay(capacity, batch_size))
    return (peer.buffer or peer.compiled)(capacity, batch_size)


@pytest.mark.parametrize("peer", adapters())
def test_every_peer_returns_what_was_written(peer):
    rng = np.random.default_rng(0)
    rows, more = endless_episode(rng, CAPACITY), endless_episode(rng, 10, first=CAPACITY)
    buffer = buffer_of(peer)
    buffer.fill(rows)
    for number in range(10):
        buffer.add(row(more, number))
    buffer.wait()
    written = [np.concatenate(pair) for pair in zip(rows, more, strict=True)]
    seen = set()
    for _ in range(40):
        drawn = buffer.drawn(buffer.sample())
        assert drawn.rows.obs.shape == (BATCH, 17)
        which = np.asarray(drawn.rows.reward).astype(int)  # its number
        for number, (have, want) in enumerate(zip(drawn.rows, written, strict=True)):
            joint = which != CAPACITY - 1  # two episodes meet there: no row has that next_obs
            held = joint if number == 4 else slice(None)
            np.testing.assert_array_equal(have[held], want[which][held])
        seen |= set(which.tolist())
    newest = {CAPACITY + 9}  # where observations are stored once, it has no next one yet
    assert seen | newest == set(range(10, CAPACITY + 10))  # the oldest ten were overwritten


@pytest.mark.parametrize("peer", adapters())
def test_every_prioritised_peer_samples_in_proportion_to_priority(peer):
    if not peer.prioritised:
        pytest.skip("uniform")
    buffer = buffer_of(peer)
    buffer.fill(endless_episode(np.random.default_rng(0), CAPACITY))
    td = 1.0 + np.arange(CAPACITY, dtype=np.float32) % 4  # by slot
    for _ in range(30):  # by then every slot has been drawn, and has its priority
        batch = buffer.sample()
        buffer.update(batch, buffer.errors(td[buffer.drawn(batch).indices]))
    drawn = [buffer.drawn(buffer.sample()) for _ in range(150)]
    indices = np.concatenate([each.indices for each in drawn])
    share = np.bincount(indices % 4, minlength=4) / indices.size
    # Flashbax never draws the newest row, of the largest priority here: 1 of 64.
    expected = np.arange(1.0, 5.0) ** ALPHA / (np.arange(1.0, 5.0) ** ALPHA).sum()
    np.testing.assert_allclose(share, expected, atol=0.03)
    weights = np.concatenate([each.weights for each in drawn])
    likely, rare = weights[indices % 4 == 3].mean(), weights[indices % 4 == 0].mean()
    assert likely / rare == pytest.approx(4.0 ** (-ALPHA * BETA), rel=0.02)


def test_one_call_does_what_the_verbs_do():
    (peer,) = [peer for peer in peers.find(["ours"]).peers if peer.prioritised]
    together, apart = buffer_of(peer), buffer_of(peer)
    rng = np.random.default_rng(0)
    rows = endless_episode(rng, CAPACITY + 5)
    for buffer in (together, apart):
        buffer.fill(jax.tree.map(lambda x: x[:CAPACITY], rows))
    few, views = (
        kind(peer.replay(CAPACITY, BATCH), jax.tree.map(jnp.copy, together.state))
        for kind in (DispatchedPacked, DispatchedNumpy)
    )
    batch = apart.sample()
    for number in range(CAPACITY, CAPACITY + 5):
        errors = together.errors(rng.standard_normal(BATCH, np.float32))
        drawn = together.turn(row(rows, number), errors)
        one = few.turn(row(rows, number), errors)
        jax.tree.map(np.testing.assert_array_equal, packed.unpack(one), drawn)
        seen = views.turn(row(rows, number), np.asarray(errors))
        assert isinstance(seen.weights, np.ndarray)
        jax.tree.map(np.testing.assert_array_equal, seen, drawn)
        apart.update(batch, errors)
        apart.add(row(rows, number))
        batch = apart.sample()
        np.testing.assert_array_equal(drawn.indices, batch.indices)
        np.testing.assert_array_equal(drawn.weights, batch.weights)
    jax.tree.map(np.testing.assert_array_equal, few.state, together.state)
    np.testing.assert_array_equal(together.state.ring.words, apart.state.ring.words)
    np.testing.assert_array_equal(together.state.sampler.tree.nodes, apart.state.sampler.tree.nodes)


@pytest.mark.skipif(not installed("compiled_loop"), reason="numba is not installed")
def test_compiled_loop_keeps_its_tree_through_every_verb():
    (peer,) = peers.find(["compiled_loop"]).peers
    buffer = peer.compiled(CAPACITY + 3, BATCH)
    buffer.fill(endless_episode(np.random.default_rng(0), CAPACITY + 3))
    for verb in (*loops.VERBS, *loops.ORDERS):
        buffer.run(verb, 5)
    state = buffer._state
    leaves = state.nodes[: CAPACITY + 3]
    assert (leaves > 0).all()
    assert state.nodes[-1] == pytest.approx(leaves.sum(dtype=np.float64), rel=1e-6)
    assert state.largest[0] >= leaves.max()
    assert len(np.unique(leaves)) > 10


def test_replay_command_measures_every_mode(tmp_path, capsys):
    argv = ["--capacities", "100", "--batch-sizes", "16", "--seeds", "2"]
    argv += ["--peers", "ours", "--verbs", "update", "cycle"]
    out, png = tmp_path / "new" / "replay.json", tmp_path / "replay.png"
    argv += ["--out", str(out), "--figure", str(png)]
    assert replay.main([*argv, *FAST]) == 0
    content = json.loads(out.read_text())
    assert {"processor", "cores", "device", "jax", "python"} <= content["machine"].keys()
    assert content["missing"] == []
    results = content["results"]
    assert list(dict.fromkeys(r["mode"] for r in results)) == list(measure.MODES)
    assert all(len(r["us"]) == 2 and min(r["us"]) > 0 and r["median_us"] > 0 for r in results)
    assert {r["peer"] for r in results} == {"jaxreplay per", "jaxreplay uniform"}
    assert all(r["ratio_to_ours"] == 1 for r in results)
    compiled = [r for r in results if r["mode"] in ("scan", "vmapped", "train")]
    assert {r["large_copies"] for r in compiled} == {0}
    assert png.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr()
    assert "| jaxreplay per " in printed.out
    assert_names(printed.out, "vmapped", "2")
    assert_names(printed.err, "jaxreplay uniform")


def test_numbers_take_the_place_of_numbers_alone(tmp_path, capsys):
    mine, plan, ours = (tmp_path / name for name in ("mine.json", "plan.md", "new/ours.json"))
    mine.write_text('{"machine": "mine"}')
    plan.write_text("notes")
    (tmp_path / "x.png").write_bytes(b"a picture")
    for option, path, *parts in (
        ("--out", mine, mine),
        ("--out", plan, plan, ".json"),
        ("--out", tmp_path, tmp_path, ".json"),
        ("--out", mine / "x.json", mine),
        ("--figure", tmp_path / "x.png", tmp_path / "x.png"),
    ):
        with pytest.raises(SystemExit):
            replay.main([option, str(path)])
        assert_names(capsys.readouterr().err.splitlines()[-1], option, *parts)
    assert mine.read_text() == '{"machine": "mine"}' and plan.read_text() == "notes"
    assert outputs.numbers(str(ours)) == ours and not ours.parent.exists()
    outputs.write(ours, {"us": [1.0]})
    assert outputs.numbers(str(ours)) == ours
    summary = tmp_path / "summary.json"  # of a run
    summary.write_text(json.dumps({"env": "x", "versions": versions()}))
    with pytest.raises(SystemExit):
        methods.main(["--out", str(summary)])
    assert_names(capsys.readouterr().err, "--out", summary)


def test_figure_has_a_panel_per_mode_and_batch_size(tmp_path):
    def result(capacity, batch_size, mode, peer):
        us = float(capacity + batch_size)
        return measure.Result(
            capacity, batch_size, mode, measure.CYCLE, loops.ORDERS[0], peer, (us,), us, 1.0, 0
        )

    results = [
        result(capacity, batch_size, mode, peer)
        for capacity in (1_000, 2**20)
        for batch_size in (8, 32)
        for mode in ("scan", "train")
        for peer in ("jaxreplay per", *map(str, range(12)))
    ]
    sizes = []
    for number, some in enumerate((results, results[:13])):
        figure.plot(some, tmp_path / f"{number}.png", "a machine")
        sizes.append(Image.open(tmp_path / f"{number}.png").size)
        assert outputs.picture(str(tmp_path / f"{number}.png")).is_file()  # it may be drawn again
    assert sizes[0][0] > sizes[1][0] and sizes[0][1] > sizes[1][1]


def test_replay_command_names_missing_peers_and_goes_on(tmp_path, capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("flashbax", "torchrl") else real(name, *rest),
    )
    out = tmp_path / "replay.json"
    argv = ["--capacities", "64", "--batch-sizes", "8", "--modes", "one-call", "--verbs", "cycle"]
    argv += ["--peers", "ours", "flashbax", "torchrl", "--out", str(out)]
    assert replay.main([*argv, *FAST]) == 0
    printed = capsys.readouterr().out
    assert_names(printed, "flashbax", install("bench"), "torchrl", install_package("torchrl"))
    content = json.loads(out.read_text())
    assert content["missing"] == ["flashbax", "torchrl"]
    assert {r["peer"] for r in content["results"]} == {"jaxreplay per", "jaxreplay uniform"}


def test_a_peer_that_does_not_work_is_named_with_the_reason(monkeypatch):
    def broken(name):
        raise ImportError("undefined\n  symbol")

    monkeypatch.setattr(importlib, "import_module", broken)
    found = peers.find(["cumsum"])
    assert found.peers == ()
    assert set(found.missing) == {"cumsum"}
    assert_names(found.missing["cumsum"], "undefined symbol")


def test_growth_of_costs_and_memory(tmp_path, capsys):
    out = tmp_path / "growth.json"
    argv = ["--growth", "--capacities", "600", "100", "--batch-sizes", "8", "--out", str(out)]
    assert replay.main([*argv, *FAST]) == 0
    content = json.loads(out.read_text())
    small, large = content["growth"]
    assert (small["capacity"], large["capacity"]) == (100, 600)
    assert small["replay_ratio"] == small["tree_ratio"] == 1
    assert min(large["replay_us"], large["tree_us"], large["tree_ratio"]) > 0
    assert set(content["tree_memory_by_branching"]) == {"2", "4", "8", "16", "32", "128"}
    assert_names(capsys.readouterr().out, "tree")


@pytest.mark.parametrize("branching", [8, 16, 32])
def test_tree_takes_little_more_than_its_leaves(branching):
    assert 1 < memory(2**20, branching) <= 1.2


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--capacities", "10", "--batch-sizes", "32"], ("batch_sizes", "32", "10")),
        (["--turns", "0"], ("--turns", "0")),
        (["--seconds", "0"], ("--seconds", "0.0")),
        (["--modes", "scam"], ("--modes", "scam", "scan")),
        (["--peers", "flashback"], ("--peers", "flashback", "flashbax")),
        (["--figure", "x.png", "--verbs", "add"], ("--figure", "cycles")),
    ],
)
def test_replay_command_refuses_in_one_line(argv, parts, capsys):
    with pytest.raises(SystemExit) as stop:
        replay.main(argv)
    printed = capsys.readouterr().err
    assert stop.value.code == 2 and printed.count("\n") == 1
    assert_names(printed, *parts)


def test_methods_command(tmp_path, capsys):
    out = tmp_path / "methods.json"
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        some = {name: methods.samplers()[name] for name in ("per", "uniform")}
        patch.setattr(methods, "samplers", lambda: some)
        argv = ["--capacity", "64", "--batch-size", "8", "--cycles", "5", "--turns", "2"]
        assert methods.main([*argv, "--out", str(out)]) == 0
    assert set(json.loads(out.read_text())["methods"]) == {"per", "uniform"}
    assert "| per " in capsys.readouterr().out


def test_frames_command(tmp_path, capsys):
    sizes = ["--capacity", "40", "--batch-size", "4", "--samples", "2", "--turns", "2"]
    assert frames.main([*sizes, "--out", str(tmp_path / "frames.json")]) == 0
    printed = capsys.readouterr().out
    replays = json.loads((tmp_path / "frames.json").read_text())["replays"]
    assert list(replays) == [
        f"{method}, frames on the {where}" for method in ("uniform", "per")
        for where in ("device", "host")
    ]  # fmt: skip
    for name, entry in replays.items():
        assert min(entry["us"]) > 0 and len(entry["us"]) == 2 and f"| {name} |" in printed
        assert entry["bytes"] / 40 > 84 * 84
    with pytest.raises(SystemExit):
        frames.main(["--turns", "0"])
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    assert_names(said, "turns", "0")


def test_rows_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rows, "_METHODS", ("per",))
    monkeypatch.setattr(rows, "_LOOPS", ())  # other tests train on the host
    sizes = ["--capacity", "40", "--batch-size", "4", "--turns", "2", "--milliseconds", "5"]
    assert rows.main([*sizes, "--out", str(tmp_path / "rows.json")]) == 0
    (name,) = found = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert f"| {name} " in capsys.readouterr().out
    assert len(found[name]["us"]["host"]) == 2 and found[name]["ratio"] > 0
    whole, part, host = found[name]["bytes"].values()
    assert host == 40 * 4 * (2 * 376 + 17) and whole - part == host - 4 * (2 * 376 + 18)


def test_products_of_a_program_are_counted():
    def function(x, y, flag):
        def body(_, x):
            return jnp.tanh(x @ y)

        x = jax.lax.fori_loop(0, 3, body, x)  # of known length: a scan
        return jax.lax.cond(flag, lambda: (x @ y).sum(), lambda: x.sum())

    found = gemm.products(function, jnp.ones((5, 4)), jnp.ones((4, 4)), True, share=0.5)
    assert [product.times for product in found] == [3.0, 0.5]
    assert gemm.operations(found) == 3.5 * 2 * 5 * 4 * 4
    batched = found[0].over(7)
    assert batched.left == (7, 5, 4) and batched.operations() == 7 * 2 * 5 * 4 * 4
    result = jax.lax.dot_general(jnp.ones(batched.left), jnp.ones(batched.right),
                                 batched.dimensions)  # fmt: skip
    assert result.shape == (7, 5, 4)
    assert gemm.run_of([*found, batched])(3) > 0


def test_tables_are_markdown():
    text = table(["us", "cycle"], [["ours", 12.345], ["theirs", None], ["slow", 12345.6]])
    assert text.splitlines() == [
        "| us     |  cycle |",
        "| ------ | -----: |",
        "| ours   |   12.3 |",
        "| theirs |      - |",
        "| slow   | 12,346 |",
    ]


@pytest.mark.slow
def test_compiling_is_timed(tmp_path):
    out = tmp_path / "numbers.json"
    argv = ["--cases", "dqn", "--replays", "uniform", "--seeds", "1", "--out", str(out)]
    assert compiling.main(argv) == 0
    results = json.loads(out.read_text())["results"]
    assert [one["program"] for one in results] == ["warm-up", "training"]
    assert all(one["compiling"] > 0 and one["instructions"] > 100 for one in results)
