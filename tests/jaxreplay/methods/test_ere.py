"""ERE: windows by hand, and a plain model of episodes."""

import numpy as np
import pytest

from jaxreplay.methods.ere import EREConfig, sampler, window
from tests.slots import Slots

CAPACITY, LANES, BATCH = 1000, 2, 4


@pytest.mark.parametrize(
    ("capacity", "eta", "length", "expected"),
    [  # max(N eta^(1000 k / K), 5000)
        (10**6, 0.996, 1000, {0: 1e6, 1: 996_000, 500: 134_793.5812, 999: 18_242.2787}),
        (10**6, 0.994, 200, {0: 1e6, 1: 970_357.8465, 100: 49_339.2108, 199: 5000}),
        (10**5, 0.996, 10, {0: 1e5, 1: 66_978.2571, 5: 13_479.3581, 9: 5000, 50: 5000}),
    ],
)
def test_windows_by_hand(capacity, eta, length, expected):
    found = window(np.int32([*expected]), np.int32(length), eta, capacity, 5000)
    np.testing.assert_allclose(found, [*expected.values()], rtol=2e-5)
    # After as many updates as in the previous episode, the window stays constant.
    late, end = window(np.int32([50, 9]), np.int32(10), 0.9, 100, 1)
    assert float(late) == float(end)


class Episodes(Slots):
    """A replay of two environments; K follows the episodes of the first."""

    def __init__(self, config):
        super().__init__(sampler(config), CAPACITY, BATCH, LANES)

    def play(self, steps, updates):
        """Add an episode of the first environment; one update follows each of the first steps."""
        for step in range(steps):
            self.add(last=[step == steps - 1, step == 0])
            if step < updates:
                self.update([0, 1, 2, 3])
        return self

    def width(self):
        return int((self.probability() > 0).sum())

    def counters(self):
        return int(self.state.sampler.length), int(self.state.sampler.done)


def test_the_window_shrinks_with_the_updates_of_an_episode():
    slots = Episodes(EREConfig(eta=0.996, smallest=6)).play(40, 10)
    # The update after an episode's end counts for the next episode.
    assert slots.counters() == (10, 0) and slots.width() == 80  # all stored transitions
    assert slots.play(5, 0).counters() == (10, 0)  # without updates, K stays
    assert slots.play(8, 7).counters() == (7, 0)
    slots.put(done=np.int32(6))
    assert slots.width() == int(CAPACITY * 0.996 ** (6 * 1000 / 7)) == 32
    counts = np.bincount(slots.draws(2000).indices.ravel(), minlength=CAPACITY)
    assert set(np.flatnonzero(counts)) == set(range(106 - 32, 106))
    expected = 2000 * BATCH * slots.probability()
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


def test_the_metric_is_the_mean_window_of_a_whole_episode():
    slots = Episodes(EREConfig(eta=0.996, smallest=6))
    for _ in range(4):
        slots.play(8, 0)
    assert slots.play(8, 4).metric("window") == np.mean([66, 68, 70, 72])
    slots.play(8, 7)
    shrinking = np.maximum(CAPACITY * 0.996 ** (np.minimum(np.arange(7), 3) * 1000 / 4), 6)
    sizes = np.minimum(shrinking.astype(int), 80 + 2 * np.arange(1, 8))
    assert slots.metric("window") == pytest.approx(sizes.mean())


@pytest.mark.parametrize(("smallest", "width"), [(20, 20), (5000, 60)])
def test_smallest_and_the_stored_size_bound_the_window(smallest, width):
    slots = Episodes(EREConfig(eta=0.9, smallest=smallest)).play(30, 30)
    assert slots.put(done=np.int32(29)).width() == width


def test_eta_rises_to_one_over_the_run():
    slots = Episodes(EREConfig(eta=0.99, smallest=1).for_run(60)).play(30, 30)
    slots.put(done=np.int32(29))
    assert slots.width() == max(int(CAPACITY * 0.995 ** (29 * 1000 / 30)), 1)  # halfway
    assert slots.put(updates=np.int32(60)).width() == 60  # uniform
