"""States drawn from a replay by TD error, by Q and uniformly (Oh et al. 2021, Fig. 1)."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize

from agents.types import Agent
from experiments.figures.style import INK, make_figure, plain, save
from experiments.papers.entry import Arm, Options, Request
from experiments.papers.layouts import Plotted
from experiments.runs.assembly import assemble
from experiments.studies.definition import configure
from experiments.training.loop import make_train
from experiments.training.state import LoopState
from jaxreplay import ring as ring_

SOURCES = ("experiments/papers/sampled.py",)
_AGENT, _ENV = "sac", "gymnax/Pendulum-v1"
_TORQUE = 2.0  # torque of action 1 in N m
_BATCH = 256
Array = np.ndarray


def sampled_states(request: Request) -> pd.DataFrame:
    """Return transitions of Pendulum drawn by |TD error|, by Q and uniformly from one memory.

    Oh et al. 2021, Fig. 1. SAC learns with uniform replay and then evaluates the TD errors and Q of
    all stored transitions. Transitions are drawn without replacement, by |TD error| or by Q: a
    transition of rank r (1 for the largest) has a probability proportional to 1 / r.

    Options are `steps` (agent steps of training), `seed`, `drawn` (number of transitions to draw),
    `shown` (number of these in the table) and `hidden` (layer sizes).

    Returns:
      One row per arm ("by TD error", "by Q", "uniformly") and place (index from 0), with columns
      seed, angle (rad from upright, counter-clockwise, in (-pi, pi]), speed (rad/s), torque (N m),
      td (|TD error|) and q, the latter two in units of the return.
    """
    options = request.options
    shared: dict[str, Options] = {
        "loop": {
            "steps": options["steps"], "warmup": 1_000, "random_warmup": True, "inspect": 0,
            "eval_every": max(options["steps"] // 10, 1),
        },
        "sizes": {"batch_size": _BATCH}, "agent_options": {"hidden": options["hidden"]},
        "env_options": {}, "replay_options": {},
    }  # fmt: skip
    config = configure(Arm("uniform"), _ENV, _AGENT, None, shared)
    config = dataclasses.replace(config, seeds=1, seed=options["seed"])
    environment, agent, replay = assemble(config)[1:]
    request.say(f"training {_AGENT} for {options['steps']:,} steps")
    train = jax.jit(make_train(environment, agent, replay, config.loop))
    state, _ = train(jax.random.key(config.seed))
    stored = _stored(agent, state)
    rng = np.random.default_rng(options["seed"])
    even = np.ones(len(stored))
    rows = []
    for arm, chances in (
        ("by TD error", _by_rank(stored["td"].to_numpy())),
        ("by Q", _by_rank(stored["q"].to_numpy())),
        ("uniformly", even),
    ):
        drawn = rng.choice(len(stored), options["drawn"], replace=False, p=chances / chances.sum())
        kept = stored.iloc[rng.choice(drawn, options["shown"], replace=False)]
        rows.append(kept.assign(arm=arm, seed=options["seed"], place=range(len(kept))))
    return pd.concat(rows, ignore_index=True)


def _stored(agent: Agent, state: LoopState) -> pd.DataFrame:
    """Return all stored transitions, with columns angle, speed, torque, td and q."""
    ring = state.replay.ring
    transition = ring_.gather(ring, jnp.arange(int(ring_.size(ring)), dtype=jnp.int32))
    seen = jax.jit(agent.feedback)(state.agent, transition, jax.random.key(0))
    cosine, sine, speed = np.asarray(transition.obs).T
    return pd.DataFrame(
        {
            "angle": np.arctan2(sine, cosine),
            "speed": speed,
            "torque": _TORQUE * np.asarray(transition.action)[:, 0],
            "td": np.abs(np.asarray(seen["td_error"])),
            "q": np.asarray(seen["q_value"]),
        }
    )


def _by_rank(scores: Array) -> Array:
    """Return 1 / rank `[N]` of scores `[N]`; the largest score has rank 1."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return 1.0 / ranks


_RODS, _ENDS = "viridis", "YlOrRd"


def draw_states(plotted: Plotted, path: Path) -> None:
    """Plot the table of `sampled_states`: one row of pendulums per arm (Oh et al. 2021, Fig. 1).

    A rod has the angle of the pendulum, and its colour is Q. The colour of the disc at its end is
    the |TD error|. The torque is printed below.
    """
    frame = plotted.frame
    arms = list(dict.fromkeys(frame["arm"]))
    columns = int(frame["place"].max()) + 1
    scales = MappingProxyType(
        {
            "q": ScalarMappable(Normalize(frame["q"].min(), frame["q"].max()), _RODS),
            "td": ScalarMappable(_errors(frame["td"].to_numpy()), _ENDS),
        }
    )
    figure = make_figure(0.95 * columns + 2.0, 0.7 + 1.3 * len(arms))
    figure.suptitle(plain(plotted.title), x=0.01, ha="left", fontsize=12, color=INK)
    grid = figure.subplots(len(arms), columns, squeeze=False)
    for row, arm in enumerate(arms):
        own = frame[frame["arm"] == arm].sort_values("place")
        for axes in grid[row]:
            axes.set_axis_off()
        for axes, state in zip(grid[row], own.itertuples(), strict=False):
            _pendulum(axes, state, scales)
        grid[row, 0].set_title(plain(arm), loc="left", fontsize=10, color=INK)
    for name, label in (("q", "Q (rod)"), ("td", "|TD error| (disc)")):
        bar = figure.colorbar(scales[name], ax=grid, shrink=0.85, aspect=30, pad=0.01)
        bar.set_label(label, fontsize=9, color=INK)
        bar.ax.tick_params(labelsize=8, colors=INK)
    save(figure, path)


def _errors(td: Array) -> Normalize:
    """Return a logarithmic scale of |TD errors|, over three orders of magnitude at most."""
    most = max(float(td.max()), 1e-6)
    return LogNorm(max(float(td.min()), most / 1_000), most * 1.0001, clip=True)


def _pendulum(axes: Axes, state: Any, scales: Mapping[str, ScalarMappable]) -> None:
    end = -np.sin(state.angle), np.cos(state.angle)
    axes.set_aspect("equal")
    axes.set_xlim(-1.2, 1.2)
    axes.set_ylim(-1.65, 1.2)
    for colour, width in ((INK, 7.5), (scales["q"].to_rgba(state.q), 6)):
        axes.plot([0, end[0]], [0, end[1]], color=colour, linewidth=width, solid_capstyle="round")
    axes.plot(0, 0, "o", color=INK, markersize=3)
    disc = {"markeredgecolor": INK, "markeredgewidth": 0.8}
    axes.plot(*end, "o", color=scales["td"].to_rgba(state.td), markersize=10, **disc)
    axes.text(0, -1.62, f"{state.torque:+.1f} N m", ha="center", fontsize=7, color=INK)
