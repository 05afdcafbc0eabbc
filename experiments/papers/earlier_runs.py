"""Runs that replay the transitions of an earlier run (replay across experiments, RaE)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd

from experiments.papers.entry import Arm, Computation, Options, Request, Row
from experiments.runs.assembly import assemble
from experiments.studies.definition import configure
from experiments.training.loop import make_program
from jaxreplay.mixing import Mixed, MixedState, mix
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.types import Array, Tree

_ENV = "gymnax/Pendulum-v1"
_BATCH = 64
_AT_ONCE = 12  # seeds of a part


def returns(request: Request) -> pd.DataFrame:
    """Return the areas under the curves of SAC on Pendulum with and without an earlier run's data.

    All runs have one update per agent step and uniform replay. The earlier run has other seeds, and
    its replay is kept as it is at the end. Arms, with N agent steps:

    - `scratch`: N steps;
    - `half`: N steps with half of the batch size, so that transitions are replayed as often as the
      run's own transitions are in `earlier`;
    - `earlier`: N steps, where half of each batch comes from the earlier run's N transitions;
    - `continued`: 2 N steps, of which the last N count: as much data as in `earlier`, from one run.

    Options are `steps` (N), `every` (agent steps between two evaluations), `seeds` and `hidden`
    (layer sizes).

    Returns:
      One row per arm and seed, with the mean return of all evaluations as the value.
    """
    options = request.options
    rows: list[Row] = []
    for first in range(0, options["seeds"], _AT_ONCE):
        seeds = range(first, min(first + _AT_ONCE, options["seeds"]))
        for arm, train in _arms(options).items():

            def compute(arm: str = arm, train: Train = train, seeds: range = seeds) -> list[Row]:
                keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
                values = jax.jit(jax.vmap(train))(keys).tolist()
                return [
                    {"env": _ENV, "arm": arm, "seed": seed, "value": value}
                    for seed, value in zip(seeds, values, strict=True)
                ]

            name = f"{arm}_{first}"
            request.say(f"{arm}, seeds {seeds[0]} to {seeds[-1]} of {options['seeds']}")
            rows += request.part(name, compute)
    return pd.DataFrame(rows)


class _Unfilled(Mixed):
    """A mixture whose second replay is empty until it is set after the warm-up."""

    def init(self, key: Array, example: Tree, second: ReplayState | None = None) -> MixedState:
        return super().init(key, example, second=second or self.second.init(key, example))


def unfilled(replay: Replay, capacity: int, share: float) -> Mixed:
    """Return a replay that draws `share` of each batch from an earlier run's last `capacity` steps.

    The part of the earlier run is empty: set the field `second` of the state to that run's replay
    state.
    """
    both = mix(replay, dataclasses.replace(replay, capacity=capacity), share, read_only=True)
    return _Unfilled(both.first, both.second, read_only=True)


Train = Callable[[Array], Array]


def _arms(options: Options) -> dict[str, Train]:
    """Return functions of a key that train one seed and return its mean return, by arm."""
    steps = options["steps"]

    def run(length: int, batch: int, counted: int, share: float = 0.0) -> Train:
        program, earlier = _program(options, length, batch, share), _program(options, steps, _BATCH)

        def train(key: Array) -> Array:
            state = program.init(key)
            if share:
                before, _ = _trained(earlier, earlier.init(jax.random.fold_in(key, 1)))
                replay = state.replay._replace(second=before.replay)
                state = state._replace(replay=replay)
            return _trained(program, state)[1]["eval_return"][-counted:].mean()

        return train

    looks = steps // options["every"]
    return {
        "scratch": run(steps, _BATCH, looks),
        "half": run(steps, _BATCH // 2, looks),
        "earlier": run(steps, _BATCH, looks, 0.5),
        "continued": run(2 * steps, _BATCH, looks),
    }


def _program(options: Options, steps: int, batch: int, share: float = 0.0) -> Any:
    shared: dict[str, Options] = {
        "loop": {
            "steps": steps, "warmup": options["every"], "random_warmup": True, "inspect": 0,
            "eval_every": options["every"], "eval_episodes": 3,
        },
        "sizes": {"batch_size": batch, "capacity": steps},
        "agent_options": {
            "hidden": options["hidden"], "actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3,
        },
        "env_options": {}, "replay_options": {},
    }  # fmt: skip
    config = configure(Arm("uniform"), _ENV, "sac", None, shared)
    environment, agent, replay = assemble(config)[1:]
    if share:
        replay = unfilled(replay, options["steps"], share)
    return make_program(environment, agent, replay, config.loop)


def _trained(program: Any, state: Any) -> tuple[Any, Any]:
    blocks = jnp.asarray(program.schedule.log_points, jnp.int32)
    return jax.lax.scan(program.chunk, state, blocks)


EARLIER = Computation(
    "earlier_runs", returns,
    {"steps": 4_000, "every": 500, "seeds": 24, "hidden": (64, 64)},
    {"steps": 400, "every": 200, "seeds": 2, "hidden": (8, 8)},
    ("experiments/papers/earlier_runs.py",), "return", minutes=10,
)  # fmt: skip
