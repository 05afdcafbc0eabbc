"""Proportional PER: the paper's quantities by hand, and its properties."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Replay, sum_tree
from jaxreplay.methods import per
from jaxreplay.methods.per import PERConfig
from jaxreplay.replay import ReplayState
from jaxreplay.sampler import Sampler
from jaxreplay.testing import EXAMPLE
from jaxreplay.types import Draw
from tests.methods import compiled
from tests.refusals import refused

TD = np.array([0.5, -2, 0, 1, 4])
ROW = jax.tree.map(lambda x: x[None], EXAMPLE)


class Made(NamedTuple):
    """A sampler and its compiled functions."""

    sampler: Sampler
    hold: Callable[[np.ndarray], ReplayState]
    sample: Callable[..., Draw]


@functools.cache
def made(config, n):
    sampler = per.sampler(config)
    replay = Replay(sampler, capacity=n, batch_size=n)
    rows = jax.tree.map(lambda x: np.broadcast_to(x, (n, *x.shape)), ROW)

    def hold(td):
        add = lambda state, row: (replay.add(state, row), None)
        state, _ = jax.lax.scan(add, replay.init(jax.random.key(0), EXAMPLE), rows)
        batch = replay.sample(state, jax.random.key(0))
        slots = jnp.arange(n)
        batch = batch._replace(indices=slots, version=slots + 1)
        return replay.update(state, batch, td_error=td)

    return Made(sampler, jax.jit(hold), jax.jit(sampler.sample, static_argnums=3))


class Held(NamedTuple):
    """A sampler and a state with one slot per TD error, updated once."""

    made: Made
    state: ReplayState

    def leaves(self):
        return np.float64(sum_tree.leaves(jax.tree.map(np.asarray, self.state.sampler.tree)))

    def sample(self, key, batch_size):
        draw = self.made.sample(self.state.sampler, self.state.ring, key, batch_size)
        return jax.tree.map(np.asarray, draw)


def holding(td, config):
    made_ = made(config, len(td))
    return Held(made_, made_.hold(np.float32(td)))


def weights_by_slot(held, slots, draws=400):
    """Return the weights of `slots` in a batch that contains each of them and no other slot."""
    for seed in range(draws):
        batch = held.sample(jax.random.key(seed), len(slots))
        if set(batch.indices.tolist()) == set(slots):
            return batch.weights[[int(np.argmax(batch.indices == slot)) for slot in slots]]
    pytest.fail("no batch held exactly these slots")


@pytest.mark.parametrize(
    ("alpha", "beta", "leaves", "raw"),
    [
        (
            0.6,
            0.4,
            [0.6676396267, 1.5202591796, 0.0630957344, 1.0059880557, 2.300841084],
            [1.2261880009, 0.8822808449, 3.1504595232, 1.0407268867, 0.747513869],
        ),
        (
            1.0,
            1.0,
            [0.51, 2.01, 0.01, 1.01, 4.01],
            [2.9607843137, 0.7512437811, 151.0, 1.495049505, 0.3765586035],
        ),
        (
            0.6,
            1.0,
            [0.6676396267, 1.5202591796, 0.0630957344, 1.0059880557, 2.300841084],
            [1.6649172571, 0.731167916, 17.6171138323, 1.1049482445, 0.483112347],
        ),
        (0.0, 0.4, [1.0] * 5, [1.0] * 5),
    ],
)
def test_leaves_probabilities_and_weights_by_hand(alpha, beta, leaves, raw):
    leaves, raw = np.array(leaves), np.array(raw)
    for normalise in ("none", "buffer", "batch"):
        config = PERConfig(alpha=alpha, beta=beta, epsilon=0.01, normalise=normalise)
        held = holding(TD, config)
        np.testing.assert_allclose(held.leaves(), leaves, rtol=1e-5)
        batch = held.sample(jax.random.key(1), 64)
        expected = raw[batch.indices]
        if normalise == "buffer":
            expected = expected / raw.max()
        if normalise == "batch":
            expected = expected / expected.max()
        np.testing.assert_allclose(batch.weights, expected, rtol=2e-5)


def test_buffer_weights_are_a_power_of_the_smallest_priority():
    batch = holding(TD, PERConfig(epsilon=0.01, normalise="buffer")).sample(jax.random.key(1), 64)
    p = np.abs(TD) + 0.01
    np.testing.assert_allclose(
        batch.weights, (p.min() / p[batch.indices]) ** (0.6 * 0.4), rtol=1e-5
    )


def test_batch_weights_by_hand():
    weights = weights_by_slot(holding(TD, PERConfig(epsilon=0.01, sampling="iid")), [1, 3, 4])
    np.testing.assert_allclose(weights, [0.8477544457, 1, 0.7182613216], rtol=1e-5)


def test_epsilon_is_added_before_the_power():
    for epsilon, leaf in ((0.01, 0.6676396267), (1e-10, 0.6597539555)):
        held = holding([0.5], PERConfig(epsilon=epsilon))
        np.testing.assert_allclose(held.leaves(), [leaf], rtol=1e-6)


def test_new_transitions_get_the_largest_leaf_so_far():
    replay = Replay(per.sampler(PERConfig(epsilon=0.0)), capacity=3, batch_size=1)
    add = jax.jit(replay.add)
    state = add(replay.init(jax.random.key(0), EXAMPLE), ROW)
    newest = []

    @jax.jit
    def rewrite(state, slot, td):
        batch = replay.sample(state, jax.random.key(0))
        batch = batch._replace(indices=slot[None], version=slot[None] + 1)
        return replay.update(state, batch, td_error=td[None])

    newest.append(np.asarray(state.sampler.tree.nodes)[0])
    state = add(rewrite(state, np.int32(0), np.float32(3.0)), ROW)
    newest.append(np.asarray(state.sampler.tree.nodes)[1])
    state = add(rewrite(state, np.int32(1), np.float32(0.1)), ROW)
    newest.append(np.asarray(state.sampler.tree.nodes)[2])
    np.testing.assert_allclose(newest, [1, 1.9331820449, 1.9331820449], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(state.sampler.tree.nodes)[1], 0.2511886432, rtol=1e-6)


def test_beta_rises_linearly_with_the_updates():
    # A run of 60 000 steps that learns from step 1000 to 50 000 counts updates from step 1000.
    schedule = optax.linear_schedule(0.4, 1.0, 49_000)
    steps = np.array([0, 1000, 25_500, 50_000, 60_000])
    np.testing.assert_allclose(
        schedule(np.maximum(steps - 1000, 0)), [0.4, 0.4, 0.7, 1, 1], rtol=1e-6
    )
    # The sampler's weights have exponent beta after as many updates.
    config = PERConfig(epsilon=0.01, normalise="none").for_run(49_000)
    held = holding(TD, config)
    for count, beta in ((0, 0.4), (24_500, 0.7), (49_000, 1.0), (59_000, 1.0)):
        inner = held.state.sampler._replace(updates=np.int32(count))
        then = held._replace(state=held.state._replace(sampler=inner))
        batch = then.sample(jax.random.key(0), 64)
        p = (np.abs(TD) + 0.01) ** 0.6
        share = p / p.sum()
        expected = (5 * share[batch.indices]) ** -beta
        np.testing.assert_allclose(batch.weights, expected, rtol=1e-4)


def test_strata_do_not_change_marginal_probabilities():
    held = holding(TD, PERConfig(epsilon=0.01))
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = lambda key: held.made.sample(held.state.sampler, held.state.ring, key, 16).indices
    drawn = jax.jit(jax.vmap(draw))(keys)
    share = np.bincount(np.asarray(drawn).ravel(), minlength=5) / drawn.size
    expected = [0.1201260898, 0.2735349783, 0.0113525974, 0.1810039529, 0.4139823816]
    np.testing.assert_allclose(share, expected, atol=0.004)


@pytest.mark.parametrize(
    ("alpha", "beta", "stationary"),
    [(0, 0, 1.0), (0.6, 0, 2.020928), (0.6, 0.4, 1.658117), (0.6, 1, 1.0), (1, 0, 2.5)],
)
def test_stationary_point_of_td_learning_by_hand(alpha, beta, stationary):
    """Nine targets of 0 and one of 10: the Q at which PER's expected weighted update is zero."""
    targets = np.array([0.0] * 9 + [10.0])
    config = PERConfig(alpha=float(alpha), beta=float(beta), epsilon=0.0, normalise="none")

    def expected_update(q):
        td = targets - q
        held = holding(td, config)
        batch, leaves, weights = held.sample(jax.random.key(0), 256), held.leaves(), np.zeros(10)
        weights[batch.indices] = batch.weights  # every slot is drawn
        return (leaves / leaves.sum() * weights * td).sum()

    assert abs(expected_update(stationary)) < 1e-3
    assert expected_update(stationary - 0.1) > 0 > expected_update(stationary + 0.1)


priorities = st.lists(st.floats(2**-10, 1024, width=32), min_size=8, max_size=8)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(priorities, st.integers(0, 7), st.floats(0.25, 4, width=32))
def test_probabilities_and_weights_are_monotone_unbiased_and_bounded(sizes, turn, scale):
    td = np.array(sizes)

    def draw(td, normalise="buffer", beta=1.0, alpha=0.6):
        config = PERConfig(alpha=alpha, beta=beta, epsilon=0.0, normalise=normalise)
        held = holding(td, config)
        return held.leaves() / held.leaves().sum(), held.sample(jax.random.key(0), 512)

    share, batch = draw(td)
    assert (share > 0).all()
    order = np.argsort(td)
    assert (np.diff(share[order]) >= -1e-9).all()  # monotone in |td|
    weights = batch.weights
    assert (weights > 0).all() and (weights <= 1 + 1e-5).all()
    # Without normalisation, weights with beta 1 are unbiased: w P N = 1.
    _, plain = draw(td, "none")
    np.testing.assert_allclose(plain.weights * 8 * share[plain.indices], 1, rtol=1e-4)
    # Probabilities do not depend on the scale of priorities or the position in the ring.
    np.testing.assert_allclose(draw(td * scale)[0], share, rtol=1e-4)
    np.testing.assert_allclose(draw(np.roll(td, turn))[0], np.roll(share, turn), rtol=1e-5)
    # Batch weights have maximum 1 and are at least as large as buffer weights.
    _, batchwise = draw(td, "batch")
    np.testing.assert_allclose(batchwise.weights.max(), 1, rtol=1e-6)
    np.testing.assert_array_less(weights, batchwise.weights + 1e-5)
    # Alpha 0 gives uniform probabilities and weights of 1.
    flat, even = draw(td, alpha=0.0)
    np.testing.assert_allclose(flat, 1 / 8)
    np.testing.assert_allclose(even.weights, 1, rtol=1e-6)


def test_draws_are_uniform_if_all_priorities_are_zero():
    batch = holding(np.zeros(5), PERConfig(epsilon=0.0)).sample(jax.random.key(0), 20)
    np.testing.assert_array_equal(np.bincount(batch.indices, minlength=5), [4] * 5)
    np.testing.assert_allclose(batch.weights, 1)


@pytest.mark.parametrize("sampling", ["stratified", "systematic", "iid"])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_probabilities_match_draws_if_all_priorities_are_zero(sampling, count):
    held = holding(np.zeros(5), PERConfig(epsilon=0.0, sampling=sampling))
    keys = jax.random.split(jax.random.key(1), 2000)
    sample = held.made.sampler.sample
    draw = jax.jit(jax.vmap(lambda key: sample(held.state.sampler, held.state.ring, key, count)))
    drawn = draw(keys).indices
    share = np.bincount(np.asarray(drawn).ravel(), minlength=5) / drawn.size
    np.testing.assert_allclose(share, 0.2, atol=5 * np.sqrt(0.2 * 0.8 / 2000))


def test_leaves_of_zero_do_not_affect_the_largest_weight():
    options = {"epsilon": 0.0, "alpha": 1.0, "beta": 1.0, "normalise": "buffer"}
    held = holding([0.0, 1.0, 4.0], PERConfig(**options))
    batch = held.sample(jax.random.key(0), 30)
    assert set(np.asarray(batch.indices).tolist()) == {1, 2}
    np.testing.assert_allclose(batch.weights, np.where(batch.indices == 1, 1.0, 0.25), rtol=1e-6)


@pytest.mark.parametrize("unknown", [1e25, np.inf, np.nan])
def test_new_transitions_without_a_finite_leaf_get_the_largest_so_far(unknown):
    sampler = per.sampler(PERConfig(alpha=2.0, initial="td"))
    replay = compiled(Replay(sampler, capacity=4, batch_size=2))
    state = replay.init(jax.random.key(0), EXAMPLE)
    for td in (1.0, unknown, 2.0):
        state = replay.add(state, ROW, td_error=np.float32([td]))
    small, lost, large, _ = np.asarray(replay.probability(state, np.arange(4)))
    assert int(state.sampler.skipped) == 1
    assert lost == small and large == pytest.approx(4 * small, rel=1e-3)


def test_clip_bounds_the_priority():
    held = holding([0.5, 7.0, -9.0], PERConfig(clip=1.0, epsilon=0.0, alpha=1.0))
    np.testing.assert_allclose(held.leaves(), [0.5, 1, 1])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"alpha": -0.1}, ("alpha", "-0.1")),
        ({"alpha": float("nan")}, ("alpha", "nan")),
        ({"beta": 1.1}, ("beta", "1.1")),
        ({"beta_updates": 0}, ("beta_updates", "0")),
        ({"epsilon": -1.0}, ("epsilon", "-1.0")),
        ({"normalise": "max"}, ("normalise", "max", "batch", "buffer", "none")),
        ({"sampling": "random"}, ("sampling", "random", "stratified", "systematic", "iid")),
        ({"clip": 0.0}, ("clip", "0.0")),
        ({"loss": "l2"}, ("loss", "l2", "agent")),
    ],
)
def test_options_out_of_range_are_refused(options, parts):
    with refused(*parts):
        PERConfig(**options)


def test_square_root_priorities_of_the_refer_paper_by_hand():
    """Its baseline: P ~ sqrt(abs(td)) and weights (P_min / P)^beta over the whole buffer."""
    config = PERConfig(alpha=0.5, beta=0.5, epsilon=0.0, normalise="buffer", sampling="iid")
    held = holding(np.array([0.5, 2, 1, 4]), config)
    leaves = held.leaves()
    expected = [0.1380711875, 0.2761423749, 0.1952621459, 0.3905242918]
    np.testing.assert_allclose(leaves / leaves.sum(), expected, rtol=1e-6)
    batch = held.sample(jax.random.key(0), 64)
    weights = np.array([1, 0.7071067812, 0.8408964153, 0.5946035575])
    np.testing.assert_allclose(batch.weights, weights[batch.indices], rtol=1e-5)
