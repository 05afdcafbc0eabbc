"""The command that makes a page: what it reads and refuses, on committed results."""

import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from experiments import compare, train
from experiments.report import __main__ as report
from experiments.report import blocks, commands, page, source
from experiments.runs import run as run_module
from experiments.runs.run_config import RunConfig, defaults
from tests.refusals import assert_names

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
RACER = RESULTS / "refer" / "racer_pendulum"


@pytest.fixture
def run(tmp_path):
    """A copy of a finished run."""
    return Path(shutil.copytree(RACER / "refer", tmp_path / "run"))


def refusal(capsys, *arguments):
    """Return the one line that refuses a command."""
    with pytest.raises(SystemExit) as exit_:
        report.main([str(argument) for argument in arguments])
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and error.count("\n") == 1
    return error


def test_the_page_of_a_run_stands_beside_it_and_is_made_anew(run, capsys):
    assert report.main([str(run)]) == 0
    assert_names(capsys.readouterr().out, run / "report.html")
    first = (run / "report.html").read_bytes()
    (title,) = re.findall("<h1>(.*?)</h1>", first.decode())
    assert_names(title, "racer", "refer", "gymnax/Pendulum-v1")
    assert b'id="verdicts"' not in first and b"data-arm" not in first  # nothing to compare
    assert report.main([str(run)]) == 0
    assert (run / "report.html").read_bytes() == first
    assert not [path for path in run.iterdir() if path.suffix == ".tmp"]


def test_a_file_of_the_users_is_not_overwritten(run, capsys):
    (run / "report.html").write_text("<p>mine")
    assert_names(refusal(capsys, run), run / "report.html", "--out")
    assert (run / "report.html").read_text() == "<p>mine"


def test_several_runs_become_arms(tmp_path, capsys):
    out = tmp_path / "new" / "both.html"
    runs = [f"with={RACER / 'refer'}", f"without={RACER / 'without'}"]
    assert_names(refusal(capsys, *runs), "--out FILE.html")
    assert report.main([*runs, "--out", str(out), "--title", "<b>Two & more"]) == 0
    text = out.read_text()
    assert "<h1>&lt;b&gt;Two &amp; more</h1>" in text
    assert 'data-arm="with"' in text and 'data-arm="without"' in text
    assert "python -m experiments.compare" in text  # which would give verdicts


def test_what_does_not_belong_together_is_refused(tmp_path, run, capsys):
    out = ["--out", tmp_path / "x.html"]
    other = RESULTS / "cartpole_dqn" / "per"
    error = refusal(capsys, run, other, *out)
    assert_names(error, "gymnax/Pendulum-v1", "gymnax/CartPole-v1")
    assert_names(refusal(capsys, run, f"run={other}", *out), "run", f"other={run}")
    error = refusal(capsys, RESULTS / "cartpole_dqn", run, *out)
    assert_names(error, RESULTS / "cartpole_dqn", "comparison")
    saved = json.loads((run / "summary.json").read_text())
    saved["versions"]["code"] = "0123456789ab"
    (run / "summary.json").write_text(json.dumps(saved))
    both = (run, RACER / "without", *out)
    assert_names(refusal(capsys, *both), "0123456789ab", "--other-code")
    assert not (tmp_path / "x.html").exists()
    assert report.main([*map(str, both), "--other-code"]) == 0


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("metrics.csv", "mine", ()),
        ("metrics.csv", None, ()),
        ("summary.json", "{", ()),
        ("summary.json", "[]", ()),
        ("summary.json", "{}", ("env",)),
        ("config.json", "[]", ()),
        ("config.json", "{}", ("env",)),
        ("timing.csv", "step,seconds\n1,2\n", ("steps_per_second",)),
    ],
)
def test_damaged_files_are_named(run, capsys, name, text, parts):
    if text is None:
        text = "".join((run / name).read_text().splitlines(keepends=True)[:-1])
    (run / name).write_text(text)
    assert_names(refusal(capsys, run), run / name, *parts)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda saved: saved.pop("question"), ("question",)),
        (lambda saved: saved["arms"]["per"].pop("verdict"), ("per", "verdict")),
        (lambda saved: saved["arms"].update(x=saved["arms"]["per"]), ("x",)),
    ],
)
def test_damaged_verdicts_are_named(tmp_path, capsys, change, parts):
    folder = Path(shutil.copytree(RESULTS / "breakout_dqn", tmp_path / "c"))
    saved = json.loads((folder / "verdicts.json").read_text())
    change(saved)
    (folder / "verdicts.json").write_text(json.dumps(saved))
    assert_names(refusal(capsys, folder), folder / "verdicts.json", *parts)


def test_a_run_that_is_still_going_on_is_shown_as_far_as_it_has_come(run):
    """Its last log point is only half written: it is left out."""
    frame = pd.read_csv(run / "metrics.csv")
    third = sorted(frame["step"].unique())[2]
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    kept = [lines[0], *(line for line in lines[1:] if int(line.split(",")[1]) <= third)]
    (run / "metrics.csv").write_text("".join([*kept[:-1], kept[-1][:20]]))
    (run / "summary.json").unlink()
    read = source.runs({"mine": run}, other_code=False)
    second = sorted(frame["step"].unique())[1]
    assert read.arms["mine"].frame["step"].max() == second
    text = page.render(read)
    steps = json.loads((run / "config.json").read_text())["loop"]["steps"]
    parts = ("mine", f"{second:,}", f"{steps:,}")
    assert any(all(part in said for part in parts) for said in re.findall(">([^<]{,200})<", text))


def test_a_run_without_a_log_point_has_no_page_yet(run, capsys):
    (run / "summary.json").unlink()
    (run / "metrics.csv").write_text("seed,step,eval_return\n0,2500")
    assert_names(refusal(capsys, run), run)


def test_what_files_say_is_shown_as_text(tmp_path):
    """Whoever opens a stranger's page runs nothing of the stranger's."""
    folder = Path(shutil.copytree(RESULTS / "breakout_dqn", tmp_path / "c"))
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    saved = json.loads((folder / "verdicts.json").read_text())
    saved["primary"]["help"] = saved["primary"]["unit"] = evil
    saved["arms"]["per"]["reason"] = saved["arms"]["per"]["verdict"] = evil
    (folder / "verdicts.json").write_text(json.dumps(saved))
    summary = json.loads((folder / "summary.json").read_text())
    for own in summary.values():
        own["env"] = own["versions"]["device"] = evil
    (folder / "summary.json").write_text(json.dumps(summary))
    text = page.render(source.comparison(folder))
    assert "alert(1)" in text and "alert(2)" in text
    assert "<script>alert" not in text and "<img" not in text


def test_labels_cannot_lead_out_of_the_folder(tmp_path, capsys):
    (tmp_path / "comparison.md").write_text("")
    (tmp_path / "summary.json").write_text('{"../secret": {}}')
    assert_names(refusal(capsys, tmp_path), tmp_path / "summary.json", "../secret")


def test_films_are_embedded_up_to_a_limit(run, monkeypatch):
    Image.new("RGB", (4, 4)).save(run / "episode.gif")
    text = page.render(source.runs({"run": run}, other_code=False))
    assert '<img src="data:image/gif;base64,R0lG' in text and "episode.gif" not in text
    monkeypatch.setattr(blocks, "MOST_BYTES", 10)
    text = page.render(source.runs({"run": run}, other_code=False))
    assert "<img" not in text and "episode.gif" in text
    (run / "episode.gif").write_text("<script>")
    text = page.render(source.runs({"run": run}, other_code=False))
    assert "<img" not in text and "episode.gif" in text


@pytest.mark.parametrize(
    ("replay", "options", "observe_every"),
    [("per", {"alpha": 0.75, "clip": 3.0}, None), ("ners", {}, 50)],
)
def test_the_command_of_a_run_makes_the_same_run(replay, options, observe_every, monkeypatch):
    """An arm shares `observe_every` with other arms, but not all methods use it."""
    base = defaults("gymnax/Pendulum-v1", "td3", replay).to_json()
    base["loop"] |= {"steps": 12_345, "observe_every": 50}
    base["agent_options"]["hidden"] = (32, 16)
    base["replay_options"] |= options
    base |= {"seeds": 3, "seed": 7}
    config = RunConfig.from_json(json.loads(json.dumps(base)))
    (found,) = parsed(monkeypatch, train, commands.of_run(config.to_json()))
    loop = dataclasses.replace(config.loop, observe_every=observe_every)
    assert found == dataclasses.replace(config, loop=loop)


def test_options_that_are_gone_are_named_and_not_repeated(run, monkeypatch):
    """Older versions had them: the command that is shown is one that can be run."""
    saved = json.loads((run / "config.json").read_text())
    saved["loop"]["older"] = 3
    saved["agent_options"]["former"] = [1, 2]
    (run / "config.json").write_text(json.dumps(saved))
    shown = source.runs({"run": run}, other_code=False)
    text = page.render(shown)
    assert_names(text, "--older 3", "--agent.former 1 2")
    (line,) = commands.repeat(shown)
    assert "older" not in line and "former" not in line
    (again,) = parsed(monkeypatch, train, line)
    assert again.agent == saved["agent"] and again.loop.steps == saved["loop"]["steps"]


def test_of_an_agent_that_is_not_known_here_every_option_is_repeated(run):
    saved = json.loads((run / "config.json").read_text()) | {"agent": "elsewhere.agent"}
    assert commands.gone(saved) == {}
    assert "--agent.hidden 64 64" in commands.of_run(saved).replace("\\\n    ", "")


def test_the_command_of_a_comparison_makes_the_same_arms(monkeypatch, tmp_path):
    folder = RESULTS / "sparse_pendulum_td3"
    shown = source.comparison(folder)
    (line,) = commands.repeat(shown)
    found = parsed(monkeypatch, compare, line, tmp_path)
    kept = [arm.config for arm in shown.arms.values()]
    assert len(found) == len(kept)
    for own, arm in zip(found, kept, strict=True):
        again = json.loads(json.dumps(own.to_json()))
        for section, options in arm.items():  # of then: there may be more by now
            if isinstance(options, dict):
                assert {k: again[section][k] for k in options if k in again[section]} == {
                    k: v for k, v in options.items() if k in again[section]
                }
            else:
                assert again[section] == options


def parsed(monkeypatch, module, line, folder=None):
    """Return the configurations that a command line would run."""
    found = []
    if module is train:

        def execute(config, *_, **__):
            found.append(config)
            raise ValueError("enough")

        monkeypatch.setattr(run_module, "execute", execute)
    else:

        def run_all(question, runs, *_):
            found.extend(arm.config for arm in runs.values())
            raise ValueError("enough")

        monkeypatch.setattr(compare, "_run_all", run_all)
    words = shlex.split(line.replace("\\\n", " "))
    assert words[:3] == ["python", "-m", module.__name__]
    with pytest.raises(SystemExit):
        module.main(words[3:])
    return found


def test_a_page_without_plotly_is_refused_with_what_installs_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(page, "missing", lambda what, modules: f"{what} needs {[*modules]}")
    with pytest.raises(SystemExit) as exit_:
        report.main([str(tmp_path), "--out", str(tmp_path / "x.html")])
    assert exit_.value.code == 2 and "plotly" in capsys.readouterr().err
