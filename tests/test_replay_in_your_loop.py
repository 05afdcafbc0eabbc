"""The blocks of the page run as they stand, one after the other, and do what it says."""

import re
from pathlib import Path

import numpy as np

PAGE = (Path(__file__).parents[1] / "docs" / "replay_in_your_loop.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_blocks_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in BLOCKS:
        exec(block, names)
    assert names["losses"].shape == (100,) and np.isfinite(names["losses"]).all()
    assert names["large"].transition["obs"].shape == (256, 3)
    assert names["batch"].transition["obs"].shape == (16, 12, 3)
    assert not names["counts"][:, :4].any() and names["counts"][:, 4:].any(axis=1).all()
    assert (tmp_path / "replay.safetensors").exists()
    assert capsys.readouterr().out == "15 0\n"


def test_the_page_names_files_that_are_there():
    for link in re.findall(r"\]\((\.\./[^)]*)\)", PAGE):
        assert (Path(__file__).parents[1] / "docs" / link).exists(), link
