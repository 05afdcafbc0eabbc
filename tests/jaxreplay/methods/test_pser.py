"""PSER: numbers by hand, a sequential reference in NumPy, properties and errors."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Replay, sum_tree
from jaxreplay.methods import per
from jaxreplay.methods.per import PERConfig
from jaxreplay.methods.pser import PSERConfig, sampler, window_of
from jaxreplay.ring import size as ring_size
from jaxreplay.testing import EXAMPLE
from jaxreplay.types import Sample
from tests.refusals import refused

ROW = jax.tree.map(lambda x: x[None], EXAMPLE)
# Leaves equal priorities.
PLAIN = {"alpha": 1.0, "epsilon": 0.0, "rho": 0.4, "window": 5}


@functools.cache
def functions(config: PSERConfig, capacity: int, lanes: int, batch: int):
    replay = Replay(sampler(config), capacity=capacity, batch_size=batch, num_envs=lanes)
    return replay, *(jax.jit(f) for f in (replay.init, replay.add, replay.sample, replay.update))


def held(config, priorities, firsts=(), added=None, lanes=1, largest=None):
    """A replay with these priorities; `added` rows determine the position of the write cursor."""
    capacity = len(priorities)
    # Priorities are replaced below, so all configs can share one compiled `add`.
    _, init, add, _, _ = functions(PSERConfig(), capacity, lanes, 1)
    state = init(jax.random.key(0), EXAMPLE)
    rows = capacity // lanes
    for row in range(rows if added is None else added):
        slots = [(row % rows) * lanes + lane for lane in range(lanes)]
        transition = jax.tree.map(lambda x: np.broadcast_to(x, (lanes, *x.shape)), EXAMPLE)
        first = np.array([slot in firsts for slot in slots])
        state = add(state, transition._replace(first=first))
    live = np.arange(capacity) < int(ring_size(state.ring))
    return put(config, state, np.where(live, priorities, 0.0), largest)


def put(config, state, priorities, largest=None):
    inner = state.sampler.priorities
    power = 1.0 if config.decay_space == "leaf" else config.alpha
    leaves = np.float32(np.float64(priorities) ** power)
    largest = leaves.max() if largest is None else np.float32(largest**power)
    inner = inner._replace(tree=sum_tree.rebuild(inner.tree, leaves), max_leaf=largest)
    return state._replace(sampler=state.sampler._replace(priorities=inner))


def update(config, state, errors: dict[int, float] | list[tuple[int, float]], late=0):
    """Update slots with these TD errors; rows of the first `late` pairs count as overwritten."""
    pairs = list(errors.items()) if isinstance(errors, dict) else errors
    ring = state.ring
    *_, change = functions(config, ring.capacity, ring.num_envs, len(pairs))
    slots = np.int32([slot for slot, _ in pairs])
    rows, added = ring.capacity // ring.num_envs, int(ring.steps_added)
    version = added - (added - 1 - slots // ring.num_envs) % rows
    version -= rows * (np.arange(len(pairs)) < late)
    drawn = Sample(slots, EXAMPLE, np.ones(len(pairs), np.float32), np.int32(version))
    state = change(state, drawn, td_error=np.float32([error for _, error in pairs]))
    sum_tree.check_valid(state.sampler.priorities.tree)
    return state


def leaves_of(state):
    return sum_tree.leaves(jax.tree.map(np.asarray, state.sampler.priorities.tree))


def priorities_of(config, state):
    leaves = np.float64(leaves_of(state))
    power = 1.0 if config.decay_space == "leaf" else config.alpha
    return leaves ** (1 / power)


def after(config, priorities, errors, **kwargs):
    return priorities_of(config, update(config, held(config, priorities, **kwargs), errors))


OLD = [0.5, 0.2, 0.9, 0.1, 0.3, 0.05, 2.0]


@pytest.mark.parametrize(
    ("combine", "old", "expected"),
    [
        ("max", OLD, [0.5, 0.2, 0.9, 0.128, 0.32, 0.8, 2]),
        ("add", OLD, [0.5, 0.22048, 0.9512, 0.228, 0.62, 0.85, 2]),
        ("add", [*OLD[:5], 1.5, 2.0], [0.5, 0.22048, 0.9512, 0.228, 0.62, 2, 2]),
    ],
)
def test_decay_by_hand(combine, old, expected):
    config = PSERConfig(**PLAIN, combine=combine, eta=0.0)
    np.testing.assert_allclose(after(config, old, {6: 2.0}), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("combine", "eta", "expected"),
    [
        ("max", 0.7, [0.5, 0.2, 0.9, 0.128, 0.224, 0.8, 2]),
        ("max", 0.0, [0.5, 0.2, 0.9, 0.128, 0.01, 0.8, 2]),
        ("add", 0.7, [0.5111104, 0.248256, 1.02064, 0.4016, 0.434, 0.85, 2]),
        ("add", 0.0, [0.500256, 0.22112, 0.9528, 0.232, 0.01, 0.85, 2]),
    ],
)
def test_replayed_transitions_keep_a_share_of_their_priority(combine, eta, expected):
    config = PSERConfig(**PLAIN, combine=combine, eta=eta)
    state = update(config, held(config, OLD), {6: 2.0})
    found = priorities_of(config, update(config, state, {4: 0.01}))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("combine", "expected"),
    [
        ("max", [0.5, 0.2, 0.9, 0.128, 0.32, 0.8, 2]),
        ("add", [0.5, 0.2, 0.9, 0.228, 0.62, 0.85, 2]),
    ],
)
def test_decay_stops_at_the_start_of_the_episode(combine, expected):
    config = PSERConfig(**PLAIN, combine=combine)
    np.testing.assert_allclose(after(config, OLD, {6: 2.0}, firsts=(0, 3)), expected, rtol=1e-6)


def test_decay_wraps_around_the_ring_and_stops_at_the_cursor():
    config = PSERConfig(**PLAIN | {"rho": 0.5})
    old = [0.1, 1.6, 0.1, 0.1, 0.1, 0.1, 0.1]
    found = after(config, old, {1: 1.6}, added=12)  # the oldest row is in slot 5
    np.testing.assert_allclose(found, [0.8, 1.6, 0.1, 0.1, 0.1, 0.2, 0.4], rtol=1e-6)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ({2: 1.0, 5: 0.8}, [0.16, 0.4, 1, 0.128, 0.32, 0.8, 0.1]),
        ({5: 0.8, 4: 0.01}, [0.1, 0.1, 0.1, 0.128, 0.32, 0.8, 0.1]),
        ({4: 0.01, 5: 0.8}, [0.1, 0.1, 0.1, 0.128, 0.32, 0.8, 0.1]),
    ],
)
def test_batches_are_applied_in_the_order_of_time(errors, expected):
    config = PSERConfig(**PLAIN, eta=0.0)
    np.testing.assert_allclose(after(config, [0.1] * 7, errors), expected, rtol=1e-6)


@pytest.mark.parametrize("combine", ["max", "add"])
def test_leaves_that_overflow_raise_no_earlier_leaves(combine):
    """The square of 1e25 overflows float32, so this slot and earlier ones keep their priorities."""
    config = PSERConfig(alpha=2.0, epsilon=0.0, eta=0.0, combine=combine)
    state = held(config, [0.1, 0.1, 0.1, 0.5], largest=1.0)
    after = update(config, state, {3: 1e25})
    np.testing.assert_array_equal(leaves_of(after), leaves_of(state))
    assert int(after.sampler.priorities.skipped) == 1
    assert float(after.sampler.priorities.max_leaf) == 1
    # Other slots of the batch raise theirs.
    both = update(config, state, [(3, 1e25), (1, 0.2)])
    alone = update(config, state, {1: 0.2})
    np.testing.assert_array_equal(leaves_of(both), leaves_of(alone))


def test_window_of_rho_by_hand():
    assert [window_of(rho) for rho in (0.4, 0.5, 0.65, 0.8, 0.9)] == [5, 6, 10, 20, 43]
    assert [window_of(rho, 0.05) for rho in (0.4, 0.5, 0.65, 0.8, 0.9)] == [3, 4, 6, 13, 28]
    for rho in (0.4, 0.65, 0.8):
        assert rho ** window_of(rho) >= 0.01 > rho ** (window_of(rho) + 1)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ("raw", [0.1431083506, 0.22627417, 0.3577708764, 0.5656854249, 0.894427191, 1.4142135624]),
        ("leaf", [0.0144815469, 0.0362038672, 0.090509668, 0.22627417, 0.5656854249, 1.4142135624]),
    ],
)
def test_decay_in_both_spaces_by_hand(space, expected):
    config = PSERConfig(**PLAIN | {"alpha": 0.5}, decay_space=space)
    state = update(config, held(config, [1e-9] * 6), {5: 2.0})
    leaves = leaves_of(state)
    np.testing.assert_allclose(leaves, expected, rtol=1e-6)


def test_leaves_of_the_huber_loss_by_hand():
    config = PSERConfig(leaf="sqrt_huber", decay_space="leaf", eta=0.0)
    for error, leaf in ((0, 1e-5), (0.1, 0.0707106788), (0.5, 0.3535533907), (1, 0.7071067813),
                        (2, 1.2247448714), (-5, 2.1213203436)):  # fmt: skip
        assert after(config, [1.0], {0: error})[0] == pytest.approx(leaf, rel=1e-5)


def test_priorities_shrink_by_eta_at_td_error_0():
    config = PSERConfig(**PLAIN)
    state = held(config, [1.0])
    for times in range(1, 14):
        state = update(config, state, {0: 0.0})
        assert priorities_of(config, state)[0] == pytest.approx(0.7**times, rel=1e-5)
    assert priorities_of(config, state)[0] <= 0.01


def test_weights_by_hand():
    config = PSERConfig(alpha=1.0, sampling="iid")
    state = held(config, [4.0, 1.0, 0.25, 2.0])
    _, _, _, sample, _ = functions(config, 4, 1, 4)
    for seed in range(1000):
        batch = sample(state, jax.random.key(seed))
        if set(np.asarray(batch.indices).tolist()) == {0, 1, 2, 3}:
            by_slot = np.asarray(batch.weights)[np.argsort(batch.indices)]
            np.testing.assert_allclose(by_slot, [0.25, 0.5, 1, 0.3535533906], rtol=1e-5)
            return
    pytest.fail("no batch held all slots")


# --- A sequential reference --------------------------------------------------------------------


def reference(config, priorities, firsts, added, lanes, pairs, largest):
    """Apply a batch in the order of time, one transition and one step back at a time."""
    p = np.array(priorities, np.float64)
    capacity, rows = len(p), len(p) // lanes
    raw = config.decay_space == "raw"
    error_power = 1.0 if raw else config.alpha
    live_rows = min(added, rows)
    age = lambda slot: (added - 1 - slot // lanes) % rows
    pairs = sorted(dict(pairs).items(), key=lambda pair: -age(pair[0]))
    new = {slot: max(abs(error) ** error_power, config.eta * p[slot]) for slot, error in pairs}
    largest = max([largest, *new.values()])
    for slot, value in new.items():
        p[slot] = value if config.combine == "add" else p[slot]
    for slot, _ in pairs:
        value = new[slot]
        p[slot] = value if config.combine == "max" else p[slot]
        walker = slot
        for k in range(1, config.window + 1):
            if walker in firsts or age(walker) + 1 >= live_rows:
                break
            walker = (walker - lanes) % capacity
            share = value * config.rho**k
            if config.combine == "max":
                p[walker] = max(p[walker], share)
            else:
                p[walker] = min(p[walker] + share, largest)
    return p


CAPACITY, LANES, BATCH = 24, 2, 8
CONFIGS = [
    PSERConfig(alpha=0.6, epsilon=0.0, rho=0.6, window=4, eta=0.5, combine=combine,
               decay_space=space)
    for combine in ("max", "add") for space in ("raw", "leaf")
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.combine}-{c.decay_space}")
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), added=st.integers(4, 30))
def test_vectorised_updates_equal_the_sequential_reference(config, seed, added):
    rng = np.random.default_rng(seed)
    live = min(added, CAPACITY // LANES) * LANES
    old = np.where(np.arange(CAPACITY) < live, rng.uniform(0.05, 2.0, CAPACITY), 0.0)
    firsts = set(np.flatnonzero(rng.random(CAPACITY) < 0.2).tolist())
    slots = rng.integers(0, live, BATCH)  # with duplicates
    error_of = rng.normal(0, 2, CAPACITY)
    pairs = [(int(slot), float(error_of[slot])) for slot in slots]
    state = held(config, old, firsts, added, LANES, largest=3.0)
    found = priorities_of(config, update(config, state, pairs))
    # Rows before the oldest row are overwritten, so only the write cursor can stop a walk there;
    # both versions find it by `age`.
    expected = reference(config, old, firsts, added, LANES, pairs, 3.0)
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize("config", CONFIGS[::2], ids=lambda c: c.combine)
def test_tall_trees_are_repaired_above_all_raised_leaves(config):
    # Each step back has another parent, in a level that is repaired node by node.
    lanes, rows = 512, 16
    old = np.random.default_rng(0).uniform(0.05, 2.0, lanes * rows)
    pairs = [(lanes * row + lane, 5.0) for row, lane in ((15, 7), (9, 300), (3, 7), (9, 300))]
    state = update(config, held(config, old, added=20, lanes=lanes), pairs)
    expected = reference(config, old, (), 20, lanes, pairs, old.max())
    np.testing.assert_allclose(priorities_of(config, state), expected, rtol=2e-5)
    total = jax.jit(sum_tree.total)(state.sampler.priorities.tree)
    np.testing.assert_allclose(total, (expected**config.alpha).sum(), rtol=1e-4)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_max_lowers_no_earlier_leaf_and_add_stays_below_the_largest(seed):
    rng = np.random.default_rng(seed)
    old = rng.uniform(0.05, 2.0, CAPACITY)
    slots = rng.choice(CAPACITY, BATCH, replace=False)
    pairs = [(int(slot), float(rng.normal())) for slot in slots]
    untouched = np.setdiff1d(np.arange(CAPACITY), slots)
    for config in CONFIGS:
        state = update(config, held(config, old, (), None, LANES), pairs)
        found = priorities_of(config, state)
        assert (found[untouched] >= old[untouched] * (1 - 1e-5)).all()
        leaves = leaves_of(state)
        assert float(leaves.max()) <= float(state.sampler.priorities.max_leaf)


def test_the_result_scales_with_all_priorities():
    config = PSERConfig(**PLAIN | {"alpha": 0.6})
    errors = {3: 0.3, 6: 1.5}
    once = after(config, OLD, errors)
    thrice = after(config, 3 * np.array(OLD), {slot: 3 * error for slot, error in errors.items()})
    np.testing.assert_allclose(thrice, 3 * once, rtol=1e-5)


@pytest.mark.parametrize("combine", ["max", "add"])
def test_eta_0_and_a_negligible_rho_equal_per(combine):
    options = {"alpha": 0.5, "beta": 0.5, "epsilon": 1e-3}
    config = PSERConfig(**options, eta=0.0, rho=1e-14, window=1, combine=combine)
    errors = [(2, 0.5), (0, -2.0), (5, 0.0), (3, 1.0)]
    state = update(config, held(config, [1.0] * 7), errors)
    other = Replay(per.sampler(PERConfig(**options)), capacity=7, batch_size=4)
    plain, add = jax.jit(other.init)(jax.random.key(0), EXAMPLE), jax.jit(other.add)
    for _ in range(7):
        plain = add(plain, ROW)
    slots, sizes = np.int32([slot for slot, _ in errors]), np.float32([size for _, size in errors])
    drawn = Sample(slots, EXAMPLE, np.ones(4, np.float32), slots + 1)
    plain = jax.jit(other.update)(plain, drawn, td_error=sizes)
    wanted = sum_tree.leaves(jax.tree.map(np.asarray, plain.sampler.tree))
    np.testing.assert_allclose(leaves_of(state), wanted, rtol=1e-6)
    sample = functions(config, 7, 1, 4)[3]
    drawn, expected = (
        f(s, jax.random.key(7)) for f, s in ((sample, state), (jax.jit(other.sample), plain))
    )
    np.testing.assert_array_equal(drawn.indices, expected.indices)


def test_max_is_idempotent():
    config = PSERConfig(**PLAIN)
    errors = {3: 0.3, 6: 1.5}
    once = update(config, held(config, OLD), errors)
    np.testing.assert_array_equal(
        priorities_of(config, update(config, once, errors)), priorities_of(config, once)
    )


@pytest.mark.parametrize("combine", ["max", "add"])
@pytest.mark.parametrize(("error", "late"), [(9.0, 1), (np.nan, 0), (np.inf, 0)])
def test_late_or_infinite_feedback_raises_no_earlier_leaves(combine, error, late):
    config = PSERConfig(**PLAIN, combine=combine)
    found = update(config, held(config, [0.1] * 7), [(6, error), (2, 1.0)], late)
    expected = [0.16, 0.4, 1, 0.1, 0.1, 0.1, 0.1]
    if combine == "add":
        expected[:2] = [0.26, 0.5]
    np.testing.assert_allclose(priorities_of(config, found), expected, rtol=1e-6)
    assert int(found.dropped) == 1


def test_decay_on_add_raises_earlier_steps_of_the_same_episode():
    for on_add, expected in ((False, [1, 1, 1, 1, 5]), (True, [1, 1, 1, 2, 5])):
        config = PSERConfig(**PLAIN, initial="td", decay_on_add=on_add)
        _, init, add, _, _ = functions(config, 5, 1, 1)
        state = init(jax.random.key(0), EXAMPLE)
        for slot, error in enumerate((1.0, 1.0, 1.0, 1.0, -5.0)):
            transition = ROW._replace(first=np.array([slot in (0, 3)]))
            state = add(state, transition, td_error=np.float32([error]))
            sum_tree.check_valid(state.sampler.priorities.tree)
        np.testing.assert_allclose(priorities_of(config, state), expected, rtol=1e-6)


def test_initial_td_requires_feedback_on_new_transitions():
    replay, *_ = functions(PSERConfig(initial="td"), 5, 1, 1)
    with refused("add", "td_error"):
        replay.add(replay.init(jax.random.key(0), EXAMPLE), ROW)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"rho": 0.0}, ("rho", "0.0")),
        ({"rho": 1.0}, ("rho", "1.0")),
        ({"rho": 1.5}, ("rho", "1.5")),
        ({"rho": float("nan")}, ("rho", "nan")),
        ({"rho": 0.005}, ("rho", "0.005", "window")),
        ({"eta": -0.1}, ("eta", "-0.1")),
        ({"eta": 1.1}, ("eta", "1.1")),
        ({"window": 0}, ("window", "0")),
        ({"threshold": 1.0}, ("threshold", "1.0")),
        ({"alpha": -1.0}, ("alpha", "-1.0")),
        ({"beta": 2.0}, ("beta", "2.0")),
        ({"combine": "sum"}, ("combine", "sum")),
        ({"leaf": "sqrt_huber"}, ("leaf", "sqrt_huber", "decay_space")),
        ({"combine": "add", "alpha": 0.0}, ("combine", "add", "alpha", "max")),
    ],
)
def test_options_out_of_range_are_refused(options, parts):
    with refused(*parts):
        PSERConfig(**options)
