"""ReF-ER's rules and objective, compared with numbers by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Trust
from jaxreplay.methods import refer
from jaxreplay.methods.refer import Aux, ReFERConfig, log_c_max
from jaxreplay.types import LOG_RATIO_LIMIT, Sample
from tests.refusals import refused

next_beta, _is_far = jax.jit(refer.next_beta), jax.jit(refer.is_far)


@pytest.mark.parametrize(
    ("beta", "rate", "expected"),
    [
        (1.0, 0.1, [0.9, 0.81, 0.829, 0.8461, 0.86149, 0.775341]),
        (0.2, 0.1, [0.18, 0.162, 0.2458, 0.32122, 0.389098, 0.3501882]),
        (1.0, 1e-4, [0.9999, 0.99980001, 0.99980003, 0.99980005, 0.99980007, 0.99970009]),
    ],
)
def test_beta_by_hand(beta, rate, expected):
    for share, wanted in zip([0.2, 0.15, 0.1, 0.05, 0.0, 0.3], expected):
        beta = next_beta(jnp.float32(beta), jnp.float32(share), 0.1, rate)
        np.testing.assert_allclose(beta, wanted, rtol=1e-6)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.floats(0, 1), st.floats(0, 1), st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_beta_stays_in_0_1_and_moves_towards_its_target(beta, rate, shares):
    value = jnp.float32(beta)
    for share in shares:
        after = next_beta(value, jnp.float32(share), 0.1, rate)
        assert 0 <= after <= 1 + 1e-6
        assert (
            after <= value + 1e-6 if np.float32(share) > np.float32(0.1) else after >= value - 1e-6
        )
        value = after


def test_c_max_by_hand():
    config = ReFERConfig()
    steps = [0, 10**5, 10**6, 2 * 10**6, 10**7]
    expected = [5, 4.8095238095, 3.6666666667, 3, 1.6666666667]
    np.testing.assert_allclose(np.exp(log_c_max(config, np.array(steps))), expected, rtol=1e-6)
    assert np.exp(log_c_max(config, 10**15)) == pytest.approx(1, abs=1e-6)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-7, 7, width=32), min_size=8, max_size=8),
    st.floats(0.125, 500, width=32),
    st.floats(0, 1e-3),
    st.lists(st.integers(0, 2**30), min_size=2, max_size=2, unique=True),
)
def test_annealing_only_adds_far_steps_and_keeps_on_policy_steps_near(ratios, clip, anneal, steps):
    config = ReFERConfig(clip=clip, anneal=anneal)
    early, late = (log_c_max(config, jnp.asarray(k, jnp.float32)) for k in sorted(steps))
    assert 0 < late <= early <= np.log1p(clip) * (1 + 1e-6) < LOG_RATIO_LIMIT
    if anneal * (max(steps) - min(steps)) > 1e-3 * (1 + anneal * min(steps)):
        assert late < early
    before, after = (np.asarray(_is_far(np.float32([*ratios, 0.0]), c)) for c in (early, late))
    assert (after >= before).all()  # sets of far-policy steps are nested
    assert not after[-1]  # ratio 1


def sample_of(beta, c_max, size):
    aux = Aux(jnp.asarray(beta), jnp.log(c_max), None)
    return Sample(jnp.arange(size), None, jnp.ones(size), jnp.ones(size), aux)


def trust_of(log_ratio, kl=0.0, reverse_kl=0.0):
    log_ratio = jnp.asarray(log_ratio, jnp.float32)
    fill = lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float32), log_ratio.shape)
    return Trust(log_ratio, fill(kl), fill(reverse_kl))


def test_near_and_far_steps_by_hand():
    ratios = np.array([0.1, 0.2001, 1, 4.999, 6])
    objective = refer.objective()
    critic = lambda loss: objective.critic(loss, sample_of(0.3, 5.0, 5), trust_of(np.log(ratios)))
    np.testing.assert_array_equal(jax.jit(jax.vmap(critic))(5 * np.eye(5)), [0, 1, 1, 1, 0])
    border = trust_of([np.log(np.float32(5.0)), -np.log(np.float32(5.0))])
    assert float(objective.critic(jnp.ones(2), sample_of(0.3, 5.0, 2), border)) == 0


def test_beta_mixes_the_losses_by_hand():
    objective = refer.objective()
    loss, kl = jnp.asarray([1.0, 2.0, 4.0]), [10.0, 20.0, 30.0]
    trust = trust_of([0.0, 0.1, 3.0], kl, [1.0, 1.0, 1.0])
    near = np.array([1.0, 2.0, 0.0])
    for beta in (0.0, 0.3, 1.0):
        got = objective.actor(loss, sample_of(beta, 5.0, 3), trust)
        np.testing.assert_allclose(got, (beta * near + (1 - beta) * np.array(kl)).mean(), rtol=1e-6)
    np.testing.assert_allclose(objective.critic(loss, sample_of(0.3, 5.0, 3), trust), 1.0)
    reverse = refer.objective(ReFERConfig(direction="policy"))
    np.testing.assert_allclose(reverse.actor(loss, sample_of(0.0, 5.0, 3), trust), 1.0)
    plain = refer.objective(ReFERConfig(reject=False, penalise=False))
    np.testing.assert_allclose(plain.actor(loss, sample_of(1.0, 5.0, 3), trust), 7 / 3, rtol=1e-6)


def test_far_steps_have_no_gradient():
    objective, sample = refer.objective(), sample_of(1.0, 5.0, 2)
    for half in (objective.actor, objective.critic):
        grad = jax.grad(lambda x: half(jnp.square(x), sample, trust_of([0.1, 6.9])))(jnp.ones(2))
        assert grad[0] == 1 and grad[1] == 0


def test_agents_without_a_density_are_refused():
    with refused("ReF-ER"):
        refer.objective().critic(jnp.ones(2), sample_of(0.3, 5.0, 2), None)


@functools.partial(jax.jit, static_argnums=3)
def gradients_of(ratios, beta, c_max, direction):
    """Return the gradients of the actor's loss by loss and both penalties, and of the critic's."""
    objective = refer.objective(ReFERConfig(direction=direction))
    trust, sample, ones = trust_of(ratios), sample_of(beta, c_max, 5), jnp.ones(5)

    def actor(loss, kl, reverse_kl):
        return objective.actor(loss, sample, trust._replace(kl=kl, reverse_kl=reverse_kl))

    critic = lambda loss: objective.critic(loss, sample, trust)
    return *jax.grad(actor, (0, 1, 2))(ones, ones, ones), jax.grad(critic)(ones)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-7, 7, width=32), min_size=4, max_size=4),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.floats(1.125, 100, width=32),
    st.sampled_from(["behaviour", "policy"]),
)
def test_beta_divides_the_gradient_between_loss_and_penalty(ratios, beta, c_max, direction):
    """With beta 1 the penalty has no gradient, and with beta 0 the agent's loss has none."""
    ratios = np.float32([*ratios, 0.0])
    by_loss, *by_kl, by_critic = gradients_of(ratios, beta, np.float32(c_max), direction)
    near = np.abs(ratios) < np.log(np.float32(c_max))
    np.testing.assert_allclose(by_loss, beta * near / 5, rtol=1e-6)
    used = ["behaviour", "policy"].index(direction)
    np.testing.assert_allclose(by_kl[used], (1 - beta) / 5, rtol=1e-6)
    np.testing.assert_array_equal(by_kl[1 - used], 0)
    np.testing.assert_allclose(by_critic, near / 5, rtol=1e-6)
