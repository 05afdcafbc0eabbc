"""Silencing MuJoCo's notes on old model files."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Drop MuJoCo's notes, which go to stderr and to a file in the working directory."""
    import mujoco  # slow, and not needed by other families

    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)
