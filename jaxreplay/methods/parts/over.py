"""Methods over another method: options that name it, and a base class for their samplers."""

import dataclasses
from typing import Any, Literal, Self

from jaxreplay.methods import uniform
from jaxreplay.option import Config, option
from jaxreplay.registry import METHODS
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import Array, Requirements, State


@dataclasses.dataclass(frozen=True)
class OverOptions(Config):
    """Options of a method over another method, which has its default options."""

    over: Literal["uniform", "per", "rank", "pser", "ere"] = option(
        "uniform", "method that draws the transitions, with its default options"
    )
    over_updates: int | None = option(
        None,
        "gradient steps of the other method's schedules, such as that of beta; none: the whole run",
        at_least=1,
        whole_run=True,
    )

    @property
    def inner(self) -> Method:
        """The other method."""
        config, method, _ = METHODS[self.over]
        options = config()
        return method(options if self.over_updates is None else options.for_run(self.over_updates))

    def for_run(self, updates: int) -> Self:
        """Return a config for a run, which differs only if the other method has schedules."""
        inner = METHODS[self.over].config()
        return self if inner.for_run(1) == inner else super().for_run(updates)


def check_inner(sampler: Any) -> None:
    """Raise ValueError unless an inner sampler draws single transitions, as they are stored."""
    if not isinstance(sampler, Sampler):
        raise ValueError(f"inner must be a sampler, such as per.sampler(), got {sampler!r}")
    requires, kind = sampler.requires, type(sampler).__name__
    if "roles" in sampler.provides:
        raise ValueError(
            f"inner must not be {kind}, whose transitions have roles by their position in the "
            "batch: use another sampler"
        )
    if sampler.length or sampler.provides or requires.all_new or requires.whole_episodes:
        raise ValueError(
            f"inner must draw single transitions, got {kind}: use a sampler such as "
            "methods.uniform.sampler() or methods.per.sampler()"
        )
    if requires.goals:
        raise ValueError(
            f"inner must not relabel goals, got {kind}: use hindsight replay over a sampler of "
            "single transitions, as in her.Hindsight(cer.sampler())"
        )


@dataclasses.dataclass(frozen=True)
class Wrapper(Sampler):
    """Base class for samplers over an inner sampler, whose state is the field `inner` of theirs.

    Raises:
      ValueError: If `inner` does not draw single transitions.
    """

    inner: Sampler = uniform.Uniform()

    def __post_init__(self) -> None:
        check_inner(self.inner)

    @property
    def requires(self) -> Requirements:
        return self.inner.requires

    @property
    def is_uniform(self) -> bool:
        return self.inner.is_uniform

    @property
    def capacity_factor(self) -> int:
        return self.inner.capacity_factor

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        self.inner.check_sizes(capacity, num_envs, batch_size)

    def observe_return(self, state: State, ring: Ring, episode_return: Array, key: Array) -> State:
        inner = self.inner.observe_return(state.inner, ring, episode_return, key)
        return state._replace(inner=inner)

    def probability(self, state: State, ring: Ring, slots: Array, batch_size: int) -> Array:
        return self.inner.probability(state.inner, ring, slots, batch_size)

    def ready(self, state: State, ring: Ring, batch_size: int) -> Array:
        return self.inner.ready(state.inner, ring, batch_size)

    def metrics(self, state: State, ring: Ring) -> dict[str, Array]:
        return self.inner.metrics(state.inner, ring)
