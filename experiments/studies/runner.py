"""Execution of a study: plan, train and judge, repeatedly in a sequential design."""

import _thread
import contextlib
import dataclasses
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.runs import folder, manifest, rates
from experiments.runs.interrupt import Stopped
from experiments.runs.log import say, show
from experiments.runs.rates import in_words
from experiments.statistics.claims import CONTROL
from experiments.statistics.counts import ALPHA, Counts
from experiments.statistics.planning import seeds_needed
from experiments.studies import (
    engines,
    grid,
    hosted,
    judge,
    plan,
    programs,
    report,
    search_report,
    store,
)
from experiments.studies.engines import Cache, Engine
from experiments.studies.judge import Findings
from experiments.studies.options import Where
from experiments.studies.results import Results
from experiments.studies.search import Search
from experiments.studies.store import SeededPoint
from experiments.studies.study import Study
from experiments.training.spread import width_of

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
      again: how to continue, for messages; by default, with --resume.

    Returns:
      The results, or None after a dry run or when the hours in `where` are over.

    Raises:
      ValueError: If the study cannot run, or the folder is taken.
      Stopped: If the user interrupts the study, or runs fail. Ended runs are kept.
    """
    out = Path(out)
    folder.check_folder(out, "study", resume=resume, overwrite=overwrite or dry_run)
    remarks = study.check()
    with contextlib.ExitStack() as stack:
        if not dry_run:
            stack.enter_context(folder.lock(out))
        engine = stack.enter_context(engines.open_engine(where, cache))
        kind = _Grid if study.search.search is None else Search
        job = kind(study, out, where, engine, resume)
        for line in (*remarks, *job.describe()):
            say(line)
        if dry_run:
            try:
                folder.check_folder(out, "study", resume=resume, overwrite=overwrite)
            except ValueError as error:
                say(f"without --dry-run, this is an error: {error}")
            return None
        if manifest.read(out).kind == "study" and not resume:
            hosted.discard(out)
        folder.prepare(out, "study", resume=resume, overwrite=overwrite)
        job.results.write()
        over = threading.Event()
        try:
            with _limited(where.hours, over):
                findings = job.carry_out()
        except (Stopped, KeyboardInterrupt) as error:
            if over.is_set():
                say(f"the {where.hours:g} hours are over: {again or f'--resume {out} continues'}")
                return None
            if again and isinstance(error, Stopped):
                raise Stopped(error.reason, error.exit_code, again) from error.__cause__
            raise
        results = Results(job.results, study, findings, tuple(manifest.differing(out)))
        if show:
            conclude(results)
        return results


def conclude(results: Results) -> None:
    """Write and print the tables and figures of a study."""
    study, findings = results.study, results.findings
    if findings is not None and (findings.rows or findings.claims):
        manifest.write_json(results.store.folder / "verdicts.json", findings.to_json(study))
    is_search = study.search.search is not None
    show((search_report if is_search else report).conclude(results))


class _Grid:
    """A study of fixed settings, with a fixed or a growing number of seeds."""

    def __init__(self, study: Study, out: Path, where: Where, engine: Engine, resume: bool) -> None:
        self.study, self.where, self.engine = study, where, engine
        self.points = study.points()
        if len(self.points) > _MANY:
            say(f"checking {plan.count(len(self.points), 'point')}")
        compiled = [point for point in self.points if not point.hosted]
        for point in self.points:
            programs.check(point)
        if resume:
            self.results = store.resume(out, study, self.points, where.other_code)
        else:
            bases = grid.base_points(self.points, study.bases)
            self.results = store.begin(out, study, self.points, bases)
        self._groups = programs.grouped(compiled)
        programs.check_kept(study.options.keep or (), self._groups)
        self._width = study.options.width
        if self._width is None and study.question.until_decided:
            # The width must not depend on the final number of seeds.
            self._width = width_of(next(iter(study.bases.values())).seeds)

    def describe(self) -> list[str]:
        """Return the plan in lines."""
        missing = self.results.missing(self.points, self.study.looks[0])
        compiled = self._plan(missing)
        on_host = [run for run in missing if run[0].hosted]
        lines = compiled.describe() if compiled.jobs or not on_host else []
        if on_host:
            lines.append(f"{plan.count(len(on_host), 'run')} on the host, one point after another")
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
        engines.check_failed(self.results, list(self.results.facts["failed"]))
        return findings

    def _until_decided(self) -> Findings | None:
        """Train seeds from look to look; arms with failed runs get no more."""
        findings, by_id = None, {point.id: point for point in self.points}
        while True:
            failed = {name.rpartition(" seed ")[0] for name in self.results.facts["failed"]}
            if (look := judge.next_look(self.study, findings, failed)) is None:
                return findings
            seeds, needed = look
            self._train(self.results.missing([by_id[each] for each in needed], seeds))
            findings = judge.findings_of(self.results, self.study, self.where.other_code)
            if findings is None:  # every point has a failed run
                return None
            for line in _progress(self.study, findings, seeds):
                say(line)

    def _train(self, runs: Sequence[SeededPoint]) -> None:
        if (compiled := self._plan(runs)).jobs:
            engines.carry_out(compiled, self.results, self.engine)
        if on_host := [run for run in runs if run[0].hosted]:
            hosted.carry_out(on_host, self.results, self.where)

    def _plan(self, runs: Sequence[SeededPoint]) -> plan.Plan:
        """Return the plan of the runs that compile."""
        devices, memory = self.engine.devices, self.where.memory
        return plan.make(self._groups, runs, devices, self._width, memory)

    def _planned(self) -> list[str]:
        """Return the expected seeds and device time of a claim, by the share of pairs it wins."""
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
                    f"{100 * share:g} % of the pairs, {in_words(seeds * seconds / 60)} of a device"
                )
        return lines

    def _expected(self, findings: Findings) -> list[str]:
        """Return the expected number of seeds and hours after a look."""
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
                f"{in_words(more * seconds / 60)} of a device"
            )
        return lines


def _progress(study: Study, findings: Findings, seeds: int) -> list[str]:
    """Return lines that describe the arms or claims after a look."""
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


@contextlib.contextmanager
def _limited(hours: float | None, over: threading.Event) -> Iterator[None]:
    """Interrupt the main thread after a number of hours."""
    if hours is None:
        yield
        return

    def end() -> None:
        over.set()
        _thread.interrupt_main()

    timer: Any = threading.Timer(hours * 3600, end)
    timer.daemon = True
    before = signal.getsignal(signal.SIGINT)
    ignored = before is signal.SIG_IGN and threading.current_thread() is threading.main_thread()
    if ignored:  # as in background processes, which could not be interrupted
        signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
