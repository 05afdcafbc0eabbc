"""The Blind Cliffwalk: replay with a single reward among exponentially many transitions.

Schaul et al. 2016, Sec. 3.1 and App. B.1. The chain has n states. In each state, one action leads
to the next state and the other one ends the episode; only the last step has a reward. The memory
contains all 2^n sequences of actions in random order, and the agent learns only from replay.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.tabular import TabularConfig, TabularState, q_table, tabular
from agents.types import Discrete
from experiments.environments.walk import right_action
from experiments.training.loop import Program
from experiments.training.seeds import over_seeds
from jaxreplay.methods import per, pser, rank, uniform
from jaxreplay.replay import Replay
from jaxreplay.sampler import Sampler
from jaxreplay.types import Array, Sample, Transition

CONVERGED = 1e-3  # mean squared error of Q below which a seed counts as converged
CHUNK = 100  # updates between two measurements of the error


class Method(NamedTuple):
    """A replay method: its sampler (None for the oracle) and its initial priorities."""

    sampler: Sampler | None
    initial_td: float | None = None  # TD error of all transitions at first; None: maximal priority


def prioritised(name: Literal["per", "pser"], initial: str = "max", **options: Any) -> Method:
    """Return PER or PSER without importance weights.

    Args:
      name: "per" or "pser".
      initial: priorities of new transitions: "max", the maximal priority, or "td", the priority of
        their TD error, here taken as 0.
      **options: options of the method.
    """
    fixed = {"beta": 0.0, "epsilon": 1e-4, "sampling": "iid", "initial": initial, **options}
    start = None if initial == "max" else 0.0
    if name == "per":
        return Method(per.sampler(per.PERConfig(**fixed, beta_end=0.0)), start)
    return Method(pser.sampler(pser.PSERConfig(**fixed)), start)


_PSER = {"alpha": 0.6, "rho": 0.4, "window": 5, "eta": 0.0}
_RANK = rank.RankConfig(alpha=0.7, beta=0.0, beta_end=0.0, sampling="iid")
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "uniform": Method(uniform.sampler()),
        "oracle": Method(None),
        "greedy": Method(rank.sampler(rank.RankConfig(sampling="greedy"))),
        "proportional": prioritised("per", alpha=0.6),
        "rank": Method(rank.sampler(_RANK)),
        "pser": prioritised("pser", **_PSER),
        "proportional, from epsilon": prioritised("per", "td", alpha=0.6),
        "pser, from epsilon": prioritised("pser", "td", **_PSER),
    }
)


class Curve(NamedTuple):
    """Learning curves of one method for S seeds."""

    updates: np.ndarray  # [S] int, updates until the error is below CONVERGED; -1 if it never is
    errors: np.ndarray  # [L, S] float32, before the first update and after every CHUNK updates


class Walk(NamedTuple):
    """State of a run."""

    key: Array
    agent: TabularState
    replay: Any
    clock: Array  # [] int32, updates so far
    converged: Array  # [] int32, updates when the error first fell below CONVERGED; -1 until then


def true_q(n: int) -> np.ndarray:
    """Return Q* `[n, 2]` for the discount factor 1 - 1/n."""
    steps = n - 1 - np.arange(n)
    values = np.zeros((n, 2))
    values[np.arange(n), right_action(np.arange(n))] = (1.0 - 1.0 / n) ** steps
    return values


def memory(key: Array, n: int) -> Transition:
    """Return the transitions of all 2^n sequences of actions, in random order of the sequences.

    Fields have shape `[2^(n+1) - 2]`. A sequence ends with its episode, and its transitions are
    adjacent.
    """
    count, total = 2**n, 2 ** (n + 1) - 2
    sequences = jax.random.permutation(key, count)  # bit s: whether the action in s is right
    right = (sequences[:, None] >> jnp.arange(n)) & 1  # [2^n, n]
    length = jnp.minimum(jnp.cumprod(right, axis=1).sum(axis=1) + 1, n)
    which = jnp.repeat(jnp.arange(count), length, total_repeat_length=total)
    start = jnp.cumsum(length) - length
    state = (jnp.arange(total) - start[which]).astype(jnp.int32)
    return _transitions(n, state, right[which, state] == 1)


def _transitions(n: int, state: Array, right: Array) -> Transition:
    """Return transitions `[N]` from states `[N]`, with the right action where `right` is true."""
    last = ~right | (state == n - 1)
    return Transition(
        obs=state,
        action=jnp.where(right, right_action(state), 1 - right_action(state)).astype(jnp.int32),
        reward=(right & (state == n - 1)).astype(jnp.float32),
        discount=jnp.where(last, 0.0, 1.0 - 1.0 / n),
        next_obs=jnp.minimum(state + 1, n - 1),
        first=state == 0,
        last=last,
    )


def run(
    n: int,
    method: Method,
    seeds: int = 10,
    linear: bool = False,
    max_updates: int = 5_000_000,
    report: Callable[[int, float], None] = lambda updates, error: None,
) -> Curve:
    """Learn with one method until every seed has converged; seeds are vmapped.

    Args:
      n: number of states, 2 to 20 (the memory contains 2^(n+1) - 2 transitions).
      method: replay method, such as a value of METHODS.
      seeds: number of seeds; they are 0 to seeds - 1.
      linear: whether Q is linear in a one-hot state and a shared constant, instead of a table.
      max_updates: largest number of updates.
      report: function called regularly with the number of updates and the largest error.

    Returns:
      Updates until convergence and error curves.
    """
    together = over_seeds(_program(n, method, linear))
    state = together.init(jax.vmap(jax.random.key)(jnp.arange(seeds)))
    errors, count = [], 0
    while count == 0 or (len(errors) - 1) * CHUNK < max_updates:
        state, metrics = together.chunk(state, jnp.asarray(count, jnp.int32))
        errors.append(np.asarray(metrics["error"]))
        count = CHUNK
        if len(errors) % 200 == 0:
            report((len(errors) - 1) * CHUNK, float(errors[-1].max()))
        if (np.asarray(state.converged) >= 0).all():
            break
    return Curve(np.asarray(state.converged), np.stack(errors))


def _program(n: int, method: Method, linear: bool) -> Program:
    """Return a Program with `chunk(state, count)`, which makes `count` updates."""
    config = TabularConfig(num_states=n, linear=linear)
    agent = tabular(config, Discrete(2))
    capacity = 2 ** (n + 1) - 2
    replay = Replay(method.sampler or uniform.sampler(), capacity=capacity, batch_size=1)
    truth = jnp.asarray(true_q(n), jnp.float32)

    def error(state: TabularState) -> Array:
        return jnp.square(q_table(config, state) - truth).mean()

    def init(key: Array) -> Walk:
        key, key_memory, key_agent = jax.random.split(key, 3)
        stored = memory(key_memory, n)
        example = jax.tree.map(lambda x: x[0], stored)
        state = agent.init(key_agent, example.obs, example.action)
        replay_state = replay.init(key_memory, example)
        if method.sampler is not None:
            replay_state = _fill(replay, replay_state, stored, method.initial_td)
        clock, converged = jnp.zeros((), jnp.int32), jnp.where(error(state) < CONVERGED, 0, -1)
        return Walk(key, state, replay_state, clock, converged)

    types = _types(n)

    def oracle(walk: Walk) -> Walk:
        """Make the one of the 2n possible updates that lowers the error most."""
        candidates, _ = jax.vmap(lambda t: agent.update(walk.agent, t, walk.key))(types)
        best = jnp.argmin(jax.vmap(error)(candidates))
        return walk._replace(agent=jax.tree.map(lambda x: x[best], candidates))

    def replayed(walk: Walk) -> Walk:
        key = jax.random.fold_in(walk.key, walk.clock)
        sample = replay.sample(walk.replay, key)
        state, info = agent.update(walk.agent, sample, walk.key)
        replay_state = replay.update(walk.replay, sample, **info.feedback)
        return walk._replace(agent=state, replay=replay_state)

    def step(walk: Walk) -> Walk:
        walk = replayed(walk) if method.sampler is not None else oracle(walk)
        clock = walk.clock + 1
        now = (error(walk.agent) < CONVERGED) & (walk.converged < 0)
        return walk._replace(clock=clock, converged=jnp.where(now, clock, walk.converged))

    def chunk(walk: Walk, count: Array) -> tuple[Walk, dict[str, Array]]:
        walk = jax.lax.fori_loop(0, count, lambda _, walk: step(walk), walk)
        return walk, {"error": error(walk.agent)}

    return Program(init, chunk, schedule=None)


def _fill(replay: Replay, state: Any, stored: Transition, initial_td: float | None) -> Any:
    feedback = {} if initial_td is None else {"td_error": jnp.full(1, initial_td)}

    def add(state: Any, transition: Transition) -> tuple[Any, None]:
        return replay.add(state, jax.tree.map(lambda x: x[None], transition), **feedback), None

    return jax.lax.scan(add, state, stored)[0]


def _types(n: int) -> Sample:
    """Return the 2n distinct transitions as batches of size one, with fields `[2n, 1]`."""
    state = jnp.repeat(jnp.arange(n, dtype=jnp.int32), 2)
    right = jnp.tile(jnp.arange(2), n) == right_action(state)
    ones = jnp.ones(2 * n, jnp.int32)
    sample = Sample(ones, _transitions(n, state, right), ones.astype(jnp.float32), ones)
    return jax.tree.map(lambda x: x[:, None], sample)
