"""Compiled programs kept between runs: found again, replaced where damaged, never fatal."""

import os
import re
import shutil
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import monitoring

from experiments.runs import compilation
from tests.refusals import assert_names, refused


@pytest.fixture(autouse=True)
def keeps_everything(monkeypatch):
    """Keep programs that compile in no time, too; JAX's settings come back afterwards."""
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    wanted = {
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_enable_compilation_cache": True,  # commands that time compiling turn it off
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def run() -> tuple[float, int]:
    """Compile a program and run it; return its result, and how many were found among the kept."""
    hits = []

    def told(event: str, **about: object) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            hits.append(event)

    def triple(x):
        return 3 * x

    value = jnp.float32(7)
    monitoring.register_event_listener(told)
    try:
        return float(jax.jit(triple)(value)), len(hits)
    finally:
        monitoring.unregister_event_listener(told)


def programs(root: Path) -> list[Path]:
    return sorted(root.glob("*/jit_triple-*"))


def test_a_program_is_compiled_once(tmp_path):
    found = []
    for _ in range(2):
        with compilation.kept(tmp_path / "a" / "b"):
            found.append(run())
    assert found == [(21, 0), (21, 1)]
    (kept,) = programs(tmp_path / "a" / "b")
    assert re.fullmatch("[0-9a-f]{8}", kept.parent.name)  # of this machine's processor


def test_off_keeps_and_finds_nothing(tmp_path):
    with compilation.kept(tmp_path):
        run()
    with compilation.kept(compilation.OFF):
        assert jax.config.jax_compilation_cache_dir is None
        assert run() == (21, 0)


def test_jax_s_own_setting_wins_over_the_default_and_comes_back(tmp_path):
    own = jax.config.jax_compilation_cache_dir
    assert own  # conftest's
    with compilation.kept(None):
        assert jax.config.jax_compilation_cache_dir == own
    with compilation.kept(tmp_path):
        assert jax.config.jax_compilation_cache_dir.startswith(str(tmp_path))
    assert jax.config.jax_compilation_cache_dir == own


def test_the_default_is_the_user_s_cache_folder(tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        compilation.platformdirs, "user_cache_path", lambda name, appauthor: tmp_path / name
    )  # where this system has it, as for XDG_CACHE_HOME
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        with compilation.kept(None):
            run()
        assert len(programs(tmp_path / "jaxreplay" / "compilation")) == 1
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_damaged_program_is_said_in_one_line_and_replaced(tmp_path, capsys):
    with compilation.kept(tmp_path):
        run()
    (kept,) = programs(tmp_path)
    whole = kept.read_bytes()
    kept.write_bytes(whole[:100])
    old = time.time() - 3600
    os.utime(kept, (old, old))
    with compilation.kept(tmp_path):
        assert run() == (21, 0)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(kept.parent) in said
    assert len(kept.read_bytes()) > 100
    with compilation.kept(tmp_path):
        assert run() == (21, 1)
    assert capsys.readouterr().err == ""


def test_a_program_that_another_process_is_writing_is_left_alone(tmp_path, capsys):
    with compilation.kept(tmp_path):
        run()
    (kept,) = programs(tmp_path)
    kept.write_bytes(kept.read_bytes()[:100])
    with compilation.kept(tmp_path):
        assert run() == (21, 0)
    assert len(kept.read_bytes()) == 100 and str(kept.parent) in capsys.readouterr().err


def test_whole_programs_of_the_same_name_stay(tmp_path):
    with compilation.kept(tmp_path):
        run()
    (kept,) = programs(tmp_path)
    other = kept.with_name(f"jit_triple-{'0' * 64}-cache")
    other.write_bytes(kept.read_bytes())
    kept.write_bytes(b"x")
    for path in (kept, other):
        os.utime(path, (0, 0))
    with compilation.kept(tmp_path):
        run()
    assert other.exists() and len(kept.read_bytes()) > 1


def test_a_default_folder_that_cannot_be_made_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    monkeypatch.setattr(compilation.platformdirs, "user_cache_path", lambda *_, **__: taken)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        with compilation.kept(None):
            assert run() == (21, 0)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    (line,) = capsys.readouterr().err.splitlines()
    assert_names(line, taken, "--compilation-cache", "off")
    assert taken.read_text() == "a file"


def test_a_folder_that_was_asked_for_has_to_be_usable(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    with refused("--compilation-cache", taken, "off"):
        compilation.kept(taken).__enter__()


@pytest.mark.parametrize("later", [True, False])
def test_a_folder_that_breaks_is_said_once_and_the_run_goes_on(later, tmp_path, capsys):
    with compilation.kept(tmp_path):
        if later:  # reading goes well then, as there is nothing, and writing fails
            run()
        (folder,) = tmp_path.iterdir()
        shutil.rmtree(folder)
        if not later:
            folder.write_text("nothing can be written here any more")
        assert [run() for _ in range(3)] == [(21, 0)] * 3
    (line,) = capsys.readouterr().err.splitlines()
    assert str(folder) in line


def test_other_warnings_are_shown_as_ever(tmp_path):
    with pytest.warns(UserWarning, match="something else"), compilation.kept(tmp_path):
        warnings.warn("something else", stacklevel=1)


def test_the_least_used_programs_are_forgotten_and_nothing_else(tmp_path):
    for number in range(4):
        path = tmp_path / f"jit_f-{number:064x}-cache"
        path.write_bytes(bytes(10))
        os.utime(path, (number, number))
    (tmp_path / "notes.txt").write_bytes(bytes(100))
    compilation.trim(tmp_path, most=40, left=20)
    assert len(list(tmp_path.iterdir())) == 5
    compilation.trim(tmp_path, most=39, left=20)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"notes.txt", *(f"jit_f-{number:064x}-cache" for number in (2, 3))}
