"""Time all contenders side by side, at one capacity and batch size."""

import copy
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments.benchmarks import devices, loops, timing
from experiments.benchmarks.dispatched import Dispatched, DispatchedNumpy, DispatchedPacked
from experiments.benchmarks.peers import SOURCES, ours
from experiments.benchmarks.peers.types import (
    Buffer,
    CompiledBuffer,
    Peer,
    Rows,
    endless_episode,
    row,
)
from experiments.benchmarks.timing import Run
from experiments.runs.log import say
from jaxreplay.option import option
from jaxreplay.replay import Replay

MODES = {
    "scan": "in a compiled loop",
    "dispatched": "driven from Python, state donated, one call per verb",
    "one-call": "driven from Python, state donated, one call between two learning steps",
    "packed-call": "the same, with state, row and batch as few arrays",
    "numpy-call": "the same, with batches and TD errors as NumPy arrays",
    "vmapped": "in a compiled loop, vmapped over seeds (time of all of them)",
    "train": "train step with a small critic (2 x 64) in a compiled loop",
}
CYCLE = "cycle"
ONE_CALL_ORDER = "update-add-sample"  # between two learning steps, in either order of a loop
NAMES = [source.module for source in SOURCES]
_CALLS = {
    "one-call": Dispatched,
    "packed-call": DispatchedPacked,
    "numpy-call": DispatchedNumpy,
}
_POOL = 64  # rows and TD errors that a loop in Python cycles through


@dataclasses.dataclass(frozen=True)
class Settings(devices.OnDevice):
    """What to measure, and how long."""

    capacities: tuple[int, ...] = option((10_000, 100_000, 2**20), "slots", at_least=1)
    batch_sizes: tuple[int, ...] = option((32, 256, 4096), "transitions in a batch", at_least=1)
    modes: tuple[str, ...] = option(tuple(MODES), "where cycles run", choices=tuple(MODES))
    verbs: tuple[str, ...] = option(
        (*loops.VERBS, CYCLE),
        "what to time; train steps are cycles",
        choices=(*loops.VERBS, CYCLE),
    )
    order: tuple[str, ...] = option(loops.ORDERS[:1], "orders of the verbs", choices=loops.ORDERS)
    peers: tuple[str, ...] = option(tuple(NAMES), "what to compare", choices=tuple(NAMES))
    seeds: int = option(8, "seeds in the mode vmapped", at_least=1)
    turns: int = option(5, "turns of each contender; times are medians over them", at_least=1)
    seconds: float = option(0.1, "approximate length of a turn", above=0)

    def check(self) -> None:
        """Refuse batches that a replay can't hold."""
        if max(self.batch_sizes) > min(self.capacities):
            raise ValueError(
                f"batch_sizes: {max(self.batch_sizes)} is larger than the capacity "
                f"{min(self.capacities)}: use smaller batches or larger capacities"
            )


@dataclasses.dataclass(frozen=True)
class Result:
    """How long one contender took for one verb, or for a cycle."""

    capacity: int
    batch_size: int
    mode: str
    verb: str
    order: str | None  # of a cycle
    peer: str
    us: tuple[float, ...]  # microseconds per cycle, one number per turn
    median_us: float
    ratio_to_ours: float | None  # prioritised to prioritised, uniform to uniform; turn by turn
    large_copies: int | None  # instructions in the loop that copy a whole array


@dataclasses.dataclass
class Contender:
    """A peer at work; its state is handed from one measurement to the next."""

    peer: Peer
    batch_size: int
    replay: Replay | None = None
    state: Any = None  # of `replay`
    buffer: Buffer | CompiledBuffer | None = None


def enter(peer: Peer, capacity: int, batch_size: int) -> Contender:
    """Make a peer's buffer and fill it."""
    if peer.replay is not None:
        replay = peer.replay(capacity, batch_size)
        return Contender(peer, batch_size, replay, loops.filled(replay))
    buffer = (peer.buffer or peer.compiled)(capacity, batch_size)
    buffer.fill(endless_episode(np.random.default_rng(0), capacity))
    return Contender(peer, batch_size, buffer=buffer)


def measure(
    peers: Sequence[Peer], capacity: int, batch_size: int, settings: Settings
) -> Iterator[Result]:
    """Time the contenders in every mode, verb and order."""
    contenders = []
    for peer in peers:
        say(f"  filling {peer.name}")
        contenders.append(enter(peer, capacity, batch_size))
    for mode in settings.modes:
        for verb, order in _tasks(mode, settings):
            say(f"  {mode}, {verb if order is None else order}")
            yield from _compare(mode, verb, order, contenders, settings, (capacity, batch_size))


def _tasks(mode: str, settings: Settings) -> list[tuple[str, str | None]]:
    """Return the verbs to time in a mode, and for cycles their order."""
    orders = settings.order if CYCLE in settings.verbs else ()
    if mode in _CALLS:
        orders = orders and (ONE_CALL_ORDER,)
    cycles = [(CYCLE, order) for order in orders]
    if mode in (*_CALLS, "train"):
        return cycles
    return [(verb, None) for verb in settings.verbs if verb != CYCLE] + cycles


def _compare(
    mode: str,
    verb: str,
    order: str | None,
    contenders: Sequence[Contender],
    settings: Settings,
    sizes: tuple[int, int],
) -> list[Result]:
    ready = {}
    for contender in contenders:
        if verb == "update" and not contender.peer.prioritised:
            continue  # there is nothing to update
        if made := _MAKERS[mode](contender, verb, order, settings):
            ready[contender.peer.name] = (contender, *made)
    runs = {name: run for name, (_, run, _, _) in ready.items()}
    times = timing.take_turns(runs, settings.turns, settings.seconds)
    results = []
    for name, (contender, _, copies, give_back) in ready.items():
        give_back()
        reference = ours.PRIORITISED if contender.peer.prioritised else ours.UNIFORM
        ratio = timing.ratio(times[name], times[reference]) if reference in times else None
        us = tuple(map(_short, times[name]))
        median = statistics.median(us)
        results.append(Result(*sizes, mode, verb, order, name, us, median, _short(ratio), copies))
    return results


def _short(number: float | None) -> float | None:
    """Return four significant digits of a number."""
    return None if number is None else float(f"{number:.4g}")


_Made = tuple[Run, int | None, Callable[[], None]]  # run, large copies, hand the state back


def _scan(contender: Contender, verb: str, order: str | None, settings: Settings) -> _Made | None:
    del settings
    if contender.peer.compiled is not None:
        return _compiled(contender.buffer, order or verb), None, _nothing
    if contender.replay is None:
        return None
    return _looping(contender, _step(contender.replay, verb, order), verb == "update")


def _train(contender: Contender, verb: str, order: str | None, settings: Settings) -> _Made | None:
    del verb, settings
    if contender.replay is None:
        return None
    return _looping(contender, loops.train_step(contender.replay, order), False)


def _looping(contender: Contender, step: loops.Step, batches: bool) -> _Made:
    replay, carry = contender.replay, loops.start(contender.state)
    fed = loops.inputs(jax.random.key(0), replay.batch_size)
    if batches:
        carry, fed = loops.with_batches(replay, carry, fed)
    loop = loops.Loop(step, carry, fed, replay.capacity)

    def give_back() -> None:
        contender.state = loop.carry.replay

    return loop.run, loop.copies, give_back


def _vmapped(
    contender: Contender, verb: str, order: str | None, settings: Settings
) -> _Made | None:
    if contender.replay is None:
        return None
    replay = contender.replay
    # A single verb may leave unchanged what a whole cycle makes differ from seed to seed.
    axes = loops.seed_axes(replay, loops.cycle(replay, order or loops.ORDERS[0]))
    keys = jax.random.split(jax.random.key(0), settings.seeds)
    fed = jax.vmap(lambda key: loops.inputs(key, replay.batch_size))(keys)
    carry = loops.over_seeds(loops.start(contender.state), axes, settings.seeds)
    if verb == "update":
        carry, fed = loops.with_batches(replay, carry, fed, axes)
    loop = loops.Loop(_step(replay, verb, order), carry, fed, replay.capacity, axes)
    return loop.run, loop.copies, _nothing


def _dispatched(
    contender: Contender, verb: str, order: str | None, settings: Settings
) -> _Made | None:
    del settings
    if contender.replay is None:
        return _driven(contender.buffer, contender.batch_size, verb, order), None, _nothing
    buffer = Dispatched(contender.replay, contender.state)

    def give_back() -> None:
        contender.state = buffer.state

    return _driven(buffer, contender.batch_size, verb, order), None, give_back


def _one_call(
    kind: Callable[..., Dispatched | DispatchedPacked],
    contender: Contender,
    verb: str,
    order: str | None,
    settings: Settings,
) -> _Made | None:
    del verb, order, settings
    if contender.replay is None:  # there is no such call
        return (
            _driven(contender.buffer, contender.batch_size, CYCLE, ONE_CALL_ORDER),
            None,
            _nothing,
        )
    buffer = kind(contender.replay, contender.state)
    rows, errors = _pools(buffer, contender.batch_size)

    def run(count: int) -> float:
        begin = time.perf_counter()
        for number in range(count):
            buffer.turn(rows[number % _POOL], errors[number % _POOL])
        buffer.wait()
        return time.perf_counter() - begin

    def give_back() -> None:
        contender.state = buffer.state

    return run, None, give_back


_MAKERS: Mapping[str, Callable[..., _Made | None]] = {
    "scan": _scan,
    "dispatched": _dispatched,
    **{name: functools.partial(_one_call, kind) for name, kind in _CALLS.items()},
    "vmapped": _vmapped,
    "train": _train,
}


def _step(replay: Replay, verb: str, order: str | None) -> loops.Step:
    return loops.verb(replay, verb) if order is None else loops.cycle(replay, order)


def _compiled(buffer: CompiledBuffer, verb: str) -> Run:
    def run(count: int) -> float:
        begin = time.perf_counter()
        buffer.run(verb, count)
        return time.perf_counter() - begin

    return run


def _driven(buffer: Buffer, batch_size: int, verb: str, order: str | None) -> Run:
    """Return a loop in Python over a verb, or over a cycle in this order."""
    rows, errors = _pools(buffer, batch_size)
    batches: list[Any] = []
    if verb == "update":  # deep copies: some buffers write every batch to the same arrays
        batches = [copy.deepcopy(buffer.sample()) for _ in range(_POOL)]
    verbs = [verb] if order is None else order.split("-")
    batch = None if verb == "add" else buffer.sample()

    def once(at: int) -> None:
        nonlocal batch
        for each in verbs:
            if each == "add":
                buffer.add(rows[at])
            elif each == "sample":
                batch = buffer.sample()
            else:
                buffer.update(batches[at] if batches else batch, errors[at])

    def run(count: int) -> float:
        buffer.wait()
        begin = time.perf_counter()
        for number in range(count):
            once(number % _POOL)
        buffer.wait()
        return time.perf_counter() - begin

    return run


def _pools(buffer: Buffer | DispatchedPacked, batch_size: int) -> tuple[list[Rows], list[Any]]:
    """Return rows and TD errors for a loop in Python to cycle through."""
    rng = np.random.default_rng(1)
    rows = endless_episode(rng, _POOL)
    noise = rng.standard_normal((_POOL, batch_size), np.float32)
    return [row(rows, number) for number in range(_POOL)], [buffer.errors(x) for x in noise]


def _nothing() -> None:
    pass
