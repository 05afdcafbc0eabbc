"""Time whole training loops: `python -m experiments.benchmarks.training`.

DQN on CartPole, TD3 and SAC on Pendulum with one update per step: our loop with several replay
methods, and the published loops of rejax, if the package is installed (`make bench`), and of
purejaxrl, if --purejaxrl is the path of a checkout. Each loop is one compiled program for all
seeds; ratios are relative to the first replay method. On Linux, `taskset -c 0` in front of the
command restricts it to one core.
"""

import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks import command, peers, timing
from experiments.benchmarks.timing import Run
from experiments.environments.extras import lacking_extra
from experiments.runs.assembly import assemble
from experiments.runs.log import say
from experiments.runs.run_config import RunConfig, defaults
from experiments.training.config import LoopConfig, ReplaySizes
from experiments.training.loop import make_program
from experiments.training.seeds import over_seeds
from jaxreplay.option import option

_REPLAYS = ("uniform", "per", "lap", "pal", "rank", "ners")
_MIN_STEPS = 20  # per turn, so that the subtracted evaluation or warm-up is short in comparison


class Case(NamedTuple):
    """An agent and a task."""

    agent: str
    env: str
    batch_size: int
    hidden: tuple[int, ...]
    options: Mapping[str, Any] = MappingProxyType({})  # of our agent, to match its peers


# Peers' DQN has neither double Q-learning nor gradient clipping.
_PLAIN = MappingProxyType({"double": False, "max_grad_norm": 0.0})
CASES: Mapping[str, Case] = MappingProxyType(
    {
        "dqn": Case("dqn", "gymnax/CartPole-v1", 128, (64, 64), _PLAIN),
        "td3": Case("td3", "gymnax/Pendulum-v1", 256, (256, 256)),
        "sac": Case("sac", "gymnax/Pendulum-v1", 256, (256, 256)),
    }
)


@dataclasses.dataclass(frozen=True)
class Settings(command.TimedSettings):
    """Loops to time."""

    cases: tuple[str, ...] = option(tuple(CASES), "agents, each on its task", choices=tuple(CASES))
    replays: tuple[str, ...] = option(("uniform", "per"), "our methods", choices=_REPLAYS)
    rejax: bool = option(False, "also time the loops of rejax")
    purejaxrl: str | None = option(None, "folder of purejaxrl, whose DQN is also timed")
    seeds: tuple[int, ...] = option((1, 8), "numbers of seeds, each in one program", at_least=1)
    capacity: int = option(100_000, "slots per seed", at_least=1)
    seconds: float = option(1.0, f"approximate seconds of a turn (>= {_MIN_STEPS} steps)", above=0)

    def check(self) -> None:
        """Raise ValueError for a capacity below the batch size, or for a missing peer."""
        largest = max(CASES[name].batch_size for name in self.cases)
        if self.capacity < largest:
            raise ValueError(f"capacity is {self.capacity}: it must hold a batch of {largest}")
        if self.rejax and (lacks := lacking_extra("--rejax true", {"rejax": "bench"})):
            raise ValueError(lacks)
        if self.purejaxrl is None:
            return
        if not (file := Path(self.purejaxrl) / peers.PUREJAXRL_DQN).is_file():
            raise ValueError(
                f"--purejaxrl: there is no {file}: pass the path of a clone of purejaxrl"
            )
        if lacks := lacking_extra("--purejaxrl", {"flashbax": "bench"}):
            raise ValueError(lacks)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    settings, out = command.read("training", __doc__, Settings(), argv)
    jax.config.update("jax_enable_compilation_cache", False)
    results: list[command.Row] = []
    # Names of folders of this machine are not written.
    written = dataclasses.asdict(settings) | {"purejaxrl": settings.purejaxrl is not None}
    for case, seeds in itertools.product(settings.cases, settings.seeds):
        say(f"{case}, seeds: {seeds}")
        rows = measure(case, seeds, settings)
        command.show_table(rows)
        results += rows
        command.write(out, written, results)  # after every table: all are slow
    return 0


def measure(name: str, seeds: int, settings: Settings) -> list[command.Row]:
    """Time the loops of one case in turns.

    Times are in microseconds per step of all seeds; steps/s counts the steps of all seeds.
    """
    loops: dict[str, Run] = {}
    for replay in settings.replays:
        say(f"  compiling {replay}")
        loops[replay] = own_loop(run_config(CASES[name], replay, seeds, settings.capacity))
    config = run_config(CASES[name], "uniform", seeds, settings.capacity)
    steps = max(_MIN_STEPS, timing.cycles_for(loops[settings.replays[0]], settings.seconds))
    if settings.rejax:
        say("  compiling rejax")
        loops["rejax"] = peers.loop(peers.rejax_train(config), config, steps)
    if settings.purejaxrl is not None and name == "dqn":
        say("  compiling purejaxrl")
        train = peers.purejaxrl_train(Path(settings.purejaxrl), config)
        loops["purejaxrl"] = peers.loop(train, config, steps)
    say("  taking turns")
    times = timing.compare(loops, settings.turns, settings.seconds, _MIN_STEPS)
    return [
        {
            "case": name, "seeds": seeds, "loop": label, **numbers,
            "steps_per_second": seeds * 1e6 / numbers["median_us"],
        }
        for label, numbers in times.items()
    ]  # fmt: skip


def run_config(case: Case, replay: str, seeds: int, capacity: int) -> RunConfig:
    """Return a run with one environment per seed, one update per step and no inspection."""
    config = defaults(case.env, case.agent, replay)
    loop = LoopConfig(
        steps=1_000_000, warmup=1_000, eval_every=1_000_000, eval_episodes=1, inspect=0
    )
    options = dataclasses.replace(config.agent_options, hidden=case.hidden, **case.options)
    sizes = ReplaySizes(num_envs=1, capacity=capacity, batch_size=case.batch_size)
    return dataclasses.replace(config, seeds=seeds, agent_options=options, sizes=sizes, loop=loop)


def own_loop(config: RunConfig) -> Run:
    """Compile our training loop for all seeds together; return a function that times its steps.

    The time of the evaluation that ends a chunk is subtracted.
    """
    parts = assemble(config)
    run = over_seeds(make_program(parts.environment, parts.agent, parts.replay, config.loop))
    state = run.init(jax.vmap(jax.random.key)(jnp.arange(config.seeds)))

    def seconds_of(blocks: int) -> float:
        nonlocal state
        seconds, (state, _) = timing.seconds_of(run.chunk, state, jnp.int32(blocks))
        return seconds

    # A chunk of zero blocks is the same evaluation alone.
    return lambda count: max(seconds_of(count) - seconds_of(0), 1e-9)


if __name__ == "__main__":
    sys.exit(main())
