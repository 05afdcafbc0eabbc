"""Experiments of the papers: arms that share everything but their methods, on tasks, in sizes."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

from experiments.papers.tables import KEPT
from experiments.runs.run_config import RunConfig
from experiments.studies import facts
from experiments.studies.claims import Claim
from experiments.studies.grid import Axis, Point
from experiments.studies.options import Question, StudyOptions
from experiments.studies.study import Arm as Arm
from experiments.studies.study import Options, Study, configured

SizeName = Literal["smoke", "small", "paper"]
SIZES: tuple[SizeName, ...] = get_args(SizeName)


@dataclasses.dataclass(frozen=True)
class Size:
    """Size of an experiment.

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
      most_seeds: seeds at which undecided claims stop, if seeds are added in batches of `seeds`
        until every claim is decided; 0: `seeds` seeds, tested once.
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
    most_seeds: int = 0


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Runs that entries share.

    Attributes:
      name: of its files.
      agent: that all arms have which name no other.
      arms: by label.
      sizes: by name.
      question: primary metric and baseline, fixed before anything runs.
      columns: metrics that its table keeps, besides those that every table has.
    """

    name: str
    agent: str
    arms: Mapping[str, Arm]
    sizes: Mapping[SizeName, Size]
    question: Question = Question()
    columns: tuple[str, ...] = ()

    def study(self, size: SizeName, claims: Mapping[str, tuple[Claim, ...]] | None = None) -> Study:
        """Return the study of a size; size smoke has no control.

        Raises:
          ValueError: an arm does not fit its task, or an option its arm.
        """
        chosen = self.sizes[size]
        question = self.question
        if size == "smoke":
            question = dataclasses.replace(question, control=False)
        if chosen.most_seeds:
            question = dataclasses.replace(
                question, until_decided=True, most_seeds=chosen.most_seeds
            )
        bases = {
            (env, label): self._config(label, env, chosen)
            for env in chosen.envs
            for label in self.labels(size)
        }
        axes = (Axis("learn_every", tuple(map(str, chosen.every))),) if chosen.every else ()
        kept = [*KEPT, *self.columns]
        if not any(facts.learns_from(config) for config in bases.values()):
            kept.remove("replay/sampler_updates")
        options = StudyOptions(
            keep=tuple(dict.fromkeys(kept)), digits=4, figures=False, report=False
        )
        return Study(
            bases, axes, question, options, claims=dict(claims or {}), untested=chosen.untested
        )

    def points(self, size: SizeName) -> dict[str, dict[str, Point]]:
        """Return the points: task -> name of the arm -> point, with control and cadences.

        Raises:
          ValueError: an arm does not fit its task, or an option its arm.
        """
        found: dict[str, dict[str, Point]] = {env: {} for env in self.sizes[size].envs}
        for point in self.study(size).points():
            found[point.env][point.name] = point
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
