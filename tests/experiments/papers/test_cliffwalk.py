"""The Blind Cliffwalk: its memory by counting, its curves by reference numbers, its figures."""

import jax
import numpy as np
import pandas as pd
import pytest

from experiments.papers import __main__ as papers
from experiments.papers import cliffwalk, cliffwalk_figures


@pytest.mark.parametrize("n", [2, 3, 5])
def test_memory_holds_every_sequence_once(n):
    held = jax.tree.map(np.asarray, cliffwalk.memory(jax.random.key(1), n))
    assert len(held.obs) == 2 ** (n + 1) - 2
    right = held.action == held.obs % 2
    for state in range(n):
        assert (right & (held.obs == state)).sum() == 2 ** (n - 1 - state)
        assert (~right & (held.obs == state)).sum() == 2 ** (n - 1 - state)
    assert held.reward.sum() == 1 and right[held.reward == 1].all()
    assert held.first.sum() == held.last.sum() == 2**n
    # Sequences lie together: after an end comes a start, otherwise the next state.
    assert held.first[0] and held.last[-1]
    np.testing.assert_array_equal(held.first[1:], held.last[:-1])
    on = ~held.last[:-1]
    np.testing.assert_array_equal(held.obs[1:][on], held.next_obs[:-1][on])
    np.testing.assert_array_equal(held.discount, np.where(held.last, 0, np.float32(1 - 1 / n)))
    other = np.asarray(cliffwalk.memory(jax.random.key(2), n).obs)
    assert n == 2 or (other != held.obs).any()


def test_two_states_by_hand():
    held = jax.tree.map(np.asarray, cliffwalk.memory(jax.random.key(0), 2))
    rows = sorted(zip(held.obs, held.action == held.obs % 2, held.reward, held.discount))
    assert rows == [
        (0, False, 0, 0), (0, False, 0, 0), (0, True, 0, 0.5), (0, True, 0, 0.5),
        (1, False, 0, 0), (1, True, 1, 0),
    ]  # fmt: skip
    np.testing.assert_allclose(cliffwalk.true_q(2), [[0.5, 0], [0, 1]])


# Median updates of 10 seeds, from a separate implementation with the same settings.
REFERENCE = {
    "uniform": 1625.5, "oracle": 187, "greedy": 263, "proportional": 432, "rank": 609, "pser": 431.5
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCE)
def test_updates_until_convergence(name):
    curve = cliffwalk.run(6, cliffwalk.METHODS[name])
    assert np.median(curve.updates) == pytest.approx(REFERENCE[name], rel=0.3)
    assert curve.errors.shape[1] == 10
    assert (curve.errors[-1] < curve.errors[0]).all()
    least = (curve.updates // cliffwalk.CHUNK).min()
    assert (curve.errors[:least] > cliffwalk.CONVERGED).all()


def test_linear_values_and_other_starts_converge_too():
    for name in ("proportional", "pser, from epsilon"):
        curve = cliffwalk.run(4, cliffwalk.METHODS[name], seeds=3, linear=True)
        assert (curve.updates > 0).all()


def test_giving_up_says_so():
    curve = cliffwalk.run(6, cliffwalk.METHODS["uniform"], seeds=2, max_updates=300)
    assert curve.updates.tolist() == [-1, -1] and len(curve.errors) == 4


def test_figures_and_their_numbers_are_written(tmp_path, capsys, monkeypatch):
    for names in ("_COMPARED", "_STARTS"):  # every method compiles a program of its own
        monkeypatch.setattr(cliffwalk_figures, names, ("oracle", "uniform"))
    command = ["run", "per.fig1", "pser.fig2", "pser.fig3", "--states", "2", "--seeds", "2"]
    assert papers.main([*command, "--out", str(tmp_path)]) == 0
    for name in papers.FIGURES:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    updates = pd.read_csv(tmp_path / "per.fig1.csv")
    assert len(updates) == 2 * 2 * 1 * 2 and (updates["updates"] > 0).all()
    assert len(set(updates["code"])) == 1
    again = ["run", "per.fig1", "--states", "2", "--seeds", "2", "--out", str(tmp_path)]
    updates.assign(code="0123456789ab").to_csv(tmp_path / "per.fig1.csv", index=False)
    with pytest.raises(SystemExit):
        papers.main(again)
    assert "another version of the code (0123456789ab)" in capsys.readouterr().err
    assert papers.main([*again, "--other-code"]) == 0
    assert papers.main(["list"]) == 0
    assert "pser.fig3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["run", "per.fig9"], "unknown figure 'per.fig9'"),
        (["run", "per.fig1", "--states", "40"], "states is 40: use 2 to 16"),
        (["run", "per.fig1", "--seeds", "1"], "seeds is 1"),
        (["draw"], "draw"),
    ],
)
def test_refusals(options, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        papers.main(options)
    assert exit_.value.code == 2 and message in capsys.readouterr().err
