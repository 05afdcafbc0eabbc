"""Time what ReF-ER costs a RACER training step: `python -m experiments.benchmarks.refer`.

Both loops add a step, sample, take a gradient step and update the replay. One keeps ReF-ER's memory
(ratios, far share, beta, forgetting, and Retrace with its refreshes); the other draws uniformly and
gives the agent constants instead. They take turns; times are medians over the turns.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from agents.racer import RACERConfig, racer
from agents.types import Continuous
from experiments.benchmarks import outputs
from experiments.benchmarks.peers.types import ACTION, OBS
from experiments.benchmarks.sizes import read_sizes
from experiments.runs.log import say
from jaxreplay import Replay, Transition, ring
from jaxreplay.methods import refer, uniform
from jaxreplay.methods.parts import estimates
from jaxreplay.sampler import Sampler
from jaxreplay.types import Array

_EPISODE = 200  # steps
SIZES = {
    "capacity": (2**19, "steps remembered"),
    "batch_size": (256, "steps in a batch"),
    "steps": (2_000, "training steps in a turn"),
    "turns": (5, "turns of each"),
}


class WithoutMemory(uniform.Uniform):
    """A uniform sampler that gives RACER constants where ReF-ER gives it estimates."""

    def sample(self, state: Any, ring: Any, key: Array, batch_size: int) -> Any:
        aux = refer.Aux(jnp.asarray(0.5), jnp.log(5.0), jnp.zeros(batch_size))
        return super().sample(state, ring, key, batch_size)._replace(aux=aux)


def loop(sampler: Sampler, capacity: int, batch_size: int, steps: int) -> Callable[[], float]:
    """Fill a replay and return a function that runs `steps` training steps and returns seconds."""
    config = refer.ReFERConfig(returns=True)
    agent = racer(RACERConfig(), Continuous(ACTION), refer.objective(config))
    replay = Replay(sampler, capacity=capacity, batch_size=batch_size)
    obs, scalar, flag = jnp.zeros(OBS), jnp.zeros(()), jnp.zeros((), bool)
    agent_state = agent.init(jax.random.key(0), obs, jnp.zeros(ACTION))
    action, extras = agent.act(agent_state, obs[None], jax.random.key(0))
    example = Transition(
        obs, action[0], scalar, scalar, obs, flag, flag, jax.tree.map(lambda x: x[0], extras)
    )
    row = jax.tree.map(lambda x: x[None], example)

    def add(agent_state: Any, held: Any, number: Array) -> Any:
        key = jax.random.fold_in(jax.random.key(1), number)
        step = row._replace(
            obs=jax.random.normal(key, (1, OBS)),
            reward=jnp.ones(1),
            discount=jnp.full(1, 0.995),
            first=(number % _EPISODE == 0)[None],
            last=(number % _EPISODE == _EPISODE - 1)[None],
        )
        wanted = replay.requires.feedback_of_new
        told = agent.feedback(agent_state, step, key) if wanted else {}
        return replay.add(held, step, **{name: told[name] for name in wanted})

    def once(carry: Any, number: Array) -> tuple[Any, Array]:
        agent_state, state = carry
        state = add(agent_state, state, number)
        key = jax.random.fold_in(jax.random.key(2), number)
        batch = replay.sample(state, key)
        agent_state, info = agent.update(agent_state, batch, key)
        return (agent_state, replay.update(state, batch, **info.feedback)), info.metrics["loss"]

    def fill(key: Array) -> Any:
        state = replay.init(key, example)
        return jax.lax.fori_loop(0, capacity, lambda n, state: add(agent_state, state, n), state)

    run = jax.jit(
        lambda carry, start: jax.lax.scan(once, carry, start + jnp.arange(steps)), donate_argnums=0
    )
    filled = jax.block_until_ready(jax.jit(fill)(jax.random.key(3)))
    carry, clock = (jax.tree.map(jnp.copy, agent_state), filled), capacity

    def timed() -> float:
        nonlocal carry, clock
        start = time.perf_counter()
        carry, _ = jax.block_until_ready(run(carry, clock))
        clock += steps
        return time.perf_counter() - start

    timed()  # compiles
    return timed


def refresh(capacity: int) -> Callable[[], float]:
    """Return a function that runs Retrace over the whole memory and returns seconds.

    The memory of `capacity` steps is the full ring behind it, with the room that ReF-ER keeps.
    """
    scalar, flag = jnp.zeros(()), jnp.zeros((), bool)
    blank = Transition(scalar, scalar, scalar, scalar, scalar, flag, flag)
    held = ring.init(blank, capacity * refer.ReFERConfig().capacity_factor)
    held = held.replace(steps_added=jnp.asarray(held.capacity + 12_345))  # it has wrapped round
    slots = jnp.arange(held.capacity)
    numbers = jax.random.normal(jax.random.key(0), (5, held.capacity))
    kept = estimates.init(held)._replace(
        value=numbers[0], advantage=numbers[1], next_value=numbers[2], reward=numbers[3],
        discount=jnp.full(held.capacity, 0.995),
        last=slots % _EPISODE == _EPISODE - 1,
    )  # fmt: skip
    run = jax.jit(estimates.refresh, donate_argnums=0)
    kept = [jax.block_until_ready(run(kept, numbers[4], held))]

    def timed() -> float:
        start = time.perf_counter()
        kept[0] = jax.block_until_ready(run(kept[0], numbers[4], held))
        return time.perf_counter() - start

    return timed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    sizes, out = read_sizes("refer", __doc__, SIZES, argv)
    capacity, batch_size, steps, turns = sizes.values()
    say("filling and compiling")
    config = refer.ReFERConfig(returns=True)
    timed = {
        name: loop(sampler, capacity, batch_size, steps)
        for name, sampler in (("with", refer.sampler(config)), ("without", WithoutMemory()))
    }
    of_refresh = refresh(capacity)
    times: dict[str, list[float]] = {"with": [], "without": [], "refresh": []}
    for turn in range(turns):
        say(f"turn {turn + 1} of {turns}")
        for name, function in timed.items():
            times[name].append(function() / steps * 1e6)
        times["refresh"] += [of_refresh() * 1e6 for _ in range(5)]
    medians = {name: statistics.median(values) for name, values in times.items()}
    share = 1 - medians["without"] / medians["with"]
    print(f"training step with ReF-ER     {medians['with']:10.1f} us")
    print(f"training step without         {medians['without']:10.1f} us")
    print(f"ReF-ER's share of a step      {share:10.1%}")
    print(f"Retrace, {capacity:,} remembered {medians['refresh'] / 1e3:10.1f} ms")
    outputs.write(out, {**sizes, "median_us": medians, "us": times})
    return 0


if __name__ == "__main__":
    sys.exit(main())
