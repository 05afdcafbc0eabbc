"""MuJoCo's own renderer, which also works without a screen, and suppression of its messages."""

import atexit
import contextlib
import ctypes.util
import io
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from experiments.environments.host import describe_error

_HEIGHT, _WIDTH = 240, 320  # pixels


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, printed notes on optional packages, and MuJoCo's notes on old models.

    MuJoCo writes its notes to stderr and to a file in the working directory.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        import mujoco  # slow, and not needed by other families

        mujoco.set_mju_user_warning(lambda message: None)
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(None)


def without_screen() -> None:
    """Select an OpenGL library for MuJoCo on Linux without a screen, unless MUJOCO_GL is set.

    MuJoCo reads MUJOCO_GL when it is imported, so call this function before the import. If no
    library is found, MUJOCO_GL remains unset, since importing MuJoCo might otherwise fail.
    """
    if sys.platform != "linux" or os.environ.get("DISPLAY") or "MUJOCO_GL" in os.environ:
        return
    for library, choice in (("EGL", "egl"), ("OSMesa", "osmesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = choice
            return


def renderer(
    name: str, model: Any, place: Callable[[Any, Any], None]
) -> Callable[[Any], np.ndarray]:
    """Return `render(state) -> [240, 320, 3] uint8`; it keeps an OpenGL context.

    Args:
      name: name of the environment, for messages.
      model: MuJoCo's MjModel.
      place: `place(MjData, state)` copies the state into MuJoCo's data.

    Raises:
      ValueError: OpenGL is missing.
    """
    import mujoco

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scene = mujoco.Renderer(model, _HEIGHT, _WIDTH)
    except Exception as error:  # the type depends on the driver
        raise ValueError(
            f"{name} cannot be rendered: MuJoCo {describe_error(error)} (without a screen it needs "
            "libEGL and MUJOCO_GL=egl, or libOSMesa and MUJOCO_GL=osmesa)"
        ) from error
    reference = weakref.ref(scene)
    atexit.register(lambda: (left := reference()) and left.close())  # before OpenGL is unloaded
    data = mujoco.MjData(model)
    camera = 0 if model.ncam else -1  # the first camera of the model, or else a free one

    def render(state: Any) -> np.ndarray:
        place(data, state)
        mujoco.mj_forward(model, data)
        scene.update_scene(data, camera=camera)
        return scene.render()

    return render
