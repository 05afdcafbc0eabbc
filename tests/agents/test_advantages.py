"""Closed-form advantages against numbers worked by hand and against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import advantages
from agents.advantages import FORMS

MEAN, VARIANCE, ACTION = np.float32([[0.1, -0.2], [0.2, 0.05], [0.4, -0.5]])
ADVANTAGE = {name: jax.jit(form.advantage) for name, form in FORMS.items()}


def before_softplus(values):
    return np.log(np.expm1(np.asarray(values)))


FACTOR = np.r_[before_softplus(0.9), -0.4, before_softplus(0.6)]
SG = before_softplus([1.3, 0.5, 0.3])
DG = before_softplus([1.3, 0.5, 0.3, 0.2, 1.0])
OUTPUTS = {"quadratic": FACTOR, "sg": SG, "dg": DG}


@pytest.mark.parametrize(
    ("form", "f", "expectation", "advantage"),
    [
        ("quadratic", -0.09225, -0.094, 0.00175),
        ("sg", 1.0226162194, 1.0171990354, 0.005417184),
        ("dg", 1.1358306852, 0.9593889907, 0.1764416945),
    ],
)
def test_advantages_and_expectations_worked_by_hand(form, f, expectation, advantage):
    outputs = np.float32(OUTPUTS[form])
    got = ADVANTAGE[form](outputs, ACTION, MEAN, VARIANCE)
    assert float(got) == pytest.approx(advantage, abs=3e-7)
    if form == "quadratic":
        factor = advantages.lower_triangular(outputs, 2)
        np.testing.assert_allclose(factor, [[0.9, 0], [-0.4, 0.6]], rtol=1e-6)
        parts = advantages.quadratic(factor, ACTION, MEAN)
        mean = advantages.quadratic_expectation(factor, VARIANCE)
    else:
        height, above, below = 1.3, jnp.asarray([0.5, 0.3]), jnp.asarray([0.2, 1.0])
        below = above if form == "sg" else below
        parts = advantages.gaussian(height, below, above, ACTION, MEAN)
        mean = advantages.gaussian_expectation(height, below, above, VARIANCE)
    assert float(parts) == pytest.approx(f, rel=1e-6)
    assert float(mean) == pytest.approx(expectation, rel=1e-6)


floats = st.floats(-3, 3, width=32)


def expectation_of(height, above, below, variance):
    """Return the expectation of height times a product of numerically integrated dimensions."""
    product = height
    for up, down, v in zip(above, below, variance, strict=True):
        d = np.linspace(-8, 8, 8001) * np.sqrt(v)
        density = np.exp(-0.5 * d**2 / v) / np.sqrt(2 * np.pi * v)
        bump = np.exp(-0.5 * d**2 / np.where(d > 0, up, down))
        product *= (density * bump).sum() * (d[1] - d[0])
    return product


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(OUTPUTS)),
    st.lists(floats, min_size=5, max_size=5),
    st.lists(floats, min_size=4, max_size=4),
    st.lists(st.floats(0.0625, 2, width=32), min_size=2, max_size=2),
)
def test_advantage_is_largest_at_the_mean(form, outputs, points, variance):
    outputs = np.float32(outputs[: FORMS[form].size(2)])
    mean, away, variance = np.float32(points[:2]), np.float32(points[2:]), np.float32(variance)
    best = float(ADVANTAGE[form](outputs, mean, mean, variance))
    other = float(ADVANTAGE[form](outputs, mean + away, mean, variance))
    assert best >= -1e-6 and other <= best + 1e-6
    positive = np.log1p(np.exp(np.asarray(outputs, np.float64)))
    if form == "quadratic":
        factor = np.array([[positive[0], 0.0], [outputs[1], positive[2]]])
        expected = 0.5 * np.trace(factor @ factor.T @ np.diag(variance))
    else:
        height, above = positive[0], positive[1:3]
        below = above if form == "sg" else positive[3:5]
        expected = height - expectation_of(height, above, below, variance)
    assert best == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_gradients_are_finite_at_the_mean():
    for form, outputs in OUTPUTS.items():
        grad = jax.jit(jax.grad(FORMS[form].advantage))(np.float32(outputs), MEAN, MEAN, VARIANCE)
        assert np.isfinite(grad).all()


def test_networks_have_the_required_number_of_outputs():
    assert [FORMS[name].size(17) for name in ("dg", "sg", "quadratic", "none")] == [35, 18, 153, 0]
    for form in FORMS.values():
        assert form.bias(3).shape == (form.size(3),)
