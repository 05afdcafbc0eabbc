"""Folders of results that several files of tests read, edit and damage."""

import shutil

import pytest

from tests.experiments.tiny import TINY


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return folders of a run, a comparison and a grid."""
    from experiments import compare, sweep, train

    here, plain = tmp_path_factory.mktemp("made"), [*TINY, "--figures", "false"]
    words = ["--env", "walk/4", "--tensorboard", "false", "--checkpoint-every", "1"]
    assert train.main([*plain, *words, "--out", str(here / "run")]) == 0
    arms = ["--replays", "uniform", "per"]
    words = [*arms, "--env", "walk/4", "--control", "false", "--report", "false"]
    assert compare.main([*plain, *words, "--out", str(here / "comparison")]) == 0
    plain += [*arms, "--envs", "walk/4"]
    words = ["--grid", "replay.alpha=0.2,0.6", "--primary", "final"]
    assert sweep.main([*plain, *words, "--out", str(here / "grid")]) == 0
    return here


@pytest.fixture
def folders(made, tmp_path):
    """Return copies of these folders."""
    shutil.copytree(made, tmp_path / "all")
    return tmp_path / "all"
