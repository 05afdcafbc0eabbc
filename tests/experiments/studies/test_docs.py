"""Numbers on the documentation page of sweeps, compared with committed results."""

import re
from pathlib import Path

import pandas as pd

from experiments.statistics import tuned
from experiments.studies import search_report, store

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "sweeps.md").read_text()


def test_documented_sweep_equals_the_committed_sweep(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (block,) = (block for block in blocks if "walk_per" in block)
    names = {}
    exec(block, names)
    assert "wins" in capsys.readouterr().out
    found: pd.DataFrame = names["table"]
    rows = re.findall(r"^\| ([\d.]+) \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 5
    for alpha, cells in rows:
        for beta, cell in zip((0.0, 0.4, 1.0), cells.split(" | ")):
            own = found.loc[float(alpha), beta]
            ties = 10 - own["wins"] - own["losses"]
            median = f"{own['median']:,.0f}".replace(",", " ")
            assert cell == f"{own['wins']:.0f}/{own['losses']:.0f}/{ties:.0f}, {median}"


def test_documented_search_equals_the_committed_search():
    results = store.read(ROOT / "experiments/results/sweeps/walk_search")
    (found,) = (row for row in search_report.results(results, results.study) if row.label == "per")
    alpha, beta = results.facts["points"][found.best]["settings"].values()
    tried = search_report.trials(results)
    said = [f"{x:,.0f}".replace(",", " ") for x in (found.chosen, tried["score"].median())]
    better = found.defaults - found.scores
    assert f"alpha {alpha} with beta {beta}" in PAGE and f"{said[0]} agent steps (IQM)" in PAGE
    assert f"The median trial took {said[1]} steps" in PAGE
    for scores in (found.scores, found.defaults):
        own = tuned.estimate(scores)
        shown = [f"{x:,.0f}".replace(",", " ") for x in own[:3]]
        assert f"{shown[0]} [{shown[1]}, {shown[2]}]" in PAGE
    counts = [int((sign * better > 0).sum()) for sign in (1, -1)]
    assert f"lose on {counts[0]}, win on {counts[1]}" in PAGE
