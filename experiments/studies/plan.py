"""The plan of a study: its programs, and the batches in which their runs execute."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from experiments.runs import rates
from experiments.runs.assembly import assemble, smaller, state_bytes
from experiments.studies import devices as devices_
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
    """All missing runs of a study."""

    jobs: tuple[Job, ...]
    devices: tuple[Device, ...]  # each executes one batch at a time
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
    missing: Sequence[SeededPoint],
    devices: Sequence[Device],
    width: int | None = None,
    memory: float | None = None,
) -> Plan:
    """Plan the missing runs of a study.

    Args:
      groups: groups of the study's points; missing runs of other points are left out.
      missing: points and seeds.
      devices: devices to use.
      width: number of runs of a program at once; by default, chosen from the devices.
      memory: GB that runs may use on all devices; by default, four fifths of the free memory.

    Raises:
      ValueError: a single run needs more memory than is available.
    """
    wanted: dict[str, list[SeededPoint]] = {}
    for point, seed in missing:
        wanted.setdefault(point.id, []).append((point, seed))
    jobs = []
    for group in groups:
        runs = [run for point in group.points for run in wanted.get(point.id, ())]
        if not runs:
            continue
        size, fit = fitting(group.points[0], devices, memory)
        own = width
        if own is None and devices_.is_cpu(devices):
            own = width_of(group.points[0].config.seeds)
        elif own is None:
            own = math.ceil(len(runs) / len(devices))
        jobs.append(Job(group, tuple(runs), min(own, fit), size))
    return Plan(tuple(jobs), tuple(devices), _limit(devices, memory))


def fitting(point: Point, devices: Sequence[Device], memory: float | None) -> tuple[int, int]:
    """Return the bytes of a run's arrays, and the number of runs that fit on each device.

    Raises:
      ValueError: no run fits; the message names the point.
    """
    parts, limit = assemble(point.config), _limit(devices, memory)
    size = state_bytes(parts, point.config)
    if (fit := limit // len(devices) // size) < 1:
        raise ValueError(
            f"{point.id}: one run for each of {count(len(devices), 'device')} takes "
            f"{len(devices) * size / 1e9:.3g} GB of arrays, more than the {limit / 1e9:.3g} GB "
            f"available: {smaller(parts, point.config)}, or fewer --devices"
        )
    return size, fit


def _limit(devices: Sequence[Device], memory: float | None) -> int:
    """Return the bytes available to runs on all devices."""
    limit = devices_.free_bytes(devices)
    return limit if memory is None else min(limit, int(memory * 1e9))


def count(number: int, what: str) -> str:
    """Return a number with its noun, such as "3 runs"."""
    return f"{number:,} {what}{'s' * (number != 1)}"
