"""Tables of computations and experiments, and detection of damage."""

import dataclasses
import gzip
import json

import numpy as np
import pandas as pd
import pytest

from experiments.files.disk import Damaged
from experiments.papers import archive
from experiments.papers.archive import Data
from experiments.papers.catalogue import EXPERIMENTS
from experiments.papers.entry import Arm
from experiments.statistics.summaries import curves
from tests.experiments.papers import made
from tests.refusals import refused


def whole() -> Data:
    frame = pd.DataFrame({"arm": ["per", "uniform"], "seed": [0, 0], "value": [1.5, np.inf]})
    made = {"options": {"seeds": 1}, "versions": {"code": "abc"}, "seconds": 1.0}
    return Data(frame, made=made)


def test_tables_are_read_back_exactly(tmp_path):
    archive.write(tmp_path, "walk", "small", whole())
    read = archive.read(tmp_path, "walk", "small")
    assert read is not None and read.made == whole().made and read.codes() == ("abc",)
    pd.testing.assert_frame_equal(read.frame, whole().frame)
    assert archive.read(tmp_path, "walk", "smoke") is None
    (tmp_path / "again").mkdir()  # bytes depend only on the numbers
    archive.write(tmp_path / "again", "walk", "small", whole())
    one, other = (
        archive.paths(folder, "walk", "small")[0][0] for folder in (tmp_path, tmp_path / "again")
    )
    assert one.read_bytes() == other.read_bytes()


def test_studies_are_read_by_task_and_arm(tmp_path):
    """Metrics of one arm add no columns to others; the control is one of the arms."""
    walk = EXPERIMENTS["walk_dqn"]
    walk = dataclasses.replace(walk, arms={**walk.arms, "ners": Arm("ners")})
    small = dataclasses.replace(walk.small, arms=("uniform", "ners"), every=(4, 16), thin=1)
    source = dataclasses.replace(walk, small=small)
    data = made.data_of(source, {
        ("walk/10", "uniform_every4"): made.metrics(1.0),
        ("walk/10", "ners_every4"): made.metrics(2.0).assign(**{"replay/sampler_updates": 7.0}),
        ("walk/10", "control_every16"): made.metrics(3.0),
    }, tmp_path / "walk_dqn.small")  # fmt: skip
    read = archive.read(tmp_path, "walk_dqn", "small")
    assert read is not None and read.codes() == ("abc",)
    pd.testing.assert_frame_equal(read.frame, data.frame)
    frames = read.frames("walk/10")
    assert list(frames) == ["uniform_every4", "ners_every4", "control_every16"]
    assert "replay/sampler_updates" in frames["ners_every4"]
    assert "replay/sampler_updates" not in frames["uniform_every4"]
    assert frames["ners_every4"]["eval_return"].max() == 2.0
    assert read.runs["walk/10"]["ners_every4"]["config"]["loop"]["learn_every"] == 4


def test_thin_tables_keep_every_change_of_the_evaluation(tmp_path):
    walk = EXPERIMENTS["walk_dqn"]
    small = dataclasses.replace(walk.small, arms=("uniform", "per"), every=(4,), thin=3)
    whole = pd.DataFrame({
        "seed": 0, "step": range(100, 800, 100), "eval_return": [0.0, 0, 1, 1, 1, 0, 0],
        "replayed/effective_buffer": np.linspace(1.0, 0.4, 7), "diverged": 0,
    })  # fmt: skip
    source = dataclasses.replace(walk, small=small)
    data = made.data_of(source, {("walk/10", "per_every4"): whole}, tmp_path / "walk_dqn.small")
    thin = data.frames("walk/10")["per_every4"]
    assert thin["step"].tolist() == [100, 300, 600, 700]  # changes, every third, and the last
    # Other metrics are kept at every third log point, so that their means have no other weights.
    np.testing.assert_allclose(thin["replayed/effective_buffer"], [np.nan, 0.8, 0.5, 0.4])
    assert curves(thin)[0].tolist() == [0, 1, 0, 0]


NUMBERS, FACTS = "walk.small.csv.gz", "walk.small.json"


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        (FACTS, None, (FACTS,)),
        (NUMBERS, b"nothing", (NUMBERS,)),
        (NUMBERS, gzip.compress(b"env,arm\n", mtime=0)[:-1], (NUMBERS,)),
        (FACTS, b"{", (FACTS,)),
        (FACTS, b'{"mine": 1}', (FACTS,)),
        (FACTS, b'{"format": 1, "made": []}', (FACTS,)),
    ],
)
def test_damaged_files_are_named(name, content, parts, tmp_path):
    archive.write(tmp_path, "walk", "small", whole())
    path = tmp_path / name
    path.unlink() if content is None else path.write_bytes(content)
    with refused(*parts, error=Damaged):
        archive.read(tmp_path, "walk", "small")


def test_formats_of_other_versions_are_not_reported_as_damage(tmp_path):
    archive.write(tmp_path, "walk", "small", whole())
    path = tmp_path / FACTS
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))
    with refused(FACTS, "format", "9") as raised:
        archive.read(tmp_path, "walk", "small")
    assert not isinstance(raised.value, Damaged)
