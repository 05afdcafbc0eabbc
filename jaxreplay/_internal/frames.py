"""Observations that are stored once: stacks of frames, each frame stored once.

An observation is a stack `[..., K]` of the latest K frames, newest last, zero from before the
episode. Successive observations share K - 1 frames, and the two observations of a transition
overlap as well: both stacks of every transition would take 2 K times the memory. Observations of
any kind are stored once as stacks of a single frame.

Every environment has a circular row of places, one frame each: the frames of an episode, including
the true last one, and then those of the next episode. A slot stores the place of its observation's
newest frame, the number of frames in the stack, and the places from there to the next observation.
Stacks are assembled when they are sampled.

The positions (`FrameIndex`) are separate from the pixels, which are on the device or on the host.
"""

import math
from typing import Any, NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxreplay._internal import buffer, counters
from jaxreplay._internal.arguments import Bounds, check_kind
from jaxreplay._internal.buffer import Buffer
from jaxreplay._internal.tracing import with_default_promotion
from jaxreplay.types import Array

OnEither = TypeVar("OnEither", Array, np.ndarray)  # on the device or on the host
AHEAD = 255  # largest default of `FrameIndex.ahead`
_FURTHEST = 2**30 + 2**29  # largest place: those of n steps later need 32 bits, too
_LEAST_AHEAD = 32  # smallest default


class FrameIndex(struct.PyTreeNode):
    """The latest place of every environment, and the sizes of the store."""

    newest: Array  # [E] int32, place of the latest observation, counted from the first; -2 before
    # it (see `advance`)
    age: Array  # [E] int32, agent steps of the running episode before the latest observation
    malformed: Array  # [] int32, episodes that began with a stack of more than one frame
    stack: int = struct.field(pytree_node=False)  # K
    places: int = struct.field(pytree_node=False)  # of each environment
    shape: tuple[int, ...] = struct.field(pytree_node=False)  # of one frame
    dtype: str = struct.field(pytree_node=False)
    ahead: int = struct.field(pytree_node=False, default=AHEAD)  # places beyond its observation
    # that a transition may reach: the largest n of n-step returns


class Spot(NamedTuple):
    """The places of a transition's frames; stored in its slot instead of the observation."""

    place: Array  # [...] int32, of the newest frame of the observation
    depth: Array  # [...] int32, frames of the stack that the episode had, 1 .. K
    n_steps: Array  # [...] int32, places from there to the newest frame of the next observation


class Located(NamedTuple):
    """Rows of the pixels in the stacks of a batch, oldest first; the last row of all is zero."""

    obs: Array  # [B, K] int32
    next_obs: Array  # [B, K] int32


def init(
    obs: chex.ArrayTree,
    capacity: int,
    num_envs: int,
    stack: int,
    spare: float,
    ahead: int | None = None,
) -> FrameIndex:
    """Return the index of an empty store.

    Every environment has R + ceil(spare R) + ahead + K places, with R = C / E steps.

    Args:
      obs: one observation, a single array `[..., K]`.
      capacity: slots C.
      num_envs: environments E.
      stack: K.
      spare: extra places for the last frames of episodes, as a share of R: 0.04 is enough for
        episodes of 25 agent steps or more on average.
      ahead: the largest n of n-step returns, in agent steps. None is a quarter of R, at least 32
        and at most 255.

    Raises:
      ValueError: observations are not such stacks, `spare` is negative, or `ahead` below 1.
    """
    leaves = jax.tree.leaves(obs)
    if len(leaves) != 1 or leaves[0].ndim < 2 or leaves[0].shape[-1] != stack:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ValueError(
            f"stack is {stack}, and observations have shape {shapes}: the last axis must be "
            "the stack"
        )
    Bounds(at_least=0).check("spare", spare)
    rows = capacity // num_envs
    if ahead is None:
        ahead = min(AHEAD, max(_LEAST_AHEAD, rows // 4))
    check_kind("ahead", ahead, int)
    Bounds(at_least=1).check("ahead", ahead)
    zeros = jnp.zeros(num_envs, jnp.int32)
    return FrameIndex(
        newest=zeros - 2,
        age=jnp.zeros(num_envs, jnp.int32),
        malformed=jnp.zeros((), jnp.int32),
        stack=stack,
        places=rows + math.ceil(spare * rows) + ahead + stack,
        shape=leaves[0].shape[:-1],
        dtype=leaves[0].dtype.name,
        ahead=int(ahead),
    )


def empty_pixels(frames: FrameIndex, on_host: bool = False) -> Buffer | np.ndarray:
    """Return the pixels of an empty store, `[E * places + 1, D]`; the last row stays zero."""
    make: Any = np if on_host else jnp
    return make.zeros((_zero_row(frames) + 1, math.prod(frames.shape)), frames.dtype)


@with_default_promotion
def add(
    frames: FrameIndex, obs: Array | None, first: Array, n_steps: Array | None
) -> tuple[FrameIndex, Spot]:
    """Return the index after a step of every environment, and the places of its transitions.

    Args:
      frames: the index.
      obs: `[E, ..., K]`, to count episodes that begin with several frames; None if unavailable.
      first: `[E]` bool, whether the step begins an episode.
      n_steps: `[E]` int32, agent steps to the next observation; None is 1.
    """
    newest, age = advance(frames.newest, frames.age, first, frames.places)
    depth = jnp.minimum(age + 1, frames.stack)
    spot = Spot(newest, depth, jnp.broadcast_to(_one_unless(n_steps), newest.shape))
    spot = jax.tree.map(lambda x: x.astype(jnp.int32), spot)
    if obs is None:
        return frames.replace(newest=newest, age=age), spot
    early = (obs[..., :-1] != 0).any(axis=tuple(range(1, obs.ndim)))
    malformed = counters.saturating_add(frames.malformed, (first & early).sum(dtype=jnp.int32))
    return frames.replace(newest=newest, age=age, malformed=malformed), spot


@with_default_promotion
def advance(
    newest: OnEither, age: OnEither, first: OnEither, places: int = 1
) -> tuple[OnEither, OnEither]:
    """Return place and age `[E]` of the next observation, of JAX or NumPy arrays.

    Args:
      newest: `[E]`, place of the latest observation.
      age: `[E]`, agent steps of its episode before it.
      first: `[E]`, whether the next observation begins an episode.
      places: `FrameIndex.places`; after 2^30 + 2^29 places, the count goes back by a multiple.
    """
    begins = first | (newest < 0)
    later = newest + 1 + begins
    later = later - (later > _FURTHEST) * np.int32(counters.rewind(places))
    return later, (age + (age < counters.LAST)) * ~begins


def destinations(
    frames: FrameIndex, newest: OnEither, n_steps: OnEither | None
) -> tuple[OnEither, OnEither]:
    """Return the rows of the pixels for the frames of the latest transitions.

    Args:
      frames: the index; only its sizes are read.
      newest: `[E]`, place of the observation.
      n_steps: `[E]`, agent steps to the next observation, or None for 1.

    Returns:
      Rows `[E, 1 + K]` for the observation's newest frame and for all frames of the next one, and
      `[E, 1 + K]` bool, False for frames that are stored already.
    """
    behind = np.arange(frames.stack)[::-1]
    steps = _one_unless(n_steps) + newest * 0
    ahead = steps[:, None] - behind  # of the observation's newest frame
    start = np.arange(len(newest))[:, None] * frames.places
    make: Any = np if isinstance(newest, np.ndarray) else jnp
    ahead = make.concatenate([newest[:, None] * 0, ahead], axis=1)
    rows = start + (newest[:, None] + ahead) % frames.places
    # Older frames are stored since an earlier transition, or belong to another episode.
    return rows, make.concatenate([ahead[:, :1] == 0, ahead[:, 1:] > 0], axis=1)


@with_default_promotion
def write(
    pixels: Buffer, frames: FrameIndex, obs: Array, next_obs: Array, n_steps: Array | None
) -> Buffer:
    """Return the pixels with the frames of the step that was added last.

    Args:
      pixels: `[E * places + 1, D]`, on the device.
      frames: the index after `add`.
      obs: `[E, ..., K]`.
      next_obs: `[E, ..., K]`.
      n_steps: `[E]`, agent steps to the next observation, or None for 1.
    """
    rows, meant = destinations(frames, frames.newest, n_steps)
    rows = jnp.where(meant, rows, len(pixels)).ravel()
    return buffer.write(pixels, rows, _columns(frames, obs, next_obs))


def write_on_host(
    pixels: np.ndarray,
    frames: FrameIndex,
    newest: np.ndarray,
    obs: np.ndarray,
    next_obs: np.ndarray,
    n_steps: np.ndarray | None,
) -> None:
    """Write frames as `write` does, in place, to pixels on the host."""
    rows, meant = destinations(frames, newest, n_steps)
    meant = meant.ravel()
    pixels[rows.ravel()[meant]] = _columns(frames, obs, next_obs)[meant]


@with_default_promotion
def locate(frames: FrameIndex, slots: Array, spot: Spot) -> Located:
    """Return the rows of the pixels of both stacks of `slots` `[B]` with places `spot` `[B]`."""
    behind = jnp.arange(frames.stack)[::-1]
    start = slots % frames.newest.size * frames.places

    def rows(end: Array, depth: Array) -> Array:
        at = start[:, None] + (end[:, None] - behind) % frames.places
        return jnp.where(behind < depth[:, None], at, _zero_row(frames))

    return Located(
        rows(spot.place, spot.depth), rows(spot.place + spot.n_steps, spot.depth + spot.n_steps)
    )


def read(pixels: Buffer, rows: Array) -> Array:
    """Return the frames of `rows` `[B, K]`, `[B, K, D]`, from pixels on the device."""
    found = buffer.read(pixels, rows.ravel())
    return found.reshape(*rows.shape, *found.shape[1:])


def assemble(frames: FrameIndex, found: OnEither) -> OnEither:
    """Return observations `[B, ..., K]` from frames `[B, K, D]`."""
    return found.swapaxes(1, 2).reshape(len(found), *frames.shape, frames.stack)


@with_default_promotion
def lost(frames: FrameIndex, spot: Spot, live: Array, ahead: int = 0) -> Array:
    """Return the number of slots with overwritten frames, `[]` int32.

    Samples of these slots are wrong: episodes are too short for the spare places.

    Args:
      frames: the index.
      spot: `[C]`.
      live: `[C]` bool, slots that hold a transition.
      ahead: places that the pixels may be ahead of the index.
    """
    spot, live = jax.tree.map(lambda x: x.reshape(-1, frames.newest.size), (spot, live))
    place = spot.place - frames.newest  # relative to the newest observation
    place = jnp.where(place > 0, place - counters.rewind(frames.places), place)
    after = place + spot.n_steps  # of next observations
    written = jnp.max(jnp.where(live, after, -1), axis=0) + ahead  # [E]
    # Early in an episode, the n steps cover places that are not written yet.
    running = live & (place >= -frames.age)
    steps = jnp.max(jnp.where(running, spot.n_steps, 0), axis=0)
    resumes = jnp.where(ahead > 0, 1, jnp.maximum(steps - frames.age - frames.stack + 1, 1))

    def overwritten(end: Array, depth: Array) -> Array:
        """Return whether a later frame was written over one of these stacks."""
        end = end + frames.places
        start = end - jnp.minimum(depth, frames.stack) + 1
        return (start <= 0) | ((end >= resumes) & (start <= written))

    gone = overwritten(place, spot.depth) | overwritten(after, spot.depth + spot.n_steps)
    return (live & gone).sum(dtype=jnp.int32)


def _zero_row(frames: FrameIndex) -> int:
    return frames.newest.size * frames.places


def _one_unless(n_steps: OnEither | None) -> OnEither | int:
    return 1 if n_steps is None else n_steps


def _columns(frames: FrameIndex, obs: OnEither, next_obs: OnEither) -> OnEither:
    """Return the newest frame and those of the next observation as rows `[E * (1 + K), D]`."""
    make: Any = np if isinstance(obs, np.ndarray) else jnp
    rows, size, stack = len(obs), math.prod(frames.shape), frames.stack
    own = obs.reshape(rows, size, stack)[:, :, -1:]
    both = make.concatenate([own, next_obs.reshape(rows, size, stack)], axis=2)
    return make.swapaxes(both, 1, 2).reshape(rows * (1 + stack), size)
