"""Entries: figures and tables of a paper, how they are made here, and their claims."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pandas as pd

from experiments.papers.experiment import SIZES, Experiment, Options, SizeName
from experiments.papers.tables import Data
from experiments.studies.claims import Claim as Claim

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
      sizes: options of the function, by size; a size that is missing is that before it.
      sources: patterns of the files that decide the numbers besides the library's.
      unit: of the values.
      higher_is_better: its direction.
      minutes: that size small takes on two cores.
      ratios: compare logarithms to base 2.
      needs: a module that the extra `papers` brings.
    """

    name: str
    function: Callable[[Request], pd.DataFrame]
    sizes: Mapping[SizeName, Options]
    sources: tuple[str, ...] = ()
    unit: str = ""
    higher_is_better: bool = True
    ratios: bool = False
    minutes: float = 1.0
    needs: str = ""

    def options(self, size: SizeName) -> Options:
        """Return the options of a size; of one that is not there, those of the one before."""
        order = [name for name in SIZES if name in self.sizes]
        upto = [name for name in order if SIZES.index(name) <= SIZES.index(size)]
        return self.sizes[(upto or order)[-1]]


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
      layout: of its figure; None: it is a table, or `figure_of` names another's.
      arms: labels that it shows; (): all.
      columns: metrics whose means over training stand next to the final scores.
      claims: what the paper says there.
      reported: the paper's own numbers, as a table's cells, the header first; (): none.
      ours: makes the same statistic of our runs, in the same form, where the paper's is one over
        many games.
      lost: what of the paper our copy lost, or why there are no numbers.
      comparable: False if its numbers depend on another simulator: only orders can be compared.
      published: the experiment of size paper, where the small one is of other tasks.
      missing: why it can't be had.
      note: how the version here differs, one sentence each.
      figure_of: the entry whose figure is this one's, too, here if not in the paper; "": none.
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
    figure_of: str = ""
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
