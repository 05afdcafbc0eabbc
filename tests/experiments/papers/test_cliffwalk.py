"""Blind Cliffwalk: memory, curves compared with reference numbers, and tables."""

import jax
import numpy as np
import pytest

from experiments.papers import cliffwalk, cliffwalk_tables
from experiments.papers.entry import Request


def test_memory_contains_every_sequence_once():
    n = 5
    held = jax.tree.map(np.asarray, cliffwalk.memory(jax.random.key(1), n))
    assert len(held.obs) == 2 ** (n + 1) - 2
    right = held.action == held.obs % 2
    for state in range(n):
        assert (right & (held.obs == state)).sum() == 2 ** (n - 1 - state)
        assert (~right & (held.obs == state)).sum() == 2 ** (n - 1 - state)
    assert held.reward.sum() == 1 and right[held.reward == 1].all()
    assert held.first.sum() == held.last.sum() == 2**n
    # Sequences are contiguous: after a last step comes a first one, otherwise the next state.
    assert held.first[0] and held.last[-1]
    np.testing.assert_array_equal(held.first[1:], held.last[:-1])
    on = ~held.last[:-1]
    np.testing.assert_array_equal(held.obs[1:][on], held.next_obs[:-1][on])
    np.testing.assert_array_equal(held.discount, np.where(held.last, 0, np.float32(1 - 1 / n)))
    other = np.asarray(cliffwalk.memory(jax.random.key(2), n).obs)
    assert (other != held.obs).any()


def test_memory_and_true_values_of_two_states_equal_hand_calculation():
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


@pytest.mark.parametrize(
    "name",
    [
        # distributions of these draws: tests/jaxreplay/methods
        pytest.param(name, marks=pytest.mark.slow if name in ("greedy", "rank") else ())
        for name in REFERENCE
    ],
)
def test_updates_until_convergence_match_reference_numbers(name):
    curve = cliffwalk.run(6, cliffwalk.METHODS[name])
    assert np.median(curve.updates) == pytest.approx(REFERENCE[name], rel=0.3)
    assert curve.errors.shape[1] == 10
    assert (curve.errors[-1] < curve.errors[0]).all()
    least = (curve.updates // cliffwalk.CHUNK).min()
    assert (curve.errors[:least] > cliffwalk.CONVERGED).all()


def test_linear_values_with_initial_priorities_of_epsilon_converge():
    curve = cliffwalk.run(3, cliffwalk.METHODS["pser, from epsilon"], seeds=3, linear=True)
    assert (curve.updates > 0).all()


def test_runs_that_do_not_converge_have_minus_one_updates():
    curve = cliffwalk.run(6, cliffwalk.METHODS["oracle"], seeds=2, max_updates=100)
    assert curve.updates.tolist() == [-1, -1] and len(curve.errors) == 2


def test_tables_contain_updates_and_curves():
    request = Request({"states": (2, 3), "seeds": 2, "methods": ("oracle",)}, str)
    frame = cliffwalk_tables.updates_by_size(request)
    updates = frame[frame["kind"] == "updates"]
    assert len(updates) == 2 * 2 * 2 and (updates["value"] > 0).all()
    assert set(updates["size"]) == {6, 14}
    errors = frame[frame["kind"] == "error"]
    assert set(errors["n"]) == {3} and (errors["value"] > 0).all()
    first = errors[errors["updates"] == 0].groupby("arm")["value"].mean()
    assert (errors.groupby("arm")["value"].min() < first).all()


def test_only_simulated_pser_deviates_from_the_theorem():
    request = Request({"states": (2, 4), "seeds": 10, "rhos": (0.4,)}, str)
    frame = cliffwalk_tables.expected_updates(request)
    exact = frame[frame["claim"].notna()]
    off = (exact["found"] - exact["expected"]).abs() > exact["tolerance"]
    assert set(exact.loc[off, "claim"]) == {"simulated: pser-post", "simulated: pser-pre"}
    assert set(exact["n"]) == {2, 4}
