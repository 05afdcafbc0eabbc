"""The long trials themselves: a small share of each, and that they see what they are for."""

import pytest

from experiments import soak
from experiments.soaks import calls, command_lines, inputs, kills, tree
from experiments.soaks.calls import Call
from experiments.soaks.command_lines import CommandLine
from jaxreplay import sum_tree

LINES = list(command_lines.all_lines())
CALLS = list(calls.all_calls())


def test_there_are_many_and_no_two_are_alike():
    assert len(LINES) + len(CALLS) >= 300
    assert len({call.what for call in CALLS}) == len(CALLS)


# A stride that meets every command, and every kind of bad value; the command tries all.
@pytest.mark.parametrize("line", LINES[::29], ids=lambda line: " ".join(line.arguments)[-60:])
def test_bad_command_lines_are_refused_in_one_line(line):
    outcome = inputs.command_line(line)
    assert outcome.found in ("good", "late"), outcome  # how long it takes is not for tests


@pytest.mark.parametrize("call", CALLS[::7], ids=lambda call: call.what)
def test_bad_calls_are_refused_in_one_line(call):
    outcome = inputs.call(call)
    assert outcome.found == "good", outcome


def _fail(message):
    raise ValueError(message)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda: 3, "silent"),
        (lambda: _fail("alpha is 2: it must lie in [0, 1]"), "good"),
        (lambda: _fail("two\nlines"), "traceback"),
        (lambda: _fail("what"), "traceback"),
        (lambda: 1 / 0, "traceback"),
    ],
)
def test_calls_are_told_apart(function, found):
    assert inputs.call(Call("x", function)).found == found


def test_command_lines_are_told_apart(monkeypatch):
    listed = inputs.command_line(CommandLine(("experiments.train", "--list")))
    assert listed.found == "silent"
    refused = CommandLine(("experiments.train", "--replay", "perr"))
    assert inputs.command_line(refused).found == "good"
    assert inputs.command_line(refused._replace(exit_code=1)).found == "traceback"
    monkeypatch.setattr(inputs, "LATE", 0.0)
    assert inputs.command_line(refused).found == "late"


def test_a_changed_file_is_seen(monkeypatch):
    def main(arguments):
        with open(f"{arguments[0]}/mine", "w") as file:
            file.write("yours")
        raise SystemExit(2)

    monkeypatch.setattr(inputs.importlib, "import_module", lambda name: _Module(main))

    def prepare(out):
        out.mkdir()
        (out / "mine").write_text("mine")

    assert inputs.command_line(CommandLine(("x", "OUT"), prepare)).found == "silent"


class _Module:
    def __init__(self, main):
        self.main = main


def test_the_tree_stays_exact():
    result = tree.run(updates=1_000_000, capacity=1000, seed=1)
    assert result.updates >= 1_000_000 and result.draws == result.updates
    assert (result.drifted, result.empty) == (0, 0)


def test_a_drifting_tree_is_seen(monkeypatch):
    right = sum_tree.set

    def wrong(tree, indices, values):
        tree = right(tree, indices, values)
        return tree.replace(nodes=tree.nodes.at[20_000].multiply(1.5))

    monkeypatch.setattr(tree.sum_tree, "set", wrong)
    assert tree.run(updates=1, capacity=20_000).drifted > 0


def test_other_bytes_are_seen(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "metrics.csv").write_text("a")
        (folder / "checkpoints" / "step_1.safetensors").write_text("b")
        (folder / "timing.csv").write_text(folder.name)
    assert kills._differing(one, other) == []
    (one / "metrics.csv").write_text("c")
    (other / "checkpoints" / "step_2.safetensors").write_text("b")
    assert kills._differing(one, other) == ["metrics.csv", "checkpoints/step_2.safetensors"]


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bytes(tmp_path):
    rounds = kills.run(2, tmp_path, seed=3)
    assert [(done.differing, done.message) for done in rounds] == [((), "")] * 2


def test_the_command_ends_with_what_it_found(tmp_path, capsys):
    assert soak.main(["tree", "--updates", "1", "--out", str(tmp_path / "tree.json")]) == 0
    assert '"drifted": 0' in (tmp_path / "tree.json").read_text()
    for bad in ([], ["kills", "--rounds", "0"], ["trees"], ["tree", "--updates", "x"]):
        with pytest.raises(SystemExit) as exit_:
            soak.main(bad)
        assert exit_.value.code == 2
