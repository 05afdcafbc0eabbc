"""Settings of all tests."""

import gc
import os
import signal
from pathlib import Path

import pytest

from tests import xla

# Has to be said before JAX starts; a caller's own flags win.
os.environ.setdefault("XLA_FLAGS", xla.FLAGS)

# Where in the source each operation comes from is written into programs that nobody reads.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

# What an earlier run has compiled is not compiled again (`make clean` forgets it), unless that
# takes no longer than to write it down.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

# Tracing makes millions of short-lived objects; Python's default is to look for cycles at every
# 700th, which took a tenth of the suite's time.
gc.set_threshold(50_000, 20, 20)

# Every compiled program maps memory, of which Linux allows a process 65 530 pieces by default:
# beyond them XLA crashes. A whole suite in one process comes near.
_MANY_MAPS = 40_000


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Forget compiled programs after a module of tests, when there are many."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > _MANY_MAPS:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture
def ctrl_c():
    """Let Ctrl-C reach this process and those it starts, whoever had it ignored.

    Shells ignore it for what they start in the background, as does pytest-xdist for its workers,
    and children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the notebooks: nothing else takes a minute, and one worker would end alone."""
    items.sort(key=lambda item: "test_notebooks" not in item.nodeid)
