"""Replays filled with recorded episodes, such as those of Minari datasets.

Each environment of the replay receives whole episodes one after the other. They pass through the
same n-step window as online experience, which makes returns, discounts and last observations.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxreplay import n_step as n_step_
from jaxreplay._internal import packages
from jaxreplay._internal.arguments import Bounds, check_kind, find_overflow
from jaxreplay.n_step import Step
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.types import Array, Transition, Tree


class Episode(Protocol):
    """A recorded episode of T steps, with the attributes of Minari's `EpisodeData`."""

    @property
    def observations(self) -> Tree:
        """Leaves `[T + 1, ...]`: observations before every step, and after the last one."""
        ...

    @property
    def actions(self) -> Tree:
        """Leaves `[T, ...]`."""
        ...

    @property
    def rewards(self) -> Any:
        """`[T]`."""
        ...

    @property
    def terminations(self) -> Any:
        """`[T]` bool."""
        ...

    @property
    def truncations(self) -> Any:
        """`[T]` bool. An episode without a termination or truncation counts as truncated."""
        ...


class Filled(NamedTuple):
    """A filled replay."""

    state: ReplayState
    stored: int  # transitions added, of which the ring keeps the newest
    left_out: int  # steps left out, because their environment had more than the one with the fewest


Prepare = Callable[[Tree], Tree]


def from_minari(
    replay: Replay, dataset: Any, *, key: Array, gamma: float, n_step: int = 1,
    prepare: Prepare | None = None, chunk: int = 4096,
) -> Filled:  # fmt: skip
    """Return a new replay state filled with the episodes of a Minari dataset.

    Args:
      replay: a replay without feedback about new transitions; its transitions are of type
        `Transition`, without extras.
      dataset: a `MinariDataset`, or the name of one on this machine.
      key: PRNG key, as for `replay.init`.
      gamma: discount per step, in [0, 1].
      n_step: number of steps n of a return.
      prepare: function of an episode's observations, NumPy leaves `[T + 1, ...]`, that returns the
        observations to be stored; None stores all of them.
      chunk: steps of every environment that are transferred to the device at once.

    Raises:
      ValueError: one line: the dataset is not on this machine, has no episodes or has arrays that
        can't be stored; or the replay can't be filled.
      ImportError: minari is not installed.

    Example:
      replay = Replay(per.sampler(), capacity=100_000, batch_size=256)
      filled = from_minari(replay, "D4RL/door/human-v2", key=jax.random.key(0), gamma=0.99)
      batch = replay.sample(filled.state, jax.random.key(1))
    """
    if isinstance(dataset, str):
        minari = packages.imported("minari", "Minari datasets", "minari[hdf5]")
        try:
            dataset = minari.load_dataset(dataset)
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(
                f"Minari dataset {dataset} is not on this machine ({' '.join(str(error).split())}):"
                f" run `minari download {dataset}` first"
            ) from None
    return fill(
        replay, dataset.iterate_episodes(), key=key, gamma=gamma, n_step=n_step,
        prepare=prepare, chunk=chunk,
    )  # fmt: skip


def fill(
    replay: Replay, episodes: Iterable[Episode], *, key: Array, gamma: float, n_step: int = 1,
    prepare: Prepare | None = None, chunk: int = 4096,
) -> Filled:  # fmt: skip
    """Return a new replay state filled with recorded episodes.

    Each episode goes to the environment with the fewest steps so far. All environments end with the
    shortest one: further steps are left out, and an episode cut by this counts as truncated. With
    one environment nothing is left out. The discount is 0 only where an episode *terminated*.

    Args:
      replay: as for `from_minari`, like all arguments after `episodes`.
      episodes: episodes in the order of storage; an iterator is consumed as it is needed.
      key: PRNG key, as for `replay.init`.
      gamma: discount per step, in [0, 1].
      n_step: number of steps n of a return.
      prepare: function of an episode's observations.
      chunk: steps of every environment that are transferred to the device at once.

    Raises:
      ValueError: as `from_minari`.
    """
    _check_arguments(replay, n_step, chunk, gamma)
    feed = _Feed(_convert(episodes, prepare), replay.num_envs)
    example = jax.tree.map(lambda x: x[0], feed.example)
    number, flag = np.zeros((), np.float32), np.zeros((), bool)
    transition: Any = (example.obs, example.action, number, number, example.next_obs, flag, flag)
    state = replay.init(key, Transition(*transition))
    if state.ring.split is not None:
        raise ValueError(
            "storage is Transitions(on_host=True), and fill does not return transitions for the "
            "host: make the replay with storage=Transitions()"
        )
    if state.ring.frames is not None and n_step > state.ring.frames.ahead:
        raise ValueError(
            f"n_step is {n_step}, and the replay stores observations once for returns of up to "
            f"{state.ring.frames.ahead} steps: make its storage with ahead={n_step}"
        )

    def push(steps: Step, carry: Any, store: bool) -> Any:
        def one(carry: Any, step: Step) -> tuple[Any, None]:
            window, transition = n_step_.push(carry[0], step, gamma)
            return (window, replay.add(carry[1], transition) if store else carry[1]), None

        return jax.lax.scan(one, carry, steps)[0]

    push = jax.jit(push, static_argnums=2, donate_argnums=1)
    carry, early = (n_step_.init(example, n_step, replay.num_envs), state), n_step - 1
    for piece in feed.pieces(chunk, early):
        first, rest = _split(piece, early)  # the first n - 1 pushes emit no transition
        early = 0
        for part, store in ((first, False), (rest, True)):
            carry = push(part, carry, store) if len(part.reward) else carry
    return Filled(carry[1], feed.taken * replay.num_envs, feed.left_out)


class _Feed:
    """Steps of episodes, distributed over environments."""

    def __init__(self, episodes: Iterator[Step], num_envs: int) -> None:
        self._episodes = episodes
        self._queues: list[list[Step]] = [[] for _ in range(num_envs)]
        self._received = [0] * num_envs  # steps of each environment so far
        self.taken = 0  # steps of every environment that `pieces` has yielded
        self.left_out = 0
        if not self._receive():
            raise ValueError("no episode has a step: give at least one that has")
        self.example = self._queues[0][0]

    def pieces(self, chunk: int, lag: int) -> Iterator[Step]:
        """Yield steps `[n, E, ...]`: `lag` more in the first piece, and `lag` empty ones last."""
        size = chunk + lag
        while self._receive_more_than(size):
            yield self._take(size)
            size = chunk
        rest = self._take(min(self._received) - self.taken)
        if not self.taken:
            raise ValueError(
                f"num_envs of the replay is {len(self._queues)}, more than there are episodes: use "
                "num_envs=1"
            )
        self.left_out = sum(self._received) - self.taken * len(self._queues)
        rest.truncated[-1:] |= ~rest.terminated[-1:]  # the last steps of episodes that are cut here
        empty = jax.tree.map(lambda x: np.zeros((lag, *x.shape[1:]), x.dtype), rest)
        yield _concatenate([rest, empty])

    def _receive_more_than(self, size: int) -> bool:
        while min(self._received) - self.taken <= size:
            if not self._receive():
                return False
        return True

    def _receive(self) -> bool:
        """Give the next episode, if any, to the environment with the fewest steps."""
        steps = next(self._episodes, None)
        if steps is None:
            return False
        env = int(np.argmin(self._received))
        self._queues[env].append(steps)
        self._received[env] += len(steps.reward)
        return True

    def _take(self, count: int) -> Step:
        """Take the next steps `[count, E, ...]` of every environment."""
        parts = []
        for queue in self._queues:
            first, rest = _split(_concatenate(queue or [_split(self.example, 0)[0]]), count)
            queue[:] = [rest]
            parts.append(first)
        self.taken += count
        return jax.tree.map(lambda *envs: np.stack(envs, axis=1), *parts)


def _convert(episodes: Iterable[Episode], prepare: Prepare | None) -> Iterator[Step]:
    """Yield the steps `[T, ...]` of each episode; validate that dtypes and shapes agree."""
    expected: dict[str, str] = {}
    begun = 0
    for number, episode in enumerate(episodes):
        if not len(episode.rewards):
            continue
        steps = _as_steps(episode, prepare)
        parts = {"observations": steps.obs, "actions": steps.action}
        leaves = jax.tree_util.tree_flatten_with_path(parts)[0]
        found = {_name(path): f"{leaf.dtype}{list(leaf.shape[1:])}" for path, leaf in leaves}
        if not expected:
            expected, begun = found, number
        for name in expected | found:
            kinds = [kind.get(name, "missing") for kind in (found, expected)]
            if kinds[0] != kinds[1]:
                raise ValueError(
                    f"{name} are {kinds[0]} in episode {number}, and {kinds[1]} in episode "
                    f"{begun}: give all the same dtype and shape, observations by prepare=..."
                )
        yield steps


def _as_steps(episode: Episode, prepare: Prepare | None) -> Step:
    arrays: Any = {
        "observations": prepare(episode.observations) if prepare else episode.observations,
        "actions": episode.actions,
        "terminations": np.asarray(episode.terminations),
        "truncations": np.asarray(episode.truncations),
    }
    arrays = jax.tree_util.tree_map_with_path(
        lambda path, x: _as_array(_name(path), x, len(episode.rewards)), arrays
    )
    terminated, truncated = (arrays[x].astype(bool) for x in ("terminations", "truncations"))
    truncated[-1:] |= ~terminated[-1:]
    first: Any = np.concatenate([np.ones(1, bool), (terminated | truncated)[:-1]])
    reward: Any = np.asarray(episode.rewards, np.float32)
    return Step(
        obs=jax.tree.map(lambda x: x[:-1], arrays["observations"]),
        action=arrays["actions"],
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        next_obs=jax.tree.map(lambda x: x[1:], arrays["observations"]),
        first=first,
    )


def _name(path: Any) -> str:
    """Return the name of a leaf, such as "observations['speed']"."""
    return path[0].key + jax.tree_util.keystr(path[1:])


def _as_array(name: str, values: Any, steps: int) -> np.ndarray:
    """Return a field of an episode in a dtype of JAX; validate its length and values."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} of an episode are {array.dtype}, which can't be stored: omit or convert them "
            "with prepare=..."
        )
    length = steps + name.startswith("observations")
    if len(array) != length:
        raise ValueError(
            f"{name} of an episode have length {len(array)}: it must be {length}, for {steps} "
            "rewards"
        )
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if dtype.kind in "iu" and (value := find_overflow(array, dtype)) is not None:
        raise ValueError(f"{name} of an episode have {value}, which is out of range for {dtype}")
    return array.astype(dtype)


def _concatenate(steps: list[Step]) -> Step:
    return steps[0] if len(steps) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *steps)


def _split(steps: Step, count: int) -> tuple[Step, Step]:
    first = jax.tree.map(lambda x: x[:count], steps)
    return first, jax.tree.map(lambda x: x[count:], steps)


def _check_arguments(replay: Replay, n_step: int, chunk: int, gamma: float) -> None:
    for name, count in {"chunk": chunk, "n_step": n_step}.items():
        check_kind(name, count, int)
        Bounds(at_least=1).check(name, count)
    n_step_.check_gamma(gamma)
    requires = replay.requires
    if requires.feedback_of_new:
        raise ValueError(
            f"this replay method reads {', '.join(sorted(requires.feedback_of_new))} of new "
            "transitions, and datasets do not have it: choose options that do without"
        )
    if requires.single_steps and n_step != 1:
        raise ValueError(f"n_step is {n_step}: it must be 1 for this replay method")
