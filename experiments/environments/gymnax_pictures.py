"""Pictures of gymnax's environments.

gymnax's own visualizer needs gymnasium, pygame and a new window for every picture of classic
control; these need none of that.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.environments import gymnax_package, shapes
from experiments.environments.config import EnvironmentConfig
from experiments.environments.shapes import BLACK, BLUE, GREEN, GREY, RED, SAND, Canvas, beyond

Array = np.ndarray


def renderer(name: str, config: EnvironmentConfig = EnvironmentConfig()) -> Callable[[Any], Array]:
    """Return `render(state) -> [H, W, 3] uint8` of gymnax's own state.

    Args:
      name: any that `experiments.environments.gymnax.make` takes.
      config: not used, as no picture depends on it.
    """
    del config
    if name.startswith("DeepSea"):
        return _deep_sea
    gymnax = gymnax_package.load()  # slow, and not needed by runs of other families
    env, params = gymnax.make(name)
    if name.endswith("MinAtar"):
        see = jax.jit(lambda state: env.get_obs(state, params))
        return lambda state: shapes.cells(see(state))
    if name.startswith("MountainCar"):
        return lambda state: _mountain_car(state, float(params.goal_position))
    if name.startswith("Catch"):
        return lambda state: _catch(state, (env.rows, env.columns))
    if name.startswith("FourRooms"):
        walls = np.asarray(env.occupied_map)
        return lambda state: _grid(state.pos, state.goal, walls)
    if name.startswith("UmbrellaChain"):
        return lambda state: _umbrella_chain(state, int(params.chain_length))
    return _RENDERERS[name]


def _cart_pole(state: Any) -> Array:
    canvas, x = Canvas(-3.0, 3.0, -0.6, 1.6), float(state.x)
    canvas.line([(-3.0, 0.0), (3.0, 0.0)], GREY, 0.02)
    for limit in (-2.4, 2.4):  # beyond which the episode ends
        canvas.line([(limit, -0.15), (limit, 0.15)], GREY, 0.02)
    cart = ((-0.3, -0.15), (0.3, -0.15), (0.3, 0.15), (-0.3, 0.15))
    canvas.polygon([(x + dx, dy) for dx, dy in cart], BLACK)
    hinge = (x, 0.1)
    canvas.line([hinge, beyond(hinge, math.pi / 2 - float(state.theta), 1.0)], SAND, 0.1)
    canvas.disc(hinge, 0.05, BLUE)
    return canvas.picture()


def _pendulum(state: Any) -> Array:
    return shapes.pendulum(float(state.theta))


def _acrobot(state: Any) -> Array:
    canvas = Canvas(-2.3, 2.3, -2.3, 2.3, width=240)
    canvas.line([(-2.3, 1.0), (2.3, 1.0)], GREY, 0.02)  # the height to reach
    down = -math.pi / 2
    first, second = float(state.joint_angle1), float(state.joint_angle2)
    elbow = beyond((0.0, 0.0), down + first, 1.0)
    canvas.line([(0.0, 0.0), elbow], BLUE, 0.2)
    canvas.line([elbow, beyond(elbow, down + first + second, 1.0)], GREEN, 0.2)
    for joint in ((0.0, 0.0), elbow):
        canvas.disc(joint, 0.07, BLACK)
    return canvas.picture()


def _mountain_car(state: Any, goal: float) -> Array:
    def height(x: float) -> float:
        return 0.45 * math.sin(3 * x) + 0.55

    canvas, x = Canvas(-1.25, 0.65, -0.05, 1.25), float(state.position)
    hill = [(at, height(at)) for at in np.linspace(-1.25, 0.65, 80)]
    canvas.polygon([*hill, (0.65, -0.05), (-1.25, -0.05)], SAND)
    canvas.line([(goal, height(goal)), (goal, height(goal) + 0.2)], BLACK, 0.01)
    tip = height(goal) + 0.2
    canvas.polygon([(goal, tip), (goal, tip - 0.08), (goal + 0.09, tip - 0.04)], RED)
    slope = math.atan(1.35 * math.cos(3 * x))
    centre = beyond((x, height(x)), slope + math.pi / 2, 0.055)
    canvas.line([beyond(centre, slope, -0.05), beyond(centre, slope, 0.05)], BLUE, 0.05)
    for side in (-0.05, 0.05):
        canvas.disc(
            beyond(beyond((x, height(x)), slope, side), slope + math.pi / 2, 0.02), 0.02, BLACK
        )
    return canvas.picture()


def _reacher(state: Any) -> Array:
    canvas, points = Canvas(-2.3, 2.3, -2.3, 2.3, width=240), [(0.0, 0.0)]
    for angle in np.asarray(state.angles):  # each from the horizontal, not from the link before
        points.append(beyond(points[-1], float(angle), 1.0))
    canvas.disc(_point(state.goal_xy), 0.15, GREEN)
    canvas.line(points, BLUE, 0.15)
    canvas.disc(points[-1], 0.1, RED)
    return canvas.picture()


def _swimmer(state: Any) -> Array:
    canvas = Canvas(-2.0, 2.0, -2.0, 2.0, width=240)
    for urchin in np.asarray(state.urchin_xys):
        canvas.disc(_point(urchin), 0.15, BLACK)
    canvas.disc(_point(state.goal_xy), 0.12, GREEN)
    canvas.disc(_point(state.xy), 0.08, BLUE)
    return canvas.picture()


def _point_robot(state: Any) -> Array:
    canvas = Canvas(-1.5, 1.5, -0.5, 1.5, width=300)
    canvas.line([beyond((0.0, 0.0), at, 1.0) for at in np.linspace(0, math.pi, 60)], GREY, 0.02)
    canvas.disc(_point(state.goal), 0.2, GREEN)
    canvas.disc(_point(state.pos), 0.05, BLUE)
    return canvas.picture()


def _deep_sea(state: Any) -> Array:
    size = len(state.action_mapping)
    within_reach = np.tri(size)
    return _grid((state.row, state.column), (size - 1, size - 1), within_reach)


def _catch(state: Any, shape: tuple[int, int]) -> Array:
    paddle, ball = (state.paddle_y, state.paddle_x), (state.ball_y, state.ball_x)
    return _grid(paddle, ball, np.zeros(shape))


def _grid(player: Any, goal: Any, grey: Array) -> Array:
    """Render cells, of which `grey` `[H, W]` are: the player's white, the goal's amber.

    Where they meet, the player hides the goal, and the goal what is grey.
    """
    white, red, amber = (np.zeros(grey.shape) for _ in range(3))  # nothing is red
    white[tuple(map(int, player))] = amber[tuple(map(int, goal))] = 1
    return shapes.cells(np.stack([white, red, grey - amber, amber], axis=-1))


def _umbrella_chain(state: Any, length: int) -> Array:
    """Render how far it is; a raincloud where an umbrella is needed, and the umbrella if any."""
    canvas, at = Canvas(-0.5, length + 0.5, 0.0, 3.0), float(state.time)
    canvas.line([(0.0, 0.2), (length, 0.2)], GREY, 0.1)
    for step in range(length + 1):
        canvas.disc((step, 0.2), 0.12, GREY)
    sky = BLUE if state.need_umbrella else SAND
    for side in (-0.35, 0.0, 0.35):
        canvas.disc((length - 0.3 + side, 2.5), 0.3, sky)
    canvas.line([(at, 0.4), (at, 1.2)], BLACK, 0.25)
    if state.has_umbrella:
        canvas.polygon([(at - 0.7, 1.3), (at + 0.7, 1.3), (at, 1.9)], RED)
    return canvas.picture()


def _point(xy: Any) -> tuple[float, float]:
    return float(xy[0]), float(xy[1])


_RENDERERS: dict[str, Callable[[Any], Array]] = {
    "CartPole-v1": _cart_pole,
    "Pendulum-v1": _pendulum,
    "Acrobot-v1": _acrobot,
    "Reacher-misc": _reacher,
    "Swimmer-misc": _swimmer,
    "PointRobot-misc": _point_robot,
}
