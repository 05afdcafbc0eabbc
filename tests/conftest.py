"""Settings of all tests."""

import gc
import os
import signal
from pathlib import Path

import pytest

from tests import xla

# Set before JAX starts; flags of the caller take precedence.
os.environ.setdefault("XLA_FLAGS", xla.FLAGS)

# Omit source locations, which nobody reads, from compiled programs.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

# Cache compiled programs between runs (`make clean` deletes them), except for those that compile
# as quickly as they load.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

# Tracing allocates millions of short-lived objects. With Python's default threshold of 700 objects,
# garbage collection took a tenth of the suite's time.
gc.set_threshold(50_000, 20, 20)

# Every compiled program maps memory, and XLA crashes beyond Linux's default limit of 65 530
# mappings per process, which the whole suite in one process almost reaches.
_MANY_MAPS = 40_000


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Clear JAX's caches after a test module if there are many compiled programs."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > _MANY_MAPS:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture
def ctrl_c():
    """Let this process and its children receive Ctrl-C.

    Shells ignore SIGINT in background jobs, as does pytest-xdist in its workers, and children
    inherit this.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
