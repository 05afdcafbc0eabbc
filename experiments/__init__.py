"""Experiments with the library: commands, and one subpackage per topic."""

import importlib.util
import sys

if sys.version_info < (3, 11) or importlib.util.find_spec("safetensors") is None:
    why = "experiments needs packages: run `make setup`, and use .venv/bin/python"
    raise ImportError(why, name=__name__)  # with the name, a command prints it in one line
