"""What carries out a sweep: the devices of this machine, or a Ray cluster."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from experiments.runs import compilation
from experiments.runs.log import say
from experiments.sweeps import running
from experiments.sweeps.devices import Device
from experiments.sweeps.options import HERE, SweepOptions
from experiments.sweeps.plan import Plan
from experiments.sweeps.progress import Bar
from experiments.sweeps.store import Store
from experiments.sweeps.waves import Programs
from experiments.training import spread

if TYPE_CHECKING:
    from experiments.sweeps.cluster import Cluster

_PROGRAMS = 16  # that are kept compiled, if there are no more devices
Cache = Path | Literal["off"] | None  # where compiled programs are kept


class Engine(Protocol):
    """Takes waves of runs.

    Attributes:
      devices: each takes one at a time.
    """

    devices: Sequence[Device]

    def carry_out(self, plan: Plan, results: Store, bar: Bar | None = None) -> None:
        """Run what is missing of a sweep, and keep every wave as it ends.

        Args:
          plan: what is to run.
          results: get what ends.
          bar: that of a larger whole, whose affair it is if runs fail; None: this is all there is.

        Raises:
          Stopped: the user pressed Ctrl-C, or runs failed; what has ended is kept.
        """
        ...


@contextlib.contextmanager
def opened(options: SweepOptions, cache: Cache) -> Iterator[Engine]:
    """Return the engine that is asked for.

    Args:
      options: say which, and how many devices it may use.
      cache: where compiled programs are kept.

    Raises:
      ValueError: one line: there is none, or there are fewer devices.
    """
    if options.on == HERE:
        yield Here(spread.chosen(options.device_count), cache)
        return
    from experiments.sweeps import cluster  # of an optional extra

    with cluster.joined(options.on) as joined:
        say(joined.describe())
        yield _Ray(joined, options, cache)


class Here:
    """The cores or accelerators of this machine."""

    def __init__(self, devices: Sequence[Device], cache: Cache) -> None:
        self.devices, self._cache = devices, cache
        self._programs = Programs(max(_PROGRAMS, len(devices)))

    def carry_out(self, plan: Plan, results: Store, bar: Bar | None = None) -> None:
        """See `Engine`."""
        with compilation.kept(self._cache):
            running.carry_out(plan, results, self._programs, bar)


class _Ray:
    def __init__(self, joined: "Cluster", options: SweepOptions, cache: Cache) -> None:
        asked = options.device_count or len(joined.slots)
        if asked > len(joined.slots):
            raise ValueError(
                f"devices is {asked}, and the cluster has {len(joined.slots)}: use as many or fewer"
            )
        self.devices: Sequence[Device] = joined.slots[:asked]
        self._joined, self._cache, self._every = joined, cache, options.leave_state

    def carry_out(self, plan: Plan, results: Store, bar: Bar | None = None) -> None:
        from experiments.sweeps import cluster_running

        cluster_running.carry_out(plan, results, self._joined, self._cache, self._every, bar)
