"""Class-imbalanced digits: sets counted by hand, priorities in NumPy, table and figure."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers import __main__ as papers
from experiments.papers import digits, figures, judging
from experiments.papers.archive import Data
from experiments.papers.catalogue import ENTRIES
from experiments.papers.digits import DIGITS, Examples
from experiments.papers.entry import Request
from jaxreplay import Replay, sum_tree
from tests.refusals import assert_names, refusal


def made_up(each=180, seed=0):
    """Return noisy images of one pattern per digit, in the shapes of scikit-learn's digits."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(10, dtype=np.int32), each))
    images = rng.random((10, 8, 8))[labels] + 0.3 * rng.standard_normal((len(labels), 8, 8))
    return images.clip(0, 1).astype(np.float32), labels


def test_images_equal_those_of_scikit_learn():
    pytest.importorskip("sklearn")
    images, labels = digits.load()
    assert images.shape == (1797, 8, 8) and images.dtype == np.float32
    assert images.min() == 0 and images.max() == 1
    # From the description of the data set: 178 zeros, 182 ones, ...
    counted = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(labels).tolist() == counted


def test_missing_scikit_learn_is_reported_with_an_install_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    said = refusal(capsys, papers.main, "run", "per.fig5", "--size", "smoke")
    assert_names(said, "pip install", "[papers]")


def test_training_sets_are_imbalanced_and_disjoint_from_balanced_sets():
    labels = np.repeat(np.arange(10), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    sets = digits.split(labels, 3, train=100, kept=4, validation=30)
    counts = [np.bincount(labels[places]).tolist() for places in sets]
    assert counts == [[4] * 5 + [100] * 5, [30] * 10, [174 - 130] * 10]
    together = np.concatenate(sets)
    assert len(set(together)) == len(together) == 520 + 300 + 440
    again = digits.split(labels, 3, train=100, kept=4, validation=30)
    other = digits.split(labels, 4, train=100, kept=4, validation=30)
    assert all((one == two).all() for one, two in zip(sets, again))
    assert set(sets[2]) != set(other[2])
    # `kept` changes neither the test set nor the order of kept examples.
    more = digits.split(labels, 3, train=100, kept=100, validation=30)
    assert (more[2] == sets[2]).all() and set(sets[0]) < set(more[0])


def test_step_size_minimises_error_then_loss():
    error = np.array([[0.9, 0.9], [0.2, 0.4], [0.3, 0.3]])
    assert digits.choose(error, np.array([[np.nan] * 2, [1.0, 1.0], [0.5, 0.6]])) == 2
    assert digits.choose(error, np.array([[np.nan] * 2, [0.5, 0.5], [0.5, 0.6]])) == 1
    assert digits.choose(error[:2] * 0, np.array([[np.nan, 1.0], [9.0, 9.0]])) == 1


@pytest.fixture(scope="module")
def learner():
    """Training data, a replay of 80 examples, its fill and learning step, initial parameters."""
    images, labels = made_up(8)
    train = Examples(jnp.asarray(images), jnp.asarray(labels))
    replay = Replay(digits.SAMPLERS["per"], capacity=80, num_envs=80, batch_size=60)

    @jax.jit
    def learn(params, memory, key, step_size, factor):
        return digits.learn_once(replay, params, memory, key, step_size, factor)

    fill = jax.jit(functools.partial(digits.fill, replay))
    params = jax.jit(digits.Classifier().init)(jax.random.key(0), train.images[:1])
    return train, replay, fill, learn, params


def in_numpy(params, images):
    """Return logits `[B, 10]` of the classifier, computed in loops."""
    layers = [jax.tree.map(np.asarray, params["params"][f"Dense_{i}"]) for i in range(4)]
    x = np.asarray(images)[..., None]
    for layer in layers[:2]:
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        size = x.shape[1]
        y = np.zeros((*x.shape[:3], len(layer["bias"])))
        for row in range(size):
            for column in range(size):
                patch = padded[:, row : row + 3, column : column + 3].reshape(len(x), -1)
                y[:, row, column] = np.maximum(patch @ layer["kernel"] + layer["bias"], 0)
        x = np.stack([y[:, i::2, j::2] for i in range(2) for j in range(2)]).max(axis=0)
    x = np.maximum(x.reshape(len(x), -1) @ layers[2]["kernel"] + layers[2]["bias"], 0)
    return x @ layers[3]["kernel"] + layers[3]["bias"]


def test_priorities_are_the_losses_before_the_update(learner):
    train, _, fill, learn, params = learner
    memory = fill(train, jax.random.key(1))
    drawn = set()
    for turn in range(2):
        logits = in_numpy(params, train.images)
        logits -= logits.max(axis=1, keepdims=True)
        loss = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(80), train.labels]
        before = np.asarray(sum_tree.leaves(memory.sampler.tree))
        np.testing.assert_array_equal(np.delete(before, sorted(drawn)), 1)  # not drawn yet
        params, memory, slots = learn(params, memory, jax.random.key(turn), 0.5, 25.0)
        expected = before.copy()
        expected[slots] = loss[slots] + 1e-6  # independent of the factor
        drawn |= set(np.asarray(slots).tolist())
        np.testing.assert_allclose(sum_tree.leaves(memory.sampler.tree), expected, rtol=1e-5)


def test_batches_are_drawn_in_proportion_to_the_loss(learner):
    train, replay, fill, learn, params = learner
    memory = fill(train, jax.random.key(1))
    params = jax.tree.map(lambda x: 4 * x, params)  # makes losses differ
    for turn in range(12):
        _, memory, _ = learn(params, memory, jax.random.key(turn), 0.0, 1.0)
    loss = np.asarray(jax.jit(digits.losses)(params, train))
    leaves = np.asarray(sum_tree.leaves(memory.sampler.tree))
    drawn = leaves != 1
    assert drawn.sum() > 60
    np.testing.assert_allclose(leaves[drawn], loss[drawn] + 1e-6, rtol=1e-5)
    share = leaves / leaves.sum()
    assert 1 / (80 * (share**2).sum()) < 0.9
    draw = jax.jit(jax.vmap(lambda key: replay.sample(memory, key).indices))
    counts = np.bincount(draw(jax.random.split(jax.random.key(0), 1000)).ravel(), minlength=80)
    np.testing.assert_allclose(counts / counts.sum(), share, atol=4 * np.sqrt(share / 60_000).max())


def test_factor_multiplies_only_the_loss_of_rare_digits(learner):
    train, _, fill, learn, params = learner

    def after(labels, step_size, factor):
        memory = fill(train._replace(labels=labels), jax.random.key(1))
        return jax.tree.leaves(learn(params, memory, jax.random.key(2), step_size, factor)[0])

    rare, common = train.labels % 5, train.labels % 5 + 5
    for one, other in (
        ((rare, 0.01, 5.0), (rare, 0.05, 1.0)), ((common, 0.01, 5.0), (common, 0.01, 1.0))
    ):  # fmt: skip
        for x, y in zip(after(*one), after(*other)):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_study_writes_table_claims_and_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "load", made_up)
    options, said = DIGITS.options("smoke"), []
    frame = DIGITS.function(Request(options, said.append))
    assert len(said) == 3
    assert set(frame["arm"]) == {"uniform", "informed", "per"}
    assert np.isfinite(frame["value"]).all() and (frame["value"] >= 0).all()
    curve = frame[frame["kind"] == "curve"]
    assert sorted(set(curve["updates"])) == [0, 4, 8, 12, 16, 20]
    assert list(dict.fromkeys(curve["measure"])) == ["test error", "test loss", "train loss"]
    assert len(curve) == 3 * 3 * 6 * 2
    last = curve[(curve["updates"] == 20) & (curve["measure"] == "test error")]
    final = frame[(frame["kind"] == "final") & (frame["measure"] == "test error")]
    np.testing.assert_array_equal(last["value"], final["value"])
    # Arms start from the same weights and sets.
    first = curve[curve["updates"] == 0].pivot_table("value", ["measure", "seed"], "arm")
    assert (first["per"] == first["uniform"]).all() and (first["per"] == first["informed"]).all()
    shares = frame[frame["kind"] == "draws"].pivot_table("value", ["arm", "measure"], "updates")
    np.testing.assert_allclose(shares.loc["uniform", "rare draws"], 20 / 520, rtol=1e-5)
    np.testing.assert_allclose(shares.loc["informed", "effective memory"], 1, rtol=1e-5)
    assert shares.loc[("per", "rare draws"), 20] > 1.2 * 20 / 520
    assert shares.loc[("per", "effective memory"), 20] < 0.99
    tried = frame[frame["kind"] == "search"]
    assert len(tried) == 3 * 2 * 2 and set(tried["step_size"]) == {0.1}

    fig5, fig6 = ENTRIES["per.fig5"], ENTRIES["per.fig6"]
    assert fig6.source is None and fig6.missing
    data = Data(frame, made={"versions": {"code": "0123456789ab"}})
    found = judging.judge_entry(fig5, "smoke", data)
    assert [each.verdict for each in found] == ["pilot"] * 3
    figures.draw(fig5, "smoke", data, tmp_path / "fig5.png")
    assert (tmp_path / "fig5.png").read_bytes().startswith(b"\x89PNG")
