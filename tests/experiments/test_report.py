"""The report command, on committed results."""

import json
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from experiments import report, study
from experiments.figures import page
from experiments.runs.run_config import defaults
from experiments.studies import results, run_page, store, study_page
from experiments.studies.definition import Saved
from tests.experiments import tiny
from tests.pages import Page
from tests.refusals import assert_names, refusal

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
KEYS = ("seed", "step", "eval_return")


@pytest.fixture
def run(folders):
    """Return a copy of a finished run."""
    return folders / "run"


def begun(folder: Path, env: str, rows: str = "0,50,1.0\n") -> Path:
    """Make the folder of a run that has not ended, with rows of `metrics.csv`."""
    own = tiny.study_of(defaults(env, "dqn", "per"))
    folder.mkdir()
    store.begin(folder, own, own.points(), {}).write()
    (folder / "metrics.csv").write_text(f"{','.join(KEYS)}\n{rows}")
    return folder


def test_page_of_a_run_is_written_to_its_folder_and_replaced(run, capsys):
    assert report.main([str(run)]) == 0
    assert_names(capsys.readouterr().out, run / "report.html")
    first = (run / "report.html").read_bytes()
    (title,) = re.findall("<h1>(.*?)</h1>", first.decode())
    assert_names(title, "dqn", "uniform", "walk/4")
    assert b'id="verdicts"' not in first  # one run has no comparison
    assert report.main([str(run)]) == 0
    assert (run / "report.html").read_bytes() == first
    assert not [path for path in run.iterdir() if path.suffix == ".tmp"]


def test_pages_with_verdicts_are_not_replaced_by_pages_without(tmp_path, monkeypatch, capsys):
    def lacking(*_):
        raise ValueError("there is no replay 'mine'")

    folder = Path(shutil.copytree(RESULTS / "discor_walk", tmp_path / "s"))
    out = folder / "report.html"
    assert report.main([str(folder)]) == 0
    page_ = out.read_bytes()
    monkeypatch.setattr(Saved, "validated", lacking)
    assert_names(refusal(capsys, report.main, folder), "mine", out)
    assert out.read_bytes() == page_
    out.unlink()
    assert report.main([str(folder)]) == 0 and "mine" in out.read_text()


def test_foreign_files_are_not_overwritten(run, capsys):
    (run / "report.html").write_text("<p>mine")
    assert_names(refusal(capsys, report.main, run), run / "report.html", "--out")
    assert (run / "report.html").read_text() == "<p>mine"


def test_several_runs_become_arms(run, tmp_path, capsys):
    out = tmp_path / "new" / "both.html"
    runs = [f"with={run}", f"without={run}"]
    assert_names(refusal(capsys, report.main, *runs), "--out FILE.html")
    assert report.main([*runs, "--out", str(out), "--title", "<b>Two & more"]) == 0
    text = out.read_text()
    assert "<h1>&lt;b&gt;Two &amp; more</h1>" in text
    assert Page(text).table("arm", "device")[1]["arm"] == "without"
    assert "</svg> with</span>" in text  # a legend


def test_incompatible_folders_are_refused(tmp_path, run, capsys):
    out = ["--out", tmp_path / "x.html"]
    other = begun(tmp_path / "other", "walk/5")
    assert_names(refusal(capsys, report.main, run, other, *out), "walk/4", "walk/5")
    assert_names(refusal(capsys, report.main, run, f"run={other}", *out), "run", f"other={run}")
    error = refusal(capsys, report.main, RESULTS / "sweeps" / "walk_per", run, *out)
    assert_names(error, RESULTS / "sweeps" / "walk_per", "study")
    old = Path(shutil.copytree(run, tmp_path / "old"))
    saved = json.loads((old / "study.json").read_text())
    next(iter(saved["points"].values()))["code"] = ["0123456789ab"]
    (old / "study.json").write_text(json.dumps(saved))
    runs = (run, old, *out)
    assert_names(refusal(capsys, report.main, *runs), "0123456789ab", "--other-code")
    assert not (tmp_path / "x.html").exists()
    assert report.main([*map(str, runs), "--other-code"]) == 0


def test_running_runs_are_shown_up_to_the_last_log_point(tmp_path):
    """An incomplete last log point is left out, and a line that is being written."""
    rows = "0,50,1.0\n1,50,1.0\n0,100,1.0\n1,100,0.0\n0,150,1.0\n1,150,"
    folder = begun(tmp_path / "run", "walk/4", rows)
    read = run_page.read({"mine": folder}, other_code=False)
    assert read["mine"].frame["step"].max() == 100 and read["mine"].summary is None
    text = run_page.render(read)
    steps = read["mine"].config["loop"]["steps"]
    parts = ("mine", "100", f"{steps:,}")
    assert any(all(part in said for part in parts) for said in re.findall(">([^<]{,200})<", text))


def test_runs_without_a_log_point_have_no_page(tmp_path, capsys):
    folder = begun(tmp_path / "run", "walk/4", "0,2500")
    assert_names(refusal(capsys, report.main, folder), folder)


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
