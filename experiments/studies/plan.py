"""The plan of a sweep: its programs, and the batches in which their runs execute."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.runs import rates
from experiments.runs.assembly import Parts, smaller, state_bytes
from experiments.studies import devices as devices_
from experiments.studies import programs
from experiments.studies.devices import Device
from experiments.studies.grid import Point
from experiments.studies.programs import Group
from experiments.studies.store import SeededPoint
from experiments.training.spread import width_of


class Job(NamedTuple):
    """The missing runs of one program."""

    group: Group
    runs: tuple[SeededPoint, ...]
    width: int  # number of runs that a device executes at once
    run_bytes: int  # size of the state of one run

    @property
    def batches(self) -> list[tuple[SeededPoint, ...]]:
        """The batches: runs that execute together on one device."""
        starts = range(0, len(self.runs), self.width)
        return [self.runs[start : start + self.width] for start in starts]

    @property
    def steps(self) -> int:
        """Agent steps of one run."""
        return self.group.program.schedule.steps[-1]

    @property
    def seconds(self) -> float:
        """Estimated time of all runs one after another, from past rates."""
        own = Counter(point.id for point, _ in self.runs)
        points = {point.id: point.config for point, _ in self.runs}
        return sum(rates.seconds(points[i]) * n / points[i].seeds for i, n in own.items())


class Plan(NamedTuple):
    """All missing runs of a sweep."""

    jobs: tuple[Job, ...]
    devices: tuple[Device, ...]  # each executes one batch at a time
    limit: int  # bytes that the runs may take on all devices together

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
    def bytes(self) -> int:
        """Size of all states at once if every device executes the largest batch."""
        largest = max((job.width * job.run_bytes for job in self.jobs), default=0)
        return largest * min(len(self.devices), self.batches)

    @property
    def minutes(self) -> float:
        """Estimated duration of the whole plan, from past rates."""
        seconds = sum(rates.COMPILING + job.seconds for job in self.jobs)
        return seconds / 60 / max(1, min(len(self.devices), self.batches))

    def describe(self) -> list[str]:
        """Return lines that summarize the plan."""
        if not self.jobs:
            return ["nothing is missing"]
        lines = [
            f"{count(self.runs, 'run')} in {count(len(self.jobs), 'program')}, "
            f"{self.batches:,} batch{'es' * (self.batches != 1)} on "
            f"{count(len(self.devices), 'device')}, {self.steps:,} agent steps; arrays of up to "
            f"{self.bytes / 1e9:.2g} GB at once; about {rates.in_words(self.minutes)} by past rates"
        ]
        for job in self.jobs:
            inputs = ", ".join(place.name for place in job.group.traced)
            over = f"over {inputs}, " if inputs else ""
            lines.append(
                f"  {job.group.name}: {over}{count(len(job.runs), 'run')}, {job.width} at once"
            )
        if self.batches < len(self.devices) and any(job.width > 1 for job in self.jobs):
            lines.append(
                f"{count(len(self.devices) - self.batches, 'device')} will be idle: a smaller "
                "--width makes more batches"
            )
        return lines


def make(
    groups: Sequence[Group],
    parts: Mapping[str, Parts],
    missing: Sequence[SeededPoint],
    devices: Sequence[Device],
    width: int | None = None,
    memory: float | None = None,
) -> Plan:
    """Plan the missing runs of a sweep.

    Args:
      groups: groups of the sweep's points.
      parts: parts of one run of each point, by the point's id.
      missing: points and seeds.
      devices: devices to use.
      width: number of runs of a program at once; by default, chosen from the devices.
      memory: GB that runs may use on all devices; by default, four fifths of the free memory.

    Raises:
      ValueError: a single run takes more memory than is available.
    """
    limit = _limit(devices, memory)
    wanted: dict[str, list[SeededPoint]] = {}
    for point, seed in missing:
        wanted.setdefault(point.id, []).append((point, seed))
    jobs = []
    for group in groups:
        runs = [run for point in group.points for run in wanted.get(point.id, ())]
        if runs:
            first = group.points[0]
            size = state_bytes(parts[first.id], first.config)
            advice = smaller(parts[first.id], first.config)
            fit = _fit(first, size, advice, limit, devices)
            jobs.append(_job(group, runs, size, fit, devices, width))
    return Plan(tuple(jobs), tuple(devices), limit)


def _job(
    group: Group,
    runs: Sequence[SeededPoint],
    size: int,
    fit: int,
    devices: Sequence[Device],
    width: int | None,
) -> Job:
    if width is None and devices_.is_cpu(devices):
        width = width_of(group.points[0].config.seeds)
    elif width is None:
        width = min(len(runs), math.ceil(len(runs) / len(devices)))
    return Job(group, tuple(runs), min(width, fit), size)


def check_fits(
    point: Point, parts: Parts, devices: Sequence[Device], memory: float | None = None
) -> int:
    """Return the bytes of a run's arrays, after checking that one run fits on each device.

    Raises:
      ValueError: a run does not fit; the message names the point.
    """
    size = state_bytes(parts, point.config)
    _fit(point, size, smaller(parts, point.config), _limit(devices, memory), devices)
    return size


def _limit(devices: Sequence[Device], memory: float | None) -> int:
    """Return the bytes that runs may take on all devices."""
    limit = devices_.free_bytes(devices)
    return limit if memory is None else min(limit, int(memory * 1e9))


def _fit(point: Point, size: int, advice: str, limit: int, devices: Sequence[Device]) -> int:
    """Return the number of runs of `size` bytes that fit on each device."""
    fit = limit // len(devices) // size
    if fit < 1:
        raise ValueError(
            f"{point.id}: one run for each of {count(len(devices), 'device')} takes "
            f"{len(devices) * size / 1e9:.3g} GB of arrays, more than the {limit / 1e9:.3g} GB "
            f"available: {advice}, or fewer --devices"
        )
    return fit


def check(points: Sequence[Point]) -> dict[str, Parts]:
    """Return the parts of every point, by its id, after checking that each can run.

    Raises:
      ValueError: a point can't run; the message names the first one.
    """
    return {point.id: programs.check(point) for point in points}


def count(number: int, what: str) -> str:
    """Return a number with its noun, such as "3 runs"."""
    return f"{number:,} {what}{'s' * (number != 1)}"
