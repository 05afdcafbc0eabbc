"""Methods over another method: the method that options name, and a base class for samplers."""

import dataclasses
from typing import Any, Literal

from jaxreplay.methods import uniform
from jaxreplay.methods._registry import METHODS
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import Array, Requirements, State

Inner = Literal["uniform", "per", "rank", "pser", "ere"]  # values of the option `over`


def inner_method(config: Any) -> Method:
    """Return the method that the options `over` and `over_updates` of a config name."""
    options, method, _ = METHODS[config.over]
    options = options()
    updates = config.over_updates
    return method(options if updates is None else options.for_run(updates))


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
