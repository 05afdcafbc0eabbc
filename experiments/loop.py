"""The training loop as one compiled program: nested scans of collecting and learning.

    block = scan(collect, learn_every), then scan(learn, updates)
    chunk = a loop of blocks, then a greedy evaluation: one log point

Between chunks Python may print, log and checkpoint; `make_train` runs them all in one program. The
chunk is the same for one seed and, vmapped, for many. Anything conditional hangs on clocks, which
do not depend on the data and so stay single under vmap.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from agents import scaling
from agents.types import Agent, Discrete
from experiments.config import LoopConfig, Schedule, check, schedule
from experiments.environments.types import Array, Environment
from experiments.evaluate import evaluate
from experiments.inspection import inspect
from jaxreplay import n_step
from jaxreplay.n_step import Step, Window
from jaxreplay.types import Replay, Transition

Metrics = dict[str, Array]  # each [] float32


class Keys(NamedTuple):
    """One root per use; a step's key is its root folded with the clock, so none is used twice."""

    collect: Array
    learn: Array
    evaluate: Array
    observe: Array
    inspect: Array


class Episodes(NamedTuple):
    """The running episode of every environment."""

    returns: Array  # [E] float32, undiscounted, so far
    lengths: Array  # [E] int32, agent steps so far


class Finished(NamedTuple):
    """Training episodes that ended since the replay was last told of them."""

    returns: Array  # [] float32, their sum
    episodes: Array  # [] float32, their number


class LoopState(NamedTuple):
    """Everything that a run carries; saving it and going on changes nothing."""

    keys: Keys
    rows: Array  # [] int32, a clock: steps of each environment so far
    updates: Array  # [] int32, a clock: gradient steps so far
    env_state: Any  # [E, ...]
    obs: chex.ArrayTree  # [E, ...]
    episodes: Episodes
    finished: Finished
    extras: chex.ArrayTree  # [E, ...] of the step before, zeros where an episode begins
    window: Window
    agent: Any
    replay: Any


class Program(NamedTuple):
    """A run in two functions.

    * `init(key) -> LoopState`: after the warm-up.
    * `chunk(LoopState, blocks[]) -> (LoopState, Metrics)`: `blocks` blocks and an evaluation.
    """

    init: Callable[[Array], LoopState]
    chunk: Callable[[LoopState, Array], tuple[LoopState, Metrics]]
    schedule: Schedule
    notes: tuple[str, ...] = ()  # what the user should know before it runs


def make_program(
    environment: Environment, agent: Agent, replay: Replay, config: LoopConfig
) -> Program:
    """Compose environment, agent and replay into a Program.

    Args:
      environment: one auto-resetting environment; the loop runs `replay.num_envs` of them.
      agent: made with the objective of the replay's method.
      replay: made with the sampler of the same method.
      config: lengths and cadences.

    Raises:
      ValueError: the config cannot run.
    """
    check(config, replay)
    if config.scale_observations or config.scale_rewards:
        agent = scaling.scaled(agent)
    plan = schedule(config, replay.num_envs)
    collect = _make_collect(environment, agent, replay, config)
    learn = _make_learn(agent, replay)
    report_training = _make_report(replay, config)
    rescale = _make_rescale(replay, config)

    def init(key: Array) -> LoopState:
        state = _start(environment, agent, replay, config, key)
        # The window emits its first transition at its n-th push.
        fill = config.n_step - 1
        state, _ = jax.lax.scan(lambda s, _: collect(s, "fill"), state, length=fill)
        rows = plan.warmup_rows - fill
        state, _ = jax.lax.scan(lambda s, _: collect(s, "random"), state, length=rows)
        if config.scale_observations:
            state = _measure(state, scaling.measure_observations)
        if config.scale_rewards:
            state = _measure(state, scaling.measure_rewards)
        return state

    def block(state: LoopState) -> tuple[LoopState, Metrics, dict[str, tuple[Array, Array]]]:
        state, played = jax.lax.scan(
            lambda s, _: collect(s, "act"), state, length=config.learn_every
        )
        state, learned = jax.lax.scan(lambda s, _: learn(s), state, length=config.updates)
        if replay.scores == "training":
            state = report_training(state)
        if config.scale_rewards:
            state = rescale(state)
        return state, _sum(played), _sum(_finite(learned))

    def chunk(state: LoopState, blocks: Array) -> tuple[LoopState, Metrics]:
        shapes = jax.eval_shape(block, state)[1:]
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def body(_, carry):
            state, played, learned = carry
            state, *more = block(state)
            return state, *jax.tree.map(jnp.add, (played, learned), tuple(more))

        state, played, learned = jax.lax.fori_loop(0, blocks, body, (state, *zeros))
        returns, lengths = evaluate(
            environment,
            lambda obs: agent.greedy(state.agent, obs),
            jax.random.fold_in(state.keys.evaluate, state.rows),
            config.eval_episodes,
        )
        score = returns.mean()
        if replay.scores == "evaluation":
            key = jax.random.fold_in(state.keys.observe, state.rows)
            state = state._replace(replay=replay.observe(state.replay, score, key))
        return state, {
            "eval_return": score,
            "eval_length": lengths.mean(),
            "train_return": played["returns"] / played["episodes"],  # nan if none ended
            "episodes": played["episodes"],
            **{f"agent/{name}": total / n for name, (total, n) in learned.items()},
            **{f"replay/{name}": value for name, value in replay.metrics(state.replay).items()},
            **inspected(state),
        }

    def inspected(state: LoopState) -> Metrics:
        if config.inspect == 0:
            return {}
        key = jax.random.fold_in(state.keys.inspect, state.rows)
        return inspect(agent, state.agent, replay, state.replay, key, config.inspect)

    return Program(init, chunk, plan, _notes(environment, replay))


def _notes(environment: Environment, replay: Replay) -> tuple[str, ...]:
    if "whole_episodes" in replay.demands and environment.max_steps > replay.capacity:
        return (
            f"{environment.name} may have episodes of {environment.max_steps:,} steps, more than "
            f"the {replay.capacity:,} to be remembered: such an episode is kept while it is the "
            "only one",
        )
    return ()


def make_train(
    environment: Environment, agent: Agent, replay: Replay, config: LoopConfig
) -> Callable[[Array], tuple[LoopState, Metrics]]:
    """Make a whole training run as one pure function of a key.

    `jax.jit(jax.vmap(make_train(...)))(keys)` trains one seed per key.

    Returns:
      `train(key) -> (LoopState, metrics)`; metrics are `[L]` arrays, one entry per log point, with
      the agent steps under "step".

    Raises:
      ValueError: the config cannot run.
    """
    program = make_program(environment, agent, replay, config)

    def train(key: Array) -> tuple[LoopState, Metrics]:
        blocks = jnp.asarray(program.schedule.log_points, jnp.int32)
        state, metrics = jax.lax.scan(program.chunk, program.init(key), blocks)
        return state, {"step": jnp.asarray(program.schedule.steps, jnp.int32), **metrics}

    return train


def _start(
    environment: Environment, agent: Agent, replay: Replay, config: LoopConfig, key: Array
) -> LoopState:
    """Make the state before the first step."""
    key_env, key_agent, key_replay, *roots = jax.random.split(key, 3 + len(Keys._fields))
    env_state, obs = jax.vmap(environment.reset)(jax.random.split(key_env, replay.num_envs))
    one_obs = jax.tree.map(lambda x: x[0], obs)
    one_action = _random_actions(environment, roots[0], 1)[0]
    agent_state = agent.init(key_agent, one_obs, one_action)
    extras = jax.eval_shape(agent.act, agent_state, obs, roots[0])[1]
    one_extras = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), extras)
    scalar, flag = jnp.zeros((), jnp.float32), jnp.zeros((), bool)
    step = Step(one_obs, one_action, scalar, flag, flag, one_obs, flag, one_extras)
    transition = Transition(one_obs, one_action, scalar, scalar, one_obs, flag, flag, one_extras)
    clock = jnp.zeros((), jnp.int32)
    lanes = jnp.zeros(replay.num_envs, jnp.int32)
    return LoopState(
        keys=Keys(*roots),
        rows=clock,
        updates=clock,
        env_state=env_state,
        obs=obs,
        episodes=Episodes(lanes.astype(jnp.float32), lanes),
        finished=Finished(scalar, scalar),
        extras=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), extras),
        window=n_step.init(step, config.n_step, replay.num_envs),
        agent=agent_state,
        replay=replay.init(key_replay, transition),
    )


def _make_collect(environment: Environment, agent: Agent, replay: Replay, config: LoopConfig):
    def fresh(agent_state: Any, transition: Transition, key: Array) -> dict[str, Array]:
        if not replay.fresh:
            return {}
        feedback = agent.assess(agent_state, transition, key)
        return {
            name: feedback[name] for name in replay.fresh | ({"reward_scale"} & feedback.keys())
        }

    def collect(state: LoopState, how: str) -> tuple[LoopState, Metrics]:
        """Take one step in every environment: "fill" the window, at "random", or "act"."""
        key = jax.random.fold_in(state.keys.collect, state.rows)
        key_act, key_env, key_fresh = jax.random.split(key, 3)
        action, extras = agent.act(state.agent, state.obs, key_act, state.extras)
        if how != "act" and config.random_warmup and not jax.tree.leaves(extras):
            # Agents that store their density with the step (extras) must act by themselves.
            action = _random_actions(environment, key_act, replay.num_envs)
        keys = jax.random.split(key_env, replay.num_envs)
        env_state, obs, out = jax.vmap(environment.step)(keys, state.env_state, action)
        step = Step(
            state.obs, action, out.reward, out.terminated, out.truncated, out.final_obs,
            state.episodes.lengths == 0, extras,
        )  # fmt: skip
        window, transition = n_step.push(state.window, step, config.gamma)
        held = state.replay
        if how != "fill":
            held = replay.add(held, transition, **fresh(state.agent, transition, key_fresh))
        returns, lengths = state.episodes.returns + out.reward, state.episodes.lengths + 1
        done = out.terminated | out.truncated
        finished = {
            "returns": jnp.where(done, returns, 0.0).sum(),
            "episodes": done.sum(dtype=jnp.float32),
        }
        untold = Finished(*jax.tree.map(jnp.add, state.finished, Finished(**finished)))
        episodes = Episodes(jnp.where(done, 0.0, returns), jnp.where(done, 0, lengths))
        state = state._replace(
            rows=state.rows + 1, env_state=env_state, obs=obs, episodes=episodes, window=window,
            finished=untold, extras=_unless(done, extras), replay=held,
        )  # fmt: skip
        return state, finished

    return collect


def _make_learn(agent: Agent, replay: Replay):
    def learn(state: LoopState) -> tuple[LoopState, Metrics]:
        """Take one gradient step: sample, update the agent, tell the replay what it saw."""
        key = jax.random.fold_in(state.keys.learn, state.updates)
        key_sample, key_agent = jax.random.split(key)
        held, sample = replay.sample(state.replay, key_sample)
        agent_state, info = agent.update(state.agent, sample, key_agent)
        held = replay.update(held, sample, **info.feedback)
        state = state._replace(agent=agent_state, replay=held, updates=state.updates + 1)
        return state, info.metrics

    return learn


def _make_report(replay: Replay, config: LoopConfig):
    every = max(1, config.observe_every // replay.num_envs)  # in rows

    def report(state: LoopState) -> LoopState:
        """Tell the replay the mean return of recent training episodes, when it is time."""

        def tell() -> tuple[Any, Finished]:
            key = jax.random.fold_in(state.keys.observe, state.rows)
            mean = state.finished.returns / state.finished.episodes  # nan if none ended
            held = replay.observe(state.replay, mean, key)
            return held, jax.tree.map(jnp.zeros_like, state.finished)

        due = state.rows % every < config.learn_every
        held, finished = jax.lax.cond(due, tell, lambda: (state.replay, state.finished))
        return state._replace(replay=held, finished=finished)

    return report


def _make_rescale(replay: Replay, config: LoopConfig):
    every = max(1, config.rescale_every // replay.num_envs)  # in rows

    def rescale(state: LoopState) -> LoopState:
        """Measure the stored rewards again, when it is time."""
        due = state.rows % every < config.learn_every
        return state._replace(
            agent=jax.lax.cond(
                due,
                lambda: _measure(state, scaling.measure_rewards).agent,
                lambda: state.agent,
            )
        )

    return rescale


def _measure(state: LoopState, measure: Callable[..., Any]) -> LoopState:
    held = state.agent
    held = held._replace(scaling=measure(held.scaling, state.replay.ring))
    return state._replace(agent=held)


def _unless(done: Array, extras: chex.ArrayTree) -> chex.ArrayTree:
    """Return extras `[E, ...]`, zero where an episode is over."""
    return jax.tree.map(
        lambda x: jnp.where(done.reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(x), x), extras
    )


def _random_actions(environment: Environment, key: Array, count: int) -> Array:
    """Draw uniform actions `[count]` int32 or `[count, A]` float32."""
    space = environment.action_space
    if isinstance(space, Discrete):
        return jax.random.randint(key, (count,), 0, space.n, jnp.int32)
    return jax.random.uniform(key, (count, space.size), jnp.float32, -1.0, 1.0)


def _finite(metrics: Metrics) -> dict[str, tuple[Array, Array]]:
    """Return every metric with its count, both 0 where an update of a diverging agent has none."""
    ok = {name: jnp.isfinite(x) for name, x in metrics.items()}
    return {
        name: (jnp.where(ok[name], x, 0.0), ok[name].astype(jnp.float32))
        for name, x in metrics.items()
    }


def _sum(metrics: Metrics) -> Metrics:
    return jax.tree.map(lambda x: x.sum(axis=0), metrics)
