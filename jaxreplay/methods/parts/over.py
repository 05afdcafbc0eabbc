"""Methods that wrap another method: its choice by options, and base classes for the samplers."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jaxreplay.methods import uniform
from jaxreplay.methods._registry import METHODS
from jaxreplay.methods.proportional import Proportional
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import Array, Draw, Provision, Requirements, Sample, State, Tree

Inner = Literal["uniform", "per", "rank", "pser", "ere"]  # values of the option `over`


def inner_method(config: Any) -> Method:
    """Return the method that the options `over` and `over_updates` of a config select."""
    options, method, _ = METHODS[config.over]
    options = options()
    updates = config.over_updates
    return method(options if updates is None else options.for_run(updates))


def check_inner(sampler: Any) -> None:
    """Raise ValueError unless a sampler draws single transitions and does not change them."""
    if not isinstance(sampler, Sampler):
        raise ValueError(f"inner must be a sampler, such as per.sampler(), got {sampler!r}")
    requires, kind = sampler.requires, type(sampler).__name__
    if "roles" in sampler.provides:
        raise ValueError(
            f"inner must not be {kind}, because its transitions are used differently depending on "
            "their position in the batch: use another sampler"
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


def check_proportional(inner: Any) -> None:
    """Raise ValueError unless leaves of an inner sampler may be scaled one by one."""
    if not isinstance(inner, Proportional):
        raise ValueError(f"inner must be a Proportional, such as per.sampler(), got {inner}")
    if inner.weight is not None and inner.weight.normalise == "buffer":
        raise ValueError('inner must not use normalise="buffer": use "batch" or "none"')
    if inner.maximum != "all_time":
        raise ValueError('inner must use maximum="all_time", got "stored"')


def over_proportional(inner: Method, wrap: Callable[[Proportional], Sampler]) -> Method:
    """Return `inner` with its sampler wrapped; raise ValueError unless it is `Proportional`."""
    if not isinstance(inner, Method) or not isinstance(inner.sampler, Proportional):
        raise ValueError(
            f"inner must be a proportional method, such as per.method(), got {inner!r}"
        )
    return inner._replace(sampler=wrap(inner.sampler))


@dataclasses.dataclass(frozen=True)
class Transparent(Sampler):
    """Base class for samplers that wrap an inner sampler and use its state as their own."""

    inner: Sampler

    @property
    def requires(self) -> Requirements:
        return self.inner.requires

    @property
    def provides(self) -> frozenset[Provision]:
        return self.inner.provides

    @property
    def capacity_factor(self) -> int:
        return self.inner.capacity_factor

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        self.inner.check_sizes(capacity, num_envs, batch_size)

    def init(self, key: Array, ring: Ring) -> State:
        return self.inner.init(key, ring)

    def add(
        self, state: State, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> State:
        return self.inner.add(state, ring, slots, transition, **feedback)

    def sample(self, state: State, ring: Ring, key: Array, batch_size: int) -> Draw:
        return self.inner.sample(state, ring, key, batch_size)

    def update(self, state: State, ring: Ring, sample: Sample, **feedback: Array) -> State:
        return self.inner.update(state, ring, sample, **feedback)

    def refresh(self, state: State, ring: Ring, slots: Array, **feedback: Array) -> State:
        return self.inner.refresh(state, ring, slots, **feedback)

    def observe_return(self, state: State, ring: Ring, episode_return: Array, key: Array) -> State:
        return self.inner.observe_return(state, ring, episode_return, key)

    def end_episodes(self, state: State, ring: Ring) -> State:
        return self.inner.end_episodes(state, ring)

    def probability(self, state: State, ring: Ring, slots: Array, batch_size: int) -> Array:
        return self.inner.probability(state, ring, slots, batch_size)

    def metrics(self, state: State, ring: Ring) -> dict[str, Array]:
        return self.inner.metrics(state, ring)

    def ready(self, state: State, ring: Ring, batch_size: int) -> Array:
        return self.inner.ready(state, ring, batch_size)


@dataclasses.dataclass(frozen=True)
class Wrapper(Sampler):
    """Base class for samplers that wrap an inner sampler and hold its state in the field `inner`.

    Subclasses add the field `config`.

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
