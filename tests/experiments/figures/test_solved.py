"""Comparisons as sentences, and the figure of the share of solved seeds."""

import math
import re

import numpy as np
import pandas as pd
from matplotlib.image import imread

from experiments.figures import solved
from experiments.figures.judged import Judged
from experiments.figures.style import NAMES
from experiments.statistics import paired, primary, verdicts
from experiments.statistics.verdicts import CONTROL, Facts
from tests.refusals import assert_names

SEEDS = tuple(range(20))
GROUP = "16 agent steps per update, 2 replays per transition"


def judged(label, differences, group=GROUP, method=None, **facts) -> Judged:
    """Return an arm with given differences from the baseline (positive is better)."""
    pairs = paired.compare_pairs(np.asarray(differences, float), np.zeros(len(differences)))
    seeds = tuple(range(len(differences)))
    arms = (
        Facts(label, "walk/10", "abc", {}, seeds, **facts),
        Facts("uniform", "walk/10", "abc", {}, seeds),
    )
    found = verdicts.judge(*arms, pairs)
    return Judged(label, method or label, group, pairs, found)


BETTER = [1] * 15 + [-1] * 2 + [0] * 3
WORSE = [-1] * 16 + [1] * 3 + [0]
EVEN = [1] * 9 + [-1] * 8 + [0] * 3
METHODS = {label: label for label in ("per", "lap", "pser", "rank", "ners")} | {
    "soft": "per", "control": "uniform",
}  # fmt: skip


def said(rows, metric="steps_to_threshold"):
    return solved.sentences(rows, METHODS, primary.parse(metric, 1.0), "uniform", "walk/10")


def directions(name="steps_to_threshold"):
    """Return the words for a better and a worse seed."""
    metric = primary.parse(name, 1.0)
    return metric.better, metric.worse


def in_order(text, first, second):
    """Return whether one word or number comes before another."""
    places = [re.search(rf"\b{re.escape(each)}\b", text) for each in (first, second)]
    assert all(places), f"{first} or {second} missing from: {text}"
    return places[0].start() < places[1].start()


def test_arms_with_one_verdict_share_a_sentence_except_the_control():
    rows = [judged("per", BETTER), judged("pser", EVEN), judged("lap", BETTER),
            judged(CONTROL, EVEN), judged("soft", WORSE)]  # fmt: skip
    *_, other = said([*rows, judged("rank", BETTER, group="every step")])
    assert_names(other.lower(), "every step", "rank")  # one sentence per replay ratio
    better, worse, undecided, control = said(rows)
    (differs,) = said([judged(CONTROL, BETTER)])
    assert len(differs) > len(control)  # a warning follows the counts
    (line,) = said([judged("per", BETTER)], "auc")
    assert in_order(line, *directions("auc")) == in_order(line, "15", "2")
    assert set(re.findall(r"\d+", better.replace("walk/10", ""))) == {"15", "20", "2"}
    assert_names(better, "PER", "LAP", "walk/10")
    assert_names(worse.lower(), "soft", "16", "20", "3")
    for line, counts in ((better, ("15", "2")), (worse, ("3", "16"))):
        assert in_order(line, *directions()) == in_order(line, *counts)
    assert_names(undecided, "PSER", "undecided", "9", "20", "8")
    assert_names(control.lower(), "uniform", "9", "8")


def test_few_seeds_and_arms_like_uniform_get_no_verdict():
    few, untested = said(
        [judged("per", BETTER[:4]), judged("ners", BETTER, prioritises=True, effective_buffer=1.0)]
    )
    assert_names(few, "PER", "4", solved._UNDECIDED["pilot"])
    assert_names(untested, "NERS", "not tested")


def test_curves_show_numbers_of_solved_seeds_and_verdicts(tmp_path):
    """One of four seeds of uniform replay never solves the task."""
    values = {
        "uniform": pd.Series([300.0, 100.0, 400.0, math.inf]),
        "per": pd.Series([100.0, 100.0, 200.0, 300.0]),
    }
    rows, methods = [judged("per", BETTER)], {"uniform": "uniform", "per": "per"}
    panel = solved.panel_of(values, rows, methods, 500)
    uniform, per = (np.stack([line.x, line.y], axis=1).tolist() for line in panel.marks)
    assert uniform == [[0, 0], [100, 1], [300, 2], [400, 3], [500, 3]]
    assert per == [[0, 0], [100, 2], [200, 3], [300, 4], [500, 4]]
    key = solved._key("per", rows[0], panel.marks[1].style, methods, "uniform")
    assert key.label == "PER"
    assert_names(key.note, "15", "2", solved._VERDICTS["agrees"])
    assert (
        solved._key("uniform", None, panel.marks[0].style, methods, "uniform").label
        == NAMES["uniform"]
    )
    solved.draw_solved(values, rows, methods, "uniform", tmp_path / "x.png", "walk/10: dqn", 500)
    assert imread(tmp_path / "x.png").shape[1] > 1000


def test_arms_with_different_numbers_of_seeds_are_shown_as_shares():
    values = {"uniform": pd.Series([300.0, math.inf]), "per": pd.Series([100.0] * 3 + [300.0])}
    rows, methods = [judged("per", BETTER)], {"uniform": "uniform", "per": "per"}
    uniform, per = solved.panel_of(values, rows, methods, 500).marks
    assert np.stack([uniform.x, uniform.y], axis=1).tolist() == [[0, 0], [300, 50], [500, 50]]
    assert np.stack([per.x, per.y], axis=1).tolist() == [[0, 0], [100, 75], [300, 100], [500, 100]]
