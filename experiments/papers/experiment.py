"""What an experiment is: arms that share everything but their methods, on some tasks, in sizes."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

from experiments.runs import arms as arms_
from experiments.runs import run_config
from experiments.runs.arms import Question
from experiments.runs.run_config import RunConfig

SizeName = Literal["smoke", "small", "paper"]
SIZES: tuple[SizeName, ...] = get_args(SizeName)
Options = Mapping[str, Any]  # option -> value


@dataclasses.dataclass(frozen=True)
class Arm:
    """One method with its settings: a line in a figure.

    Attributes:
      replay: the method's name.
      options: of the method, where they are not the defaults or the preset's.
      agent: its agent, where an experiment compares agents, too; None: the experiment's.
      agent_options: of the agent, where they are not the experiment's.
      loop: of the loop, likewise.
      sizes: of the replay, likewise.
      memory: its capacity, in units of that of the size.
    """

    replay: str
    options: Options = dataclasses.field(default_factory=dict)
    agent: str | None = None
    agent_options: Options = dataclasses.field(default_factory=dict)
    loop: Options = dataclasses.field(default_factory=dict)
    sizes: Options = dataclasses.field(default_factory=dict)
    memory: float = 1.0


@dataclasses.dataclass(frozen=True)
class Size:
    """How large an experiment is.

    Attributes:
      envs: the tasks, by full name.
      seeds: of every arm on every task.
      loop: options of the loop.
      sizes: options of the replay's sizes.
      agent: options of the agent; those that an arm's agent does not have are left out.
      env: options of the tasks.
      preset: settings that come before all of these.
      arms: labels of the arms that are run; (): all of them.
      every: values of `learn_every` that are compared; (): that of the loop.
      note: why it is so, in one sentence.
      replay: options of the methods; those that an arm's method does not have are left out.
      untested: label -> why an arm says nothing at this size, whatever comes out.
    """

    envs: tuple[str, ...]
    seeds: int
    loop: Options = dataclasses.field(default_factory=dict)
    sizes: Options = dataclasses.field(default_factory=dict)
    agent: Options = dataclasses.field(default_factory=dict)
    env: Options = dataclasses.field(default_factory=dict)
    preset: str | None = None
    arms: tuple[str, ...] = ()
    every: tuple[int, ...] = ()
    note: str = ""
    replay: Options = dataclasses.field(default_factory=dict)
    untested: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Runs that entries share.

    Attributes:
      name: of its files.
      agent: that all arms have which name no other.
      arms: by label.
      sizes: by name.
      question: what decides, and what the arms are compared with, named before anything runs.
      columns: metrics that its table keeps, besides those that every table has.
    """

    name: str
    agent: str
    arms: Mapping[str, Arm]
    sizes: Mapping[SizeName, Size]
    question: Question = Question()
    columns: tuple[str, ...] = ()

    def runs(self, size: SizeName) -> dict[str, dict[str, arms_.Arm]]:
        """Return what is run: task -> label -> arm, with the control (but at smoke) and cadences.

        Raises:
          ValueError: an arm does not fit its task, or an option its arm.
        """
        chosen = self.sizes[size]
        question = self.question
        if size == "smoke":
            question = dataclasses.replace(question, control=False)
        found = {}
        for env in chosen.envs:
            bases = {label: self._config(label, env, chosen) for label in self.labels(size)}
            found[env] = arms_.expand(question, bases, ())
            if chosen.every:  # labels name their cadence, be it the only one
                found[env] = {
                    f"{label}_every{every}": arm
                    for every in chosen.every
                    for label, arm in arms_.expand(question, bases, [every]).items()
                }
        return found

    def labels(self, size: SizeName) -> tuple[str, ...]:
        """Return the labels of the arms of a size, without the control."""
        return self.sizes[size].arms or tuple(self.arms)

    def _config(self, label: str, env: str, size: Size) -> RunConfig:
        arm = self.arms[label]
        agent = arm.agent or self.agent
        config = run_config.defaults(env, agent, arm.replay, size.preset)
        try:
            sizes = dataclasses.replace(config.sizes, **{**size.sizes, **arm.sizes})
            if sizes.capacity is not None:
                sizes = dataclasses.replace(sizes, capacity=int(arm.memory * sizes.capacity))
            return dataclasses.replace(
                config,
                seeds=size.seeds,
                loop=dataclasses.replace(config.loop, **{**size.loop, **arm.loop}),
                sizes=sizes,
                env_options=dataclasses.replace(config.env_options, **size.env),
                agent_options=dataclasses.replace(
                    config.agent_options,
                    **{**_known(config.agent_options, size.agent), **arm.agent_options},
                ),
                replay_options=dataclasses.replace(
                    config.replay_options,
                    **{**_known(config.replay_options, size.replay), **arm.options},
                ),
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"experiment {self.name}, arm {label} on {env}: {error}") from error


def _known(options: Any, values: Options) -> Options:
    """Return those values that are fields of a dataclass."""
    names = {field.name for field in dataclasses.fields(options)}
    return {name: value for name, value in values.items() if name in names}
