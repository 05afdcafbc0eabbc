"""Losses, and equivalences of losses and sampling: by hand, as theorems, with a network."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from jaxreplay import equivalence, objectives, schedules
from jaxreplay.methods import pal, per, pser, uniform
from jaxreplay.types import Sample
from tests.refusals import refused

CASES = {  # TD errors, alpha, kappa and the resulting quantities of Fujimoto et al. 2020
    "A": {
        "td": [0.3, -0.5, 1, -2, 4],
        "alpha": 0.4,
        "kappa": 1.0,
        "priority": [1, 1, 1, 1.3195079108, 1.7411011266],
        "scale": 1.2121218075,
        "huber": [0.045, 0.125, 0.5, 1.5, 3.5],
        "pal": [0.0371249818, 0.1031249493, 0.4124997974, 1.5551335596, 4.1040220684],
        "pal_slope": [0.2474998784, -0.4124997974, 0.8249995948, -1.0885934917, 1.4364077239],
        "expected": 0.2015627816,
        "variances": (0.6854725796, 0.7914403538),
    },
    "B": {
        "td": [0.001, -0.005, 0.02, -0.5, 3],
        "alpha": 0.6,
        "kappa": 0.01,
        "priority": [0.0630957344, 0.0630957344, 0.09563525, 0.6597539554, 1.9331820449],
        "scale": 0.5629525438,
        "huber": [5e-7, 1.25e-5, 1.5e-4, 0.00495, 0.02995],
        "pal": [5.604001e-8, 1.401000e-6, 2.12351937e-5, 0.00366235331, 0.06438760023],
        "pal_slope": [1.120800e-4, -5.604001e-4, 0.0016988155, -0.0117195306, 0.0343400535],
        "expected": 0.00477420365,
        "variances": (7.330659465e-5, 2.411668700e-4),
    },
    "C": {
        "td": [0.3, -2, 2.5, -6, 0],
        "alpha": 0.5,
        "kappa": 2.0,
        "priority": [1.4142135624, 1.4142135624, 1.5811388301, 2.4494897428, 1.4142135624],
        "scale": 1.654653852,
        "huber": [0.045, 2, 3, 10, 0],
        "pal": [0.038460981, 1.7093769318, 3.1852358489, 11.8429107808, 0],
        "pal_slope": [0.2564065398, -1.7093769318, 1.9111415094, -2.9607276952, 0],
        "expected": -0.5005113156,
        "variances": (2.3973712699, 2.8307052555),
    },
}


def slope(loss, td):
    return np.asarray(jax.grad(lambda x: loss(x).sum())(jnp.asarray(td, jnp.float32)), np.float64)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_lap_and_pal_by_hand(case):
    td, close = jnp.asarray(case["td"], jnp.float32), {"rtol": 2e-5, "atol": 1e-12}
    priority = np.asarray(equivalence.lap_priority(case["alpha"], case["kappa"])(td), np.float64)
    huber, pal = objectives.huber(case["kappa"]), equivalence.pal(case["alpha"], case["kappa"])
    np.testing.assert_allclose(priority, case["priority"], **close)
    np.testing.assert_allclose(priority.mean(), case["scale"], **close)
    np.testing.assert_allclose(huber(td), case["huber"], **close)
    np.testing.assert_allclose(pal(td), case["pal"], **close)
    np.testing.assert_allclose(slope(pal, td), case["pal_slope"], **close)
    share, lap_slope, pal_slope = priority / priority.sum(), slope(huber, td), slope(pal, td)
    means = (share * lap_slope).sum(), pal_slope.mean()
    np.testing.assert_allclose(means, case["expected"], rtol=1e-4)
    variances = (share * (lap_slope - means[0]) ** 2).sum(), pal_slope.var()
    np.testing.assert_allclose(variances, case["variances"], rtol=1e-4)
    assert variances[0] < variances[1]


@jax.jit
def _slopes(td, alpha, kappa, scale):
    """Return the LAP priority, and slopes of Huber and of PAL in several forms."""

    def at(loss, td=td):
        return jax.grad(lambda td: loss(td).sum())(td)

    pal = equivalence.pal(alpha, kappa)
    return {
        "priority": equivalence.lap_priority(alpha, kappa)(td),
        "huber": at(objectives.huber(kappa)),
        "pal": at(pal),
        "rising": at(pal, jnp.sort(td)),
        "scaled": at(equivalence.pal(alpha, kappa * scale), td * scale),
        "flat": at(equivalence.pal(0.0, kappa)),
        "even": (pal(td), pal(-td)),
    }


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-50, 50, width=32), min_size=6, max_size=6),
    st.floats(0, 1, width=32),
    st.floats(0.0625, 4, width=32),
    st.floats(0.25, 4, width=32),
)
def test_laws_of_lap_and_pal(td, alpha, kappa, scale):
    found = jax.tree.map(np.float64, _slopes(np.float32(td), alpha, kappa, scale))
    priority, pal = found["priority"], found["pal"]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    close(priority * found["huber"], priority.mean() * pal)
    assert (priority >= kappa**alpha * (1 - 1e-5)).all()  # `kappa` bounds priorities from below
    np.testing.assert_allclose(*found["even"], rtol=1e-6)
    rising = found["rising"]  # convex
    assert (np.diff(rising) >= -1e-4 * np.abs(rising).max()).all()
    close(found["scaled"], scale * pal, rtol=1e-3, atol=1e-4)
    close(found["flat"], found["huber"])  # with alpha 0, PAL's gradient is Huber's


def test_the_harmonic_mean_of_a_prioritised_batch_corrects_its_scale():
    td = np.array([0.1, -0.5, 2.0, -3.0, 6.0])
    loss, priority = equivalence.prioritised_equivalent(objectives.mse)
    drawn = np.repeat(td, np.round(10 * np.abs(td)).astype(int))  # in proportion to priorities
    wanted = slope(objectives.mse, td).mean()
    sizes = np.asarray(priority(jnp.asarray(drawn)), np.float64)
    too_large = (td**2).sum() / np.abs(td).sum() / np.abs(td).mean()
    np.testing.assert_allclose(slope(loss, drawn).mean(), too_large * wanted, rtol=1e-5)
    scale = 1 / (1 / sizes).mean()
    np.testing.assert_allclose(scale * slope(objectives.l1, drawn).mean(), wanted, rtol=1e-5)
    # Weighted by probability over the whole buffer, the loss needs no correction.
    share = np.abs(td) / np.abs(td).sum()
    np.testing.assert_allclose((share * slope(loss, td)).sum(), wanted, rtol=1e-5)


def test_huber_interpolates_between_l1_and_mse():
    td = np.array([0.3, -2.0, 5.0])
    np.testing.assert_allclose(slope(objectives.huber(1e-6), td) / 1e-6, np.sign(td))
    np.testing.assert_allclose(slope(objectives.huber(1e6), td), td)
    np.testing.assert_allclose(slope(objectives.l1, td), np.sign(td))
    np.testing.assert_allclose(slope(objectives.mse, td), td)


@pytest.mark.parametrize(
    ("alpha", "beta", "tau", "mean_loss", "expected"),
    [
        (0.6, 0.4, 2.0, 1.3924174541, 0.5484028020),
        (0.6, 0.4, 1.0, 0.7827165899, 0.2593110267),
        (0.4, 0.0, 1.0, 1.5092224936, 0.4941094341),
        (0.6, 1.0, 2.0, 0.4664761028, 0.1579787366),
    ],
)
def test_per_equivalent_loss_by_hand(alpha, beta, tau, mean_loss, expected):
    td = np.array([0.5, -2, 0.1, 1, 4])
    loss = equivalence.per_equivalent(alpha, beta, tau)
    np.testing.assert_allclose(loss(jnp.asarray(td)).mean(), mean_loss, rtol=1e-5)
    np.testing.assert_allclose(slope(loss, td).mean(), expected, rtol=1e-5)
    # The equivalent expectation: PER with weights normalised over the buffer.
    share = np.abs(td) ** alpha / (np.abs(td) ** alpha).sum()
    weights = (5 * share) ** -beta
    per_slope = np.sign(td) * np.abs(td) ** (tau - 1) * weights / weights.max()
    np.testing.assert_allclose((share * per_slope).sum(), expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("exponent", "minimum"),
    [
        (1.36, 0.02230266),
        (1.4, 0.04098361),
        (1.6, 0.25037093),
        (2, 1),
        (2.36, 1.65811706),
        (3, 2.5),
    ],
)
def test_minimiser_of_a_power_loss_by_hand(exponent, minimum):
    targets = np.array([0.0] * 9 + [10.0])
    loss = equivalence.power(exponent)
    at = lambda q: slope(loss, q - targets).mean()
    assert at(minimum - 0.01) < 0 < at(minimum + 0.01)


TWIN = np.array([[0.2, -1.5, 3, -0.05], [-0.4, -1, 5, 0.02]])


@pytest.mark.parametrize(
    ("twin", "first", "second"),
    [
        (
            "own",
            [0.0393721484, -0.231523789, 0.3054974712, -0.0098430371],
            [-0.0787442968, -0.196860742, 0.3747547269, 0.0039372148],
        ),
        (
            "max",
            [0.0393721484, -0.231523789, 0.3747547269, -0.0098430371],
            [-0.0787442968, -0.231523789, 0.3747547269, 0.0039372148],
        ),
    ],
)
def test_pal_with_twin_critics_by_hand(twin, first, second):
    pal = equivalence.pal(0.4, 1.0, twin)
    np.testing.assert_allclose(slope(pal, TWIN) / 4, [first, second], rtol=1e-5)
    if twin == "own":
        # The value, unlike the slope, jumps at kappa, and the authors' code counts kappa as above.
        loss = pal(jnp.asarray(TWIN).at[1, 1].mul(1 + 1e-6)).sum(axis=0).mean()
        np.testing.assert_allclose(loss, 2.4016947178, rtol=1e-5)


def test_lap_equals_pal_with_twin_critics_only_if_twin_is_max():
    priority = np.asarray(equivalence.lap_priority(0.4, 1.0)(jnp.abs(TWIN).max(axis=0)))
    np.testing.assert_allclose(priority, [1, 1.1760790225, 1.9036539387, 1], rtol=1e-6)
    lap = (priority / priority.sum() * slope(objectives.huber(1.0), TWIN)).sum(axis=1)
    exact = slope(equivalence.pal(0.4, 1.0, "max"), TWIN).mean(axis=1)
    own = slope(equivalence.pal(0.4, 1.0, "own"), TWIN).mean(axis=1)
    np.testing.assert_allclose(lap, exact, rtol=1e-5)
    assert not np.allclose(lap, own, rtol=1e-2)


# --- With a network -----------------------------------------------------------------------


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(8)(x)))[:, 0]


def lap_and_pal(td, alpha, kappa):
    lap = objectives.huber(kappa), equivalence.lap_priority(alpha, kappa)(td)
    return lap, equivalence.pal(alpha, kappa)


def with_uniform_equivalent(td, loss):
    scheme = lambda td: jnp.abs(td) ** 0.7 + 0.1
    return (loss, scheme(td)), equivalence.uniform_equivalent(loss, scheme)


def with_prioritised_equivalent(td, loss):
    prioritised, scheme = equivalence.prioritised_equivalent(loss)
    return (prioritised, scheme(td)), loss


def per_and_equivalent(td, alpha, beta):
    size = jnp.abs(td) ** alpha
    weights = (12 * size / size.sum()) ** -beta
    loss = lambda x: weights / weights.max() * objectives.mse(x)
    return (loss, size), equivalence.per_equivalent(alpha, beta)


# Pairs of a loss with priorities, and its equivalent under uniform sampling.
EQUIVALENT = [
    *((lap_and_pal, *x) for x in ((0.4, 1.0), (0.6, 0.01), (1.0, 2.0))),
    *(
        (make, loss)
        for make in (with_uniform_equivalent, with_prioritised_equivalent)
        for loss in (
            objectives.mse, objectives.huber(0.5), objectives.huber(1.0), equivalence.power(1.5)
        )
    ),
    *((per_and_equivalent, *x) for x in ((0.6, 0.4), (0.5, 1.0))),
]  # fmt: skip


def test_equivalent_losses_have_equal_gradients_in_a_network():
    net, rng = Net(), np.random.default_rng(0)
    inputs = rng.normal(size=(12, 3)).astype(np.float32)
    targets = 3 * rng.normal(size=12).astype(np.float32)

    @jax.jit
    def gradients(params):
        """Return gradients of sum_i weights_i loss(td)_i for every pair."""
        errors = lambda params: net.apply(params, inputs) - targets
        td = errors(params)

        def gradient(loss, weights):
            grad = jax.grad(lambda params: (weights * loss(errors(params))).sum())(params)
            return ravel_pytree(grad)[0]

        pairs = [make(td, *options) for make, *options in EQUIVALENT]
        return [
            (gradient(loss, priority / priority.sum()), gradient(even, jnp.full(12, 1 / 12)))
            for (loss, priority), even in pairs
        ]

    params = jax.jit(net.init)(jax.random.key(1), inputs)
    for prioritised, even in gradients(params):
        assert np.abs(prioritised).max() > 1e-4
        np.testing.assert_allclose(prioritised, even, rtol=1e-3, atol=1e-6)


def test_weights_scale_only_the_critic_loss():
    sample = Sample(jnp.arange(3), None, jnp.array([1.0, 0.5, 0.0]), jnp.arange(3))
    loss = jnp.array([2.0, 4.0, 100.0])
    weighted, plain = objectives.weighted(), objectives.plain(objectives.mse)
    assert float(weighted.critic(loss, sample, None)) == pytest.approx(4 / 3)
    assert float(weighted.actor(loss, sample, None)) == pytest.approx(106 / 3)
    assert float(plain.critic(loss, sample, None)) == pytest.approx(106 / 3)
    assert weighted.error is None and plain.error is objectives.mse


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: objectives.huber(0.0), ("kappa", "0.0")),
        (lambda: equivalence.pal(alpha=1.5), ("alpha", "1.5")),
        (lambda: equivalence.pal(kappa=-1.0), ("kappa", "-1.0")),
        (lambda: equivalence.pal(twin="min"), ("twin", "min", "own", "max")),
    ],
)
def test_invalid_arguments_are_refused(make, parts):
    with refused(*parts):
        make()


NUMBERS = {
    "alpha": [
        lambda x: equivalence.lap_priority(x, 1.0),
        lambda x: equivalence.pal(alpha=x),
        lambda x: equivalence.per_equivalent(x, 0.4),
    ],
    "kappa": [
        lambda x: equivalence.lap_priority(0.4, x),
        lambda x: equivalence.pal(kappa=x),
        objectives.huber,
    ],
    "beta": [lambda x: equivalence.per_equivalent(0.4, x)],
    "tau": [lambda x: equivalence.per_equivalent(0.4, 0.4, x)],
    "exponent": [equivalence.power],
    "scale": [lambda x: equivalence.power(1.5, x)],
    "start": [lambda x: schedules.linear(x, 1.0, 3)],
    "end": [lambda x: schedules.linear(1.0, x, None)],
    "rho": [pser.window_of],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_invalid_numbers_are_refused(name):
    below = [] if name in ("start", "end") else [-1.0, np.float32(-1)]
    bad = [np.nan, np.inf, -np.inf, 1e300, None, "a", True, jnp.nan, np.ones(2), *below]
    for make in NUMBERS[name]:
        for value in bad:
            with refused(name, *([] if isinstance(value, np.ndarray) else [value])):
                make(value)
        make(np.float32(0.5))
        if name != "rho":  # `rho` decides shapes, so it cannot be traced
            jax.jit(lambda x, make=make: make(x) and 0)(0.5)


def test_ablations_of_pal_by_hand():
    """Fujimoto et al. 2020, App. C.1: Huber with 1/lambda, and PAL without 1/lambda."""
    case = CASES["A"]
    td, scale = jnp.asarray(case["td"]), case["scale"]
    huber = equivalence.pal(0.4, 1.0, form="huber")(td)
    np.testing.assert_allclose(huber, np.array(case["huber"]) / scale, rtol=1e-6)
    bare = equivalence.pal(0.4, 1.0, divide=False)(td)
    np.testing.assert_allclose(bare, np.array(case["pal"]) * scale, rtol=1e-6)
    with refused("form", "l1", "pal", "huber"):
        equivalence.pal(form="l1")


def test_options_of_the_methods_include_the_ablations():
    """L1 + alpha is PER's sampling with the L1 loss; the Huber ablation samples uniformly."""
    td = jnp.asarray([[0.3, -0.5, 1, -2, 4]])
    ones = jnp.ones(5)
    sample = Sample(jnp.arange(5), None, ones, ones)
    l1 = per.method(per.PERConfig(alpha=0.4, beta=0.0, beta_end=0.0, epsilon=1e-10, loss="l1"))
    np.testing.assert_allclose(l1.objective.error(td), jnp.abs(td))
    huber = uniform.method(uniform.UniformConfig(loss="huber"))
    np.testing.assert_allclose(huber.objective.error(td)[0], CASES["A"]["huber"], rtol=1e-6)
    scaled = pal.method(pal.PALConfig(loss="huber"))
    found = scaled.objective.critic(scaled.objective.error(td)[0], sample, None)
    expected = np.mean(CASES["A"]["huber"]) / CASES["A"]["scale"]
    assert float(found) == pytest.approx(expected, rel=1e-6)
