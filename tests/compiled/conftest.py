"""Programs for a GPU and a TPU; `make test-compiled` installs the compilers that they need."""

import importlib.util

if not (importlib.util.find_spec("libtpu") and importlib.util.find_spec("jax_plugins")):
    collect_ignore_glob = ["test_*.py"]
