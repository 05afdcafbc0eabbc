"""Functions for filling replays with recorded episodes, for example from Minari datasets.

Each environment of the replay receives a sequence of complete episodes. As for online experience,
an n-step window computes the returns, discounts and next observations.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxreplay import n_step as n_step_
from jaxreplay._internal import packages
from jaxreplay._internal.arguments import check_size, find_overflow, zero_based
from jaxreplay.n_step import Step
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.storage import FrameRing
from jaxreplay.types import Array, Transition, Tree


class Episode(Protocol):
    """A recorded episode of T steps, with the attributes of Minari's `EpisodeData`."""

    @property
    def observations(self) -> Tree:
        """Observations before every step and after the last step, arrays `[T + 1, ...]`."""
        ...

    @property
    def actions(self) -> Tree:
        """Actions, arrays `[T, ...]`."""
        ...

    @property
    def rewards(self) -> Any:
        """Rewards, `[T]`."""
        ...

    @property
    def terminations(self) -> Any:
        """Termination flags, `[T]` bool, False before the last step."""
        ...

    @property
    def truncations(self) -> Any:
        """Truncation flags, `[T]` bool, False before the last step.

        Unfinished episodes are treated as truncated.
        """
        ...


class Filled(NamedTuple):
    """A filled replay, returned by `fill` and `from_minari`."""

    state: ReplayState  # state of the filled replay
    stored: int  # number of added transitions, including those overwritten by newer transitions
    left_out: int  # number of steps omitted to give all environments the same number of steps


Prepare = Callable[[Tree], Tree]


def from_minari(
    replay: Replay, dataset: Any, *, key: Array, gamma: float, n_step: int = 1,
    prepare: Prepare | None = None, chunk: int = 4096,
) -> Filled:  # fmt: skip
    """Return a new replay state filled with the episodes in a Minari dataset.

    Discrete actions are stored as 0 .. n-1, whatever the `start` of the dataset's action space. The
    other arguments are those of `fill`.

    Args:
      dataset: a `MinariDataset`, or the name of a local dataset.

    Raises:
      ValueError: If the dataset is not available locally, or for the reasons given in `fill`.
      ImportError: If minari is not installed.

    Example:
      replay = Replay(per.sampler(), capacity=100_000, batch_size=256)
      filled = from_minari(replay, "D4RL/door/human-v2", key=jax.random.key(0), gamma=0.99)
      batch = replay.sample(filled.state, jax.random.key(1))
    """
    if isinstance(dataset, str):
        minari = packages.import_optional("minari", "Minari datasets", "minari[hdf5]")
        try:
            dataset = minari.load_dataset(dataset)
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(
                f"Minari dataset {dataset} is not available locally "
                f"({' '.join(str(error).split())}): run `minari download {dataset}` first"
            ) from None
    space: Any = getattr(dataset, "action_space", None)
    actions = None
    if hasattr(space, "n") and hasattr(space, "start"):  # of spaces, only Discrete has both
        actions = range(int(space.start), int(space.start + space.n))
    return fill(
        replay, dataset.iterate_episodes(), key=key, gamma=gamma, n_step=n_step,
        prepare=prepare, chunk=chunk, actions=actions,
    )  # fmt: skip


def fill(
    replay: Replay, episodes: Iterable[Episode], *, key: Array, gamma: float, n_step: int = 1,
    prepare: Prepare | None = None, chunk: int = 4096, actions: range | None = None,
) -> Filled:  # fmt: skip
    """Return a new replay state filled with recorded episodes.

    Each episode is assigned to the environment that has received the fewest steps. Finally, all
    environments are cut to the smallest number of steps that any of them received, and episodes
    that are cut are marked as truncated. A single environment keeps all steps. The discount is 0
    only at *terminations*.

    Args:
      replay: a replay that requires no feedback, such as TD errors, for new transitions. Each
        transition is stored as a `Transition` without extras.
      episodes: episodes in storage order. Iterators are consumed lazily.
      key: PRNG key for `replay.init`.
      gamma: discount per step, in [0, 1].
      n_step: number of steps per return.
      prepare: function that maps the observations of an episode with T steps, NumPy arrays
        `[T + 1, ...]`, to the observations to store. None stores observations unchanged.
      chunk: number of steps per environment to transfer to the device at once.
      actions: the n recorded discrete actions, such as `range(1, 3)`, which are stored as int32
        numbers 0 .. n-1. None stores actions unchanged and unchecked.

    Raises:
      ValueError: If there are no episodes, if they contain arrays that cannot be stored, flags that
        are True before the last step, or actions outside of `actions`, or if the replay does not
        support recorded episodes.
    """
    _check_arguments(replay, n_step, chunk)
    feed = _Feed(_convert(episodes, prepare, actions), replay.num_envs)
    example = jax.tree.map(lambda x: x[0], feed.example)
    window = n_step_.init(example, n_step, replay.num_envs)
    number, flag = np.zeros((), np.float32), np.zeros((), bool)
    transition: Any = (example.obs, example.action, number, number, example.next_obs, flag, flag)
    state = replay.init(key, Transition(*transition))
    if isinstance(state.ring, FrameRing) and n_step > state.ring.frames.ahead:
        raise ValueError(
            f"n_step must be at most {state.ring.frames.ahead} with this replay's storage, got "
            f"{n_step}: create the storage with ahead={n_step}"
        )

    def push(steps: Step, carry: Any, store: bool) -> Any:
        def push_one(carry: Any, step: Step) -> tuple[Any, None]:
            window, transition = n_step_.push(carry[0], step, gamma)
            return (window, replay.add(carry[1], transition) if store else carry[1]), None

        return jax.lax.scan(push_one, carry, steps)[0]

    push = jax.jit(push, static_argnums=2, donate_argnums=1)
    carry, early = (window, state), n_step - 1
    for piece in feed.pieces(chunk, early):
        first, rest = _split(piece, early)  # the first n - 1 pushes return placeholders
        early = 0
        for part, store in ((first, False), (rest, True)):
            carry = push(part, carry, store) if len(part.reward) else carry
    return Filled(carry[1], feed.taken * replay.num_envs, feed.left_out)


class _Feed:
    """Distributes the steps of episodes over environments."""

    def __init__(self, episodes: Iterator[Step], num_envs: int) -> None:
        self._episodes = episodes
        self._queues: list[list[Step]] = [[] for _ in range(num_envs)]
        self._received = [0] * num_envs  # steps assigned to each environment
        self.taken = 0  # steps per environment that `pieces` has yielded
        self.left_out = 0
        if not self._receive():
            raise ValueError("all episodes are empty: provide at least one episode with steps")
        self.example = self._queues[0][0]

    def pieces(self, chunk: int, lag: int) -> Iterator[Step]:
        """Yield chunks of steps `[n, E, ...]` for E environments, usually with n = `chunk`.

        The first chunk has `lag` additional steps. The last chunk ends with `lag` steps of zeros.
        """
        size = chunk + lag
        while (left := min(self._received) - self.taken) > size or self._receive():
            if left > size:
                yield self._take(size)
                size = chunk
        rest = self._take(left)
        if not self.taken:
            raise ValueError(
                "the replay's num_envs must not exceed the number of episodes, got num_envs "
                f"{len(self._queues)}: use num_envs=1"
            )
        self.left_out = sum(self._received) - self.taken * len(self._queues)
        rest.truncated[-1:] |= ~rest.terminated[-1:]  # truncate episodes that are cut here
        empty = jax.tree.map(lambda x: np.zeros((lag, *x.shape[1:]), x.dtype), rest)
        yield _concatenate([rest, empty])

    def _receive(self) -> bool:
        """Assign the next episode, if any, to the environment with the fewest steps."""
        steps = next(self._episodes, None)
        if steps is None:
            return False
        env = int(np.argmin(self._received))
        self._queues[env].append(steps)
        self._received[env] += len(steps.reward)
        return True

    def _take(self, count: int) -> Step:
        """Dequeue the next `count` steps of all E environments, `[count, E, ...]`."""
        parts = []
        for queue in self._queues:
            first, rest = _split(_concatenate(queue or [_split(self.example, 0)[0]]), count)
            queue[:] = [rest]
            parts.append(first)
        self.taken += count
        return jax.tree.map(lambda *envs: np.stack(envs, axis=1), *parts)


def _convert(
    episodes: Iterable[Episode], prepare: Prepare | None, actions: range | None
) -> Iterator[Step]:
    """Yield the T steps of each episode after checking that episodes agree in dtypes and shapes."""
    expected: dict[str, str] = {}
    begun = 0
    for number, episode in enumerate(episodes):
        if not len(episode.rewards):
            continue
        try:
            steps = _as_steps(episode, prepare, actions)
        except ValueError as error:
            raise ValueError(f"episode {number}: {error}") from error
        parts = {"observations": steps.obs, "actions": steps.action}
        leaves = jax.tree_util.tree_flatten_with_path(parts)[0]
        kinds = {_name(path): f"{leaf.dtype}{list(leaf.shape[1:])}" for path, leaf in leaves}
        if not expected:
            expected, begun = kinds, number
        for name in expected | kinds:
            kind, first = (x.get(name, "missing") for x in (kinds, expected))
            if kind != first:
                raise ValueError(
                    f"{name} must have the same dtype and shape in all episodes, got {kind} "
                    f"(episode {number}) and {first} (episode {begun}): convert observations with "
                    "prepare=..."
                )
        yield steps


def _as_steps(episode: Episode, prepare: Prepare | None, actions: range | None) -> Step:
    arrays: Any = {
        "observations": prepare(episode.observations) if prepare else episode.observations,
        "actions": episode.actions,
        "terminations": np.asarray(episode.terminations),
        "truncations": np.asarray(episode.truncations),
    }
    if actions is not None:
        arrays["actions"] = zero_based("actions", episode.actions, actions)
    arrays = jax.tree_util.tree_map_with_path(
        lambda path, x: _as_array(_name(path), x, len(episode.rewards)), arrays
    )
    terminated, truncated = (_as_flags(x, arrays[x]) for x in ("terminations", "truncations"))
    truncated[-1:] |= ~terminated[-1:]
    first: Any = np.arange(len(truncated)) == 0
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
    """Return the name of the leaf at `path`, such as "observations['speed']"."""
    return path[0].key + jax.tree_util.keystr(path[1:])


def _as_array(name: str, values: Any, steps: int) -> np.ndarray:
    """Convert an episode's field to an array with a JAX dtype; validate its length and values."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} of an episode have dtype {array.dtype}, which can't be stored: remove or "
            "convert them with prepare=..."
        )
    length = steps + name.startswith("observations")
    if len(array) != length:
        raise ValueError(
            f"{name} of an episode with {steps} rewards must have length {length}, got {len(array)}"
        )
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if dtype.kind in "iu" and (value := find_overflow(array, dtype)) is not None:
        raise ValueError(f"{name} of an episode contain {value}, which is out of range for {dtype}")
    return array.astype(dtype)


def _as_flags(name: str, values: np.ndarray) -> Any:
    """Convert flags `[T]` to bool, or raise ValueError.

    Flags must be 0 or 1, and may be 1 only at the last step.
    """
    odd = np.flatnonzero((values != 0) & (values != 1))
    if odd.size:
        raise ValueError(f"{name} must be 0 or 1, got {values[odd[0]]} at step {odd[0]}")
    early = np.flatnonzero(values[:-1])
    if early.size:
        # The observation after such a step is the first one of the next episode.
        raise ValueError(
            f"{name} must be false before the last step, got true at step {early[0]} of "
            f"{len(values)}: pass each episode separately"
        )
    return values.astype(bool)


def _concatenate(steps: list[Step]) -> Step:
    return steps[0] if len(steps) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *steps)


def _split(steps: Step, count: int) -> tuple[Step, Step]:
    first = jax.tree.map(lambda x: x[:count], steps)
    return first, jax.tree.map(lambda x: x[count:], steps)


def _check_arguments(replay: Replay, n_step: int, chunk: int) -> None:
    check_size("chunk", chunk)
    requires = replay.requires
    if requires.feedback_of_new:
        raise ValueError(
            f"this replay method requires {', '.join(sorted(requires.feedback_of_new))} for new "
            "transitions, but datasets contain no feedback: choose options of the method that "
            "require no feedback for new transitions"
        )
    if requires.single_steps and n_step != 1:
        raise ValueError(f"n_step must be 1 for this replay method, got {n_step!r}")
