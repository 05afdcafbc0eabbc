"""Folders from others are data: modules, addresses and links in them are not used."""

import base64
import contextlib
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from experiments import compare, plot, report, study, sweep, train, watch
from experiments.papers import __main__ as papers
from experiments.papers.committed import COMMITTED
from experiments.runs import registry
from experiments.studies import run_page
from tests.experiments.tiny import TINY
from tests.pages import Page
from tests.refusals import refusal

MODULE = """
from pathlib import Path
Path({mark!r}).write_text("it ran")
from agents.dqn import DQNConfig, dqn as agent
from experiments.training.config import ReplaySizes
from jaxreplay.methods import METHODS
from agents.types import Offers
ACTIONS, OFFERS = "discrete", Offers(frozenset({{"td_error"}}))
method, config = METHODS["uniform"].method, DQNConfig
"""


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """Put an agent or method on the path in three modules; return a file that imports write."""
    mark, below = tmp_path / "mark", tmp_path / "path" / "evilpkg"
    below.mkdir(parents=True)
    content = MODULE.format(mark=str(mark))
    for path in (below / "__init__.py", below / "evil2.py", below.with_name("evilmod.py")):
        path.write_text(content)
    monkeypatch.syspath_prepend(str(below.parent))
    yield mark
    for name in [name for name in sys.modules if name.startswith("evil")]:
        del sys.modules[name]


def edited(path, change):
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))


NAMES = [
    ("agent", "evilmod"), ("agent", "evilpkg.evil2"), ("replay", "evilmod"),
    ("replay", "evilpkg.evil2"), ("env", "gymnasium/evilmod:X-v0"),
    ("env", "gymnasium/evilpkg.evil2:X-v0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [("run", *own) for own in NAMES] + [("grid", *own) for own in NAMES[1::2]],
)
def test_modules_named_only_by_a_folder_are_not_imported(folders, mark, capsys, kind, name, value):
    def change(saved):
        text = json.dumps(saved)
        old = {"agent": "dqn", "replay": "uniform", "env": "walk/4"}[name]
        for key in (name, "env") if name == "env" else (name, "method"):
            text = re.sub(f'"{key}": "{old}"', f'"{key}": "{value}"', text)
        text = re.sub(f'"bases": {{"{old}"', f'"bases": {{"{value}"', text)
        saved |= json.loads(text)

    folder = folders / kind
    edited(folder / "study.json", change)
    command = {"run": train, "grid": sweep}[kind]
    assert value in refusal(capsys, command.main, "--resume", str(folder))
    if kind == "run":
        assert value in refusal(capsys, watch.main, str(folder))
    report.main([str(folder)])  # shows the names as text
    assert not mark.exists()


def test_saved_studies_are_validated_against_bounds(folders, capsys):
    path = folders / "grid" / "study.json"
    whole = path.read_text()
    for section, name, value in (
        ("options", "on", "ray://127.0.0.1:1"),
        ("options", "wandb", True),
        ("options", "compilation_cache", "/tmp"),
        ("options", "width", 0),
        ("question", "primary", 3),
        ("axes", "replay.alpha", ["--on"]),
    ):
        edited(path, lambda saved: saved["study"][section].update({name: value}))
        error = refusal(capsys, sweep.main, "--resume", str(folders / "grid"), "--dry-run")
        assert name in error or str(value) in error
        path.write_text(whole)


def test_resumed_sweeps_keep_their_options(folders, capsys):
    assert sweep.main(["--resume", str(folders / "grid"), "--report", "false"]) == 0
    said = capsys.readouterr().out  # --primary is read from the folder
    assert re.search(r"\bfinal\b", said) and not re.search(r"\bauc\b", said)


def test_modules_named_again_on_the_command_line_are_imported(tmp_path, monkeypatch, request):
    path = tmp_path / "mine_elsewhere.py"
    path.write_text(MODULE.format(mark=str(tmp_path / "mark")))
    monkeypatch.syspath_prepend(str(tmp_path))
    request.addfinalizer(lambda: registry._AGENTS.pop(path.stem, None))
    out = str(tmp_path / "x")
    words = [*TINY, "--agent", path.stem, "--envs", "walk/4", "--replays", "uniform"]
    plain = ["--figures", "false", "--report", "false"]
    assert sweep.main([*words, *plain, "--out", out]) == 0
    whole = (tmp_path / "x" / "study.csv.gz").read_bytes()
    assert sweep.main(["--resume", out, "--agent", path.stem, *plain]) == 0
    assert (tmp_path / "x" / "study.csv.gz").read_bytes() == whole


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('agent = "evilmod"', "evilmod"),
        ('agent = ["evilmod", "dqn"]', "evilmod"),
        ('replays = ["uniform", "mine=evilmod"]', "evilmod"),
        ('replays = ["uniform", "evilpkg.evil2"]', "evilpkg.evil2"),
        ('envs = ["gymnasium/evilmod:X-v0"]', "evilmod"),
        ('envs = "evilpkg/X"', "evilpkg/X"),
        ('env = "evilpkg/X"', "evilpkg/X"),
        ('"--env" = "evilpkg/X"', "--env"),
        ('env = "experiments.environments.gymnasium/evilmod:X-v0"', "evilmod"),
        ('env = "walk/4"\nenvs = "walk/5"', "--envs"),
        ('replays = ["per", "--agent", "evilmod"]', "--agent"),
        ('"agent=evilmod" = []', "agent=evilmod"),
        ('[grid]\n"--envs" = ["evilpkg/X"]', "envs"),
        ('[grid]\nenv = ["evilpkg/X"]', "env"),
        ('[grid]\n"--agent" = ["evilmod"]', "agent"),
        ('[grid]\n"--replays" = ["uniform", "mine=evilmod"]', "replays"),
        ('preset = "evilmod"', "evilmod"),
        ("overwrite = 3", "--overwrite"),
        ("list = true", "--list"),
        ('help = "agent"', "--help"),
        ('file = "/etc/passwd"', "--file"),
        ('on = "ray://127.0.0.1:1"', "--on"),
        ('compilation_cache = "/tmp/x"', "--compilation-cache"),
        ('out = "/tmp/x"', "--out"),
        ("overwrite = true", "--overwrite"),
        ('resume = "/tmp/x"', "--resume"),
    ],
)
def test_option_files_cannot_name_clusters_or_modules(tmp_path, mark, capsys, text, named):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    for command, words in ((sweep, ["--file", path]), (study, [path])):
        error = refusal(capsys, command.main, *words, "--dry-run")
        assert named in error and not mark.exists()


def test_option_files_may_name_what_the_command_line_named(tmp_path, mark, capsys, request):
    request.addfinalizer(lambda: registry._AGENTS.pop("evilmod", None))
    path = tmp_path / "x.toml"
    path.write_text('agent = "evilmod"\nenv = "walk/4"\nreplays = ["uniform", "mine=uniform"]\n')
    assert "evilmod" in refusal(capsys, study.main, path, "--dry-run")
    assert study.main([str(path), "--agent", "evilmod", "--dry-run"]) == 0 and mark.exists()


@pytest.mark.parametrize("name", ["folder", "folder.py", "s.zip", "s.csv", "README.md", "s.PY"])
def test_only_python_files_are_programs(tmp_path, mark, capsys, name):
    program, path = (tmp_path / "path" / "evilmod.py").read_text(), tmp_path / name
    if name.startswith("folder"):
        path.mkdir()
        (path / "__main__.py").write_text(program)
    elif name == "s.zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("__main__.py", program)
    else:
        path.write_text(program)
    assert name in refusal(capsys, study.main, path)
    assert not mark.exists()
    path = tmp_path / "s.py"
    path.write_text(program)
    assert name not in refusal(capsys, study.main, path) and mark.exists()


@pytest.mark.parametrize("name", ["./s.toml", ".//s.toml", "x/../s.toml", "x/../{s}.toml"])
def test_studies_are_found_by_every_spelling_of_a_path(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    Path(name).write_text('env = "walk/4"\nreplays = ["uniform", "per"]\nseeds = 2\n')
    assert study.main([name, "--dry-run"]) == 0
    assert "walk/4 per" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["run", "grid"])
def test_pages_do_not_follow_links(folders, tmp_path, capsys, kind):
    secret, page = tmp_path / "secret", tmp_path / "page.html"
    for path in sorted(folders.joinpath(kind).rglob("*")):
        if path.name not in ("study.json", "study.csv.gz"):
            continue
        if kind != "run" and path.stem not in ("study", "study.csv"):  # pages do not read others
            continue
        path.rename(secret)
        path.symlink_to(secret)
        assert path.name in refusal(capsys, report.main, str(folders / kind), "--out", str(page))
        assert not page.exists()
        path.unlink()
        secret.rename(path)


@pytest.mark.parametrize("is_link", [True, False])
def test_linked_films_are_named_and_not_embedded(folders, tmp_path, is_link):
    content = b"GIF89a what is nobody's business"
    (tmp_path / "secret.gif").write_bytes(content)
    film = folders / "run" / "episode.gif"
    (film.symlink_to if is_link else lambda path: shutil.copy(path, film))(tmp_path / "secret.gif")
    assert report.main([str(folders / "run")]) == 0
    page = (folders / "run" / "report.html").read_text()
    assert (base64.b64encode(content).decode() in page) != is_link
    assert ("episode.gif" in page) == is_link


CONTROL = "x\x1b[31m\x07\r\x9b\u202e"  # moves the cursor, rings, and reverses the text
HOSTILE = f"{CONTROL}</script><script>alert(1)</script><b>&"
PRINTING = {
    "report of a run": (report.main, "run", "--title", HOSTILE),
    "report of runs": (report.main, f"{HOSTILE}=run", "b=run", "--out", "new/page.html"),
    "report of a study": (report.main, "grid"),
    "report of nothing": (report.main, "nothing"),
    "plot": (plot.main, f"{HOSTILE}=run", "run", "--out", "new"),
    "plot of a study": (plot.main, f"{HOSTILE}=grid", "--out", "new"),
    "train": (train.main, *TINY, "--env", "walk/4", "--figures", "false", "--out", "new"),
    "train again": (train.main, "--resume", "run"),
    "train with a name": (train.main, "--agent", HOSTILE),
    "help of a resumed run": (train.main, "--resume", "run", "--help", "all"),
    "watch": (watch.main, "run"),
    "compare": (compare.main, "--resume", "grid", "--report", "false"),
    "compare with labels": (compare.main, "--replays", f"{HOSTILE}=per", "per"),
    "sweep": (sweep.main, "--resume", "grid", "--report", "true"),
    "sweep of a file": (sweep.main, "--file", "s.toml", "--dry-run"),
    "study of TOML": (study.main, "s.toml", "--dry-run"),
    "study of names": (study.main, "names.toml"),
    "study of JSON": (study.main, "grid/study.json", "--out", "new", "--dry-run"),
    "study of Python": (study.main, "nothing.py"),
    "list of papers": (papers.main, "list", "--paper", "pser", "--results", "papers"),
    "report of papers": (papers.main, "report", "--paper", "per", "--results", "papers"),
}


FOLDERS = {"run", "grid", "grid/study.json", f"{HOSTILE}=run", f"{HOSTILE}=grid"}
READING = [case for case, (_, *words) in PRINTING.items() if FOLDERS & {*words}]


@pytest.mark.parametrize(
    ("case", "edited_names"),
    [(case, False) for case in PRINTING] + [(case, True) for case in READING],
)
def test_terminals_get_no_control_characters(folders, capsys, recwarn, case, edited_names):
    """Control characters in labels, folders, and names in files are escaped in all output."""
    folder = folders.rename(folders.with_name(CONTROL))
    (folder / "s.toml").write_text('env = "walk/4"\nreplays = ["uniform", "per"]\nseeds = 2\n')
    (folder / "names.toml").write_text(f"{json.dumps(HOSTILE)} = 1\n")
    (folder / "papers").mkdir()
    for path in COMMITTED.glob("cliffwalk_s*.small.*"):
        shutil.copy(path, folder / "papers")
    for path in folder.rglob("*.json") if edited_names else ():
        text = re.sub(
            r'"(dqn|walk/4|\d+\.\d+\.\d+)"', lambda _: json.dumps(HOSTILE), path.read_text()
        )
        edited(path, lambda saved: saved.update(json.loads(text)))
    main, *words = PRINTING[case]
    places = {name.name for name in folder.iterdir()} | {"new", "nothing", "nothing.py"}

    def located(word):
        label, equals, path = word.rpartition("=")
        within = path.partition("/")[0] in places
        return f"{label}{equals}{folder / path}" if within else word

    with contextlib.suppress(SystemExit):
        main([*map(located, words)])
    said = capsys.readouterr()
    printed = [*(said.out + said.err).split("\n"), *(str(each.message) for each in recwarn)]
    assert len(printed) > 1 and all(line.isprintable() for line in printed), printed


def test_only_one_function_prints():
    """Others could print control characters; `process` prints when imports fail."""
    root = Path(train.__file__).parent
    calls = re.compile(r"\bprint\(|std(out|err)\.write\(")
    found = {path for path in root.rglob("*.py") if calls.search(path.read_text())}
    names = {path.relative_to(root).as_posix() for path in found}
    assert names == {"runs/log.py", "cli/process.py"}


def test_pages_contain_no_markup_of_labels(folders):
    run = folders / "run"
    arms = run_page.read({HOSTILE: run, "b": run}, other_code=True)
    text = run_page.render(arms, HOSTILE)
    assert "alert(1)" in Page(text).text and "<script" not in text and "<b>" not in text
    assert all(line.isprintable() for line in text.split("\n"))
