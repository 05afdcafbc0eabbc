"""Time our replay and its peers: `python -m experiments.benchmarks.replay`.

A cycle adds a transition, samples a batch and updates its priorities. Modes:

  scan        in a compiled loop
  vmapped     in a compiled loop for several seeds at once (time of all of them)
  dispatched  called from Python with donated states, one call per function
  one-call    the same, one call between two learning steps: update, add, sample the next batch
  packed-call the same, with state, transition and batch as few arrays (jaxreplay.loops.packed)

Peers are optional (`make bench` installs them); missing ones are listed.
"""

import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.benchmarks import calls, command, loops, peers, timing
from experiments.benchmarks.peers import ORDERS, Buffer, Peer
from experiments.benchmarks.timing import Run
from experiments.runs.log import say, show
from jaxreplay.option import option

MODES = ("scan", "vmapped", "dispatched", "one-call", "packed-call")
_Made = tuple[Run, int | None]  # timed function, number of large copies


@dataclasses.dataclass(frozen=True)
class Settings(command.TimedSettings):
    """Cycles to time."""

    capacities: tuple[int, ...] = option((10_000, 100_000, 2**20), "slots", at_least=1)
    batch_sizes: tuple[int, ...] = option((32, 256, 4096), "transitions per batch", at_least=1)
    modes: tuple[str, ...] = option(MODES, "modes", choices=MODES)
    order: tuple[str, ...] = option(ORDERS[:1], "orders of a cycle", choices=ORDERS)
    peers: tuple[str, ...] = option(
        tuple(peers.SOURCES), "replays to compare", choices=tuple(peers.SOURCES)
    )
    seeds: int = option(8, "seeds in the mode vmapped", at_least=1)

    def check(self) -> None:
        """Reject batches larger than a replay."""
        batch_size, capacity = max(self.batch_sizes), min(self.capacities)
        if batch_size > capacity:
            raise ValueError(f"batch_sizes: {batch_size} exceeds the capacity {capacity}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    settings, out = command.read("replay", __doc__, Settings(), argv)
    found = peers.find(settings.peers)
    content = {
        "machine": timing.machine(),
        "settings": dataclasses.asdict(settings),
        "versions_of_peers": found.versions,
        "missing": sorted(found.missing),  # the reasons contain names of folders
        "results": [],
    }
    for capacity, batch_size, mode in itertools.product(
        settings.capacities, settings.batch_sizes, settings.modes
    ):
        title = f"{mode}, {capacity:,} slots, batch {batch_size:,}"
        say(title)
        new = measure(found.peers, mode, capacity, batch_size, settings)
        show(f"\n**{title}**\n\n{_table(new)}")
        content["results"] += new
        command.write(out, content)  # after every table, as all take long
    for package, reason in found.missing.items():
        show(f"missing: {package} ({reason})")
    return 0


def measure(
    contenders: Sequence[Peer], mode: str, capacity: int, batch_size: int, settings: Settings
) -> list[dict[str, Any]]:
    """Fill the replays that have this mode, and time them in turns.

    Times are in microseconds per cycle. Ratios are relative to our PER for prioritised replays and
    to our uniform replay for others. Copies are the instructions in a compiled loop that copy a
    whole array.
    """
    results = []
    for order in (peers.ONE_CALL_ORDER,) if mode.endswith("-call") else settings.order:
        made: dict[Peer, _Made] = {}
        for peer in contenders:
            say(f"  filling {peer.name}, {order}")
            if run := _run_of(peer, mode, order, (capacity, batch_size, settings.seeds)):
                made[peer] = run
        ours = {True: peers.PRIORITISED.name, False: peers.UNIFORM.name}
        times = timing.compare(
            {peer.name: run for peer, (run, _) in made.items()}, settings.turns, settings.seconds,
            {peer.name: ours[peer.prioritised] for peer in made},
        )  # fmt: skip
        results += [
            {
                "capacity": capacity, "batch_size": batch_size, "mode": mode, "order": order,
                "peer": peer.name, "us": times[peer.name].us,
                "median_us": times[peer.name].median_us, "ratio_to_ours": times[peer.name].ratio,
                "large_copies": copies,
            }
            for peer, (_, copies) in made.items()
        ]  # fmt: skip
    return results


def _run_of(peer: Peer, mode: str, order: str, sizes: tuple[int, int, int]) -> _Made | None:
    """Return a function that times cycles, and the copies in its loop; None without this mode."""
    capacity, batch_size, seeds = sizes
    made = peer.make(capacity, batch_size)
    if mode in ("scan", "vmapped") and not isinstance(made, Buffer):
        loop = loops.loop_of(made, order, seeds if mode == "vmapped" else None)
        return loop.run, loop.copies(capacity)
    if mode in ("scan", "vmapped"):
        return None
    buffer = made if isinstance(made, Buffer) else calls.Called(made, updates=peer.prioritised)
    buffer.fill(peers.endless_episode(np.random.default_rng(0), capacity))
    if isinstance(buffer, calls.Called) and mode != "dispatched":
        return calls.one_call_per_cycle(buffer, batch_size, mode == "packed-call"), None
    return calls.one_call_per_function(buffer, batch_size, order), None


def _table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a row per peer."""
    head, rows = ["us"], {one["peer"]: [one["peer"]] for one in results}
    for order in dict.fromkeys(one["order"] for one in results):
        head += [order, "ratio to ours", "large copies"]
        for one in (one for one in results if one["order"] == order):
            rows[one["peer"]] += [one["median_us"], one["ratio_to_ours"], one["large_copies"]]
    return command.table(head, list(rows.values()))


if __name__ == "__main__":
    sys.exit(main())
