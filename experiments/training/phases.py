"""The phases of a training loop (collecting, learning, log points) as pure functions of its state.

The compiled loop scans them together with the environment; the loop with environments on the host
calls them, jitted, from Python. Conditions depend only on step counters, which all seeds
share, so that they remain branches under vmap.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp

from agents import common, scaling
from agents.types import Agent, Continuous, Discrete
from experiments.environments.episodes import example_action
from experiments.environments.types import Array, TimeStep
from experiments.training import counting
from experiments.training import state as state_
from experiments.training.config import LoopConfig, check, divide
from experiments.training.demos import own_part
from experiments.training.inspection import conclude, inspect, measure, measure_share
from experiments.training.refreshing import refreshed
from experiments.training.state import Episodes, LoopState, Metrics, Sums
from jaxreplay import devices, n_step
from jaxreplay.n_step import Step
from jaxreplay.replay import Replay
from jaxreplay.traced import is_zero
from jaxreplay.types import Transition

Mode = Literal["warm-up", "act"]  # before or after learning starts


def make_phases(
    action_space: Discrete | Continuous, agent: Agent, replay: Replay, config: LoopConfig
) -> "Phases":
    """Make Phases; for arguments and errors, see `loop.make_program`."""
    check(config, replay)
    if config.scale_observations or config.scale_rewards:
        agent = scaling.normalise_inputs(agent)
    return Phases(action_space, agent, divide(replay, config.mesh), config)


@dataclasses.dataclass(frozen=True)
class Phases:
    """Pure functions of a LoopState, made by `make_phases`.

    In a run on several devices, each device calls them with its own state, under `jax.shard_map`.
    """

    action_space: Discrete | Continuous
    agent: Agent
    replay: Replay  # of one device
    config: LoopConfig

    @property
    def num_envs(self) -> int:
        """Number of environments on all devices."""
        return self.replay.num_envs * self.config.mesh

    def start(self, key: Array, env_state: Any, obs: chex.ArrayTree) -> LoopState:
        """Return the state before the first step, given `env_state` and `obs` of the reset.

        Raises:
          ValueError: the warm-up is random, but the agent stores densities of its own actions.
        """
        agent, replay, num_envs = self.agent, self.replay, self.replay.num_envs
        key_agent, key_replay, _, keys = state_.roots(key, num_envs)
        one_obs = jax.tree.map(lambda x: x[0], obs)
        one_action = example_action(self.action_space)
        agent_state = agent.init(key_agent, one_obs, one_action)
        extras = jax.eval_shape(agent.act, agent_state, obs, key_agent)[1]
        if self.config.random_warmup and agent.extras_of_action and jax.tree.leaves(extras):
            raise ValueError(
                "random_warmup is true, but this agent stores with each action its density under "
                "the agent's own policy, which random actions do not follow: use random_warmup "
                "false, in every arm of a comparison"
            )
        one_extras = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), extras)
        scalar, flag = jnp.zeros((), jnp.float32), jnp.zeros((), bool)
        step = Step(one_obs, one_action, scalar, flag, flag, one_obs, flag, one_extras)
        first = Transition(one_obs, one_action, scalar, scalar, one_obs, flag, flag, one_extras)
        counter, lengths = jnp.zeros((), jnp.int32), jnp.zeros(num_envs, jnp.int32)
        return LoopState(
            keys=keys,
            rows=counter,
            updates=counter,
            env_state=env_state,
            obs=obs,
            episodes=Episodes(lengths.astype(jnp.float32), lengths),
            extras=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), extras),
            window=n_step.init(step, self.config.n_step, num_envs),
            fault=counter,
            agent=agent_state,
            replay=replay.init(key_replay, first),
            draws=counting.start(own_part(replay, None)[0].slots)
            if self.config.count_draws
            else (),
        )

    def decide(self, state: LoopState, mode: Mode) -> tuple[Array, chex.ArrayTree]:
        """Return actions `[E, ...]` and the agent's extras `[E, ...]` to store with the step."""
        key = state_.acting_key(state)
        action, extras = self.agent.act(state.agent, state.obs, key, state.extras)
        if mode != "act" and self.config.random_warmup:
            action = _random_actions(self.action_space, key, self.replay.num_envs)
        return action, extras

    def take_in(
        self,
        state: LoopState,
        mode: Mode,
        action: Array,
        extras: chex.ArrayTree,
        env_state: Any,
        obs: chex.ArrayTree,
        out: TimeStep,
    ) -> tuple[LoopState, Metrics]:
        """Store a step of the environments, `out` `[E]`.

        With the option `offline`, only steps of the warm-up are stored. `env_state` and `obs` are
        those after the step, for the next actions.

        Returns:
          The state, and sums over the training episodes that ended in this step.
        """
        step = Step(
            state.obs, action, self._noisy(state, out), out.terminated, out.truncated,
            out.final_obs, state.episodes.lengths == 0, extras,
        )  # fmt: skip
        window, transition = n_step.push(state.window, step, self.config.gamma)
        replay_state = state.replay
        if mode == "warm-up" and self.config.n_step > 1:
            replay_state = jax.lax.cond(  # the window emits transitions from the n-th step on
                state.rows >= self.config.n_step - 1,
                lambda: self._stored(state, transition),
                lambda: state.replay,
            )
        elif mode == "warm-up" or not self.config.offline:
            replay_state = self._stored(state, transition)
        done = out.terminated | out.truncated
        if mode == "act" and self.replay.requires.episode_returns == "training":
            returns = jnp.where(done, state.episodes.returns + out.reward, jnp.nan)
            replay_state = self._observed(replay_state, returns, state_.observing_keys(state)[0])
        episodes, ended = _count(state.episodes, out.reward, done)
        state = state._replace(
            rows=state.rows + 1, env_state=env_state, obs=obs, episodes=episodes, window=window,
            extras=_unless(done, extras), replay=replay_state, fault=_fault(state, out),
        )  # fmt: skip
        return state, ended

    def after_warmup(self, state: LoopState) -> LoopState:
        """Measure the scales of observations and rewards, if the config scales them."""
        if self.config.scale_observations:
            state = _measured(state, scaling.measure_observations)
        if self.config.scale_rewards:
            state = _measured(state, scaling.measure_rewards)
        return state

    def learn(self, state: LoopState) -> tuple[LoopState, Sums]:
        """Update the agent from a batch, and the replay from the agent's feedback."""
        batch = self.replay.sample(state.replay, state_.learning_keys(state)[0])
        agent_state, info = self.agent.update(state.agent, batch, state_.learning_keys(state)[1])
        feedback = self.replay.requires.known(info.feedback)
        replay_state = self.replay.update(state.replay, batch, **feedback)
        metrics = {f"agent/{name}": value for name, value in info.metrics.items()}
        _, own_state, own = own_part(self.replay, state.replay, batch)
        metrics |= measure_share(own, own_state)
        if self.config.inspect:
            seen = {name: values[: len(own.weights)] for name, values in info.feedback.items()}
            metrics |= measure(own, seen, own_state.ring)
        if self.config.count_draws:
            state = state._replace(draws=counting.count(state.draws, own, own_state.ring))
        updates, key = state.updates + 1, state_.learning_keys(state)[1]
        replay_state = refreshed(self.replay, replay_state, self.agent, agent_state, updates, key)
        state = state._replace(agent=agent_state, replay=replay_state, updates=updates)
        return state, _finite(metrics)

    def after_block(self, state: LoopState) -> LoopState:
        """Measure the scale of rewards again after a block, when due."""
        if self.config.scale_rewards:
            due = self.is_due(state.rows, self.config.rescale_every)
            agent_state = jax.lax.cond(
                due,
                lambda: _measured(state, scaling.measure_rewards).agent,
                lambda: state.agent,
            )
            state = state._replace(agent=agent_state)
        return state

    def greedy(
        self, agent_state: Any, obs: chex.ArrayTree, key: Array, memory: Any
    ) -> tuple[Array, Any]:
        """Return the actions `[N, ...]` of evaluations, and the agent's memory.

        `memory` is the agent's memory after the previous step, or the result of `no_memory`.
        """
        if self.agent.recall is None:
            action = self.agent.greedy(agent_state, obs)
        else:
            action, memory = self.agent.recall(agent_state, obs, memory)
        share = self.config.eval_epsilon
        if is_zero(share) or isinstance(self.action_space, Continuous):
            return action, memory
        return common.epsilon_greedy(action, key, share, self.action_space.n), memory

    def no_memory(self, agent_state: Any, obs: chex.ArrayTree) -> Any:
        """Return the initial memory of the agent, zeros for N episodes; () if it has no memory.

        `obs` are the first observations, `[N, ...]`.
        """
        if self.agent.recall is None:
            return ()
        shapes = jax.eval_shape(self.agent.recall, agent_state, obs)[1]
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    @property
    def evaluates_for_replay(self) -> bool:
        """Whether the replay learns from evaluations between log points."""
        needed = self.replay.requires.episode_returns == "evaluation"
        return needed and self.config.observe_every is not None

    def observe_return(self, state: LoopState, returns: Array) -> LoopState:
        """Pass the returns `[N]` of an evaluation to the replay; return the new state."""
        key = state_.observing_keys(state)[0]
        return state._replace(replay=self.replay.observe_return(state.replay, returns.mean(), key))

    def is_due(self, rows: Any, every: int) -> Any:
        """Return whether the latest block passed a multiple of `every` agent steps.

        `rows` counts the agent steps in each environment, `every` those in all environments.
        """
        return rows % max(1, every // self.num_envs) < self.config.learn_every

    def log_point(
        self,
        state: LoopState,
        played: Metrics,
        learned: Sums,
        returns: Array,
        lengths: Array,
    ) -> tuple[LoopState, Metrics]:
        """Return the metrics of a log point, and the state after the replay observes the returns.

        Args:
          state: state of the evaluated agent.
          played: total of the sums from `take_in` since the last log point.
          learned: total of the sums from `learn` since the last log point.
          returns: `[N]` float32, from the evaluation.
          lengths: `[N]` int32, from the evaluation.
        """
        if self.replay.requires.episode_returns == "evaluation" and not self.evaluates_for_replay:
            state = self.observe_return(state, returns)
        played, learned = devices.total((played, learned), devices.current())
        replay_metrics = self.replay.metrics(state.replay)
        return state, {
            "eval_return": returns.mean(),
            "eval_length": lengths.mean(),
            "train_return": played["returns"] / played["episodes"],  # NaN if no episode ended
            "episodes": played["episodes"],
            "fault": _earliest(state.fault).astype(jnp.float32),
            **{f"replay/{name}": value for name, value in replay_metrics.items()},
            **self._inspected(state),
            **conclude(learned.means()),
        }

    def _noisy(self, state: LoopState, out: TimeStep) -> Array:
        """Return the rewards `[E]` to store, with noise if the config has any."""
        scale, reward = self.config.reward_noise, out.reward
        if is_zero(scale):
            return reward
        key = jax.random.fold_in(state_.acting_key(state), 1)
        noise = scale * jax.random.normal(key, reward.shape)
        if self.config.reward_noise_at == "failures":
            noise = jnp.where(out.terminated & (reward <= 0), noise, 0.0)
        return reward + noise

    def _stored(self, state: LoopState, transition: Transition) -> Any:
        """Return the state of the replay after adding transitions."""
        return self.replay.add(state.replay, transition, **self._feedback(state, transition))

    def _feedback(self, state: LoopState, transition: Transition) -> dict[str, Array]:
        """Return feedback about new transitions, if the replay method uses any."""
        names = self.replay.requires.feedback_of_new
        if not names:
            return {}
        feedback = self.agent.feedback(state.agent, transition, state_.feedback_key(state))
        return {name: feedback[name] for name in names | ({"reward_scale"} & feedback.keys())}

    def _observed(self, replay_state: Any, returns: Array, key: Array) -> Any:
        """Pass returns `[E]` of training episodes (NaN if not ended) to the replay, in order."""

        def observe_return(index: Array, replay_state: Any) -> Any:
            own = jax.random.fold_in(key, index)
            return self.replay.observe_return(replay_state, returns[index], own)

        return jax.lax.fori_loop(0, self.replay.num_envs, observe_return, replay_state)

    def _inspected(self, state: LoopState) -> Metrics:
        if self.config.inspect == 0:
            return {}
        key, batches = state_.inspection_key(state), self.config.inspect
        replay, replay_state, _ = own_part(self.replay, state.replay)
        return inspect(self.agent, state.agent, replay, replay_state, key, batches)


def _count(running: Episodes, reward: Array, done: Array) -> tuple[Episodes, Metrics]:
    """Add a step `[E]`; return the running episodes, and sums over the episodes that ended."""
    returns, lengths = running.returns + reward, running.lengths + 1
    ended = {
        "returns": jnp.where(done, returns, 0.0).sum(),
        "episodes": done.sum(dtype=jnp.float32),
    }
    return Episodes(jnp.where(done, 0.0, returns), jnp.where(done, 0, lengths)), ended


def _measured(state: LoopState, measure: Callable[..., Any]) -> LoopState:
    """Return the state with scales measured on the stored transitions."""
    agent_state = state.agent
    units = measure(agent_state.scaling, state.replay.ring)
    return state._replace(agent=agent_state._replace(scaling=units))


def _fault(state: LoopState, out: TimeStep) -> Array:
    """Return the new `LoopState.fault`, which is set at the first non-finite number."""
    seen = [x for x in jax.tree.leaves((out.reward, out.final_obs)) if x.dtype.kind == "f"]
    fine = jnp.stack([jnp.isfinite(x).all() for x in seen]).all()
    return jnp.where(fine | (state.fault > 0), state.fault, state.rows + 1)


def _earliest(fault: Array) -> Array:
    """Return the first `LoopState.fault` of all devices."""
    if (axis := devices.current()) is None:
        return fault
    latest = jnp.iinfo(jnp.int32).max
    first = -devices.largest(-jnp.where(fault > 0, fault, latest), axis)
    return jnp.where(first < latest, first, 0)


def _unless(done: Array, extras: chex.ArrayTree) -> chex.ArrayTree:
    """Return extras `[E, ...]`, set to zero where an episode has ended."""
    return jax.tree.map(
        lambda x: jnp.where(done.reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(x), x), extras
    )


def _random_actions(space: Discrete | Continuous, key: Array, count: int) -> Array:
    """Return uniform actions, `[count]` int32 or `[count, A]` float32."""
    if isinstance(space, Discrete):
        return common.uniform_to_action(jax.random.uniform(key, (count,)), space.n)
    return jax.random.uniform(key, (count, space.size), jnp.float32, -1.0, 1.0)


def _finite(metrics: Metrics) -> Sums:
    """Return metrics as sums of one term; a metric that is not finite has sum 0 and count 0."""
    values = jnp.stack(list(metrics.values()))
    ok = jnp.isfinite(values)
    return Sums(jnp.where(ok, values, 0.0), ok.astype(jnp.float32), tuple(metrics))
