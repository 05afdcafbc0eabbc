"""Refusals of what a replay is made with: one line each, before anything is made.

Everything here raises ValueError.
"""

from types import ModuleType
from typing import Any

from jaxreplay import requirements
from jaxreplay._internal.checks import check_kind
from jaxreplay.types import Method, Sampler, ignore_episode_return


def check_sampler(sampler: Sampler, frames_on_host: bool, rows_on_host: bool) -> None:
    """Refuse what is no sampler, or one that looks at what the device does not have."""
    if not isinstance(sampler, Sampler):
        given = type(sampler).__name__
        raise ValueError(f"make_replay takes a Sampler, not a {given}{_instead(sampler)}")
    if frames_on_host or rows_on_host:
        what = "frames_on_host" if frames_on_host else "rows_on_host"
        requirements.check_on_host(sampler.requires, what)
    observes = sampler.observe is not ignore_episode_return
    requirements.check_observer(sampler.requires, observes)


def check_sizes(
    capacity: int, batch_size: int, num_envs: int, frame_stack: int, frame_spare: float
) -> None:
    """Refuse numbers that are of another kind, or don't fit together."""
    sizes = {"capacity": capacity, "batch_size": batch_size, "num_envs": num_envs}
    for name, size in (sizes | {"frame_stack": frame_stack}).items():
        check_kind(name, size, int)
    check_kind("frame_spare", frame_spare, float)
    if frame_stack < 0:
        raise ValueError(f"frame_stack is {frame_stack}: it must not be negative")
    requirements.check_batch_size(requirements.Requirements(), batch_size, batch_size, capacity)
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}: it must be at least 1")
    if capacity % num_envs:
        raise ValueError(
            f"capacity {capacity} is not a multiple of the {num_envs} environments: "
            f"use {max(1, capacity // num_envs) * num_envs}"
        )


def check_flags(**flags: bool) -> None:
    """Refuse what is neither true nor false: Python takes "no" for true."""
    for name, flag in flags.items():
        check_kind(name, flag, bool)


def check_storage(
    frame_stack: int,
    frame_spare: float,
    frame_ahead: int | None,
    frames_on_host: bool,
    store_next_obs: bool,
    rows_on_host: bool,
) -> None:
    """Refuse two ways at once of storing observations, and options of a way that is not taken."""
    if store_next_obs and not frame_stack:  # else both are checked with the observations
        if not frame_spare >= 0:
            raise ValueError(f"frame_spare is {frame_spare}: it must not be negative")
        if frame_ahead is not None:
            raise ValueError(
                f"frame_ahead is {frame_ahead!r}, and nothing is stored once: leave it out, or "
                "give frame_stack or store_next_obs=False"
            )
    if frames_on_host and not frame_stack:
        raise ValueError(
            "frames_on_host is True, and there are no frames: leave it out, or give frame_stack"
        )
    if not store_next_obs and (frame_stack or frames_on_host):
        raise ValueError(
            "stacks of frames are stored once as they are: leave store_next_obs out, or frame_stack"
        )
    if rows_on_host and (frame_stack or frames_on_host or not store_next_obs):
        raise ValueError(
            "rows_on_host keeps whole rows on the host: for stacks of frames that are stored once, "
            "use frames_on_host; leave store_next_obs out"
        )


def _instead(given: Any) -> str:
    """Return how to get a sampler out of what was given in its place; "" where nobody can tell."""
    if isinstance(given, Method):
        return ": give its .sampler"
    if isinstance(given, ModuleType) and callable(getattr(given, "sampler", None)):
        return ": give its .sampler()"
    # A class makes objects of its own; a function says what it makes.
    made = getattr(given, "__annotations__", {}).get("return")
    return ": call it" if made in (Sampler, Method) else ""
