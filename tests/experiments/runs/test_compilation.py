"""The cache of compiled programs."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import monitoring

from experiments.runs import compilation
from tests.refusals import assert_names, refused


@pytest.fixture(autouse=True)
def keeps_everything(monkeypatch):
    """Cache programs of any compile time; restore JAX's settings afterwards."""
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    wanted = {
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_enable_compilation_cache": True,  # commands that time compilation turn it off
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def run() -> tuple[float, int]:
    """Compile and run a program; return its result and the number of cache hits."""
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
    return sorted(root.glob("*/jit_triple-*-cache"))


def test_programs_are_compiled_once_unless_the_cache_is_off(tmp_path):
    own = jax.config.jax_compilation_cache_dir
    found = []
    for _ in range(2):
        with compilation.cache_programs(tmp_path / "a" / "b"):
            assert jax.config.jax_compilation_cache_dir.startswith(str(tmp_path))
            found.append(run())
    assert found == [(21, 0), (21, 1)]
    (kept,) = programs(tmp_path / "a" / "b")
    assert re.fullmatch("[0-9a-f]{8}", kept.parent.name)  # hash of the processor of this machine
    with compilation.cache_programs(compilation.OFF):
        assert jax.config.jax_compilation_cache_dir is None
        assert run() == (21, 0)
    assert own  # set in conftest.py
    with compilation.cache_programs(None):  # the setting of JAX overrides the default
        assert jax.config.jax_compilation_cache_dir == own


@pytest.fixture
def default_folder(tmp_path, monkeypatch):
    """Return the default cache folder of the user, without a setting of JAX."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(
        compilation.platformdirs, "user_cache_path", lambda name, appauthor: tmp_path / name
    )
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "jaxreplay"
    jax.config.update("jax_compilation_cache_dir", before)


def test_default_cache_is_in_the_cache_folder_of_the_user(default_folder):
    with compilation.cache_programs(None):
        run()
    assert len(programs(default_folder / "compilation")) == 1


def test_unusable_default_folders_are_reported_in_one_line(default_folder, capsys):
    default_folder.write_text("a file")
    with compilation.cache_programs(None):
        assert run() == (21, 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert_names(line, default_folder, "--compilation-cache", "off")
    assert default_folder.read_text() == "a file"
    with refused("--compilation-cache", default_folder, "off"):  # explicitly requested folder
        compilation.cache_programs(default_folder).__enter__()


def test_programs_without_time_of_use_do_not_block_the_cache(tmp_path):
    """Killed processes and caches without a size limit leave such programs."""
    with compilation.cache_programs(tmp_path):
        run()
    (kept,) = programs(tmp_path)
    kept.rename(kept.with_name("jit_other-0-cache"))
    for path in kept.parent.glob("*-atime"):
        path.unlink()
    with compilation.cache_programs(tmp_path):
        assert run() == (21, 0)
    assert programs(tmp_path) == [kept]
