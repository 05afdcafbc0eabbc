"""Compare our replay methods: `python -m experiments.benchmarks.methods`.

A cycle adds a transition, samples a batch and updates it, in a compiled loop. Ratios are relative
to PER.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks import command, timing
from experiments.benchmarks.loops import Loop, example
from experiments.runs.log import say, show
from jaxreplay import Replay, testing
from jaxreplay.contrib import laber
from jaxreplay.methods import METHODS, her, pser
from jaxreplay.objectives import Choose
from jaxreplay.option import option
from jaxreplay.sampler import Sampler
from jaxreplay.types import Array

_EPISODE = 200  # transitions
_PSER = {  # with a window of 5 steps
    "pser": pser.PSERConfig(window=5),
    "pser-add": pser.PSERConfig(window=5, combine="add"),
}
_SINCE = (
    "cer", "reshuffled", "faded", "curious", "relo", "eper", "reverse", "la3p", "reaper",
    "masked", "sil",
)  # fmt: skip
_HER = {"her": her.HERConfig(), "her-per": her.HERConfig(over="per")}
_FEEDBACK = ("td_error", "target", "log_ratio", "reducible_loss", "expected_td_error")
_LARGE = "uniform-large"  # uniform replay with as many transitions per batch as LaBER
_NAMES = ("per", "uniform", "lap", "ere", "ero", "ners", "refer", "rank", *_PSER, *_SINCE, *_HER)
_NAMES = (*_NAMES, "laber", _LARGE)


@dataclasses.dataclass(frozen=True)
class Settings(command.TimedSettings):
    """Methods to compare."""

    methods: tuple[str, ...] = option(_NAMES, "replay methods", choices=_NAMES)
    capacity: int = option(2**20, "slots", at_least=1)
    batch_size: int = option(256, "transitions per batch", at_least=1)

    def check(self) -> None:
        """Reject a batch larger than the replay."""
        if self.batch_size > self.capacity:
            raise ValueError(f"batch_size {self.batch_size} exceeds the capacity {self.capacity}")


def cycles(replay: Replay, choose: Choose | None = None) -> Loop:
    """Return a loop of cycles over a full replay, in episodes of 200 transitions."""
    row = jax.tree.map(lambda x: jnp.zeros_like(x)[None], example())

    def add(state: Any, number: Array) -> Any:
        edge = (number % _EPISODE == 0)[None]
        return replay.add(state, row._replace(reward=number[None] * 1e-6, first=edge, last=edge))

    def step(carry: tuple[Any, Array], inputs: tuple[()], number: Array) -> tuple[Any, Array]:
        del inputs
        state, seen = carry
        key = jax.random.fold_in(jax.random.key(0), number)
        state = add(state, number)
        batch = replay.sample(state, key)
        td = batch.transition.reward + jax.random.normal(key, (replay.batch_size,))
        state = replay.update(state, batch, **dict.fromkeys(_FEEDBACK, td))
        weights = batch.weights
        if choose is not None:
            weights = choose(jnp.abs(td)[None], key).weights
        return state, seen + weights.sum()

    def fill(key: Array) -> Any:
        state = replay.init(key, example())
        return jax.lax.fori_loop(
            0, replay.capacity, lambda number, state: add(state, number), state
        )

    return Loop(step, (jax.jit(fill)(jax.random.key(1)), jnp.zeros(())), ())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    settings, out = command.read("methods", __doc__, Settings(seconds=0.2), argv)
    runs = {}
    for name in settings.methods:
        say(f"{name}: filling and compiling")
        choose = METHODS[name].method().objective.choose if name in METHODS else None
        runs[name] = cycles(_replay(name, settings), choose).run
    say("taking turns")
    references = dict.fromkeys(runs, "per")
    times = timing.compare(runs, settings.turns, settings.seconds, references)
    rows = [[name, one.median_us, one.ratio] for name, one in times.items()]
    show(command.table(["method", "us per cycle", "ratio to per"], rows))
    results = [{"method": name, **one._asdict()} for name, one in times.items()]
    command.write(out, {"settings": dataclasses.asdict(settings), "results": results})
    return 0


def _replay(name: str, settings: Settings) -> Replay:
    size = settings.batch_size
    if name in ("laber", _LARGE):
        name, size = "uniform", laber.LaBERConfig().candidates * size
    return Replay(_sampler(name), capacity=settings.capacity, batch_size=size)


def _sampler(name: str) -> Sampler:
    if name in _PSER:
        return pser.sampler(_PSER[name])
    if name in _HER:
        return testing.with_goals(her.method(_HER[name].for_run(1_000_000))).sampler
    method = METHODS[name]
    return method.method(method.config().for_run(1_000_000)).sampler


if __name__ == "__main__":
    sys.exit(main())
