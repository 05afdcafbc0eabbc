"""MuJoCo without its notes on old model files."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Let models be read without notes, which go to stderr and into a file where one stands."""
    import mujoco  # slow, and not needed by other families

    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)
