"""Groups of a study's points that share a compiled program, as tracing determines.

A number in the grid becomes an input of the program if the program can be traced with an abstract
value. If the number determines a shape, a length or a branch in Python, tracing fails, and each of
its values is compiled separately.
"""

import dataclasses
import enum
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import environments
from experiments.cli.parser import unknown
from experiments.environments.types import Array
from experiments.runs.assembly import assemble
from experiments.runs.run_config import RunConfig
from experiments.studies.devices import Unit
from experiments.studies.grid import Place, Point
from experiments.training.loop import Program, make_program
from experiments.training.schedule import Schedule, schedule
from experiments.training.seeds import keys_of
from experiments.training.state import LoopState, Metrics
from jaxreplay.option import options_of

_DTYPES: Mapping[Any, Any] = {int: np.int32, float: np.float32}
# Python needs a value: in a branch, a conversion or an index.
_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)  # fmt: skip

Values = dict[str, Any]  # name of a setting -> [] or [S]


class Kind(enum.Enum):
    """Where runs execute, and the programs that they share."""

    DEVICE = enum.auto()  # on one device
    MESH = enum.auto()  # divided over several devices
    HOST = enum.auto()  # around environments on the host

    @classmethod
    def of(cls, point: Point) -> "Kind":
        """Return the kind of the runs of a point."""
        if environments.is_host(point.env):
            return cls.HOST
        return cls.MESH if point.config.loop.mesh > 1 else cls.DEVICE

    @property
    def needs_this_machine(self) -> bool:
        """Whether a cluster cannot train the runs."""
        return self is not Kind.DEVICE

    def place(self, units: Sequence[Unit], together: bool) -> tuple[list[Unit], bool]:
        """Return the units that train the runs, and whether all runs of a program are one batch.

        Args:
          units: devices of the study.
          together: whether the runs share their log points, as the seeds of a single run do.
        """
        if self is Kind.HOST:  # one device trains all runs of a point
            return list(units[:1]), True
        if together or self is Kind.MESH:  # all devices train one batch
            return [tuple(device for unit in units for device in unit)], together
        return list(units), together

    def grouped(self, points: Sequence[Point]) -> list["Group"]:
        """Group points of this kind; only runs on one device share programs."""
        if self is not Kind.DEVICE:
            return [group_of([point], ()) for point in points]
        parts = _partitioned(points, _must_differ)
        return [group for part in parts for group in _split(part, _candidates(part))]


class Group(NamedTuple):
    """Points of a study that share a compiled program."""

    points: tuple[Point, ...]
    traced: tuple[Place, ...]  # settings that are inputs of the program
    # `init` takes a key and the inputs, or only a key if there are no inputs. The program is None
    # for environments on the host.
    program: Program | None

    @property
    def kind(self) -> Kind:
        """Kind of the runs."""
        return Kind.of(self.points[0])

    @property
    def name(self) -> str:
        """Task, label and settings that all points have in common."""
        first = self.points[0]
        fixed = {k: v for k, v in first.settings.items() if k not in self.traced}
        return first._replace(settings=fixed).id

    @property
    def schedule(self) -> Schedule:
        """Log points of the runs."""
        config = self.points[0].config
        return schedule(config.loop, config.sizes.num_envs)

    def inputs(self, chosen: Sequence[tuple[Point, int]]) -> Any:
        """Return the argument of the program's `init` for points and seeds: pytree `[S, ...]`."""
        keys = keys_of([seed for _, seed in chosen])
        if not self.traced:
            return keys
        config = self.points[0].config
        return keys, {
            place.name: jnp.asarray(
                [point.settings[place] for point, _ in chosen], _dtype(config, place)
            )
            for place in self.traced
        }


def check(point: Point) -> None:
    """Check that a point can run.

    Raises:
      ValueError: the point cannot run; the message names it and the reason.
    """
    try:
        if group_of([point], ()).program is None:
            assemble(point.config)
    except ValueError as error:
        raise ValueError(f"{point.id}: {error}") from None


def grouped(points: Sequence[Point]) -> list[Group]:
    """Group the points of a study that can share a program; settings that vary may be inputs.

    All points determine the groups, so that a resumed study has the same programs as before.
    """
    kinds = {kind: [point for point in points if Kind.of(point) is kind] for kind in Kind}
    return [group for kind, members in kinds.items() for group in kind.grouped(members)]


def _split(points: Sequence[Point], candidates: Sequence[Place]) -> list[Group]:
    """Divide points that differ only in the candidates into groups that share a program."""
    settings = [point.settings for point in points]
    candidates = [p for p in candidates if len({own[p] for own in settings}) > 1]
    traced = _traceable(points[0].config, candidates)
    apart = [place for place in candidates if place not in traced]
    if not apart:
        return [group_of(points, traced)]
    groups = []
    for members in _partitioned(points, lambda point: [point.settings[p] for p in apart]):
        # The inputs can differ between values, so each subset is traced separately.
        groups += _split(members, traced)
    return groups


def check_kept(names: Sequence[str], groups: Sequence[Group]) -> None:
    """Check that every metric of `--keep` exists in at least one program.

    Raises:
      ValueError: a metric is unknown; the message names similar metrics.
    """
    missing, known = list(names), {"diverged": None}
    groups = [group for group in groups if group.program is not None]
    for group in {(g.points[0].env, g.points[0].label): g for g in groups}.values():
        if missing:
            known |= dict.fromkeys(_metrics(group))
            missing = [name for name in missing if name not in known]
    if missing and groups:
        raise ValueError(unknown("metric of --keep", missing[0], known))


def _metrics(group: Group) -> list[str]:
    """Return the names of a program's metrics, by tracing it without compilation."""

    program = group.program
    assert program is not None

    def run(inputs: Any) -> Metrics:
        return program.chunk(program.init(inputs), jnp.ones((), jnp.int32))[1]

    inputs = example(group.points[0].config, group.traced)
    return [name for name in jax.eval_shape(run, inputs) if name != "fault"]


def group_of(points: Sequence[Point], traced: Sequence[Place]) -> Group:
    """Return the group of points that differ only in the `traced` settings."""
    config, program = points[0].config, None
    if Kind.of(points[0]) is not Kind.HOST:
        program = with_inputs(config, traced) if traced else _program(config)
    return Group(tuple(points), tuple(traced), program)


def _with_values(config: RunConfig, values: Mapping[Place, Any]) -> RunConfig:
    """Return a configuration with values of settings, which may be traced."""
    for place, value in values.items():
        part = dataclasses.replace(getattr(config, place.section), **{place.field: value})
        config = dataclasses.replace(config, **{place.section: part})
    return config


def with_inputs(config: RunConfig, places: Sequence[Place]) -> Program:
    """Return the program of a run with some settings as inputs.

    Its `init` takes a key and the values by the names of the settings; its state is
    `(values, LoopState)`. Each trace composes the program from the values.

    Args:
      config: configuration of the run; its own values of these settings are ignored.
      places: the settings.
    """

    def at(values: Values) -> Program:
        own = _with_values(config, {place: values[place.name] for place in places})
        return _program(own)

    def init(inputs: tuple[Array, Values]) -> tuple[Values, LoopState]:
        key, values = inputs
        return values, at(values).init(key)

    def chunk(
        state: tuple[Values, LoopState], blocks: Array
    ) -> tuple[tuple[Values, LoopState], Metrics]:
        values, inner = state
        inner, metrics = at(values).chunk(inner, blocks)
        return (values, inner), metrics

    alone = _program(config)
    composed: Any = (init, chunk)  # Any, because the state differs from LoopState
    return Program(*composed, alone.schedule)


def example(config: RunConfig, places: Sequence[Place]) -> Any:
    """Return shapes and dtypes of the argument of `init` for a program with inputs at `places`."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    if not places:
        return key
    return key, {place.name: jax.ShapeDtypeStruct((), _dtype(config, place)) for place in places}


def _dtype(config: RunConfig, place: Place) -> Any:
    return _DTYPES[_kind(config, place)]


def _kind(config: RunConfig, place: Place) -> Any:
    """Return the type of a setting's values, or None if they are not single numbers."""
    options = {entry.name: entry for entry in options_of(type(getattr(config, place.section)))}
    entry = options[place.field]
    return entry.kind if entry.kind in _DTYPES and not entry.many else None


def _traceable(config: RunConfig, places: Sequence[Place]) -> list[Place]:
    """Return the settings that can be inputs of a program at the same time."""
    composing = [place for place in places if _composes(config, [place])]
    if _traces(config, composing):
        return composing
    kept: list[Place] = []
    for place in composing:
        if _traces(config, [*kept, place]):
            kept.append(place)
    return kept


def _composes(config: RunConfig, places: Sequence[Place]) -> bool:
    """Return whether a run can be assembled with abstract values, a quick check before tracing."""

    def compose(inputs: Any) -> Array:
        own = _with_values(config, {place: inputs[1][place.name] for place in places})
        _program(own)
        return jnp.zeros(())

    return _succeeds(compose, config, places)


def _traces(config: RunConfig, places: Sequence[Place]) -> bool:
    """Return whether the whole program can be traced with abstract values."""
    if not places:
        return True

    def run(inputs: Any) -> Any:
        program = with_inputs(config, places)
        return program.chunk(program.init(inputs), jnp.ones((), jnp.int32))

    return _succeeds(run, config, places)


def _succeeds(function: Callable[[Any], Any], config: RunConfig, places: Sequence[Place]) -> bool:
    """Return whether a function accepts abstract values of settings.

    Raises:
      Exception: If the program of the run also fails with concrete values, which is a bug.
    """
    try:
        with _quiet():
            jax.eval_shape(function, example(config, places))
    except _NEEDS_VALUE:
        return False
    except (TypeError, ValueError, AttributeError):  # a shape or an option that needs a number
        program = _program(config)
        with _quiet():
            jax.eval_shape(
                lambda key: program.chunk(program.init(key), jnp.ones((), jnp.int32)),
                example(config, ()),
            )
        return False
    return True


@contextmanager
def _quiet() -> Any:
    """Suppress warnings of libraries about trial values."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _program(config: RunConfig) -> Program:
    parts = assemble(config)
    environment: Any = parts.environment
    return make_program(environment, parts.agent, parts.replay, config.loop)


def _candidates(points: Sequence[Point]) -> list[Place]:
    """Return the settings of the points whose values are single numbers."""
    first = points[0]
    return [
        place
        for place, value in first.settings.items()
        if value is not None and _kind(first.config, place) is not None
    ]


def _must_differ(point: Point) -> list[Any]:
    """Return the task, label and settings of a point that can never be inputs of a program."""
    fixed = [point.env, point.label]
    for place, value in point.settings.items():
        if value is None or _kind(point.config, place) is None:
            fixed.append((place, value))
    return fixed


def _partitioned(
    points: Sequence[Point], key: Callable[[Point], Collection[Any]]
) -> list[list[Point]]:
    """Return points grouped by key, in order of first occurrence."""
    found: dict[tuple[Any, ...], list[Point]] = {}
    for point in points:
        found.setdefault(tuple(key(point)), []).append(point)
    return list(found.values())
