"""Tables of experiments: what is kept, what is refused, what is named when it is damaged."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from experiments.papers import tables
from experiments.papers.tables import Damaged, Data
from tests.refusals import refused


def metrics(scale: float = 1.0) -> pd.DataFrame:
    """Return metrics of two seeds at three log points, as a run writes them."""
    return pd.DataFrame(
        {
            "seed": [0, 1] * 3,
            "step": np.repeat([10, 20, 30], 2),
            "eval_return": scale * np.arange(6.0),
            "agent/loss": [1.0, 1.0, np.nan, 1.0, 1.0, 1.0],
            "agent/other": 3.0,
            "replayed/effective_buffer": 0.5,
        }
    )


def facts(code: str = "abc") -> dict:
    return {"config": {"env": "walk/10"}, "versions": {"code": code}, "train_seconds": 1.5}


def whole() -> Data:
    data = Data().with_run("walk/10", "per", tables.thinned(metrics(), ()), facts())
    return data.with_run("walk/10", "uniform", tables.thinned(metrics(2.0), ()), facts())


def test_a_table_is_read_as_it_was_written(tmp_path):
    tables.write(tmp_path, "walk", "small", whole())
    read = tables.read(tmp_path, "walk", "small")
    assert read is not None and read.runs == whole().runs and read.codes() == ("abc",)
    frames = read.frames("walk/10")
    assert list(frames) == ["per", "uniform"]
    np.testing.assert_array_equal(
        frames["uniform"]["eval_return"], 2 * frames["per"]["eval_return"]
    )
    # Of the others only what decides: a seed without a finite loss had diverged.
    assert frames["per"].groupby("seed")["diverged"].max().tolist() == [1, 0]
    assert "agent/other" not in frames["per"]
    assert tables.read(tmp_path, "walk", "smoke") is None


def test_the_bytes_depend_on_the_numbers_alone(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        tables.write(tmp_path / folder, "walk", "small", whole())
    one, other = (tables.paths(tmp_path / folder, "walk", "small")[0] for folder in "ab")
    assert one.read_bytes() == other.read_bytes()


def test_a_run_takes_the_place_of_an_older_one():
    again = whole().with_run("walk/10", "per", tables.thinned(metrics(5.0), ()), facts("def"))
    assert len(again.frame) == len(whole().frame)
    assert again.frames("walk/10")["per"]["eval_return"].max() == 25.0
    assert again.codes() == ("abc", "def")


def test_metrics_of_one_arm_alone_are_no_columns_of_another():
    more = metrics().assign(**{"replay/sampler_updates": 7.0})
    data = whole().with_run("walk/10", "ners", tables.thinned(more, ()), facts())
    assert "replay/sampler_updates" in data.frames("walk/10")["ners"]
    assert "replay/sampler_updates" not in data.frames("walk/10")["per"]


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
            lambda numbers, facts: facts.write_text('{"format": 1, "crc32": 0, "runs": []}'),
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
