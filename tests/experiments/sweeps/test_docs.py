"""The page on sweeps says what the committed one shows."""

import re
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "sweeps.md").read_text()


def test_the_sweep_that_is_taken_apart_says_what_the_page_says(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
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
