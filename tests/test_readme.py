"""The README is short, and its Python runs as it stands (with fewer slots)."""

import json
import re

from tests import documents
from tests.documents import README

BLOCKS = [block.text for block in documents.python(README)]


def test_it_is_short_and_shows_python_early():
    lines = README.read_text().splitlines()
    assert len(lines) <= 250
    assert lines.index("```python") < 60


def test_its_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)", README.read_text())
    assert len(targets) > 50
    missing = [target for target in targets if not (README.parent / target).exists()]
    assert not missing


def test_its_verdicts_are_those_that_were_written():
    folder = README.parent / "experiments" / "results" / "quickstart"
    arms = json.loads((folder / "verdicts.json").read_text())["arms"]
    rows = re.findall(r"^\| (\w+)[^|]*\|[^|]+\| (\d+)/(\d+)/(\d+) \|.*\| (.+) \| (.+) \|$",
                      README.read_text(), re.MULTILINE)  # fmt: skip
    assert [row[0] for row in rows] == list(arms)
    for label, *counts, shown, verdict in rows:
        pairs = arms[label]["pairs"]
        assert [int(count) for count in counts] == [pairs[x] for x in ("wins", "losses", "ties")]
        p_value = pairs["p_value"] if pairs["p_holm"] is None else pairs["p_holm"]
        assert float(shown.removesuffix(" (raw)")) == float(f"{p_value:.2g}")
        assert verdict == arms[label]["verdict"]


def test_its_example_has_ten_lines_and_is_one_turn_of_a_loop():
    (block,) = BLOCKS
    assert len([line for line in block.splitlines() if line]) <= 10
    names = {}
    documents.run(block, names)
    state, batch = names["state"], names["batch"]
    assert batch.transition["obs"].shape == (256, 17) and batch.weights.shape == (256,)
    assert int(state.ring.rows_added) == 1 and int(state.dropped) == 0
    assert float(names["replay"].metrics(state)["beta"]) > 0.4  # goes on with every update
