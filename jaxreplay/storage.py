"""Ways of storing observations: the `storage` argument of `jaxreplay.Replay`."""

import dataclasses

from jaxreplay._internal.arguments import Bounds, check_kind


@dataclasses.dataclass(frozen=True)
class Transitions:
    """Store every transition as it is, with both observations.

    Args:
      on_host: keep in the device's memory only the scalar fields (rewards, flags, discrete actions)
        and the fields that the sampler reads. The caller keeps the rest in the host's memory:
        see `jaxreplay.loops.host_rows`.
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
    """Store every observation once: `next_obs` is the observation of the following step.

    This takes about half the memory, where every environment has many more slots than `ahead`.
    Transitions need the fields `obs`, `next_obs` and `first`; n-step transitions of another type
    than `Transition` also need `n_steps`.

    Args:
      spare: extra places for the last observations of episodes, as a share of the capacity. 0.04 is
        enough for episodes of 25 steps or more on average. The metric `frames_lost` counts
        transitions whose observations were overwritten because it was too small.
      ahead: extra places of each environment, the largest n of n-step returns. None is 1 for
        transitions without `n_steps`, else a quarter of an environment's slots, at least 32 and at
        most 255. Set it if there are many environments.

    Raises:
      ValueError: `spare` is negative or `ahead` below 1.
    """


@dataclasses.dataclass(frozen=True)
class Frames(_StoredOnce):
    """Store every frame of stacked observations `[..., K]` once.

    The newest frame is the last of a stack. Frames from before the episode are zero; the metric
    `frames_malformed` counts episodes that begin with more than one frame.

    Args:
      stack: K, frames per observation.
      spare: as for `SharedObservations`.
      ahead: as for `SharedObservations`.
      on_host: the caller keeps the frames in the host's memory (`frames.empty_pixels`,
        `frames.write_on_host`); sampled observations are then the frames' rows there, `[B, K]`.

    Raises:
      ValueError: as for `SharedObservations`, or `stack` is below 1.
    """

    stack: int = dataclasses.field(kw_only=True)
    on_host: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind("on_host", self.on_host, bool)
        check_kind("stack", self.stack, int)
        Bounds(at_least=1).check("stack", self.stack)


Storage = Transitions | SharedObservations | Frames
