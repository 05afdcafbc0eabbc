"""The papers command: runs, resuming, overwriting, lists, reports and refusals."""

import contextlib
import json
import shutil
from io import StringIO
from types import SimpleNamespace

import jax
import pytest

from experiments.papers import __main__ as papers
from experiments.papers import archive, figures, running, summary
from experiments.papers import entry as entries
from experiments.papers.catalogue import ENTRIES, of_papers
from experiments.papers.entry import PAPERS
from experiments.runs import code
from experiments.studies import batch, store
from tests.refusals import assert_names, refusal

WALK = ["run", "all.walk", "--size", "smoke"]


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Run the smallest walk, stop it in its second batch, and complete it."""
    out, before, batches = tmp_path_factory.mktemp("papers"), batch.train, []

    def stopped_in_the_second_batch(*args, **options):
        batches.append(None)
        if len(batches) == 2:
            raise KeyboardInterrupt
        batches[-1] = before(*args, **options)
        return batches[-1]

    command, said, listed = [*WALK, "--out", str(out), "--devices", "1"], StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "train", stopped_in_the_second_batch)
        with contextlib.redirect_stderr(said):
            code = papers.main(command)
        begun = archive.read(out, "walk_dqn", "smoke")
        with contextlib.redirect_stdout(listed):
            papers.main(["list", "all.walk", "--size", "smoke", "--results", str(out)])
        assert papers.main(command) == 0
    return SimpleNamespace(
        out=out, code=code, begun=begun, batches=batches, said=said.getvalue(),
        listed=listed.getvalue(),
    )  # fmt: skip


@pytest.fixture
def walked(walk):
    return walk.out


def trained(monkeypatch, results=()):
    """Return a list that records every batch of runs, which get these results untrained."""
    batches, results = [], iter(results)

    def train(*args, **options):
        batches.append(1)
        return next(results)

    monkeypatch.setattr(batch, "train", train)
    return batches


def test_study_writes_table_figure_and_report(walked, monkeypatch, capsys):
    data = archive.read(walked, "walk_dqn", "smoke")
    assert data is not None and list(data.runs["walk/10"]) == ["uniform_every16", "per_every16"]
    made = data.runs["walk/10"]["per_every16"]
    assert made["config"]["replay"] == "per" and made["versions"]["code"] == store.code_version()
    assert (walked / "all.walk.smoke.png").read_bytes().startswith(b"\x89PNG")
    assert not (walked / "walk_dqn.smoke/unfinished").exists()  # all runs finished
    assert papers.main(["report", "all.walk", "--size", "smoke", "--results", str(walked)]) == 0
    said = capsys.readouterr().out
    assert "### all.walk" in said and "effective buffer" in said
    assert_names(said, "python -m experiments.papers run all.walk --size smoke")
    assert papers.main(["list", "all.walk", "--size", "smoke", "--results", str(walked)]) == 0
    assert_names(capsys.readouterr().out, summary.status(ENTRIES["all.walk"], "smoke", data))


def test_damaged_studies_are_recomputed_only_with_overwrite(walked, tmp_path, monkeypatch, capsys):
    shutil.copytree(walked, tmp_path, dirs_exist_ok=True)
    numbers = tmp_path / "walk_dqn.smoke/study.csv.gz"
    numbers.write_bytes(b"")
    batches = trained(monkeypatch)
    said = refusal(capsys, papers.main, *WALK, "--out", str(tmp_path))
    assert_names(said, numbers, "--overwrite")
    assert batches == [] and numbers.read_bytes() == b""
    with pytest.raises(StopIteration):  # training starts
        papers.main([*WALK, "--out", str(tmp_path), "--overwrite"])


def test_results_of_other_code_or_settings_are_not_mixed(walked, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(code, "version", lambda *more: "0123456789ab")
        said = refusal(capsys, papers.main, *WALK, "--out", str(walked))
        numbers = walked / "walk_dqn.smoke/study.csv.gz"
        assert_names(said, numbers, "0123456789ab", "--other-code")
        assert papers.main([*WALK, "--out", str(walked), "--other-code"]) == 0
    with jax.threefry_partitionable(False):
        said = refusal(capsys, papers.main, *WALK, "--out", str(walked))
        assert_names(said, "jax_threefry_partitionable=false")
    with monkeypatch.context() as patch:
        patch.setattr(entries, "_SMOKE_SEEDS", 3)
        said = refusal(capsys, papers.main, *WALK, "--out", str(walked))
    assert_names(said, "seeds", "--overwrite")
    command = ["report", "all.walk", "--size", "smoke", "--results", str(walked)]
    assert papers.main(command) == 0 and "effective buffer" in capsys.readouterr().out


def test_overwrite_recomputes_only_results_of_other_code_or_settings(walk, tmp_path, monkeypatch):
    shutil.copytree(walk.out, tmp_path / "copy")
    out = ["--out", str(tmp_path / "copy")]
    facts = tmp_path / "copy/walk_dqn.smoke/study.json"
    saved = json.loads(facts.read_text())
    next(iter(saved["points"].values()))["code"] = ["0123456789ab"]  # one point suffices
    facts.write_text(json.dumps(saved))
    picture = tmp_path / "copy/all.walk.smoke.png"
    picture.write_text("of another program")
    batches = trained(monkeypatch, filter(None, walk.batches))
    assert papers.main([*WALK, *out, "--overwrite"]) == 0
    assert len(batches) == 2 and picture.read_bytes().startswith(b"\x89PNG")
    assert papers.main([*WALK, *out, "--overwrite"]) == 0  # as after Ctrl-C
    assert len(batches) == 2


@pytest.mark.parametrize(
    ("kind", "more"),
    [("picture", []),  # may be replaced with --overwrite
     *((kind, more) for kind in ("link", "file", "folder") for more in ([], ["--overwrite"]))],
)  # fmt: skip
def test_foreign_files_are_not_replaced(kind, more, tmp_path, monkeypatch, capsys):
    names = {"file": "walk_dqn.smoke", "folder": "walk_dqn.smoke/study.json"}
    path = mine = tmp_path / "out" / names.get(kind, "all.walk.smoke.png")
    path.parent.mkdir(parents=True)
    if kind == "link":
        mine = tmp_path / "mine"
        path.symlink_to(mine)
    mine.write_text("mine")
    batches = trained(monkeypatch)
    said = refusal(capsys, papers.main, *WALK, "--out", str(tmp_path / "out"), *more)
    assert_names(said, "walk_dqn.smoke" if kind in names else path.name)
    assert mine.read_text() == "mine" and path.is_symlink() == (kind == "link") and not batches
    assert list(path.parent.iterdir()) == [path]


def test_stopped_studies_resume(walk):
    assert walk.code == 130
    last = walk.said.splitlines()[-1]
    assert_names(last, "walk_dqn")
    assert "--resume" not in last  # an option of other commands
    assert walk.begun is not None and list(walk.begun.runs["walk/10"]) == ["uniform_every16"]
    assert_names(walk.listed, summary.status(ENTRIES["all.walk"], "smoke", walk.begun))
    whole = archive.read(walk.out, "walk_dqn", "smoke")
    assert len(walk.batches) == 3 and whole is not None and len(whole.runs["walk/10"]) == 2


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["run", "per.fig99"], ("per.fig99", "per.fig9")),
        (["run"], ("list", "--paper")),
        (["run", "per.fig1", "--paper", "lap"], ("entries",)),
        (["report", "--paper", "lap", "per.fig1"], ("--paper", "per.fig1")),
        (["list", "--paper", "pre"], ("pre", "per")),
        (["list", "--results", "/no/such"], ("/no/such", "--results")),
        (["report", "per.tab3", "--all"], ("--all", "--paper")),
        (["run", "lap.fig1", "--size", "paper"], ("--yes", "--size small")),
        (["run", "all.walk", "--size", "tiny"], ("--size", "tiny", "smoke", "small", "paper")),
        (["draw"], ("draw",)),
    ],
)
def test_refusals(options, parts, tmp_path, capsys):
    more = ["--out", str(tmp_path / "new")] if options[0] == "run" else []
    assert_names(refusal(capsys, papers.main, *options, *more), *parts)
    assert not (tmp_path / "new").exists()


def test_report_is_written_to_the_given_file_unless_foreign(walked, tmp_path, capsys):
    path = tmp_path / "RESULTS.md"
    command = ["report", "--all", "--size", "smoke", "--results", str(walked), "--write", str(path)]
    assert papers.main(command) == 0
    text = path.read_text()
    assert text.startswith(summary.TITLE) and f"| {' | '.join(summary.CLAIM_COLUMNS)} |" in text
    assert f"]({summary.FIGURES}/" in text
    foreign = tmp_path / "NOTES.md"
    foreign.write_text("mine")
    assert_names(refusal(capsys, papers.main, *command[:-1], foreign), foreign, "--write")
    assert foreign.read_text() == "mine"
    assert papers.main(command) == 0  # reports may be replaced


def test_shared_sources_of_entries_run_once(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(running, "make", lambda source, *rest: made.append(source.name) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        papers.main(["run", "per.fig4", "per.fig7", "--size", "smoke", "--out", str(tmp_path)])
    assert made == ["minatar_dqn"]


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_every_entry_runs(paper, tmp_path, capsys):
    assert papers.main(["run", "--paper", paper, "--size", "smoke", "--out", str(tmp_path)]) == 0
    lines = [line.replace(":", " ").split() for line in capsys.readouterr().err.splitlines()]
    # The first entry named in a line is its subject.
    named = {next((word for word in line if word in ENTRIES), "") for line in lines}
    for entry in of_papers([paper]):
        if entry.source is None:
            continue
        data = archive.read(tmp_path, entry.source.name, "smoke")
        if data is None:
            assert entry.id in named  # reported as skipped
            continue
        assert summary.status(entry, "smoke", data) == "done"
        drawn = figures.path_of(entry, "smoke", tmp_path).exists()
        assert drawn == (entry.layout is not None and entry.id not in named)
