"""Pictures by MuJoCo's own renderer, also on machines without a screen."""

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
    """Make MuJoCo, which expects a screen, render without one if there is none.

    It reads the setting when it is imported, so this must come first. The user's own choice
    (MUJOCO_GL) stands. Without a library to render with, nothing is set, since the import itself
    might then fail.
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
      name: the environment's name, for messages.
      model: MuJoCo's MjModel.
      place: `place(MjData, state)` copies the state into MuJoCo's own data.
      camera: index of a camera of the model; None: one that follows the body, if the model has a
        camera for that, else a fixed one.

    Raises:
      ValueError: in one line: there is no OpenGL to render with.
    """
    import mujoco  # slow, and not needed by pictures of other families

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scene = mujoco.Renderer(model, _HEIGHT, _WIDTH)
    except Exception as error:  # of every kind, as drivers and libraries differ
        raise ValueError(
            f"{name} cannot be rendered: MuJoCo {raised(error)} (without a screen it needs "
            "libEGL and MUJOCO_GL=egl, or libOSMesa and MUJOCO_GL=osmesa)"
        ) from error
    last = weakref.ref(scene)
    atexit.register(lambda: (still := last()) and still.close())  # later it could not be freed
    data = mujoco.MjData(model)
    view = _camera(mujoco, model, data) if camera is None else camera

    def render(state: Any) -> np.ndarray:
        place(data, state)
        mujoco.mj_forward(model, data)
        scene.update_scene(data, camera=view)
        return scene.render()

    return render


def _camera(mujoco: Any, model: Any, data: Any) -> Any:
    """Make a camera: one that follows the first body if the model has such a camera, else fixed.

    The models' own cameras are so far away, or so close, that they show less.
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
