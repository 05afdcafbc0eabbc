"""Execution of a study: plan, train and judge, repeatedly in a sequential design.

A run is a study of one arm on one task with one combination of settings.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.files.disk import write_json
from experiments.runs import rates
from experiments.runs.interrupt import Stopped, TimeOver
from experiments.runs.log import CSVLog, Log, TensorBoardLog, WandbLog, say, show, waiting
from experiments.runs.rates import in_words
from experiments.statistics.claims import CONTROL
from experiments.statistics.counts import ALPHA, Counts
from experiments.statistics.planning import seeds_needed
from experiments.studies import (
    checkpoints,
    devices,
    executor,
    folders,
    grid,
    judge,
    plan,
    programs,
    store,
)
from experiments.studies.batch import decided_by
from experiments.studies.checkpoints import Checkpoint
from experiments.studies.definition import Study
from experiments.studies.devices import width_of
from experiments.studies.executor import Engine
from experiments.studies.judge import Findings
from experiments.studies.options import Cache, RunOutput, Where
from experiments.studies.results import Results
from experiments.studies.store import SeededPoint, Store

_MANY = 500  # number of points from which validation takes seconds
_SHARES = (0.6, 0.7, 0.8)  # guessed shares of pairs that an arm wins, for a study without results


def run(
    study: Study,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    where: Where = Where(),
    cache: Cache = None,
    dry_run: bool = False,
    show: bool = True,
    again: str = "",
    output: RunOutput | None = None,
) -> Results | None:
    """Run a study, and write its results, tables and figures into a folder.

    A study that was interrupted continues with `resume`, and ends with the same numbers.

    Args:
      study: the study.
      out: the folder.
      resume: whether to continue the study in `out`.
      overwrite: whether to discard a study in `out`.
      where: place and limits of the execution.
      cache: folder of compiled programs, "off", or None for the default.
      dry_run: whether to report the plan only.
      show: whether to write the tables and figures, and to print the tables.
      again: text in messages that says how to continue; "" means that they name `--resume`.
      output: outputs of a single run while it trains, or None. With outputs, all seeds train
        together and have the same log points.

    Returns:
      The results, or None after a dry run or when the hours in `where` are over.

    Raises:
      ValueError: If the study cannot run, or the folder is taken.
      Stopped: If the user interrupts the study, or runs fail. Ended runs are kept.
    """
    out = Path(out)
    folders.check(out, "study", resume=resume, overwrite=overwrite or dry_run)
    if resume and output is None and (out / "metrics.csv").exists():
        raise ValueError(
            f"{out} has a run of experiments.train: use python -m experiments.train --resume {out}"
        )
    remarks = study.check()
    with contextlib.ExitStack() as stack:
        if not dry_run:
            stack.enter_context(folders.lock(out))
        engine = stack.enter_context(executor.open_engine(where, cache, output is not None))
        work = _Work(study, out, where, engine, resume, output)
        for line in (*remarks, *work.describe()):
            say(line)
        if dry_run:
            try:
                folders.check(out, "study", resume=resume, overwrite=overwrite)
            except ValueError as error:
                say(f"without --dry-run, this is an error: {error}")
            return None
        folders.prepare(out, "study", resume=resume, overwrite=overwrite)
        work.results.write()
        try:
            findings = work.carry_out()
        except TimeOver:
            say(f"the {where.hours:.2g} hours are over: {again or f'--resume {out} continues'}")
            return None
        except Stopped as error:
            if not again:
                raise
            raise Stopped(error.reason, error.exit_code, again) from error.__cause__
        results = Results(work.results, study, findings)
        if show:
            conclude(results)
        return results


def conclude(results: Results) -> None:
    """Write and print the tables and figures of a study."""
    from experiments.studies import conclusion  # imports matplotlib

    study, findings = results.study, results.findings
    if findings is not None and (findings.rows or findings.claims):
        write_json(results.store.folder / "verdicts.json", findings.to_json(study))
    show(conclusion.conclude(results))


class _Work:
    """The work of a study with a fixed or a growing number of seeds."""

    def __init__(
        self,
        study: Study,
        out: Path,
        where: Where,
        engine: Engine,
        resume: bool,
        output: RunOutput | None,
    ) -> None:
        self.study, self.where, self.engine, self._output = study, where, engine, output
        self._deadline = math.inf
        if where.hours is not None:
            self._deadline = time.monotonic() + 3600 * where.hours
        self._made: tuple[Sequence[SeededPoint], list[tuple[plan.Plan, Engine]]] | None = None
        self.points = study.points()
        if len(self.points) > _MANY:
            say(f"checking {plan.count(len(self.points), 'point')} of the grid")
        with waiting("tracing the programs"):
            for point in self.points:
                if (where.device_count or math.inf) < (mesh := point.config.loop.mesh):
                    raise ValueError(
                        f"mesh is {mesh}, more than {where.devices} devices: use a smaller mesh, "
                        "or more --devices"
                    )
                programs.check(point)
            if resume:
                self.results = store.resume(out, study, self.points, where.other_code)
            else:
                bases = grid.base_points(self.points, study.bases)
                self.results = store.begin(out, study, self.points, bases)
            self._groups = programs.grouped(self.points)
            programs.check_kept(study.options.keep or (), self._groups)
        self._width = study.options.width
        if self._width is None and study.question.until_decided:
            # The width must not depend on the final number of seeds.
            self._width = width_of(next(iter(study.bases.values())).seeds)

    def describe(self) -> list[str]:
        """Return the plan in lines."""
        missing = self.results.missing(self.points, self.study.looks[0])
        lines = [line for each in self._plans(missing) for line in each[0].describe()]
        lines = lines or ["nothing is missing"]
        if begun := sum(map(self._begun, self._plans(missing))):
            lines.append(f"{plan.count(begun, 'run')} will continue from checkpoints")
        if self.study.question.until_decided:
            most = self.study.max_seeds
            lines.append(f"then more seeds for undecided arms, {most} seeds at most")
            findings = judge.findings_of(self.results, self.study, self.where.other_code)
            lines += self._planned() if findings is None else self._expected(findings)
        return list(dict.fromkeys(lines))

    def carry_out(self) -> Findings | None:
        """Train all runs; return the verdicts."""
        if not self.study.question.until_decided:
            self._train(self.results.missing(self.points))
            findings = judge.findings_of(self.results, self.study, self.where.other_code)
        else:
            findings = self._until_decided()
        executor.check_failed(self.results)
        if self._output is not None:  # a log point may be missing, such as after a full disk
            CSVLog(self.results.folder).begin(executor.ended_rows(self.results))
        else:  # checkpoints of batches that were divided otherwise
            checkpoints.remove_all(self.results.folder)
        return findings

    def _until_decided(self) -> Findings | None:
        """Train seeds from look to look (interim analysis), and return the latest verdicts.

        Arms with failed runs get no further seeds.
        """
        findings, by_id = None, {point.id: point for point in self.points}
        while True:
            failed = {name.rpartition(" seed ")[0] for name in self.results.facts["failed"]}
            if (look := judge.next_look(self.study, findings, failed)) is None:
                return findings
            seeds, needed = look
            self._train(self.results.missing([by_id[point] for point in needed], seeds))
            findings = judge.findings_of(self.results, self.study, self.where.other_code)
            if findings is None:  # every point has a failed run
                return None
            for line in _progress(self.study, findings, seeds):
                say(line)

    def _train(self, runs: Sequence[SeededPoint]) -> None:
        output, logs, stops = self._output, (), ""
        if output is not None:
            logs = _logs(self.results, self.study, output)
            stops = "--stop-on-divergence" if output.stop_on_divergence else ""
        for jobs, engine in self._plans(runs):
            executor.carry_out(jobs, self.results, engine, logs, stops, self._deadline)

    def _plans(self, runs: Sequence[SeededPoint]) -> list[tuple[plan.Plan, Engine]]:
        """Return a plan and its engine for each kind of runs, if there are runs of the kind.

        The log points of a single run are shown as they come, so its seeds train together.
        """
        if self._made is not None and self._made[0] == runs:  # as described before training
            return self._made[1]
        plans: list[tuple[plan.Plan, Engine]] = []
        for kind in programs.Kind:
            groups = [group for group in self._groups if group.kind is kind]
            engine = self._here() if kind.needs_this_machine else self.engine
            units, together = kind.place(engine.units, self._output is not None)
            made = plan.make(groups, runs, units, self._width, self.where.memory, together)
            plans += [(made, engine)] * bool(made.jobs)
        self._made = runs, plans
        return plans

    def _begun(self, made: tuple[plan.Plan, Engine]) -> int:
        """Return the number of runs in a plan that have a checkpoint."""

        def saved(job: plan.Job, runs: Sequence[SeededPoint]) -> bool:
            return Checkpoint(self.results.folder, *decided_by(job, runs)).path.exists()

        batches = [(job, runs) for job in made[0].jobs for runs in job.batches]
        return sum(len(runs) for job, runs in batches if saved(job, runs))

    def _here(self) -> Engine:
        """Return the engine of this machine, for runs that a cluster cannot train."""
        if isinstance(self.engine, executor.Here):
            return self.engine
        return executor.Here(devices.choose(), self.where)

    def _planned(self) -> list[str]:
        """Return lines on the seeds and time that decide a claim, by the share of won pairs."""
        sizes = [len(claims) for claims in self.study.claims.values()]
        members = judge.members_of(self.study, self.points)
        arms = [own for name, own in members.items() if name != own.baseline]
        tested = sum(own.point.label != CONTROL for own in arms)
        claims = max(sizes, default=tested)
        a_seed = [dataclasses.replace(point.config, seeds=1) for point in self.points]
        seconds = sum(map(rates.seconds, a_seed))
        lines = []
        for share in _SHARES:
            guess = Counts(round(1e6 * share), 0, round(1e6 * (1 - share)))
            alpha = ALPHA / max(claims, 1)
            seeds = seeds_needed(guess, alpha, self.study.question.margin)
            if seeds is not None and seeds > self.study.max_seeds:
                lines.append(
                    f"  an arm that wins {100 * share:g} % of the pairs takes {seeds:,} seeds: "
                    "raise --most-seeds"
                )
            elif seeds is not None:
                lines.append(
                    f"  {seeds:,} seeds decide with 80 % probability about an arm that wins "
                    f"{100 * share:g} % of the pairs, {in_words(seeds * seconds / 60)} on a device"
                )
        return lines

    def _expected(self, findings: Findings) -> list[str]:
        """Return lines on the further seeds and device time that undecided verdicts need."""
        made, ended, lines = self.results.made(), self.results.ended(), []
        for need in findings.undecided.values():
            if need.expected is None:
                continue
            seconds = 0.0  # device time of one more seed of all its points
            for point in need.runs:
                done = sum(1 for each, _ in ended if each == point)
                seconds += (made[point]["train_seconds"] or 0.0) / max(done, 1)
            more = need.expected - need.seeds
            lines.append(
                f"  {need.label}: about {more:,} more seeds decide with 80 % probability, "
                f"{in_words(more * seconds / 60)} on a device"
            )
        return lines


def _logs(results: Store, study: Study, output: RunOutput) -> list[Log]:
    """Return the logs of a single run."""
    folder, logs = results.folder, list[Log]()
    logs.append(CSVLog(folder))
    if output.tensorboard:
        logs.append(TensorBoardLog(folder))
    if output.wandb:
        logs.append(WandbLog(folder, next(iter(study.bases.values())).to_json()))
    return logs


def _progress(study: Study, findings: Findings, seeds: int) -> list[str]:
    """Return lines that describe the arms or claims after a look (interim analysis)."""
    if study.claims:
        claims, left = sum(map(len, study.claims.values())), findings.undecided
        lines = [f"{len(left)} of {claims} claims are undecided after {seeds} seeds"]
        for need in left.values():
            if need.expected is not None:
                lines.append(f"  {need.label}: about {need.expected - need.seeds:,} more seeds")
        return lines
    lines = []
    for row in findings.rows:
        if row.method == CONTROL or row.seeds < seeds:
            continue  # decided before this look
        line = f"{row.label}: {row.estimate:.2f} after {row.seeds} seeds"
        need = findings.undecided.get(row.label)
        if row.verdict != "undecided":
            lines.append(f"{line}: {row.verdict}")
        elif need is not None and need.expected is not None:
            lines.append(f"{line}; about {need.expected - need.seeds:,} more")
        else:
            lines.append(f"{line}; undecided")
    return lines
