"""R2D2: recurrent DQN on sequences, with stored states and burn-in (Kapturowski et al. 2019)."""

import dataclasses
from typing import Any, Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import linen as nn

from agents import common, options
from agents.critics import VALUES, value_feedback
from agents.dqn import DQNState
from agents.layers import Dense
from agents.networks import MLP, Network, Obs, Params, QNetwork, batch_of_one, encode, rows
from agents.types import Agent, Discrete, Info, Offers
from jaxreplay import counters, objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition

OFFERS = Offers(VALUES, scalar_loss=True, reads=frozenset({"sequences"}))
_PAPER = "Kapturowski et al. 2019"


@dataclasses.dataclass(frozen=True)
class R2D2Config(Config):
    """R2D2 hyperparameters; the defaults suit small tasks with vector observations.

    The replay's `length`, `period` and `burn_in` are options of the method `sequences`.
    """

    double: bool = option(True, options.DOUBLE)
    dueling: bool = option(False, options.DUELING)
    cell: Literal["gru", "lstm"] = option("gru", "recurrent cell", f"{_PAPER}: lstm")
    memory: int = option(64, "size of the recurrent state", f"{_PAPER}: 512", at_least=1)
    n_step: int = option(
        3,
        "n of the n-step targets within sequences; the loop's n_step must be 1",
        f"{_PAPER}: 5",
        at_least=1,
    )
    stored_state: bool = option(
        True,
        "start sequences from the recurrent state stored with their first step; false: from zeros",
        f"{_PAPER}, Sec. 3",
    )
    rescale: bool = option(False, "learn values of rescaled returns (see `rescale`)", _PAPER)
    network: Network = option("auto", options.NETWORK)
    hidden: tuple[int, ...] = option((64,), options.HIDDEN)
    optimiser: Literal["adam", "rmsprop"] = option("adam", options.OPTIMISER)
    learning_rate: float = option(5e-4, options.LEARNING_RATE)
    adam_eps: float = option(1e-8, options.ADAM_EPS, "Kingma & Ba 2015")
    rmsprop_decay: float = option(0.95, options.RMSPROP_DECAY)
    rmsprop_eps: float = option(1e-5, options.RMSPROP_EPS)
    rmsprop_eps_in_root: bool = option(False, options.RMSPROP_EPS_IN_ROOT)
    max_grad_norm: float = option(10.0, options.MAX_GRAD_NORM)
    tau: float = option(
        0.005,
        "soft-update rate; the paper copies the network every 2 500 updates",
        above=0,
        at_most=1,
    )
    target_every: int = option(1, options.TARGET_EVERY)
    epsilon_start: float = option(1.0, options.EPSILON_START)
    epsilon_end: float = option(0.05, options.EPSILON_END)
    epsilon_updates: int = option(5_000, options.EPSILON_UPDATES)


class Memory(NamedTuple):
    """Extras stored with each step: recurrent states `[..., S]` before and after its observation.

    Updates start from `before`; acting starts from `after` of the previous step. S is the option
    `memory` for a GRU, and twice as much for an LSTM.
    """

    before: Array
    after: Array


def rescale(x: Array, epsilon: float = 1e-3) -> Array:
    """Return `h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x` (Pohlen et al. 2018)."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + epsilon * x


def unscale(x: Array, epsilon: float = 1e-3) -> Array:
    """Return the inverse of `rescale`, in a form without the usual numerical cancellation.

    The inverse is `sign(x) y (y + 2)`, with `s = sqrt(1 + 4 epsilon (epsilon + 1 + |x|))` and
    `y = |x| (2 - 4 epsilon / (1 + 2 epsilon + s)) / (1 + s)`.

    Example:
      >>> float(jnp.round(unscale(rescale(jnp.float32(100.0))), 3))
      100.0
    """
    size = jnp.abs(x)
    root = jnp.sqrt(1.0 + 4.0 * epsilon * (epsilon + 1.0 + size))
    y = size * (2.0 - 4.0 * epsilon / (1.0 + 2.0 * epsilon + root)) / (1.0 + root)
    return jnp.sign(x) * y * (y + 2.0)


def n_step_targets(reward: Array, discount: Array, last: Array, value: Array, n_step: int) -> Array:
    """Return n-step targets `[T, B]` within sequences.

    The target of step t sums the discounted rewards of n steps, and bootstraps with the value after
    the last of these steps. The sum stops early at the end of an episode or of the sequence.

    Args:
      reward: `[T, B]`.
      discount: `[T, B]` of single steps, 0 where the episode terminated.
      last: `[T, B]` bool, the last step of an episode.
      value: `[T, B]`, value of the observation after each step.
      n_step: n.
    """
    ends = last.at[-1].set(True)
    target = reward + discount * value
    for _ in range(n_step - 1):
        after = jnp.roll(target, -1, axis=0)
        target = reward + discount * jnp.where(ends, value, after)
    return target


class Encoder(nn.Module):
    """Features `[B, D]` of observations `[B, ...]`; see `networks.encode`."""

    network: Network

    @nn.compact
    def __call__(self, obs: Obs) -> Array:
        return encode(obs, self.network)[0]


class RecurrentQ(nn.Module):
    """Q-values of a recurrent network: `encode`, `step` through time, then `head`.

    A part of the gates depends on the input but not on the state. `encode` computes this part for
    all steps at once.
    """

    num_actions: int
    network: Network
    hidden: tuple[int, ...]
    dueling: bool
    cell: Literal["gru", "lstm"]
    memory: int

    @property
    def state_size(self) -> int:
        """Size S of the recurrent state."""
        return self.memory if self.cell == "gru" else 2 * self.memory

    def setup(self) -> None:
        gates = 3 if self.cell == "gru" else 4
        self.encoder, self.torso = Encoder(self.network), MLP(self.hidden)
        self.project = Dense(gates * self.memory)
        shape, orthogonal = (self.memory, gates * self.memory), nn.initializers.orthogonal()

        def init(key: Array, shape: tuple[int, int]) -> Array:
            keys = jax.random.split(key, gates)
            return jnp.concatenate([orthogonal(k, (shape[0],) * 2) for k in keys], axis=1)

        self.kernel = self.param("kernel", init, shape)
        if self.cell == "gru":
            self.bias = self.param("bias", nn.initializers.zeros, (self.memory,))
        self.values = QNetwork(self.num_actions, "mlp", self.hidden, self.dueling)

    def encode(self, obs: Obs) -> Array:
        """Return the part of the gates `[B, G]` that depends on observations `[B, ...]`."""
        return self.project(nn.relu(self.torso(self.encoder(obs))))

    def step(self, gates: Array, state: Array) -> Array:
        """Return the next recurrent states `[B, S]`."""
        if self.cell == "gru":
            reset, update, new = jnp.split(gates, 3, axis=-1)
            from_state = jnp.split(state @ self.kernel, 3, axis=-1)
            reset = jax.nn.sigmoid(reset + from_state[0])
            update = jax.nn.sigmoid(update + from_state[1])
            new = jnp.tanh(new + reset * (from_state[2] + self.bias))
            return (1.0 - update) * new + update * state
        hidden, cell = jnp.split(state, 2, axis=-1)
        into, forget, new, out = jnp.split(gates + hidden @ self.kernel, 4, axis=-1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(new)
        return jnp.concatenate([jax.nn.sigmoid(out) * jnp.tanh(cell), cell], axis=-1)

    def head(self, state: Array) -> Array:
        """Return Q-values `[B, num_actions]` of recurrent states `[B, S]`."""
        return self.values(state[..., : self.memory])

    def __call__(self, obs: Obs, state: Array) -> tuple[Array, Array]:
        """Return Q-values `[B, num_actions]` and the next recurrent states `[B, S]`."""
        state = self.step(self.encode(obs), state)
        return self.head(state), state


class _R2D2:
    """Implementation of R2D2."""

    def __init__(self, config: R2D2Config, space: Discrete, objective: Objective | None) -> None:
        common.check_arguments("R2D2", space, Discrete, objective, OFFERS)
        self.config, self.objective = config, common.with_default_loss(objective, objectives.mse)
        common.require(
            not self.objective.roles,
            "R2D2 learns from sequences, but this replay method gives transitions roles by their "
            "position in the batch: use another replay method",
        )
        self.num_actions = space.n
        self.network: Any = RecurrentQ(
            space.n, config.network, config.hidden, config.dueling, config.cell, config.memory
        )
        self.optimiser, self.epsilon = common.q_optimiser(config), common.epsilon_schedule(config)

    def init(self, key: Array, obs: Obs, _action: Array) -> DQNState:
        params = self.network.init(key, batch_of_one(obs), self.zeros(1))
        updates = jnp.zeros((), jnp.int32)
        return DQNState(params, params, self.optimiser.init(params), updates)

    def zeros(self, count: int) -> Array:
        return jnp.zeros((count, self.network.state_size), jnp.float32)

    def recall(self, state: DQNState, obs: Obs, previous: Any = None) -> tuple[Array, Memory]:
        before = self.zeros(rows(obs)) if previous is None else previous.after
        q, after = self.network.apply(state.params, obs, before)
        return jnp.argmax(q, axis=-1).astype(jnp.int32), Memory(before, after)

    def greedy(self, state: DQNState, obs: Obs) -> Array:
        return self.recall(state, obs)[0]

    def act(
        self, state: DQNState, obs: Obs, key: Array, previous: Any = None
    ) -> tuple[Array, Memory]:
        best, memory = self.recall(state, obs, previous)
        epsilon = self.epsilon(state.updates)
        return common.epsilon_greedy(best, key, epsilon, self.num_actions), memory

    def unroll(self, params: Params, inputs: Obs, start: Array, burn_in: Array) -> Array:
        """Return Q-values `[T + 1, B, n]` of `inputs` `[T + 1, B, ...]`, from states `[B, S]`.

        No gradient passes through the states of steps in the mask `burn_in` `[T + 1, B]`.
        """
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), inputs)
        apply = self.network.apply
        gates = apply(params, flat, method="encode").reshape(*burn_in.shape, -1)

        def step(state: Array, given: tuple[Array, Array]) -> tuple[Array, Array]:
            gates, warms_up = given
            state = apply(params, gates, state, method="step")
            state = jnp.where(warms_up[:, None], jax.lax.stop_gradient(state), state)
            return state, state

        states = jax.lax.scan(step, start, (gates, burn_in))[1]
        q = apply(params, states.reshape(-1, states.shape[-1]), method="head")
        return q.reshape(*burn_in.shape, -1)

    def target(self, t: Transition, q: Array, q_target: Array) -> Array:
        """Return targets `[T, B]`, given online and target Q-values `[T + 1, B, n]`."""
        best = (q if self.config.double else q_target)[1:].argmax(axis=-1)
        value = jnp.take_along_axis(q_target[1:], best[..., None], axis=-1)[..., 0]
        if self.config.rescale:
            value = unscale(value)
        target = n_step_targets(t.reward, t.discount, t.last, value, self.config.n_step)
        return rescale(target) if self.config.rescale else target

    def update(self, state: DQNState, sample: Sample, _key: Array) -> tuple[DQNState, Info]:
        config = self.config
        learn, mask = (
            common.read_aux("R2D2", sample, name, "the replay method 'sequences' or 'slices'")
            for name in ("learn", "mask")
        )
        t = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), sample.transition)  # [T, B, ...]
        # The last row of a slice ends it, even if the episode continues.
        t = t._replace(last=t.last | ~jnp.roll(mask.T, -1, axis=0))
        # [T + 1, B, ...]: the first observations, then the next observation of every step.
        inputs = jax.tree.map(lambda x, y: jnp.concatenate([x[:1], y]), t.obs, t.next_obs)
        start = t.extras.before[0] if config.stored_state else self.zeros(learn.shape[0])
        warms_up = (mask & ~learn).T
        burn_in = jnp.concatenate([warms_up, jnp.zeros_like(warms_up[:1])])
        q_target = self.unroll(state.target_params, inputs, start, burn_in)
        count = jnp.maximum(learn.sum(axis=1), 1)

        def loss(params: Params) -> tuple[Array, tuple[Array, Array, Array]]:
            q = self.unroll(params, inputs, start, burn_in)
            chosen = jnp.take_along_axis(q[:-1], t.action[..., None], axis=-1)[..., 0]
            target = self.target(t, jax.lax.stop_gradient(q), q_target)
            td = jnp.where(learn.T, target - chosen, 0.0)  # [T, B]
            errors = self.objective.losses(td.reshape(1, -1)).reshape(td.shape)
            per_sequence = jnp.where(learn.T, errors, 0.0).sum(axis=0) / count
            return self.objective.critic(per_sequence, sample, None), (td, chosen, target)

        (value, (td, chosen, target)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        params, opt_state = common.descend(self.optimiser, grads, state.opt_state, state.params)
        updates = counters.increment(state.updates, config.target_every)
        target_params = common.periodic_update(
            params, state.target_params, updates, config.target_every, config.tau
        )
        feedback = {"td_error": td.T, "q_value": chosen.T, "target": target.T}
        metrics = {
            "loss": value, "q_value": (chosen * learn.T).sum() / jnp.maximum(learn.sum(), 1),
            "grad_norm": common.global_norm(grads),
            "epsilon": jnp.asarray(self.epsilon(updates), jnp.float32),
        }  # fmt: skip
        return DQNState(params, target_params, opt_state, updates), Info(feedback, metrics)

    def feedback(self, state: DQNState, t: Transition, _key: Array) -> dict[str, Array]:
        """Return the feedback of single transitions `[B]`, from their stored states."""
        chex.assert_rank(t.reward, 1)
        before = t.extras.before
        q, after = self.network.apply(state.params, t.obs, before)
        q_next = self.network.apply(state.params, t.next_obs, after)[0]
        after = self.network.apply(state.target_params, t.obs, before)[1]
        q_target = self.network.apply(state.target_params, t.next_obs, after)[0]
        once = jax.tree.map(lambda x: x[None], t)
        pair = [jnp.stack([q, next_values]) for next_values in (q_next, q_target)]
        target = self.target(once, pair[0], pair[1])[0]
        return value_feedback(common.batched_index(q, t.action)[None], target)


def r2d2(config: R2D2Config, action_space: Discrete, objective: Objective | None = None) -> Agent:
    """Create an R2D2 agent, for sequences `[B, T, ...]` of the methods `sequences` or `slices`.

    The loss of a sequence is half the mean squared TD error over the steps after the burn-in.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects the importance-weighted mean.

    Raises:
      ValueError: If `action_space` is not `Discrete`, or if `objective` requires an action
        density, or gives transitions roles by their position in the batch.
    """
    agent = _R2D2(config, action_space, objective)
    return Agent(
        agent.init, agent.act, agent.greedy, agent.update, agent.feedback,
        extras_of_action=False, recall=agent.recall,
    )  # fmt: skip
