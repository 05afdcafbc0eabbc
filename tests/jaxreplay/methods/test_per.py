"""Proportional PER and the priorities that it shares: numbers by hand, a reference, properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay.methods import per
from jaxreplay.methods.per import PERConfig
from tests.slots import Slots

TD = np.array([0.5, -2, 0, 1, 4])


def holding(td, **options):
    """Return slots that have been updated with these TD errors once."""
    base = per.sampler(PERConfig(normalise=options.get("normalise", "batch")))
    slots = Slots(per.sampler(PERConfig(**options)), len(td), count=len(td), base=base,
                  shared="init add probability")  # fmt: skip
    return slots.update(range(len(td)), td_error=td)


# (|td| + 0.01)^0.6; and raw weights (5 p / sum p)^-beta
LEAVES = [0.6676396267, 1.5202591796, 0.0630957344, 1.0059880557, 2.300841084]


@pytest.mark.parametrize(
    ("alpha", "beta", "leaves", "raw"),
    [
        (0.6, 0.4, LEAVES, [1.2261880009, 0.8822808449, 3.1504595232, 1.0407268867, 0.747513869]),
        # 7.55 / (5 p)
        (1.0, 1.0, [0.51, 2.01, 0.01, 1.01, 4.01],
         [2.9607843137, 0.7512437811, 151.0, 1.495049505, 0.3765586035]),
    ],
)  # fmt: skip
def test_leaves_probabilities_and_weights_by_hand(alpha, beta, leaves, raw):
    raw = np.array(raw)
    for normalise in ("none", "buffer", "batch"):
        slots = holding(TD, alpha=alpha, beta=beta, epsilon=0.01, normalise=normalise)
        np.testing.assert_allclose(slots.leaves(), leaves, rtol=1e-5)
        np.testing.assert_allclose(slots.probability(), np.divide(leaves, sum(leaves)), rtol=1e-5)
        batches = slots.draws(800)
        drawn = raw[batches.indices]
        assert len(np.unique(batches.indices)) == 5
        row_max = drawn.max(axis=1, keepdims=True)
        largest = {"none": 1.0, "buffer": raw.max(), "batch": row_max}[normalise]
        np.testing.assert_allclose(batches.weights, drawn / largest, rtol=2e-5)


def test_epsilon_is_added_before_the_power_and_clip_bounds_the_error():
    # 0.51^0.6 = 0.66764, 0.5^0.6 = 0.65975
    for epsilon, leaf in ((0.01, 0.6676396267), (1e-10, 0.6597539555)):
        np.testing.assert_allclose(holding([0.5], epsilon=epsilon).leaves(), [leaf], rtol=1e-6)
    slots = holding([0.5, 7.0, -9.0], clip=1.0, epsilon=0.0, alpha=1.0)
    np.testing.assert_allclose(slots.leaves(), [0.5, 1, 1])


@pytest.mark.parametrize("unknown", [1e25, np.inf, np.nan])
def test_new_transitions_without_a_finite_leaf_get_the_largest_so_far(unknown):
    slots = Slots(per.sampler(PERConfig(alpha=2.0, initial="td")), 4, 2)
    for td in (1.0, unknown, 2.0):
        slots.add(feedback={"td_error": td})
    assert int(slots.state.sampler.skipped) == 1
    np.testing.assert_allclose(slots.leaves(), [1, 1, 4, 0], rtol=1e-5)


def test_beta_rises_linearly_with_the_updates():
    config = PERConfig(epsilon=0.01, normalise="none").for_run(49_000)
    slots = Slots(per.sampler(config), 5, count=5).update(range(5), td_error=TD)
    # 0.4 + 0.6 updates / 49 000
    for count, beta in ((0, 0.4), (24_500, 0.7), (49_000, 1.0), (59_000, 1.0)):
        batch = slots.put(updates=np.int32(count)).draws(16)
        share = np.divide(LEAVES, sum(LEAVES))[batch.indices]
        np.testing.assert_allclose(batch.weights, (5 * share) ** -beta, rtol=1e-4)
        assert slots.metric("beta") == pytest.approx(beta)


priorities = st.lists(st.floats(2**-10, 1024, width=32), min_size=8, max_size=8)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(priorities, st.integers(0, 7), st.floats(0.25, 4, width=32))
def test_probabilities_and_weights_are_monotone_unbiased_and_bounded(sizes, turn, scale):
    td = np.array(sizes)

    def draw(td, normalise="buffer", alpha=0.6):
        slots = holding(td, alpha=alpha, beta=1.0, epsilon=0.0, normalise=normalise)
        return slots.probability(), slots.draws(64)

    share, batch = draw(td)
    assert (share > 0).all() and (np.diff(share[np.argsort(td)]) >= -1e-9).all()
    assert (batch.weights > 0).all() and (batch.weights <= 1 + 1e-5).all()
    # Without normalisation, weights with beta 1 are unbiased: w P N = 1.
    _, plain = draw(td, "none")
    np.testing.assert_allclose(plain.weights * 8 * share[plain.indices], 1, rtol=1e-4)
    # Probabilities do not depend on the scale of priorities or the position in the ring.
    np.testing.assert_allclose(draw(td * scale)[0], share, rtol=1e-4)
    np.testing.assert_allclose(draw(np.roll(td, turn))[0], np.roll(share, turn), rtol=1e-5)
    # Batch weights have maximum 1 and are at least as large as buffer weights.
    _, batchwise = draw(td, "batch")
    np.testing.assert_allclose(batchwise.weights.max(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_less(batch.weights, batchwise.weights + 1e-5)
    # Alpha 0 gives uniform probabilities and weights of 1.
    flat, even = draw(td, alpha=0.0)
    np.testing.assert_allclose(flat, 1 / 8)
    np.testing.assert_allclose(even.weights, 1, rtol=1e-6)


def test_draws_are_uniform_if_all_priorities_are_zero():
    batch = holding(np.zeros(5), epsilon=0.0).sample(0, 5)
    np.testing.assert_array_equal(np.sort(batch.indices), np.arange(5))
    np.testing.assert_allclose(batch.weights, 1)
    for sampling in ("stratified", "systematic", "iid"):
        slots = holding(np.zeros(5), epsilon=0.0, sampling=sampling)
        np.testing.assert_allclose(slots.probability(), 0.2)
        for count in (1, 3):
            share = (
                np.bincount(slots.draws(2000, count).indices.ravel(), minlength=5) / count / 2000
            )
            np.testing.assert_allclose(share, 0.2, atol=5 * np.sqrt(0.2 * 0.8 / 2000))


def test_leaves_of_zero_do_not_affect_the_largest_weight():
    slots = holding([0.0, 1.0, 4.0], epsilon=0.0, alpha=1.0, beta=1.0, normalise="buffer")
    batch = slots.draws(30)
    assert set(batch.indices.ravel().tolist()) == {1, 2}
    np.testing.assert_allclose(batch.weights, np.where(batch.indices == 1, 1.0, 0.25), rtol=1e-6)
