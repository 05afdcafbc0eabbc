"""What an experiment is: arms that share everything but their methods, on some tasks, in sizes."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

from experiments.runs import arms as arms_
from experiments.runs.arms import Question
from experiments.runs.run_config import RunConfig
from experiments.studies.study import Arm as Arm
from experiments.studies.study import Options, configured

SizeName = Literal["smoke", "small", "paper"]
SIZES: tuple[SizeName, ...] = get_args(SizeName)


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
        shared = {
            "loop": size.loop, "sizes": size.sizes, "env_options": size.env,
            "agent_options": size.agent, "replay_options": size.replay,
        }  # fmt: skip
        try:
            config = configured(self.arms[label], env, self.agent, size.preset, shared)
        except (TypeError, ValueError) as error:
            raise ValueError(f"experiment {self.name}, arm {label} on {env}: {error}") from error
        return dataclasses.replace(config, seeds=size.seeds)
