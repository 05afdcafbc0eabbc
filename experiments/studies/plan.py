"""How a sweep is carried out: its programs, and the waves in which their runs go through."""

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
from experiments.studies.store import Lane
from experiments.training.spread import width_of


class Job(NamedTuple):
    """The runs of one program that are missing."""

    group: Group
    lanes: tuple[Lane, ...]
    width: int  # how many of them a device does at once
    lane_bytes: int  # of one lane's state

    @property
    def waves(self) -> list[tuple[Lane, ...]]:
        """The lanes that go together, on one device."""
        starts = range(0, len(self.lanes), self.width)
        return [self.lanes[start : start + self.width] for start in starts]

    @property
    def steps(self) -> int:
        """Agent steps of one lane."""
        return self.group.program.schedule.steps[-1]

    @property
    def seconds(self) -> float:
        """About how long they take, one after another, estimated before anything is measured."""
        own = Counter(point.id for point, _ in self.lanes)
        points = {point.id: point.config for point, _ in self.lanes}
        return sum(rates.seconds(points[i]) * n / points[i].seeds for i, n in own.items())


class Plan(NamedTuple):
    """All that is missing of a sweep."""

    jobs: tuple[Job, ...]
    devices: tuple[Device, ...]  # each does one wave at a time
    limit: int  # bytes that they may take, all together

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return sum(len(job.lanes) for job in self.jobs)

    @property
    def steps(self) -> int:
        """Agent steps of all of them."""
        return sum(len(job.lanes) * job.steps for job in self.jobs)

    @property
    def waves(self) -> int:
        """How many waves there are."""
        return sum(len(job.waves) for job in self.jobs)

    @property
    def bytes(self) -> int:
        """What states take at once, if every device does the largest wave."""
        largest = max((job.width * job.lane_bytes for job in self.jobs), default=0)
        return largest * min(len(self.devices), self.waves)

    @property
    def minutes(self) -> float:
        """About how long it takes, estimated before anything is measured."""
        seconds = sum(rates.COMPILING + job.seconds for job in self.jobs)
        return seconds / 60 / max(1, min(len(self.devices), self.waves))

    def describe(self) -> list[str]:
        """Say in lines what there is to do."""
        if not self.jobs:
            return ["nothing is missing"]
        lines = [
            f"{count(self.runs, 'run')} in {count(len(self.jobs), 'program')}, "
            f"{count(self.waves, 'wave')} on {count(len(self.devices), 'device')}, "
            f"{self.steps:,} agent steps; arrays of up to {self.bytes / 1e9:.2g} GB at once; "
            f"about {rates.in_words(self.minutes)} by past rates"
        ]
        for job in self.jobs:
            inputs = ", ".join(place.name for place in job.group.traced)
            over = f"over {inputs}, " if inputs else ""
            lines.append(
                f"  {job.group.name}: {over}{count(len(job.lanes), 'run')}, {job.width} at once"
            )
        if self.waves < len(self.devices):
            lines.append(
                f"{count(len(self.devices) - self.waves, 'device')} will be idle: a smaller "
                "--width makes more waves"
            )
        return lines


def make(
    groups: Sequence[Group],
    parts: Mapping[str, Parts],
    missing: Sequence[Lane],
    devices: Sequence[Device],
    width: int | None = None,
    memory: float | None = None,
) -> Plan:
    """Lay out what is missing of a sweep.

    Args:
      groups: of its points.
      parts: of one run of each point, by its id.
      missing: points and seeds.
      devices: to use.
      width: runs of a program; None chooses by the devices.
      memory: GB that runs may use on all devices; None means four fifths of the free memory.

    Raises:
      ValueError: one line: a single run takes more memory than there is.
    """
    limit = _limit(devices, memory)
    wanted: dict[str, list[Lane]] = {}
    for point, seed in missing:
        wanted.setdefault(point.id, []).append((point, seed))
    jobs = []
    for group in groups:
        lanes = [lane for point in group.points for lane in wanted.get(point.id, ())]
        if lanes:
            first = group.points[0]
            size = state_bytes(parts[first.id], first.config)
            advice = smaller(parts[first.id], first.config)
            fit = _fit(first, size, advice, limit, devices)
            jobs.append(_job(group, lanes, size, fit, devices, width))
    return Plan(tuple(jobs), tuple(devices), limit)


def _job(
    group: Group,
    lanes: Sequence[Lane],
    size: int,
    fit: int,
    devices: Sequence[Device],
    width: int | None,
) -> Job:
    if width is None and devices_.is_cpu(devices):
        width = width_of(group.points[0].config.seeds)
    elif width is None:
        width = min(len(lanes), math.ceil(len(lanes) / len(devices)))
    return Job(group, tuple(lanes), min(width, fit), size)


def check_fits(
    point: Point, parts: Parts, devices: Sequence[Device], memory: float | None = None
) -> int:
    """Refuse a point of which not one run fits on each device; return the bytes of a run's arrays.

    Raises:
      ValueError: one line that names the point.
    """
    size = state_bytes(parts, point.config)
    _fit(point, size, smaller(parts, point.config), _limit(devices, memory), devices)
    return size


def _limit(devices: Sequence[Device], memory: float | None) -> int:
    """Return the bytes that runs may take on all devices."""
    limit = devices_.free_bytes(devices)
    return limit if memory is None else min(limit, int(memory * 1e9))


def _fit(point: Point, size: int, advice: str, limit: int, devices: Sequence[Device]) -> int:
    """Return how many runs of so many bytes fit on each device."""
    fit = limit // len(devices) // size
    if fit < 1:
        raise ValueError(
            f"{point.id}: one run for each of {count(len(devices), 'device')} takes "
            f"{len(devices) * size / 1e9:.3g} GB of arrays, and there are {limit / 1e9:.3g}: "
            f"{advice}, or fewer --devices"
        )
    return fit


def check(points: Sequence[Point]) -> dict[str, Parts]:
    """Make the parts of every point, as if each ran alone.

    Raises:
      ValueError: one line that names the first point that can't run.
    """
    return {point.id: programs.check(point) for point in points}


def count(number: int, what: str) -> str:
    """Say how many there are of something."""
    return f"{number:,} {what}{'s' * (number != 1)}"
