"""The shared command line of benchmarks: tables, files of numbers, and devices."""

import json

import jax
import pytest

from experiments.benchmarks import command, compiling, methods, outputs, replay, timing, training
from experiments.runs.results import versions
from tests.refusals import assert_names

COMMANDS = [compiling, methods, replay, training]


def name_of(module):
    return module.__name__.split(".")[-1]


def test_tables_are_markdown():
    text = outputs.table(["us", "cycle"], [["ours", 12.345], ["theirs", None], ["slow", 12345.6]])
    assert text.splitlines() == [
        "| us     |  cycle |",
        "| ------ | -----: |",
        "| ours   |   12.3 |",
        "| theirs |      - |",
        "| slow   | 12,346 |",
    ]


def test_numbers_replace_only_numbers_of_a_benchmark(tmp_path, capsys):
    mine, plan, summary = (tmp_path / name for name in ("mine.json", "plan.md", "summary.json"))
    mine.write_text('{"machine": "mine"}')
    plan.write_text("notes")
    summary.write_text(json.dumps({"env": "x", "versions": versions()}))  # of a run
    for path, *parts in (
        (mine, mine), (summary, summary), (plan, plan, ".json"), (tmp_path, tmp_path, ".json"),
        (mine / "x.json", mine),
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            methods.main(["--out", str(path)])
        assert_names(capsys.readouterr().err, "--out", *parts)
    assert mine.read_text() == '{"machine": "mine"}' and plan.read_text() == "notes"
    ours = tmp_path / "new" / "ours.json"
    assert outputs.numbers(str(ours)) == ours and not ours.parent.exists()
    outputs.write(ours, {"us": [1.0]})
    assert outputs.numbers(str(ours)) == ours
    assert json.loads(ours.read_text())["us"] == [1.0]


@pytest.mark.parametrize("module", COMMANDS, ids=name_of)
def test_a_missing_device_is_rejected_in_one_line(module, capsys):
    if jax.default_backend() != "cpu":
        pytest.skip("there is another device")
    before = jax.config.jax_platforms
    with pytest.raises(SystemExit) as stop:
        module.main(["--device", "tpu"])
    printed = capsys.readouterr().err
    assert stop.value.code == 2 and printed.count("\n") == 1
    assert_names(printed, "device", "tpu", "CPU")
    assert jax.config.jax_platforms == before


@pytest.mark.parametrize("module", COMMANDS, ids=name_of)
def test_help_lists_devices(module, capsys):
    with pytest.raises(SystemExit):
        module.main(["--device", "none", "--help", "all"])
    assert "--device {cpu,gpu,tpu}|none" in capsys.readouterr().out


def test_an_available_device_is_used_and_recorded():
    for device in (None, jax.default_backend()):
        options = command.Settings(device=device)
        assert command.read("x", "", options, []) == (options, None)
    machine = timing.machine()
    assert machine["platform"] == jax.default_backend()
    assert machine["device"] == jax.devices()[0].device_kind and machine["devices"] >= 1
