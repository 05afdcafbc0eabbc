"""PSER: numbers by hand, a sequential reference in NumPy, and properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import sum_tree
from jaxreplay.methods.pser import PSERConfig, sampler, window_of
from tests.refusals import refused
from tests.slots import Slots

# Leaves equal priorities.
PLAIN = {"alpha": 1.0, "epsilon": 0.0, "rho": 0.4, "window": 5}


class Priorities(Slots):
    """Slots with these priorities; `added` rows determine the position of the write cursor."""

    def __init__(self, config, priorities, firsts=(), added=None, num_envs=1, largest=None):
        capacity = len(priorities)
        super().__init__(sampler(config), capacity, num_envs=num_envs, base=sampler(PSERConfig()),
                         shared="init add probability")  # fmt: skip
        rows = capacity // num_envs
        for row in range(rows if added is None else added):
            slots = row % rows * num_envs + np.arange(num_envs)
            self.add(first=np.isin(slots, list(firsts)))
        self.power = 1.0 if config.decay_space == "leaf" else config.alpha
        live = np.arange(capacity) < min(self.time, rows) * num_envs
        leaves = np.float32(np.where(live, np.float64(priorities) ** self.power, 0))
        largest = leaves.max() if largest is None else np.float32(largest**self.power)
        inner = self.state.sampler.priorities
        tree = sum_tree.rebuild(inner.tree, leaves)
        self.put(priorities=inner._replace(tree=tree, max_leaf=largest))

    def told(self, errors, late=0):
        """Update slots with TD errors, given as a dictionary or as pairs."""
        pairs = list(errors.items()) if isinstance(errors, dict) else errors
        slots, td = zip(*pairs)
        return self.update(slots, late, td_error=td)

    def found(self):
        return self.leaves() ** (1 / self.power)


def after(config, priorities, errors, **options):
    return Priorities(config, priorities, **options).told(errors).found()


OLD = [0.5, 0.2, 0.9, 0.1, 0.3, 0.05, 2.0]


@pytest.mark.parametrize(
    ("combine", "old", "firsts", "expected"),
    [
        # 2 x 0.4^k for k = 1 to 5: 0.8, 0.32, 0.128, 0.0512, 0.02048; slot 0 is out of the window
        ("max", OLD, (), [0.5, 0.2, 0.9, 0.128, 0.32, 0.8, 2]),
        ("add", OLD, (), [0.5, 0.22048, 0.9512, 0.228, 0.62, 0.85, 2]),
        # 1.5 + 0.8 exceeds the largest priority, 2
        ("add", [*OLD[:5], 1.5, 2.0], (), [0.5, 0.22048, 0.9512, 0.228, 0.62, 2, 2]),
        # The episode starts in slot 3.
        ("max", OLD, (0, 3), [0.5, 0.2, 0.9, 0.128, 0.32, 0.8, 2]),
        ("add", OLD, (0, 3), [0.5, 0.2, 0.9, 0.228, 0.62, 0.85, 2]),
    ],
)
def test_decay_by_hand(combine, old, firsts, expected):
    config = PSERConfig(**PLAIN, combine=combine, eta=0.0)
    np.testing.assert_allclose(after(config, old, {6: 2.0}, firsts=firsts), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("combine", "eta", "expected"),
    [  # slot 4 keeps eta x 0.32 or eta x 0.62, and passes its share on
        ("max", 0.7, [0.5, 0.2, 0.9, 0.128, 0.224, 0.8, 2]),
        ("max", 0.0, [0.5, 0.2, 0.9, 0.128, 0.01, 0.8, 2]),
        ("add", 0.7, [0.5111104, 0.248256, 1.02064, 0.4016, 0.434, 0.85, 2]),
        ("add", 0.0, [0.500256, 0.22112, 0.9528, 0.232, 0.01, 0.85, 2]),
    ],
)
def test_replayed_transitions_keep_a_share_of_their_priority(combine, eta, expected):
    slots = Priorities(PSERConfig(**PLAIN, combine=combine, eta=eta), OLD)
    found = slots.told({6: 2.0}).told({4: 0.01}).found()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("combine", ["max", "add"])
def test_leaves_that_overflow_raise_no_earlier_leaves(combine):
    """The square of 1e25 overflows float32, so this slot and earlier ones keep their priorities."""
    config = PSERConfig(alpha=2.0, epsilon=0.0, eta=0.0, combine=combine)
    held = lambda: Priorities(config, [0.1, 0.1, 0.1, 0.5], largest=1.0)
    found = held().told({3: 1e25})
    np.testing.assert_array_equal(found.leaves(), held().leaves())
    inner = found.state.sampler.priorities
    assert (int(inner.skipped), float(inner.max_leaf)) == (1, 1)
    # Other slots of the batch raise theirs.
    pairs = held().told([(3, 1e25), (1, 0.2)]), held().told({1: 0.2})
    np.testing.assert_array_equal(*(slots.leaves() for slots in pairs))


@pytest.mark.parametrize("combine", ["max", "add"])
@pytest.mark.parametrize(("error", "late"), [(9.0, 1), (np.nan, 0), (np.inf, 0)])
def test_late_or_infinite_feedback_raises_no_earlier_leaves(combine, error, late):
    slots = Priorities(PSERConfig(**PLAIN, combine=combine), [0.1] * 7)
    slots.told([(6, error), (2, 1.0)], late)
    expected = [0.26, 0.5] if combine == "add" else [0.16, 0.4]
    np.testing.assert_allclose(slots.found(), [*expected, 1, 0.1, 0.1, 0.1, 0.1], rtol=1e-6)
    assert int(slots.state.dropped) == 1


def test_window_of_rho_by_hand():
    # ln 0.01 / ln rho = 5.03, 6.64, 10.7, 20.6, 43.7
    assert [window_of(rho) for rho in (0.4, 0.5, 0.65, 0.8, 0.9)] == [5, 6, 10, 20, 43]
    assert [window_of(rho, 0.05) for rho in (0.4, 0.5, 0.65, 0.8, 0.9)] == [3, 4, 6, 13, 28]
    with refused("rho", "0.005", "window"):  # no step back is above the threshold
        PSERConfig(rho=0.005)


@pytest.mark.parametrize(
    ("space", "expected"),
    [  # sqrt(2 x 0.4^k) and sqrt(2) x 0.4^k
        ("raw", [0.1431083506, 0.22627417, 0.3577708764, 0.5656854249, 0.894427191, 1.4142135624]),
        ("leaf", [0.0144815469, 0.0362038672, 0.090509668, 0.22627417, 0.5656854249, 1.4142135624]),
    ],
)
def test_decay_in_both_spaces_by_hand(space, expected):
    slots = Priorities(PSERConfig(**PLAIN | {"alpha": 0.5}, decay_space=space), [1e-9] * 6)
    np.testing.assert_allclose(slots.told({5: 2.0}).leaves(), expected, rtol=1e-6)


def test_leaves_of_the_huber_loss_by_hand():
    # sqrt(td^2 / 2 + 1e-10), and sqrt(|td| - 1 / 2) beyond 1
    config = PSERConfig(leaf="sqrt_huber", decay_space="leaf", eta=0.0)
    for error, leaf in ((0, 1e-5), (0.1, 0.0707106788), (0.5, 0.3535533907), (1, 0.7071067813),
                        (2, 1.2247448714), (-5, 2.1213203436)):  # fmt: skip
        assert after(config, [1.0], {0: error})[0] == pytest.approx(leaf, rel=1e-5)


def test_weights_by_hand():
    slots = Priorities(PSERConfig(alpha=1.0, sampling="iid"), [4.0, 1.0, 0.25, 2.0])
    batches = slots.draws(200)
    raw = np.array([0.25, 0.5, 1, 0.3535533906])[batches.indices]  # (0.25 / p)^0.5
    expected = raw / raw.max(axis=1, keepdims=True)
    np.testing.assert_allclose(batches.weights, expected, rtol=1e-5)


def reference(config, priorities, firsts, added, num_envs, pairs, largest):
    """Apply a batch in the order of time, one transition and one step back at a time."""
    p = np.array(priorities, np.float64)
    capacity, rows = len(p), len(p) // num_envs
    error_power = 1.0 if config.decay_space == "raw" else config.alpha
    age = lambda slot: (added - 1 - slot // num_envs) % rows
    pairs = sorted(dict(pairs).items(), key=lambda pair: -age(pair[0]))
    new = {slot: max(abs(error) ** error_power, config.eta * p[slot]) for slot, error in pairs}
    largest = max([largest, *new.values()])
    for slot, value in new.items():
        p[slot] = value if config.combine == "add" else p[slot]
    for slot, value in new.items():
        p[slot] = value if config.combine == "max" else p[slot]
        walker = slot
        for k in range(1, config.window + 1):
            if walker in firsts or age(walker) + 1 >= min(added, rows):
                break
            walker = (walker - num_envs) % capacity
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
@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**20), added=st.integers(4, 30))
def test_updates_equal_the_sequential_reference(config, seed, added):
    rng = np.random.default_rng(seed)
    live = min(added, CAPACITY // LANES) * LANES
    old = np.where(np.arange(CAPACITY) < live, rng.uniform(0.05, 2.0, CAPACITY), 0.0)
    firsts = set(np.flatnonzero(rng.random(CAPACITY) < 0.2).tolist())
    error_of = rng.normal(0, 2, CAPACITY)
    pairs = [(slot, error_of[slot]) for slot in rng.integers(0, live, BATCH)]  # with duplicates
    slots = Priorities(config, old, firsts, added, LANES, largest=3.0).told(pairs)
    # Rows before the oldest row are overwritten, so only the write cursor can stop a walk there;
    # both versions find it by `age`.
    expected = reference(config, old, firsts, added, LANES, pairs, 3.0)
    np.testing.assert_allclose(slots.found(), expected, rtol=2e-5)
    untouched = np.setdiff1d(np.arange(CAPACITY), [slot for slot, _ in pairs])
    assert (slots.found()[untouched] >= old[untouched] * (1 - 1e-5)).all()
    assert slots.leaves().max() <= float(slots.state.sampler.priorities.max_leaf)


@pytest.mark.parametrize("config", CONFIGS[::2], ids=lambda c: c.combine)
def test_tall_trees_are_repaired_above_all_raised_leaves(config):
    # Each step back has another parent, in a level that is repaired node by node.
    num_envs, rows = 512, 16
    old = np.random.default_rng(0).uniform(0.05, 2.0, num_envs * rows)
    pairs = [(num_envs * row + lane, 5.0) for row, lane in ((15, 7), (9, 300), (3, 7), (9, 300))]
    slots = Priorities(config, old, added=20, num_envs=num_envs).told(pairs)
    expected = reference(config, old, (), 20, num_envs, pairs, old.max())
    np.testing.assert_allclose(slots.found(), expected, rtol=2e-5)
    share = expected**config.alpha / (expected**config.alpha).sum()
    np.testing.assert_allclose(slots.probability(), share, rtol=1e-4)


def test_decay_on_add_raises_earlier_steps_of_the_same_episode():
    for on_add, expected in ((False, [1, 1, 1, 1, 5]), (True, [1, 1, 1, 2, 5])):
        config = PSERConfig(**PLAIN, initial="td", decay_on_add=on_add)
        slots = Slots(sampler(config), 5)
        for slot, error in enumerate((1.0, 1.0, 1.0, 1.0, -5.0)):
            slots.add(feedback={"td_error": error}, first=slot in (0, 3))
        np.testing.assert_allclose(slots.leaves(), expected, rtol=1e-6)
    with refused("add", "td_error"):
        slots.add()


def test_inconsistent_options_are_refused():
    with refused("leaf", "sqrt_huber", "decay_space"):
        PSERConfig(leaf="sqrt_huber")
    with refused("combine", "add", "alpha", "max"):
        PSERConfig(combine="add", alpha=0.0)
