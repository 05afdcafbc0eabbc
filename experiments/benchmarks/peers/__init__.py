"""Replay buffers to compare with ours, pure functions or a `Buffer`.

Packages of peers are optional; `find` reports missing ones with their install commands.

Shapes: `B` transitions of a batch, `C` slots.
"""

import abc
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

from experiments.installation.commands import install
from jaxreplay.methods import per, uniform
from jaxreplay.replay import Replay

OBS, ACTION = 17, 6  # sizes of a locomotion task
ALPHA, BETA, EPSILON = 0.6, 0.4, 1e-6  # for all prioritised buffers (Schaul et al. 2016)
ORDERS = ("add-sample-update", "sample-update-add")  # orders of a cycle in a training loop
ONE_CALL_ORDER = "update-add-sample"  # order between two learning steps, for either of `ORDERS`


class Rows(NamedTuple):
    """Transitions as float32 NumPy arrays `[n, ...]`, or `[...]` for a single one."""

    obs: np.ndarray  # [n, OBS]
    action: np.ndarray  # [n, ACTION]
    reward: np.ndarray  # [n]
    discount: np.ndarray  # [n]
    next_obs: np.ndarray  # [n, OBS]


class Buffer(abc.ABC):
    """A replay buffer that is called from Python, with a fixed capacity and batch size.

    TD errors have the format that `errors` returns, and batches that of `sample`, so that
    conversions are not timed.
    """

    @abc.abstractmethod
    def fill(self, rows: Rows) -> None:
        """Store C transitions `[C, ...]`."""

    @abc.abstractmethod
    def add(self, row: Rows) -> None:
        """Store one transition `[...]`."""

    @abc.abstractmethod
    def sample(self) -> Any:
        """Draw a batch and read its transitions."""

    @abc.abstractmethod
    def update(self, batch: Any, errors: Any) -> None:
        """Set new priorities for a batch."""

    def errors(self, td_error: np.ndarray) -> Any:
        """Return TD errors `[B]` float32 in the format of a learner that uses this buffer."""
        return td_error

    def wait(self) -> None:  # noqa: B027, most calls have finished when they return
        """Return when all calls have finished."""


class Peer(NamedTuple):
    """A contender."""

    name: str
    prioritised: bool
    make: Callable[[int, int], Replay | Buffer]  # function of capacity and batch size


def endless_episode(rng: np.random.Generator, count: int, first: int = 0) -> Rows:
    """Return `count` successive transitions of one episode without an end.

    The reward is the transition's number, counted from `first`, and identifies it. Each next
    observation is the observation of the following transition, for buffers that store it once.
    """
    obs = rng.standard_normal((count + 1, OBS), np.float32)
    return Rows(
        obs=obs[:-1],
        action=rng.uniform(-1, 1, (count, ACTION)).astype(np.float32),
        reward=np.arange(first, first + count, dtype=np.float32),
        discount=np.full(count, 0.99, np.float32),
        next_obs=obs[1:],
    )


def row(rows: Rows, number: int) -> Rows:
    """Return one of the transitions, with fields `[...]`."""
    return Rows(*(field[number] for field in rows))


def _per(capacity: int, batch_size: int) -> Replay:
    config = per.PERConfig(alpha=ALPHA, beta=BETA, beta_end=BETA, epsilon=EPSILON)
    return Replay(per.sampler(config), capacity=capacity, batch_size=batch_size)


def _uniform(capacity: int, batch_size: int) -> Replay:
    return Replay(uniform.sampler(), capacity=capacity, batch_size=batch_size)


# The references for prioritised and uniform peers.
PRIORITISED = Peer("jaxreplay per", prioritised=True, make=_per)
UNIFORM = Peer("jaxreplay uniform", prioritised=False, make=_uniform)

_EXTRA = install("bench")


# Module of peers, named after its package -> command that installs the package.
SOURCES = {
    "ours": "",
    "flashbax": _EXTRA,
    "cpprb": f"{_EXTRA}, Python 3.12 at most",
}


class Found(NamedTuple):
    """Available and missing peers."""

    peers: tuple[Peer, ...]
    missing: dict[str, str]  # package -> reason, with the install command
    versions: dict[str, str]  # available package -> version


def find(names: Sequence[str]) -> Found:
    """Import the peers of `names`, keys of SOURCES, whose packages are installed."""
    peers: list[Peer] = []
    missing, versions = {}, {}
    for name in names:
        if name == "ours":
            peers += PRIORITISED, UNIFORM
            continue
        if importlib.util.find_spec(name) is None:
            missing[name] = f"not installed: {SOURCES[name]}"
            continue
        try:
            peers += importlib.import_module(f"{__name__}.{name}").peers()
        except (ImportError, OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            missing[name] = f"installed, but does not work here: {reason}"
            continue
        versions[name] = metadata.version(name)
    return Found(tuple(peers), missing, versions)
