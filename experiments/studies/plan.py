"""The plan of a study: its compiled programs, and the batches of runs that execute together."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from experiments.runs import rates
from experiments.runs.assembly import assemble, memory, smaller
from experiments.studies import devices as devices_
from experiments.studies.devices import Unit, width_of
from experiments.studies.grid import Point
from experiments.studies.programs import Group, Kind
from experiments.studies.store import SeededPoint


class Job(NamedTuple):
    """The missing runs of one compiled program."""

    group: Group
    runs: tuple[SeededPoint, ...]
    width: int  # number of runs in one call of the program
    size: int  # number of runs in a batch, whose log points all come at the same time
    run_bytes: int  # size of the state of one run
    together: bool = False  # whether one batch has all runs, on any number of devices

    @property
    def batches(self) -> list[tuple[SeededPoint, ...]]:
        """The batches: runs that execute together."""
        starts = range(0, len(self.runs), self.size)
        return [self.runs[start : start + self.size] for start in starts]

    @property
    def steps(self) -> int:
        """Agent steps of one run."""
        return self.group.schedule.steps[-1]

    @property
    def seconds(self) -> float:
        """Estimated seconds of all runs one after another, from rates measured in the past."""
        own = Counter(point.id for point, _ in self.runs)
        points = {point.id: point.config for point, _ in self.runs}
        return sum(rates.seconds(points[i]) * n / points[i].seeds for i, n in own.items())


class Plan(NamedTuple):
    """All missing runs of a study."""

    jobs: tuple[Job, ...]
    units: tuple[Unit, ...]  # devices; each unit trains one batch at a time
    limit: int  # bytes available to runs on all devices together

    @property
    def runs(self) -> int:
        """Number of runs."""
        return sum(len(job.runs) for job in self.jobs)

    @property
    def steps(self) -> int:
        """Agent steps of all runs."""
        return sum(len(job.runs) * job.steps for job in self.jobs)

    @property
    def batches(self) -> int:
        """Number of batches."""
        return sum(len(job.batches) for job in self.jobs)

    @property
    def on_host(self) -> bool:
        """Whether the environments step on the host; this is the same for all jobs."""
        return any(job.group.program is None for job in self.jobs)

    @property
    def bytes(self) -> int:
        """Bytes of all states at once if every unit trains the largest batch."""
        largest = max((job.size * job.run_bytes for job in self.jobs), default=0)
        return largest * min(len(self.units), self.batches)

    @property
    def minutes(self) -> float:
        """Estimated minutes of the whole plan, from rates measured in the past."""
        devices = sum(map(len, self.units[: self.batches]))
        calls = sum(math.ceil(len(job.runs) / job.width) for job in self.jobs)
        seconds = sum(rates.COMPILING + job.seconds for job in self.jobs)
        return seconds / 60 / max(1, min(devices, calls))

    def describe(self) -> list[str]:
        """Return lines that summarize the plan."""
        if not self.jobs:
            return ["nothing is missing"]
        devices = [device for unit in self.units for device in unit]
        lines = [
            f"{count(self.runs, 'run')} in {count(len(self.jobs), 'program')}, "
            f"{self.batches:,} batch{'es' * (self.batches != 1)} on "
            f"{devices_.in_words(devices)}, {self.steps:,} agent steps; arrays of up to "
            f"{self.bytes / 1e9:.2g} GB at once; about {rates.in_words(self.minutes)} by past rates"
        ]
        if self.runs == self.jobs[0].size:  # a single batch has nothing to add
            return lines
        for job in self.jobs:
            inputs = ", ".join(place.name for place in job.group.traced)
            over = f"over {inputs}, " if inputs else ""
            lines.append(
                f"  {job.group.name}: {over}{count(len(job.runs), 'run')}, {job.size} at once"
            )
        if self.batches < len(self.units) and any(job.size > 1 for job in self.jobs):
            lines.append(
                f"{count(len(self.units) - self.batches, 'device')} will be idle: a smaller "
                "--width makes more batches"
            )
        return lines


def make(
    groups: Sequence[Group],
    missing: Sequence[SeededPoint],
    units: Sequence[Unit],
    width: int | None = None,
    limit: float | None = None,
    together: bool = False,
) -> Plan:
    """Plan the missing runs of a study.

    Args:
      groups: groups of the study's points; missing runs of other points are left out.
      missing: points and seeds of the missing runs.
      units: devices to use.
      width: number of runs in a call of a program; by default, chosen from the devices.
      limit: GB of memory that all runs together may use; None means four fifths of the free memory.
      together: whether all runs of a program are one batch, with common log points.

    Raises:
      ValueError: a single run, or the runs of a batch, need more memory than is available.
    """
    wanted: dict[str, list[SeededPoint]] = {}
    for point, seed in missing:
        wanted.setdefault(point.id, []).append((point, seed))
    available, platform = _limit(units, limit), units[0][0].platform
    jobs = []
    for group in groups:
        runs = [run for point in group.points for run in wanted.get(point.id, ())]
        if not runs:
            continue
        on_cpu, total = platform == "cpu", sum(map(len, units))
        planned = sum(point.config.seeds for point in group.points)
        # `planned` counts all runs, not only missing ones, so that checkpoints fit after a resume.
        calls = 1 if group.kind is Kind.MESH else total  # calls of the program at the same time
        if width is not None:
            own = min(width, planned)
        elif on_cpu:
            own = min(width_of(group.points[0].config.seeds), planned)
        else:
            own = math.ceil(planned / calls)
        if not together:
            places = len(units) if on_cpu else total
            size, fit = fitting(group.points[0], places, available, platform)
            jobs.append(Job(group, tuple(runs), min(own, fit), min(own, fit), size))
            continue
        # All states exist at once: in the memory of the host, or that of every accelerator.
        places = 1 if on_cpu else total
        least = len(runs) if on_cpu else own * math.ceil(math.ceil(len(runs) / own) / calls)
        size, _ = fitting(group.points[0], places, available, platform, least)
        jobs.append(Job(group, tuple(runs), own, len(runs), size, together))
    return Plan(tuple(jobs), tuple(units), available)


def fitting(point: Point, units: int, limit: int, platform: str, least: int = 1) -> tuple[int, int]:
    """Return the bytes of a run's arrays on a device, and the number of runs that fit on each unit.

    Args:
      point: point of the run.
      units: number of units that train at the same time.
      limit: bytes available to all units together.
      platform: platform of the units' devices.
      least: number of runs that must fit on each unit.

    Raises:
      ValueError: fewer than `least` runs fit; the message names the point.
    """
    parts = assemble(point.config)
    size = memory(parts, point.config, platform)
    if platform == "cpu":  # virtual devices of a mesh share the memory
        size *= point.config.loop.mesh
    if (fit := limit // units // size) < least:
        runs = least * units
        take = f"{count(runs, 'run')} at once take" if runs > 1 else "a run takes"
        raise ValueError(
            f"{point.id}: {take} {runs * size / 1e9:.3g} GB of arrays, more "
            f"than the {limit / 1e9:.3g} GB available: {smaller(parts, point.config)}"
            f"{', or fewer --devices' * (units > 1)}"
        )
    return size, fit


def _limit(units: Sequence[Unit], limit: float | None) -> int:
    """Return the bytes of memory that all runs together may use."""
    free = devices_.free_bytes([device for unit in units for device in unit])
    return free if limit is None else min(free, int(limit * 1e9))


def count(number: int, what: str) -> str:
    """Return a number with its noun, such as "3 runs"."""
    return f"{number:,} {what}{'s' * (number != 1)}"
