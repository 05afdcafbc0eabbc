"""Arguments of a replay's methods are refused with an error of one line or accepted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import IGNORED, Replay, n_step, ring, sum_tree, testing
from jaxreplay.contrib import sil
from jaxreplay.methods import METHODS, per, refer, sequences, slices
from jaxreplay.n_step import Step
from jaxreplay.testing import E
from tests.methods import DISTINCT, quick
from tests.refusals import refused

SAMPLERS = {name: testing.with_goals(entry.method()).sampler for name, entry in METHODS.items()} | {
    "per-buffer": per.sampler(per.PERConfig(normalise="buffer")),
    "refer-returns": refer.sampler(refer.ReFERConfig(returns=True)),
    "sequences": sequences.sampler(sequences.SequencesConfig(length=4, period=2)),
    "sil": sil.sampler(sil.SILConfig(clip=None)),  # so that large feedback changes priorities
    "slices": slices.sampler(slices.SlicesConfig(length=4)),
}
del SAMPLERS["windows"]  # windows of 16 steps do not fit
KEY = jax.random.key(1)


@functools.cache
def held(name, capacity=16, rows=8):
    """Return a replay, its state and a batch."""
    replay = Replay(SAMPLERS[name], capacity=capacity, batch_size=4, num_envs=E)
    state, add = jax.jit(replay.init)(KEY, testing.EXAMPLE), jax.jit(replay.add)
    for time in range(rows):
        state = add(state, testing.rows(time), **told(replay.requires.feedback_of_new, E))
    return replay, state, jax.jit(replay.sample)(state, KEY)


def told(names, *shape):
    return dict.fromkeys(names, np.ones(shape, np.float32))


def calls(replay, state, batch):
    """Yield the name of every method of a replay, and a function that calls it."""
    wanted = replay.requires
    new, about = told(wanted.feedback_of_new, E), told(wanted.feedback, *batch.indices.shape)
    yield "add", lambda: replay.add(state, testing.rows(3), **new)
    yield "sample", lambda: replay.sample(state, KEY)
    yield "update", lambda: replay.update(state, batch, **about)
    yield "after_reading", lambda: replay.after_reading(state, batch)
    yield "observe_return", lambda: replay.observe_return(state, np.float32(1), KEY)
    yield "can_sample", lambda: replay.can_sample(state)
    yield "probability", lambda: replay.probability(state, np.arange(3))
    yield "metrics", lambda: replay.metrics(state)


@functools.cache
def blank(name, capacity=16):
    """Return a replay, and a state and a batch of zeros, which take no compilation."""
    replay = Replay(SAMPLERS[name], capacity=capacity, batch_size=4, num_envs=E)
    state = zeros(jax.eval_shape(replay.init, KEY, testing.EXAMPLE))
    return replay, state, zeros(jax.eval_shape(replay.sample, state, KEY))


def zeros(shapes):
    key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(
        lambda x: jnp.broadcast_to(KEY, x.shape) if key(x) else np.zeros(x.shape, x.dtype), shapes
    )


def stacked(tree):
    return jax.tree.map(lambda x: jnp.stack([x, x]), tree)


def wrong_states(name):
    """Yield states that a replay refuses, and a word of the error."""
    replay, state, _ = blank(name)
    yield blank(name, 32)[1], replay.slots
    yield stacked(state), "jax.vmap"
    shapes = lambda state: jax.tree.map(jnp.shape, state.sampler)
    for other in DISTINCT:
        theirs = blank(other)[1]
        if SAMPLERS[name].capacity_factor != SAMPLERS[other].capacity_factor:
            continue  # a ring of another size (ReF-ER)
        if jax.tree.flatten(shapes(theirs)) != jax.tree.flatten(shapes(state)):  # not PER and LAP
            yield theirs, type(theirs.sampler).__name__


@pytest.mark.parametrize("name", quick(SAMPLERS))
def test_states_of_other_replays_and_vmapped_states_and_batches_are_refused(name):
    replay, state, batch = blank(name)
    for wrong, word in wrong_states(name):
        for verb, call in calls(replay, wrong, batch):
            with refused(verb, word):
                call()
    for verb in ("update", "after_reading"):
        with refused("indices", "jax.vmap"):
            dict(calls(replay, state, stacked(batch)))[verb]()


@pytest.mark.parametrize("name", quick(SAMPLERS, of=("per", "refer", "sequences")))
def test_states_and_batches_may_be_numpy_arrays(name):
    replay, *both = held(name)
    every = lambda both: jax.jit(lambda: [call() for _, call in calls(replay, *both)])()
    testing.same(every(both), every(jax.device_get(both)))  # arrays of closures keep their type


def test_int64_slots_do_not_wrap_around():
    replay, state, batch = held("per", rows=3)
    far = np.array([2**32, -(2**40), 2**31, -1, 0])
    for slots in (far, far.tolist(), far.astype(np.uint64)):
        chance = jax.jit(lambda state: replay.probability(state, slots))(state)
        np.testing.assert_allclose(chance, [0, 0, 0, 0, 1 / 6], rtol=1e-6)
    with jax.enable_x64(True):
        np.testing.assert_allclose(replay.probability(state, jnp.asarray(far))[:4], 0)
    for change in (
        {"indices": np.asarray(batch.indices, np.int64) + 2**32},
        {"version": np.asarray(batch.version, np.int64) + 2**32},
    ):
        far_off, td = batch._replace(**change), np.full(4, 9.0)
        after = jax.jit(lambda state: replay.update(state, far_off, td_error=td))(state)
        assert int(after.dropped) == 4 or "indices" in change
        testing.same(after.sampler.tree, state.sampler.tree)
    tree = sum_tree.set(sum_tree.init(4), far, np.ones(5))
    np.testing.assert_array_equal(sum_tree.leaves(tree), [1, 0, 0, 0])
    for read in (ring.gather, ring.age, ring.version, ring.recent, ring.previous, ring.time):
        with pytest.raises(ValueError, match=str(2**32)):
            read(state.ring, far[:1])
        with refused("float64"):
            read(state.ring, np.ones(2))
    with refused("indices", "float32"):
        replay.update(state, batch._replace(indices=jnp.ones(4)), td_error=np.ones(4))


# The others have the `update` of PER, or no large array that probabilities do not show.
OWN_UPDATES = (
    "per-buffer", "rank", "pser", "ero", "ners", "refer-returns", "sequences", "la3p", "faded",
    "fresh", "masked", "curious", "sil",
)  # fmt: skip


@pytest.mark.parametrize("name", OWN_UPDATES)
def test_ignored_transitions_change_no_large_array(name):
    replay, state, batch = held(name)
    ignored = batch._replace(indices=jnp.full_like(batch.indices, IGNORED))
    feedback = {x: 9.0 + jnp.arange(batch.indices.size).reshape(batch.indices.shape)
                for x in replay.requires.feedback}  # fmt: skip
    update = jax.jit(lambda sample: replay.sampler.update(
        state.sampler, state.ring, sample, **feedback))  # fmt: skip
    large = lambda inner: [x for x in jax.tree.leaves(inner) if x.size >= state.ring.capacity]
    before = large(state.sampler)
    testing.same(large(update(ignored)), before)
    after = large(update(batch))  # updates priorities
    assert any((new != old).any() for new, old in zip(after, before, strict=True))


def test_vmapped_rings_and_windows_are_refused():
    many = stacked(held("uniform")[1].ring)
    for read in (ring.age, ring.version, ring.recent, ring.previous, ring.even_probability):
        with pytest.raises(ValueError, match="vmap"):
            read(many, jnp.arange(3))
    for whole in (ring.ages, ring.end_episodes, ring.check_valid):
        with pytest.raises(ValueError, match="vmap"):
            whole(many)
    flag, number = np.zeros((), bool), np.zeros((), np.float32)
    one = Step(number, number, number, flag, flag, number, flag)
    window = stacked(n_step.init(one, 3, 2))
    with pytest.raises(ValueError, match="vmap"):
        n_step.push(window, jax.tree.map(lambda x: np.stack([x, x]), one), 0.9)


# Outside of jit, each operation is compiled separately.
@pytest.mark.parametrize("jitted", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", quick(SAMPLERS, of=("per", "ners", "refer")))
def test_replays_work_with_jax_debug_settings(name, jitted):
    """Covers rank promotion and, unless the state contains infinities, `jax_debug_infs`."""
    replay, state, batch = held(name)
    minima = ("per-buffer", "sil")  # empty trees of minima contain infinities
    infs = jax.debug_infs(name not in minima)
    with jax.numpy_rank_promotion("raise"), infs:
        jax.jit(replay.init)(KEY, testing.EXAMPLE)
        every = lambda: [call() for _, call in calls(replay, state, batch)]
        jax.jit(every)() if jitted else every()
