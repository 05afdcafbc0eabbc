"""Comparisons as sentences, and the figure of the share of solved seeds."""

import dataclasses
import math
import re

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.image import imread

from experiments.figures import solved
from experiments.figures.style import NAMES
from experiments.statistics import primary
from experiments.statistics.claims import CONTROL, Claim, Runs
from experiments.statistics.verdicts import Verdict, judge
from tests.refusals import assert_names

GROUP = "16 agent steps per update, 2 replays per transition"


def judged(label, differences, group=GROUP, **facts) -> Verdict:
    """Return an arm with given differences from the baseline (positive is better)."""
    arm = Runs(label, "walk/10", pd.Series(differences, dtype=float), **facts)
    base = Runs("uniform", "walk/10", 0 * arm.values, is_control=label == CONTROL)
    (verdict,) = judge([Claim(label, label, "uniform", "either")], lambda _: [(arm, base)])
    return dataclasses.replace(verdict, group=group)


BETTER = [1] * 15 + [-1] * 2 + [0] * 3
WORSE = [-1] * 16 + [1] * 3 + [0]
EVEN = [1] * 9 + [-1] * 8 + [0] * 3
METHODS = {label: label for label in ("per", "lap", "pser", "rank", "ners")}
METHODS |= {"soft": "per", "control": "uniform"}


def said(rows, metric="steps_to_threshold"):
    return solved.sentences(rows, METHODS, primary.parse(metric, 1.0), "uniform", "walk/10")


def test_arms_with_one_verdict_share_a_sentence_except_the_control():
    rows = [judged("per", BETTER), judged("pser", EVEN), judged("lap", BETTER),
            judged(CONTROL, EVEN), judged("soft", WORSE)]  # fmt: skip
    *_, other = said([*rows, judged("rank", BETTER, group="every step")])
    assert_names(other.lower(), "every step", "rank")  # one sentence per replay ratio
    better, worse, undecided, control = said(rows)
    (differs,) = said([judged(CONTROL, BETTER)])
    assert len(differs) > len(control)  # a warning follows the counts
    assert set(re.findall(r"\d+", better.replace("walk/10", ""))) == {"15", "20", "2"}
    assert_names(better, "PER", "LAP", "walk/10")
    assert_names(worse.lower(), "soft", "16", "20", "3")
    assert re.search("sooner .*15.* later .*2", better)
    assert re.search("later .*16.* sooner .*3", worse)
    (line,) = said([judged("per", BETTER)], "auc")
    assert re.search("higher .*15.* lower .*2", line)
    assert_names(undecided, "PSER", "undecided", "9", "20", "8")
    assert_names(control.lower(), "uniform", "9", "8")


def test_few_seeds_and_arms_like_uniform_get_no_verdict():
    few, untested = said([judged("per", BETTER[:4]), judged("ners", BETTER, prioritises=True)])
    assert_names(few, "PER", "4", solved._UNDECIDED["pilot"])
    assert_names(untested, "NERS", "not tested")


def test_curves_show_numbers_of_solved_seeds_and_verdicts(tmp_path):
    """One of four seeds of uniform replay never solves the task."""
    values = {
        "uniform": pd.Series([300.0, 100.0, 400.0, math.inf]),
        "per": pd.Series([100.0, 100.0, 200.0, 300.0]),
    }
    rows, methods = [judged("per", BETTER)], {"uniform": "uniform", "per": "per"}
    axes, styles = Figure().subplots(), solved.solved_styles(values, rows, methods)
    solved.draw_solved(axes, values, styles, rows, 500)
    uniform, per = (line.get_xydata().tolist() for line in axes.get_lines())
    assert uniform == [[0, 0], [100, 1], [300, 2], [400, 3], [500, 3]]
    assert per == [[0, 0], [100, 2], [200, 3], [300, 4], [500, 4]]
    name, note = solved.key_of("per", rows[0], methods, "uniform")
    assert name == "PER"
    assert_names(note, "15", "2", "better")
    assert solved.key_of("uniform", None, methods, "uniform")[0] == NAMES["uniform"]
    solved.write_solved(values, rows, methods, "uniform", tmp_path / "x.png", "walk/10: dqn", 500)
    assert imread(tmp_path / "x.png").shape[1] > 1000
