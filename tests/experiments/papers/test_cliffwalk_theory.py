"""Theorem 1 on the Blind Cliffwalk: closed forms, and simulations within standard errors."""

import itertools

import numpy as np
import pytest

from experiments.papers.cliffwalk_theory import PROCESSES, expected_per, expected_pser, simulate

RUNS = 4000


def test_closed_form_of_per_equals_expected_updates():
    expected = {2: 4, 3: 11.5, 4: 27.25, 6: 123.0625, 8: 507.015625, 10: 2043.00390625}
    for n, updates in expected.items():
        assert expected_per(n) == updates
        assert expected_per(n, "pre") == updates + n - 1
    assert expected_per(16) == pytest.approx(131067.0001, abs=1e-4)


@pytest.mark.parametrize(
    ("rho", "expected"),
    [
        (0.4, {2: 2.4, 3: 3.96, 4: 5.584, 6: 8.893, 12: 18.889, 16: 25.556}),
        (0.65, {2: 2.65, 4: 7.07, 12: 29.01, 16: 40.414}),
        (0.8, {2: 2.8, 4: 8.192, 12: 41.374, 16: 60.563}),
    ],
)
def test_expression_for_pser_equals_its_closed_form(rho, expected):
    for n, updates in expected.items():
        assert expected_pser(n, rho) == pytest.approx(updates, abs=6e-4)
        closed = n / (1 - rho) - rho * (1 - rho**n) / (1 - rho) ** 2
        assert expected_pser(n, rho) == pytest.approx(closed)


def mean_and_error(n, process, rho):
    updates = simulate(n, process, rho, np.random.default_rng(n), RUNS)
    return updates.mean(), updates.std(ddof=1) / np.sqrt(RUNS)


@pytest.mark.parametrize("n", [2, 5, 8, 16])
def test_simulations_agree_with_exact_expectations(n):
    for process, exact in (
        ("per-post", expected_per(n)),
        ("per-pre", expected_per(n, "pre")),
        ("pser-idealised", expected_pser(n, 0.65)),
    ):
        mean, error = mean_and_error(n, process, 0.65)
        assert abs(mean - exact) < 4 * error


@pytest.mark.parametrize("rho", [0.4, 0.8])
def test_simulations_on_two_states_agree_with_hand_calculation(rho):
    mean, error = mean_and_error(2, "pser-post", rho)
    assert abs(mean - (2 / (1 + rho) + 5 * rho / (1 + rho))) < 4 * error
    mean, error = mean_and_error(2, "pser-pre", rho)
    assert abs(mean - 3) < 4 * error


def step_by_step(n, process, rho, rng):
    """Return the number of updates of one run that keeps a priority for every transition."""
    memory = [
        (state, actions[state], number)
        for number, actions in enumerate(itertools.product((1, 0), repeat=n))
        for state in range(n)
        if all(actions[:state])
    ]
    pser, discount = process.startswith("pser"), 1 - 1 / n
    priority = np.zeros(len(memory))
    priority[:n] = [rho ** (n - 1 - s) if pser else s == n - 1 for s in range(n)]
    q, true = np.zeros((n + 1, 2)), discount ** (n - 1.0 - np.arange(n))
    for updates in itertools.count():
        if np.allclose(q[:n, 1], true, rtol=0, atol=1e-12):
            return updates
        total = priority.sum()
        drawn = rng.choice(len(memory), p=priority / total if total > 0 else None)
        state, right, number = memory[drawn]
        target = right * (discount * q[state + 1].max() if state < n - 1 else 1.0)
        error, q[state, right] = abs(target - q[state, right]), target
        if process == "pser-idealised":
            priority[drawn] *= error == 0
        else:
            priority[drawn] = error if process.endswith("pre") else 0.0
        for k in range(1, state + 1) if process == "pser-pre" else ():
            assert memory[drawn - k][2] == number
            priority[drawn - k] = max(priority[drawn - k], error * rho**k)


@pytest.mark.parametrize("process", PROCESSES)
def test_aggregated_simulation_agrees_with_the_full_memory(process):
    runs, rng = 300, np.random.default_rng(4)
    other = np.array([step_by_step(4, process, 0.65, rng) for _ in range(runs)])
    mean, error = mean_and_error(4, process, 0.65)
    assert abs(mean - other.mean()) < 4 * np.hypot(error, other.std(ddof=1) / np.sqrt(runs))
