"""Engines that execute a sweep: the devices of this machine, or a Ray cluster."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from experiments.runs import compilation
from experiments.runs.log import say
from experiments.studies import devices as devices_
from experiments.studies import running
from experiments.studies.batch import Programs
from experiments.studies.devices import Device
from experiments.studies.options import HERE, Where
from experiments.studies.plan import Plan
from experiments.studies.progress import Bar
from experiments.studies.store import Store
from experiments.training import spread

if TYPE_CHECKING:
    from experiments.studies.cluster import Cluster

_PROGRAMS = 16  # least number of compiled programs to keep
Cache = Path | Literal["off"] | None  # directory of compiled programs


class Engine(Protocol):
    """Executes batches of runs.

    Attributes:
      devices: devices, each of which executes one batch at a time.
      is_cpu: whether they are cores of a CPU.
    """

    devices: Sequence[Device]
    is_cpu: bool

    def carry_out(self, plan: Plan, results: Store, bar: Bar | None = None) -> None:
        """Execute the missing runs of a sweep and store every batch when it ends.

        Args:
          plan: missing runs and devices.
          results: store that receives the results.
          bar: progress bar of an enclosing search, which also handles failed runs; by default, a
            bar for this plan alone.

        Raises:
          Stopped: the user pressed Ctrl-C, or runs failed; finished runs are kept.
        """
        ...


@contextlib.contextmanager
def opened(where: Where, cache: Cache) -> Iterator[Engine]:
    """Open the engine that `where` selects, as a context.

    Args:
      where: name of the engine, and the number of devices that it may use.
      cache: directory of compiled programs.

    Raises:
      ValueError: the engine is unavailable or has fewer devices.
    """
    if where.on == HERE:
        yield Here(spread.chosen(where.device_count), cache, where)
        return
    from experiments.studies import cluster  # needs an optional extra

    with cluster.joined(where.on) as joined:
        say(joined.describe())
        yield _Ray(joined, where, cache)


class Here:
    """The cores or accelerators of this machine."""

    def __init__(self, devices: Sequence[Device], cache: Cache, where: Where) -> None:
        self.devices, self._cache, self._where = devices, cache, where
        self._programs = Programs(max(_PROGRAMS, len(devices)))
        self.is_cpu = devices_.is_cpu(devices)

    def carry_out(self, plan: Plan, results: Store, bar: Bar | None = None) -> None:
        """See `Engine`."""
        with compilation.kept(self._cache):
            running.carry_out(plan, results, self._programs, self._where.leave_state, bar)


class _Ray:
    def __init__(self, joined: "Cluster", where: Where, cache: Cache) -> None:
        asked = where.device_count or len(joined.slots)
        if asked > len(joined.slots):
            raise ValueError(
                f"devices is {asked}, but the cluster has {len(joined.slots)}: use at most as many"
            )
        self.devices: Sequence[Device] = joined.slots[:asked]
        self.is_cpu = devices_.is_cpu(self.devices)
        self._joined, self._cache, self._every = joined, cache, where.leave_state

    def carry_out(self, plan: Plan, results: Store, bar: Bar | None = None) -> None:
        from experiments.studies import cluster_running

        cluster_running.carry_out(plan, results, self._joined, self._cache, self._every, bar)
