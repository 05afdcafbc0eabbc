"""Edited results: numbers of runs are recomputed from tables, all files have checksums."""

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments import train, watch
from experiments.runs import manifest
from tests.refusals import refusal, refused

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def edited(path, change):
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))


def test_resuming_a_finished_run_rejects_an_edited_table(folders):
    run = folders / "run"
    frame = pd.read_csv(run / "timing.csv")
    frame.loc[0, "seconds"] += 1.0
    frame.to_csv(run / "timing.csv", index=False)
    for _ in range(2):
        assert train.main(["--resume", str(run)]) == 0
        (line,) = manifest.differing(run)
        assert str(run / "timing.csv") in line


@pytest.mark.parametrize("ended", [False, True])
def test_checkpoint_names_must_equal_their_step(folders, capsys, ended):
    below = folders / "run" / "checkpoints"
    if not ended:
        (folders / "run" / "summary.json").unlink()
        max(below.glob("step_*")).unlink()
    last = max(below.glob("step_*"))
    last.rename(last.with_name("step_000000009999.safetensors"))
    for command, words in ((train, ["--resume", folders / "run"]), (watch, [folders / "run"])):
        error = refusal(capsys, command.main, *words)
        assert "9999" in error and last.name in error
    (below / "step_000000009999.safetensors").rename(last)
    assert train.main(["--resume", str(folders / "run")]) == 0


def test_checksums_outside_the_folder_are_refused(folders):
    path = folders / "run" / "manifest.json"
    edited(path, lambda saved: saved["checksums"].update({"../secret.csv": [[0, 0]]}))
    with refused(path, "../secret.csv"):
        manifest.differing(folders / "run")
