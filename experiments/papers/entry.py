"""Entries: figures and tables of papers, each with its claims and the source of our numbers.

The source is an `Experiment`, which is a study in up to three sizes, or a `Computation`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import pandas as pd

from experiments.papers.archive import KEPT, Data
from experiments.statistics.claims import Claim as Claim
from experiments.studies import facts
from experiments.studies.definition import Arm as Arm
from experiments.studies.definition import Options, Study
from experiments.studies.grid import Point
from experiments.studies.options import Question, StudyOptions

PAPERS: Mapping[str, str] = {
    "per": "Schaul et al. 2016, Prioritized experience replay",
    "lap": "Fujimoto, Meger and Precup 2020, An equivalence between loss functions and "
    "non-uniform sampling in experience replay",
    "pser": "Brittain et al. 2019, Prioritized sequence experience replay",
    "ners": "Oh et al. 2021, Learning to sample with local and global contexts in experience "
    "replay buffer",
    "refer": "Novati and Koumoutsakos 2019, Remember and forget for experience replay",
    "all": "No paper's: tasks on which what is replayed matters",
    "regimes": "Regimes of replay: when non-uniform replay matters",
}
SizeName = Literal["smoke", "small", "paper"]
SIZES: tuple[SizeName, ...] = get_args(SizeName)
# Size "smoke" replaces these options of size "small", so that any compiled task takes seconds.
_SMOKE_LOOP: Options = {
    "steps": 1_500, "warmup": 300, "eval_every": 150, "eval_episodes": 1, "observe_every": 50,
}  # fmt: skip
_SMOKE_SIZES: Options = {"batch_size": 16, "capacity": 1_024}
_SMOKE_SEEDS = 2


@dataclass(frozen=True)
class Size:
    """Size at which an experiment can run: its tasks, seeds and options.

    Attributes:
      envs: full names of the tasks.
      seeds: number of seeds of every arm on every task.
      loop: options of the training loop.
      sizes: sizes of the replay, such as its capacity and batch size.
      agent: options of the agent; an arm ignores those that its agent does not have.
      env: options of the tasks.
      preset: published settings, which the options of this size override.
      arms: labels of the arms to run, by default all.
      every: values of `learn_every` to compare, by default the value in `loop`.
      note: one sentence about the settings of this size, for reports.
      replay: options of the methods; an arm ignores those that its method does not have.
      most_seeds: if positive, `seeds` seeds are added at a time until every claim is decided, at
        most to this number; with 0, a single test uses `seeds` seeds.
      thin: as in `StudyOptions`.
      width: as in `StudyOptions`.
    """

    envs: tuple[str, ...]
    seeds: int
    loop: Options = field(default_factory=dict)
    sizes: Options = field(default_factory=dict)
    agent: Options = field(default_factory=dict)
    env: Options = field(default_factory=dict)
    preset: str | None = None
    arms: tuple[str, ...] = ()
    every: tuple[int, ...] = ()
    note: str = ""
    replay: Options = field(default_factory=dict)
    most_seeds: int = 0
    thin: int = 1
    width: int | None = None


@dataclass(frozen=True)
class Experiment:
    """A comparison of arms on tasks, in several sizes; several entries can share its runs.

    Size "smoke" is derived from size "small": two arms on the first task, for seconds.

    Attributes:
      name: name of the experiment's files.
      agent: agent of all arms that do not have their own agent.
      arms: arms by label.
      small: size of the committed results, or None if there is only size "paper".
      paper: published settings, or None if the paper has no experiment of this kind.
      question: primary metric and baseline, fixed before the runs.
      columns: metrics in the experiment's table, in addition to `archive.KEPT`.
      smoke: fields of `Size` to override in size "smoke", with their values.
    """

    name: str
    agent: str
    arms: Mapping[str, Arm]
    small: Size | None = None
    paper: Size | None = None
    question: Question = Question()
    columns: tuple[str, ...] = ()
    smoke: Options = field(default_factory=dict)

    @property
    def sizes(self) -> dict[SizeName, Size]:
        """The available sizes by name."""
        found = {"smoke": self.small and self._smoke(self.small), "small": self.small}
        return {name: size for name, size in {**found, "paper": self.paper}.items() if size}

    def _smoke(self, small: Size) -> Size:
        """Return size "smoke", which tests in seconds that the experiment runs."""
        labels = small.arms or tuple(self.arms)
        tiny = replace(
            small, envs=small.envs[:1], seeds=_SMOKE_SEEDS, preset=None, note="",
            loop={**small.loop, **_SMOKE_LOOP}, sizes={**small.sizes, **_SMOKE_SIZES},
            agent={**small.agent, "hidden": (8, 8)}, every=small.every[-1:], most_seeds=0,
            arms=tuple(dict.fromkeys([self.question.baseline or labels[0], labels[-1]])),
        )  # fmt: skip
        return replace(tiny, **self.smoke)

    def study(self, size: SizeName, claims: Mapping[str, tuple[Claim, ...]] | None = None) -> Study:
        """Return the study of a size, with `claims` by id of the entry.

        The study of size "smoke" has no control arm.

        Raises:
          ValueError: an arm does not fit its task, or an option does not fit its arm.
        """
        chosen, question = self.sizes[size], self.question
        if size == "smoke":
            question = replace(question, control=False)
        if chosen.most_seeds:
            question = replace(question, until_decided=True, most_seeds=chosen.most_seeds)
        try:
            study = Study.make(
                chosen.envs, self.agent,
                {label: self.arms[label] for label in chosen.arms or self.arms},
                seeds=chosen.seeds, preset=chosen.preset, loop=chosen.loop, sizes=chosen.sizes,
                agent_options=chosen.agent, env_options=chosen.env, replay_options=chosen.replay,
                grid={"learn_every": chosen.every} if chosen.every else None, question=question,
            )  # fmt: skip
        except KeyError as error:
            raise ValueError(f"experiment {self.name}, size {size}: no arm {error}") from error
        except ValueError as error:
            raise ValueError(f"experiment {self.name}, size {size}: {error}") from error
        kept = [*KEPT, *self.columns]
        if not any(map(facts.learns_from, study.bases.values())):
            kept.remove("replay/sampler_updates")
        options = StudyOptions(
            keep=tuple(dict.fromkeys(kept)),
            digits=4,
            thin=chosen.thin,
            width=chosen.width,
            figures=False,
            report=False,
        )
        return replace(study, options=options, claims=dict(claims or {}))

    def points(self, size: SizeName) -> dict[str, dict[str, Point]]:
        """Return the points of the study's grid, with the control arm, as task -> arm -> point.

        Names of arms include the value of `learn_every` if the size compares several.

        Raises:
          ValueError: an arm does not fit its task, or an option does not fit its arm.
        """
        found: dict[str, dict[str, Point]] = {env: {} for env in self.sizes[size].envs}
        for point in self.study(size).points():
            found[point.env][point.name] = point
        return found


@dataclass(frozen=True)
class Exact:
    """A claim that two numbers are equal, such as both sides of a theorem.

    The entry's table has columns claim, expected, found and tolerance (absolute). The claim agrees
    if |found - expected| <= tolerance in all rows about the claim.

    Attributes:
      says: the claim in words.
      claim: value of column `claim` in the rows about this claim.
    """

    says: str
    claim: str


Row = dict[str, Any]  # row of a computed table: numbers and text by column


class Request(NamedTuple):
    """Argument of a function that computes a table.

    A computation that takes minutes is divided into parts: `part(name, compute)` returns the saved
    rows of a part that was finished before an interruption, and otherwise the rows of `compute()`.
    The rows of a part may depend only on the options and the name of the part.
    """

    options: Options  # options of the computation at one size
    say: Callable[[str], None]  # prints a line of progress
    part: Callable[[str, Callable[[], list[Row]]], list[Row]] = lambda name, compute: compute()


@dataclass(frozen=True)
class Computation:
    """A table computed without training runs: theory, tabular or supervised learning, data.

    Attributes:
      name: name of the computation's files.
      function: returns the table, one number per row. Rows for claims of type `Claim` have columns
        arm, seed and value; rows for claims of type `Exact` have the columns described there.
      made_of: options of the function.
      smoke: options to override in size "smoke", with their values.
      sources: patterns of source files that decide the numbers, in addition to the library.
      unit: unit of the values.
      higher_is_better: whether larger values are better.
      minutes: duration in size "small" on two cores.
      ratios: whether values are compared as logarithms to base 2.
      needs: name of a module that the extra `papers` installs.
      looks: number of seeds between two looks (interim analyses) of a sequential test, which needs
        at least this number of seeds; 0 for a single test of all seeds.
    """

    name: str
    function: Callable[[Request], pd.DataFrame]
    made_of: Options
    smoke: Options = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    unit: str = ""
    higher_is_better: bool = True
    ratios: bool = False
    minutes: float = 0.01
    needs: str = ""
    looks: int = 0

    def options(self, size: SizeName) -> Options:
        """Return the options in a size; they are the same in sizes "small" and "paper"."""
        return {**self.made_of, **self.smoke} if size == "smoke" else self.made_of


Source = Experiment | Computation


@dataclass(frozen=True)
class Layout:
    """Layout of a figure of a paper.

    Attributes:
      draw: function with the signature of those in `experiments.papers.layouts`.
      options: keyword arguments of the function.
      where: column -> value of the rows to plot.
    """

    draw: Callable[..., None]
    options: Options = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A figure or a table of a paper.

    Attributes:
      id: key of PAPERS and number of the figure or table, such as `per.fig1`.
      shows: title in one line.
      source: experiment or computation, or None if the entry cannot be reproduced (see `missing`).
      layout: layout of the figure, or None for a table and for a figure that another entry draws.
      arms: labels of the arms to show, by default all.
      claims: claims of the paper.
      columns: metrics for which reports list means over training next to the final scores.
      reported: cells of the paper's table, header first, or () if there is none.
      ours: if `reported` has statistics over many games, function that computes these statistics
        from our results and returns the cells of a table.
      lost: part of the paper that is missing in our copy, or reason why there are no numbers.
      comparable: whether numbers can be compared with the paper's. If False, because the simulator
        or the tasks differ, only the order of methods can be compared.
      published: experiment for size "paper", if its tasks differ from those of size "small".
      missing: reason why the entry cannot be reproduced.
      note: differences from the paper, one sentence each.
      swept: for a sweep, whose claims are one claim under many settings, a description of this
        claim; reports count the verdicts in one row. "" if the entry is not a sweep.
    """

    id: str
    shows: str
    source: Source | None = None
    layout: Layout | None = None
    arms: tuple[str, ...] = ()
    claims: tuple[Claim | Exact, ...] = ()
    columns: tuple[str, ...] = ()
    reported: tuple[tuple[str, ...], ...] = ()
    ours: Callable[[Data], list[list[str]]] | None = None
    lost: str = ""
    comparable: bool = True
    published: Experiment | None = None
    missing: str = ""
    note: tuple[str, ...] = ()
    swept: str = ""

    @property
    def paper(self) -> str:
        """Key of the paper in PAPERS."""
        return self.id.partition(".")[0]

    def at(self, size: SizeName) -> "Entry":
        """Return this entry, with `published` as its source in size "paper" if it is given.

        Raises:
          ValueError: the experiment does not have this size.
        """
        entry = self
        if size == "paper" and self.published is not None:
            entry = replace(self, source=self.published)
        if isinstance(entry.source, Experiment) and size not in entry.source.sizes:
            raise ValueError(
                f"{self.id} has no size {size}: choose one of {', '.join(entry.source.sizes)}"
            )
        return entry
