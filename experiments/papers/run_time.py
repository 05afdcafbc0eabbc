"""How much longer training takes with prioritised replay: LAP's Fig. 3 and Tab. 3."""

from functools import partial

import pandas as pd

from experiments.benchmarks import timing, training_loops
from experiments.papers.entry import Computation, Request, Row

SOURCES = ("experiments/papers/run_time.py", "experiments/benchmarks/t*.py")


def run_times(request: Request) -> pd.DataFrame:
    """Return the time of a step of training with each method, over that with uniform replay.

    Fujimoto et al. 2020, App. B. All loops of a task take turns in one process, and each turn of a
    method is divided by the same turn of uniform replay; a turn stands for a seed.
    """
    rows = []
    for task in request.options["tasks"]:
        name = f"{task} on {timing.machine()}"  # another's times are not beside this one's
        rows += request.part(name, partial(_times, request, task))
    return pd.DataFrame(rows)


def _times(request: Request, task: str) -> list[Row]:
    options, runs = request.options, {}
    for replay in options["replays"]:
        request.say(f"warming up {task} with {replay}")
        case = training_loops.CASES[task]
        runs[replay] = training_loops.ours(case, replay, 1, options["capacity"]).run
    request.say("taking turns")
    times = timing.take_turns(runs, options["turns"], options["seconds"])
    return [
        {"task": task, "arm": replay, "seed": turn, "value": us / plain, "us": us}
        for replay, own in times.items()
        for turn, (us, plain) in enumerate(zip(own, times["uniform"], strict=True))
    ]


RUN_TIME = Computation(
    "run_time",
    run_times,
    {
        "tasks": ("td3", "sac"), "replays": ("uniform", "per", "lap", "pal"), "turns": 21,
        "seconds": 0.5, "capacity": 100_000,
    },
    {
        "tasks": ("td3",), "replays": ("uniform", "per"), "turns": 2, "seconds": 0.05,
        "capacity": 1_000,
    },
    SOURCES, unit="run time of uniform replay", higher_is_better=False, minutes=4,
)  # fmt: skip
