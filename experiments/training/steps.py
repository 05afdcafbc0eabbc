"""What a training loop does in one step, in pure functions that any loop can drive.

The compiled loop scans them together with the environment; the loop for environments on the host
calls them, jitted, from Python. Anything conditional hangs on clocks, which do not depend on the
data and so stay single under vmap.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from agents import scaling
from agents.types import Agent, Continuous, Discrete
from experiments.environments.types import Array, TimeStep
from experiments.training.config import LoopConfig
from experiments.training.inspection import inspect
from jaxreplay import n_step
from jaxreplay.n_step import Step, Window
from jaxreplay.types import Replay, Sample, Transition

Metrics = dict[str, Array]  # each [] float32
Sums = dict[str, tuple[Array, Array]]  # of metrics, and of how many


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
    """Everything that a run carries; in a compiled loop, saving it and going on changes nothing."""

    keys: Keys
    rows: Array  # [] int32, a clock: steps of each environment so far
    updates: Array  # [] int32, a clock: gradient steps so far
    env_state: Any  # [E, ...]; of environments on the host, frames that are kept there or ()
    obs: chex.ArrayTree  # [E, ...]
    episodes: Episodes
    finished: Finished
    extras: chex.ArrayTree  # [E, ...] of the step before, zeros where an episode begins
    window: Window
    fault: Array  # [] int32, `rows` after the first step that was not finite; 0: all were
    agent: Any
    replay: Any


class Steps(NamedTuple):
    """What a loop is made of; `S` is a LoopState.

    * `start(key, env_state, obs[E, ...]) -> S`: before the first step.
    * `decide(S, how) -> (action[E, ...], extras)`: how to act: "fill" the n-step window, at
      "random", or "act".
    * `take_in(S, how, action, extras, env_state, obs[E, ...], TimeStep[E]) -> (S, Metrics)`: what
      the environments made of it; with sums over the episodes that ended.
    * `warmed_up(S) -> S`: after the warm-up.
    * `learn(S) -> (S, Sums)`: one gradient step, which is
    * `sample(S) -> (S, Sample)`: its first half, to choose and read a batch; and
    * `learn_from(S, Sample) -> (S, Sums)`: its second, to update the agent and tell the replay.
    * `greedy(S, obs[N, ...], key) -> action[N, ...]`: in evaluations.
    * `block_over(S) -> S`: after each block of collecting and learning.
    * `log_point(S, played, learned, returns[N], lengths[N]) -> (S, Metrics)`: after an evaluation.
    """

    start: Callable[..., LoopState]
    decide: Callable[..., tuple[Array, Any]]
    take_in: Callable[..., tuple[LoopState, Metrics]]
    warmed_up: Callable[[LoopState], LoopState]
    learn: Callable[[LoopState], tuple[LoopState, Sums]]
    sample: Callable[[LoopState], tuple[LoopState, Sample]]
    learn_from: Callable[[LoopState, Sample], tuple[LoopState, Sums]]
    greedy: Callable[[LoopState, chex.ArrayTree, Array], Array]
    block_over: Callable[[LoopState], LoopState]
    log_point: Callable[..., tuple[LoopState, Metrics]]


def make_steps(
    action_space: Discrete | Continuous, agent: Agent, replay: Replay, config: LoopConfig
) -> Steps:
    """Compose an agent, a replay and a LoopConfig into Steps.

    Args:
      action_space: of the environments, of which the loop runs `replay.num_envs`.
      agent: made with the objective of the replay's method.
      replay: made with the sampler of the same method.
      config: lengths and cadences; checked by the caller.
    """
    if config.scale_observations or config.scale_rewards:
        agent = scaling.scaled(agent)
    decide, take_in = _make_collect(action_space, agent, replay, config)
    report_training = _make_report(replay, config)
    rescale = _make_rescale(replay, config)

    def start(key: Array, env_state: Any, obs: chex.ArrayTree) -> LoopState:
        return _start(action_space, agent, replay, config, key, env_state, obs)

    def warmed_up(state: LoopState) -> LoopState:
        if config.scale_observations:
            state = _measure(state, scaling.measure_observations)
        if config.scale_rewards:
            state = _measure(state, scaling.measure_rewards)
        return state

    def block_over(state: LoopState) -> LoopState:
        if replay.requires.episode_returns == "training":
            state = report_training(state)
        if config.scale_rewards:
            state = rescale(state)
        return state

    def log_point(
        state: LoopState, played: Metrics, learned: Sums, returns: Array, lengths: Array
    ) -> tuple[LoopState, Metrics]:
        episode_return = returns.mean()
        if replay.requires.episode_returns == "evaluation":
            key = jax.random.fold_in(state.keys.observe, state.rows)
            state = state._replace(replay=replay.observe(state.replay, episode_return, key))
        return state, {
            "eval_return": episode_return,
            "eval_length": lengths.mean(),
            "train_return": played["returns"] / played["episodes"],  # nan if none ended
            "episodes": played["episodes"],
            "fault": state.fault.astype(jnp.float32),
            **{f"agent/{name}": total / n for name, (total, n) in learned.items()},
            **{f"replay/{name}": value for name, value in replay.metrics(state.replay).items()},
            **inspected(state),
        }

    def inspected(state: LoopState) -> Metrics:
        if config.inspect == 0:
            return {}
        key = jax.random.fold_in(state.keys.inspect, state.rows)
        return inspect(agent, state.agent, replay, state.replay, key, config.inspect)

    def greedy(state: LoopState, obs: chex.ArrayTree, key: Array) -> Array:
        action = agent.greedy(state.agent, obs)
        if not config.eval_epsilon or isinstance(action_space, Continuous):
            return action
        key_coin, key_action = jax.random.split(key)
        coin = jax.random.bernoulli(key_coin, config.eval_epsilon, action.shape)
        return jnp.where(coin, _random_actions(action_space, key_action, len(action)), action)

    learn, sample, learn_from = _make_learn(agent, replay)
    return Steps(
        start, decide, take_in, warmed_up, learn, sample, learn_from, greedy, block_over, log_point
    )


def reset_key(key: Array) -> Array:
    """Return the key of the environments' reset in a run of `key`."""
    return _split(key)[0]


def step_key(state: LoopState) -> Array:
    """Return the key of the environments' next step."""
    return _collect_keys(state)[1]


def _split(key: Array) -> Array:
    return jax.random.split(key, 3 + len(Keys._fields))


def _collect_keys(state: LoopState) -> Array:
    """Return the keys of acting, of the environments, and of the feedback about what came of it."""
    return jax.random.split(jax.random.fold_in(state.keys.collect, state.rows), 3)


def _start(
    action_space: Discrete | Continuous,
    agent: Agent,
    replay: Replay,
    config: LoopConfig,
    key: Array,
    env_state: Any,
    obs: chex.ArrayTree,
) -> LoopState:
    """Make the state before the first step."""
    _, key_agent, key_replay, *roots = _split(key)
    one_obs = jax.tree.map(lambda x: x[0], obs)
    one_action = _random_actions(action_space, roots[0], 1)[0]
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
        fault=clock,
        agent=agent_state,
        replay=replay.init(key_replay, transition),
    )


def _make_collect(
    action_space: Discrete | Continuous, agent: Agent, replay: Replay, config: LoopConfig
):
    def fresh(agent_state: Any, transition: Transition, key: Array) -> dict[str, Array]:
        wanted = replay.requires.feedback_of_new
        if not wanted:
            return {}
        feedback = agent.feedback(agent_state, transition, key)
        return {name: feedback[name] for name in wanted | ({"reward_scale"} & feedback.keys())}

    def decide(state: LoopState, how: str) -> tuple[Array, Any]:
        key_act = _collect_keys(state)[0]
        action, extras = agent.act(state.agent, state.obs, key_act, state.extras)
        if how != "act" and config.random_warmup and not jax.tree.leaves(extras):
            # Agents that store their density with the step (extras) must act by themselves.
            action = _random_actions(action_space, key_act, replay.num_envs)
        return action, extras

    def take_in(
        state: LoopState,
        how: str,
        action: Array,
        extras: Any,
        env_state: Any,
        obs: chex.ArrayTree,
        out: TimeStep,
    ) -> tuple[LoopState, Metrics]:
        key_fresh = _collect_keys(state)[2]
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
            finished=untold, extras=_unless(done, extras), replay=held, fault=_fault(state, out),
        )  # fmt: skip
        return state, finished

    return decide, take_in


def _make_learn(agent: Agent, replay: Replay):
    def keys(state: LoopState) -> Array:
        return jax.random.split(jax.random.fold_in(state.keys.learn, state.updates))

    def sample(state: LoopState) -> tuple[LoopState, Sample]:
        held, batch = replay.sample(state.replay, keys(state)[0])
        return state._replace(replay=held), batch

    def learn_from(state: LoopState, batch: Sample) -> tuple[LoopState, Sums]:
        agent_state, info = agent.update(state.agent, batch, keys(state)[1])
        held = replay.update(state.replay, batch, **info.feedback)
        state = state._replace(agent=agent_state, replay=held, updates=state.updates + 1)
        return state, _finite(info.metrics)

    def learn(state: LoopState) -> tuple[LoopState, Sums]:
        return learn_from(*sample(state))

    return learn, sample, learn_from


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


def _fault(state: LoopState, out: TimeStep) -> Array:
    """Return `LoopState.fault` after a step."""
    seen = [x for x in jax.tree.leaves((out.reward, out.final_obs)) if x.dtype.kind == "f"]
    fine = jnp.stack([jnp.isfinite(x).all() for x in seen]).all()
    return jnp.where(fine | (state.fault > 0), state.fault, state.rows + 1)


def _unless(done: Array, extras: chex.ArrayTree) -> chex.ArrayTree:
    """Return extras `[E, ...]`, zero where an episode is over."""
    return jax.tree.map(
        lambda x: jnp.where(done.reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(x), x), extras
    )


def _random_actions(space: Discrete | Continuous, key: Array, count: int) -> Array:
    """Draw uniform actions `[count]` int32 or `[count, A]` float32."""
    if isinstance(space, Discrete):
        return jax.random.randint(key, (count,), 0, space.n, jnp.int32)
    return jax.random.uniform(key, (count, space.size), jnp.float32, -1.0, 1.0)


def _finite(metrics: Metrics) -> Sums:
    """Return every metric with its count, both 0 where an update of a diverging agent has none."""
    ok = {name: jnp.isfinite(x) for name, x in metrics.items()}
    return {
        name: (jnp.where(ok[name], x, 0.0), ok[name].astype(jnp.float32))
        for name, x in metrics.items()
    }
