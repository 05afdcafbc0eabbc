"""Numbers on the documentation page of sweeps, compared with committed results."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "sweeps.md").read_text()


def test_documented_sweep_equals_the_committed_sweep(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (block,) = (block for block in blocks if "walk_per" in block)
    names = {}
    exec(block, names)
    assert "wins" in capsys.readouterr().out
    wins = names["table"]["wins"].xs(1.0, level="replay.beta")
    assert f"With beta 1, PER wins on at most {wins.max():.0f} of 10 seeds" in PAGE
