"""The README is short, its Python runs, and its numbers are those of the committed results."""

import json
import re

import numpy as np
import pytest

from experiments import compare
from tests import documents
from tests.documents import README, ROOT

QUICKSTART = ROOT / "experiments" / "results" / "quickstart"
SEEDS = (0, 1000, 2000)
WALK = re.search(r"^WALK := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]


def judged(seed: int) -> dict:
    """Return the arms of the first command, for 128 seeds starting at `seed`."""
    return json.loads((QUICKSTART / f"seeds_{seed}" / "verdicts.json").read_text())["arms"]


def test_readme_is_short_and_shows_python_early():
    lines = README.read_text().splitlines()
    assert len(lines) <= 250
    assert lines.index("```python") < 60


def test_links_of_the_readme_exist():
    targets = re.findall(r"\]\(([^)#]+)", README.read_text())
    assert len(targets) > 50
    missing = [target for target in targets if not (README.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("seed", SEEDS)
def test_first_command_has_the_same_verdicts_for_all_seeds(seed):
    arms = judged(seed)
    for label in ("per", "rank", "lap"):
        assert arms[label]["verdict"] == "agrees" and arms[label]["p_value"] < 0.01
    assert arms["control"]["verdict"] in ("undecided", "no difference")


def test_table_of_seeds_agrees_with_the_committed_runs():
    text = (ROOT / "docs" / "start.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", text, re.MULTILINE))
    for label in judged(0):
        shown = [
            "{0}/{2}/{1} {verdict}".format(*arm["counts"], **arm)  # wins, losses, ties
            for arm in (judged(seed)[label] for seed in SEEDS)
        ]
        assert [cell.strip() for cell in rows[label].split("|")] == shown


def test_counts_in_the_readme_are_those_of_the_first_seeds():
    shown = iter(re.findall(r"\d+", README.read_text().partition("](experiments/results/")[0]))
    found = [judged(0)[label]["counts"] for label in ("per", "rank", "lap", "pser", "control")]
    counts = [count for wins, _, losses in found for count in (wins, losses)]
    assert all(str(count) in shown for count in counts)  # in this order


@pytest.mark.slow
def test_first_command_has_the_same_verdicts_on_this_machine(tmp_path):
    """Numbers depend on processors and seeds, but the verdicts of PER and the control do not."""
    words = WALK.replace("\\\n", " ").partition("--replays")[0].split()
    options = ["--seed", "5000", "--figures", "false"]
    out = ["--report", "false", "--out", str(tmp_path / "walk")]
    assert compare.main([*words, "--replays", "uniform", "per", *options, *out]) == 0
    arms = json.loads((tmp_path / "walk" / "verdicts.json").read_text())["arms"]
    assert arms["per"]["verdict"] == "agrees"
    assert arms["control"]["verdict"] in ("undecided", "no difference")


def test_example_of_the_readme_learns(capsys):
    (block,) = documents.python(README)
    assert len([line for line in block.text.splitlines() if line]) <= 32
    names = {}
    documents.run(block.text, names)
    np.testing.assert_allclose(names["w"], [1.0, -2.0, 3.0], atol=1e-3)
    assert int(names["state"].ring.steps_added) == 500
    assert float(names["replay"].metrics(names["state"])["beta"]) >= 0.4
    assert "[" in capsys.readouterr().out
