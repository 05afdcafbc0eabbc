"""Search of every method's settings, with equal budgets, followed by runs with fresh seeds.

Each round asks the samplers for settings, runs them together in as few programs as possible, and
reports their scores, until every method has the same number of trials. The best settings and the
defaults of each method then run with fresh seeds, because the best of many scores on the seeds that
selected it is biased.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.runs import rates
from experiments.runs.assembly import Parts
from experiments.runs.interrupt import Stopped
from experiments.runs.run_config import RunConfig
from experiments.statistics.bootstrap import iqm
from experiments.statistics.primary import PrimaryMetric
from experiments.studies import devices as devices_
from experiments.studies import plan, programs, samplers, spaces
from experiments.studies.devices import Device
from experiments.studies.engines import Engine
from experiments.studies.grid import Place, Point
from experiments.studies.options import Where
from experiments.studies.plan import count
from experiments.studies.progress import Bar
from experiments.studies.samplers import Sampler
from experiments.studies.spaces import Space
from experiments.studies.store import Store, run_name
from experiments.studies.study import Study
from experiments.training.schedule import schedule
from experiments.training.spread import width_of


class Trial(NamedTuple):
    """One trial of settings."""

    settings: Mapping[Place, Any]
    point: str  # id of its point
    score: float | None = None  # interquartile mean over seeds; None if it failed
    failed: str | None = None  # reason of the failure


@dataclasses.dataclass
class Tuning:
    """The search of one method on one task.

    Attributes:
      base: configuration of the method with its default settings and the seeds of the trials.
      space: search space; {} if the method has none of the settings, and then no trials.
      sampler: sampler of the settings.
      higher_is_better: whether higher scores are better.
      trials: finished trials, in the order of the sampler's proposals.
    """

    env: str
    label: str
    base: RunConfig
    space: Space
    sampler: Sampler
    higher_is_better: bool
    trials: list[Trial] = dataclasses.field(default_factory=list)

    @property
    def best(self) -> Trial | None:
        """The first trial with the best score, or None if all failed."""
        scored = [trial for trial in self.trials if trial.score is not None]
        sign = 1 if self.higher_is_better else -1
        return max(scored, key=lambda trial: sign * (trial.score or 0.0), default=None)

    def facts(self, default: Point) -> dict[str, Any]:
        """Return the entry of this search in `study.json`."""
        best = self.best
        trials = [
            {"point": trial.point, "score": trial.score, "failed": trial.failed}
            for trial in self.trials
        ]
        return {"default": default.id, "best": best and best.point, "trials": trials}


@dataclasses.dataclass(frozen=True)
class Search:
    """A checked search.

    Attributes:
      studies: searches of every method on every task.
      study: the study that defines the search.
      where: limits of its execution.
      devices: devices to use.
      asked: all choices that determine the trials, as stored in `study.json`.
      defaults: points of the methods with default settings and fresh seeds, in the order of
        `studies`.
      run_bytes: largest size of the arrays of one run, over the ends of all ranges.
      program_cache: programs, which are made when first needed.
    """

    studies: tuple[Tuning, ...]
    study: Study
    where: Where
    devices: tuple[Device, ...]
    asked: Mapping[str, Any]
    defaults: tuple[Point, ...]
    run_bytes: int
    program_cache: programs.ProgramCache

    @property
    def base_points(self) -> dict[str, dict[str, str]]:
        """The ids of the defaults: task -> label -> id."""
        found: dict[str, dict[str, str]] = {}
        for point in self.defaults:
            found.setdefault(point.env, {})[point.label] = point.id
        return found

    def describe(self) -> list[str]:
        """Return lines that summarize the whole search, without regard to finished runs."""
        searched = [study for study in self.studies if study.space]
        runs, steps, made, seconds, how = 0, 0, 0, 0.0, self.study.search
        lines = []
        for study, default in zip(self.studies, self.defaults, strict=True):
            own, tests = self.budget(study)
            each = own + tests
            runs, steps = runs + each, steps + each * _steps(study.base)
            seconds += each * rates.seconds(study.base) / study.base.seeds
            apart, number = self._apart(study, default)
            made += number
            lines += self._about(study, apart)
        at_once = max(1, self.study.search.at_once * len(searched))
        minutes = (seconds + made * rates.COMPILING) / 60 / min(len(self.devices), at_once)
        batches = math.ceil(at_once * self.studies[0].base.seeds / _width(self))
        at_most = _width(self) * self.run_bytes * min(len(self.devices), batches)
        tasks = len({study.env for study in searched})
        head = (
            f"search by {how.search}: {count(how.trials, 'trial')} for each of "
            f"{count(len({study.label for study in searched}), 'method')}"
            f"{f' on each of {tasks} tasks' * (tasks > 1)}, {how.at_once} at once, with "
            f"{count(self.studies[0].base.seeds, 'seed')} each; then the best and the defaults "
            f"with {count(self.study.search.fresh_seeds, 'fresh seed')}"
        )
        total = (
            f"{count(runs, 'run')} at most, in at most {count(made, 'program')} on "
            f"{count(len(self.devices), 'device')}, {steps:,} agent steps; arrays of up to "
            f"{at_most / 1e9:.2g} GB at once; about {rates.in_words(minutes)} by past rates"
        )
        return [head, total, *lines]

    def budget(self, study: Tuning) -> tuple[int, int]:
        """Return the number of runs of a method in trials, and with fresh seeds."""
        own = self.study.search.trials * study.base.seeds if study.space else 0
        return own, self.study.search.fresh_seeds * (2 if study.space else 1)

    def _apart(self, study: Tuning, default: Point) -> tuple[list[Place], int]:
        """Return the settings that need separate programs, and the largest number of programs."""
        corners = spaces.corners(study.env, study.label, study.base, study.space)
        traced = {
            place
            for group in self.program_cache.grouped([default, *corners])
            for place in group.traced
        }
        apart = [place for place in study.space if place not in traced]
        sizes = [study.space[place].size for place in apart]
        sizes += [2 for place in traced if None in study.space[place].ends]
        outside = any(not study.space[place].holds(default.settings[place]) for place in apart)
        return apart, int(min(math.prod(sizes), self.study.search.trials)) + outside

    def _about(self, study: Tuning, apart: Sequence[Place]) -> list[str]:
        name = f"  {study.env} {study.label}"
        if not study.space:
            return [f"{name}: has none of the settings: only its defaults run, with fresh seeds"]
        shown = "; ".join(f"{place.name} {own}" for place, own in study.space.items())
        lines = [f"{name}: {shown}"]
        if apart:
            lines[0] += f"; compiled separately for: {', '.join(place.name for place in apart)}"
        size = math.prod(own.size for own in study.space.values())
        if size < self.study.search.trials:
            lines.append(
                f"{name}: its {size:.0f} settings are fewer than the trials: repeated "
                "settings do not run again"
            )
        return lines


def prepare(study: Study, where: Where, devices: Sequence[Device]) -> Search:
    """Check a search and return it.

    Args:
      study: the study, whose seeds are the seeds of the trials.
      where: limits of its execution.
      devices: devices to use.

    Raises:
      ValueError: a setting or a point is invalid or does not fit in memory; the message names it.
    """
    how, bases = study.search, study.bases
    samplers.check(str(how.search))
    found = spaces.read(study.axes, bases)
    studies, defaults, shown, sizes = [], [], {}, []
    for (env, label), base in bases.items():
        space = found[env, label]
        fresh = dataclasses.replace(base, seed=base.seed + base.seeds, seeds=how.fresh_seeds)
        default = spaces.default(env, label, fresh, space)
        for point in (default, *spaces.corners(env, label, base, space)):
            sizes.append(plan.check_fits(point, programs.check(point), devices, where.memory))
        higher = study.metric(env).higher_is_better
        sampler = samplers.make(str(how.search), env, label, space, base.seed, higher)
        studies.append(Tuning(env, label, base, space, sampler, higher))
        defaults.append(default)
        shown.setdefault(env, {})[label] = {place.name: own.text for place, own in space.items()}
    first = studies[0].base
    asked = {
        "search": samplers.described(str(how.search)),
        "space": shown,
        "trials": how.trials,
        "at_once": how.at_once,
        "seeds": list(range(first.seed, first.seed + first.seeds)),
        "fresh_seeds": list(range(defaults[0].config.seed, _end(defaults[0].config))),
        "primary": study.question.primary,
        "threshold": study.options.threshold,
    }
    return Search(
        tuple(studies), study, where, tuple(devices), asked, tuple(defaults), max(sizes),
        programs.ProgramCache(),
    )  # fmt: skip


def carry_out(search: Search, store: Store, engine: Engine) -> None:
    """Run the trials, then the best settings with fresh seeds; finished runs are not repeated.

    Raises:
      Stopped: the user pressed Ctrl-C, or runs with fresh seeds failed.
    """
    store.facts["search"]["studies"] = {}
    store.facts["failed"] = {
        name: why for name, why in store.facts["failed"].items() if not _is_fresh(name, search)
    }
    budgets = [(sum(search.budget(study)), _steps(study.base)) for study in search.studies]
    runs, steps = sum(own for own, _ in budgets), sum(own * each for own, each in budgets)
    bar = Bar(steps, runs)
    at_work = _Works(search, store, engine, bar)
    try:
        for start in range(0, search.study.search.trials, search.study.search.at_once):
            at_work.try_settings(
                min(search.study.search.at_once, search.study.search.trials - start)
            )
        at_work.test()
    except Stopped as error:
        raise Stopped(
            f"stopped: {len(store.ended())} of at most {count(runs, 'run')} have finished "
            f"and are kept: --resume {store.folder} runs the others",
            error.exit_code,
        ) from None
    finally:
        bar.close()
        store.write()
    lost = [name for name in store.facts["failed"] if _is_fresh(name, search)]
    if lost:
        raise Stopped(
            f"{count(len(lost), 'run')} with fresh seeds failed, such as {lost[0]}: "
            f"{store.facts['failed'][lost[0]]}: --resume {store.folder} runs them again",
            1,
        )


class _Works:
    """The steps of a search."""

    def __init__(self, search: Search, store: Store, engine: Engine, bar: Bar) -> None:
        self._search, self._store, self._engine, self._bar = search, store, engine, bar
        self._parts: dict[str, Parts] = {}

    def try_settings(self, number: int) -> None:
        """Run `number` trials of every method, and report their scores to the samplers."""
        asked: list[tuple[Tuning, dict[Place, Any], Point | str]] = []
        for study in self._search.studies:
            for _ in range(number if study.space else 0):
                settings = study.sampler.ask()
                asked.append((study, settings, self._checked(study, settings)))
        expected = [(study.base, study.base.seeds) for study, _, _ in asked]
        self._run([each for _, _, each in asked if isinstance(each, Point)], expected)
        for study, settings, each in asked:
            if isinstance(each, Point):
                trial = Trial(settings, each.id, *self._score(each))
            else:
                name = Point(study.env, study.label, settings, study.base).id
                trial = Trial(settings, name, failed=each)
            study.sampler.tell(len(study.trials), trial.score)
            study.trials.append(trial)
        self._note()

    def test(self) -> None:
        """Run the best and the default settings of every method with fresh seeds."""
        points, expected = [], []
        for study, default in zip(self._search.studies, self._search.defaults, strict=True):
            own = [default]
            if study.best is not None:
                base, settings = default.config, study.best.settings
                own.append(spaces.point(study.env, study.label, base, settings))
            points += own
            expected.append((study.base, self._search.budget(study)[1]))
        self._parts |= plan.check(points)
        self._run(points, expected)
        self._note()

    def _checked(self, study: Tuning, settings: Mapping[Place, Any]) -> Point | str:
        """Return settings as a point, or the reason why they can't run."""
        try:
            point = spaces.point(study.env, study.label, study.base, settings)
            parts = programs.check(point)
            plan.check_fits(point, parts, self._search.devices, self._search.where.memory)
        except ValueError as error:
            return str(error)
        self._parts[point.id] = parts
        return point

    def _run(self, points: Sequence[Point], expected: Sequence[tuple[RunConfig, int]]) -> None:
        """Execute the missing runs of points; the bar's totals include the `expected` runs."""
        search, store = self._search, self._store
        unique = list({point.id: point for point in points}.values())
        store.extend(unique)
        runs = [run for run in store.missing(unique) if not self._has_failed(run[0])]
        steps = sum(runs * _steps(config) for config, runs in expected)
        steps -= sum(_steps(point.config) for point, _ in runs)
        self._bar.spare(steps, sum(runs for _, runs in expected) - len(runs))
        if runs:
            groups = search.program_cache.grouped(
                list({run[0].id: run[0] for run in runs}.values())
            )
            memory = search.where.memory
            todo = plan.make(groups, self._parts, runs, search.devices, _width(search), memory)
            self._engine.carry_out(todo, store, self._bar)

    def _has_failed(self, point: Point) -> bool:
        seeds = range(point.config.seed, _end(point.config))
        return any(run_name((point, seed)) in self._store.facts["failed"] for seed in seeds)

    def _score(self, point: Point) -> tuple[float | None, str | None]:
        """Return the score of a point on the seeds of the trials, or why there is none."""
        seeds = range(point.config.seed, _end(point.config))
        for seed in seeds:
            why = self._store.facts["failed"].get(run_name((point, seed)))
            if why is not None:
                return None, f"seed {seed}: {why}"
        table = self._store.table
        rows = table[(table["point"] == point.id) & table["seed"].isin(seeds)]
        return scored(rows, self._search.study.metric(point.env))

    def _note(self) -> None:
        """Store the trials so far in the facts of the study."""
        found: dict[str, dict[str, Any]] = {}
        for study, default in zip(self._search.studies, self._search.defaults, strict=True):
            found.setdefault(study.env, {})[study.label] = study.facts(default)
        self._store.facts["search"]["studies"] = found


def scored(rows: Any, metric: PrimaryMetric) -> tuple[float | None, str | None]:
    """Return the interquartile mean of a point's scores over seeds, or why there is none.

    Args:
      rows: rows of the study's table for one point.
      metric: metric that gives a number for each seed.
    """
    lost = sorted(rows.loc[rows["diverged"] > 0, "seed"].unique())
    if lost:
        return None, f"seed {lost[0]}: diverged"
    # The next proposals depend on the exact bits, so use float32 as after a read from the file.
    values = metric(rows[["seed", "step", "eval_return"]].astype({"eval_return": np.float32}))
    values = values.replace(np.inf, float(rows["step"].max()))
    return float(iqm(values.to_numpy())), None


def _width(search: Search) -> int:
    """Return the number of runs that a device executes at once, constant to avoid recompilation."""
    seeds = search.studies[0].base.seeds
    if search.study.options.width is not None:
        return search.study.options.width
    if devices_.is_cpu(search.devices):
        return width_of(seeds)
    return math.ceil(search.study.search.at_once * seeds / len(search.devices))


def _is_fresh(name: str, search: Search) -> bool:
    """Return whether a failed run has a fresh seed."""
    return int(name.rpartition(" ")[2]) in search.asked["fresh_seeds"]


def _steps(config: RunConfig) -> int:
    """Return the agent steps of one run."""
    return schedule(config.loop, config.sizes.num_envs).steps[-1]


def _end(config: RunConfig) -> int:
    return config.seed + config.seeds
