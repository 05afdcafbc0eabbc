"""Claims about arms, and the runs that they are about: the inputs of `verdicts.judge`."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from experiments.statistics import primary, summaries

if TYPE_CHECKING:  # its import takes half a second, which `--help` does not need
    import pandas as pd

Direction = Literal["better", "at least as good", "worse", "either"]
Outcome = Literal[
    "agrees", "disagrees", "better", "worse", "no difference", "undecided", "not tested",
    "not comparable", "pilot", "no claim",
]  # fmt: skip

MEAN = "mean:"  # prefix of a metric's column, in the name of a claim's primary metric
CONTROL = "control"  # label of the control: the baseline with other seeds


@dataclass(frozen=True)
class Claim:
    """A claim about an arm and a baseline, chosen before anything runs.

    Attributes:
      says: the claim in words.
      arm: label of the arm.
      baseline: label of the arm that `arm` is compared with.
      direction: better, at least as good, or worse, in the direction of the metric. "either" makes
        no claim and compares the arms: its verdict is "better" or "worse", whereas a claim
        "agrees" or "disagrees".
      least: smallest effect that counts, in the unit of the metric, or as a logarithm to base 2 if
        the metric is a ratio. For "better", an arm wins a seed if it is better by more than
        `least`; for "at least as good", if it is worse by less than `least`. If `least` is 0, "at
        least as good" has the margin of the study, in the probability of improvement.
      where: values of columns that select the runs, such as `{"env": "walk/10"}`. A claim about
        several tasks has one verdict for all of them together.
      primary: metric that decides the claim, or None for the primary metric of the study. Besides
        the primary metrics, `mean:COLUMN` is the mean of a column after the warm-up.
      across: whether the arms may differ in agent, loop and sizes.
      beside: labels of a second arm and its baseline. The claim is then a contrast: the gain of
        `arm` over `baseline` is larger ("better") than the gain of the second arm over its
        baseline, seed by seed (see `contrast`).
    """

    says: str
    arm: str
    baseline: str
    direction: Direction = "better"
    least: float = 0.0
    where: Mapping[str, Any] = field(default_factory=dict)
    primary: str | None = None
    across: bool = False
    beside: tuple[str, str] | tuple[()] = ()

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Labels of arm and baseline, then of the second pair of a contrast."""
        return ((self.arm, self.baseline), *([self.beside] if self.beside else []))

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of all arms."""
        return (self.arm, self.baseline, *self.beside)

    @property
    def effect(self) -> float:
        """Difference that a win must exceed: `least` for "better", otherwise minus `least`."""
        return self.least if self.direction == "better" else -self.least

    def null(self, margin: float) -> float:
        """Return the share of untied pairs won by the arm under the null: 1/2 or 1/2 - margin."""
        return 0.5 - margin if self.direction == "at least as good" and not self.least else 0.5

    @property
    def may_find_no_difference(self) -> bool:
        """Whether "no difference" can be a verdict: not for "at least as good" or with `least`."""
        return self.direction != "at least as good" and not self.least


class NotAsked(ValueError):
    """Raised for a claim that the runs cannot answer; the message gives the reason.

    Attributes:
      outcome: "not tested", or "pilot" if there are too few seeds.
      absent: whether an arm or a task of the claim was not run.
    """

    def __init__(self, reason: str, outcome: Outcome = "not tested", absent: bool = False) -> None:
        super().__init__(reason)
        self.outcome: Outcome = outcome
        self.absent = absent


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of an arm on a task: one value per seed, and facts that the gate checks.

    Attributes:
      label: label of the arm.
      env: the task.
      values: `[seeds]`, indexed by seed in ascending order; higher is better, and a seed without a
        finite value is worse than all others.
      unit: unit of the values, for the reasons of verdicts.
      code: version of the code and settings of JAX; "" is comparable with any version.
      settings: options that compared arms must share: agent, loop, protocol, replay ratio.
      id: name of the runs in their study.
      metrics: log points, with columns seed, step, eval_return and further metrics, or None.
      warmup: agent steps of the warm-up.
      good_return: return of a good agent on the task, or None if unknown.
      prioritises: whether the method should draw non-uniformly; false for uniform replay and PAL.
      learned: whether the sampler has its own network.
      train_seconds: compute time of all seeds together, or None if unknown.
      is_control: whether these are runs of the baseline with other seeds.
      pair: arm and baseline, if the values are gains of the arm over the baseline (`contrast`).
    """

    label: str
    env: str
    values: pd.Series
    unit: str = ""
    code: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    metrics: pd.DataFrame | None = None
    warmup: int = 0
    good_return: float | None = None
    prioritises: bool = False
    learned: bool = False
    train_seconds: float | None = None
    is_control: bool = False
    pair: tuple[Runs, Runs] | tuple[()] = ()
    _first: dict[int, Runs] = field(default_factory=dict, init=False, repr=False)

    def first(self, seeds: int) -> Runs:
        """Return the runs of the first `seeds` seeds."""
        if seeds >= len(self.values):
            return self
        if seeds not in self._first:  # claims share runs, whose numbers take time
            values, metrics = self.values.iloc[:seeds], self.metrics
            if metrics is not None:
                metrics = metrics[metrics["seed"].isin(values.index)]
            pair = tuple(runs.first(seeds) for runs in self.pair)
            self._first[seeds] = replace(self, values=values, metrics=metrics, pair=pair)
        return self._first[seeds]

    @property
    def ids(self) -> tuple[str, ...]:
        """Names of these runs, or of the arm and the baseline of a pair (see `contrast`)."""
        return tuple(runs.id for runs in self.pair or (self,))

    @functools.cached_property
    def effective_buffer(self) -> float | None:
        """Effective share of the buffer: the mean over log points after the warm-up, and seeds."""
        return mean_after(self.metrics, "replayed/effective_buffer", self.warmup)

    @functools.cached_property
    def sampler_updates(self) -> float | None:
        """Updates of the sampler's network, mean over seeds; None without such a network."""
        if self.metrics is None or not self.learned or _UPDATES not in self.metrics:
            return None
        return known(self.metrics.groupby("seed")[_UPDATES].max().mean())

    @functools.cached_property
    def progress(self) -> float | None:
        """Progress of the agent towards a good return, from 0 to 1; see `progress_of`."""
        return None if self.metrics is None else progress_of(self.metrics, self.good_return)


_UPDATES = "replay/sampler_updates"


def contrast(pairs: Sequence[tuple[Runs, Runs]], end: float | None) -> tuple[Runs, Runs]:
    """Return the gains of two arms over their baselines, per seed that all four arms have.

    Seeds that diverged in any of the four arms have gains of NaN, and count as ties.

    Args:
      pairs: the first and the second arm, each with its baseline.
      end: agent steps of a run, if the values are negated numbers of steps. Gains are then in
        doublings, and a seed that never solved the task counts `end` steps. None for other values.
    """
    seeds = functools.reduce(lambda x, y: x.intersection(y), (
        runs.values.index for pair in pairs for runs in pair
    ))  # fmt: skip

    def of(runs: Runs) -> pd.Series:
        values = runs.values.loc[seeds]
        return values if end is None else -values.clip(lower=-end).map(lambda x: math.log2(-x))

    differences = [of(arm) - of(baseline) for arm, baseline in pairs]
    known = functools.reduce(operator.and_, (gains.map(math.isfinite) for gains in differences))
    first, second = (
        Runs(
            label=f"{pair[0].label} over {pair[1].label}", env=pair[0].env, pair=pair,
            values=round_values(gains.where(known)),
            unit=pair[0].unit if end is None else "in doublings of steps",
        )
        for pair, gains in zip(pairs, differences, strict=True)
    )  # fmt: skip
    return first, second


def values_of(metrics: pd.DataFrame, name: str, threshold: float | None, warmup: int) -> pd.Series:
    """Return a metric's values `[seeds]`, negated if lower is better; NaN for diverged seeds.

    Args:
      metrics: log points, with columns seed, step and eval_return.
      name: name of a primary metric, or `mean:COLUMN` for the mean of a column over the log points
        after the warm-up.
      threshold: return that counts as solved, if there is one.
      warmup: agent steps of the warm-up.

    Raises:
      NotAsked: the runs do not have the metric.
    """
    if name.startswith(MEAN):
        column = name.removeprefix(MEAN)
        if column not in metrics:
            raise NotAsked(f"no run recorded {column}")
        values = metrics[metrics["step"] > warmup].groupby("seed")[column].mean()
    else:
        metric = primary.parse(name, threshold)
        if (points := metrics["step"].nunique()) < metric.evaluations:
            raise NotAsked(f"{name} needs {metric.evaluations} evaluations, and there are {points}")
        values = metric(metrics) * (1 if metric.higher_is_better else -1)
    return values.mask(values.index.isin(summaries.diverged_seeds(metrics))).sort_index()


def round_values(values: pd.Series) -> pd.Series:
    """Round values to seven digits, so that float32 rounding errors do not break ties."""
    return values.map(lambda value: float(f"{value:.7g}"))


def progress_of(metrics: pd.DataFrame, good: float | None) -> float | None:
    """Return how far an agent got from its first evaluation to a good return.

    Progress is 0 at the first evaluation and 1 at a good return. The median return over seeds is
    averaged over a sliding window of a tenth of training, so that noise is not progress, and the
    largest average counts. If half of the seeds reach the good return, progress is 1.

    Args:
      metrics: log points with columns seed, step and eval_return.
      good: return of a good agent on the task, or None if it is unknown; then the result is None.
    """
    if good is None:
        return None
    reached = metrics.groupby("seed")["eval_return"].max() >= good
    if reached.mean() >= 0.5:
        return 1.0
    medians = summaries.curves(metrics).median(axis=1)
    if medians.empty:  # all seeds diverged
        return 0.0
    first, best = float(medians.iloc[0]), medians.rolling(max(1, len(medians) // 10)).mean().max()
    return (float(best) - first) / (good - first) if first < good else 0.0


def mean_after(metrics: pd.DataFrame | None, column: str, warmup: int) -> float | None:
    """Return a metric's mean over log points after the warm-up, then over seeds, or None.

    The warm-up is left out because every sampler is uniform before learning starts and shortly
    afterwards.

    Args:
      metrics: log points with columns seed, step and, if the run has it, `column`.
      column: name of the metric, such as `replayed/effective_buffer`; log points without a value
        are left out.
      warmup: agent steps of the warm-up; only later log points count.
    """
    if metrics is None or column not in metrics:
        return None
    late = metrics[(metrics["step"] > warmup) & metrics[column].notna()]
    return known(late.groupby("seed")[column].mean().mean())


def known(value: float | None) -> float | None:
    """Return a number, or None if it is missing or NaN."""
    return None if value is None or math.isnan(value) else float(value)
