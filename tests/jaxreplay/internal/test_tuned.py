"""Operations tuned for XLA on CPU change only speed, and can be switched off or deleted."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxreplay
from jaxreplay import buffer, testing
from jaxreplay._internal import tuned
from jaxreplay.methods import METHODS
from tests.methods import quick, short

STEPS = 6
LOOP = f"""
import jax
import numpy as np
from jaxreplay import testing
from jaxreplay.methods import METHODS

case = testing.Case(METHODS["per"].method(METHODS["per"].config().for_run(100)))
state, draws = case.fill(), []
for time in range({STEPS}):
    state, batch = case.step(state, time)
    draws.append(np.asarray(batch.indices).tolist())
print(draws)
"""


def run(name):
    case = testing.Case(short(name, 100))
    state, draws = case.fill(), []
    for time in range(STEPS):
        state, batch = case.step(state, time)
        draws.append(np.asarray(batch.indices).tolist())
    return draws, jax.tree.leaves(state)


tuned_run = functools.cache(run)


@pytest.mark.parametrize("name", quick(METHODS, of=("per",)))
def test_plain_operations_give_the_same_draws(name, monkeypatch):
    draws, state = tuned_run(name)
    monkeypatch.setattr(buffer, "_tuned", lambda: None)
    plain_draws, plain_state = run(name)
    assert plain_draws == draws
    testing.same(plain_state, state, rtol=1e-6)  # fusion changes rounding


def test_replays_work_without_the_folder(tmp_path):
    source = Path(jaxreplay.__file__).parent
    shutil.copytree(source, tmp_path / "jaxreplay", ignore=shutil.ignore_patterns("tuned"))
    found = subprocess.run(
        [sys.executable, "-c", LOOP],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not (tmp_path / "jaxreplay" / "_internal" / "tuned").exists()
    assert found.strip() == str(tuned_run("per")[0])


@pytest.fixture
def asked_again():
    tuned.load.cache_clear()
    yield
    tuned.load.cache_clear()


def test_other_versions_of_jax_warn_once_and_use_plain_operations(asked_again, monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (9, 9, 9))
    with pytest.warns(RuntimeWarning, match=jax.__version__) as warned:
        assert tuned.load() is None and tuned.load() is None
    assert len(warned) == 1


def test_the_environment_variable_switches_off_without_a_warning(asked_again, monkeypatch, recwarn):
    monkeypatch.setenv("JAXREPLAY_TUNED", "off")
    assert tuned.load() is None and not recwarn.list
