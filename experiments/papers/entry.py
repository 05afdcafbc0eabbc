"""Entries: figures and tables of a paper, how they are made here, and their claims.

An entry's numbers come from an `Experiment`, which is a study in up to three sizes, or from a
`Computation`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import pandas as pd

from experiments.papers.tables import KEPT, Data
from experiments.runs.run_config import RunConfig
from experiments.studies import facts
from experiments.studies.claims import Claim as Claim
from experiments.studies.grid import Axis, Point
from experiments.studies.options import Question, StudyOptions
from experiments.studies.study import Arm as Arm
from experiments.studies.study import Options, Study, configure

PAPERS: Mapping[str, str] = {
    "per": "Schaul et al. 2016, Prioritized experience replay",
    "lap": "Fujimoto, Meger and Precup 2020, An equivalence between loss functions and "
    "non-uniform sampling in experience replay",
    "pser": "Brittain et al. 2019, Prioritized sequence experience replay",
    "ners": "Oh et al. 2021, Learning to sample with local and global contexts in experience "
    "replay buffer",
    "refer": "Novati and Koumoutsakos 2019, Remember and forget for experience replay",
    "all": "No paper's: tasks on which what is replayed matters",
}
SizeName = Literal["smoke", "small", "paper"]
SIZES: tuple[SizeName, ...] = get_args(SizeName)
# Size smoke is size small with these: seconds on any task that compiles.
_SMOKE_LOOP: Options = {
    "steps": 1_500, "warmup": 300, "eval_every": 150, "eval_episodes": 1, "observe_every": 50,
}  # fmt: skip
_SMOKE_SIZES: Options = {"batch_size": 16, "capacity": 1_024}
_SMOKE_SEEDS = 2


@dataclass(frozen=True)
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
    loop: Options = field(default_factory=dict)
    sizes: Options = field(default_factory=dict)
    agent: Options = field(default_factory=dict)
    env: Options = field(default_factory=dict)
    preset: str | None = None
    arms: tuple[str, ...] = ()
    every: tuple[int, ...] = ()
    note: str = ""
    replay: Options = field(default_factory=dict)
    untested: Mapping[str, str] = field(default_factory=dict)
    most_seeds: int = 0


@dataclass(frozen=True)
class Experiment:
    """Runs that entries share: arms that differ in their methods alone, on tasks, in sizes.

    Size smoke is derived from size small: two arms on its first task, for seconds.

    Attributes:
      name: of its files.
      agent: that all arms have which name no other.
      arms: by label.
      small: what is committed; None: there is size paper alone.
      paper: as published; None: there is no such size.
      question: primary metric and baseline, fixed before anything runs.
      columns: metrics that its table keeps, besides those that every table has.
      smoke: fields of `Size` that size smoke has instead.
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
        """The sizes that there are, by name."""
        found = {"smoke": self.small and self._smoke(self.small), "small": self.small}
        return {name: size for name, size in {**found, "paper": self.paper}.items() if size}

    def _smoke(self, small: Size) -> Size:
        """Return the size that shows in seconds that an experiment runs."""
        labels = small.arms or tuple(self.arms)
        tiny = replace(
            small, envs=small.envs[:1], seeds=_SMOKE_SEEDS, preset=None, note="", untested={},
            loop={**small.loop, **_SMOKE_LOOP}, sizes={**small.sizes, **_SMOKE_SIZES},
            agent={**small.agent, "hidden": (8, 8)}, every=small.every[-1:], most_seeds=0,
            arms=tuple(dict.fromkeys([self.question.baseline or labels[0], labels[-1]])),
        )  # fmt: skip
        return replace(tiny, **self.smoke)

    def study(self, size: SizeName, claims: Mapping[str, tuple[Claim, ...]] | None = None) -> Study:
        """Return the study of a size; size smoke has no control.

        Raises:
          ValueError: an arm does not fit its task, or an option its arm.
        """
        chosen = self.sizes[size]
        question = self.question
        if size == "smoke":
            question = replace(question, control=False)
        if chosen.most_seeds:
            question = replace(question, until_decided=True, most_seeds=chosen.most_seeds)
        bases = {
            (env, label): self._config(label, env, chosen)
            for env in chosen.envs
            for label in chosen.arms or self.arms
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

    def _config(self, label: str, env: str, size: Size) -> RunConfig:
        shared = {
            "loop": size.loop, "sizes": size.sizes, "env_options": size.env,
            "agent_options": size.agent, "replay_options": size.replay,
        }  # fmt: skip
        try:
            config = configure(self.arms[label], env, self.agent, size.preset, shared)
        except (TypeError, ValueError) as error:
            raise ValueError(f"experiment {self.name}, arm {label} on {env}: {error}") from error
        return dataclasses.replace(config, seeds=size.seeds)


def named(*replays: str) -> dict[str, Arm]:
    """Return an arm for each method, with its default options, by the method's name."""
    return {name: Arm(name) for name in replays}


@dataclass(frozen=True)
class Exact:
    """A claim about numbers, such as a theorem's: every row's `found` is `expected`.

    Rows of the table have columns claim, expected, found and tolerance (absolute).

    Attributes:
      says: the claim in words.
      claim: which rows it is about.
    """

    says: str
    claim: str


Row = dict[str, Any]  # of a computed table: numbers and words by column


class Request(NamedTuple):
    """What a function that computes a table is asked for.

    What takes minutes is asked for in parts, `part(name, compute)`: the rows of those that were
    finished before an interruption are there already. The options and a part's name decide its
    rows, whichever parts were computed before it.
    """

    options: Options  # of its size
    say: Callable[[str], None]  # progress
    part: Callable[[str, Callable[[], list[Row]]], list[Row]] = lambda name, compute: compute()


@dataclass(frozen=True)
class Computation:
    """Numbers that no training run gives: theory, tabular learning, data, supervised learning.

    Attributes:
      name: of its files.
      function: returns the table, a row per number. What is compared has columns arm, seed and
        value; what is exact has those of `Exact`.
      made_of: options of the function.
      smoke: options that size smoke has instead.
      sources: patterns of the files that decide the numbers besides the library's.
      unit: of the values.
      higher_is_better: its direction.
      minutes: that size small takes on two cores.
      ratios: compare logarithms to base 2.
      needs: a module that the extra `papers` brings.
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

    def options(self, size: SizeName) -> Options:
        """Return the options of a size; size paper is size small."""
        return {**self.made_of, **self.smoke} if size == "smoke" else self.made_of


Source = Experiment | Computation


@dataclass(frozen=True)
class Layout:
    """How a figure of a paper is laid out.

    Attributes:
      draw: a function of `experiments.papers.layouts`, or one like them.
      options: its keyword arguments.
      where: values of columns that choose the rows that it shows.
    """

    draw: Callable[..., None]
    options: Options = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A figure or a table of a paper.

    Attributes:
      id: such as `per.fig1`: one of PAPERS, and what it is there.
      shows: what it shows, in one line.
      source: an experiment, a computation, or None: it can't be had, and `missing` says why.
      layout: of its figure; None: it is a table, or shows what another's figure does.
      arms: labels that it shows; (): all.
      claims: what the paper says there.
      columns: metrics whose means over training stand next to the final scores.
      reported: the paper's own numbers, as a table's cells, the header first; (): none.
      ours: makes the same statistic of our runs, in the same form, where the paper's is one over
        many games.
      lost: what of the paper our copy lost, or why there are no numbers.
      comparable: False if its numbers depend on another simulator: only orders can be compared.
      published: the experiment of size paper, where the small one is of other tasks.
      missing: why it can't be had.
      note: how the version here differs, one sentence each.
      swept: the claims are one claim under many settings, which a report counts; "": they are not.
    """

    id: str
    shows: str
    source: Source | None
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
        """One of PAPERS."""
        return self.id.partition(".")[0]

    def at(self, size: SizeName) -> "Entry":
        """Return the entry with the experiment of a size.

        Raises:
          ValueError: there is no such size.
        """
        entry = self
        if size == "paper" and self.published is not None:
            entry = replace(self, source=self.published)
        if isinstance(entry.source, Experiment) and size not in entry.source.sizes:
            raise ValueError(
                f"{self.id} has no size {size}: choose one of {', '.join(entry.source.sizes)}"
            )
        return entry
