"""Pictures by MuJoCo's own renderer, on a machine without a screen too."""

import atexit
import ctypes.util
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.environments.host import raised

_HEIGHT, _WIDTH = 240, 320  # pixels


def without_screen() -> None:
    """Tell MuJoCo, which looks for a screen, to do without one if there is none.

    It listens only when it is imported, so this must come first. A choice that the user has made
    (MUJOCO_GL) stands. On a machine without a library to do it with nothing is set, for then the
    import itself might fail.
    """
    if sys.platform != "linux" or os.environ.get("DISPLAY") or "MUJOCO_GL" in os.environ:
        return
    for library, choice in (("EGL", "egl"), ("OSMesa", "osmesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = choice
            return


def renderer(
    name: str, model: Any, place: Callable[[Any, Any], None], camera: int | None = None
) -> Callable[[Any], np.ndarray]:
    """Return `render(state) -> [240, 320, 3] uint8`; it keeps an OpenGL context.

    Args:
      name: of the environment, for the message.
      model: MuJoCo's MjModel.
      place: `place(MjData, state)` puts the state into MuJoCo's own.
      camera: which of the model's; None: one that follows the body, if the model has a camera for
        that, else one that stands still.

    Raises:
      ValueError: one line: there is no OpenGL to draw with.
    """
    import mujoco  # slow, and not needed by pictures of other families

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn = mujoco.Renderer(model, _HEIGHT, _WIDTH)
    except Exception as error:  # of every kind, as drivers and libraries differ
        raise ValueError(
            f"{name} cannot be drawn: MuJoCo's renderer {raised(error)} (without a screen it needs "
            "libEGL and MUJOCO_GL=egl, or libOSMesa and MUJOCO_GL=osmesa)"
        ) from error
    last = weakref.ref(drawn)
    atexit.register(lambda: (still := last()) and still.close())  # later it could not be freed
    data = mujoco.MjData(model)
    seen_from = _camera(mujoco, model, data) if camera is None else camera

    def render(state: Any) -> np.ndarray:
        place(data, state)
        mujoco.mj_forward(model, data)
        drawn.update_scene(data, camera=seen_from)
        return drawn.render()

    return render


def _camera(mujoco: Any, model: Any, data: Any) -> Any:
    """Make a camera that follows the first body, if the model has one for that, or stands still.

    The models' own stand so far away, or so near, that less is seen.
    """
    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    follow = (mujoco.mjtCamLight.mjCAMLIGHT_TRACK, mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM)
    if not any(mode == int(kind) for mode in model.cam_mode for kind in follow):
        return camera
    mujoco.mj_forward(model, data)
    bodies = model.geom_bodyid > 0  # not the floor
    from_centre = np.linalg.norm(data.geom_xpos[bodies] - data.subtree_com[1], axis=1)
    camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, 1
    camera.distance = 3.2 * (from_centre + model.geom_rbound[bodies]).max()
    camera.azimuth, camera.elevation = 90.0, -20.0  # degrees
    return camera
