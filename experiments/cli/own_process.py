"""What commands of this project do with their process, and no program that imports it wants."""

import atexit
import gc
import itertools
import os
import sys

from experiments.cli import endings


def set_up() -> None:
    """Set up this process, if it was started as a command: `python -m experiments.NAME`.

    Called while the package is imported. Programs of others, modules of theirs that are started in
    the same way included, keep their endings and their garbage collection.
    """
    if is_command():
        endings.install()
        seldom_collect()
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed from the start
            if stream.errors == "strict":  # else a name that it can't encode ends a whole run
                stream.reconfigure(errors="backslashreplace")
        # Figures are only ever written to files: a name of a window's toolkit may be one that this
        # machine lacks.
        os.environ["MPLBACKEND"] = "agg"


def is_command() -> bool:
    """Tell whether this process was started as a command and is still importing it."""
    if sys.argv[:1] != ["-m"]:  # as Python has it until it has found the module
        return False
    words = itertools.pairwise(sys.orig_argv)
    module = next((following for word, following in words if word == "-m"), "")
    return module.partition(".")[0] == "experiments"


def seldom_collect() -> None:
    """Look for garbage seldom, and not at the end.

    Imports and tracing make millions of objects that stay; Python looks through them again and
    again, and twice as it ends: a second of the six that a short run takes.
    """
    gc.set_threshold(50_000, 20, 20)
    atexit.register(gc.freeze)
