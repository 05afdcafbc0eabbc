"""Cost of the runs of a study, by task and method."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.studies.store import Store
from experiments.training.config import LoopConfig
from experiments.training.schedule import Schedule, schedule


class Cost(NamedTuple):
    """Cost of the runs of a method on a task; runs that train together share the time equally."""

    runs: int = 0
    steps: int = 0  # agent steps
    updates: int = 0
    seconds: float = 0.0  # device seconds
    compiling: float = 0.0  # compilation, included in `seconds`


def by_method(store: Store) -> dict[tuple[str, str], Cost]:
    """Return the cost of the runs by (task, label of the method), in the order of the study."""
    points = store.facts["points"].values()
    found = {(facts["env"], facts["replay"]): Cost() for facts in points}
    for cost in store.facts["costs"]:
        runs = sum(map(len, cost["runs"].values()))
        for point, seeds in cost["runs"].items():
            facts, share = store.facts["points"][point], len(seeds) / runs
            plan = _plan(facts["config"])
            own = Cost(
                len(seeds), len(seeds) * plan.steps[-1], len(seeds) * plan.updates,
                share * cost["seconds"], share * cost["compiling"],
            )  # fmt: skip
            key = (facts["env"], facts["replay"])
            found[key] = Cost(*(x + y for x, y in zip(found[key], own, strict=True)))
    return {key: cost for key, cost in found.items() if cost.runs}


def _plan(config: Mapping[str, Any]) -> Schedule:
    """Return the schedule of a run, ignoring options that no longer exist."""
    known = {field.name for field in dataclasses.fields(LoopConfig)}
    loop = LoopConfig(**{name: value for name, value in config["loop"].items() if name in known})
    return schedule(loop, config["sizes"]["num_envs"])
