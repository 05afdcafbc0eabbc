"""Options that belong to another agent or method are told whose they are."""

import json
import re

import pytest

from experiments import compare, sweep, train
from experiments.runs import run_config
from tests.refusals import assert_names


@pytest.mark.parametrize(
    ("main", "words", "parts"),
    [
        (train.main, "--replay.alhpa 1", ("--replay.alhpa", "--replay.alpha", "per", "ners")),
        (train.main, "--replay.alpha 1", ("--replay.alpha", "--replay per")),
        (train.main, "--agent.policy-delay 1", ("--agent.policy-delay", "--agent td3")),
        (train.main, "--replay per --replay.alhpa 1", ("--replay.alhpa", "--replay.alpha")),
        (train.main, "--replay per --replay.alfa 1", ("--replay.alfa", "--replay.alpha")),
        (train.main, "--dry", ("--dry", "--help all")),
        (train.main, "--version", ("--version", "--help all")),
        (sweep.main, "--dry", ("--dry-run",)),
        (compare.main, "--replays uniform per a=lap --replay.alpha 1",
         ("--replay.alpha", "--per.alpha", "--a.alpha")),
        (compare.main, "--replays uniform per --replay.alhpa 1", ("--replay.alhpa", "--per.alpha")),
        (compare.main, "--replays uniform --replay.alpha 1",
         ("--replay.alpha", "--replays", "per", "ners")),
        (compare.main, "--replays uniform per --rank.alpha 1",
         ("--rank.alpha", "uniform", "per", "--replays")),
        (compare.main, "--replays uniform a=per --b.alpha 1", ("--b.alpha", "--a.alpha")),
        (compare.main, "--replays uniform a=per b=per --per.alpha 1",
         ("--per.alpha", "--a.alpha", "--b.alpha")),
        (compare.main, "--replays uniform --uniform.alpha 1", ("--uniform.alpha", "per", "ners")),
        (compare.main, "--replays per --uniform.alpha 1", ("--uniform.alpha", "per", "ners")),
        (compare.main, "--replays per --lap.beta 1", ("--lap.beta", "per", "refer")),
        (sweep.main, "--replays per --replay.alpha 1", ("--replay.alpha", "--per.alpha")),
    ],
)  # fmt: skip
def test_an_option_of_others_is_told_whose_it_is(main, words, parts, capsys):
    with pytest.raises(SystemExit) as refused:
        main(words.split())
    error = capsys.readouterr().err
    assert refused.value.code == 2 and error.startswith("error: ")
    assert error.count("\n") == 1
    assert_names(error, *parts)


def test_a_run_that_goes_on_is_told_of_no_other_method(tmp_path, capsys):
    config = run_config.defaults("gymnax/CartPole-v1", "dqn", "uniform")
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    with pytest.raises(SystemExit):
        train.main(["--resume", str(tmp_path), "--replay.alpha", "1"])
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert_names(error, "--replay.alpha", "--help all")
    assert not {"per", "rank", "lap"} & set(re.findall(r"\w+", error))
