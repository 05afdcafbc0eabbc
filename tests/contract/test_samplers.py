"""One suite of laws for every replay method, in every way that JAX can run it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Transition, make_replay, ring, sum_tree
from jaxreplay.methods import METHODS, per, proportional, pser, rank, refer, windows
from jaxreplay.replay import check_valid

VARIANTS = {name: entry.method(entry.config(), 100) for name, entry in METHODS.items()} | {
    "per-buffer-iid": per.method(per.PERConfig(normalise="buffer", sampling="iid"), 100),
    "per-none": per.method(per.PERConfig(normalise="none"), 100),
    "pser-add": pser.method(pser.PSERConfig(combine="add", decay_on_add=True)),
    # With as many slots as its capacity, which the suite counts on.
    "refer": refer.method(refer.ReFERConfig(capacity_factor=1)),
    "refer-returns": refer.method(
        refer.ReFERConfig(returns=True, sweep_every=2, capacity_factor=1)
    ),
    "windows": windows.method(windows.WindowsConfig(length=4)),
    "rank-stale": rank.method(rank.RankConfig(sort_every=3), 100),
}
EXAMPLE = Transition(
    obs=jnp.zeros(3),
    action=jnp.zeros((), jnp.int32),
    reward=jnp.zeros(()),
    discount=jnp.zeros(()),
    next_obs=jnp.zeros(3),
    first=jnp.zeros((), bool),
    last=jnp.zeros((), bool),
)
E, CAPACITY, BATCH = 2, 24, 8
FEEDBACK = ("td_error", "q_value", "target", "log_ratio", "value", "advantage", "next_value")


@functools.cache
def made(name):
    sampler = VARIANTS[name].sampler
    return make_replay(sampler, capacity=CAPACITY, batch_size=BATCH, num_envs=E)


# Variants of a method that is in the suite anyway.
SLOW = ("per-none", "rank-stale", "pser-add")
PARAMS = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in VARIANTS]


@pytest.fixture(params=PARAMS, scope="module")
def replay(request):
    return made(request.param)


def rows(value):
    """A row of E transitions that carry their number."""
    number = value * E + jnp.arange(E, dtype=jnp.float32)
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (E, *x.shape)), EXAMPLE)
    edges = {"first": jnp.full(E, value % 4 == 0), "last": jnp.full(E, value % 4 == 3)}
    return row._replace(reward=number, obs=jnp.tile(number[:, None], 3), **edges)


def add(replay, state, row):
    """Add a row, with feedback about it if the method asks."""
    return replay.add(state, row, **dict.fromkeys(replay.requires.feedback_of_new, row.reward))


@functools.cache
def jitted_add(replay):
    return jax.jit(functools.partial(add, replay))


def cycle(replay, state, time):
    """One add, sample, update and observe, all decided by `time`."""
    key_sample, key_td, key_observe = jax.random.split(
        jax.random.fold_in(jax.random.key(9), time), 3
    )
    state = add(replay, state, rows(time))
    state, batch = replay.sample(state, key_sample)
    td = 3 * jax.random.normal(key_td, (BATCH,))
    state = replay.update(state, batch, **dict.fromkeys(FEEDBACK, td))
    return replay.observe(state, td.mean(), key_observe), batch


def values(td):
    """Feedback of a batch whose TD errors are all `td`."""
    return dict.fromkeys(FEEDBACK, jnp.zeros(BATCH)) | {"td_error": jnp.zeros(BATCH) + td}


@functools.cache
def jitted(verb):
    return jax.jit(verb)


def filled(replay, count=BATCH):
    state = jitted(replay.init)(jax.random.key(0), EXAMPLE)
    for time in range(count):
        state = jitted_add(replay)(state, rows(time))
    return state


def same(left, right, rtol=0.0):
    atol = 1e-6 if rtol else 0.0
    close = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol)
    jax.tree.map(close, left, right)


def test_a_state_may_be_donated_as_soon_as_it_is_made(replay):
    leaves = jax.tree.leaves(replay.init(jax.random.key(0), EXAMPLE))
    places = [leaf.unsafe_buffer_pointer() for leaf in leaves if leaf.size]
    assert len(set(places)) == len(places)


def test_eager_jit_vmap_and_scan_agree(replay):
    start, steps = filled(replay), 15  # wraps round the ring
    jitted, step = start, jax.jit(lambda state, time: cycle(replay, state, time))
    eager = start
    for time in range(steps):
        jitted, jit_batch = step(jitted, time)
        if time < 3:  # each compiles what it branches and loops over anew
            eager, eager_batch = cycle(replay, eager, time)
            same(jitted, eager, rtol=1e-5)
            same(jit_batch, eager_batch, rtol=1e-5)
    assert step._cache_size() == 1
    scan = jax.jit(lambda s: jax.lax.scan(lambda s, t: cycle(replay, s, t), s, jnp.arange(steps)))
    scanned, batches = scan(start)
    scan_batch = jax.tree.map(lambda x: x[-1], batches)
    many = jax.tree.map(lambda x: jnp.stack([x, x]), start)
    vmapped, vmap_batches = jax.jit(jax.vmap(lambda s: scan(s)))(many)
    vmap_batch = jax.tree.map(lambda x: x[1, -1], vmap_batches)
    same(scanned, jitted, rtol=1e-5)
    same(scan_batch, jit_batch, rtol=1e-5)
    same(jax.tree.map(lambda x: x[1], vmapped), jitted, rtol=1e-5)
    same(vmap_batch, jit_batch, rtol=1e-5)


def test_batches_have_the_promised_shapes(replay):
    state = filled(replay)
    state, batch = jax.jit(replay.sample)(state, jax.random.key(0))
    assert (batch.indices.dtype, batch.indices.shape) == (jnp.int32, (BATCH,))
    assert (batch.weights.dtype, batch.weights.shape) == (jnp.float32, (BATCH,))
    assert batch.stamp.shape == (BATCH,)
    assert np.isfinite(batch.weights).all() and (np.asarray(batch.weights) > 0).all()
    assert batch.transition.obs.shape == (BATCH, 3)
    assert batch.transition.action.dtype == jnp.int32 and batch.transition.first.dtype == bool
    np.testing.assert_array_equal(batch.transition.reward, batch.transition.obs[:, 0])


def test_state_keeps_its_types(replay):
    state = replay.init(jax.random.key(0), EXAMPLE)
    types = lambda tree: [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]
    assert not any(weak for *_, weak in types(state))
    assert types(cycle(replay, filled(replay), 0)[0]) == types(state)


def test_only_written_slots_are_drawn(replay):
    for count in (4, 5, 11):
        state = filled(replay, count)
        assert bool(replay.can_sample(state)) == (count * E >= BATCH)
        for seed in range(5):
            _, batch = replay.sample(state, jax.random.key(seed))
            assert int(batch.indices.max()) < count * E and int(batch.indices.min()) >= 0
            assert float(batch.transition.reward.max()) < count * E


def test_draws_follow_the_probabilities(replay):
    state = filled(replay, 8)
    for time in range(8, 13):  # wraps round the ring
        state, _ = cycle(replay, state, time)
    chance = np.asarray(replay.probability(state, jnp.arange(CAPACITY)), np.float64)
    assert chance.sum() == pytest.approx(1, rel=1e-5) and (chance >= 0).all()
    draw = jax.jit(jax.vmap(lambda key: replay.sample(state, key)[1].indices))
    counts = np.bincount(
        np.asarray(draw(jax.random.split(jax.random.key(1), 2000))).ravel(), minlength=CAPACITY
    )
    expected = 2000 * BATCH * chance
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


def test_same_input_same_output_and_the_input_stays(replay):
    state = filled(replay)
    before = jax.tree.map(np.array, state)
    same(cycle(replay, state, 1), cycle(replay, state, 1))
    same(state, before)


def test_keys_decide_the_draw(replay):
    if replay.requires.all_new:
        return  # nothing is left to chance
    state = filled(replay, CAPACITY // E)
    draws = [np.asarray(replay.sample(state, jax.random.key(k))[1].indices) for k in (1, 1, 2, 3)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).any() and (draws[2] != draws[3]).any()


def test_donation_changes_nothing(replay):
    step = jax.jit(lambda state, time: cycle(replay, state, time))
    donating = jax.jit(lambda state, time: cycle(replay, state, time), donate_argnums=0)
    expected = step(filled(replay), 3)
    given_away = filled(replay)
    same(donating(given_away, 3), expected)
    assert given_away.ring.words.is_deleted()


def test_feedback_for_overwritten_slots_is_dropped_and_counted(replay):
    state = filled(replay, CAPACITY // E)
    _, batch = replay.sample(state, jax.random.key(0))
    later = state
    for time in range(5):
        later = add(replay, later, rows(100 + time))
    stale = np.asarray(batch.indices) < 5 * E
    after = replay.update(later, batch, **values(50.0))
    assert int(after.dropped) == stale.sum()
    if isinstance(after.sampler, proportional.ProportionalState):
        leaves, old = (np.asarray(sum_tree.leaves(s.sampler.tree)) for s in (after, later))
        fresh = np.asarray(batch.indices)[~stale]
        untouched = np.setdiff1d(np.arange(CAPACITY), fresh)
        np.testing.assert_array_equal(leaves[untouched], old[untouched])
        assert (leaves[fresh] > old[fresh]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_feedback_that_is_no_number_is_dropped_and_counted(replay, bad):
    state = filled(replay, CAPACITY // E)
    state, batch = replay.sample(state, jax.random.key(0))
    slots = jnp.arange(BATCH)
    batch = batch._replace(indices=slots, stamp=ring.stamp(state.ring, slots))
    td = jnp.ones(BATCH).at[2].set(bad)
    after = replay.update(state, batch, **dict.fromkeys(FEEDBACK, td))
    assert int(after.dropped) == 1
    for leaf, old in zip(*map(jax.tree.leaves, (after.sampler, state.sampler)), strict=True):
        assert (np.isnan(np.asarray(leaf, np.float32)) <= np.isnan(np.asarray(old))).all()
    if isinstance(after.sampler, proportional.ProportionalState):
        proportional.check_valid(after.sampler, after.ring)
        assert after.sampler.tree.nodes[2] == state.sampler.tree.nodes[2]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.sampled_from(["uniform", "per", "lap", "per-buffer-iid"]),
    st.lists(
        st.one_of(
            st.just(("add", 0.0)),
            st.tuples(
                st.just("update"),
                st.one_of(st.floats(-1e3, 1e3, width=32), st.sampled_from([np.nan, np.inf])),
            ),
        ),
        min_size=5,
        max_size=30,
    ),
)
def test_any_sequence_of_operations_keeps_the_invariants(name, operations):
    replay = made(name)
    add, sample, update = map(jitted, (replay.add, replay.sample, replay.update))
    state, batch, written, dropped = replay.init(jax.random.key(0), EXAMPLE), None, {}, 0
    largest, rows_added = 1.0, 0
    leaf_of = {
        "per": lambda td: (abs(td) + 1e-6) ** 0.6,
        "per-buffer-iid": lambda td: (abs(td) + 1e-6) ** 0.6,
        "lap": lambda td: max(abs(td), 1.0) ** 0.4,
    }.get(name)
    for number, (what, value) in enumerate(operations):
        if what == "add":
            for lane in range(E):
                written[(rows_added * E + lane) % CAPACITY] = (rows_added, largest)
            state, rows_added = add(state, rows(rows_added)), rows_added + 1
        elif rows_added * E >= BATCH:
            # Half of the updates arrive late, after whatever happened since the last sample.
            if batch is None or number % 2:
                state, batch = sample(state, jax.random.key(number))
            state = update(state, batch, **values(value))
            for slot, stamp in zip(np.asarray(batch.indices), np.asarray(batch.stamp)):
                if written[slot][0] + 1 != stamp or not np.isfinite(value):
                    dropped += 1
                elif leaf_of:
                    written[slot] = (written[slot][0], leaf_of(value))
            if leaf_of and np.isfinite(value):
                live = [written[s][1] for s in np.asarray(batch.indices)]
                largest = max(largest, *live)
    check_valid(state)
    assert int(state.dropped) == dropped
    assert int(ring.size(state.ring)) == len(written)
    held = ring.gather(state.ring, jnp.arange(CAPACITY))
    for slot, (row, leaf) in written.items():
        assert float(held.reward[slot]) == row * E + slot % E
        if leaf_of:
            np.testing.assert_allclose(state.sampler.tree.nodes[slot], leaf, rtol=1e-4)
    if leaf_of:
        proportional.check_valid(state.sampler, state.ring)
        np.testing.assert_allclose(state.sampler.max_leaf, largest, rtol=1e-4)


def test_batch_as_large_as_the_capacity():
    for method in VARIANTS.values():
        replay = make_replay(method.sampler, capacity=4, batch_size=4)
        state = replay.init(jax.random.key(0), EXAMPLE)
        for time in range(9):
            state = jitted_add(replay)(state, jax.tree.map(lambda x: x[:1], rows(time)))
        state, batch = jax.jit(replay.sample)(state, jax.random.key(0))
        assert set(np.asarray(batch.indices)) <= set(range(4))


def test_empty_replay_refuses_to_sample(replay):
    with pytest.raises(ValueError, match="the replay is empty"):
        replay.sample(replay.init(jax.random.key(0), EXAMPLE), jax.random.key(0))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"capacity": 8, "batch_size": 0}, "batch_size is 0"),
        ({"capacity": 8, "batch_size": 9}, "batch_size 9 is larger than the capacity 8"),
        ({"capacity": 10, "batch_size": 2, "num_envs": 4}, "not a multiple of the 4 environments"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        make_replay(VARIANTS["uniform"].sampler, **sizes)


# Rank, ReF-ER and NERS compute with JAX's default precision, and need it to be single.
SINGLE = ("rank", "rank-stale", "refer", "refer-returns", "ners")


@pytest.mark.parametrize("name", sorted(VARIANTS.keys() - set(SINGLE)))
def test_state_keeps_its_dtypes_where_doubles_are_enabled(name):
    replay = made(name)

    def steps(key):
        row = jax.tree.map(lambda x: jnp.broadcast_to(x, (E, *x.shape)), EXAMPLE)
        before = replay.init(key, EXAMPLE)
        double = jnp.linspace(0.1, 1.0, BATCH)
        state = replay.add(
            before, row, **dict.fromkeys(replay.requires.feedback_of_new, double[:E])
        )
        state, batch = replay.sample(state, key)
        after = replay.update(state, batch, **dict.fromkeys(FEEDBACK, double))
        return before, after, double

    with jax.enable_x64(True):
        before, after, double = jax.eval_shape(steps, jax.random.key(0))
    assert double.dtype == jnp.float64
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, before)
