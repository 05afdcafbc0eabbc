"""The definition of a study: tasks, arms, settings, seeds, and the question that it answers."""

import argparse
import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from experiments.runs import run_config
from experiments.runs.run_config import RunConfig, shown_value
from experiments.statistics import primary
from experiments.statistics.claims import CONTROL, MEAN, Claim
from experiments.statistics.counts import FEWEST_SEEDS
from experiments.statistics.gate import FEWEST_UPDATES
from experiments.statistics.primary import PrimaryMetric
from experiments.studies import facts, grid
from experiments.studies.grid import Axis, Point
from experiments.studies.options import Question, StudyOptions
from experiments.training.schedule import schedule

UNTIL_DECIDED: Literal["until decided"] = "until decided"
BATCH = 16  # seeds between two looks (interim analyses), unless given
_FEWEST = 2  # fewest seeds that give an interval
_LABEL = r"\w[\w.-]*"  # pattern of labels of arms in files
Options = Mapping[str, Any]  # option -> value
Bases = Mapping[tuple[str, str], RunConfig]  # (task, label of the arm) -> configuration
_Config = TypeVar("_Config")


@dataclasses.dataclass(frozen=True)
class Arm:
    """A replay method with its options: one line of a figure.

    Attributes:
      replay: name of the method.
      options: options of the method that differ from the defaults or the preset.
      agent: name of the agent, for studies that compare agents; None means the agent of the study.
      agent_options: options of the agent that differ from the study's.
      loop: options of the training loop that differ from the study's.
      sizes: options of the replay sizes that differ from the study's.
      env: options of the environments that differ from the study's.
      memory: capacity of the replay, as a multiple of the study's capacity.
    """

    replay: str
    options: Options = dataclasses.field(default_factory=dict)
    agent: str | None = None
    agent_options: Options = dataclasses.field(default_factory=dict)
    loop: Options = dataclasses.field(default_factory=dict)
    sizes: Options = dataclasses.field(default_factory=dict)
    env: Options = dataclasses.field(default_factory=dict)
    memory: float = 1.0


@dataclasses.dataclass(frozen=True)
class Saved:
    """A study with configurations that have not been validated, such as one from a file.

    Attributes:
      bases: configuration of every arm on every task, before settings of the grid apply. The field
        `seeds` of a configuration is the number of seeds or, if the question is `until_decided`,
        the number of seeds between two looks (interim analyses).
      axes: settings of the grid.
      question: primary metric, baseline and design, fixed before anything runs.
      options: outputs of the study.
      claims: families of claims about the arms, by name; p-values are corrected within a family.
        Without claims, a sequential study decides whether each arm is better than the baseline.
    """

    bases: Mapping[tuple[str, str], Any]
    axes: tuple[Axis, ...] = ()
    question: Question = Question()
    options: StudyOptions = StudyOptions()
    claims: Mapping[str, tuple[Claim, ...]] = dataclasses.field(default_factory=dict)

    def metric(self, env: str) -> PrimaryMetric:
        """Return the primary metric on a task.

        Raises:
          ValueError: If no metric has the name in the question, or the metric needs a threshold and
            the task has none.
        """
        return primary.parse(self.question.primary, self.options.threshold_of(env))

    def validated(self, folder: Path) -> "Study":
        """Return the study with validated configurations.

        Args:
          folder: folder or file of the study, which errors name.

        Raises:
          ValueError: If a configuration is invalid, or needs a module that is not imported.
        """
        bases = {key: run_config.from_folder(own, folder) for key, own in self.bases.items()}
        return Study(**{**vars(self), "bases": bases})


@dataclasses.dataclass(frozen=True)
class Study(Saved):
    """A set of runs and the question that they answer.

    Every arm runs on every task with every combination of the settings, with the same seeds.
    `make` builds a study from names and options; `Saved` describes the attributes.
    """

    bases: Bases

    @classmethod
    def make(
        cls,
        envs: str | Sequence[str],
        agent: str,
        arms: Mapping[str, Arm | str] | Sequence[str],
        *,
        seeds: int | Literal["until decided"] = 10,
        seed: int = 0,
        preset: str | None = None,
        loop: Options | None = None,
        sizes: Options | None = None,
        agent_options: Options | None = None,
        env_options: Options | None = None,
        replay_options: Options | None = None,
        grid: Mapping[str, Sequence[Any]] | None = None,
        question: Question = Question(),
        options: StudyOptions = StudyOptions(),
        claims: Sequence[Claim] = (),
    ) -> "Study":
        """Build a study from names and options.

        Options that only some agents or methods have are left out for the other arms.

        Args:
          envs: names of the tasks.
          agent: name of the agent.
          arms: arms or names of replay methods by label, or a list of names, which are the labels.
          seeds: number of seeds, or "until decided" to add seeds until every arm is decided.
          seed: the first seed.
          preset: name of published settings, which replace the defaults, or None.
          loop: options of the training loop, such as `{"steps": 40_000}`.
          sizes: options of the replay, such as `{"batch_size": 32}`.
          agent_options: options of the agent.
          env_options: options of the environments.
          replay_options: options of the replay methods.
          grid: values by setting, such as `{"replay.alpha": [0.4, 0.6]}`.
          question: primary metric, baseline and design.
          options: outputs of the study.
          claims: claims about the arms, whose p-values are corrected together.

        Raises:
          ValueError: If a name or an option is unknown, or options are incompatible.

        Example:
          >>> study = Study.make("walk/10", "dqn", ["uniform", "per"], loop={"steps": 2_000})
          >>> [label for _, label in study.bases]
          ['uniform', 'per']
        """
        if seeds == UNTIL_DECIDED:
            question, seeds = dataclasses.replace(question, until_decided=True), BATCH
        if isinstance(seeds, str):
            raise ValueError(f"seeds must be an integer or '{UNTIL_DECIDED}', got {seeds!r}")
        if isinstance(arms, str):
            raise ValueError(f"arms must be a list of names, got '{arms}': use ['{arms}']")
        shared = {
            "loop": loop or {}, "sizes": sizes or {}, "env_options": env_options or {},
            "agent_options": agent_options or {}, "replay_options": replay_options or {},
        }  # fmt: skip
        labelled = arms if isinstance(arms, Mapping) else {name: name for name in arms}
        bases = {}
        for env in (envs,) if isinstance(envs, str) else envs:
            for label, arm in labelled.items():
                arm = Arm(arm) if isinstance(arm, str) else arm
                try:
                    config = configure(arm, env, agent, preset, shared)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"arm {label} on {env}: {error}") from error
                bases[env, label] = dataclasses.replace(config, seeds=seeds, seed=seed)
        for section in ("agent_options", "replay_options"):
            known = [getattr(config, section) for config in bases.values()]
            _check_known(section, shared[section], *known)
        axes = [
            Axis(name, tuple(map(shown_value, values))) for name, values in (grid or {}).items()
        ]
        families = {"claims": tuple(claims)} if claims else {}
        return cls(bases, tuple(axes), question, options, claims=families)

    @property
    def is_run(self) -> bool:
        """Whether the study is a single run: one arm on one task, without a grid or comparison."""
        return len(self.bases) == 1 and not (self.axes or self.compares)

    @property
    def envs(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return tuple(dict.fromkeys(env for env, _ in self.bases))

    @property
    def baseline(self) -> str:
        """Label of the baseline.

        Unless the question names one, this is the first arm with uniform replay. Without such an
        arm, it is the first arm with a uniform sampler, and otherwise the first arm.
        """
        configs = {label: config for (_, label), config in self.bases.items()}
        return self.question.baseline or facts.baseline_of(configs)

    @property
    def max_seeds(self) -> int:
        """Largest number of seeds that an arm can get."""
        seeds = next(iter(self.bases.values())).seeds
        return max(self.question.most_seeds, seeds) if self.question.until_decided else seeds

    @property
    def looks(self) -> list[int]:
        """Numbers of seeds at which arms are compared.

        A study that adds seeds compares its arms at several numbers of seeds, each at least ten.
        Every other study compares them once.
        """
        first = next(iter(self.bases.values())).seeds
        if not self.question.until_decided:
            return [first]
        found = [*range(first, self.max_seeds, first), self.max_seeds]
        return [seeds for seeds in found if seeds >= FEWEST_SEEDS]

    def points(self) -> list[Point]:
        """Return the points: every arm, and the control if any, on every task with its settings.

        Raises:
          ValueError: If a setting is unknown or a value is invalid.
        """
        options = self.options
        return grid.expand(self.axes, self._with_control(), options.defaults, options.together)

    def check(self) -> list[str]:
        """Validate that the runs can answer the question, before anything is compiled.

        Returns:
          Remarks for the user.

        Raises:
          ValueError: If the baseline is unknown, there are too few seeds or evaluations, or the
            settings of the grid are invalid.
        """
        labels = list(dict.fromkeys(label for _, label in self.bases))
        first, question = next(iter(self.bases.values())), self.question
        if CONTROL in labels:
            raise ValueError(
                f"an arm has the label '{CONTROL}', which is the baseline with other seeds: use "
                "another label"
            )
        if question.baseline is not None and question.baseline not in labels:
            raise ValueError(
                f"baseline '{question.baseline}' is not an arm: use one of {', '.join(labels)}"
            )
        if question.control and first.seeds < _FEWEST:
            raise ValueError(
                f"seeds is {first.seeds}: a comparison needs {_FEWEST} seeds for an interval, and "
                f"{FEWEST_SEEDS} seeds for a verdict: use more --seeds, or --control false"
            )
        if question.until_decided:
            if question.most_seeds < first.seeds:
                raise ValueError(
                    f"most_seeds is {question.most_seeds}, fewer than the first batch of "
                    f"{first.seeds} seeds: use a most_seeds of at least {first.seeds}"
                )
            if len(labels) < 2 and not self.claims:
                raise ValueError(
                    "until_decided compares arms, and there is only one: add a second arm"
                )
        for env in self.envs:
            self.metric(env)
        self._check_claims()
        remarks = grid.lacking(self.axes, self.bases)
        for point in self.points():
            metric = self.metric(point.env)
            metric.check(len(schedule(point.config.loop, point.config.sizes.num_envs).log_points))
            remarks += _remarks(point)
        fewest = first.seeds
        if fewest < FEWEST_SEEDS and self.compares and not question.until_decided:
            remarks.append(f"{fewest} seeds are a pilot: a verdict needs {FEWEST_SEEDS}")
        return list(dict.fromkeys(remarks))

    def _check_claims(self) -> None:
        """Raise ValueError for a claim that the results of the study cannot answer."""
        points = {(point.env, point.name): point.config for point in self.points()}
        names = dict.fromkeys(name for _, name in points)
        labels = {label for _, label in self.bases}
        for claim in (claim for own in self.claims.values() for claim in own):
            for label in claim.labels:
                # A study may lack some of the replay ratios ("_every4") that its claims name.
                if label not in names and label.partition("_every")[0] not in labels:
                    raise ValueError(
                        f"claim '{claim.says}' names the arm '{label}', which the study does not "
                        f"have: use one of {', '.join(names)}"
                    )
            envs = [env for env in self.envs if claim.where.get("env", env) == env]
            if not envs:
                raise ValueError(
                    f"claim '{claim.says}' has where={claim.where}, but its task is not in the "
                    f"study: use one of {', '.join(self.envs)} as 'env'"
                )
            if claim.least and len(envs) > 1:
                raise ValueError(
                    f"claim '{claim.says}' has a 'least' effect, in the unit of a single task, but "
                    "is about several tasks: name one task as 'env' in its 'where'"
                )
            for env, pair in itertools.product(envs, claim.pairs) if not claim.across else ():
                both = [points.get((env, label)) for label in pair]
                own, other = (config and facts.shared_settings(config) for config in both)
                if own and other and (differs := [k for k in own if own[k] != other[k]]):
                    options = ", ".join(name.rpartition(".")[2] for name in differs)
                    raise ValueError(
                        f"claim '{claim.says}' compares arms that differ in {options}: use "
                        "across=True if the claim is about this difference"
                    )
            if claim.primary is not None and not claim.primary.startswith(MEAN):
                primary.parse(claim.primary, self.options.threshold_of(envs[0]))

    @property
    def compares(self) -> bool:
        """Whether the study has a claim, or an arm that can be compared with a baseline."""
        several = len({label for _, label in self.bases}) > 1
        return several or self._has_control or bool(self.claims)

    @property
    def _has_control(self) -> bool:
        seeds = next(iter(self.bases.values())).seeds
        return self.question.control and seeds >= _FEWEST

    def _with_control(self) -> Bases:
        bases = dict(self.bases)
        if self._has_control:
            for env in self.envs:
                config = bases[env, self.baseline]
                other = dataclasses.replace(config, seed=config.seed + self.max_seeds)
                bases[env, CONTROL] = other
        return bases

    def to_json(self) -> dict[str, Any]:
        """Return the study as nested plain values."""
        bases: dict[str, dict[str, Any]] = {}
        for (env, label), config in self.bases.items():
            bases.setdefault(env, {})[label] = config.to_json()
        return {
            "bases": bases,
            "axes": {axis.name: list(axis.texts) for axis in self.axes},
            "question": dataclasses.asdict(self.question),
            "options": dataclasses.asdict(self.options),
            "claims": {
                name: [dataclasses.asdict(claim) for claim in own]
                for name, own in self.claims.items()
            },
        }


def from_json(saved: Any) -> Saved:
    """Read the value of `Study.to_json`, which may come from another person's folder.

    No part of the value is run, and no module that it names is imported.

    Raises:
      ValueError: If a field is missing, unknown, or of the wrong type.
    """
    try:
        axes = [grid.read_axis(f"{name}={','.join(own)}") for name, own in saved["axes"].items()]
        question = _filled(Question(), saved["question"])
        options = _filled(StudyOptions(), saved["options"])
        envs = saved["bases"].items()
        bases = {(env, label): own for env, arms in envs for label, own in arms.items()}
        claims = {
            name: tuple(_filled(Claim("", "", ""), claim) for claim in own)
            for name, own in saved.get("claims", {}).items()
        }
        if not bases:
            raise ValueError("it has no arm")
        for (env, label), config in bases.items():
            if config["env"] != env or not re.fullmatch(_LABEL, label):
                raise ValueError(
                    f"task '{env}', arm '{label}': the label is invalid, or the configuration is "
                    "that of another task"
                )
    except (AttributeError, KeyError, TypeError, argparse.ArgumentTypeError) as error:
        raise ValueError(f"{error}") from None
    return Saved(bases, tuple(axes), question, options, claims)


def configure(
    arm: Arm, env: str, agent: str, preset: str | None, shared: Mapping[str, Options]
) -> RunConfig:
    """Return the configuration of an arm on a task.

    Args:
      arm: the arm.
      env: name of the task.
      agent: name of the agent, unless the arm has its own.
      preset: name of published settings, which replace the defaults, or None.
      shared: options of all arms by section: loop, sizes, env_options, agent_options and
        replay_options.

    Raises:
      TypeError: If a value has the wrong type.
      ValueError: If an option is unknown, or a value is invalid.
    """
    config = run_config.defaults(env, arm.agent or agent, arm.replay, preset)

    def known(section: str) -> Options:
        names = {field.name for field in dataclasses.fields(getattr(config, section))}
        return {name: value for name, value in shared[section].items() if name in names}

    chosen = {
        "loop": {**shared["loop"], **arm.loop},
        "sizes": {**shared["sizes"], **arm.sizes},
        "env_options": {**shared["env_options"], **arm.env},
        "agent_options": {**known("agent_options"), **arm.agent_options},
        "replay_options": {**known("replay_options"), **arm.options},
    }
    sections = {}
    for name, values in chosen.items():
        _check_known(name, values, getattr(config, name))
        sections[name] = dataclasses.replace(getattr(config, name), **values)
    config = dataclasses.replace(config, **sections)
    if (capacity := config.sizes.capacity) is None:
        return config
    sizes = dataclasses.replace(config.sizes, capacity=int(arm.memory * capacity))
    return dataclasses.replace(config, sizes=sizes)


def _check_known(section: str, names: Iterable[str], *options: Any) -> None:
    """Raise ValueError unless every name is a field of at least one of the options."""
    known = sorted({field.name for own in options for field in dataclasses.fields(own)})
    if unknown := [name for name in names if name not in known]:
        choices = f"use one of {', '.join(known)}" if known else "it has no options"
        raise ValueError(f"{section} has no '{unknown[0]}': {choices}")


def _remarks(point: Point) -> list[str]:
    """Return remarks on the length of a run, and on the number of updates of a learned sampler."""
    plan = schedule(point.config.loop, point.config.sizes.num_envs)
    taken, asked = plan.steps[-1], point.config.loop.steps
    line = (
        f"{taken:,} agent steps, {asked:,} rounded up to whole learning phases of "
        f"{plan.block_steps:,}"
    )
    return [line] * (taken != asked) + _on_updates(point)


def _on_updates(point: Point) -> list[str]:
    """Return a remark if a learned sampler has too few updates to count as tested."""
    config, loop = point.config, point.config.loop
    if facts.learns_from(config) != "evaluation":
        return []
    every = loop.observe_every
    log_points = len(schedule(loop, config.sizes.num_envs).log_points)
    updates = (log_points if every is None else (loop.steps - loop.warmup) // every) - 1
    if updates >= FEWEST_UPDATES:
        return []
    return [
        f"{point.label} learns from at most {max(updates, 0)} evaluations, but counts as tested "
        f"only from {FEWEST_UPDATES} evaluations on: use a lower observe_every"
    ]


def _filled(usual: _Config, saved: Mapping[str, Any]) -> _Config:
    """Return options with saved values; options that were not saved have their defaults."""
    wanted = {field.name for field in dataclasses.fields(usual)}  # pyright: ignore[reportArgumentType]
    if unknown := sorted(set(saved) - wanted):
        raise ValueError(f"option {unknown[0]} is unknown: options are {', '.join(sorted(wanted))}")
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in saved.items()}
    return dataclasses.replace(usual, **values)  # pyright: ignore[reportArgumentType]
