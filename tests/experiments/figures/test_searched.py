"""Panels of a search show the best so far, whichever direction is better."""

import numpy as np
import pandas as pd
import pytest

from experiments.figures import searched
from experiments.figures.drawing import to_matplotlib
from experiments.statistics import primary

SCORES = [9.0, np.nan, 5.0, 7.0]  # the second trial failed
LOWER, HIGHER = ("steps_to_threshold", 1.0), ("final", None)


def table(scores):
    trials = range(len(scores))
    frame = {"env": "walk/4", "replay": "per", "method": "per", "trial": trials, "score": scores}
    return pd.DataFrame(frame | {"point": "p", "alpha": np.add(trials, 0.5)})


@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [
        (LOWER, SCORES, [9, 9, 5, 5]),
        (HIGHER, SCORES, [9, 9, 9, 9]),
        (HIGHER, [5, 9, 7], [5, 9, 9]),
    ],
)
def test_the_line_is_the_best_so_far(metric, scores, best):
    (panel,) = searched.trials(table(scores), lambda env: primary.parse(*metric), "dqn").panels
    line, dots = panel.marks
    np.testing.assert_array_equal(dots.y, scores)
    np.testing.assert_array_equal(line.y, best)


@pytest.mark.parametrize(("metric", "best"), [(LOWER, (2.5, 5.0)), (HIGHER, (0.5, 9.0))])
def test_the_best_trial_is_ringed(tmp_path, metric, best):
    of_task = lambda env: primary.parse(*metric)
    drawn = searched.settings(table(SCORES), ["alpha"], ["alpha"], of_task, "dqn")
    _, ring = drawn.panels[0].marks
    assert ring.ring and (*ring.x, *ring.y) == best
    to_matplotlib(drawn, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
