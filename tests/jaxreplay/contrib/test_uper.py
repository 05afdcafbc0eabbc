"""UPER: information gains and probabilities worked by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay.contrib import refresh, uper
from jaxreplay.contrib.uper import UPERConfig, information_gain
from tests.refusals import refused
from tests.slots import Slots

# Two heads with the quantiles 0 1 2 and 1 2 3, and the target 2.5; two with -2 0 2, and the target
# 1; two with 1 1 1, and the target 1.1.
VECTORS = {
    "target_error": [1.0, 1.0, 0.01],
    "epistemic": [0.25, 0.0, 0.0],
    "aleatoric": [2 / 3, 8 / 3, 0.0],
}
GAINS = [0.52803, 0.15923, 2.30756]
SMALL = {name: values[:2] for name, values in VECTORS.items()}


def test_information_gains_by_hand():
    found = information_gain(*(jnp.float32(VECTORS[name]) for name in VECTORS))
    np.testing.assert_allclose(found, GAINS, atol=1e-5)
    by_formula = 0.5 * np.log(1 + np.float64([1.25, 1, 0.01]) / [2 / 3, 8 / 3, 1e-4])
    np.testing.assert_allclose(found, by_formula, rtol=1e-5)
    np.testing.assert_allclose(
        information_gain(*jnp.float32([0.01, 0, 0.5, 1])), 0.5 * np.log(1.01)
    )


def test_priorities_of_equal_td_errors_differ_by_the_noise():
    slots = Slots(uper.sampler(), 2, count=2).update(range(2), **SMALL)
    np.testing.assert_allclose(slots.probability(), [0.67245, 0.32755], atol=1e-5)


def test_epistemic_uncertainty_alone():
    config = UPERConfig(priority="epistemic", alpha=1.0, epsilon=0.0)
    slots = Slots(uper.sampler(config), 3, count=3)
    slots.update(range(3), epistemic=[0.25, 0.75, 0.0], aleatoric=[9, 1, 1], target_error=[3, 0, 9])
    np.testing.assert_allclose(slots.probability(), [0.25, 0.75, 0])


def test_transitions_without_a_gain_keep_a_small_priority():
    slots = Slots(uper.sampler(UPERConfig(alpha=0.5)), 3, count=3)
    zeros = {name: [0.0, 0.0] for name in VECTORS}
    assert slots.update(range(2), **zeros).leaves() == pytest.approx([1e-3, 1e-3, 1], rel=1e-4)
    slots.update([0, 1, 2], **VECTORS | {"epistemic": [np.nan, 0.0, -1.0]})  # NaN is dropped
    expected = [1e-3, np.sqrt(GAINS[1]), 1e-3]
    assert slots.leaves() == pytest.approx(expected, rel=1e-3)


def test_gains_are_refreshed():
    refreshed = Slots(refresh.sampler(refresh.RefreshConfig(over="uper")), 3, count=3)
    told = {name: jnp.float32(values) for name, values in VECTORS.items()}
    refreshed.state = refreshed.run.replay.refresh(refreshed.state, jnp.arange(3), **told)
    updated = Slots(uper.sampler(), 3, count=3).update(range(3), **VECTORS)
    np.testing.assert_allclose(refreshed.probability(), updated.probability(), rtol=1e-5)


@pytest.mark.parametrize(
    ("option", "value"),
    [("floor", 0.0), ("epsilon", -1.0), ("alpha", -0.1), ("priority", "aleatoric")],
)
def test_options_out_of_range_are_refused(option, value):
    with refused(option, value):
        UPERConfig(**{option: value})
