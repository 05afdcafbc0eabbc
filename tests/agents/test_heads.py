"""Heads: projections, cross-entropies and quantile losses, by hand and by loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.heads import cross_entropy, kl_divergence, project, quantile_huber
from tests.agents import tools

SUPPORT = np.linspace(-1, 1, 5).astype(np.float32)  # -1, -0.5, 0, 0.5, 1
project_ = jax.jit(project)


def loop(probability, reward, discount, support):
    """Return the projection by Algorithm 1 of Bellemare et al. 2017, atom by atom."""
    out = np.zeros(len(support))
    gap = (float(support[-1]) - float(support[0])) / (len(support) - 1)
    for p, z in zip(np.float64(probability), np.float64(support)):
        moved = min(max(float(reward) + float(discount) * z, float(support[0])), float(support[-1]))
        place = (moved - float(support[0])) / gap
        lower, upper = int(np.floor(place)), int(np.ceil(place))
        lower, upper = max(lower, 0), min(upper, len(support) - 1)
        if lower == upper:  # on an atom, both fractions below would be 0
            out[lower] += p
        else:
            out[lower] += p * (upper - place)
            out[upper] += p * (place - lower)
    return out


@st.composite
def cases(draw):
    """Draw probabilities, a reward, a discount and a support."""
    atoms = draw(st.sampled_from([2, 3, 51]))  # few shapes, few compilations
    low = draw(st.floats(-20, 20))
    high = low + draw(st.floats(0.5, 40))
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    probability = rng.dirichlet(np.full(atoms, draw(st.sampled_from([0.05, 1.0, 50.0]))))
    reward = draw(st.floats(-50, 50))
    discount = draw(st.sampled_from([0.0, 0.5, 0.970299, 1.0]))
    return (
        np.float32(probability),
        np.float32(reward),
        np.float32(discount),
        np.linspace(low, high, atoms).astype(np.float32),
    )


@pytest.mark.parametrize(
    ("probability", "reward", "discount", "expected"),
    [
        # The atom 0.5 moves to 0.1 + 0.5 * 0.5 = 0.35: fractions 0.3 to 0 and 0.7 to 0.5.
        ([0, 0, 0, 1, 0], 0.1, 0.5, [0, 0, 0.3, 0.7, 0]),
        # A discount of 0.5 gives -0.5, -0.25, 0, 0.25, 0.5.
        ([0.2, 0.2, 0.2, 0.2, 0.2], 0.0, 0.5, [0, 0.3, 0.4, 0.3, 0]),
        # Identity.
        ([0.1, 0.2, 0.3, 0.4, 0], 0.0, 1.0, [0.1, 0.2, 0.3, 0.4, 0]),
        # A shift by one atom clips the last two.
        ([0.1, 0.2, 0.3, 0.2, 0.2], 0.5, 1.0, [0, 0.1, 0.2, 0.3, 0.4]),
        # Terminated: a point mass at the reward, on an atom, between atoms, outside the support.
        ([0.2, 0.2, 0.2, 0.2, 0.2], 0.5, 0.0, [0, 0, 0, 1, 0]),
        ([0.2, 0.2, 0.2, 0.2, 0.2], -0.6, 0.0, [0.2, 0.8, 0, 0, 0]),
        ([0.2, 0.2, 0.2, 0.2, 0.2], 7.0, 0.0, [0, 0, 0, 0, 1]),
        ([0.2, 0.2, 0.2, 0.2, 0.2], -7.0, 0.0, [1, 0, 0, 0, 0]),
    ],
)
def test_projection_worked_by_hand(probability, reward, discount, expected):
    args = np.float32(probability), np.float32(reward), np.float32(discount), SUPPORT
    np.testing.assert_allclose(project_(*args), expected, atol=1e-6)
    np.testing.assert_allclose(loop(*args), expected, atol=1e-6)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_projection_agrees_with_algorithm_1_and_keeps_mass_and_mean(case):
    probability, reward, discount, support = case
    gap = (support[-1] - support[0]) / (len(support) - 1)
    out = np.float64(project_(*case))
    np.testing.assert_allclose(out, loop(*case), atol=3e-4)
    assert (out >= 0).all()
    np.testing.assert_allclose(out.sum(), probability.sum(), atol=2e-4)
    moved = np.float64(reward) + np.float64(discount) * support
    clipped = np.clip(moved, support[0], support[-1])
    # The mean of the clipped atoms, which is the moved mean if no atom was clipped.
    scale = np.abs(support).max() + 1
    np.testing.assert_allclose(out @ support, probability @ clipped, atol=2e-4 * scale)
    if (moved > support[-1] + gap).all():
        np.testing.assert_allclose(out[-1], 1, atol=1e-5)
    if (moved < support[0] - gap).all():
        np.testing.assert_allclose(out[0], 1, atol=1e-5)
    if discount == 0:
        assert (out > 1e-4).sum() <= 2
        np.testing.assert_allclose(out @ support, clipped[0], atol=2e-4 * scale)


def test_cross_entropy_worked_by_hand():
    logits = np.log(np.float32([0.5, 0.25, 0.25])) + 3.0
    np.testing.assert_allclose(cross_entropy(jnp.float32([0, 1, 0]), logits), np.log(4), rtol=1e-6)
    np.testing.assert_allclose(
        jax.grad(cross_entropy, argnums=1)(jnp.float32([0, 1, 0]), jnp.asarray(logits)),
        [0.5, -0.75, 0.25],
        atol=1e-6,
    )
    huge = cross_entropy(jnp.float32([0, 1, 0]), jnp.float32([1e4, 0, 0]))
    np.testing.assert_allclose(huge, 1e4)  # log of a probability that underflows in float32


def test_kl_divergence_of_a_correct_prediction_is_zero():
    target = np.float32([0.0, 0.2, 0.3, 0.5])
    entropy = -np.dot(target[1:], np.log(target[1:]))
    for error, expected in ((entropy, 0.0), (entropy - 1e-6, 0.0), (entropy + 0.25, 0.25)):
        found = jax.jit(kl_divergence)(np.float32(error), target)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert found >= 0


@pytest.mark.parametrize(
    ("target", "kappa", "expected"),
    [
        # Differences -1 and 1 of the quantile 1, -1/2 and 3/2 of the quantile 1/2:
        # (3/4 * 1/2 + 1/4 * 1/2) / 2 + (1/4 * 1/8 + 3/4 * 1) / 2
        ([0, 2], 1.0, 0.640625),
        ([0, 2], 0.5, 0.875),
        ([0, 2, 2], 1.0, 0.71875),  # (3/8 + 2 * 1/8) / 3 + (1/32 + 2 * 3/4) / 3
    ],
)
def test_quantile_huber_loss_worked_by_hand(target, kappa, expected):
    args = np.float32(target), np.float32([1, 0.5]), np.float32([0.25, 0.75])
    np.testing.assert_allclose(quantile_huber(*args, kappa), expected, rtol=1e-6)
    np.testing.assert_allclose(tools.quantile_loss(*args, kappa), expected, rtol=1e-6)
