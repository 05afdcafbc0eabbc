"""Exact priorities: all stored priorities are recomputed every K updates.

Outdated priorities limit prioritised replay (Pan et al. 2022). All transitions are evaluated by the
agent's networks, so the training loop calls `Replay.refresh`.
"""

import dataclasses
from typing import Literal

from jaxreplay.methods import options, per
from jaxreplay.methods.parts.over import Transparent, inner_method
from jaxreplay.option import Config, option
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import Refresh, Requirements


@dataclasses.dataclass(frozen=True)
class RefreshConfig(Config):
    """Hyperparameters of exact priorities; the inner method `over` has its default options."""

    over: Literal[
        "per", "rank", "pser", "lap", "la3p", "eper", "relo", "faded", "reaper", "uper"
    ] = option("per", options.OVER)
    over_updates: int | None = option(None, options.OVER_UPDATES)
    every: int = option(1, "K: gradient steps between recomputations of all priorities", at_least=1)
    chunk: int = option(4_096, "transitions that are evaluated at once", at_least=1)


@dataclasses.dataclass(frozen=True)
class Refreshed(Transparent):
    """Samples like an inner sampler, and has all priorities recomputed every K = `every` updates.

    The state is that of the inner sampler. After updates K, 2K, ... of the agent, the training loop
    calls `Replay.refresh` with the agent's feedback on all stored transitions
    (`Requirements.refresh`). Between these calls, updates set the priorities of their batches.

    Args:
      inner: sampler with `refresh`, such as `per.sampler()`.
      config: options; `over` and `over_updates`, which choose an inner sampler, are ignored.

    Raises:
      ValueError: If the inner sampler has no `refresh`.
    """

    inner: Sampler = per.sampler()
    config: RefreshConfig = RefreshConfig()

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Sampler) or type(self.inner).refresh is Sampler.refresh:
            raise ValueError(
                f"inner must implement Sampler.refresh, as per.sampler() does, got {self.inner!r}"
            )

    @property
    def requires(self) -> Requirements:
        refresh = Refresh(self.config.every, self.config.chunk)
        return self.inner.requires._replace(refresh=refresh)


def sampler(config: RefreshConfig = RefreshConfig()) -> Refreshed:
    """Return `Refreshed` over the sampler of the method `config.over` with default options."""
    return Refreshed(inner_method(config).sampler, config)


def method(config: RefreshConfig = RefreshConfig()) -> Method:
    """Return the method `config.over`, with all priorities recomputed every K updates."""
    return combine(inner_method(config), config)


def combine(inner: Method, config: RefreshConfig = RefreshConfig()) -> Method:
    """Return a prioritised method whose priorities are all recomputed every K updates.

    Args:
      inner: method whose sampler has `refresh`.
      config: options, of which `over` and `over_updates` are ignored.

    Raises:
      ValueError: If `inner` is not a method, or its sampler has no `refresh`.

    Example:
      >>> from jaxreplay.methods import rank
      >>> combine(rank.method(rank.RankConfig(alpha=0.6))).sampler.requires.refresh
      Refresh(every=1, chunk=4096)
    """
    if not isinstance(inner, Method):
        raise ValueError(f"inner must be a method, such as per.method(), got {inner!r}")
    return inner._replace(sampler=Refreshed(inner.sampler, config))
