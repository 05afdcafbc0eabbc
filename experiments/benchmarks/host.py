"""Time training steps with environments on the host: `python -m experiments.benchmarks.host`.

Timed are the environments alone, the device alone (a gradient step, storing and acting), and both
at the same time, as the training loop runs them. At best, both together take as long as the slower.
"""

import argparse
import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.benchmarks import outputs
from experiments.benchmarks.sizes import add_device, use_device
from experiments.cli.options import Parser
from experiments.runs import presets
from experiments.runs.assembly import build
from experiments.runs.log import say
from experiments.runs.run_config import RunConfig, defaults
from experiments.training.host_loop import HostRun

CASES = {  # name -> environment, agent, replay method, preset, hidden sizes
    "rainbow-pong": ("atari/Pong", "rainbow", "per", "data_efficient", None),
    "sac-halfcheetah": ("gymnasium/HalfCheetah-v5", "sac", "uniform", None, (256, 256)),
    "td3-lunarlander": ("gymnasium/LunarLanderContinuous-v3", "td3", "lap", None, (64, 64)),
}


def case(name: str) -> RunConfig:
    """Return the configuration of a case, with one seed."""
    env, agent, replay, preset, hidden = CASES[name]
    config = dataclasses.replace(defaults(env, agent, replay), seeds=1)
    if preset is not None:
        config = presets.apply(preset, config)
    if hidden is not None:
        options = dataclasses.replace(config.agent_options, hidden=hidden)
        config = dataclasses.replace(config, agent_options=options)
    return dataclasses.replace(
        config,
        loop=dataclasses.replace(config.loop, warmup=600, steps=100_000, inspect=0),
        sizes=dataclasses.replace(config.sizes, capacity=10_000),
    )


def measure(run: HostRun, steps: int, turns: int) -> dict[str, list[float]]:
    """Return microseconds per step of each part and of both together, one entry per turn."""
    state = run.init()
    state = run.blocks(state, 20)  # compiles
    action, extras = run.device.decide(state._replace(since=()), "act")
    actions = np.asarray(action)
    run.playing.send(actions)
    obs, out = run.playing.receive()
    times: dict[str, list[float]] = {"environments": [], "device": [], "together": []}

    def record(name: str, start: float) -> None:
        times[name].append((time.perf_counter() - start) / steps * 1e6)

    for _ in range(turns):
        start = time.perf_counter()
        for _ in range(steps):
            run.playing.send(actions)
            run.playing.receive()
        record("environments", start)
        since, state = state.since, state._replace(since=())
        played, learned = since.played, since.learned
        start = time.perf_counter()
        for _ in range(steps):
            state, learned = run.device.learn(state, learned)
            state, played, action, extras = run.device.advance(
                state, played, action, extras, obs, out
            )
            np.asarray(action)
        record("device", start)
        state = state._replace(since=since._replace(played=played, learned=learned))
        start = time.perf_counter()
        state = jax.block_until_ready(run.blocks(state, steps))
        record("together", start)
    return times


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(prog="python -m experiments.benchmarks.host", description=__doc__)
    parser.add_argument(
        "--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME",
        help=f"any of {', '.join(CASES)} [default all]",
    )  # fmt: skip
    for name, default, about in (
        ("steps", 200, "agent steps of one turn"),
        ("turns", 7, "turns, of which the median counts"),
    ):
        parser.add_argument(
            f"--{name}", type=_count, default=default, metavar="INT",
            help=f"{about} [default {default}]",
        )  # fmt: skip
    outputs.add_out(parser)
    add_device(parser)
    args = parser.parse_args(argv)
    use_device(parser, args.device)
    numbers: dict[str, Any] = {}
    for name in args.cases:
        say(name)
        try:
            run = build(case(name))
        except ValueError as error:
            parser.error(str(error))
        with contextlib.closing(run):
            times = measure(run, args.steps, args.turns)
        medians = {part: statistics.median(values) for part, values in times.items()}
        # Turn by turn: other load on the machine affects all three alike.
        slower = map(max, times["environments"], times["device"])
        shares = [x / y for x, y in zip(slower, times["together"], strict=True)]
        numbers[name] = {
            "median_us": medians, "us": times, "slower_over_together": statistics.median(shares),
        }  # fmt: skip
        print(
            f"{name:16} environments {medians['environments']:8.0f} us, "
            f"device {medians['device']:8.0f} us, together {medians['together']:8.0f} us: "
            f"{numbers[name]['slower_over_together']:.0%} of the slower alone"
        )
    outputs.write(args.out, {"steps": args.steps, "cases": numbers})
    return 0


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
