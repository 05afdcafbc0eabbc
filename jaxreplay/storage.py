"""Storage formats for observations, passed as `storage` to `jaxreplay.Replay`."""

import dataclasses

from jaxreplay._internal.arguments import Bounds, check_kind


@dataclasses.dataclass(frozen=True)
class Transitions:
    """Stores every transition with both `obs` and `next_obs`.

    Args:
      on_host: whether device memory contains only scalar fields (rewards, flags, discrete actions)
        and the fields that the sampler reads. The caller stores the other fields in host memory
        with `jaxreplay.loops.host_rows`.
    """

    on_host: bool = False

    def __post_init__(self) -> None:
        check_kind("on_host", self.on_host, bool)


@dataclasses.dataclass(frozen=True)
class _StoredOnce:
    spare: float = 0.04
    ahead: int | None = None

    def __post_init__(self) -> None:
        check_kind("spare", self.spare, float)
        Bounds(at_least=0).check("spare", self.spare)
        if self.ahead is not None:
            check_kind("ahead", self.ahead, int)
            Bounds(at_least=1).check("ahead", self.ahead)


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


@dataclasses.dataclass(frozen=True)
class Frames(_StoredOnce):
    """Stores every frame of stacked observations `[..., K]` once.

    The newest frame is the last in a stack. Frames before the start of an episode are zero. The
    metric `frames_malformed` counts episodes that start with more than one nonzero frame.

    Args:
      stack: number of frames K per observation.
      spare: see `SharedObservations`.
      ahead: see `SharedObservations`.
      on_host: whether the caller stores the frames in host memory, with `frames.empty_pixels` and
        `frames.write_on_host`. Sampled observations are then row indices `[B, K]` into the
        array of frames.

    Raises:
      ValueError: If `spare` is negative, or `ahead` or `stack` is below 1.
    """

    stack: int = dataclasses.field(kw_only=True)
    on_host: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind("on_host", self.on_host, bool)
        check_kind("stack", self.stack, int)
        Bounds(at_least=1).check("stack", self.stack)


Storage = Transitions | SharedObservations | Frames
