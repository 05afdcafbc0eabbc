"""Tables of computations and experiments, and the files that damage is reported in."""

import dataclasses
import gzip
import json

import numpy as np
import pandas as pd
import pytest

from experiments.papers import tables, tasks
from experiments.papers.tables import Damaged, Data
from tests.experiments.papers import made
from tests.refusals import refused


def whole() -> Data:
    frame = pd.DataFrame({"arm": ["per", "uniform"], "seed": [0, 0], "value": [1.5, np.inf]})
    made = {"options": {"seeds": 1}, "versions": {"code": "abc"}, "seconds": 1.0}
    return Data(frame, made=made)


def test_a_table_is_read_as_it_was_written(tmp_path):
    tables.write(tmp_path, "walk", "small", whole())
    read = tables.read(tmp_path, "walk", "small")
    assert read is not None and read.made == whole().made and read.codes() == ("abc",)
    pd.testing.assert_frame_equal(read.frame, whole().frame)
    assert tables.read(tmp_path, "walk", "smoke") is None


def test_the_bytes_depend_on_the_numbers_alone(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        tables.write(tmp_path / folder, "walk", "small", whole())
    one, other = (tables.paths(tmp_path / folder, "walk", "small")[0] for folder in "ab")
    assert one.read_bytes() == other.read_bytes()


def test_a_study_is_read_by_task_and_arm(tmp_path):
    """Metrics of one arm alone are no columns of another; a control is one of the arms."""
    small = tasks.WALK.sizes["small"]
    source = dataclasses.replace(
        tasks.WALK,
        sizes={"small": dataclasses.replace(small, arms=("uniform", "ners"), every=(4, 16))},
    )
    data = made.data_of(source, {
        ("walk/10", "uniform_every4"): made.metrics(1.0),
        ("walk/10", "ners_every4"): made.metrics(2.0).assign(**{"replay/sampler_updates": 7.0}),
        ("walk/10", "control_every16"): made.metrics(3.0),
    }, tmp_path / "walk_dqn.small")  # fmt: skip
    read = tables.read(tmp_path, "walk_dqn", "small")
    assert read is not None and read.codes() == ("abc",)
    pd.testing.assert_frame_equal(read.frame, data.frame)
    frames = read.frames("walk/10")
    assert list(frames) == ["uniform_every4", "ners_every4", "control_every16"]
    assert "replay/sampler_updates" in frames["ners_every4"]
    assert "replay/sampler_updates" not in frames["uniform_every4"]
    assert frames["ners_every4"]["eval_return"].max() == 2.0
    assert read.runs["walk/10"]["ners_every4"]["config"]["loop"]["learn_every"] == 4


@pytest.mark.parametrize(
    ("harm", "error", "parts"),
    [
        (lambda numbers, facts: numbers.unlink(), Damaged, ("walk.small.csv.gz",)),
        (lambda numbers, facts: facts.unlink(), Damaged, ("walk.small.json",)),
        (
            lambda numbers, facts: numbers.write_bytes(b"nothing"),
            Damaged,
            ("walk.small.csv.gz",),
        ),
        (
            lambda numbers, facts: numbers.write_bytes(gzip.compress(b"env,arm\n")),
            Damaged,
            ("walk.small.csv.gz", "walk.small.json"),
        ),
        (lambda numbers, facts: facts.write_text("{"), Damaged, ("walk.small.json",)),
        (
            lambda numbers, facts: facts.write_text('{"format": 1, "crc32": 0, "made": []}'),
            Damaged,
            ("walk.small.json",),
        ),
        (
            lambda numbers, facts: facts.write_text(
                json.dumps({**json.loads(facts.read_text()), "format": 9})
            ),
            ValueError,
            ("walk.small.json", "format", "9"),
        ),
    ],
)
def test_what_is_damaged_is_named(harm, error, parts, tmp_path):
    tables.write(tmp_path, "walk", "small", whole())
    harm(*tables.paths(tmp_path, "walk", "small"))
    with refused(*parts, error=error) as raised:
        tables.read(tmp_path, "walk", "small")
    assert isinstance(raised.value, Damaged) == (error is Damaged)
