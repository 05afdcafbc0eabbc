"""Search of every method's settings, with equal budgets, followed by runs with fresh seeds.

Each round draws settings from the samplers, runs them together in as few programs as possible, and
reports their scores to the samplers, until every method has the same number of trials. The best
settings and the defaults of each method then run with fresh seeds, because the best of many scores
is biased on the seeds that selected it.

A resumed search draws the same settings again, and skips the runs that have ended.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.runs import rates
from experiments.runs.interrupt import Stopped
from experiments.runs.run_config import RunConfig
from experiments.statistics.bootstrap import iqm
from experiments.statistics.primary import PrimaryMetric
from experiments.studies import devices as devices_
from experiments.studies import engines, grid, plan, programs, samplers, spaces, store
from experiments.studies.engines import Engine
from experiments.studies.grid import Place, Point
from experiments.studies.options import Where
from experiments.studies.plan import count
from experiments.studies.progress import Bar
from experiments.studies.samplers import Sampler
from experiments.studies.spaces import Space
from experiments.studies.store import run_name
from experiments.studies.study import Study
from experiments.training.schedule import schedule
from experiments.training.spread import width_of


class Tuning(NamedTuple):
    """The search of one method on one task."""

    default: Point  # default settings with the fresh seeds
    base: RunConfig  # default settings with the seeds of the trials
    space: Space  # {} if the method has none of the settings, and therefore no trials
    sampler: Sampler
    higher_is_better: bool
    trials: list[dict[str, Any]]  # "point", "score" and "failed", in the order of the proposals

    @property
    def best(self) -> str | None:
        """Id of the best point so far."""
        return best_of(self.trials, self.higher_is_better)

    def point(self, settings: Mapping[Place, Any], fresh: bool = False) -> Point:
        """Return the point of settings, with the seeds of the trials or fresh ones."""
        base = self.default.config if fresh else self.base
        return spaces.point(self.default.env, self.default.label, base, settings)


class Search:
    """A search in a folder.

    Attributes:
      results: store of the results.
      asked: all choices that determine the trials, as stored in `study.json`.
      tunings: searches of every method on every task.
    """

    def __init__(
        self, study: Study, out: Path, where: Where, engine: Engine, resume: bool = False
    ) -> None:
        """Check a search, whose trials have the seeds of the study.

        Raises:
          ValueError: a setting or a point is invalid or does not fit in memory; the message names
            it.
        """
        self._study, self._how, self._engine = study, study.search, engine
        self._memory, self._resume = where.memory, resume
        self._cache = programs.ProgramCache()
        self._settings: dict[str, Mapping[Place, Any]] = {}  # id of a point -> its settings
        called = samplers.describe(str(self._how.search))
        self.tunings, shown, sizes = [], {}, []
        for (env, label), space in spaces.read(study.axes, study.bases).items():
            base, higher = study.bases[env, label], study.metric(env).higher_is_better
            fresh = dataclasses.replace(
                base, seed=base.seed + base.seeds, seeds=self._how.fresh_seeds
            )
            default = spaces.default(env, label, fresh, space)
            for point in (default, *spaces.corners(env, label, base, space)):
                if point.hosted:
                    raise ValueError(
                        f"{point.id} runs on the host, but the runs of a search must compile: "
                        "remove it, or use --grid"
                    )
                programs.check(point)
                sizes.append(plan.fitting(point, engine.devices, where.memory)[0])
            sampler = samplers.make(str(self._how.search), env, label, space, base.seed, higher)
            self.tunings.append(Tuning(default, base, space, sampler, higher, []))
            shown.setdefault(env, {})[label] = {
                place.name: own.text for place, own in space.items()
            }
        self._run_bytes, first = max(sizes), self.tunings[0]
        self._seeds = first.base.seeds
        self.asked = {
            "search": called,
            "space": shown,
            "trials": self._how.trials,
            "at_once": self._how.at_once,
            "seeds": list(_seeds(first.base)),
            "fresh_seeds": list(_seeds(first.default.config)),
            "primary": study.question.primary,
            "threshold": study.options.threshold,
        }
        defaults = [each.default for each in self.tunings]
        if resume:
            self.results = store.resume(out, study, defaults, where.other_code, self.asked)
        else:
            bases = {(point.env, point.label): point.config for point in defaults}
            ids = grid.base_points(defaults, bases)
            self.results = store.begin(out, study, defaults, ids, self.asked)
        programs.check_kept(study.options.keep or (), self._cache.grouped(defaults))

    def describe(self) -> list[str]:
        """Return lines that summarize the whole search."""
        searched = [tuning for tuning in self.tunings if tuning.space]
        runs, steps, seconds, lines = 0, 0, 0.0, []
        for tuning in self.tunings:
            each = sum(self.budget(tuning))
            runs, steps = runs + each, steps + each * _steps(tuning.base)
            seconds += each * rates.seconds(tuning.base) / self._seeds
            lines += self._about(tuning)
        devices = len(self._engine.devices)
        at_once = max(1, self._how.at_once * len(searched))
        # A lower bound: each value of a setting that is not an input needs its own program.
        compiling = len(self.tunings) * rates.COMPILING
        minutes = (seconds + compiling) / 60 / min(devices, at_once)
        batches = math.ceil(at_once * self._seeds / self._width)
        at_most = self._width * self._run_bytes * min(devices, batches)
        tasks = {tuning.default.env for tuning in searched}
        labels = {tuning.default.label for tuning in searched}
        head = (
            f"search by {self._how.search}: {count(self._how.trials, 'trial')} for each of "
            f"{count(len(labels), 'method')}{f' on each of {len(tasks)} tasks' * (len(tasks) > 1)}"
            f", {self._how.at_once} at once, with {count(self._seeds, 'seed')} each; then the best "
            f"and the defaults with {count(self._how.fresh_seeds, 'fresh seed')}"
        )
        total = (
            f"{count(runs, 'run')} at most on {count(devices, 'device')}, {steps:,} agent steps; "
            f"arrays of up to {at_most / 1e9:.2g} GB at once; at least {rates.in_words(minutes)} "
            "by past rates"
        )
        ended = count(len(self.results.ended()), "run")
        return [head, total, *lines, *[f"{ended} of these have ended"] * self._resume]

    def carry_out(self) -> None:
        """Run the trials, then the best settings with fresh seeds; finished runs are not repeated.

        Raises:
          Stopped: the user pressed Ctrl-C, or runs with fresh seeds failed.
        """
        results, facts = self.results, self.results.facts
        facts["search"]["studies"] = {}
        for name in self._failed_fresh():
            del facts["failed"][name]
        budgets = [(sum(self.budget(tuning)), _steps(tuning.base)) for tuning in self.tunings]
        runs = sum(own for own, _ in budgets)
        self._bar = Bar(sum(own * each for own, each in budgets), runs)
        try:
            for start in range(0, self._how.trials, self._how.at_once):
                self._try_settings(min(self._how.at_once, self._how.trials - start))
            self._test()
        except Stopped as error:
            if error.exit_code == 1:  # the cluster is lost
                raise
            raise Stopped(
                f"stopped: {len(results.ended())} of at most {count(runs, 'run')} have finished "
                "and are kept",
                error.exit_code,
                f"--resume {results.folder} runs the others",
            ) from None
        finally:
            self._bar.close()
            results.write()
        engines.check_failed(results, self._failed_fresh())

    def budget(self, tuning: Tuning) -> tuple[int, int]:
        """Return the number of runs of a method in trials, and with fresh seeds."""
        own = self._how.trials * tuning.base.seeds if tuning.space else 0
        return own, self._how.fresh_seeds * (2 if tuning.space else 1)

    def checked(self, tuning: Tuning, settings: Mapping[Place, Any]) -> Point | str:
        """Return the point of settings, or the reason why it cannot run."""
        try:
            point = tuning.point(settings)
            programs.check(point)
            plan.fitting(point, self._engine.devices, self._memory)
        except ValueError as error:
            return str(error)
        return point

    @property
    def _width(self) -> int:
        """Number of runs that a device executes at once, constant to avoid recompilation."""
        if self._study.options.width is not None:
            return self._study.options.width
        if devices_.is_cpu(self._engine.devices):
            return width_of(self._seeds)
        return math.ceil(self._how.at_once * self._seeds / len(self._engine.devices))

    def _about(self, tuning: Tuning) -> list[str]:
        name = f"  {tuning.default.env} {tuning.default.label}"
        if not tuning.space:
            return [f"{name}: has none of the settings: only its defaults run, with fresh seeds"]
        shown = "; ".join(f"{place.name} {own}" for place, own in tuning.space.items())
        lines = [f"{name}: {shown}"]
        size = math.prod(own.size for own in tuning.space.values())
        if size < self._how.trials:
            lines.append(
                f"{name}: its {size:.0f} settings are fewer than the trials: repeated "
                "settings do not run again"
            )
        return lines

    def _try_settings(self, number: int) -> None:
        """Run `number` trials of every method, and report their scores to the samplers."""
        asked: list[tuple[Tuning, Mapping[Place, Any], Point | str]] = []
        for tuning in self.tunings:
            for _ in range(number if tuning.space else 0):
                settings = tuning.sampler.ask()
                asked.append((tuning, settings, self.checked(tuning, settings)))
        expected = [(tuning.base, tuning.base.seeds) for tuning, _, _ in asked]
        self._run([point for _, _, point in asked if isinstance(point, Point)], expected)
        for tuning, settings, point in asked:
            name = tuning.default._replace(settings=settings).id
            score, why = self._score(point) if isinstance(point, Point) else (None, point)
            tuning.sampler.tell(len(tuning.trials), score)
            tuning.trials.append({"point": name, "score": score, "failed": why})
            self._settings[name] = settings
        self._note()

    def _test(self) -> None:
        """Run the best and the default settings of every method with fresh seeds."""
        points = []
        for tuning in self.tunings:
            points.append(tuning.default)
            if tuning.best is not None:
                points.append(tuning.point(self._settings[tuning.best], fresh=True))
        for point in points:
            programs.check(point)
        self._run(points, [(tuning.base, self.budget(tuning)[1]) for tuning in self.tunings])
        self._note()

    def _run(self, points: Sequence[Point], expected: Sequence[tuple[RunConfig, int]]) -> None:
        """Execute the missing runs of points; the bar's totals include the `expected` runs."""
        unique = list({point.id: point for point in points}.values())
        self.results.extend(unique)
        runs = [run for run in self.results.missing(unique) if self._failure(run[0]) is None]
        steps = sum(runs * _steps(config) for config, runs in expected)
        steps -= sum(_steps(point.config) for point, _ in runs)
        self._bar.spare(steps, sum(runs for _, runs in expected) - len(runs))
        if runs:
            groups = self._cache.grouped(list({run[0].id: run[0] for run in runs}.values()))
            devices = self._engine.devices
            todo = plan.make(groups, runs, devices, self._width, self._memory)
            engines.carry_out(todo, self.results, self._engine, self._bar)

    def _failure(self, point: Point) -> str | None:
        """Return the reason why a run of a point failed, or None."""
        failed = self.results.facts["failed"]
        names = {seed: run_name((point, seed)) for seed in _seeds(point.config)}
        whys = (f"seed {seed}: {failed[name]}" for seed, name in names.items() if name in failed)
        return next(whys, None)

    def _score(self, point: Point) -> tuple[float | None, str | None]:
        """Return the score of a point on the seeds of the trials, or the reason why it failed."""
        if (why := self._failure(point)) is not None:
            return None, why
        table = self.results.table
        rows = table[(table["point"] == point.id) & table["seed"].isin(_seeds(point.config))]
        return score_of(rows, self._study.metric(point.env))

    def _note(self) -> None:
        """Store the trials so far in the facts of the study."""
        found: dict[str, dict[str, Any]] = {}
        for tuning in self.tunings:
            env, label, *_ = tuning.default
            own = {"default": tuning.default.id, "best": tuning.best, "trials": tuning.trials}
            found.setdefault(env, {})[label] = own
        self.results.facts["search"]["studies"] = found

    def _failed_fresh(self) -> list[str]:
        """Return the names of failed runs with fresh seeds."""
        failed, fresh = self.results.facts["failed"], self.asked["fresh_seeds"]
        return [name for name in failed if int(name.rpartition(" ")[2]) in fresh]


def best_of(trials: Sequence[Mapping[str, Any]], higher_is_better: bool) -> str | None:
    """Return the first point with the best score, or None if all failed."""
    sign = 1 if higher_is_better else -1
    known = [trial for trial in trials if trial["score"] is not None]
    best = max(known, key=lambda trial: sign * trial["score"], default=None)
    return best and best["point"]


def score_of(rows: Any, metric: PrimaryMetric) -> tuple[float | None, str | None]:
    """Return the IQM of a point's scores over seeds, or the reason for a missing score.

    Args:
      rows: rows of the study's table for one point.
      metric: metric that gives a number for each seed.
    """
    lost = sorted(rows.loc[rows["diverged"] > 0, "seed"].unique())
    if lost:
        return None, f"seed {lost[0]}: diverged"
    # The next proposals depend on the exact bits, so use float32, as do tables read from a file.
    values = metric(rows[["seed", "step", "eval_return"]].astype({"eval_return": np.float32}))
    # A run that never reached the threshold is worse than one that did at the last evaluation.
    values = values.replace(np.inf, 1.0 + float(rows["step"].max()))
    return float(iqm(values.to_numpy())), None


def _steps(config: RunConfig) -> int:
    """Return the agent steps of one run."""
    return schedule(config.loop, config.sizes.num_envs).steps[-1]


def _seeds(config: RunConfig) -> range:
    return range(config.seed, config.seed + config.seeds)
