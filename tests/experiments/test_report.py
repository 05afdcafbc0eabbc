"""The report command, on committed results."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from experiments import report, study
from experiments.figures import page
from experiments.studies import results, run_page, study_page
from tests.pages import Page
from tests.refusals import assert_names, refusal

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
RACER = RESULTS / "refer" / "racer_pendulum"


@pytest.fixture
def run(tmp_path):
    """Return a copy of a finished run."""
    return Path(shutil.copytree(RACER / "refer", tmp_path / "run"))


def test_page_of_a_run_is_written_to_its_folder_and_replaced(run, capsys):
    assert report.main([str(run)]) == 0
    assert_names(capsys.readouterr().out, run / "report.html")
    first = (run / "report.html").read_bytes()
    (title,) = re.findall("<h1>(.*?)</h1>", first.decode())
    assert_names(title, "racer", "refer", "gymnax/Pendulum-v1")
    assert b'id="verdicts"' not in first and b'legend">' not in first  # one run has no comparison
    assert report.main([str(run)]) == 0
    assert (run / "report.html").read_bytes() == first
    assert not [path for path in run.iterdir() if path.suffix == ".tmp"]


def test_foreign_files_are_not_overwritten(run, capsys):
    (run / "report.html").write_text("<p>mine")
    assert_names(refusal(capsys, report.main, run), run / "report.html", "--out")
    assert (run / "report.html").read_text() == "<p>mine"


def test_several_runs_become_arms(tmp_path, capsys):
    out = tmp_path / "new" / "both.html"
    runs = [f"with={RACER / 'refer'}", f"without={RACER / 'without'}"]
    assert_names(refusal(capsys, report.main, *runs), "--out FILE.html")
    assert report.main([*runs, "--out", str(out), "--title", "<b>Two & more"]) == 0
    text = out.read_text()
    assert "<h1>&lt;b&gt;Two &amp; more</h1>" in text
    assert Page(text).table("arm", "device")[1]["arm"] == "without"
    assert "</svg> with</span>" in text  # a legend


def test_incompatible_folders_are_refused(tmp_path, run, capsys):
    out = ["--out", tmp_path / "x.html"]
    other = RESULTS / "cartpole_dqn" / "per"
    error = refusal(capsys, report.main, run, other, *out)
    assert_names(error, "gymnax/Pendulum-v1", "gymnax/CartPole-v1")
    assert_names(refusal(capsys, report.main, run, f"run={other}", *out), "run", f"other={run}")
    error = refusal(capsys, report.main, RESULTS / "sweeps" / "walk_per", run, *out)
    assert_names(error, RESULTS / "sweeps" / "walk_per", "study")
    saved = json.loads((run / "summary.json").read_text())
    saved["versions"]["code"] = "0123456789ab"
    (run / "summary.json").write_text(json.dumps(saved))
    both = (run, RACER / "without", *out)
    assert_names(refusal(capsys, report.main, *both), "0123456789ab", "--other-code")
    assert not (tmp_path / "x.html").exists()
    assert report.main([*map(str, both), "--other-code"]) == 0


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [("metrics.csv", "mine", ()), ("timing.csv", "step,seconds\n1,2\n", ("steps_per_second",))],
)
def test_damaged_files_are_named(run, capsys, name, text, parts):
    (run / name).write_text(text)
    assert_names(refusal(capsys, report.main, run), run / name, *parts)
    assert not (run / "report.html").exists()


def test_running_runs_are_shown_up_to_the_last_log_point(run):
    """An incomplete last log point is left out."""
    frame = pd.read_csv(run / "metrics.csv")
    third = sorted(frame["step"].unique())[2]
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    kept = [lines[0], *(line for line in lines[1:] if int(line.split(",")[1]) <= third)]
    (run / "metrics.csv").write_text("".join([*kept[:-1], kept[-1][:20]]))
    (run / "summary.json").unlink()
    read = run_page.read({"mine": run}, other_code=False)
    second = sorted(frame["step"].unique())[1]
    assert read["mine"].frame["step"].max() == second
    text = run_page.render(read)
    steps = json.loads((run / "config.json").read_text())["loop"]["steps"]
    parts = ("mine", f"{second:,}", f"{steps:,}")
    assert any(all(part in said for part in parts) for said in re.findall(">([^<]{,200})<", text))


def test_runs_without_a_log_point_have_no_page(run, capsys):
    (run / "summary.json").unlink()
    (run / "metrics.csv").write_text("seed,step,eval_return\n0,2500")
    assert_names(refusal(capsys, report.main, run), run)


def test_films_are_embedded_up_to_a_limit(run, monkeypatch):
    Image.new("RGB", (4, 4)).save(run / "episode.gif")
    text = run_page.render(run_page.read({"run": run}, other_code=False))
    assert '<img src="data:image/gif;base64,R0lG' in text and "episode.gif" not in text
    monkeypatch.setattr(page, "MOST_BYTES", 10)
    text = run_page.render(run_page.read({"run": run}, other_code=False))
    assert "<img" not in text and "episode.gif" in text
    (run / "episode.gif").write_text("<script>")
    text = run_page.render(run_page.read({"run": run}, other_code=False))
    assert "<img" not in text and "episode.gif" in text


def test_command_on_the_page_repeats_the_study(tmp_path, monkeypatch):
    text = study_page.render(results.read(RESULTS / "sweeps" / "walk_per"))
    (line,) = Page(text).code
    monkeypatch.chdir(shutil.copytree(RESULTS / "sweeps" / "walk_per", tmp_path / "s"))
    asked = []
    monkeypatch.setattr(study, "_run", lambda found, *_: asked.append(found))
    words = line.split()
    assert words[:3] == ["python", "-m", "experiments.study"] and study.main(words[3:]) == 0
    assert asked[0].to_json() == results.read(Path(".")).study.to_json()


def test_text_from_files_is_escaped(tmp_path):
    """Pages of foreign studies execute no scripts."""
    folder = Path(shutil.copytree(RESULTS / "sweeps" / "walk_per", tmp_path / "s"))
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    path = folder / "study.json"
    saved = json.loads(path.read_text())
    saved["versions"]["device"] = saved["failed"]["walk/10 per seed 0"] = evil
    saved["study"]["question"]["ungated"] = f"why {evil}"
    path.write_text(json.dumps(saved))
    text = study_page.render(results.read(folder))
    assert "alert(1)" in text and "alert(2)" in text
    assert "<script>alert" not in text and "<img" not in text
