"""Which points of a sweep share a program: found out by tracing, not declared.

A number in the grid becomes an input of the program if the program can be traced without knowing
it. Where it decides a shape, a length or a branch in Python, tracing fails, and each of its values
is compiled apart.
"""

import copy
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import environments
from experiments.cli.options import unknown
from experiments.environments.types import Array
from experiments.runs.assembly import Parts, assemble
from experiments.runs.run_config import RunConfig
from experiments.studies.grid import Place, Point
from experiments.training.loop import Program, make_program
from experiments.training.state import LoopState, Metrics
from jaxreplay.option import options_of

_DTYPES: Mapping[Any, Any] = {int: np.int32, float: np.float32}
# What tracing raises where Python has to know a value: a branch, a shape, a conversion, a check.
_NEEDS_VALUE = (TypeError, ValueError, AttributeError)

Values = dict[str, Any]  # name of a setting -> [] or [S]


class Group(NamedTuple):
    """Points that share a program."""

    points: tuple[Point, ...]
    traced: tuple[Place, ...]  # settings that are the program's inputs; (): there are none
    program: Program  # its `init` takes a lane; without inputs, a key

    @property
    def name(self) -> str:
        """What all of its points have in common."""
        first = self.points[0]
        fixed = {k: v for k, v in first.settings.items() if k not in self.traced}
        return first._replace(settings=fixed).id

    def lanes(self, chosen: Sequence[tuple[Point, int]]) -> Any:
        """Return what the program's `init` is given for points and seeds: pytree `[S, ...]`."""
        keys = jax.vmap(jax.random.key)(jnp.asarray([seed for _, seed in chosen]))
        if not self.traced:
            return keys
        config = self.points[0].config
        return keys, {
            place.name: jnp.asarray(
                [point.settings[place] for point, _ in chosen], _dtype(config, place)
            )
            for place in self.traced
        }

    @property
    def example(self) -> Any:
        """Shapes and dtypes of one lane."""
        return example(self.points[0].config, self.traced)


def check(point: Point) -> Parts:
    """Make the parts of a point as if it ran alone.

    Raises:
      ValueError: one line that names the point and says what does not fit.
    """
    if environments.is_host(point.env):
        raise ValueError(
            f"{point.env} lives on the host, and a sweep's environments have to compile: leave it "
            "out, or use experiments.compare"
        )
    if point.config.sizes.replay_on == "host":
        raise ValueError(
            f"{point.id}: a sweep's programs keep their replays on the device: leave --replay-on "
            "out, or use experiments.compare"
        )
    try:
        parts = assemble(point.config)
        _program(parts, point.config)
    except ValueError as error:
        raise ValueError(f"{point.id}: {error}") from None
    return parts


def grouped(points: Sequence[Point], missing: Collection[str] | None = None) -> list[Group]:
    """Put points that can share a program together, tracing what has to be traced.

    Args:
      points: of the whole sweep. What shares a program hangs on all of them, so that a sweep which
        was cut short goes on with the programs that it began with.
      missing: ids of the points that have yet to run: programs that none of them could share are
        left out; None: all of them.
    """
    groups = []
    for members in _partitioned(points, _must_differ):
        if missing is None or any(point.id in missing for point in members):
            groups += _split(members, _candidates(members))
    return groups


class Shelf:
    """Programs of points that come bit by bit, as in a search: each is made once.

    Other than in `grouped`, every number among the settings of a point is tried as an input, as if
    it varied: which points share a program does not hang on which of them come together.
    """

    def __init__(self) -> None:
        self._traced: dict[Any, list[Place]] = {}
        self._programs: dict[Any, Program] = {}

    def grouped(self, points: Sequence[Point]) -> list[Group]:
        """Put points that share a program together."""
        groups = []
        for members in _partitioned(points, _must_differ):
            candidates = _candidates(members)
            fixed = (*_must_differ(members[0]), *candidates)
            groups += self._split(members, candidates, fixed)
        return groups

    def _split(self, points: Sequence[Point], candidates: Sequence[Place], fixed: Any) -> Any:
        config = points[0].config
        if fixed not in self._traced:
            self._traced[fixed] = _traceable(config, candidates)
        traced = self._traced[fixed]
        apart = [place for place in candidates if place not in traced]
        if apart:
            groups = []
            for members in _partitioned(points, lambda point: [point.settings[p] for p in apart]):
                values = tuple(members[0].settings[place] for place in apart)
                groups += self._split(members, traced, (*fixed, *zip(apart, values, strict=True)))
            return groups
        if fixed not in self._programs:
            self._programs[fixed] = _made(config, traced)
        return [Group(tuple(points), tuple(traced), self._programs[fixed])]


def check_kept(names: Sequence[str], groups: Sequence[Group]) -> None:
    """Refuse to keep a metric that none of these programs has.

    Raises:
      ValueError: one line that names the nearest.
    """
    missing, known = list(names), {"diverged": None}
    for group in {(g.points[0].env, g.points[0].label): g for g in groups}.values():
        if missing:
            known |= dict.fromkeys(_metrics(group))
            missing = [name for name in missing if name not in known]
    if missing and groups:
        raise ValueError(unknown("metric of --keep", missing[0], known))


def _metrics(group: Group) -> list[str]:
    """Return the names of a program's metrics; it is traced, and not compiled."""

    def run(lane: Any) -> Metrics:
        return group.program.chunk(group.program.init(lane), jnp.ones((), jnp.int32))[1]

    return [name for name in jax.eval_shape(run, group.example) if name != "fault"]


def group_of(points: Sequence[Point], traced: Sequence[Place]) -> Group:
    """Return the group of points that differ in settings alone that can be traced."""
    config = points[0].config
    return Group(tuple(points), tuple(traced), _made(config, traced))


def unchecked(config: RunConfig, values: Mapping[Place, Any]) -> RunConfig:
    """Return a configuration with values that are not looked at, as tracers can't be."""
    for place, value in values.items():
        part = copy.copy(getattr(config, place.section))
        object.__setattr__(part, place.field, value)  # options are frozen, and checked when made
        config = dataclasses.replace(config, **{place.section: part})
    return config


def with_inputs(config: RunConfig, places: Sequence[Place]) -> Program:
    """Make the program of a run some of whose settings are inputs.

    Its `init` takes a lane, which is a key and values by the settings' names; its state is
    `(values, LoopState)`. It is composed anew from the values wherever it is traced.

    Args:
      config: of the run; the values of those settings in it do not matter.
      places: the settings.
    """

    def at(values: Values) -> Program:
        own = unchecked(config, {place: values[place.name] for place in places})
        return _program(assemble(own), own)

    def init(lane: tuple[Array, Values]) -> tuple[Values, LoopState]:
        key, values = lane
        return values, at(values).init(key)

    def chunk(
        state: tuple[Values, LoopState], blocks: Array
    ) -> tuple[tuple[Values, LoopState], Metrics]:
        values, inner = state
        inner, metrics = at(values).chunk(inner, blocks)
        return (values, inner), metrics

    alone = _program(assemble(config), config)
    composed: Any = (init, chunk)  # of another state than a Program's, which nothing looks into
    return Program(*composed, alone.schedule, alone.remarks)


def example(config: RunConfig, places: Sequence[Place]) -> Any:
    """Return shapes and dtypes of what `init` takes in a program with these inputs."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    if not places:
        return key
    return key, {place.name: jax.ShapeDtypeStruct((), _dtype(config, place)) for place in places}


def _dtype(config: RunConfig, place: Place) -> Any:
    return _DTYPES[_kind(config, place)]


def _kind(config: RunConfig, place: Place) -> Any:
    """Return the type of a setting's values; None, if they are no single numbers."""
    options = {entry.name: entry for entry in options_of(type(getattr(config, place.section)))}
    entry = options[place.field]
    return entry.kind if entry.kind in _DTYPES and not entry.many else None


def _split(points: Sequence[Point], candidates: Sequence[Place]) -> list[Group]:
    """Make groups of points that differ in candidates alone."""
    config = points[0].config
    varying = [p for p in candidates if len({point.settings[p] for point in points}) > 1]
    traced = _traceable(config, varying)
    apart = [place for place in varying if place not in traced]
    if not apart:
        return [group_of(points, traced)]
    groups = []
    for members in _partitioned(points, lambda point: [point.settings[p] for p in apart]):
        # What one value allows, another may not: each is found out for itself.
        groups += _split(members, traced)
    return groups


def _made(config: RunConfig, traced: Sequence[Place]) -> Program:
    return with_inputs(config, traced) if traced else _program(assemble(config), config)


def _traceable(config: RunConfig, places: Sequence[Place]) -> list[Place]:
    """Return those settings which a program can have as inputs, all at once."""
    composing = [place for place in places if _composes(config, [place])]
    if _traces(config, composing):
        return composing
    kept: list[Place] = []
    for place in composing:
        if _traces(config, [*kept, place]):
            kept.append(place)
    return kept


def _composes(config: RunConfig, places: Sequence[Place]) -> bool:
    """Tell whether a run can be put together without the values: what fails mostly fails here."""

    def compose(lane: Any) -> Array:
        own = unchecked(config, {place: lane[1][place.name] for place in places})
        _program(assemble(own), own)
        return jnp.zeros(())

    return _succeeds(compose, example(config, places))


def _traces(config: RunConfig, places: Sequence[Place]) -> bool:
    """Tell whether the whole program can be traced without the values."""
    if not places:
        return True

    def run(lane: Any) -> Any:
        program = with_inputs(config, places)
        return program.chunk(program.init(lane), jnp.ones((), jnp.int32))

    return _succeeds(run, example(config, places))


def _succeeds(function: Callable[[Any], Any], lane: Any) -> bool:
    try:
        with _quiet():
            jax.eval_shape(function, lane)
    except _NEEDS_VALUE:
        return False
    return True


@contextmanager
def _quiet() -> Any:
    """Keep libraries from warning of values that are only tried."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _program(parts: Parts, config: RunConfig) -> Program:
    environment: Any = parts.environment
    return make_program(environment, parts.agent, parts.replay, config.loop)


def _candidates(points: Sequence[Point]) -> list[Place]:
    """Return the settings of a point that are single numbers."""
    first = points[0]
    return [
        place
        for place, value in first.settings.items()
        if value is not None and _kind(first.config, place) is not None
    ]


def _must_differ(point: Point) -> list[Any]:
    """Return what only points of one program share, whatever can be traced."""
    fixed = [point.env, point.label]
    for place, value in point.settings.items():
        if value is None or _kind(point.config, place) is None:
            fixed.append((place, value))
    return fixed


def _partitioned(
    points: Sequence[Point], key: Callable[[Point], Collection[Any]]
) -> list[list[Point]]:
    """Return points with equal keys together, in the order of their first."""
    found: dict[tuple[Any, ...], list[Point]] = {}
    for point in points:
        found.setdefault(tuple(key(point)), []).append(point)
    return list(found.values())
