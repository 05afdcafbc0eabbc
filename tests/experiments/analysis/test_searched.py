"""Figures of a search show the best so far, whichever direction is better."""

import numpy as np
import pandas as pd
import pytest

from experiments.analysis import primary, searched

SCORES = [9.0, np.nan, 5.0, 7.0]  # the second trial failed
LOWER, HIGHER = ("steps_to_threshold", 1.0), ("final", None)


@pytest.fixture
def figures(monkeypatch):
    """Return the figures that are drawn, which are not written down."""
    drawn = []
    monkeypatch.setattr(searched, "save", lambda figure, path: drawn.append(figure))
    return drawn


def table(scores):
    trials = range(len(scores))
    frame = {"env": "walk/4", "replay": "per", "method": "per", "trial": trials, "score": scores}
    return pd.DataFrame(frame | {"alpha": np.add(trials, 0.5)})


@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [
        (LOWER, SCORES, [9, 9, 5, 5]),
        (HIGHER, SCORES, [9, 9, 9, 9]),
        (HIGHER, [5, 9, 7], [5, 9, 9]),
    ],
)
def test_the_line_is_the_best_so_far(figures, metric, scores, best):
    searched.trials(table(scores), lambda env: primary.parse(*metric), "x.png", "dqn")
    dots, line = figures[0].axes[0].lines
    np.testing.assert_array_equal(dots.get_ydata(), scores)
    np.testing.assert_array_equal(line.get_ydata(), best)


@pytest.mark.parametrize(("metric", "best"), [(LOWER, (2.5, 5.0)), (HIGHER, (0.5, 9.0))])
def test_the_best_trial_is_ringed(figures, metric, best):
    of_task = lambda env: primary.parse(*metric)
    searched.settings(table(SCORES), ["alpha"], ["alpha"], of_task, "x.png", "dqn")
    _, ring = figures[0].axes[0].lines
    assert tuple(*ring.get_xydata()) == best
