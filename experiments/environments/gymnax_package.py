"""The package gymnax, imported without what it needs for its own pictures alone."""

import importlib
import sys
from types import ModuleType


def load() -> ModuleType:
    """Import gymnax; seaborn, with which its Pong draws, is imported when something is drawn.

    It brings half of scipy, and takes five times as long to import as all the rest.
    """
    if "gymnax" not in sys.modules and "seaborn" not in sys.modules:
        later = ModuleType("seaborn")
        later.__getattr__ = lambda name: getattr(importlib.import_module("seaborn"), name)
        sys.modules["seaborn"] = later
        try:
            import gymnax
        finally:
            del sys.modules["seaborn"]
    import gymnax

    return gymnax
