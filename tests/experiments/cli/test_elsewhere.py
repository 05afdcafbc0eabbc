"""Options that belong to another agent or method are told whose they are."""

import json

import pytest

from experiments import compare, sweep, train
from experiments.runs import run_config


@pytest.mark.parametrize(
    ("main", "words", "says"),
    [
        (train.main, "--replay.alhpa 1", "'--replay.alhpa': --replay.alpha belongs to per, "),
        (train.main, "--replay.alpha 1", "give --replay, such as --replay per\n"),
        (train.main, "--agent.policy-delay 1", "belongs to td3: give --agent, such as --agent td3"),
        (train.main, "--replay per --replay.alhpa 1", "did you mean '--replay.alpha'?"),
        (train.main, "--replay per --replay.alfa 1", "did you mean '--replay.alpha'?"),
        (train.main, "--dry", "unknown option '--dry' (--help all lists them)\n"),
        (train.main, "--version", "unknown option '--version' (--help all lists them)\n"),
        (sweep.main, "--dry", "did you mean '--dry-run'?"),
        (compare.main, "--replays uniform per a=lap --replay.alpha 1",
         "begin with their labels here, as in --LABEL.NAME: use --per.alpha or --a.alpha\n"),
        (compare.main, "--replays uniform per --replay.alhpa 1", "use --per.alpha\n"),
        (compare.main, "--replays uniform --replay.alpha 1", "name one in --replays that has it"),
        (compare.main, "--replays uniform per --rank.alpha 1",
         "rank is none of uniform, per: name it in --replays"),
        (compare.main, "--replays uniform a=per --b.alpha 1", "did you mean '--a.alpha'?"),
        (compare.main, "--replays uniform a=per b=per --per.alpha 1",
         "per is none of uniform, a, b: use --a.alpha or --b.alpha\n"),
        (compare.main, "--replays uniform --uniform.alpha 1", "uniform has no alpha, as per, "),
        (compare.main, "--replays per --uniform.alpha 1", "uniform has no alpha, as per, "),
        (compare.main, "--replays per --lap.beta 1", "lap has no beta, as "),
        (sweep.main, "--replays per --uniform.alpha 1", "uniform has no alpha, as per, "),
        (sweep.main, "--replays per --replay.alpha 1", "use --per.alpha\n"),
    ],
)  # fmt: skip
def test_an_option_of_others_is_told_whose_it_is(main, words, says, capsys):
    with pytest.raises(SystemExit) as refused:
        main(words.split())
    error = capsys.readouterr().err
    assert refused.value.code == 2 and error.startswith("error: unknown option")
    assert says in error and error.count("\n") == 1


def test_a_run_that_goes_on_is_told_of_no_other_method(tmp_path, capsys):
    config = run_config.defaults("gymnax/CartPole-v1", "dqn", "uniform")
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    with pytest.raises(SystemExit):
        train.main(["--resume", str(tmp_path), "--replay.alpha", "1"])
    error = capsys.readouterr().err
    assert error == "error: unknown option '--replay.alpha' (--help all lists them)\n"
