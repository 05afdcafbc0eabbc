"""Storage formats for observations, passed as `storage` to `jaxreplay.Replay`, and their rings.

A format that stores fields outside `Ring.words` uses a subclass of `Ring`: `FrameRing` for
observations that are stored once.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from jaxreplay._internal import frames as frames_
from jaxreplay._internal import packing
from jaxreplay._internal.arguments import Bounds, check_scalar, check_size
from jaxreplay._internal.frames import FrameIndex, Spot
from jaxreplay._internal.packing import Layout
from jaxreplay.buffer import Buffer
from jaxreplay.ring import Ring, Storage, Transitions, as_row, contents, empty_words, size
from jaxreplay.types import Array, Transition, Tree, get_field, has_field, replace_fields

__all__ = ["FrameRing", "Frames", "SharedObservations", "Storage", "Transitions"]


class FrameRing(Ring):
    """Ring buffer whose observations are stored once, at positions that its slots contain."""

    frames: FrameIndex  # positions of the latest observations
    pixels: Buffer  # [.., D] frames, or observations as 32-bit words
    packed_obs: Layout | None = struct.field(pytree_node=False)  # layout of an observation that is
    # stored as a single frame; None for stacked frames

    def as_stored(self, transition: Tree, lead: tuple[int, ...] = ()) -> Tree:
        names, lead = ("obs", "next_obs"), lead or (self.num_envs,)
        packing.check_fits(self.layout, as_row(transition), lead, names)
        if self.packed_obs is None:
            dtypes = dict.fromkeys(names, self.frames.dtype)
            return packing.as_stored(self.layout, transition, dtypes)
        obs = {name: get_field(transition, name) for name in names}
        for name in names:
            packing.check_fits(self.packed_obs, obs[name], lead, of=name)
            obs[name] = packing.as_stored(self.packed_obs, obs[name])
        rest = replace_fields(transition, obs=None, next_obs=None)
        return replace_fields(packing.as_stored(self.layout, rest), **obs)

    def store_outside(self, transition: Tree, slots: Array) -> tuple[Ring, Tree]:
        names = ("obs", "next_obs", "first", "n_steps")
        obs, next_obs, first, n_steps = (get_field(transition, name) for name in names)
        if self.packed_obs is not None:
            obs, next_obs = (
                packing.pack(self.packed_obs, x, self.num_envs)[..., None] for x in (obs, next_obs)
            )
        frames, spot = frames_.add(self.frames, obs, first, n_steps)
        pixels = frames_.write(self.pixels, frames, obs, next_obs, n_steps)
        row = replace_fields(transition, obs=spot, next_obs=None)
        return self.replace(frames=frames, pixels=pixels), row

    def read_outside(self, row: Tree, slots: Array) -> Tree:
        frames, pixels = self.frames, self.pixels
        located = frames_.locate(frames, slots, get_field(row, "obs"))
        # Assemble one stack after the other, because XLA is slower when assembling both at once.
        obs, next_obs = (frames_.assemble(frames, frames_.read(pixels, x)) for x in located)
        if self.packed_obs is not None:
            obs, next_obs = (packing.unpack(self.packed_obs, x[..., 0]) for x in (obs, next_obs))
        return replace_fields(row, obs=obs, next_obs=next_obs)

    def metrics(self) -> dict[str, Array]:
        """Return two counts, `[]` float32.

        `frames_lost` counts transitions whose observations were overwritten because the option
        `spare` or `ahead` is too small. `frames_malformed` counts episodes that started with more
        than one nonzero frame.
        """
        live = jnp.arange(self.capacity) < size(self)
        lost = frames_.lost(self.frames, get_field(contents(self), "obs"), live)
        counts = {"frames_lost": lost, "frames_malformed": self.frames.malformed}
        return {name: count.astype(jnp.float32) for name, count in counts.items()}


@dataclasses.dataclass(frozen=True)
class _StoredOnce(Storage):
    spare: float = 0.04
    ahead: int | None = None

    def __post_init__(self) -> None:
        Bounds(at_least=0).check("spare", self.spare, kind=float)
        if self.ahead is not None:
            check_size("ahead", self.ahead)

    def _init(
        self,
        example: Tree,
        capacity: int,
        num_envs: int,
        stack: int = 1,
        packed_obs: Layout | None = None,
    ) -> FrameRing:
        obs, ahead = get_field(example, "obs"), self.ahead
        if packed_obs is not None:
            obs = jnp.zeros((packed_obs.words, 1), jnp.uint32)
        if ahead is None and not isinstance(example, Transition):
            ahead = None if has_field(example, "n_steps") else 1
        frames = frames_.init(obs, capacity, num_envs, stack, self.spare, ahead)
        pixels = frames_.empty_pixels(frames)
        spot = Spot(*[jnp.zeros((), jnp.int32)] * 3)
        words = empty_words(replace_fields(example, obs=spot, next_obs=None), capacity)
        return FrameRing(*words, capacity, num_envs, frames, pixels, packed_obs)


@dataclasses.dataclass(frozen=True)
class SharedObservations(_StoredOnce):
    """Stores every observation once and reads `next_obs` from the following step.

    This halves the memory if the number of slots per environment is much larger than `ahead`.
    Transitions require the fields `obs`, `next_obs` and `first`; n-step transitions of a type other
    than `Transition` also require `n_steps`.

    Args:
      spare: extra space for the final observations of episodes, as a fraction of the capacity. 0.04
        is enough if episodes last at least 25 steps on average. The metric `frames_lost` counts
        transitions whose observations were overwritten because `spare` or `ahead` is too small.
      ahead: extra observations stored for each environment, at least the largest n of n-step
        returns. None means 1 for transitions without `n_steps`, and otherwise a quarter of the
        slots per environment, clipped to [32, 255]. Set `ahead` explicitly for many environments.

    Raises:
      ValueError: If `spare` is negative or `ahead` is below 1.
    """

    def init(self, example: Tree, capacity: int, num_envs: int) -> Ring:
        _check_stored_once(example)
        packed_obs = packing.plan(get_field(example, "obs"))
        return self._init(example, capacity, num_envs, packed_obs=packed_obs)


@dataclasses.dataclass(frozen=True)
class Frames(_StoredOnce):
    """Stores every frame of stacked observations `[..., K]` once.

    The newest frame is the last in a stack. Frames before the start of an episode are zero. The
    metric `frames_malformed` counts episodes that start with more than one nonzero frame.

    Args:
      stack: number of frames K per observation.
      spare: see `SharedObservations`.
      ahead: see `SharedObservations`.

    Raises:
      ValueError: If `spare` is negative, or `ahead` or `stack` is below 1.
    """

    stack: int = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("stack", self.stack)

    def init(self, example: Tree, capacity: int, num_envs: int) -> Ring:
        _check_stored_once(example)
        return self._init(example, capacity, num_envs, self.stack)


def _check_stored_once(example: Tree) -> None:
    """Raise ValueError unless the example supports reading `next_obs` from the following step."""
    packing.plan(as_row(example))  # names the fields, which have other names in the ring buffer
    missing = [x for x in ("obs", "next_obs", "first") if not has_field(example, x)]
    if missing:
        raise ValueError(
            "storing observations once requires the fields obs, next_obs and first (whether a step "
            f"begins an episode), but the example, a {type(example).__name__}, lacks "
            f"{', '.join(missing)}: add the missing fields or use storage=Transitions()"
        )
    check_scalar("first", get_field(example, "first"), bool)
    if has_field(example, "n_steps"):
        check_scalar("n_steps", get_field(example, "n_steps"), int)
    pair = [get_field(example, name) for name in ("obs", "next_obs")]
    kinds = [[(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(obs)] for obs in pair]
    if kinds[0] != kinds[1] or jax.tree.structure(pair[0]) != jax.tree.structure(pair[1]):
        raise ValueError(
            "obs and next_obs in the example must have the same structure, shapes and dtypes: "
            "change the example or use storage=Transitions()"
        )
