"""The arms of a comparison: what is asked, before anything runs, and which runs answer it."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.analysis import primary
from experiments.runs.run_config import RunConfig
from experiments.training.schedule import schedule
from jaxreplay.methods import METHODS
from jaxreplay.option import Config, option

CONTROL = "control"
_FEWEST = 2  # seeds, for an interval


@dataclasses.dataclass(frozen=True)
class Question(Config):
    """What a comparison asks, decided before it runs."""

    primary: str = option(
        "auc",
        "metric that decides: auc (area under the learning curve), final, last_K (mean of the last "
        "K evaluations), best, or steps_to_threshold",
    )
    baseline: str | None = option(
        None, "label that the others are compared with; none: the first with uniform draws"
    )
    control: bool = option(
        True, "run the baseline once more, with other seeds: it should come out undecided"
    )
    ungated: str | None = option(
        None, "judge arms that behaved like uniform, too, for the reason given here in words"
    )

    def check(self) -> None:
        """Refuse a gate that is off without a reason."""
        if self.ungated is not None and len(self.ungated.split()) < 2:
            raise ValueError(
                "ungated is the reason for judging arms that behaved like uniform: give it in "
                "words, or leave it out"
            )


class Arm(NamedTuple):
    """One run of a comparison."""

    method: str  # label of its method and options, or CONTROL
    every: int  # agent steps in each environment between two learning phases
    config: RunConfig


def check(question: Question, bases: Mapping[str, RunConfig], threshold: float | None) -> None:
    """Refuse a question that these arms can't answer.

    Args:
      question: what is asked.
      bases: configurations by label.
      threshold: the return that counts as solved, if there is one.

    Raises:
      ValueError: one line that says what to do.
    """
    config = next(iter(bases.values()))
    plan = schedule(config.loop, config.sizes.num_envs)
    primary.parse(question.primary, threshold).check(len(plan.log_points))
    seeds = config.seeds
    if seeds < _FEWEST:
        raise ValueError(
            f"seeds is {seeds}: a comparison needs {_FEWEST} for an interval, and 10 for a verdict"
        )
    if CONTROL in bases:
        raise ValueError(f"'{CONTROL}' is the baseline with other seeds: use another label")
    if question.baseline is not None and question.baseline not in bases:
        raise ValueError(
            f"baseline '{question.baseline}' is none of {', '.join(bases)}: name one of them"
        )


def baseline_of(question: Question, bases: Mapping[str, RunConfig]) -> str:
    """Return the label that the others are compared with."""
    even = (label for label, config in bases.items() if draws_evenly(config))
    return question.baseline or next(even, next(iter(bases)))


def draws_evenly(config: RunConfig) -> bool:
    """Tell whether a run's method means to draw uniformly."""
    return METHODS[config.replay].method(config.replay_options, None).sampler.even


def learns(config: RunConfig) -> bool:
    """Tell whether a run's sampler learns from returns."""
    requires = METHODS[config.replay].method(config.replay_options, None).sampler.requires
    return requires.episode_returns is not None


def expand(
    question: Question, bases: Mapping[str, RunConfig], cadences: Sequence[int]
) -> dict[str, Arm]:
    """Return the arms by label: every method, and the control, at every cadence.

    Args:
      question: what is asked.
      bases: configurations by label.
      cadences: values of `learn_every`; () takes that of the configurations.
    """
    bases = dict(bases)
    if question.control:
        base = bases[baseline_of(question, bases)]
        bases[CONTROL] = dataclasses.replace(base, seed=base.seed + base.seeds)
    arms = {}
    for method, config in bases.items():
        for every in cadences or [config.loop.learn_every]:
            loop = dataclasses.replace(config.loop, learn_every=every)
            label = method if len(cadences) < 2 else f"{method}_every{every}"
            arms[label] = Arm(method, every, dataclasses.replace(config, loop=loop))
    return arms


def cadences_of(configs: Iterable[RunConfig]) -> list[int]:
    """Return the different values of `learn_every`, in order."""
    return list(dict.fromkeys(config.loop.learn_every for config in configs))


def replays_per_transition(config: RunConfig) -> float:
    """Return the replay ratio: how often a stored transition is learned from, on average."""
    loop, sizes = config.loop, config.sizes
    return loop.updates * sizes.batch_size / (loop.learn_every * sizes.num_envs)


def settings(config: RunConfig) -> dict[str, Any]:
    """Return all that arms must share.

    Not the agent's options: of one command they differ only where a preset has it, as the papers
    do, which is part of what an arm is.
    """
    saved = config.to_json()
    parts = ("loop", "sizes", "env_options")
    shared = {f"{part}.{name}": value for part in parts for name, value in saved[part].items()}
    return {"agent": config.agent, **shared}
