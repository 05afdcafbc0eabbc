"""Calls of the library that must be refused."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Continuous, Discrete
from experiments import environments
from experiments.runs.registry import AGENTS
from jaxreplay import Frames, Replay, SharedObservations, n_step, ring, sum_tree
from jaxreplay.methods import METHODS, per, register
from jaxreplay.option import options_of
from jaxreplay.sampler import Method
from jaxreplay.testing import BATCH, EXAMPLE, Case, E, rows


class Call(NamedTuple):
    """A call that should raise ValueError, in one line."""

    what: str
    function: Callable[[], Any]


def all_calls() -> Iterator[Call]:
    """Yield every call."""
    yield from of_feedback()
    yield from of_transitions()
    yield from of_sizes()
    yield from of_configs()


def _made(name: str) -> Method:
    entry = METHODS[name]
    return entry.method(entry.config(**({"length": 4} if name == "windows" else {})).for_run(100))


@functools.cache
def _stored(name: str) -> tuple[Case, Any, Any]:
    """Return a case of a method, its state, and a batch: shapes, of which nothing is computed."""
    case = Case(_made(name))

    def start() -> Any:
        state = case.replay.init(jax.random.key(0), EXAMPLE)
        state = case._add(state, rows(0))
        return state, case.replay.sample(state, jax.random.key(0))

    return case, *jax.eval_shape(start)


def of_feedback() -> Iterator[Call]:
    """Yield feedback of every wrong shape, kind and name, for every method that reads any."""
    bad = {
        "a column": np.zeros((BATCH, 1)), "a row": np.zeros((1, BATCH)),
        "two rows": np.zeros((2, BATCH)),
        "too many": np.zeros(BATCH + 1), "too few": np.zeros(BATCH - 1), "none": np.zeros(0),
        "a scalar": np.zeros(()), "a number": 0.5, "complex": np.zeros(BATCH, np.complex64),
        "flags": np.zeros(BATCH, bool), "a list": [0.5] * BATCH, "text": "0.5", "nothing": None,
    }  # fmt: skip
    for name in METHODS:
        case, state, batch = _stored(name)
        wanted = sorted(case.replay.requires.feedback)

        def update(values: Any, case: Case = case, state: Any = state, batch: Any = batch) -> Any:
            return jax.eval_shape(lambda s, b: case.replay.update(s, b, **values), state, batch)

        fine = dict.fromkeys(wanted, np.zeros(BATCH))
        yield Call(
            f"{name}: update(x=...)", functools.partial(update, fine | {"x": np.zeros(BATCH)})
        )
        if wanted:
            yield Call(f"{name}: update()", functools.partial(update, {}))
        for how, values in bad.items():
            for field in wanted:
                changed = fine | {field: values}
                yield Call(f"{name}: {field} is {how}", functools.partial(update, changed))


def of_transitions() -> Iterator[Call]:
    """Yield transitions that do not fit what the replay was made for."""
    case, state, _ = _stored("per")
    row = jax.tree.map(np.asarray, rows(1))
    changes = {
        "rewards of one lane": {"reward": row.reward[:1]},
        "rewards as a column": {"reward": row.reward[:, None]},
        "observations of one row": {"obs": row.obs[0]},
        "wider observations": {"obs": np.zeros((E, 4), np.float32)},
        "1.7 as an action": {"action": np.full(E, 1.7)},
        "2^40 as an action": {"action": np.full(E, 2**40)},
        "complex rewards": {"reward": row.reward.astype(np.complex64)},
        "0.5 as a flag": {"first": np.full(E, 0.5)},
        "numbers as flags": {"last": np.zeros(E, np.int32)},
        "no observations": {"obs": None},
        "extras that nobody announced": {"extras": np.zeros(E)},
        "a dictionary of observations": {"obs": {"image": row.obs}},
    }
    for what, change in changes.items():
        changed = row._replace(**change)
        yield Call(
            f"add: {what}", lambda t=changed: jax.eval_shape(lambda s: case.replay.add(s, t), state)
        )
        yield Call(
            f"ring.add: {what}",
            lambda t=changed: jax.eval_shape(lambda s: ring.add(s.ring, t), state),
        )
    yield from _of_rows(case, state)
    yield Call(
        "init: complex", lambda: ring.init(EXAMPLE._replace(reward=np.zeros((), complex)), 8)
    )
    yield Call("sample: empty", lambda: case.replay.sample(
        case.replay.init(jax.random.key(0), EXAMPLE), jax.random.key(0)))  # fmt: skip


def _of_rows(case: Case, state: Any) -> Iterator[Call]:
    """Yield rows that are no transitions, and sizes of batches on demand."""
    changed = {"a dict": rows(1)._asdict(), "an array": np.zeros((E, 3)), "nothing": ()}
    for what, row in changed.items():
        yield Call(
            f"add: {what}", lambda t=row: jax.eval_shape(lambda s: case.replay.add(s, t), state)
        )
    lean = Replay(per.sampler(), capacity=8, batch_size=2, storage=SharedObservations())
    for what, example in {
        "no first": {"obs": np.zeros(2), "next_obs": np.zeros(2)},
        "observations of two kinds": EXAMPLE._replace(obs=np.zeros(2)),
        "an array": np.zeros(3),
    }.items():
        yield Call(f"observations once: {what}", lambda e=example: lean.init(jax.random.key(0), e))
    for size in (0, -1, 2.5, 10**6, "8", True):
        yield Call(f"sample: a batch of {size!r}", lambda n=size: jax.eval_shape(
            lambda s: case.replay.sample(s, jax.random.key(0), n), state))  # fmt: skip
    for name in ("pser", "ere", "ero", "ners", "refer"):
        blind = Replay(_made(name).sampler, capacity=8, batch_size=2)
        yield Call(f"{name}: init with a row without its fields", lambda r=blind: r.init(
            jax.random.key(0), {"mood": np.zeros(2)}))  # fmt: skip


def of_sizes() -> Iterator[Call]:
    """Yield sizes, names and parts that can't be put together."""
    sampler, lap = per.sampler(), METHODS["lap"]
    for what, function in {
        "a Method": lambda: Replay(per.method(), capacity=8, batch_size=2),
        "a name": lambda: Replay("per", capacity=8, batch_size=2),
        "no capacity": lambda: Replay(sampler, capacity=0, batch_size=1),
        "a negative capacity": lambda: Replay(sampler, capacity=-8, batch_size=1),
        "half a capacity": lambda: Replay(sampler, capacity=8.5, batch_size=1),
        "capacity beyond int32": lambda: Replay(sampler, capacity=2**31, batch_size=1),
        "batch 0": lambda: Replay(sampler, capacity=8, batch_size=0),
        "batch beyond the capacity": lambda: Replay(sampler, capacity=8, batch_size=9),
        "half a batch": lambda: Replay(sampler, capacity=8, batch_size=1.5),
        "lanes that don't divide": lambda: Replay(sampler, capacity=8, batch_size=2, num_envs=3),
        "no lanes": lambda: Replay(sampler, capacity=8, batch_size=2, num_envs=0),
        "a negative stack": lambda: Frames(stack=-1),
        "a storage by name": lambda: Replay(sampler, capacity=8, batch_size=2, storage="frames"),
        "ring of nothing": lambda: ring.init(EXAMPLE, 0),
        "tree of nothing": lambda: sum_tree.init(0),
        "tree of one child": lambda: sum_tree.init(4, 1),
        "tree by another name": lambda: sum_tree.init(4, 2, "max"),
        "sampling by another name": lambda: sum_tree.sample(
            sum_tree.init(4), jax.random.key(0), 2, "sobol"
        ),
        "n of 0": lambda: n_step.init(EXAMPLE, 0, 1),
        "a method that is there": lambda: register(
            "per", METHODS["lap"].config, METHODS["lap"].method
        ),
        "a config that is none": lambda: register("mine", int, lap.method),
        "an unknown environment": lambda: environments.make("gymnax/Nothing"),
        "an unknown option": lambda: environments.make("gymnax/CartPole-v1", backend="mjx"),
        "a host environment, compiled": lambda: environments.make("gymnasium/CartPole-v1"),
    }.items():
        yield Call(what, function)
    for name, entry in AGENTS.items():
        space = Continuous(2) if entry.actions == "discrete" else Discrete(3)
        objective = _made("uniform").objective
        yield Call(
            f"{name}: other actions", lambda e=entry, s=space, o=objective: e.make(e.config(), s, o)
        )


def of_configs() -> Iterator[Call]:
    """Yield values of a wrong kind, or far beyond, for every option of every config."""
    configs = {entry.config for entry in (*AGENTS.values(), *METHODS.values())}
    for config in sorted(configs, key=lambda c: c.__name__):
        for entry in options_of(config):
            bad: list[Any] = [b"bytes", "no-such-name", jnp.zeros(2), float("nan"), -(2.0**60)]
            if entry.kind is str and not entry.choices:
                bad = [3]
            for value in bad:
                what = f"{config.__name__}({entry.name}={value!r:.30})"
                yield Call(what, lambda c=config, n=entry.name, v=value: c(**{n: v}))
