"""The sweep command: its table, resuming, and refusal of invalid input without side effects."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from experiments.runs.run import execute

from experiments import study, sweep
from experiments.runs.run_config import OutputConfig, RunConfig
from experiments.studies import store
from tests.experiments import tiny
from tests.refusals import assert_names, refusal, refused

TINY = [*tiny.TINY, "--envs", "walk/4"]
MANY = ",".join(f"0.{number:04}" for number in range(1, 9_001))
SEARCH = ["--search", "random", "--space", "replay.alpha=0:1"]
GRID = ["--replays", "uniform", "per", "--grid", "replay.alpha=0.2,0.6", "per.beta=0.4,1"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "two"
    assert sweep.main([*TINY, *GRID, "--out", str(out)]) == 0
    return out


@pytest.fixture
def out(swept, tmp_path):
    """Return a copy of the sweep."""
    return Path(shutil.copytree(swept, tmp_path / "copy"))


def costs(out):
    return json.loads((out / "study.json").read_text())["costs"]


def test_one_table_contains_every_run_and_log_point(swept):
    table = pd.read_csv(swept / "study.csv.gz")
    assert len(table) == (1 + 4) * 2 * 2  # points, seeds, log points
    per = table[table["replay"] == "per"]
    assert set(zip(per["replay.alpha"], per["replay.beta"])) == {
        (0.2, 0.4), (0.2, 1.0), (0.6, 0.4), (0.6, 1.0)
    }  # fmt: skip
    assert table[table["replay"] == "uniform"]["replay.alpha"].isna().all()
    assert set(table["step"]) == {150, 200} and table["eval_return"].notna().all()
    # All points of PER have different results.
    sums = per[per["step"] == 200].groupby("point")["replay/mean_priority"].sum()
    assert sums.nunique() >= 2
    assert np.allclose(per[per["replay.beta"] == 1.0]["replay/beta"], 1.0)


def test_settings_and_versions_are_saved_with_the_table(swept):
    facts = json.loads((swept / "study.json").read_text())
    assert len(facts["points"]) == 5 and facts["failed"] == {}
    one = facts["points"]["walk/4 per replay.alpha=0.2 replay.beta=1.0"]
    assert RunConfig.from_json(one["config"]).replay_options.beta == 1.0
    assert one["code"] == [store.code_version()] and facts["versions"]["jax"]
    inputs = {tuple(cost["inputs"]) for cost in facts["costs"]}
    assert inputs == {(), ("replay.alpha", "replay.beta")}  # two programs
    assert sum(len(seeds) for c in facts["costs"] for seeds in c["runs"].values()) == 10


def test_sweeps_write_figures_and_tables(swept):
    assert (swept / "sensitivity.png").read_bytes().startswith(b"\x89PNG")
    assert (swept / "best.png").read_bytes().startswith(b"\x89PNG")
    text = (swept / "study.md").read_text()
    assert "| walk/4 uniform" in text


def test_sweeps_equal_single_runs_bit_for_bit(swept, tmp_path):
    facts = json.loads((swept / "study.json").read_text())
    config = RunConfig.from_json(facts["points"]["walk/4 uniform"]["config"])
    output = OutputConfig(tensorboard=False, figures=False)
    execute(config, tmp_path / "run", output)
    run = pd.read_csv(tmp_path / "run" / "metrics.csv").sort_values(["seed", "step"])
    table = pd.read_csv(swept / "study.csv.gz")
    own = table[table["replay"] == "uniform"]
    for name in run:
        ours, theirs = (np.asarray(x[name], np.float32) for x in (own, run))
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


def test_incomplete_sweeps_resume_to_the_same_bytes(swept, out):
    whole = (swept / "study.csv.gz").read_bytes()
    cut = store.read(out)
    one = "walk/4 per replay.alpha=0.6 replay.beta=1.0"
    lost = (cut.frame["point"] == one) & (cut.frame["seed"] == 1)
    cut.frame = cut.frame[~lost].reset_index(drop=True)
    cut.write()
    before = len(costs(out))
    assert (out / "study.csv.gz").read_bytes() != whole
    assert sweep.main(["--resume", str(out)]) == 0
    assert [cost["runs"] for cost in costs(out)[before:]] == [{one: [1]}]  # and no other run
    # The program has as many settings and seeds as before, although only one run is missing.
    assert (out / "study.csv.gz").read_bytes() == whole
    assert sweep.main(["--resume", str(out)]) == 0
    assert len(costs(out)) == before + 1
    assert (out / "study.csv.gz").read_bytes() == whole


def test_a_kill_between_the_two_files_loses_nothing(out):
    table = (out / "study.csv.gz").read_bytes()
    cut = store.read(out)
    cut.frame = cut.frame.iloc[:2]
    cut.write()
    (out / "study.csv.gz").write_bytes(table)  # the table at the time of the kill
    assert len(store.read(out).ended()) == 10


def test_sweeps_killed_at_the_start_have_no_finished_runs(out):
    one = store.read(out)
    one.crc32 = None
    one.write()  # as before the first table
    (out / "study.csv.gz").unlink()
    assert store.read(out).ended() == set()
    none = store.read(out)
    none.write()
    assert not (out / "study.csv.gz").exists()
    assert store.read(out).ended() == set()


def test_damaged_files_are_named(out):
    content = bytearray((out / "study.csv.gz").read_bytes())
    content[len(content) // 2] ^= 1
    (out / "study.csv.gz").write_bytes(content)
    with refused(out / "study.csv.gz", error=store.Damaged):
        store.read(out)
    (out / "study.json").write_text("{")
    with refused(out / "study.json", error=store.Damaged):
        store.read(out)


def test_option_files_equal_the_command_line(tmp_path, capsys):
    path = tmp_path / "sweep.toml"
    path.write_text(
        'agent = "dqn"\nreplays = ["uniform", "mine=per"]\nenvs = ["walk/4"]\nseeds = 2\n'
        "steps = 300\nwarmup = 100\nmine.clip = 1.0\n"
        "[grid]\nn_step = 1\nagent.hidden = [[8, 8], [16]]\n"
        'mine.sampling = ["iid", "stratified"]\n'
    )
    words = ["--file", str(path), "--out", str(tmp_path / "x"), "--dry-run"]
    assert sweep.main([*words, "--seeds", "3"]) == 0  # options override the file
    said = capsys.readouterr().err
    (planned,) = (line for line in said.splitlines() if "agent steps" in line)
    assert_names(planned, "18", "6")  # runs and programs: 2 and 4 points, 3 seeds
    assert "walk/4 mine n_step=1 agent.hidden=8 8 mine.sampling" not in said
    assert "walk/4 mine n_step=1 agent.hidden=8 8 replay.sampling=iid" in said
    assert not (tmp_path / "x").exists()
    path.write_text("[grid\n")
    assert_names(refusal(capsys, sweep.main, *words), path)
    for text, name in (
        ('[grid]\nreplay.alpha = [0.1]\n"replay.alpha" = [0.2]\n', "replay.alpha"),
        ("[grid]\nn-step = 1\nn_step = 2\n", "n_step"),
        ("learn-every = 2\nlearn_every = 1\n", "--learn-every"),
    ):
        path.write_text(text)
        assert_names(refusal(capsys, sweep.main, *words), name)


def test_files_and_command_lines_define_the_same_study(tmp_path, monkeypatch):
    asked, path = [], tmp_path / "sweep.toml"
    monkeypatch.setattr(study, "_run", lambda found, *_: asked.append(found))
    path.write_text(
        'env = "walk/4"\nreplays = ["uniform", "mine=per"]\npreset = "per_proportional"\n'
        "steps = 1e6\nwarmup = 10_000\nlearn-every = [1, 4]\nseeds = 3\nuntil_decided = true\n"
        'baseline = "mine"\neval_epsilon = 0\n[agent]\nhidden = [16, 8]\nnetwork = "mlp"\n'
        '[mine]\nclip = "none"\nweigh_actor = false\n[grid]\nreplay.alpha = [0.1, 0.2]\n'
    )
    assert sweep.main(["--file", str(path)]) == 0
    words = (
        "--envs walk/4 --replays uniform mine=per --preset per_proportional --steps 1000000 "
        "--warmup 10000 --learn-every 1 4 --seeds 3 --until-decided true --baseline mine "
        "--eval-epsilon 0 --agent.hidden 16 8 --agent.network mlp --mine.clip none "
        "--mine.weigh-actor false --grid replay.alpha=0.1,0.2"
    )
    assert sweep.main(words.split()) == 0
    assert asked[0].to_json() == asked[1].to_json()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("seeds = [1, 2]", "--seeds"), ("seeds = 2.5", "--seeds"), ("replays = []", "--replays"),
        ("dry_run = 3", "--dry-run"), ('steps = "many"', "--steps"), ("alhpa = 1", "--alhpa"),
        ("agent.hidden = []", "--agent.hidden"),
        ("replays = [{a = 1}]", "a"), ("grid = 3", "grid"), ("grid.n_step = []", "n_step"),
    ],
)  # fmt: skip
def test_values_of_another_type_in_files_are_refused(tmp_path, capsys, text, name):
    path = tmp_path / "sweep.toml"
    path.write_text(f"{text}\n")
    assert_names(refusal(capsys, sweep.main, "--file", path, "--dry-run"), name)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--replays", "per", "lap", "per"], ("per", "other=per")),
        (["--grid", "batch_size=8,400"], ("walk/4 uniform batch_size=400", "100")),
        (["--memory", "1e-6"], ("walk/4 uniform", "1e-06", "--devices")),
        (["--grid", f"replay.alpha={MANY}", f"gamma={MANY}"], ("grid", "81,009,000", "100,000")),
        (["--devices", "two"], ("devices", "two", "256", "auto")),
        (["--primary", "last_3"], ("last_3", "3", "2")),
        (["--file", "/nowhere.toml"], ("/nowhere.toml",)),
        (["--envs", "walk/4", "walk/4"], ("environment", "walk/4")),
        (["--grid", "steps=300", "--steps", "200"], ("--steps 200", "grid", "--defaults true")),
        (["--envs", "gymnasium/CartPole-v1", *SEARCH], ("gymnasium/CartPole-v1", "--grid")),
        (["--trials", "3"], ("--trials", "--search")),
        (["--json"], ("--json", "--list")),
        ([*SEARCH, "--defaults", "true"], ("--defaults",)),
        (["--replays", "=per"], ("--replays", "''")),
    ],
)
def test_invalid_input_is_refused_in_one_line_before_writing(tmp_path, capsys, words, parts):
    out = tmp_path / "x"
    error = refusal(
        capsys, sweep.main, *TINY, "--replays", "uniform", "per", "--out", str(out), *words
    )
    assert_names(error, *parts)
    assert not out.exists()


def test_results_of_other_sweeps_or_code_are_refused(swept, capsys, tmp_path):
    other = refusal(capsys, sweep.main, *TINY, *GRID, "--out", str(swept))
    assert_names(other, "--overwrite", f"--resume {swept}", "--out")
    other = refusal(capsys, sweep.main, "--resume", str(swept), "--grid", "replay.alpha=0.2,0.9")
    assert_names(other, swept, "replay.alpha", "--out")
    other = refusal(capsys, sweep.main, "--resume", str(swept), "--batch-size", "16")
    assert_names(other, swept, "batch_size", "--out")
    assert_names(refusal(capsys, sweep.main, "--resume", str(tmp_path)), tmp_path)
    said = refusal(capsys, study.main, "mine.toml", "--resume", str(swept))
    assert_names(said, "mine.toml", f"experiments.sweep --resume {swept}")
    older = tmp_path / "older"
    shutil.copytree(swept, older)
    text = (older / "study.json").read_text()
    (older / "study.json").write_text(text.replace(store.code_version(), "0123456789ab"))
    assert_names(refusal(capsys, sweep.main, "--resume", str(older)), older, "0123456789ab")
    with jax.threefry_partitionable(False):
        other = refusal(capsys, sweep.main, "--resume", str(swept))
    assert "jax_threefry_partitionable=false" in other


def test_dry_runs_report_an_occupied_folder(swept, capfd):
    before = (swept / "study.json").read_bytes()
    for words, says in (((), True), (("--overwrite",), False)):
        assert sweep.main([*TINY, *GRID, "--out", str(swept), "--dry-run", *words]) == 0
        said = "".join(capfd.readouterr())
        assert (f"--resume {swept}" in said) == ("--overwrite" in said) == says
    assert (swept / "study.json").read_bytes() == before


def command(*words):
    return [sys.executable, "-m", "experiments.sweep", *TINY, *words]


@pytest.mark.slow
def test_results_are_independent_of_the_number_of_devices(tmp_path):
    tables = {}
    for devices in ("1", "2", "8"):
        out = tmp_path / devices
        words = ["--replays", "per", "--grid", "replay.alpha=0.2,0.6", "--seeds", "9"]
        subprocess.run(
            command(*words, "--width", "2", "--devices", devices, "--out", str(out)), check=True
        )
        tables[devices] = (out / "study.csv.gz").read_bytes()
    assert tables["1"] == tables["2"] == tables["8"]
