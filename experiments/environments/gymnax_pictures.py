"""Pictures of gymnax's environments, by gymnax's visualizer where it supports them."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.environments import gymnax, shapes
from experiments.environments.shapes import BLACK, BLUE, GREEN, GREY, RED, SAND
from experiments.environments.types import EnvironmentConfig
from experiments.installation import commands

Array = np.ndarray


def renderer(name: str, config: EnvironmentConfig = EnvironmentConfig()) -> Callable[[Any], Array]:
    """Return `render(state) -> [H, W, 3] uint8` for gymnax's own state.

    Raises:
      ValueError: a package of gymnax's visualizer is missing.
    """
    del config
    env, params = gymnax.load(name)
    if drawn := _DRAWN.get(name.partition("-")[0]):
        return lambda state: drawn(state, params)
    if reason := commands.missing(f"a picture of gymnax/{name}", {"pygame": "gymnax"}):
        raise ValueError(reason)
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # or pygame complains without a sound card
    from gymnax.visualize import vis_gym

    if name in vis_gym.SUPPORTED_GYM_ENVS:
        return _classic_control(name, params)
    return _visualizer(env, params)


def _classic_control(name: str, params: Any) -> Callable[[Any], Array]:
    """Render in one environment of gymnasium; gymnax's visualizer makes one for every picture."""
    import gymnasium
    from gymnax.visualize import vis_gym

    env = gymnasium.make(name, render_mode="rgb_array")
    env.reset()
    bare: Any = env.unwrapped
    vis_gym.set_gym_params(bare, name, params)

    def render(state: Any) -> Array:
        bare.state = vis_gym.get_gym_state(state, name)
        if hasattr(state, "last_u"):
            bare.last_u = np.asarray(state.last_u, np.float64)
        return bare.render()

    return render


def _visualizer(env: Any, params: Any) -> Callable[[Any], Array]:
    from gymnax.visualize import Visualizer
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    states: list[Any] = [None]
    picture = Visualizer(env, params, states)
    canvas = FigureCanvasAgg(picture.fig)

    def render(state: Any) -> Array:
        first, states[0] = states[0] is None, state
        if first:
            picture.init()
        picture.update(0)
        picture.ax.set_title(env.name)  # without the number of the step
        canvas.draw()
        return np.array(canvas.buffer_rgba())[..., :3]

    return render


def _deep_sea(state: Any, params: Any) -> Array:
    """Render reachable cells in grey, the goal in amber, and the player in white."""
    size = len(state.action_mapping)
    grid = np.where(np.tri(size, dtype=bool)[..., None], [120, 130, 140], 0)
    grid[-1, -1] = 255, 187, 60
    grid[int(state.row), int(state.column)] = 255
    return shapes.cells(grid)


def _reacher(state: Any, params: Any) -> Array:
    angles = np.asarray(state.angles)  # from the horizontal, not from the previous link
    links = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points = np.concatenate([np.zeros((1, 2)), links.cumsum(axis=0)])
    discs = [(state.goal_xy, 0.15, GREEN), (points[-1], 0.1, RED)]
    return shapes.picture((-2.3, 2.3, -2.3, 2.3), [(points, 0.15, BLUE)], discs)


def _swimmer(state: Any, params: Any) -> Array:
    urchins = [(urchin, 0.15, BLACK) for urchin in np.asarray(state.urchin_xys)]
    discs = [*urchins, (state.goal_xy, 0.12, GREEN), (state.xy, 0.08, BLUE)]
    return shapes.picture((-2.0, 2.0, -2.0, 2.0), discs=discs)


def _umbrella_chain(state: Any, params: Any) -> Array:
    """Render the position in the chain, the weather at its end, and the umbrella if held."""
    length, at = int(params.chain_length), float(state.time)
    lines = [([(0.0, 0.2), (length, 0.2)], 0.1, GREY), ([(at, 0.4), (at, 1.2)], 0.25, BLACK)]
    if state.has_umbrella:
        lines.append(([(at - 0.7, 1.4), (at + 0.7, 1.4)], 0.25, RED))
    weather = (length - 0.3, 2.4), 0.5, BLUE if state.need_umbrella else SAND
    return shapes.picture((-0.5, length + 0.5, 0.0, 3.0), lines, [weather])


_DRAWN = {
    "DeepSea": _deep_sea,
    "Reacher": _reacher,
    "Swimmer": _swimmer,
    "UmbrellaChain": _umbrella_chain,
}
