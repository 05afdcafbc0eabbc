"""DQN (Mnih et al. 2015) with optional Double Q-learning, dueling and Munchausen targets."""

import dataclasses
from typing import Any, Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from agents import common, options
from agents.critics import CRITIC_OFFERS, Critics, critic_feedback, critic_gradient, fit
from agents.learned_weights import learn_weights
from agents.networks import Network, Obs, Params, QNetwork, apply, batch_of_one
from agents.types import Agent, Discrete, Info
from jaxreplay import counters, objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition

OFFERS = CRITIC_OFFERS._replace(feedback=CRITIC_OFFERS.feedback | {"expected_td_error"})
_MUNCHAUSEN = "Vieillard et al. 2020"


@dataclasses.dataclass(frozen=True)
class DQNConfig(Config):
    """DQN hyperparameters; the defaults suit vector observations, as in CartPole."""

    double: bool = option(True, options.DOUBLE)
    dueling: bool = option(False, options.DUELING)
    munchausen: bool = option(False, "use Munchausen targets; the paper uses n_step 1", _MUNCHAUSEN)
    munchausen_alpha: float = option(0.9, "weight of the log-policy bonus", _MUNCHAUSEN, above=0)
    munchausen_tau: float = option(0.03, "softmax policy temperature", _MUNCHAUSEN, above=0)
    munchausen_clip: float = option(-1.0, "lower bound on tau * log policy", _MUNCHAUSEN, at_most=0)
    network: Network = option("auto", options.NETWORK)
    hidden: tuple[int, ...] | None = option(
        (128, 128),
        "hidden layer sizes of network 'mlp'; none: Q is linear in the observation, without bias",
        at_least=1,
    )
    layer_norm: bool = option(False, options.LAYER_NORM)
    optimiser: Literal["adam", "rmsprop", "sgd"] = option(
        "adam",
        "Adam, centred RMSProp without momentum as in the DQN papers, or gradient descent",
    )
    learning_rate: float = option(5e-4, options.LEARNING_RATE)
    adam_eps: float = option(1e-8, options.ADAM_EPS, "Kingma & Ba 2015")
    rmsprop_decay: float = option(0.95, options.RMSPROP_DECAY)
    rmsprop_eps: float = option(1e-5, options.RMSPROP_EPS)
    rmsprop_eps_in_root: bool = option(False, options.RMSPROP_EPS_IN_ROOT)
    max_grad_norm: float = option(10.0, options.MAX_GRAD_NORM)
    tau: float = option(
        0.005,
        "soft-update rate; 1 copies the network, as in Mnih et al. 2015 (every 10 000 updates); "
        "tau 1 with target_every 1 is DQN without a target network",
        above=0,
        at_most=1,
    )
    target_every: int = option(1, options.TARGET_EVERY)
    epsilon_start: float = option(1.0, options.EPSILON_START)
    epsilon_end: float = option(0.05, options.EPSILON_END)
    epsilon_updates: int = option(10_000, options.EPSILON_UPDATES)

    def check(self) -> None:
        if self.hidden is None and self.dueling:
            raise ValueError(
                "dueling requires hidden layers, got hidden none: set hidden, or use dueling=false"
            )


class ExpectedError(NamedTuple):
    """A network with the layers of the Q-network, which predicts mean TD errors for EPER."""

    params: Params
    opt_state: optax.OptState


class DQNState(NamedTuple):
    """DQN or Rainbow agent state."""

    params: Params  # online network parameters
    target_params: Params  # target network parameters
    opt_state: optax.OptState
    updates: Array  # [] int32, update count for the epsilon schedule and target network updates
    expected: ExpectedError | None = None  # None if the replay method does not require it


def double_q_target(q_target_t: Array, q_online_t: Array, reward: Array, discount: Array) -> Array:
    """Return one example's Double DQN target `[]` (van Hasselt et al. 2016, Eq. 4).

    The target is `reward + discount * q_target_t[argmax q_online_t]`.

    Args:
      q_target_t: `[n]`, the target network's Q-values for the next observation.
      q_online_t: `[n]`, the online network's Q-values, which select the next action.
      reward: `[]`.
      discount: `[]`, 0 if the episode terminated.
    """
    chex.assert_rank([q_target_t, q_online_t, reward, discount], [1, 1, 0, 0])
    best = jnp.argmax(q_online_t)[None]
    return reward + discount * common.batched_index(q_target_t[None], best)[0]


def munchausen_target(
    q_tm1: Array, action: Array, q_t: Array, reward: Array, discount: Array, config: DQNConfig
) -> Array:
    """Return one example's Munchausen DQN target `[]` (Vieillard et al. 2020, Sec. 2 and 4).

    `r + alpha [tau log pi(a|s)]_clip^0 + discount sum_b pi(b|s') (Q(s', b) - tau log pi(b|s'))`
    for observations s and s', action a and pi = softmax(Q / tau). The sum over b equals
    `tau logsumexp(Q(s') / tau)`. An n-step target includes only the log policy of its first action,
    since a transition does not store the other actions.

    Args:
      q_tm1: `[n]`, the target network's Q-values for the observation.
      action: `[]` int32, the stored action.
      q_t: `[n]`, the target network's Q-values for the next observation.
      reward: `[]`.
      discount: `[]`, 0 if the episode terminated.
      config: provides `munchausen_alpha`, `munchausen_tau` and `munchausen_clip`.
    """
    chex.assert_rank([q_tm1, action, q_t, reward, discount], [1, 0, 1, 0, 0])
    tau = config.munchausen_tau
    bonus = jnp.clip(tau * jax.nn.log_softmax(q_tm1 / tau)[action], config.munchausen_clip, 0)
    value = tau * jax.nn.logsumexp(q_t / tau)
    return reward + config.munchausen_alpha * bonus + discount * value


class _DQN:
    """Implementation of DQN."""

    def __init__(self, config: DQNConfig, space: Discrete, objective: Objective | None) -> None:
        common.check_arguments("DQN", space, Discrete, objective, OFFERS)
        self.config, self.objective = (
            config,
            common.with_default_loss(objective, objectives.huber(1.0)),
        )
        self.num_actions = space.n
        self.network = QNetwork(
            space.n,
            config.network,
            config.hidden or (),
            config.dueling,
            layer_norm=config.layer_norm,
        )
        self.optimiser = common.q_optimiser(config)
        self.epsilon = common.epsilon_schedule(config)

    def init(self, key: Array, obs: Obs, _action: Array) -> DQNState:
        params = self.network.init(key, batch_of_one(obs))
        updates, expected = jnp.zeros((), jnp.int32), None
        if "expected_td_error" in self.objective.requires.feedback:
            network = self.network.init(jax.random.fold_in(key, 1), batch_of_one(obs))
            expected = ExpectedError(network, self.optimiser.init(network))
        return DQNState(params, params, self.optimiser.init(params), updates, expected)

    def greedy(self, state: DQNState, obs: Obs) -> Array:
        return jnp.argmax(apply(self.network, state.params, obs), axis=-1).astype(jnp.int32)

    def act(self, state: DQNState, obs: Obs, key: Array, _: Any = None) -> tuple[Array, None]:
        epsilon = self.epsilon(state.updates)
        return common.epsilon_greedy(self.greedy(state, obs), key, epsilon, self.num_actions), None

    def value(self, params: Params, t: Transition) -> Array:
        return common.batched_index(apply(self.network, params, t.obs), t.action)

    def critics(self, state: DQNState) -> Critics:
        return Critics(self.value, (state.params,), (state.target_params,))

    def targets(self, state: DQNState, t: Transition) -> Array:
        q_target = apply(self.network, state.target_params, t.next_obs)
        if self.config.munchausen:
            q = apply(self.network, state.target_params, t.obs)
            target = jax.vmap(munchausen_target, in_axes=(0, 0, 0, 0, 0, None))
            return target(q, t.action, q_target, t.reward, t.discount, self.config)
        if not self.config.double:
            return t.reward + t.discount * q_target.max(axis=-1)
        q_select = apply(self.network, state.params, t.next_obs)
        return jax.vmap(double_q_target)(q_target, q_select, t.reward, t.discount)

    def loss(self, params: tuple[Params], sample: Sample, target: Array) -> tuple[Array, Array]:
        """Return the loss `[]` of a batch and the Q-values `[1, B]` of its actions."""
        q = self.value(params[0], sample.transition)[None]
        td_error = target - q
        return self.objective.critic(self.objective.losses(td_error), sample, None), q

    def update(self, state: DQNState, sample: Sample, key: Array) -> tuple[DQNState, Info]:
        config, target = self.config, self.targets(state, sample.transition)
        critics = self.critics(state)
        (grads,), info, _ = fit(self.loss, critics, sample, target, self.objective, key)
        expected = state.expected
        if expected is not None:
            td_error, t = info.feedback["td_error"], sample.transition
            info.feedback.update(self.expected_feedback(state, t))
            expected = self.learn_error(expected, t, td_error)
        params, opt_state = common.descend(self.optimiser, grads, state.opt_state, state.params)
        updates = counters.increment(state.updates, config.target_every)
        target_params = common.periodic_update(
            params, state.target_params, updates, config.target_every, config.tau
        )
        info.metrics["epsilon"] = jnp.asarray(self.epsilon(updates), jnp.float32)
        return DQNState(params, target_params, opt_state, updates, expected), info

    def learn_error(self, expected: ExpectedError, t: Transition, td_error: Array) -> ExpectedError:
        """Take a gradient step on the squared error between predictions and TD errors `[B]`."""

        def loss(params: Params) -> Array:
            return jnp.square(td_error - self.value(params, t)).mean()

        grads = common.averaged(jax.grad(loss)(expected.params))
        return ExpectedError(
            *common.descend(self.optimiser, grads, expected.opt_state, expected.params)
        )

    def expected_feedback(self, state: DQNState, t: Transition) -> dict[str, Array]:
        if state.expected is None:
            return {}
        return {"expected_td_error": self.value(state.expected.params, t)}

    def gradient(self, state: DQNState, t: Transition, weights: Array, _key: Array) -> Any:
        target = self.targets(state, t)
        return critic_gradient(self.critics(state), t, weights, target, self.objective)

    def feedback(self, state: DQNState, t: Transition, _key: Array) -> dict[str, Array]:
        target = self.targets(state, t)
        feedback = critic_feedback(self.critics(state), t, target, self.objective)
        return feedback | self.expected_feedback(state, t)


def dqn(config: DQNConfig, action_space: Discrete, objective: Objective | None = None) -> Agent:
    """Create a DQN agent.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects the importance-weighted Huber loss with
        kappa 1.

    Raises:
      ValueError: If `action_space` is not `Discrete`, or if `objective` requires an action density.
    """
    agent = _DQN(config, action_space, objective)
    made = Agent(
        agent.init,
        agent.act,
        agent.greedy,
        agent.update,
        agent.feedback,
        gradient=agent.gradient,
        loss=objectives.huber(1.0),
    )
    return learn_weights(made, objective, action_space)
