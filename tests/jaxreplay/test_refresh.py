"""Exact priorities of slots: `Replay.refresh`, and the samplers that have it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, ring
from jaxreplay.contrib import cer, faded, la3p, masked, reaper, refresh
from jaxreplay.methods import per, proportional, pser, rank, uniform
from jaxreplay.methods.per import PERConfig
from tests.refusals import refused
from tests.slots import Slots

EXACT = {
    "per": per.sampler(PERConfig(maximum="stored", normalise="buffer").for_run(50)),
    "rank": rank.sampler(rank.RankConfig(maximum="stored")),
    "pser": pser.sampler(),
    "la3p": la3p.sampler(la3p.LA3PConfig(kappa=0.1)),
    "faded": faded.sampler(faded.FadedConfig(fade=0.97, floor=0.6, kappa=0.1)),
    "cer": cer.sampler(cer.CERConfig(over="per")),
}


def exact(slots, where, **feedback):
    told = {name: jnp.asarray(values, jnp.float32) for name, values in feedback.items()}
    where = jnp.asarray(where, jnp.int32)
    slots.state = jax.jit(slots.run.replay.refresh)(slots.state, where, **told)
    return slots


def test_exact_priorities_by_hand():
    config = PERConfig(alpha=0.6, epsilon=0.0)
    slots = Slots(per.sampler(config), 6, 2, count=4)
    slots.update([2, 3], td_error=[0.5, 0.1])
    stored = [0.34353, 0.34353, 0.22665, 0.08629, 0, 0]
    np.testing.assert_allclose(slots.probability(), stored, atol=1e-5)
    exact(slots, range(6), td_error=[0.2, -0.6, 0.5, 0.1, 9.0, 9.0])
    now = [0.18777, 0.36298, 0.32537, 0.12388, 0, 0]
    np.testing.assert_allclose(slots.probability(), now, atol=1e-5)
    # The next transition gets the largest, which is no longer 1.
    assert slots.metric("max_priority") == pytest.approx(0.6**0.6)
    np.testing.assert_allclose(slots.add().leaves()[4], 0.6**0.6, rtol=1e-5)


@pytest.mark.parametrize("name", EXACT)
def test_refreshed_priorities_equal_those_of_updates_with_the_same_feedback(name):
    """The history before does not matter, and neither do the parts in which slots are refreshed."""
    rng = np.random.default_rng(0)
    base = Slots(EXACT[name], 24, num_envs=2, count=9)  # empty slots
    (feedback,) = EXACT[name].requires.feedback
    td = rng.normal(size=24)
    expected = Slots(EXACT[name], 24, num_envs=2, count=9)
    if name in ("per", "rank", "faded"):  # update every row of a batch
        expected.update(np.arange(18), **{feedback: td[:18]})
    else:
        exact(expected, range(24), **{feedback: td})
    for seed in range(3):
        batch = base.sample(seed)
        base.update(batch.indices, batch=batch, **{feedback: 3 + rng.normal(size=24)})
    exact(base, range(24), **{feedback: td})
    np.testing.assert_allclose(base.probability(), expected.probability(), rtol=1e-5)
    assert not base.probability()[18:].any()
    # Of other feedback on half of the slots, then the other half.
    if name != "pser":  # decays to steps of the other half
        exact(base, range(24), **{feedback: 5 * td[::-1]})
        for half in (np.arange(12), np.arange(12, 24)):
            exact(base, half, **{feedback: td[half]})
        np.testing.assert_allclose(base.probability(), expected.probability(), rtol=1e-5)
    # New transitions receive the maximum of the refreshed priorities.
    base.add(), expected.add()
    if name not in ("per", "rank", "faded"):  # whose maximum is at least 1
        np.testing.assert_allclose(base.probability(), expected.probability(), rtol=1e-5)


def test_priorities_decay_to_earlier_steps_of_the_same_episode():
    slots = Slots(pser.sampler(pser.PSERConfig(alpha=1.0, epsilon=0.0, rho=0.5)), 8, 4)
    for first in (True, False, True, False, False, False):
        slots.add(first=first)
    exact(slots, range(8), td_error=[0.1, 0.4, 0.1, 0.2, 0.0, 4.0, 9.0, 9.0])
    np.testing.assert_allclose(slots.leaves(), [0.2, 0.4, 0.5, 1.0, 2.0, 4.0, 0, 0], rtol=1e-5)
    proportional.check_valid(slots.state.sampler.priorities, slots.state.ring)


def test_reliabilities_follow_the_refreshed_errors():
    config = reaper.ReaPERConfig(alpha=1.0, epsilon=0.0, omega=1.0)
    slots = Slots(reaper.sampler(config), 8, 4)
    for first in (True, False, False, True, False):
        slots.add(first=first)
    slots.update([0, 1], td_error=[90.0, 90.0], batch=slots.sample(0, batch_size=2))
    exact(slots, range(8), td_error=[1.0, -2.0, 1.0, 1.0, 0.5, 7.0, 7.0, 7.0])
    # An ended episode, with sums of 1, 3 and 4, and a running one, with sums of 1 and 1.5.
    mass = np.array([1 / 4, 2 * 3 / 4, 4 / 4, 1 / 4, 0.5 * 1.5 / 4, 0, 0, 0])
    np.testing.assert_allclose(slots.probability(), mass / mass.sum(), rtol=1e-5)
    assert float(slots.state.sampler.largest) == 2.0
    assert float(slots.state.sampler.largest_sum) == 4.0


def test_inverse_priorities_are_refreshed():
    config = la3p.LA3PConfig(alpha=1.0, kappa=0.1, fraction=1.0)
    slots = exact(Slots(la3p.sampler(config), 4, 4, count=3), range(4), td_error=[1, 2, 4, 8])
    by_priority, inverse = np.array([1, 2, 4]) / 7, np.array([4, 2, 1]) / 7
    np.testing.assert_allclose(slots.probability()[:3], (by_priority + inverse) / 2, rtol=1e-5)


def test_refreshing_does_not_advance_beta_and_skips_what_is_not_finite():
    slots = Slots(per.sampler(PERConfig(epsilon=0.0).for_run(10)), 8, 4, count=5)
    slots.update([0, 1, 2, 3], td_error=[2.0, 3.0, 4.0, 5.0])
    beta, before = slots.metric("beta"), slots.leaves()
    exact(slots, [0, 1, 2, 7], td_error=[np.nan, np.inf, 1.5, 1.0])
    assert slots.metric("beta") == beta
    np.testing.assert_allclose(
        slots.leaves(), np.where(np.arange(8) == 2, 1.5**0.6, before), rtol=1e-5
    )
    assert slots.metric("dropped") == 2
    assert slots.metric("max_priority") == pytest.approx(5**0.6, rel=1e-5)
    exact(slots, range(8), td_error=np.zeros(8))
    assert slots.metric("max_priority") == 1.0


def test_seeds_are_refreshed_under_vmap():
    replay = Replay(rank.sampler(), capacity=8, batch_size=4)
    slots = Slots(rank.sampler(), 8, 4, count=5)
    td = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)
    states = jax.tree.map(lambda x: jnp.stack([x] * 3), slots.state)
    where = jnp.arange(8)
    told = jax.jit(jax.vmap(lambda s, td: replay.refresh(s, where, td_error=td)))(states, td)
    for seed in range(3):
        alone = exact(Slots(rank.sampler(), 8, 4, count=5), range(8), td_error=td[seed])
        found = jax.tree.map(lambda x, seed=seed: x[seed], told)
        np.testing.assert_array_equal(
            replay.probability(found, where), alone.probability().astype(np.float32)
        )
        rank.check_valid(found.sampler, found.ring)


def test_samplers_without_exact_priorities_say_so():
    for sampler in (uniform.sampler(), masked.sampler()):
        slots = Slots(sampler, 4, 2, count=3)
        told = dict.fromkeys(sampler.requires.feedback, jnp.ones(1))
        with pytest.raises(NotImplementedError, match=f"{type(sampler).__name__} .*refresh"):
            slots.run.replay.refresh(slots.state, jnp.zeros(1, jnp.int32), **told)
    slots = Slots(pser.sampler(pser.PSERConfig(combine="add")), 4, 2, count=3)
    with refused("combine", "add", "max"):
        slots.run.replay.refresh(slots.state, jnp.zeros(1, jnp.int32), td_error=jnp.ones(1))
    with refused("inner", "refresh", "Uniform"):
        refresh.Refreshed(uniform.sampler())
    with refused("inner", "3"):
        refresh.combine(3)  # pyright: ignore[reportArgumentType]


def test_missing_feedback_is_refused():
    slots = Slots(per.sampler(), 4, 2, count=3)
    with refused("refresh", "td_error"):
        slots.run.replay.refresh(slots.state, jnp.arange(4))
    with refused("td_error", "refresh", "4"):
        slots.run.replay.refresh(slots.state, jnp.arange(4), td_error=jnp.ones(3))


def test_states_are_those_of_the_inner_sampler():
    inner = rank.method(rank.RankConfig(alpha=0.5))
    method = refresh.combine(inner, refresh.RefreshConfig(every=7, chunk=3))
    assert method.requires == inner.requires._replace(refresh=(7, 3))
    assert method.objective is inner.objective
    wrapped, alone = (Slots(m.sampler, 8, 4, count=5) for m in (method, inner))
    assert jax.tree.structure(wrapped.state) == jax.tree.structure(alone.state)
    assert int(ring.size(wrapped.state.ring)) == 5
    np.testing.assert_array_equal(wrapped.sample(3).indices, alone.sample(3).indices)
