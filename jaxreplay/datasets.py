"""Replays filled with recorded episodes, such as those of Minari datasets.

Lane e of the ring holds whole episodes one after the other, as if environment e had just lived
through them; n-step returns, discounts and last observations are made by the same window as online.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import n_step as n_step_
from jaxreplay._internal import optional
from jaxreplay._internal.checks import Bounds, check_kind
from jaxreplay.n_step import Step
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.types import Array, Transition, Tree


class Episode(Protocol):
    """One recorded episode of T steps, as Minari's `EpisodeData` has it."""

    @property
    def observations(self) -> Tree:
        """Leaves `[T + 1, ...]`: the last is what the last step led to."""
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
        """`[T]` bool; an episode that ends with neither counts as truncated."""
        ...


class Filled(NamedTuple):
    """What became of a dataset."""

    state: ReplayState
    stored: int  # transitions added; the ring keeps the newest of them, as many as it has slots
    left_out: int  # steps at the end of lanes that had more than the shortest


Prepare = Callable[[Tree], Tree]


def from_minari(
    replay: Replay, dataset: Any, *, key: Array, gamma: float, n_step: int = 1,
    prepare: Prepare | None = None, chunk: int = 4096,
) -> Filled:  # fmt: skip
    """Make a replay's state and fill it with a Minari dataset.

    Args:
      replay: of rows of type `Transition` without extras; any method that needs no feedback
        about them.
      dataset: a `MinariDataset`, or the name of one that is on this machine.
      key: as for `replay.init`.
      gamma: discount per step.
      n_step: steps of a return.
      prepare: what is stored of an episode's observations: leaves `[T + 1, ...]` of NumPy to such;
        None: all of them.
      chunk: rows, of a step in every lane, that are on their way to the device at a time.

    Raises:
      ValueError: there is no such dataset here, it holds what can't be stored, or the method does
        not go with it, each in one line.
      ImportError: minari is not installed.
    """
    if isinstance(dataset, str):
        dataset = _load(dataset)
    return fill(
        replay, dataset.iterate_episodes(), key=key, gamma=gamma, n_step=n_step,
        prepare=prepare, chunk=chunk,
    )  # fmt: skip


def fill(
    replay: Replay, episodes: Iterable[Episode], *, key: Array, gamma: float, n_step: int = 1,
    prepare: Prepare | None = None, chunk: int = 4096,
) -> Filled:  # fmt: skip
    """Make a replay's state and fill it with episodes.

    Each episode goes to the lane with the fewest steps so far. Lanes end with the shortest of
    them: what the others have more is left out, and an episode that this cuts counts as truncated.
    With one environment nothing is left out. The discount is 0 where an episode *terminated*.

    Args:
      replay: as for `from_minari`, like the arguments after the next.
      episodes: in the order in which they are stored; they are read as they are needed.
      key: as for `replay.init`.
      gamma: discount per step.
      n_step: steps of a return.
      prepare: what is stored of an episode's observations.
      chunk: rows that are on their way to the device at a time.

    Raises:
      ValueError: as `from_minari`.
    """
    _check(replay, n_step, chunk, gamma)
    whole = _alike(
        (number, _steps(episode, prepare))
        for number, episode in enumerate(episodes)
        if len(episode.rewards)
    )
    feed = _Feed(whole, replay.num_envs)
    example = jax.tree.map(lambda x: x[0], feed.example)
    window = n_step_.init(example, n_step, replay.num_envs)
    state = replay.init(key, _transition(example))
    if state.ring.split is not None:
        raise ValueError(
            "on_host: the caller keeps the rows, and would miss those that are filled in at "
            "once: leave it out"
        )
    if state.ring.frames is not None and n_step > state.ring.frames.ahead:
        raise ValueError(
            f"n_step is {n_step}, and the replay stores observations once for returns of up to "
            f"{state.ring.frames.ahead} steps: give its storage ahead={n_step}"
        )

    def put(carry: tuple[Any, ReplayState], steps: Step) -> tuple[Any, ReplayState]:
        def one(carry: Any, step: Step) -> tuple[Any, None]:
            window, transition = n_step_.push(carry[0], step, gamma)
            return (window, replay.add(carry[1], transition)), None

        return jax.lax.scan(one, carry, steps)[0]

    def only_push(window: Any, steps: Step) -> Any:
        return jax.lax.scan(lambda w, x: (n_step_.push(w, x, gamma)[0], None), window, steps)[0]

    put, only_push = jax.jit(put, donate_argnums=0), jax.jit(only_push)
    carry, early = (window, state), n_step - 1  # pushes that emit nothing to be stored yet
    for piece in feed.pieces(chunk, early):
        if early:
            ahead = min(early, len(piece.reward))
            first, piece = _cut(piece, ahead)
            carry = only_push(carry[0], first), carry[1]
            early -= ahead
        if len(piece.reward):
            carry = put(carry, piece)
    return Filled(carry[1], feed.rows * replay.num_envs, feed.left_out)


class _Feed:
    """Steps of episodes, distributed over lanes."""

    def __init__(self, episodes: Iterator[Any], num_envs: int) -> None:
        self._episodes = episodes
        self._lanes: list[list[Any]] = [[] for _ in range(num_envs)]
        self._given = [0] * num_envs  # steps that each lane was given so far
        self._taken = 0  # and that went on to the replay
        self.left_out = 0
        if not self._read():
            raise ValueError("there is no episode with a step: give some to fill the replay with")
        self.example = next(lane[0] for lane in self._lanes if lane)

    @property
    def rows(self) -> int:
        """Rows that went on, each with a step of every lane."""
        return self._taken

    def pieces(self, chunk: int, lag: int) -> Iterator[Any]:
        """Yield steps `[n, E, ...]`: `lag` more in the first piece, and so many empty ones last."""
        size = chunk + lag
        while self._have_more_than(size):
            yield self._take(size)
            size = chunk
        rest = self._take(min(self._given) - self._taken)
        if not self._taken:
            raise ValueError(
                f"there are fewer episodes than the {len(self._given)} environments of the replay: "
                "make it with num_envs=1"
            )
        self.left_out = sum(self._given) - self._taken * len(self._given)
        # Of episodes that are cut here the newest step is the last, too.
        rest.truncated[-1:] |= ~rest.terminated[-1:]
        empty = jax.tree.map(lambda x: np.zeros((lag, *x.shape[1:]), x.dtype), rest)
        yield _join([rest, empty])

    def _have_more_than(self, size: int) -> bool:
        while min(self._given) - self._taken <= size:
            if not self._read():
                return False
        return True

    def _read(self) -> bool:
        """Give the next episode to the lane with the fewest steps; tell whether there was one."""
        steps = next(self._episodes, None)
        if steps is None:
            return False
        lane = int(np.argmin(self._given))
        self._lanes[lane].append(steps)
        self._given[lane] += len(steps.reward)
        return True

    def _take(self, count: int) -> Any:
        """Take the next steps of every lane: `[count, E, ...]`."""
        parts = []
        for lane in self._lanes:
            first, rest = _cut(_join(lane or [_cut(self.example, 0)[0]]), count)
            lane[:] = [rest]
            parts.append(first)
        self._taken += count
        return jax.tree.map(lambda *lanes: np.stack(lanes, axis=1), *parts)


def _steps(episode: Episode, prepare: Prepare | None) -> Any:
    """Turn an episode into its steps, a `Step` `[T, ...]` of NumPy."""
    observations = prepare(episode.observations) if prepare else episode.observations
    length = len(episode.rewards)
    obs = jax.tree_util.tree_map_with_path(
        lambda path, x: _array("observations", path, x, length + 1), observations
    )
    action = jax.tree_util.tree_map_with_path(
        lambda path, x: _array("actions", path, x, length), episode.actions
    )
    for name in ("terminations", "truncations"):
        if (count := len(getattr(episode, name))) != length:
            raise ValueError(
                f"{name} of an episode are {count}, and by its rewards should be {length}"
            )
    terminated: Any = np.array(episode.terminations, bool)
    truncated: Any = np.array(episode.truncations, bool)
    truncated[-1:] |= ~terminated[-1:]
    over = terminated | truncated
    reward: Any = np.asarray(episode.rewards, np.float32)
    first: Any = np.concatenate([np.ones(1, bool), over[:-1]])
    return Step(
        obs=jax.tree.map(lambda x: x[:-1], obs),
        action=action,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        next_obs=jax.tree.map(lambda x: x[1:], obs),
        first=first,
    )


def _alike(numbered: Iterable[tuple[int, Step]]) -> Iterator[Step]:
    """Yield the steps of episodes; refuse one whose steps are not of the first one's kind."""
    first: list[tuple[str, Any]] = []
    begun = 0
    for number, steps in numbered:
        # By the names that episodes have: a step's next observations are its observations, too.
        parts = {"observations": steps.obs, "actions": steps.action}
        leaves = jax.tree_util.tree_flatten_with_path(parts)[0]
        kinds = [
            (path[0].key + jax.tree_util.keystr(path[1:]), (leaf.dtype, leaf.shape[1:]))
            for path, leaf in leaves
        ]
        first, begun = first or kinds, begun if first else number
        for name in dict([*first, *kinds]):
            was, now = dict(first).get(name), dict(kinds).get(name)
            if was != now:
                raise ValueError(
                    f"{name} of episode {number} {_kind(now)}, and of episode {begun} "
                    f"{_kind(was)}: make all alike, such as by prepare=..."
                )
        yield steps


def _kind(kind: tuple[Any, tuple[int, ...]] | None) -> str:
    if kind is None:
        return "are missing"
    dtype, shape = kind
    return f"are {dtype} of shape [{', '.join(map(str, shape))}]"


def _array(what: str, path: Any, values: Any, length: int) -> np.ndarray:
    """Return an episode's values in a dtype that JAX holds."""
    name, array = what + jax.tree_util.keystr(path), np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} of a dataset hold {array.dtype}, which can't be stored: choose what is to be "
            "stored, or turn it into numbers, with prepare=..."
        )
    if len(array) != length:
        raise ValueError(
            f"{name} of an episode are {len(array)}, and by its rewards should be {length}"
        )
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if dtype.kind in "iu" and array.size:
        bounds = jnp.iinfo(dtype)
        for value in (array.min(), array.max()):
            if not bounds.min <= value <= bounds.max:
                raise ValueError(f"{name} of a dataset hold {value}, beyond what {dtype} holds")
    return array.astype(dtype)


def _transition(step: Step) -> Transition:
    """Return an example of what is stored of one step."""
    number: Any = np.zeros((), np.float32)
    flag: Any = np.zeros((), bool)
    return Transition(step.obs, step.action, number, number, step.next_obs, flag, flag)


def _join(steps: list[Step]) -> Step:
    return steps[0] if len(steps) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *steps)


def _cut(steps: Step, count: int) -> tuple[Step, Step]:
    first = jax.tree.map(lambda x: x[:count], steps)
    return first, jax.tree.map(lambda x: x[count:], steps)


def _check(replay: Replay, n_step: int, chunk: int, gamma: float) -> None:
    requires = replay.requires
    for name, count in {"chunk": chunk, "n_step": n_step}.items():
        check_kind(name, count, int)
        Bounds(at_least=1).check(name, count)
    n_step_.check_gamma(gamma)
    if requires.feedback_of_new:
        raise ValueError(
            f"this replay method wants {', '.join(sorted(requires.feedback_of_new))} of every new "
            "transition, which no dataset has: use options or a method that do without"
        )
    if requires.single_steps and n_step != 1:
        raise ValueError(
            f"n_step is {n_step}: this replay method follows single steps along their episode: use "
            "n_step 1"
        )


def _load(name: str) -> Any:
    minari = optional.imported("minari", "Minari datasets", "minari[hdf5]")
    try:
        return minari.load_dataset(name)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"no Minari dataset {name} on this machine ({' '.join(str(error).split())}): say "
            f"`minari download {name}` first"
        ) from None
