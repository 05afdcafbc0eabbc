"""The sweep command: its table, resuming, and refusal of invalid input without side effects."""

import json
import shutil
from pathlib import Path

import jax
import pandas as pd
import pytest

from experiments import study, sweep
from experiments.runs.run_config import RunConfig
from experiments.studies import batch, store
from tests.experiments import tiny
from tests.refusals import assert_names, refusal

TINY = [*tiny.TINY, "--envs", "walk/4"]
PLAIN = ["--figures", "false", "--report", "false"]
MANY = ",".join(f"0.{number:04}" for number in range(1, 9_001))
GRID = ["--replays", "uniform", "per", "--grid", "replay.alpha=0.2,0.6"]


@pytest.fixture(scope="module")
def swept(made):
    """Return the folder of a sweep of `GRID`."""
    return made / "grid"


@pytest.fixture
def out(swept, tmp_path):
    """Return a copy of the sweep."""
    return Path(shutil.copytree(swept, tmp_path / "copy"))


def costs(out):
    return json.loads((out / "study.json").read_text())["costs"]


def test_one_table_contains_every_run_and_log_point(swept):
    table = pd.read_csv(swept / "study.csv.gz")
    assert len(table) == (1 + 2) * 2 * 2  # points, seeds, log points
    per = table[table["replay"] == "per"]
    assert set(per["replay.alpha"]) == {0.2, 0.6}
    assert table[table["replay"] == "uniform"]["replay.alpha"].isna().all()
    assert set(table["step"]) == {150, 200} and table["eval_return"].notna().all()
    sums = per[per["step"] == 200].groupby("point")["replay/mean_priority"].sum()
    assert sums.nunique() == 2  # the points have different results


def test_settings_and_versions_are_saved_with_the_table(swept):
    facts = json.loads((swept / "study.json").read_text())
    assert len(facts["points"]) == 3 and facts["failed"] == {}
    point = facts["points"]["walk/4 per replay.alpha=0.2"]
    assert RunConfig.from_json(point["config"]).replay_options.alpha == 0.2
    assert point["code"] == [store.code_version()] and facts["versions"]["jax"]
    assert {tuple(cost["inputs"]) for cost in facts["costs"]} == {(), ("replay.alpha",)}
    assert sum(len(seeds) for c in facts["costs"] for seeds in c["runs"].values()) == 6


def test_resuming_a_finished_sweep_only_writes_its_figures_and_tables(out):
    table, before = (out / "study.csv.gz").read_bytes(), costs(out)
    assert sweep.main(["--resume", str(out), "--figures", "true", "--report", "false"]) == 0
    assert (out / "study.csv.gz").read_bytes() == table and costs(out) == before
    for name in ("sensitivity", "best"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "| walk/4 uniform" in (out / "study.md").read_text()


def test_sweeps_equal_single_runs_bit_for_bit(made):
    grid, run = (store.read(made / name).table for name in ("grid", "run"))
    names = run.columns
    theirs = grid.loc[grid["replay"] == "uniform", names].reset_index(drop=True)
    pd.testing.assert_frame_equal(theirs, run, check_exact=True, check_dtype=False)


def test_lost_and_failed_runs_are_repeated_and_resume_to_the_same_bytes(
    swept, out, capsys, monkeypatch
):
    whole, facts = ((swept / name).read_bytes() for name in ("study.csv.gz", "study.json"))
    cut, missing = store.read(out), "walk/4 per replay.alpha=0.6"
    lost = (cut.frame["point"] == missing) & (cut.frame["seed"] == 1)
    cut.frame = cut.frame[~lost].reset_index(drop=True)
    cut.write()
    (out / "study.json").write_bytes(facts)  # as if killed before the table was written
    killed = store.read(out)
    assert len(killed.ended()) == 5 and len(killed.facts["costs"]) == 2
    with monkeypatch.context() as patch:
        fail = lambda runs, *_: ([], [(run, "agent step 7: broken") for run in runs])
        patch.setattr(batch, "split", fail)
        assert sweep.main(["--resume", str(out), *PLAIN]) == 1
    assert_names(capsys.readouterr().err, f"{missing} seed 1", "agent step 7", f"--resume {out}")
    assert sweep.main(["--resume", str(out), *PLAIN]) == 0
    assert [cost["runs"] for cost in costs(out)[2:]] == [{missing: [1]}]  # and no other run
    # The program has as many settings and seeds as before, although only one run is missing.
    assert (out / "study.csv.gz").read_bytes() == whole


def test_sweeps_killed_before_the_first_table_have_no_finished_runs(out):
    (out / "study.csv.gz").unlink()
    killed = store.read(out)
    assert killed.ended() == set() and killed.facts["costs"] == []
    killed.write()
    assert not (out / "study.csv.gz").exists()


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
    together = ["--grid", "n_step=1,2", "batch_size=8,16", "--together", "true"]
    assert sweep.main([*words, *together]) == 0  # another grid than that of the file
    said = capsys.readouterr().err
    assert "n_step=2 batch_size=16" in said and "n_step=1 batch_size=16" not in said
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
        (["--memory", "1e-6", "--devices", "2"], ("walk/4 uniform", "1e-06", "--devices")),
        (["--grid", f"replay.alpha={MANY}", f"gamma={MANY}"], ("grid", "81,009,000", "100,000")),
        (["--devices", "two"], ("devices", "two", "256", "auto")),
        (["--primary", "last_3"], ("last_3", "3", "2")),
        (["--file", "/nowhere.toml"], ("/nowhere.toml",)),
        (["--envs", "walk/4", "walk/4"], ("environment", "walk/4")),
        (["--grid", "steps=300", "--steps", "200"], ("--steps 200", "grid", "--defaults true")),
        (["--grid", "n_step=1,2", "batch_size=8", "--together", "true"], ("n_step", "batch_size")),
        (
            ["--grid", "n_step=1", "--keep", "replay/betta"],
            ("--keep", "replay/betta", "replay/beta"),
        ),
        (["--tensorboard", "false"], ("--tensorboard", "experiments.train")),
        (["--metric", "final_iqm"], ("--metric", "--primary final")),
        (["--json"], ("--json", "--list")),
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
    assert sweep.main(["--resume", str(older), "--other-code", "true", *PLAIN]) == 0
    assert set(store.read(older).facts["code"]) == {"0123456789ab", store.code_version()}
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


def test_results_are_independent_of_the_number_of_devices(tmp_path):
    tables = {}
    for devices in ("1", "3"):
        out = tmp_path / devices
        words = ["--replays", "per", "--grid", "replay.alpha=0.2,0.6", "--width", "1"]
        words += ["--devices", devices, "--out", str(out)]
        assert sweep.main([*TINY, *words, *PLAIN]) == 0
        assert len(costs(out)) == 4  # batches
        tables[devices] = (out / "study.csv.gz").read_bytes()
    assert tables["1"] == tables["3"]
