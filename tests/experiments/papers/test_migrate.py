"""Conversion of tables from before studies."""

import pandas as pd
import pytest

from experiments.papers import migrate, tables, tasks, verdict
from experiments.papers.registry import ENTRIES
from experiments.storage import stored
from experiments.storage.files import write_bytes, write_json
from tests.experiments.papers.made import data_of, metrics
from tests.refusals import refused

ARMS = {"uniform_every16": 1.0, "per_every16": 2.0}


def old_tables(folder):
    """Write the table of an experiment as earlier versions did."""
    frames = {("walk/10", label): metrics(value, 20, 5) for label, value in ARMS.items()}
    data = data_of(tasks.WALK, frames)
    encoded = stored.encode(data.frame, digits=6)
    runs = {"walk/10": {
        label: {"config": made["config"], "versions": made["versions"], "train_seconds": 1.5}
        for label, made in data.runs["walk/10"].items()
    }}  # fmt: skip
    write_json(folder / "walk_dqn.small.json", {"format": 1, "crc32": encoded.crc32, "runs": runs})
    write_bytes(folder / "walk_dqn.small.csv.gz", encoded.content)
    return data


def test_a_table_of_an_experiment_becomes_a_study_with_the_same_verdicts(tmp_path, capsys):
    before = old_tables(tmp_path)
    assert migrate.main([str(tmp_path)]) == 0
    assert str(tmp_path / "walk_dqn.small") in capsys.readouterr().out
    after = tables.read(tmp_path, "walk_dqn", "small")
    assert after is not None and after.codes() == before.codes()
    pd.testing.assert_frame_equal(after.frame, before.frame)
    entry = ENTRIES["all.walk"]
    assert verdict.findings(entry, "small", after) == verdict.findings(entry, "small", before)
    assert not list(tmp_path.glob("*.json")) and not list(tmp_path.glob("*.gz"))


def test_folders_without_results_are_refused(tmp_path, capsys):
    with refused(tmp_path, "sweep.json"):
        migrate.migrate_tables(tmp_path)
    with pytest.raises(SystemExit):
        migrate.main([str(tmp_path)])
