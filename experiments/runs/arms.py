"""The arms of a comparison, and the question that they answer."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.runs.run_config import RunConfig
from experiments.statistics import primary
from experiments.statistics.verdicts import CONTROL, FEWEST_SEEDS, FEWEST_UPDATES
from experiments.training.schedule import schedule
from jaxreplay.methods import METHODS
from jaxreplay.option import Config, option
from jaxreplay.sampler import Sampler
from jaxreplay.types import EpisodeReturns

_FEWEST = 2  # seeds, for an interval
_PLAIN = "uniform"  # the method of baselines


@dataclasses.dataclass(frozen=True)
class Question(Config):
    """The question of a comparison, fixed before it runs."""

    primary: str = option(
        "auc",
        "metric that decides: auc, final, last_K of K evaluations, best, steps_to_threshold",
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
        """Raise ValueError for a gate that is off without a reason."""
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
    """Raise ValueError for a question that these arms can't answer.

    Args:
      question: what is asked.
      bases: configurations by label.
      threshold: the return that counts as solved, if there is one.

    Raises:
      ValueError: one line that says what to do.
    """
    primary.parse(question.primary, threshold)
    seeds = next(iter(bases.values())).seeds
    if seeds < _FEWEST:
        raise ValueError(
            f"seeds is {seeds}: a comparison needs {_FEWEST} for an interval, and 10 for a verdict"
        )
    if CONTROL in bases:
        raise ValueError(f"'{CONTROL}' is the baseline with other seeds: use another label")
    if len(bases) < 2 and not question.control:
        raise ValueError("one arm without a control has nothing to be compared with: name another")
    if question.baseline is not None and question.baseline not in bases:
        raise ValueError(
            f"baseline '{question.baseline}' is none of {', '.join(bases)}: name one of them"
        )


def baseline_of(question: Question, bases: Mapping[str, RunConfig]) -> str:
    """Return the label that the others are compared with.

    If none is named, it is the first of plain uniform replay, or else the first that draws
    uniformly, or the first.
    """
    plain = [label for label, config in bases.items() if config.replay == _PLAIN]
    even = [label for label, config in bases.items() if draws_evenly(config)]
    return question.baseline or [*plain, *even, *bases][0]


def draws_evenly(config: RunConfig) -> bool:
    """Return whether a run's method means to draw uniformly."""
    return _sampler(config).is_uniform


def learns(config: RunConfig) -> bool:
    """Return whether a run's sampler learns from returns."""
    return learns_from(config) is not None


def learns_from(config: RunConfig) -> EpisodeReturns | None:
    """Return the kind of returns that a run's sampler learns from, or None."""
    return _sampler(config).requires.episode_returns


def _sampler(config: RunConfig) -> Sampler:
    return METHODS[config.replay].method(config.replay_options).sampler


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


def check_expanded(
    question: Question, arms: Mapping[str, Arm], threshold: float | None
) -> list[str]:
    """Check that runs are long enough for the primary metric; return remarks for the user.

    Args:
      question: what is asked.
      arms: by label.
      threshold: the return that counts as solved, if there is one.

    Raises:
      ValueError: one line: there are too few evaluations for the primary metric.
    """
    metric, remarks = primary.parse(question.primary, threshold), []
    fewest = min(arm.config.seeds for arm in arms.values())
    if fewest < FEWEST_SEEDS:
        remarks.append(
            f"{fewest} seeds make a pilot, without verdicts: these need {FEWEST_SEEDS} "
            f"(--seeds {FEWEST_SEEDS})"
        )
    for label, arm in arms.items():
        loop = arm.config.loop
        plan = schedule(loop, arm.config.sizes.num_envs)
        metric.check(len(plan.log_points))
        every = loop.observe_every
        told = len(plan.log_points) if every is None else (loop.steps - loop.warmup) // every
        if learns_from(arm.config) == "evaluation" and told - 1 < FEWEST_UPDATES:
            remarks.append(
                f"{label} learns from {max(told - 1, 0)} evaluations at most, and counts as tested "
                f"from {FEWEST_UPDATES} on: --observe-every makes more"
            )
    return remarks


def replays_per_transition(config: RunConfig) -> float:
    """Return the replay ratio: how often a stored transition is learned from, on average."""
    loop, sizes = config.loop, config.sizes
    if loop.offline:
        plan = schedule(loop, sizes.num_envs)
        return plan.updates * sizes.batch_size / plan.warmup_steps
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
