"""PQN: Q-learning from rollouts of many environments, without replay and target network.

Gallici et al. 2025 replace both by layer normalisation and by lambda-returns of new steps.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import common, options, rollouts
from agents.critics import VALUES
from agents.networks import Network, Obs, Params, QNetwork, apply, batch_of_one
from agents.types import Agent, Discrete, Info, Offers
from jaxreplay import counters, schedules
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition

OFFERS = Offers(VALUES, on_policy=True)
_CODE = "Gallici et al. 2025, code, MinAtar"


@dataclasses.dataclass(frozen=True)
class PQNConfig(Config):
    """PQN hyperparameters; an update learns from one rollout, the replay's batch."""

    trace_decay: float = option(
        0.65, "lambda of the lambda-returns; 0: one-step targets", _CODE, at_least=0, at_most=1
    )
    epochs: int = option(2, options.EPOCHS, _CODE)
    minibatches: int = option(
        32, "minibatches per epoch, a divisor of the batch size", _CODE, at_least=1
    )
    network: Network = option("auto", options.NETWORK)
    hidden: tuple[int, ...] = option((128, 128), options.HIDDEN)
    layer_norm: bool = option(True, options.LAYER_NORM)
    learning_rate: float = option(
        5e-4, "initial learning rate of RAdam", _CODE, above=0, at_most=10
    )
    learning_rate_updates: int | None = option(
        None,
        "updates over which the learning rate falls to 0; none: the whole run",
        _CODE,
        at_least=1,
        whole_run=True,
    )
    max_grad_norm: float = option(10.0, options.MAX_GRAD_NORM, _CODE)
    epsilon_start: float = option(1.0, options.EPSILON_START, _CODE)
    epsilon_end: float = option(0.05, options.EPSILON_END, _CODE)
    epsilon_updates: int = option(24, options.EPSILON_UPDATES, "a tenth of a million steps")


class PQNState(NamedTuple):
    """PQN agent state."""

    params: Params
    opt_state: optax.OptState
    updates: Array  # [] int32, update count for the epsilon schedule


class Steps(NamedTuple):
    """Training data for one update, computed before the gradient steps."""

    obs: Obs  # [B, ...]
    action: Array  # [B] int32
    target: Array  # [B] float32, lambda-returns


class _PQN:
    """Implementation of PQN."""

    def __init__(self, config: PQNConfig, space: Discrete, objective: Objective | None) -> None:
        common.check_arguments("PQN", space, Discrete, objective, OFFERS)
        self.config, self.num_actions = config, space.n
        self.network = QNetwork(
            space.n, config.network, config.hidden, layer_norm=config.layer_norm
        )
        gradient_steps = None
        if config.learning_rate_updates is not None:
            gradient_steps = config.learning_rate_updates * config.epochs * config.minibatches
        rate: Any = schedules.linear(config.learning_rate, 0.0, gradient_steps)
        self.optimiser = common.clip_gradients(optax.radam(rate), config.max_grad_norm)
        self.epsilon = common.epsilon_schedule(config)

    def init(self, key: Array, obs: Obs, _action: Array) -> PQNState:
        params = self.network.init(key, batch_of_one(obs))
        return PQNState(params, self.optimiser.init(params), jnp.zeros((), jnp.int32))

    def q(self, params: Params, obs: Obs) -> Array:
        return apply(self.network, params, obs)  # [B, n]

    def greedy(self, state: PQNState, obs: Obs) -> Array:
        return jnp.argmax(self.q(state.params, obs), axis=-1).astype(jnp.int32)

    def act(self, state: PQNState, obs: Obs, key: Array, _: Any = None) -> tuple[Array, None]:
        epsilon = self.epsilon(state.updates)
        return common.epsilon_greedy(self.greedy(state, obs), key, epsilon, self.num_actions), None

    def prepare(self, params: Params, sample: Sample) -> tuple[Steps, dict[str, Array]]:
        """Compute the Steps to train on, and feedback such as TD errors, for a batch."""
        t = sample.transition
        q, next_value = self.q(params, t.obs), self.q(params, t.next_obs).max(axis=-1)
        value, taken = q.max(axis=-1), common.batched_index(q, t.action)
        decay = self.config.trace_decay
        target = rollouts.advantages("PQN", sample, value, next_value, decay) + value
        feedback = {"td_error": target - taken, "q_value": taken, "target": target}
        return Steps(t.obs, t.action, target), feedback

    def loss(self, params: Params, steps: Steps) -> Array:
        taken = common.batched_index(self.q(params, steps.obs), steps.action)
        return 0.5 * jnp.square(steps.target - taken).mean()

    def gradient_step(self, state: PQNState, batch: Steps) -> tuple[PQNState, dict[str, Array]]:
        loss, grads = jax.value_and_grad(self.loss)(state.params, batch)
        params, opt_state = common.descend(self.optimiser, grads, state.opt_state, state.params)
        metrics = {"loss": loss, "grad_norm": common.global_norm(grads)}
        return state._replace(params=params, opt_state=opt_state), metrics

    def update(self, state: PQNState, sample: Sample, key: Array) -> tuple[PQNState, Info]:
        steps, feedback = self.prepare(state.params, sample)
        config, total = self.config, steps.target.size
        common.require(
            total % config.minibatches == 0,
            f"minibatches {config.minibatches} must divide the batch of {total} steps: use another "
            "number of minibatches, environments or steps per environment",
        )
        state, metrics = rollouts.train(
            self.gradient_step, state, steps, key, config.epochs, total // config.minibatches
        )
        updates = counters.increment(state.updates)
        metrics["q_value"] = feedback["q_value"].mean()
        metrics["epsilon"] = jnp.asarray(self.epsilon(updates), jnp.float32)
        return state._replace(updates=updates), Info(feedback, metrics)

    def feedback(self, state: PQNState, t: Transition, _key: Array) -> dict[str, Array]:
        taken = common.batched_index(self.q(state.params, t.obs), t.action)
        target = t.reward + t.discount * self.q(state.params, t.next_obs).max(axis=-1)
        return {"td_error": target - taken, "q_value": taken, "target": target}


def pqn(config: PQNConfig, action_space: Discrete, objective: Objective | None = None) -> Agent:
    """Create a PQN agent (Gallici et al. 2025).

    Batches must consist of the newest T steps of E environments in chronological order, whose slots
    are `Sample.aux.slots` `[T, E]`. Each step must be used in one update only. PQN does not use the
    losses in `objective`. The learning rate is constant unless `learning_rate_updates` or
    `config.for_run` sets the length of its schedule.

    Raises:
      ValueError: If `action_space` is not `Discrete`, or if `objective` requires an action
        density or sets a loss on TD errors.
    """
    agent = _PQN(config, action_space, objective)
    return Agent(agent.init, agent.act, agent.greedy, agent.update, agent.feedback)
